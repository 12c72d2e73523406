"""The induction against enumeration and closed forms, and the settings object policies ask."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from examples import many
from haltune.models.curves import Paths, conditional_paths
from haltune.policies.bobos.optimal_stopping import Losses, OptimalStopping, solve

FALLING = 0.2 + 0.7 * np.exp(-0.2 * np.arange(1, 52))
quick = settings(max_examples=many(30), deadline=None)


def three_epoch_tree():
    """All paths of a small tree: an error falls by 0.3 or stays, with chances that depend on the last step."""
    start = 0.9
    steps = {(): 0.5, (1,): 0.8, (0,): 0.2, (1, 1): 0.8, (1, 0): 0.2, (0, 1): 0.8, (0, 0): 0.2}  # Pr(fall)
    leaves = []
    for a in (0, 1):
        for b in (0, 1):
            for c in (0, 1):
                chance = 1.0
                for past, step in (((), a), ((a,), b), ((a, b), c)):
                    chance *= steps[past] if step else 1.0 - steps[past]
                fall = 0.25 * np.cumsum([a, b, c])
                leaves.append((chance, start - fall))
    return start, leaves


def mean_of(errors):
    return round(float(np.mean(errors)), 6)


def mean_and_recent(errors):
    """With weights k^9, written out: the newest of n weighs 10 / (n + 9) of the whole."""
    weights = np.ones(1)
    for n in range(2, len(errors) + 1):
        weights = np.append(weights * (1.0 - 10.0 / (n + 9.0)), 10.0 / (n + 9.0))
    return mean_of(errors), round(float(weights @ errors), 6)


def enumerate_tree(start, leaves, threshold, losses, statistic):
    """{(epoch, statistic): (p_win, next value)}, exact: over groups of equal statistic, what each leaf loses."""
    full = [np.concatenate([[start], path]) for _, path in leaves]
    chances, wins = np.array([w for w, _ in leaves]), np.array([path[-1] < threshold for _, path in leaves])
    lost, answer = np.zeros(len(leaves)), {}
    for n in (3, 2, 1, 0):
        keys = [statistic(errors[: n + 1]) for errors in full]
        after = lost.copy()
        for key in set(keys):
            members = np.array([k == key for k in keys])
            w = chances[members] / chances[members].sum()
            p, ahead = float(w @ wins[members]), float(w @ lost[members]) if n < 3 else np.inf
            answer[n, key] = (p, ahead)
            stop, win, further = losses.K1 * p, losses.K2 * (1 - p), losses.c + ahead
            if n < 3:
                stop += losses.missing
            if min(stop, win) > further:
                after[members] = losses.c + lost[members]
            elif stop <= win:
                after[members] = losses.K1 * wins[members] + (losses.missing if n < 3 else 0.0)
            else:
                after[members] = losses.K2 * ~wins[members]
        lost = after
    return answer


@pytest.mark.parametrize(
    "losses", [Losses(100, 99, 1), Losses(20, 19, 3), Losses(500, 50, 0.0), Losses(4, 2, 1), Losses(100, 99, 1, 1.5)]
)
@pytest.mark.parametrize("threshold", [0.5, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.2, 0.7))])
@pytest.mark.parametrize(("statistic", "slopes"), [(mean_of, 1), (mean_and_recent, 1000)])
def test_the_table_is_the_exact_solution_of_a_small_tree(losses, threshold, statistic, slopes):
    start, leaves = three_epoch_tree()
    copies = [(round(10_000 * chance), path) for chance, path in leaves]
    values = np.repeat(np.array([p for _, p in copies]).T, [n for n, _ in copies], axis=1).astype(np.float32)
    exact = enumerate_tree(start, leaves, threshold, losses, statistic)
    table = solve(Paths(1, values), [start], threshold, losses, cells=1000, slopes=slopes)
    for _, path in leaves:
        full = np.concatenate([[start], path])
        for n in range(4):
            p_win, ahead = exact[n, statistic(full[: n + 1])]
            decision = table.decide(full[: n + 1])
            missing = losses.missing if n < 3 else 0.0
            assert decision.p_win == pytest.approx(p_win, abs=2e-3)
            assert decision.loss_stop == pytest.approx(losses.K1 * p_win + missing, rel=0.01, abs=0.05)
            assert decision.loss_win == pytest.approx(losses.K2 * (1 - p_win), rel=0.01, abs=0.05)
            assert decision.loss_continue == pytest.approx(losses.c + ahead, rel=0.01, abs=0.05)


def gp_table(threshold, losses=None, n0=8, horizon=51, count=20_000, **options):
    paths = conditional_paths(FALLING[:n0], horizon, count, np.random.default_rng(0))
    return solve(paths, FALLING[:n0], threshold, losses or Losses(), **options)


def test_a_cell_with_thirty_visits_continues_and_with_thirty_one_decides():
    values = np.full((2, 2031), 0.5, dtype=np.float32)
    values[:, :31] = 0.9
    table = solve(Paths(1, values), [0.5], 0.4, Losses())
    bad = [0.5, 0.9]
    assert (table.decide(bad).d, table.decide(bad).basis) == ("stop", "solved")
    rarer = solve(Paths(1, values[:, 1:]), [0.5], 0.4, Losses())
    assert (rarer.decide(bad).d, rarer.decide(bad).basis) == ("continue", "rare")


def test_a_curve_that_leaves_the_paths_is_decided_by_a_table_of_all_its_errors():
    """Noise takes it beyond what the paper's noise-free paths reach: it would continue without end."""
    noisy = np.concatenate([FALLING[:8], FALLING[8:20] + np.where(np.arange(12) % 2, 0.08, 0.06)])
    settings = OptimalStopping("faithful", paths=4000)
    planned = settings.solve_at(noisy[:8], 51, 0.1, settings.losses(), np.random.default_rng(0))
    assert planned.decide(noisy).basis == "left"
    anew = settings.solve_at(noisy, 51, 0.1, settings.losses(), np.random.default_rng(0))
    assert settings.judge(noisy, 51, 0.1) == anew.decide(noisy)
    assert anew.decide(noisy).basis == "solved"


@pytest.mark.parametrize("horizon", [6, 8, 30])
def test_a_losing_run_is_not_stopped_to_save_less_than_its_final_value_is_worth(horizon):
    losing = np.full(horizon, 0.9)
    last = [n for n in range(3, horizon) if OptimalStopping(paths=4000).judge(losing[:n], horizon, 0.1).d == "stop"][-1]
    assert horizon - last >= max(1.5, 0.1 * horizon)


def test_a_robust_stop_is_made_only_where_a_table_of_all_errors_agrees():
    settings, errors = OptimalStopping(paths=4000, missing=0.0), FALLING[:14]
    asked = []

    def table(at):
        asked.append(at)
        losses = Losses(K1=1e-6) if at < 14 else Losses(K1=1e12)  # stops at once, and never
        return settings.solve_at(errors[:at], 51, 0.19, losses, np.random.default_rng(0))

    assert table(12).decide(errors).d == "stop"
    asked.clear()
    decision, at = settings.decide(errors, 51, table)
    assert (asked, at, decision.d == "stop") == ([12, 14], 14, False)


def test_fewer_than_a_thousand_survivors_mean_continue():
    values = np.full((5, 3000), 0.5, dtype=np.float32)
    values[2, 999:] = 1.2
    decision = solve(Paths(3, values), [0.5, 0.5, 0.5], 0.1, Losses()).decide([0.5, 0.5, 0.5])
    assert (decision.d, decision.basis) == ("continue", "few paths")
    values[2, 999] = 0.5
    assert solve(Paths(3, values), [0.5, 0.5, 0.5], 0.1, Losses()).decide([0.5, 0.5, 0.5]).d == "stop"


@pytest.mark.parametrize("p", [1e-4, 0.04, 0.3])
@pytest.mark.parametrize("threshold", [0.1, 0.9])  # no path wins, and all do
def test_where_all_paths_end_alike_the_probability_of_a_win_still_counts(p, threshold):
    """Then no later epoch tells more, so the smaller loss of the two ends is the best, at once."""
    values = np.random.default_rng(0).uniform(0.4, 0.6, (5, 3000)).astype(np.float32)
    losses = Losses(1000.0, 99.0, 1.0, missing=1.5)
    decision = solve(Paths(1, values), [0.5], threshold, losses, calibrate=lambda share: p).decide([0.5])
    assert decision.p_win == pytest.approx(p)
    assert (decision.loss_stop, decision.loss_win) == (pytest.approx(1000 * p + 1.5), pytest.approx(99 * (1 - p)))
    assert decision.d == ("stop" if 1000 * p + 1.5 <= 99 * (1 - p) else "win")


@pytest.mark.parametrize("calibrated", [lambda share: share, lambda share: share / 2])
def test_noise_of_the_final_error_gives_the_normal_probability(calibrated):
    """Paths with ends N(0.5, 0.03^2) and noise 0.04 end as N(0.5, 0.05^2)."""
    values = np.random.default_rng(0).normal(0.5, 0.03, (4, 20_000)).astype(np.float32)
    table = solve(Paths(1, values), [0.5], 0.45, Losses(), calibrate=calibrated, noise=0.04)
    assert table.decide([0.5]).p_win == pytest.approx(calibrated(norm.cdf(-1.0)), rel=0.03)


@given(st.floats(1.0, 1e4), st.floats(1.0, 1e3), st.floats(0.0, 5.0))
@quick
def test_no_stop_is_made_above_the_bound_of_lemma_8(K1, K2, c):
    losses = Losses(K1, K2, c)
    table = gp_table(0.21, losses, horizon=16, count=4000)
    for n in range(8, 16):
        decision = table.decide(FALLING[:n])
        if decision.d == "stop":
            assert decision.p_win <= min(1.0, (K2 + c) / K1) + 1e-12
            assert decision.loss_stop <= decision.loss_continue


@given(
    st.sampled_from(["robust", "faithful"]),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20),
    st.integers(1, 25),
    st.floats(0.0, 1.0),
)
@quick
def test_any_errors_are_judged(mode, errors, horizon, incumbent):
    if len(errors) > horizon:
        errors = errors[:horizon]
    decision = OptimalStopping(mode, paths=2000).judge(errors, horizon, incumbent)
    assert decision.d in ("stop", "win", "continue")
    if decision.d == "stop":
        assert decision.loss_stop <= decision.loss_continue
        assert decision.p_win <= decision.bound
        if mode == "robust":  # at the end the final error is known, so to continue loses no more than the epochs left
            assert decision.loss_stop <= horizon - len(errors)


@pytest.mark.parametrize("left", [1, 2, 5])
def test_a_trial_is_not_stopped_for_more_than_the_epochs_left(left):
    """No cell of the last epoch tells whether its paths win, so the induction alone expects a loss there."""
    rng = np.random.default_rng(0)
    values = np.vstack([rng.uniform(0.4, 0.6, (left - 1, 4000)), rng.permutation(np.linspace(0.0, 1.0, 4000))])
    losses = Losses(1000.0, 1000.0, 1.0)
    for end_known in (False, True):
        paths, errors = Paths(10, values.astype(np.float32)), [0.5] * 10
        decision = solve(paths, errors, 0.02, losses, cells=1, slopes=1, end_known=end_known).decide(errors)
        assert decision.loss_stop == pytest.approx(20.0, rel=0.05)
        assert decision.d == ("continue" if end_known else "stop")
    assert decision.loss_continue == left


def test_the_plan_of_51_epochs_is_the_papers_and_scales_with_the_horizon():
    plan = OptimalStopping(resolve_at=(12, 16, 24, 32, 40)).plan(51)
    assert plan.solve_at == (8, 12, 16, 24, 32, 40)
    assert [plan.solved_at(n) for n in (7, 8, 11, 12, 50, 51)] == [None, 8, 8, 12, 40, None]
    assert OptimalStopping("faithful").plan(51).solve_at == (8,)
    assert OptimalStopping("faithful").plan(51).first_decision == 9
    assert OptimalStopping().plan(510).solve_at[0] == 80
