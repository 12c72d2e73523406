"""The best so far is what the history itself would have told, after each event, whatever goes wrong."""

import math

import numpy as np
import pytest
from curves import accuracy
from worlds import POLICIES, problem, small_study

from haltune import Maximize, Minimize, Problem
from haltune.log.history import History
from haltune.report import progress
from haltune.report.story import Story


def searched(name, goal, trials=14):
    """A search in which values explode, vanish and fall, and trainings fail and are taken up again."""
    base = problem()
    study = small_study(
        POLICIES[name](), problem=Problem(base.space, goal, base.max_epochs), trials=trials, verbose=0
    )
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
