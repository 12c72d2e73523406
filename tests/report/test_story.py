"""The timeline: a line for each worker, whoever holds their trials, and where all of their time went."""

import math
import re

import numpy as np
import pytest
from curves import accuracy
from worlds import POLICIES, problem, small_study

from haltune import Float, Maximize, Minimize, Problem, Space
from haltune.log.decisions import go_on
from haltune.log.events import Ended, Reported, Started, Status
from haltune.log.history import History
from haltune.report import progress
from haltune.report.figures.results import shares, timeline_spec
from haltune.report.story import Story

PROBLEM = Problem(Space({"lr": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 9)


def begun(trial, at, deciding=0.0, worker="w"):
    return Started(
        at=at, trial=trial, config={"lr": 0.5}, until=None, resource=None, tags={}, reason="", evidence={}, seen=0,
        deciding=deciding, worker=worker,
    )  # fmt: skip


def reported(trial, at, epoch, seconds, validation=None, deciding=0.0):
    return Reported(
        at=at, trial=trial, attempt=1, epoch=epoch, value=0.5, seconds=seconds, validation=validation,
        deciding=deciding, verdict=go_on(""), seen=0,
    )  # fmt: skip


def ended(trial, at):
    return Ended(at=at, trial=trial, attempt=1, status=Status.COMPLETED)


def told(*events):
    return Story(PROBLEM).fold(sorted(events, key=lambda event: event.at))


def one_after_another():
    """On one worker: 2 s to choose the second, 3 s to judge within the first, 1 s of nothing between."""
    return told(
        begun(0, 0.0),
        reported(0, 10.0, 1.0, seconds=6.0, validation=2.0, deciding=3.0),
        ended(0, 10.0),
        begun(1, 13.0, deciding=2.0),
        reported(1, 17.0, 1.0, seconds=4.0),
        ended(1, 17.0),
    )


def test_each_second_of_a_worker_is_counted_once():
    found = shares(one_after_another())
    assert found == pytest.approx(
        {"training": 8.0, "validation": 2.0, "deciding": 5.0, "other": 1.0, "idle": 1.0, "checkpoint": 0.0, "lost": 0.0}
    )  # fmt: skip
    assert math.fsum(found.values()) == pytest.approx(17.0)


def test_shares_that_are_told_are_those_of_the_whole():
    thirds = told(begun(0, 0.0), reported(0, 9.0, 1.0, seconds=6.0, validation=3.0), ended(0, 9.0))
    note = timeline_spec(thirds)["layout"]["meta"]["note"]
    assert sum(int(percent) for percent in re.findall(r"(\d+)%", note)) == 100


def test_trials_that_a_launcher_holds_at_a_time_are_on_a_line_each():
    story = told(
        begun(0, 0.0), begun(1, 1.0),
        reported(0, 5.0, 1.0, seconds=5.0), ended(0, 5.0),
        begun(2, 5.0),
        reported(1, 8.0, 1.0, seconds=7.0), ended(1, 8.0),
        begun(3, 9.0),
        reported(2, 10.0, 1.0, seconds=5.0), ended(2, 10.0),
        reported(3, 11.0, 1.0, seconds=2.0), ended(3, 11.0),
    )  # fmt: skip
    spec = timeline_spec(story)
    lines = {int(id[6:]): y for trace in spec["data"] for id, y in zip(trace["ids"], trace["y"], strict=True)}
    assert lines[0] == lines[2] != lines[1] == lines[3]
    assert "2 workers" in spec["layout"]["meta"]["alt"]
    assert shares(story)["idle"] == pytest.approx(1.0)
    assert spec["layout"]["yaxis"]["categoryarray"] == [lines[0], lines[1]]


def test_a_run_that_trains_keeps_its_line_while_others_begin():
    story = told(begun(0, 0.0), reported(0, 1.0, 1.0, seconds=1.0), begun(1, 5.0))
    (running,) = timeline_spec(story)["data"]
    assert len(set(running["y"])) == 2


def test_what_was_judged_in_a_stretch_is_told_of_it_once():
    (bars,) = timeline_spec(one_after_another())["data"]
    told_of = dict(zip(bars["ids"], (parts for _, parts in bars["customdata"]), strict=True))
    assert told_of["trial-0"] == (
        "1 epoch in 10 s: 4.0 s training, 2.0 s validation, 3.0 s deciding, 1.0 s starting up and the rest"
    )
    assert told_of["trial-1"] == "1 epoch in 4.0 s, after 2.0 s deciding: 4.0 s training"


# -- the best so far is what the history itself would have told, after each event, whatever goe


def searched(name, goal, trials=14):
    """A search in which values explode, vanish and fall, and trainings fail and are taken up again."""
    base = problem()
    study = small_study(POLICIES[name](), problem=Problem(base.space, goal, base.max_epochs), trials=trials, verbose=0)
    rng = np.random.default_rng(5)
    for trial in study:
        fate = rng.random()
        with trial:
            for epoch in trial.epochs():
                value = goal.sign * (accuracy(trial.config, epoch) + 0.2 * rng.standard_normal())
                if fate < 0.15 and epoch == 3:
                    value = rng.choice([math.nan, goal.sign * math.inf, goal.sign * 1e300])
                if 0.15 < fate < 0.3 and epoch == 4 and study.best is not None:
                    raise RuntimeError("boom")
                if trial.report(value, seconds=1.0).stops:
                    break
    return study


GOALS = [Maximize("acc"), Minimize("loss"), Maximize("acc", of="best"), Minimize("loss", of="best")]


@pytest.mark.parametrize("goal", GOALS, ids=repr)
@pytest.mark.parametrize("name", ["random", "halving", "hyperband", "bobos"])
def test_it_is_the_best_of_the_history_after_each_event(name, goal):
    study = searched(name, goal)
    story, history, leaders = Story(study.problem), History(study.problem), set()
    for event in study.events():
        history.apply(event)
        last = story.fold([event]).steps[-1:]
        best = history.best()
        assert [(s.trial, s.value) for s in last] == ([(best.trial, best.value)] if best else [])
        leaders |= {s.trial for s in last}
    assert len(leaders) > 1


@pytest.mark.parametrize("goal", GOALS, ids=repr)
def test_the_line_ends_at_the_answer_though_a_run_that_does_not_count_saw_more(goal):
    study = searched("random", goal)
    results, line, dots = progress(study).data
    assert line.y[-1] == study.best.value
    assert dots.ids[-1] == f"trial-{study.best.trial}"
    assert set(line.y) <= {v for t in study.trials for v in t.values if math.isfinite(v)}
    came = {f"trial-{t.id}": v for t in study.trials if math.isfinite(v := t.result(study.problem.goal))}
    assert dict(zip(results.ids, results.y, strict=True)) == came


def test_where_nothing_that_counts_was_seen_it_says_so():
    study = small_study(POLICIES["random"](), trials=2, verbose=0)
    for trial in study:
        with trial:
            trial.report(math.nan)
    assert Story(study.problem).fold(study.events()).steps == []
    assert "No trial has reported a finite value yet" in progress(study).layout.annotations[0].text
