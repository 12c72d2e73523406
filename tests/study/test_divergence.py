"""A diverged trial ends after its second epoch without a finite value, under any policy."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from worlds import problem

from haltune import Budget, Study, Trial
from haltune.log.events import Status
from haltune.policies import RandomSearch


def trained(values: list[float], study: Study | None = None) -> Trial:
    """Train a trial that reports these values, until the verdict is to stop."""
    study = study or Study(problem(epochs=9), RandomSearch(), seed=0, budget=Budget(trials=3))
    trial = study.ask()
    assert isinstance(trial, Trial)
    with trial:
        for epoch in trial.epochs():
            trial.report(values[epoch - 1])
    return trial


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([math.nan, math.nan], "was NaN at epoch 1 and epoch 2: the training diverged"),
        ([0.5, math.nan, 0.5, math.inf, math.nan], "NaN and infinite at epoch 4 and epoch 5: the training diverged"),
    ],
)
def test_it_ends_after_the_second_in_a_row_and_says_why(values: list[float], said: str) -> None:
    trial = trained(values)
    assert (trial.epoch, trial.ended) == (len(values), Status.STOPPED)
    assert trial.verdict is not None
    assert trial.verdict.reason.endswith(said)
    assert not trial.verdict.resumable


def test_it_is_no_failure_and_no_complete_run() -> None:
    study = Study(problem(epochs=9), RandomSearch(), seed=0, budget=Budget(trials=3), max_failures=2)
    for _ in range(3):
        trained([0.9, math.nan, math.nan], study)
    assert [(t.status, t.complete, t.error) for t in study.trials] == [("stopped", False, None)] * 3
    assert study.history.failures_in_a_row == 0
    assert study.best is None
    assert "diverged" in study.explain(0)


def test_reports_between_two_judged_ones_do_not_count() -> None:
    study = Study(replace(problem(epochs=9), judge_every=1), RandomSearch(), seed=0, budget=Budget(trials=1))
    with study.ask() as trial:  # type: ignore[union-attr]
        for epoch in (0.5, 1.0, 1.5):
            assert not trial.report(math.nan, epoch).stops
        assert trial.report(math.nan, 2.0).stops
