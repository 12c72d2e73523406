"""BO-BOS and Halting: costs over trials, condition C2, and what a verdict rests on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from curves import accuracy
from rising import ALONE, HORIZON, SOLVER, Pausing, curve
from worlds import problem, quick, search, small_study, train

from haltune import (
    Action,
    Budget,
    Float,
    HaltuneWarning,
    Maximize,
    OptimalStopping,
    Problem,
    Space,
    Study,
    Trial,
    Verdict,
)
from haltune._utils.threads import one_thread
from haltune.errors import InvalidInput
from haltune.log.events import Reported, Status
from haltune.log.policy import fold_finished
from haltune.policies import BOBOS, Halting, RandomSearch
from haltune.policies.bayesopt import Surrogate
from haltune.policies.bobos.curves import ReferenceCurves
from haltune.policies.bobos.policy import Marked


def verdicts(study: Study) -> list[Reported]:
    """The reports that a decision table judged."""
    reports = [e for e in study.events() if isinstance(e, Reported)]
    return [e for e in reports if "p_win" in e.verdict.evidence]


def judged_search(policy: Any, trials: int = 12) -> Study:
    return search(small_study(policy, problem=problem(epochs=HORIZON), trials=trials))


def judge_curve(policy: Any, incumbent: float, values: list[float], seconds: float = 1.0) -> Verdict:
    """The verdict after `values` when one trial before ended at `incumbent`."""
    study = small_study(policy, problem=problem(epochs=HORIZON), trials=2)
    for trial in study:
        if trial.id == 0:
            train(trial, lambda c, e: curve(incumbent, e))
            continue
        for value in values:
            verdict = trial.report(value, seconds=seconds)
            if verdict.stops:
                break
        trial.interrupt()
        return verdict
    raise AssertionError("the search ended early")


# the costs


def test_k1_grows_by_the_factor_of_the_paper_each_trial() -> None:
    study = judged_search(BOBOS(initial=3, K1=200.0, stopping=None), trials=8)
    seen = {e.trial: e.verdict.evidence["K1"] for e in verdicts(study)}
    assert len(seen) > 5
    for trial, k1 in seen.items():
        assert k1 == pytest.approx(200.0 / 0.95**trial)


def test_the_default_k1_is_that_of_the_mode() -> None:
    assert BOBOS().spec["stopping"]["K1"] == 500.0
    assert BOBOS(mode="faithful").spec["stopping"]["K1"] == 100.0
    assert BOBOS(wrong_stop=0.02).spec["stopping"]["K1"] == pytest.approx(5000.0)


def test_nothing_is_stopped_from_the_trial_on_at_which_k1_is_infinite() -> None:
    study = judged_search(BOBOS(initial=3, certain_from=8, kappa=math.inf))
    status = [t.status for t in study.trials]
    assert "stopped" in status[:7]
    assert set(status[7:]) == {"completed"}


def test_impossible_costs_are_refused() -> None:
    for options in ({"K1": 50.0}, {"K1": 99.0, "c": 1.0}):
        with pytest.raises(InvalidInput, match="theorem 2"):
            BOBOS(**options)
    with pytest.raises(InvalidInput, match="not both"):
        BOBOS(K1=200.0, wrong_stop=0.1)
    with pytest.raises(InvalidInput, match="growth"):
        BOBOS(growth=0.9)
    with pytest.raises(InvalidInput, match="kappa"):
        BOBOS(kappa=0.5)


def test_c_is_weighed_by_the_seconds_of_this_trials_epochs() -> None:
    values = [curve(0.5, n) for n in range(1, 9)]
    plain = judge_curve(Halting(RandomSearch(), SOLVER), 0.52, values, seconds=3.0)
    weighed = judge_curve(Halting(RandomSearch(), SOLVER, epoch_cost="seconds"), 0.52, values, seconds=3.0)
    assert plain.evidence["c"] == 1.0
    assert weighed.evidence["c"] == pytest.approx(round(3.0 / np.median([1.0, 3.0]), 1))


# the verdict


def test_a_verdict_is_what_the_solver_says_of_the_errors_so_far() -> None:
    values = [curve(0.72, n) for n in range(1, 7)]
    policy = Halting(RandomSearch(), SOLVER)
    verdict = judge_curve(policy, 0.72, values)
    rng = small_study(policy).history.rng("stopping", 1, verdict.evidence["solved_at"])
    with one_thread():  # as every decision is made
        before = ReferenceCurves.of([1.0 - np.array([curve(0.72, n) for n in range(1, HORIZON + 1)])], HORIZON)
        oracle = SOLVER.judge(1.0 - np.array(values), HORIZON, 1.0 - curve(0.72, HORIZON), rng=rng, reference=before)
    assert 0.0 < oracle.p_win < 1.0
    assert verdict.evidence["p_win"] == pytest.approx(oracle.p_win, abs=1e-12)
    assert verdict.evidence["loss_continue"] == pytest.approx(oracle.loss_continue, abs=1e-9)
    assert verdict.stops == (oracle.d == "stop")


def test_the_first_trial_has_nothing_to_beat_and_is_never_stopped() -> None:
    study = search(small_study(BOBOS(stopping=quick()), trials=1), lambda c, e: 0.1)
    assert study.trials[0].status is Status.COMPLETED


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")  # far outside the bounds
def test_a_run_of_values_that_are_no_measurements_is_stopped_in_words() -> None:
    verdict = judge_curve(Halting(RandomSearch(), SOLVER), 0.9, [0.3, math.nan, -1e300, math.nan])
    assert verdict.action is Action.STOP
    assert "no finite value" in verdict.reason


@pytest.mark.parametrize("mode", ["robust", "faithful"])
def test_a_run_at_the_worst_score_counts_as_losing(mode: Any) -> None:
    verdict = judge_curve(Halting(RandomSearch(), OptimalStopping(mode=mode, paths=4000)), 0.9, [0.0] * 10)
    assert verdict.action is Action.STOP
    assert verdict.evidence["p_win"] <= verdict.evidence["bound"]


def test_a_falling_curve_is_judged_on_its_running_best_with_one_warning() -> None:
    rising = [curve(0.85, n) for n in range(1, 9)]
    falling = [*rising, *[0.4] * 4]
    policy = Halting(RandomSearch(), SOLVER)
    with pytest.warns(HaltuneWarning, match="running best") as caught:
        fallen = judge_curve(policy, 0.84, falling)
    held = judge_curve(policy, 0.84, [*rising, *[rising[-1]] * 4])
    assert len(caught) == 1
    assert fallen.evidence["p_win"] == held.evidence["p_win"]


def test_validating_every_second_epoch_gives_the_decision_of_the_curve_between() -> None:
    study = small_study(Halting(RandomSearch(), SOLVER), problem=problem(epochs=HORIZON), trials=2)
    for trial in study:
        if trial.id == 0:
            train(trial, lambda c, e: curve(0.9, e))
            continue
        stopped_at = next(n for n in range(2, HORIZON, 2) if trial.report(curve(0.3, n), epoch=n).stops)
        trial.finish()
    assert stopped_at <= 12
    assert study.trials[1].status is Status.STOPPED


def test_noise_makes_stopping_more_careful() -> None:
    values = [curve(0.60, n) for n in range(1, 11)]
    exact = judge_curve(Halting(RandomSearch(), SOLVER), 0.62, values)
    noisy = judge_curve(Halting(RandomSearch(), SOLVER, noise=0.05), 0.62, values)
    assert noisy.evidence["p_win"] > exact.evidence["p_win"]


# condition C2


def test_a_stop_needs_the_surrogate_to_be_sure_enough_of_the_end() -> None:
    study = judged_search(BOBOS(initial=3, kappa=1.05, stopping=ALONE), trials=14)
    tested = [e.verdict for e in verdicts(study) if "sd_end" in e.verdict.evidence]
    assert {v.action for v in tested} == {Action.STOP, Action.CONTINUE}
    for v in tested:
        assert (v.action is Action.STOP) == (v.evidence["sd_end"] <= 1.05 * v.evidence["sd_now"])


def test_c2_is_asked_of_the_trials_before_without_this_trials_own_epochs() -> None:
    study = judged_search(BOBOS(initial=3, refit_every=4, stopping=SOLVER), trials=9)
    report = [e for e in verdicts(study) if "sd_end" in e.verdict.evidence][-1]
    fresh = BOBOS(initial=3, refit_every=4, stopping=SOLVER)
    finished: tuple[int, ...] = ()
    for event in list(study.events())[: report.seen]:
        finished = fold_finished(finished, event)
    assert report.trial not in finished
    before = Surrogate(fresh._surrogate.rows, 4, 3).posterior(study.history, finished)
    x = study.problem.space.encode(study.trials[report.trial].config)
    rows, _ = fresh._surrogate.rows(study.history, study.trials[report.trial])
    last = rows[-1]
    assert before is not None
    np.testing.assert_allclose(last[:-1], x)
    now = math.sqrt(before.variance(last[None])[0])
    if study.trials[report.trial].epoch == report.epoch:
        assert report.verdict.evidence["sd_now"] == pytest.approx(now, rel=1e-9)


def test_the_rows_of_a_trial_are_its_marked_epochs_and_its_last() -> None:
    study = search(small_study(RandomSearch(), problem=problem(epochs=50), trials=1))
    x, y = Marked()(study.history, study.trials[0])
    assert len(x) == 6
    epochs = [1, 10, 20, 30, 40, 50]
    np.testing.assert_allclose(y, [accuracy(study.trials[0].config, n) for n in epochs])
    assert (np.diff(x[:, -1]) > 0).all()
    late_x, late_y = Marked(Marked.shares[1:])(study.history, study.trials[0])  # without the first epoch
    np.testing.assert_array_equal(late_x, x[1:])
    np.testing.assert_array_equal(late_y, y[1:])


# Halting


def test_a_stop_wins_over_a_pause_and_a_pause_over_going_on() -> None:
    settings = OptimalStopping(paths=4000, first=3)
    ends = [0.9, 0.15, 0.88, 0.2]
    policy = Halting(Pausing(), settings)
    study = Study(problem(epochs=12), policy, seed=3, budget=Budget(epochs=100))
    for _ in range(8):
        trial = study.ask()
        if not isinstance(trial, Trial):
            break
        if trial.attempt > 1:
            trial.epoch = 3.0  # as if a checkpoint had been loaded
            study.history._trials[trial.id].checkpoint_epoch = 3.0
        with trial:
            for epoch in trial.epochs():
                trial.report(curve(ends[trial.id], epoch), epoch=epoch)
    status = {t.id: t.status for t in study.trials}
    assert status[1] is Status.STOPPED
    assert status[3] is Status.STOPPED
    assert status[0] is Status.COMPLETED
    resumed = {e.trial for e in study.events() if e.kind == "resumed"}
    assert resumed == {0, 2}


def test_halting_wraps_only_policies() -> None:
    with pytest.raises(InvalidInput, match="wraps a policy"):
        Halting(RandomSearch)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="horizon"):
        small_study(Halting(RandomSearch(trials=2)), problem=problem(epochs=None))  # type: ignore[arg-type]


# horizons

HORIZONS = [10, 1_000, 100_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (50, 500, 5_000))]
MOST_REPORTS = 50  # of a trial, evenly spaced


def stopped_at(horizon: int, policy: object, ends: list[float]) -> list[float]:
    """The share of a full training after which each trial ends; curves rise to `ends`."""
    problem = Problem(Space({"x": Float(0, 1)}), Maximize("acc", bounds=(0, 1)), horizon)
    study = Study(problem, policy, seed=1, budget=Budget(trials=len(ends)), verbose=0)
    for trial in study:
        reports = min(horizon, MOST_REPORTS)
        for k in range(1, reports + 1):
            share = k / reports
            value = ends[trial.id] * (1 - math.exp(-4 * share)) / (1 - math.exp(-4))
            if trial.report(value, epoch=round(share * horizon), seconds=1.0).stops:
                break
        trial.finish()
    return [t.epoch / horizon for t in study.trials]


@pytest.mark.parametrize("make", [BOBOS, lambda: Halting(RandomSearch())], ids=["bobos", "halting"])
@pytest.mark.parametrize("horizon", HORIZONS)
def test_a_hopeless_trial_is_stopped_before_half_of_its_training_and_a_winner_is_not(make: Any, horizon: int) -> None:
    shares = stopped_at(horizon, make(), [0.9, 0.1, 0.95, 0.3])
    assert shares[0] == shares[2] == 1.0
    assert max(shares[1], shares[3]) <= 0.5


def test_the_same_curve_is_stopped_at_the_same_share_of_its_training() -> None:
    first = stopped_at(50, Halting(RandomSearch()), [0.9, 0.6])[1]
    for horizon in (500, 5_000, 100_000):
        assert stopped_at(horizon, Halting(RandomSearch()), [0.9, 0.6])[1] == pytest.approx(first, abs=0.1)
