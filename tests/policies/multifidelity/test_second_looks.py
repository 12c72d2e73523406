"""A search that stands still continues paused trials that were not promoted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from haltune import Budget, Float, Maximize, Problem, Space, Study, Trial
from haltune.log.decisions import Action
from haltune.log.events import Reported, Resumed, Started
from haltune.policies import MultiFidelity

EPOCHS = 27
Curve = Callable[[dict[str, Any], float], float]
PROBLEM = Problem(Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}), Maximize("acc", (-1, 1)), EPOCHS)


def own(config: dict[str, Any]) -> float:
    """What the neighbours of a configuration do not show: from -0.1 to 0.1."""
    return 0.1 * math.sin(1e4 * (config["x"] + config["y"]))


def final(config: dict[str, Any]) -> float:
    return 0.8 - 0.8 * (config["x"] - 0.3) ** 2 - 0.8 * (config["y"] - 0.7) ** 2 + own(config)


def misleading(config: dict[str, Any], epoch: float) -> float:
    """Until epoch 3 what is its own counts against a trial that ends well."""
    return (final(config) if epoch > 3 else 0.8 * (final(config) - 2 * own(config))) * (1.0 - 0.01 / epoch)


def lucky(config: dict[str, Any], epoch: float) -> float:
    """The first value of many is higher than any last one."""
    return 1.0 if epoch == 1 and own(config) > 0.05 else misleading(config, epoch)


def train(study: Study, curve: Curve = misleading, after: Callable[[], None] = lambda: None) -> Study:
    """Train all trials; `after` is called after each."""
    for trial in study:
        with trial:
            for epoch in range(int(trial.epoch) + 1, EPOCHS + 1):
                if trial.report(curve(trial.config, epoch), epoch, seconds=1.0).stops:
                    break
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed("saved")
        after()
    return study


@cache
def searched(seed: int, curve: Curve, unit: str) -> Study:
    """Return a search; read only."""
    budget = Budget(epochs=40 * EPOCHS)
    problem = replace(PROBLEM, unit=unit)
    return train(Study(problem, MultiFidelity(candidates=100), seed=seed, budget=budget, verbose=0), curve)


def looks(study: Study) -> list[Resumed]:
    return [e for e in study.events() if isinstance(e, Resumed) and "not promoted" in e.reason]


@pytest.mark.slow
def test_a_search_does_not_stay_where_early_values_mislead_among_the_best() -> None:
    """Without second looks this search ends 0.18 below the best configuration that it has started."""
    study = searched(1, misleading, "epoch")
    assert study.best is not None
    assert study.best.value > max(final(t.config) for t in study.trials) - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("curve", [misleading, pytest.param(lucky, marks=pytest.mark.slow)])
@pytest.mark.parametrize("unit", ["epoch", pytest.param("step", marks=pytest.mark.slow)])
def test_a_second_look_comes_after_a_while_without_a_better_last_value(curve: Curve, unit: str) -> None:
    study = searched(0, curve, unit)
    trained, best_at, best = 0, 0, -math.inf
    paused, count = set[int](), 0
    for e in study.events():
        if isinstance(e, Reported):
            trained += 1
            if e.epoch == EPOCHS and e.value > best:
                best, best_at = e.value, trained
            (paused.add if e.verdict.action is Action.PAUSE else paused.discard)(e.trial)
        if isinstance(e, Resumed) and "not promoted" in e.reason:
            count += 1
            since = (trained - best_at) / EPOCHS
            assert e.trial in paused
            assert trained >= 6 * EPOCHS
            assert trained - best_at >= trained / 3
            assert e.evidence["trainings"] == round(trained / EPOCHS, 2)
            assert f"but no value was better in the last {since:.1f} full trainings" in e.reason
            assert e.evidence["paused"] <= len(paused)
    assert count
    assert count < sum(isinstance(e, Started) for e in study.events())


def test_a_search_that_improves_takes_none() -> None:
    problem = replace(PROBLEM, goal=Maximize("acc", (-1, 1), of="best"))
    study = Study(problem, MultiFidelity(candidates=40), seed=0, budget=Budget(epochs=20 * EPOCHS), verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(0.5 + 0.002 * trial.id + 1e-4 * epoch, seconds=1.0)
            trial.checkpointed("saved")
    assert len(study.trials) > 30
    assert not looks(study)


@pytest.mark.parametrize(
    ("budget", "some"),
    [(Budget(trials=150), False), pytest.param(Budget(trials=150, epochs=9999), True, marks=pytest.mark.slow)],
)
def test_a_budget_of_trials_alone_pays_for_none(budget: Budget, some: bool) -> None:
    study = Study(PROBLEM, MultiFidelity(candidates=40), seed=0, budget=budget, verbose=0)
    train(study, lambda config, epoch: 0.5 - 0.1 * config["x"] + 1e-4 * epoch)
    assert study.spent.epochs > 6 * EPOCHS
    assert bool(looks(study)) == some


@pytest.mark.slow
def test_a_configuration_that_the_user_enqueues_starts_first() -> None:
    study = Study(PROBLEM, MultiFidelity(candidates=100), seed=0, budget=Budget(epochs=40 * EPOCHS), verbose=0)
    added = False

    def enqueue() -> None:
        nonlocal added
        if looks(study) and not added:
            added = all(study.enqueue({"x": 0.9, "y": y}) for y in (0.1, 0.2, 0.3, 0.4))

    train(study, after=enqueue)
    events = list(study.events())
    first, second = (events.index(look) for look in looks(study)[:2])
    between = [e.config["x"] for e in events[first:second] if isinstance(e, Started)]
    assert between[:4] == [0.9] * 4


def test_reports_that_are_copied_from_an_earlier_attempt_were_trained_once() -> None:
    study = Study(PROBLEM, MultiFidelity(), seed=0, budget=Budget(trials=9), verbose=0)
    for epochs in ((1, 2, 3), (4, 5)):  # the second attempt continues from a state of the program's own
        trial = study.ask()
        assert isinstance(trial, Trial)
        for epoch in epochs:
            trial.report(0.5, epoch)
        trial.interrupt()
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4, 5]
    assert study.session.replica.state.rows.trained == study.spent.epochs == 5.0


def test_its_reason_names_the_rank_the_standstill_and_the_prediction() -> None:
    look = looks(searched(0, misleading, "epoch"))[0]
    facts, e = look.reason, look.evidence
    assert re.match(r"\d+(st|nd|rd|th) of \d+ after (1 epoch|\d+ epochs), not promoted; ", facts)
    assert f"of {e['paused']} paused trials" in facts
    assert f"predicts acc {e['mean']:.4g} ± {e['sd']:.2g}; continues to" in facts
