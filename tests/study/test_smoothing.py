"""A goal with smooth= decides and ranks by an average; rank_by= ranks full trainings by another metric."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import problem

from haltune import Maximize, Minimize, Problem, Study, Trial
from haltune.errors import HaltuneWarning, InvalidInput
from haltune.log.problem import smoothed
from haltune.policies import Hyperband, MultiFidelity, RandomSearch
from haltune.store.memory import MemoryStore
from haltune.study.messages import standing_line
from haltune.study.redecide import redecide

SPACE = problem().space


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.floats(0.5, 20.0), st.floats(0.1, 10.0))
def test_the_mean_of_even_reports_is_the_exponential_average_without_its_bias(
    values: list[float], width: float, step: float
) -> None:
    decay, moving, weight = math.exp(-step / width), 0.0, 0.0
    for value in values:
        moving, weight = decay * moving + (1 - decay) * value, decay * weight + (1 - decay)
    found = smoothed(Minimize("loss", smooth=width), [step * (n + 1) for n in range(len(values))], values)
    assert found == pytest.approx(moving / weight, rel=1e-6, abs=1e-6)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.integers(1, 9))
def test_the_median_is_of_the_reports_within_the_window(values: list[float], window: int) -> None:
    goal = Minimize("loss", smooth=("median", window))
    found = smoothed(goal, [float(n) for n in range(len(values))], values)
    assert found == pytest.approx(float(np.median(values[-window:])))


def test_what_is_not_finite_stays_so_and_spoils_no_later_average() -> None:
    goal = Minimize("loss", smooth=5)
    assert math.isnan(smoothed(goal, [1, 2], [0.5, math.nan]))
    assert smoothed(goal, [1, 2, 3], [0.5, math.inf, 0.5]) == 0.5


def noisy(store: MemoryStore, policy: object, smooth: float | None, trials: int = 12) -> Study:
    posed = Problem(SPACE, Minimize("loss", smooth=smooth), 3000, unit="step")
    study = Study(posed, policy, store, seed=1, budget=f"{trials} trials", verbose=0)  # type: ignore[arg-type]
    for trial in study:
        with trial:
            rng = np.random.default_rng(trial.id)
            quality = abs(math.log10(trial.config["lr"]) + 2)
            for step in range(int(trial.epoch) + 50, 3001, 50):
                trial.checkpointed(f"{trial.id}-{step - 50}") if step > 50 else None
                loss = 0.3 * quality + math.exp(-step / 800) + 0.2 * rng.standard_normal()
                if trial.report(loss, step=step).stops:
                    trial.checkpointed(f"{trial.id}-{step}")
                    break
    return study


def test_the_log_and_the_curves_keep_what_was_reported() -> None:
    study = noisy(MemoryStore(), RandomSearch(), 500, 1)
    (trial,) = study.trials
    assert trial.smoothed is not None
    assert np.std(np.diff(trial.smoothed)) < 0.2 * np.std(np.diff(trial.values))
    assert study.best is not None
    assert study.best.value == trial.smoothed[-1]
    assert f"{trial.values[-1]:.6g} (smoothed {trial.smoothed[-1]:.6g})" in study.explain(0)


@pytest.mark.parametrize("policy", [Hyperband, MultiFidelity])
def test_decisions_on_smoothed_values_are_made_again_from_the_log(policy: type) -> None:
    study = noisy(MemoryStore(), policy(), 400)
    decisions = list(redecide(study.problem, policy(), study.events()))
    assert len(decisions) > 20
    assert all(found == recorded for _, recorded, found in decisions)


def test_ranks_at_a_rung_are_those_of_the_smoothed_values() -> None:
    study = noisy(MemoryStore(), Hyperband(eta=3, min_resource=300, brackets="most_exploratory"), 400)
    at = {t.id: t for t in study.trials if len(t.epochs) and t.epochs[-1] >= 300}
    first = {
        id: (t.smoothed if t.smoothed is not None else t.values)[list(t.epochs).index(300)] for id, t in at.items()
    }
    continued = [v for id, v in first.items() if at[id].epochs[-1] > 300]
    paused = [v for id, v in first.items() if at[id].epochs[-1] == 300]
    assert continued
    assert paused
    assert max(continued) <= min(paused)


def test_full_trainings_are_ranked_by_another_metric_decisions_are_not() -> None:
    goal = Minimize("train_loss", smooth=2, rank_by="eval_loss")
    study = Study(
        {"lr": SPACE.parameters["lr"]}, goal, max_epochs=4, policy=RandomSearch(), budget="3 trials", verbose=0
    )
    for trial in study:
        for epoch in trial.epochs():
            last = {"eval_loss": 1.0 - 0.1 * trial.id} if epoch == 4 else {}
            trial.report({"train_loss": 0.1 * trial.id + 1 / epoch, **last})
    assert study.best is not None
    assert (study.best.trial, study.best.value) == (2, 0.8)  # the worst by its training loss
    assert study.history.incumbent() == min(t.result(goal) for t in study.trials)


def test_messages_name_the_metric_that_ranks_and_none_that_was_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    goal = Minimize("train_loss", rank_by="eval_loss")
    study = Study(
        {"lr": SPACE.parameters["lr"]}, goal, max_epochs=2, policy=Hyperband(eta=2), budget="3 trials", seed=0
    )
    with caplog.at_level("INFO", "haltune"):
        for trial in study:
            for epoch in trial.epochs():
                measured = {"eval_loss": 3.5} if epoch == 2 else {}
                if trial.report({"train_loss": 0.1 * trial.id + 1 / epoch, **measured}).stops:
                    break
    text = "\n".join(caplog.messages)
    assert "nan" not in text
    assert "at epoch 1 of 2: train_loss" in text  # one was cut before it was measured
    assert "best eval_loss 3.5 (trial" in text.splitlines()[-1]


def test_a_full_training_without_the_metric_that_ranks_is_warned_of_and_named_by_its_own_metric() -> None:
    goal = Minimize("loss", rank_by="eval_loss")
    study = Study({"lr": SPACE.parameters["lr"]}, goal, max_steps=20, policy=RandomSearch(), budget="1 trial")
    with pytest.warns(HaltuneWarning, match=r"Trial 0 ended without a report of 'eval_loss'.*or omit rank_by="):
        for trial in study:
            for step in (10, 20):
                trial.report({"loss": 1 / step}, step=step)
    assert "best loss 0.05" in standing_line(study.history, study.budget, over=True)


@pytest.mark.parametrize(("rank_by", "warns"), [("val_acc", True), ("eval_loss", False), ("score", False)])
def test_a_metric_that_ranks_in_the_other_direction_by_its_name_is_warned_of(rank_by: str, warns: bool) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Study(SPACE, Minimize("loss", rank_by=rank_by), max_steps=20)
    assert ["by its name, the opposite is better" in str(w.message) for w in seen] == [True] * warns


def test_several_goals_take_neither() -> None:
    for one in (Minimize("ms", smooth=3), Minimize("ms", rank_by="s")):
        with pytest.raises(InvalidInput, match="one goal"):
            Problem(SPACE, [Maximize("acc"), one], 5)


@pytest.mark.parametrize("smooth", [0, -1, math.inf, "3", ("mode", 3), True])
def test_a_width_that_is_none_is_refused(smooth: object) -> None:
    with pytest.raises(InvalidInput, match="smooth="):
        Minimize("loss", smooth=smooth)  # type: ignore[arg-type]


def test_a_log_says_how_it_was_smoothed() -> None:
    posed = Problem(SPACE, Minimize("loss", smooth=("median", 9.0), rank_by="eval"), 30)
    assert Problem.from_json(posed.to_json()).goal == posed.goal
    trial = Study(posed, RandomSearch(), budget="1 trial", verbose=0).ask()
    assert isinstance(trial, Trial)
