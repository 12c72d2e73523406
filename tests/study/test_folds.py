"""A trial over folds: its value is the mean over k trainings, wherever it stops, pauses or is killed."""

from __future__ import annotations

import json
import math
import random
import statistics
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from everyone import each_of_one_goal
from hypothesis import given, settings
from hypothesis import strategies as st
from paused_studies import pausing_study
from tqdm import tqdm
from worlds import LAWFUL, Clock, Crash, MortalStore, ending, problem, small_study

from haltune import (
    Action,
    Budget,
    Checkpointing,
    Constraint,
    Float,
    Maximize,
    Minimize,
    Problem,
    Space,
    Storage,
    Study,
    Trial,
)  # fmt: skip
from haltune.callbacks.loop import TrainingLoop
from haltune.callbacks.reporter import Reporter
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported, StoreError
from haltune.log.decisions import Verdict, continue_, stop
from haltune.log.events import Reported, Status
from haltune.log.folds import FoldCurve, curves, estimate
from haltune.log.records import TrialRecord
from haltune.policies import Hyperband, InfiniteHyperband, RandomSearch
from haltune.store.memory import MemoryStore


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
    assert trial.epoch == pytest.approx(sum(lengths[: len(folds)]) / len(folds), rel=1e-7)
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
    k, epochs = found.shape[1:]
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


@pytest.mark.slow
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
                assert (fold.checkpoint is None) == (fold.epoch == 0)
                for epoch in fold.epochs():
                    if fold.report(1.0 + fold.index, epoch).stops:
                        fold.save(lambda path: path.write_text("state"))
                    if fold.index == 0 and epoch == 3:
                        break
    assert starts == [(0, 0), (1, 0), (1, 2)]  # 3 epochs of fold 0 and 2 of fold 1 are 2.5 of the trial
    (record,) = s.trials
    assert (record.epoch, record.values[-1], record.status) == (3.5, 1.5, Status.COMPLETED)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # generators of the dead process
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
        known = list(pausing_log(store))
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


def test_a_pause_between_folds_needs_nothing_of_the_loop() -> None:
    s = pausing_study(at=(2,), epochs=4, verbose=0)
    starts = []
    for trial in s:
        with trial:
            for fold in trial.folds(2):
                starts.append((trial.attempt, fold.index))
                reporter = Reporter(fold)
                reporter.begin(planned=4)
                for epoch in fold.epochs():
                    reporter.report(1.0, epoch)
                    assert not reporter.pausing
                reporter.end_of_fit()
                assert fold.ended is Status.COMPLETED
                assert trial.ended is None
            assert trial.ended is (Status.PAUSED if trial.attempt == 1 else Status.COMPLETED)
    assert starts == [(1, 0), (2, 1)]


def test_a_budget_that_ends_between_folds_needs_nothing_of_the_loop() -> None:
    random.seed(1)
    s, starts, drawn = study(epochs=4), [], []
    for budget in (Budget(trials=1, epochs=2), Budget(trials=1)):
        s.budget = budget
        for trial in s:
            with trial:
                for fold in trial.folds(2):
                    starts.append((trial.attempt, fold.index))
                    drawn.append(random.random())
                    for _ in fold.epochs():
                        assert not fold.report(1.0).stops
            random.seed(7)
    assert starts == [(1, 0), (2, 1)]
    assert s.trials[0].status is Status.COMPLETED
    assert random.Random(7).random() not in drawn


def test_ctrl_c_at_the_end_of_a_fold_does_not_train_it_again() -> None:
    s, starts = study(epochs=2), []
    with pytest.raises(KeyboardInterrupt), s.ask() as trial:
        for fold in trial.folds(3):
            for _ in fold.epochs():
                fold.report(1.0)
            if fold.index == 1:
                raise KeyboardInterrupt
    for trial in s:
        with trial:
            for fold in trial.folds(3):
                starts.append(fold.index)
                for _ in fold.epochs():
                    fold.report(1.0)
    assert starts == [2]
    assert s.trials[0].epochs.tolist() == [n / 3 for n in range(1, 7)]


def test_an_exception_in_a_fold_fails_the_trial() -> None:
    s = study(epochs=2, trials=2)
    for trial in s:
        with trial:
            for fold in trial.folds(2):
                if (trial.id, fold.index) == (1, 1):
                    raise ValueError("a bug")
                for _ in fold.epochs():
                    fold.report(1.0)
    assert [t.status.value for t in s.trials] == ["completed", "failed"]


@each_of_one_goal
def test_every_policy_searches_over_folds(name: str) -> None:
    policy = LAWFUL[name]()
    if isinstance(policy, InfiniteHyperband):
        pytest.skip("has no length of a full training, which folds need")

    def value(config: dict[str, Any], fold: int, epoch: float) -> float:
        return 0.5 + 0.05 * math.log10(config["lr"]) + 0.1 * (1 - 1 / epoch) + 0.01 * fold

    s = small_study(policy, problem=problem(epochs=4), trials=5, verbose=0)
    for trial in s:
        with trial:
            for fold in trial.folds(2):
                assert (fold.checkpoint is None) == (fold.epoch == 0)
                for epoch in fold.epochs():
                    fold.report(value(trial.config, fold.index, epoch), seconds=1.0)
                    if fold.verdict and fold.verdict.stops:
                        fold.save(lambda path: path.write_text("state"))
    assert s.best is not None
    assert s.best.folds
    whole = [t for t in s.trials if t.epoch == 4 and not t.partial]
    for t in whole:
        assert t.values[-1] == np.mean([value(t.config, i, 4) for i in range(2)])
    assert whole or name in ("hyperband-samples", "hyperband-seconds"), (
        f"Of five trials {name!r} trains none in full. Change its form in tests/support/worlds.py, as by a smaller "
        "eta or fewer configurations, so that it trains one of five trials of 4 epochs in full."
    )


# starting again


def test_a_fold_that_starts_again_keeps_the_finished_folds(tmp_path: Path) -> None:
    trial = asked(epochs=4)
    folds = trial.folds(2)
    fold = next(folds)
    for _ in fold.epochs():
        fold.report(1.0)
    fold = next(folds)
    fold.report(2.0)
    fold.report(1.9)
    fold.save(lambda path: path.write_text("state"))
    with pytest.warns(HaltuneWarning, match="Fold 1 of trial 0 had reported epoch 2, and now trains again from its st"):
        fold.report(4.0, epoch=1)
    assert (fold.attempt, fold.epoch, fold.checkpoint) == (2, 1, None)
    assert [c.values.tolist() for c in curves(trial.metrics, "val_loss")] == [[1.0] * 4, [4.0]]
    assert trial.epoch == 2.5


def test_a_loop_over_folds_that_an_error_left_goes_on_with_the_fold_it_left() -> None:
    trial = asked(epochs=3)
    try:
        for fold in trial.folds(3):
            for epoch in fold.epochs():
                fold.report(9.0 if fold.index else 1.0)
                if (fold.index, epoch) == (1, 2):
                    raise MemoryError
    except MemoryError:
        with pytest.warns(HaltuneWarning, match="Fold 1 .* from its start"):
            again = trial.folds(3)
    for fold in again:
        assert fold.epoch == 0
        for _ in fold.epochs():
            fold.report(2.0)
    assert [c.value for c in curves(trial.metrics, "val_loss")] == [1.0, 2.0, 2.0]
    assert (trial.epoch, values_of(trial)[-1]) == (3, np.mean([1.0, 2.0, 2.0]))


# wrong use


class Net:
    pass


def test_the_same_model_object_in_two_folds_is_said() -> None:
    net, trial = Net(), asked(epochs=1)
    folds = trial.folds(2)
    first = next(folds)
    first.starts(net, 0)
    first.report(1.0)
    with pytest.warns(HaltuneWarning, match="Fold 1 of trial 0 trains the same model object as fold 0"):
        next(folds).starts(net, 0)


def test_a_fold_that_continues_the_training_of_another_is_refused() -> None:
    trial = asked(epochs=2)
    folds = trial.folds(2)
    first = next(folds)
    first.starts(Net(), 0)
    first.report(1.0)
    first.report(1.0)
    with pytest.raises(NotSupported, match="Fold 1 of trial 0 starts afresh, but this fit starts at epoch 2"):
        next(folds).starts(Net(), 2)


def test_another_number_of_folds_is_refused_and_so_is_a_trial_of_its_own_reports() -> None:
    s = pausing_study(at=(1,), epochs=2, verbose=0)
    with s.ask() as trial:
        for fold in trial.folds(2):
            for _ in fold.epochs():
                fold.report(1.0)
    again = s.ask()
    assert isinstance(again, Trial)
    with pytest.raises(InvalidInput, match=r"has started over 2 folds.*trial\.folds\(2\)"):
        again.folds(3)
    with pytest.raises(InvalidInput, match="trains over folds"):
        again.report(0.5, 2)
    assert next(again.folds(2)).index == 1
    trial = asked()
    trial.report(0.5)
    with pytest.raises(InvalidInput, match="has reported epoch 1 itself"):
        trial.folds(2)


def test_folds_within_folds_twice_and_of_a_trial_that_reports_itself_are_refused() -> None:
    trial = asked(epochs=1)
    for fold in trial.folds(2):
        with pytest.raises(InvalidInput, match="in a loop over its folds already"):
            trial.folds(2)
        with pytest.raises(InvalidInput, match="A fold has no folds"):
            fold.folds(3)
        with pytest.raises(InvalidInput, match="no block"), fold:
            pass
        with pytest.raises(InvalidInput, match="trains over folds"):
            trial.report(0.4)
        fold.report(1.0)
    with pytest.raises(InvalidInput, match=r"are over.*repeats"):
        trial.folds(2)


def test_a_fold_without_a_report_is_an_error() -> None:
    folds = asked().folds(2)
    next(folds)
    with pytest.raises(InvalidInput, match="Fold 0 of trial 0 ended without one report"):
        next(folds)


@pytest.mark.parametrize(
    ("options", "count", "of", "words"),
    [
        ({"goal": Minimize("val_loss", of="best")}, 3, "last", "mean at its end.*of='best'"),
        ({"goal": Minimize("val_loss", smooth=3)}, 3, "last", "Omit smooth="),
        ({"epochs": None, "policy": InfiniteHyperband()}, 3, "last", "max_epochs="),
        ({"constraints": [Constraint("ms", at_most=3.0)]}, 3, "best", "without constraints"),
        ({}, 0, "last", "the number of folds"), ({}, 2.0, "last", "the number of folds"), ({}, 2, "mean", "of='mean'"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_mean_over_folds_is_refused(options: Any, count: Any, of: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        asked(**options).folds(count, of=of)


def test_the_state_of_a_fold_without_a_report_is_not_saved() -> None:
    fold = next(asked().folds(2))
    with pytest.raises(InvalidInput, match="has no report"):
        fold.save(lambda path: path.write_text("state"))


# other units


def test_steps_within_a_fold_are_judged_at_the_same_points_of_all_trials() -> None:
    posed = Problem(PLANE, Minimize("val_loss"), 40, unit="step", judge_every=10)
    s = Study(posed, RandomSearch(), seed=0, budget=Budget(trials=1), verbose=0)
    verdicts = []
    for trial in s:
        with trial:
            for fold in trial.folds(2):
                assert (fold.max_steps, fold.max_epochs) == (40, None)
                verdicts += [fold.report(1.0, step=step).action for step in fold.steps() if step % 5 == 0]
    judged = [i for i, action in enumerate(verdicts) if action is not Action.UNJUDGED]
    assert judged == [3, 7, 11, 15]  # at steps 20 and 40 of each fold: 10 steps of both
    assert s.trials[0].epochs.tolist()[-1] == 40


def test_the_next_rung_is_that_of_the_fold() -> None:
    s = study(epochs=9, policy=Hyperband(eta=3))
    trial = s.ask()
    assert isinstance(trial, Trial)
    assert trial.pause_at == 1
    fold = next(trial.folds(3))
    assert fold.pause_at == 3
    assert [fold.evaluate_now(epoch) for epoch in (1, 2, 3)] == [False, False, True]


def test_listings_and_the_page_show_the_folds_that_have_ended_and_their_spread(tmp_path: Path) -> None:
    s = study(epochs=2, trials=2)
    for trial in s:
        with trial:
            for fold in trial.folds(3):
                for epoch in fold.epochs():
                    fold.report(trial.id + 1.0 * fold.index + 2 / epoch)
                if (trial.id, fold.index) == (1, 1):
                    break
    first, second = s.trials
    assert (first.folds(s.problem), second.folds(s.problem)) == ((1.0, 2.0, 3.0), (2.0, 3.0))
    assert "1, 2, 3; standard deviation 1" in s.explain(0)
    assert "(epoch 1 of fold 2: 4)" in s.explain(0)
    s.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<b>2</b> ± 1 over 3 folds" in page
    assert "± 0.71 over 2 folds" in page


# what ends a fold


def test_a_fold_that_ends_by_itself_in_the_epoch_of_a_pause_ends_and_the_trial_goes_on() -> None:
    s, starts = pausing_study(at=(1,), epochs=4, verbose=0), []
    for trial in s:
        with trial:
            for fold in trial.folds(2):
                starts.append((trial.attempt, fold.index))
                reporter = Reporter(fold)
                reporter.begin(planned=4)
                for epoch in fold.epochs():
                    reporter.report(1.0 + fold.index, epoch)
                    if epoch == 2:
                        reporter.ends_by_itself()  # another callback's early stopping
                        break
                reporter.end_of_fit()
    assert starts == [(1, 0), (1, 1)]
    (record,) = s.trials
    assert record.status is Status.COMPLETED
    assert record.epoch == pytest.approx(2.0)
    assert (record.values[-1], record.folds(s.problem)) == (1.5, (1.0, 2.0))


def test_reports_of_a_fold_that_wait_for_the_store_are_delivered_before_the_next_fold(monkeypatch: Any) -> None:
    from haltune.errors import StoreError

    trial = asked(epochs=3)
    store = trial._session.log.store
    append = store.append

    def away(*_: Any, **__: Any) -> Any:
        raise StoreError("the server is away")

    for fold in trial.folds(2):
        reporter = Reporter(fold)
        reporter.begin(planned=3)
        for epoch in (1, 2, 3):
            monkeypatch.setattr(store, "append", away if fold.index == 0 and epoch > 1 else append)
            with warnings.catch_warnings(action="ignore"):
                reporter.report(4.0 - epoch + fold.index, epoch)
        monkeypatch.setattr(store, "append", append)
        reporter.end_of_fit()
    assert [c.values.tolist() for c in curves(trial.metrics, "val_loss")] == [[3.0, 2.0, 1.0], [4.0, 3.0, 2.0]]
    assert (trial.epoch, values_of(trial)[-1]) == (3, 1.5)


def test_a_number_returned_after_folds_may_be_their_mean(caplog: Any) -> None:
    def train(trial: Trial) -> float:
        values = []
        for fold in trial.folds(3):
            values.append(trial.config["x"] + fold.index)
            fold.report(values[-1])
        return float(np.mean(values))

    s = study(epochs=1, trials=2)
    s.optimize(train)
    assert [t.status.value for t in s.trials] == ["completed"] * 2
    assert "returned" not in caplog.text


def test_the_end_of_a_fold_that_cannot_be_saved_is_said_and_the_trial_goes_on() -> None:
    posed = Problem(PLANE, Minimize("val_loss"), 1)
    s = Study(posed, RandomSearch(), seed=0, budget="1 trial", verbose=0, checkpoints=Checkpointing(disk_quota=10))
    with s.ask() as trial, pytest.warns(HaltuneWarning, match=r"the end of fold 0 could not be saved .*disk_quota"):
        for fold in trial.folds(2):
            fold.report(1.0 + fold.index)
    assert s.trials[0].values.tolist() == [1.0, 1.5]


def test_a_pause_between_two_folds_that_a_full_disk_cannot_save_is_declined() -> None:
    s = pausing_study(at=(1,), epochs=2, disk_quota=10, verbose=0)
    with s.ask() as trial, pytest.warns(HaltuneWarning, match="the end of fold 0 could not be saved"):
        for fold in trial.folds(2):
            for _ in fold.epochs():
                fold.report(1.0 + fold.index)
    (record,) = s.trials
    assert (record.status, record.attempt, record.epochs.tolist()) == ("completed", 1, [0.5, 1.0, 1.5, 2.0])


@pytest.mark.parametrize("name", ["cv", "kfold", "fold"])
def test_other_words_for_folds_lead_to_them(name: str) -> None:
    with pytest.raises(AttributeError, match=r"for fold in trial\.folds\(5\)"):
        getattr(asked(), name)


def test_a_fold_that_has_no_report_has_no_state_of_the_fold_before() -> None:
    searched = study()
    trial = searched.ask()
    assert isinstance(trial, Trial)
    with pytest.raises(KeyboardInterrupt), trial:
        for fold in trial.folds(2):
            for _ in fold.epochs():
                fold.report(0.5)
                fold.save(lambda path: path.write_text("weights"))
            if not fold.index:
                raise KeyboardInterrupt
    again = searched.ask()
    assert isinstance(again, Trial)
    fold = next(iter(again.folds(2)))
    assert (fold.index, fold.epoch, fold.checkpoint) == (1, 0, None)


def test_the_epochs_of_the_trial_are_refused_within_a_fold() -> None:
    trial = asked()
    for _ in trial.folds(2):
        with pytest.raises(InvalidInput, match=r"fold\.epochs\(\)"):
            next(trial.epochs())
        break


def test_a_second_loop_over_the_epochs_of_a_fold_is_refused() -> None:
    with (
        pytest.raises(NotSupported, match="has trained to epoch 4, a full training, and this second loop"),
        asked() as t,
    ):
        for fold in t.folds(2):
            for _model in range(2):
                for _ in fold.epochs():
                    fold.report(0.5)


def test_folds_that_are_listed_before_they_train_are_explained() -> None:
    with pytest.raises(
        InvalidInput, match=r"Train it before the next one, .* which list\(trial\.folds\(k\)\) does not"
    ):
        list(asked().folds(3))


def test_another_number_of_folds_in_a_study_is_said_once() -> None:
    s = study(epochs=1, trials=4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for trial in s:
            with trial:
                for fold in trial.folds(2 + (trial.id > 1)):
                    fold.report(1.0)
    assert ["Trial 2 trains over 3 folds, and trial 0 trained over 2" in str(w.message) for w in said] == [True]


def test_a_metric_of_the_program_may_be_named_as_that_of_a_fold(tmp_path: Path) -> None:
    s = study(epochs=2, trials=2)
    for trial in s:  # its second question needs the best trial
        with trial:
            for epoch in trial.epochs():
                trial.report(1.0 / epoch, metrics={"fold": 3.0})
                trial.save(lambda path: path.write_text("weights"))
    assert s.best is not None
    assert (s.best.value, s.best.folds) == (0.5, ())
    assert s.best.checkpoint is not None
    assert s.trials[0].metrics["fold"].tolist() == [3.0, 3.0]
    assert "of fold" not in s.explain(0)
    assert "Metrics named fold_" not in s.report(tmp_path / "page.html").read_text()


def test_a_resumed_trial_need_not_repeat_a_metric_named_as_that_of_a_fold() -> None:
    s = pausing_study(at=(1,), epochs=2, verbose=0)
    for trial in s:
        with trial:
            assert (trial.checkpoint is None) == (trial.attempt == 1)
            for _ in trial.epochs():
                if trial.report(0.5, metrics={"fold": 3.0} if trial.attempt == 1 else {}).stops:
                    trial.save(lambda path: path.write_text("weights"))
    assert s.trials[0].values.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("loads", ["fold", "trial", "folder", ""])
def test_a_resumed_fold_that_repeats_its_last_epoch_loses_no_other_fold(loads: str) -> None:
    s = pausing_study(at=(2.5,), epochs=3, verbose=0)
    with s.ask() as trial:
        for fold in trial.folds(2):
            for _ in fold.epochs():
                if fold.report(1.0 + fold.index).stops:
                    fold.save(lambda path: path.write_text("state"))
    again = s.ask()
    for fold in again.folds(2):
        assert (fold.index, fold.epoch) == (1, 2)
        if loads:  # what may have the state of the fold
            assert getattr(fold if loads == "fold" else again, "folder" if loads == "folder" else "checkpoint")
        with pytest.warns(HaltuneWarning, match="ignored" if loads else "Fold 1 of trial 0 .* again from its start"):
            fold.report(5.0, 2)
        break
    assert [c.values.tolist() for c in curves(again.metrics, "val_loss")] == [[1.0] * 3, [2.0] * 2 if loads else [5.0]]


def test_the_first_report_of_a_fold_is_not_the_lost_one_of_the_fold_before() -> None:
    store = Unheard()
    search = Problem(Space({"lr": Float(0.1, 1.0)}), Minimize("val_loss"), 2)
    trial = Study(search, RandomSearch(), Storage(store, patience=0.0), budget="1 trial", verbose=0).ask()
    for fold in trial.folds(2):
        for epoch in (1, 2):
            store.loses = (fold.index, epoch) == (0, 2)
            with pytest.raises(StoreError) if store.loses else nullcontext():
                fold.report(fold.index + epoch / 10)
    assert [c.values.tolist() for c in curves(trial.metrics, "val_loss")] == [[0.1, 0.2], [1.1, 1.2]]


class Unheard(MemoryStore):
    """A store whose answer to a report is lost."""

    loses = False

    def append(self, name: str, events: Any, **options: Any) -> int:
        position = super().append(name, events, **options)
        if self.loses and any(isinstance(event, Reported) for event in events):
            raise StoreError("no answer")
        return position


def test_the_epoch_of_the_best_is_where_the_last_fold_ended_by_itself() -> None:
    s = study(epochs=4)
    for trial in s:
        with trial:
            for fold in trial.folds(2):
                for epoch in fold.epochs():
                    fold.report(1.0 / (epoch + fold.index))
                    if epoch == 3:
                        break
    assert s.best is not None
    assert (s.best.epoch, s.best.folds) == (3.0, (1 / 3, 1 / 4))


def test_warnings_within_a_fold_name_the_fold() -> None:
    fold = next(asked().folds(2))
    with pytest.warns(HaltuneWarning, match=r"^Call fold\.load_model\(\), trial\.folds\(k\)\.$"):
        fold.warn("Call trial.load_model(), trial.folds(k).")


def walks(training: Any, fails: bool = False) -> None:
    """Train and save a plain loop that draws from a generator of its own."""
    rng = np.random.default_rng(5)
    total = 0.0 if training.checkpoint is None else float(Path(training.checkpoint).read_text())
    for epoch in training.epochs():
        if fails and epoch == 2:
            raise MemoryError
        total += rng.random()
        training.report(total)
        training.save(lambda path: path.write_text(repr(total)), ".txt")  # noqa: B023


@pytest.mark.parametrize(
    "at", [(1, 3), pytest.param((0.5, 2.5), marks=pytest.mark.slow), pytest.param((2, 3.5), marks=pytest.mark.slow)]
)
def test_a_generator_of_the_program_continues_in_each_fold_after_a_pause(at: tuple[float, ...]) -> None:
    def trained(*at: float) -> Any:
        study = pausing_study(at=at, verbose=0)
        for trial in study:
            with trial:
                for fold in trial.folds(2):
                    walks(fold)
        assert study.trials[0].attempt == 1 + len(at)
        return study.trials[0].metrics["fold_val_loss"].tolist()

    assert trained(*at) == trained()


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
def test_a_generator_of_a_loop_that_starts_again_after_an_error_continues_after_a_pause() -> None:
    def trained(*at: float) -> Any:
        study = pausing_study(at=at, verbose=0)
        for trial in study:
            with trial:
                if trial.attempt == 1:
                    with pytest.raises(MemoryError):
                        walks(trial, fails=True)
                walks(trial)
        return study.trials[0].values.tolist()

    assert trained(3) == trained()


def test_a_state_that_a_fold_saves_has_the_mark_of_its_model_and_one_between_folds_has_none() -> None:
    one = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=2, seed=0, policy=RandomSearch(trials=1))
    for trial in one:
        with trial:
            for fold in trial.folds(2):
                if fold.index:
                    assert one.trials[0].weights == ""
                    assert fold.signer("model 0, epoch 2") == "fold 0"
                for epoch in fold.epochs():
                    fold.report(0.5)
                    fold.sign(f"model {fold.index}, epoch {epoch}")
                    fold.save(lambda path: path.write_text("weights"))
                    assert one.trials[0].weights == f"model {fold.index}, epoch {epoch}"


@pytest.mark.parametrize("pairs", [
    lambda folds: zip(folds, "abc", strict=False), lambda folds: zip("abc", folds, strict=False), enumerate,
    lambda folds: enumerate(zip(folds, "abc", strict=False)), lambda folds: zip_longest(range(3), folds),
    lambda folds: enumerate(tqdm(folds, disable=True)), lambda folds: zip("abc", tqdm(folds), strict=False),
])  # fmt: skip
def test_a_count_that_starts_again_where_a_trial_resumes_is_refused_before_a_fold(pairs):
    study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=2, seed=0, budget="1 trial")
    trial = study.ask()
    with pytest.raises(
        InvalidInput, match=r"(zip|enumerate|zip_longest)\(\) counts from the first fold.*splits\[fold\.index\]"
    ):
        for _ in pairs(trial.folds(3)):
            pass
    assert trial.epoch == 0


@pytest.mark.parametrize("bar", [iter, lambda folds: tqdm(folds, disable=True)])
def test_folds_beside_a_count_of_other_things_are_allowed(bar):
    study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=1, seed=0, budget="1 trial")
    trial = study.ask()
    with trial:
        for fold in bar(trial.folds(2)):
            for number, _ in enumerate(zip("ab", "cd", strict=True)):
                assert number < 2
            fold.report(1.0)
    assert trial.epoch == 1
