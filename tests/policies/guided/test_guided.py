"""A model that chooses a policy's configurations: what it learns from, what it believes, what it changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laboratory import Lab, act, happenings, rough

from examples import many
from haltune import Budget, Choice, Float, Int, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.gp import fit
from haltune.log.events import Event, Started, Status
from haltune.log.history import History
from haltune.policies import Guided, Hyperband, Ladder
from haltune.policies.bayesopt import epoch_coordinate
from haltune.policies.multifidelity.stage_process import CurveRow, CurveRows, fitted
from haltune.study.replay import replay

PLANE = Problem(Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}), Maximize("acc", (-2, 1)), 9)
Curve = Callable[[dict[str, Any], float], float]


def small(**options: Any) -> Guided:
    return Guided(Ladder(2, 3, min_trials_per_rung=6), **{"initial": 6, "candidates": 90, **options})


def peak(config: dict[str, Any], epoch: float) -> float:
    """Highest at (0.3, 0.7)."""
    return 1.0 - (config["x"] - 0.3) ** 2 - (config["y"] - 0.7) ** 2 - 0.5 / epoch


def searched(policy: Any, curve: Curve = peak, problem: Problem = PLANE, **options: Any) -> Study:
    study = Study(problem, policy, **{"seed": 2, "budget": Budget(trials=30), **options})
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(curve(trial.config, epoch))
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed(f"memory of {trial.id}")
    return study


def folded(problem: Problem, log: list[Event], to: int | None = None) -> tuple[History, CurveRows]:
    history, curve_rows = History(problem), CurveRows(problem.goal)
    for event in log[:to]:
        history.apply(event)
        curve_rows.take(event)
    return history, curve_rows


# -- what it learns from ----------------------------------------------------------------------


def expected(history: History) -> set[CurveRow]:
    """The rows as the history's curves have them, NaN as None."""
    rows: set[Any] = set()
    for t in history.trials:
        ends = t.status in (Status.COMPLETED, Status.STOPPED, Status.PAUSED)
        for i, epoch in enumerate(t.epochs):
            before = t.epochs[i - 1] if i else 0.0
            if any(before < mark <= epoch for mark in (1, 3, 9, 27)) or (ends and i == len(t.epochs) - 1):
                rows.add((t.id, epoch, plain(t.values[i])))
    return rows


def plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


ACTIONS = ["step"] * 12 + ["race"] * 2 + ["save", "fail", "early", "kill", "interrupt", "stuck", "late"]


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=many(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=happenings(ACTIONS, 150), seed=st.integers(0, 10**6), saves=st.booleans(), bad=st.sampled_from([0.0, 0.2]))
def test_whatever_happens_its_rows_are_those_of_the_curves_that_the_history_keeps(
    steps: list[tuple[int, int, str]], seed: int, saves: bool, bad: float
) -> None:
    make = lambda: Ladder(2, 2, min_trials_per_rung=3)  # noqa: E731
    lab = Lab(make, rough(seed, bad), epochs=20, workers=4, saves=saves, budget=Budget(epochs=10**6))
    for number, other, action in steps:
        act(lab, number, other, action)
    history, curve_rows = folded(lab.problem, lab.log)
    rows = {(trial, epoch, plain(value)) for trial, epoch, value in list(curve_rows.rows.values())}
    failed = {t.id for t in history.trials if t.status is Status.FAILED}
    marks = (1.0, 3.0, 9.0)
    unseen = {id for id in failed if not any(e in marks for e in history.trial(id).epochs)}
    assert {row for row in rows if row[0] not in unseen} == expected(history)
    assert {(t, v) for t, _, v in rows if t in unseen} == {(t, None) for t in unseen}
    assert len(curve_rows) == len(rows)
    numbers = list(curve_rows.rows)
    assert numbers == sorted(numbers)


# -- what it believes -------------------------------------------------------------------------


def test_a_choice_comes_with_the_mean_and_deviation_of_a_dense_solve() -> None:
    study = searched(small())
    log = list(study.events())
    chosen = [e for e in log if isinstance(e, Started) and "ucb" in e.evidence]
    assert len(chosen) == 30 - 6
    for e in chosen[::7]:
        history, curve_rows = folded(PLANE, log, e.seen)
        rows = list(curve_rows.rows.values())
        x = np.array([[*history.points[t], epoch_coordinate(n, 9)] for t, n, _ in rows])
        m = fitted(len(rows), 6)
        v = np.array([value for _, _, value in rows])
        middle = np.median([value for trial, _, value in rows[:m] if trial < 6])
        width = v[:m].max() - middle
        y = np.maximum((v - middle) / width, -1.0)
        model = fit(x[:m], y[:m], rng=history.rng("fit", m), starts=1, learn_from=120)
        at = np.array([[e.config["x"], e.config["y"], 1.0]])
        K = model.kernel(x) + model.noise * np.eye(len(x))
        k = model.kernel(x, at)[:, 0]
        mean = model.constant + k @ np.linalg.solve(K, y - model.constant)
        variance = model.kernel.variance - k @ np.linalg.solve(K, k)
        sd = width * math.sqrt(variance)
        assert e.evidence["mean"] == pytest.approx(middle + width * mean, abs=1e-6)
        assert e.evidence["sd"] == pytest.approx(sd, rel=1e-3, abs=1e-5)
        assert e.evidence["ucb"] == pytest.approx(e.evidence["mean"] + e.evidence["sd"])
        assert e.evidence["rows"] == len(rows)


def test_it_comes_near_the_peak_where_the_policy_alone_does_not() -> None:
    def apart(study: Study) -> float:
        late = study.trials[15:]
        return float(np.mean([math.hypot(t.config["x"] - 0.3, t.config["y"] - 0.7) for t in late]))

    assert apart(searched(small())) < 0.2 < 0.35 < apart(searched(Ladder(2, 3, min_trials_per_rung=6)))


@pytest.mark.parametrize("metric", [Maximize("acc"), Minimize("loss")])
def test_it_keeps_away_from_where_trainings_diverge_also_when_the_scale_is_learnt(metric: Any) -> None:
    def cliff(config: dict[str, Any], epoch: float) -> float:
        value = metric.sign * (100.0 + config["x"] - 0.1 / epoch)
        return math.nan if config["x"] > 0.7 and epoch > 0 else value

    study = searched(small(), cliff, Problem(PLANE.space, metric, 9))
    late = [t.config["x"] for t in study.trials[12:]]
    assert sum(x > 0.7 for x in late) <= 5
    assert np.median(late) > 0.5
    assert differences_of(study, small()) == []


# -- determinism ------------------------------------------------------------------------------


def differences_of(study: Study, policy: Any) -> list[Any]:
    return [d for d in replay(study.problem, policy, study.events()) if d[1] != d[2]]


# -- workers ----------------------------------------------------------------------------------


def test_workers_that_ask_at_once_spread() -> None:
    def asked(study: Study) -> np.ndarray:
        trials = [study.ask() for _ in range(6)]
        assert all(isinstance(t, Trial) for t in trials)
        return np.array([[t.config["x"], t.config["y"]] for t in trials if isinstance(t, Trial)])

    def start(policy: Guided) -> Study:
        study = Study(PLANE, policy, seed=2, budget=Budget(trials=30))
        for _ in range(8):
            with study.ask() as trial:  # type: ignore[union-attr]
                for epoch in trial.epochs():
                    trial.report(peak(trial.config, epoch))
        return study

    points = asked(start(Guided(Ladder(2, 3, min_trials_per_rung=30), initial=6, deviations=2.0)))
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)[np.triu_indices(6, 1)]
    assert apart.min() > 0.05
    assert np.median(apart) > 0.2


# -- what it leaves alone ---------------------------------------------------------------------


def test_with_a_share_of_one_the_policy_inside_chooses_all() -> None:
    inner = Ladder(2, 3, min_trials_per_rung=6)
    alone, all_shared = searched(inner), searched(small(share=1.0))
    assert [t.config for t in alone.trials] == [t.config for t in all_shared.trials]
    half = searched(small(share=0.5, initial=2), budget=Budget(trials=60))
    chosen = sum("ucb" in e.evidence for e in half.events() if isinstance(e, Started))
    assert 15 <= chosen <= 45


def test_a_winner_that_trains_anew_keeps_its_configuration() -> None:
    policy = Guided(Hyperband(eta=3, rounds=None, resume=False), initial=4, candidates=30)
    study = searched(policy, budget=Budget(trials=50))
    again = [t for t in study.trials if "of" in t.tags]
    assert len(again) > 5
    assert all(t.config == study.trials[t.tags["of"]].config for t in again)


# -- spaces -----------------------------------------------------------------------------------


def test_a_small_space_is_searched_to_its_last_configuration_and_then_repeated() -> None:
    space = Space({"x": Int(0, 3), "y": Choice(["a", "b", "c"])})
    value = lambda config, epoch: config["x"] / 3  # noqa: E731
    study = searched(small(initial=3), value, Problem(space, Maximize("acc", (0, 1)), 9), budget=Budget(trials=16))
    keys = [space.key(t.config) for t in study.trials]
    assert len(set(keys[:12])) == 12
    assert len(keys) == 16


# -- the door ---------------------------------------------------------------------------------
