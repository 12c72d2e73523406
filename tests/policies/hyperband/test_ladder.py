"""The ladder: promoted trials are in the top share of their rung, and none before enough were compared."""

from __future__ import annotations

import math
from typing import Any

import pytest
from climbing_log import Rungs, walked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laboratory import Lab, act, differences, happenings, rising, rough

from examples import many
from haltune import Budget
from haltune.log.events import Reported, Resumed
from haltune.policies import Ladder
from haltune.policies.hyperband.brackets import Bracket, Rung


class Same:
    """The plan of a ladder: every bracket is the same one."""

    def __init__(self, epochs: list[int]) -> None:
        self.bracket = Bracket(tuple(Rung(1, float(n)) for n in epochs), 0)

    def __getitem__(self, number: int) -> Bracket:
        return self.bracket


def checked(lab: Lab, policy: Ladder, min_trials_per_rung: int, race: bool = False) -> Rungs:
    """Return the rungs of a log; assert their invariants."""
    plan: Any = Same(policy.rungs(lab.problem.max_epochs or 0))
    rungs = walked(Rungs(policy.eta, False, policy.first_cut, min_trials_per_rung), lab.log, plan, race)
    arrived = {id for (_, rung), here in rungs.arrived.items() if rung == 0 for id in here}
    if len(arrived) < min_trials_per_rung:
        assert rungs.promotions == []
    return rungs


# -- the rule ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eta", "first", "min_trials_per_rung", "workers"),
    [
        pytest.param(3, 3, 7, 6, marks=pytest.mark.slow),
        (2, 2.5, 1, 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(3, 6, 20, 1), (3, 6, 20, 6), (2, 2.5, 1, 6), (3, 3, 7, 1)]
        ),
    ],
)
def test_promoted_trials_are_in_the_top_of_all_that_ever_arrived(
    eta: float, first: float, min_trials_per_rung: int, workers: int
) -> None:
    policy = Ladder(eta, first, min_trials_per_rung=min_trials_per_rung)
    lab = Lab(lambda: policy, rough(3, 0.1), epochs=27, workers=workers, budget=Budget(epochs=500)).run()
    rungs = checked(lab, policy, min_trials_per_rung)
    assert len(rungs.promotions) > 15
    assert max(t.epoch for t in lab.study.trials) == 27
    assert lab.waits == 0
    assert differences(lab) == []


def test_no_trial_continues_before_enough_were_compared_and_then_the_best_of_them() -> None:
    lab = Lab(lambda: Ladder(min_trials_per_rung=12), rising, epochs=27, budget=Budget(epochs=400)).run()
    first = next(e for e in lab.log if isinstance(e, Resumed))
    before = [e for e in lab.log if isinstance(e, Reported) and e.at <= first.at][:12]
    assert [e.epoch for e in before] == [1.0] * 12
    values = {e.trial: e.value for e in before}
    ahead = [e.trial for e in lab.log if isinstance(e, Reported) and e.epoch == 2][:2]
    assert set(ahead) == set(sorted(values, key=lambda id: -values[id])[:2])  # 12 / 6


@pytest.mark.parametrize(
    ("policy", "horizon", "rungs"),
    [
        (Ladder(), 50, [1, 3, 9, 27, 50]),
        (Ladder(), 27, [1, 3, 9, 27]),
        (Ladder(), 1, [1]),
        (Ladder(step=4, min_resource=2), 100, [2, 8, 32, 100]),
    ],
)
def test_rungs_are_powers_of_the_step_and_the_horizon(policy: Ladder, horizon: int, rungs: list[int]) -> None:
    assert policy.rungs(horizon) == rungs


@pytest.mark.parametrize(
    ("horizon", "min_resource", "min_trials_per_rung"), [(50, 1, 40), (5, 1, 8), (1000, 1, 40), (100, 5, 16)]
)
def test_the_first_comparison_costs_four_fifths_of_a_training_if_nothing_is_given(
    horizon: int, min_resource: int, min_trials_per_rung: int
) -> None:
    policy = Ladder(min_resource=min_resource)
    trials = (min_trials_per_rung + 1) * min_resource
    lab = Lab(lambda: policy, rising, epochs=horizon, budget=Budget(epochs=trials)).run()
    reports = [e for e in lab.log if isinstance(e, Reported)]
    beyond = [i for i, e in enumerate(reports) if e.epoch > min_resource]
    assert beyond[0] // min_resource == min_trials_per_rung


# -- after any events -------------------------------------------------------------------------

ACTIONS = ["step"] * 10 + ["race"] * 3 + ["save", "fail", "early", "kill", "interrupt", "stuck", "late"]


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=many(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=happenings([*ACTIONS, "mourn"], 150),
    seed=st.integers(0, 10**6),
    bad=st.sampled_from([0.0, 0.2, 1.0]),
    min_trials_per_rung=st.sampled_from([1, 5, 12]),
)
def test_after_any_events_only_the_top_is_promoted_and_the_search_advances(
    steps: list[tuple[int, int, str]], seed: int, bad: float, min_trials_per_rung: int
) -> None:
    policy = Ladder(2, 3, 2, min_trials_per_rung=min_trials_per_rung)
    lab = Lab(lambda: policy, rough(seed, bad), epochs=8, workers=4, budget=Budget(epochs=10**6))
    for number, other, action in steps:
        act(lab, number, other, action)
    for worker in lab.workers:
        worker.stuck = False
    lab.clock.now += 1e7
    limit = lab.study.spent.epochs + 60
    for worker in lab.workers:
        worker.study.budget = Budget(epochs=limit)
    lab.budget = Budget(epochs=limit)
    lab.run()
    raced = any(action == "race" for _, _, action in steps)
    rungs = checked(lab, policy, min_trials_per_rung, race=raced)
    assert lab.study.spent.epochs >= limit
    finite = {e.trial for e in lab.reports() if math.isfinite(e.value)}  # late reports are, for any `bad`
    assert {id for id, _ in rungs.promotions} <= finite
    assert differences(lab) == []


# -- the door ---------------------------------------------------------------------------------
