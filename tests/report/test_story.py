"""The timeline: a line for each worker, and all parts of its time."""

import math

import numpy as np
import pytest
from curves import accuracy
from worlds import POLICIES, problem, small_study

from haltune import Float, Maximize, Minimize, Problem, Space
from haltune.log.decisions import continue_
from haltune.log.events import Ended, Reported, Started, Status
from haltune.log.history import History
from haltune.report.figures.results import shares, timeline_spec
from haltune.report.story import Story

PROBLEM = Problem(Space({"lr": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 9)


def begun(trial, at, deciding=0.0, worker="w"):
    return Started(
        at=at, trial=trial, config={"lr": 0.5}, pause_at=None, resource=None, tags={}, reason="", evidence={}, seen=0,
        deciding=deciding, worker=worker,
    )  # fmt: skip


def reported(trial, at, epoch, seconds, validation=None, deciding=0.0):
    return Reported(
        at=at, trial=trial, attempt=1, epoch=epoch, value=0.5, seconds=seconds, validation=validation,
        deciding=deciding, verdict=continue_(""), seen=0,
    )  # fmt: skip


def ended(trial, at):
    return Ended(at=at, trial=trial, attempt=1, status=Status.COMPLETED)


def told(*events):
    return Story(PROBLEM).fold(sorted(events, key=lambda event: event.at))


def one_after_another():
    """On one worker: 2 s to choose the second trial, 3 s to judge within the first, 1 s idle between them."""
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


GOALS = [Maximize("acc"), Minimize("loss", of="best")]


@pytest.mark.parametrize("goal", GOALS, ids=repr)
@pytest.mark.parametrize("name", ["random", "hyperband"])
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
