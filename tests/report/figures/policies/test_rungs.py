"""The ladder of rungs, against halving done by hand."""

import math
import re
from functools import cache

import numpy as np
import pytest

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.policies import BOBOS, Hyperband, SuccessiveHalving
from haltune.report import rungs
from haltune.report.digest import digest, story_of
from haltune.report.figures.decisions import rung_entries, rungs_spec
from haltune.store.studies import hold


def curve(config, epoch):
    """Runs cross: what is good early is not what is good late."""
    lr = config["lr"]
    return lr * (1 - 0.5**epoch) if epoch < 9 else 1.5 - lr


def searched(policy, trials=9, epochs=9, end=None, every=1):
    problem = Problem(Space({"lr": Float(0.0, 1.0)}), Maximize("acc", (0, 2)), epochs)
    study = Study(problem, policy, seed=1, budget=Budget(trials=trials), verbose=0)
    for count, trial in enumerate(study):
        with trial:
            assert trial.checkpoint is None or trial.epoch > 0
            for epoch in range(int(trial.epoch) + 1, epochs + 1):
                verdict = None
                if epoch % every == 0:
                    verdict = trial.report(curve(trial.config, epoch), epoch=epoch, seconds=1.0)
                trial.save(lambda path: path.mkdir())
                if verdict is not None and verdict.stops:
                    break
        if end is not None and count + 1 >= end:
            break
    return study


def found(study):
    return rung_entries(story_of(study), digest(study))


@cache
def halved():
    return searched(SuccessiveHalving(9))


def test_halving_done_by_hand_leaves_the_same_runs_at_each_rung():
    study = halved()
    config = {t.id: t.config for t in study.trials}
    there, told = list(config), {(p.row.record.id, p.rung): (p.outcome, p.value) for p in found(study)}
    expected = {}
    for rung, keep in ((1, 3), (3, 1)):
        on = sorted(there, key=lambda id: -curve(config[id], rung))[:keep]
        expected |= {(id, rung): ("on" if id in on else "left", curve(config[id], rung)) for id in there}
        there = on
    expected |= {(id, 9): ("end", curve(config[id], 9)) for id in there}
    assert told == expected


def test_the_columns_are_the_rungs_and_the_best_of_each_stand_on_the_left():
    figure = rungs(halved())
    assert figure.layout.xaxis.ticktext == ("1", "3", "9")
    dots = [(x, y) for t in figure.data if t.mode == "markers" for x, y in zip(t.x, t.y, strict=True)]
    first = sorted((x, y) for x, y in dots if x < 0.5)
    assert len(first) == 9
    assert [y for _, y in first] == sorted((y for _, y in first), reverse=True)
    assert [a.text for a in figure.layout.annotations] == ["3 of 9", "1 of 3", "1"]


def test_a_bracket_that_starts_at_a_later_rung_is_not_compared_before_it():
    study = searched(Hyperband(), trials=17)
    first = {}
    for p in found(study):
        first[p.row.record.id] = min(first.get(p.row.record.id, 99), p.rung)
    begun = {t.id: {0: 1.0, 1: 3.0, 2: 9.0}[t.tags["bracket"] % 3] for t in study.trials}
    assert first == begun
    later = sum(rung > 1.0 for rung in first.values())
    note = rungs_spec(story_of(study), digest(study))["layout"]["meta"]["note"]
    assert f" {later} trials were first compared at a later rung" in note


@pytest.mark.parametrize("make", [lambda: searched(BOBOS(), trials=3)])
def test_a_search_without_rungs_says_so(make):
    study = make()
    spec = rungs_spec(story_of(study), digest(study))
    assert spec["data"] == []
    assert "No trial has reached a rung" in spec["layout"]["annotations"][0]["text"]


@pytest.mark.parametrize("diverged", [None, 3])
@pytest.mark.parametrize("policy", [None, SuccessiveHalving(9, asynchronous=True)])
def test_the_count_above_a_rung_is_that_of_an_explanation(policy, diverged):
    chance = np.random.default_rng(0)
    study = Study(
        {"x": Float(0.0, 1.0)}, Maximize("acc"), max_epochs=27, budget="16 trials", seed=1, verbose=0, policy=policy
    )
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                value = trial.config["x"] - 0.5**epoch + chance.normal(0.0, 0.05)
                verdict = trial.report(math.nan if trial.id == diverged else value, epoch, seconds=1.0)
                if verdict.resumable:
                    trial.checkpointed(f"{trial.id}")
                if verdict.stops or (trial.id % 5 == 1 and epoch == 2):
                    break
    layout = rungs(study).layout
    counts = dict(zip(layout.xaxis.ticktext, (a.text for a in layout.annotations), strict=True))
    lines = "\n".join(study.explain(t.id) for t in study.trials)
    explained = set(re.findall(r"of (\d+) after (\d+) epochs?[^;\n]*; (\w+) others? continued", lines))
    assert explained
    for arrived, epoch, continued in explained:
        assert counts[epoch] == f"{continued} of {arrived}"


def test_trials_of_a_search_that_is_stopped_for_now_wait() -> None:
    study = searched(SuccessiveHalving(9), end=5)
    hold(study.store, study.name, "stopped for now")
    assert {p.outcome for p in found(study)} == {"waits"}
