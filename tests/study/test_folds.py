"""A trial over folds: its value is the mean over k trainings, wherever it stops, pauses or is killed."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paused_studies import pausing_study
from worlds import Clock, Crash, MortalStore, ending, small_study

from haltune import Budget, Constraint, Float, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import InvalidInput
from haltune.log.decisions import Verdict, continue_, stop
from haltune.log.events import Status
from haltune.log.folds import FoldCurve, curves, estimate
from haltune.log.records import TrialRecord
from haltune.policies import RandomSearch


@dataclass(frozen=True)
class StopsAt(RandomSearch):
    """Random search of one trial, which stops at the position `at`."""

    trials: int | None = 1
    at: float = 0.0

    @property
    def spec(self) -> dict[str, Any]:
        return super().spec | {"policy": "StopsAt", "at": self.at}

    def judge(self, state: Any, history: Any, trial: TrialRecord, rng: Any) -> Verdict:
        problem = history.problem
        reached = trial.epoch if problem.grid is None else problem.grid.position(trial.epoch)
        return stop("a whim") if abs(reached - self.at) < 1e-9 else continue_("more")


PLANE = Space({"x": Float(0.0, 1.0)})


def study(epochs: int | None = 4, trials: int = 1, goal: Any = None, **options: Any) -> Study:
    policy = options.pop("policy", RandomSearch())
    posed = Problem(PLANE, goal or Minimize("val_loss"), epochs, **options)
    return Study(posed, policy, seed=0, budget=Budget(trials=trials), verbose=0)


def asked(**options: Any) -> Trial:
    trial = study(**options).ask()
    assert isinstance(trial, Trial)
    return trial


def values_of(trial: Trial) -> list[float]:
    return trial.history.trial(trial.id).values.tolist()


# the value


def test_the_value_of_a_trial_is_the_mean_over_folds_and_its_epochs_are_those_of_all_folds() -> None:
    ends = {0: [5.0, 3.0], 1: [6.0, 2.0], 2: [5.5, 4.0]}
    s = study(epochs=2)
    for trial in s:
        with trial:
            for fold in trial.folds(3):
                assert (fold.count, fold.epoch, fold.max_epochs, fold.checkpoint) == (3, 0, 2, None)
                for epoch in fold.epochs():
                    fold.report(ends[fold.index][epoch - 1])
    (record,) = s.trials
    assert record.epochs.tolist() == [1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2]
    assert record.values[-1] == np.mean([3.0, 2.0, 4.0])
    # at epoch 1 of fold 1, half of its training: it ends 0.5 * (6 - 5) above fold 0
    assert record.values.tolist()[:4] == [5.0, 3.0, (3.0 + 3.5) / 2, 2.5]
    assert record.status is Status.COMPLETED
    best = s.best
    assert best is not None
    assert (best.value, best.folds, best.checkpoint) == (3.0, (3.0, 2.0, 4.0), None)
    assert best.std == statistics.stdev([3.0, 2.0, 4.0])
    assert "folds=(3.0, 2.0, 4.0), std=1.0" in repr(best)
    assert "over 3 folds" in best._repr_html_()


def test_a_trial_without_folds_has_none() -> None:
    s = study(epochs=1)
    for trial in s:
        with trial:
            trial.report(1.0)
    assert s.best is not None
    assert (s.best.folds, s.best.std) == ((), None)
    assert "folds" not in repr(s.best)


@given(
    folds=st.lists(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), min_size=1, max_size=6),
    lengths=st.lists(st.integers(1, 4), min_size=6, max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_the_last_value_is_the_mean_of_the_last_values_wherever_folds_end(
    folds: list[list[float]], lengths: list[int]
) -> None:
    trial = asked(epochs=4)
    for fold in trial.folds(len(folds)):
        for epoch in range(1, lengths[fold.index] + 1):
            fold.report(folds[fold.index][epoch - 1], epoch)
    last = [values[n - 1] for values, n in zip(folds, lengths, strict=False)]
    assert values_of(trial)[-1] == pytest.approx(np.mean(last), rel=1e-12, abs=1e-9)
    assert trial.epoch == pytest.approx(sum(lengths[: len(folds)]) / len(folds), rel=1e-12)
    known = curves(trial.metrics, "val_loss")
    assert [curve.value for curve in known] == last


def recorded(configs: int = 60, k: int = 5, epochs: int = 12) -> Any:
    """(configs, k, epochs) curves: a shape for each configuration, a level for each fold, noise that shrinks."""
    rng = np.random.default_rng(5)
    at = np.arange(1, epochs + 1) / epochs
    quality, speed = rng.normal(0.0, 0.05, configs), rng.uniform(1.0, 6.0, configs)
    shape = 0.8 + quality[:, None] - 0.6 * np.exp(-speed[:, None] * at)
    levels = rng.normal(0.0, 0.03, (configs, k, 1))
    walk = np.cumsum(rng.normal(0.0, 0.02, (configs, k, epochs))[..., ::-1] * at, axis=-1)[..., ::-1]
    return shape[:, None, :] + levels + walk


def test_the_estimate_ranks_better_than_the_running_mean_is_nearer_and_has_no_bias() -> None:
    found = recorded()
    configs, k, epochs = found.shape
    final = found[:, :, -1].mean(axis=1)

    def correlation(values: Any) -> float:
        return float(np.corrcoef(np.argsort(np.argsort(values)), np.argsort(np.argsort(final)))[0, 1])

    ranks, errors = [], []
    for i in range(1, k):
        for e in range(1, epochs):
            ours = np.array([
                estimate([FoldCurve(j, np.arange(1.0, epochs + 1), c[j]) for j in range(i)], e, c[i, e - 1], epochs)
                for c in found
            ])  # fmt: skip
            naive = (found[:, :i, -1].sum(axis=1) + found[:, i, e - 1]) / (i + 1)
            ranks.append((correlation(ours), correlation(naive)))
            errors.append((ours - final, naive - final))
    (rank, naive_rank), error = np.mean(ranks, axis=0), np.array(errors)
    assert rank > naive_rank + 0.005
    off, naive_off = np.sqrt((error**2).mean(axis=(0, 2)))
    assert off < 0.6 * naive_off
    bias, naive_bias = error.mean(axis=(0, 2))
    assert abs(bias) < 0.2 * abs(naive_bias)


def test_an_epoch_that_an_earlier_fold_did_not_report_is_interpolated() -> None:
    trial = asked(epochs=4)
    shape = {2: 6.0, 3: 4.0, 4: 2.0}
    for fold in trial.folds(2):
        for epoch in [2, 4] if fold.index == 0 else [3, 4]:
            fold.report(shape[epoch] + fold.index, epoch)
    # at epoch 3 fold 0 was at 4: fold 1 is 1 above, of which 3/4 count
    assert values_of(trial) == [6.0, 2.0, (2.0 + 2.75) / 2, 2.5]


def test_a_fold_that_is_not_a_number_makes_the_mean_not_a_number_and_the_trial_is_no_incumbent() -> None:
    s = study(epochs=1, trials=2)
    for trial in s:
        with trial:
            for fold in trial.folds(3):
                fold.report(math.nan if trial.id == 0 and fold.index == 1 else 1.0)
    assert np.isnan(s.trials[0].values).tolist() == [False, True, True]
    assert s.best is not None
    assert s.best.trial == 1


def test_each_fold_may_count_its_best_epoch() -> None:
    trial = asked(epochs=3, goal=Maximize("acc"))
    table = [[0.5, 0.9, math.nan], [0.6, 0.7, 0.5]]
    for fold in trial.folds(2, of="best"):
        for value in table[fold.index]:
            fold.report(value)
    assert [c.values.tolist() for c in curves(trial.metrics, "acc")] == [[0.5, 0.9, 0.9], [0.6, 0.7, 0.7]]
    assert values_of(trial)[-1] == np.mean([0.9, 0.7])


def test_other_goals_and_constraints_are_means_over_folds_too() -> None:
    goals = [Maximize("acc"), Minimize("ms")]
    posed = Problem(PLANE, goals, 2, constraints=[Constraint("mb", at_most=5.0)])
    s = Study(posed, RandomSearch(), seed=0, budget=Budget(trials=1), verbose=0)
    for trial in s:
        with trial:
            for fold in trial.folds(2):
                fold.report({"acc": 0.2, "ms": 3.0 + fold.index, "mb": 4.0 + 4.0 * fold.index})
                fold.report({"acc": 0.4 + fold.index / 10, "ms": 5.0 + fold.index})
    (record,) = s.trials
    assert record.results(s.problem) == pytest.approx({"acc": 0.45, "ms": 5.5, "mb": 6.0})
    with pytest.raises(InvalidInput, match="'ms'"):
        next(small_study(RandomSearch(), problem=posed).ask().folds(2)).report({"acc": 0.3})


def test_the_metric_of_rank_by_is_the_mean_of_its_last_values() -> None:
    s = study(epochs=2, goal=Maximize("acc", rank_by="test"))
    for trial in s:
        with trial:
            for fold in trial.folds(2):
                fold.report(0.1)
                fold.report({"acc": 0.5, "test": 0.6 + 0.2 * fold.index})
    assert s.best is not None
    assert (s.best.value, s.best.folds) == (pytest.approx(0.7), pytest.approx((0.6, 0.8)))


# stop and pause


def trained(trial: Trial, k: int, log: list[Any]) -> None:
    """Train over k folds by noisy steps that draw from the process's generators, resuming where it was."""
    random.seed(trial.attempt)  # another process has drawn other numbers
    np.random.seed(trial.attempt)  # noqa: NPY002
    if trial.attempt == 1:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
    for fold in trial.folds(k):
        log.append((fold.index, fold.epoch))
        state = {"w": 3.0 + np.random.rand(), "v": 0.0}  # noqa: NPY002
        if fold.checkpoint:
            state = json.loads(Path(fold.checkpoint).read_text())
        for _ in (loop := TrainingLoop(fold, save=lambda path, state=state: path.write_text(json.dumps(state)))):
            state["v"] = 0.9 * state["v"] - 0.1 * (state["w"] + random.random())
            state["w"] += state["v"]
            loop.report(state["w"] ** 2)


def over(s: Study, k: int) -> tuple[TrialRecord, list[Any]]:
    log: list[Any] = []
    for trial in s:
        with trial:
            trained(trial, k, log)
    return s.trials[0], log


@given(data=st.data(), k=st.integers(1, 4), epochs=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_a_trial_paused_within_and_between_folds_equals_one_that_never_paused(
    data: st.DataObject, k: int, epochs: int
) -> None:
    at = sorted(data.draw(st.sets(st.integers(1, max(1, k * epochs - 1)), max_size=3)))
    straight, _ = over(pausing_study(epochs=epochs, verbose=0, at=()), k)
    paused, log = over(pausing_study(epochs=epochs, verbose=0, at=tuple(n / k for n in at if n < k * epochs)), k)
    assert paused.epochs.tolist() == straight.epochs.tolist()
    assert paused.values.tolist() == straight.values.tolist()
    stops = [n for n in at if n < k * epochs]
    assert paused.attempt == len(stops) + 1
    starts = [(i, 0) for i in range(k)] + [divmod(n, epochs) for n in stops if n % epochs]
    assert sorted(log) == sorted(starts)  # no fold is trained twice


def test_a_fold_that_ended_early_is_not_trained_again_after_a_pause() -> None:
    starts: list[tuple[int, float]] = []
    s = pausing_study(at=(2.5,), epochs=4, verbose=0)
    for trial in s:
        with trial:
            for fold in trial.folds(2):
                starts.append((fold.index, fold.epoch))
                for epoch in fold.epochs():
                    if fold.report(1.0 + fold.index, epoch).stops:
                        fold.save(lambda path: path.write_text("state"))
                    if fold.index == 0 and epoch == 3:
                        break
    assert starts == [(0, 0), (1, 0), (1, 2)]  # 3 epochs of fold 0 and 2 of fold 1 are 2.5 of the trial
    (record,) = s.trials
    assert (record.epoch, record.values[-1], record.status) == (3.5, 1.5, Status.COMPLETED)


@given(life=st.integers(2, 30), after=st.booleans(), k=st.integers(1, 3), epochs=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_a_search_that_is_killed_anywhere_ends_as_one_that_was_not(life: int, after: bool, k: int, epochs: int) -> None:
    def program(store: Any, log: list[Any]) -> Study:
        s = Study(Problem(PLANE, Minimize("loss"), epochs), RandomSearch(), store, seed=0, budget="2 trials", verbose=0)
        for trial in s:
            with trial:
                for fold in trial.folds(k):
                    log.append((trial.id, fold.index, fold.epoch))
                    for epoch in fold.epochs():
                        fold.report(trial.config["x"] + fold.index + 1 / epoch, seconds=1.0)
        return s

    expected = ending(program(MortalStore(10**9, True, Clock()), []))
    clock, log = Clock(), list[Any]()
    store = MortalStore(life, after, clock)
    try:
        program(store, log)
    except Crash:
        store.revive()
        clock.now += 1e6  # the lease of the dead process has expired
        known = [r for r in pausing_log(store)]
        ended = {(id, fold) for id, fold, epoch in known if epoch == epochs}
        log.clear()
        assert ending(program(store, log)) == expected
        again = ended & {(id, fold) for id, fold, _ in log}
        assert len(again) <= 1  # only the last one, if its end was not stored


def pausing_log(store: MortalStore) -> Iterator[tuple[int, int, float]]:
    """The reports of folds in a log: trial, fold and epoch."""
    for event in store.read("study"):
        if event.kind == "reported":
            yield event.trial, int(event.metrics["fold"]), event.metrics["fold_epoch"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("place", "epochs"), [((0, 2), 2), ((1, 1), 5), ((1, 4), 8), ((2, 2), 10)])
def test_a_stop_ends_the_trial_within_any_fold(place: tuple[int, int], epochs: int) -> None:
    s = Study(Problem(PLANE, Minimize("val_loss"), 4), StopsAt(at=(4 * place[0] + place[1]) / 3), seed=0, verbose=0)
    seen = []
    for trial in s:
        with trial:
            for fold in trial.folds(3):
                for epoch in fold.epochs():
                    seen.append((fold.index, epoch))
                    if fold.report(1.0).stops:
                        break
    assert seen[-1] == place
    assert (len(seen), s.trials[0].status) == (epochs, Status.STOPPED)
