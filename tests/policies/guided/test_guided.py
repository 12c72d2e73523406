"""A model that chooses a policy's configurations: what it learns from, what it believes, what it changes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laboratory import Lab, act, differences, happenings, rising, rough
from worlds import quick

from examples import many
from haltune import Budget, Choice, Float, Int, Maximize, Minimize, Problem, Space, Start, Study, Trial
from haltune.errors import InvalidInput
from haltune.gp import fit
from haltune.log.decisions import go_on
from haltune.log.events import Checkpointed, Ended, Event, Reported, Resumed, Started, Status
from haltune.log.history import History
from haltune.policies import BOBOS, Guided, Halting, Hyperband, Ladder, RandomSearch, SuccessiveHalving
from haltune.policies.bayesopt import epoch_coordinate
from haltune.policies.from_spec import policy_from
from haltune.policies.multifidelity.stage_process import CurveRow, CurveRows, TargetScale, fitted
from haltune.study.asking import propose
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


def test_a_trial_that_begins_anew_loses_its_rows_and_one_from_a_checkpoint_those_after_it() -> None:
    def event(kind: Any, **facts: Any) -> Any:
        return kind(at=0.0, trial=0, **facts)

    move = {"until": None, "resource": None, "tags": {}, "reason": "", "evidence": {}, "seen": 0, "deciding": 0.0}
    on = {"seconds": 1.0, "verdict": go_on(""), "seen": 0}

    def known(*events: Any) -> list[CurveRow]:
        curve_rows = CurveRows(Maximize("v"))
        for each in events:
            curve_rows.take(each)
        return list(curve_rows.rows.values())

    log = [event(Started, config={}, worker="w", **move)]
    for epoch in (1.0, 2.0, 3.0):
        log += [event(Reported, attempt=1, epoch=epoch, value=epoch, **on)]
        log += [event(Checkpointed, attempt=1, epoch=2.0, path="p")] if epoch == 2.0 else []
    assert known(*log) == [(0, 1.0, 1.0), (0, 3.0, 3.0)]
    log += [event(Ended, attempt=1, status=Status.INTERRUPTED)]
    again = event(Resumed, attempt=2, by_policy=False, worker="w", **move)
    assert known(*log, again) == [(0, 1.0, 1.0)]
    late = event(Reported, attempt=1, epoch=9.0, value=9.0, **on)
    assert known(*log, again, late) == [(0, 1.0, 1.0)]
    ended = event(Ended, attempt=2, status=Status.COMPLETED)
    assert known(*log, again, ended) == [(0, 1.0, 1.0)]  # nothing was reported since the checkpoint
    anew = event(Resumed, attempt=2, by_policy=False, anew=True, worker="w", **move)
    assert known(*log, anew) == []
    assert known(*log, anew, event(Reported, attempt=2, epoch=1.0, value=0.5, **on)) == [(0, 1.0, 0.5)]


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


def test_trials_that_fail_before_their_first_value_are_not_tried_again() -> None:
    def crash(config: dict[str, Any], epoch: float) -> float:
        if config["x"] > 0.6:
            raise MemoryError("out of memory")
        return config["x"]

    problem = Problem(PLANE.space, Maximize("acc", (0, 1)), 9)
    study = Study(problem, small(deviations=0.5), seed=2, budget=Budget(trials=30), max_failures=100)
    for trial in study:
        try:
            with trial:
                for epoch in trial.epochs():
                    trial.report(crash(trial.config, epoch))
        except MemoryError:
            pass
    failed = [t.id for t in study.trials if t.status is Status.FAILED]
    assert failed
    assert sum(id >= 15 for id in failed) < 7


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_levels_are_zero_at_the_median_one_at_the_best_and_never_below_minus_one(sign: float) -> None:
    first = sign * np.array([1.0, 2.0, 5.0, -1e300, np.nan, np.inf])
    values = np.append(first, sign * np.array([9.5, 9.4]))
    scale = TargetScale.of(values, first, sign)
    assert scale is not None
    expected = [-0.5 / 8, 0.5 / 8, 3.5 / 8, -1.0, -1.0, -1.0, 1.0, 7.9 / 8]
    assert scale.targets(values) == pytest.approx(expected)
    assert scale.value(1.0) == pytest.approx(sign * 9.5)
    nothing = np.array([np.nan, np.inf])
    assert TargetScale.of(nothing, nothing, sign) is None
    assert TargetScale.of(values, nothing, sign) is not None


@pytest.mark.parametrize("values", [[3.0, 3.0], [0.0], [1e308, -1e308], [1e308], [5e-324, 0.0]])
def test_levels_are_finite_whatever_was_seen(values: list[float]) -> None:
    scale = TargetScale.of(np.array(values), np.array(values), 1.0)
    assert scale is not None
    found = scale.targets(np.array([*values, 1e308, -1e308, 7.0, np.nan]))
    assert np.isfinite(found).all()
    assert found.min() >= -1.0
    assert found.max() <= 10.0


# -- determinism ------------------------------------------------------------------------------


def differences_of(study: Study, policy: Any) -> list[Any]:
    return [d for d in replay(study.problem, policy, study.events()) if d[1] != d[2]]


def test_a_policy_without_any_memory_decides_the_same() -> None:
    study = searched(small(), budget=Budget(trials=14))
    log = list(study.events())
    for e in log:
        if isinstance(e, Started):
            fresh = small()
            state, history = fresh.start(PLANE), History(PLANE)
            for event in log[: e.seen]:
                history.apply(event)
                state = fresh.fold(state, event)
            move = propose(fresh, state, history)
            assert isinstance(move, Start)
            assert move.config == e.config


def test_hyperparameters_are_learnt_at_counts_that_grow_by_a_fifth() -> None:
    counts = sorted({fitted(n, 20) for n in range(20, 300)})
    assert counts[:5] == [20, 28, 36, 44, 52]
    assert all(b - a == max(8, a // 5) for a, b in pairwise(counts))
    assert all(0 <= n - fitted(n, 20) < 100 for n in range(9_000, 9_500))
    assert [fitted(n, 20) for n in (5, 20, 27, 28)] == [5, 20, 20, 28]


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


@pytest.mark.parametrize("workers", [1, 5])
def test_with_any_number_of_workers_every_decision_comes_out_again(workers: int) -> None:
    make = lambda: small(candidates=30)  # noqa: E731
    lab = Lab(make, rising, epochs=9, workers=workers, budget=Budget(epochs=120)).run()
    assert sum("ucb" in e.evidence for e in lab.log if isinstance(e, Started)) > 20
    assert differences(lab) == []


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


@pytest.mark.parametrize("inside", [RandomSearch(trials=12), SuccessiveHalving(n=9), Ladder(min_trials_per_rung=4)])
def test_it_ends_pauses_and_ranks_as_the_policy_inside(inside: Any) -> None:
    policy = Guided(inside, initial=4, candidates=30)
    assert policy.endless == inside.endless
    study, alone = searched(policy, budget=Budget(trials=40)), searched(inside, budget=Budget(trials=40))
    assert len(study.trials) == len(alone.trials)


def test_optimal_stopping_ends_runs_inside_it() -> None:
    def plateau(config: dict[str, Any], epoch: float) -> float:
        return (1.0 - config["x"]) * (1.0 - 0.5**epoch)

    problem = Problem(PLANE.space, Maximize("acc", (0, 1)), 51)
    policy = Halting(Guided(Ladder(1.2, 1.2, min_trials_per_rung=9), initial=16, candidates=30), quick())
    study = searched(policy, plateau, problem, budget=Budget(trials=24))
    assert any(t.status is Status.STOPPED for t in study.trials)
    assert any(t.status is Status.PAUSED for t in study.trials)
    assert differences_of(study, policy) == []


# -- spaces -----------------------------------------------------------------------------------


def test_a_small_space_is_searched_to_its_last_configuration_and_then_repeated() -> None:
    space = Space({"x": Int(0, 3), "y": Choice(["a", "b", "c"])})
    value = lambda config, epoch: config["x"] / 3  # noqa: E731
    study = searched(small(initial=3), value, Problem(space, Maximize("acc", (0, 1)), 9), budget=Budget(trials=16))
    keys = [space.key(t.config) for t in study.trials]
    assert len(set(keys[:12])) == 12
    assert len(keys) == 16


def test_conditions_and_constraints_hold_for_every_choice() -> None:
    space = Space(
        {"k2": Int(1, 9), "k1": Int(1, "k2"), "kind": Choice(["a", "b"]), "d": Float(0, 1, when={"kind": "b"})},
        constraints=[lambda c: c["k1"] * c["k2"] < 40],
    )
    value = lambda config, epoch: (config["k1"] * config["k2"] + config.get("d", 0)) / 40  # noqa: E731
    study = searched(small(), value, Problem(space, Maximize("acc", (0, 1)), 9))
    assert all(space.contains(t.config) for t in study.trials)
    assert max(t.config["k1"] * t.config["k2"] for t in study.trials[10:]) >= 35


@pytest.mark.parametrize("bounds", [(0, 1), None])
def test_a_constant_metric_leaves_it_exploring(bounds: Any) -> None:
    study = searched(small(), lambda config, epoch: 0.5, Problem(PLANE.space, Maximize("acc", bounds), 9))
    xs = np.array([t.config["x"] for t in study.trials])
    assert len({PLANE.space.key(t.config) for t in study.trials}) == 30
    assert np.ptp(xs) > 0.5


# -- the door ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"policy": Ladder}, "wraps a policy such as"),
        ({"policy": None}, "wraps a policy such as"),
        ({"initial": 1}, r"Guided\(initial=1\): a whole number, at least 2"),
        ({"initial": 2.5}, r"Guided\(initial=2.5\)"),
        ({"candidates": True}, r"Guided\(candidates=True\)"),
        ({"deviations": -1}, "not negative"),
        ({"deviations": math.nan}, "not negative"),
        ({"share": 1.5}, "from 0 to 1"),
    ],
)
def test_options_outside_what_is_allowed_are_refused(options: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Guided(**options)


def test_it_needs_a_horizon() -> None:
    with pytest.raises(InvalidInput, match="Guided needs a horizon"):
        Study(Problem(PLANE.space, PLANE.goal, None), Guided(BOBOS()), budget=Budget(trials=1))


@pytest.mark.parametrize("policy", [Guided(), Halting(small(share=0.2)), Guided(Hyperband(), deviations=2.0)])
def test_the_spec_is_json_that_makes_the_same_policy_again(policy: Any) -> None:
    spec = json.loads(json.dumps(policy.spec))
    assert policy_from(spec).spec == policy.spec


def test_it_guides_a_ladder_if_nothing_else_is_given() -> None:
    assert Guided() == Guided(Ladder())
