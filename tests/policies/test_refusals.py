"""Options that make no sense, and policies that do not suit a problem: refused at once, with what is allowed.

Options of another kind are in tests/log/test_policy.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.errors import HaltuneError
from haltune.gp import Kernel
from haltune.policies import (
    BOBOS,
    EI,
    GPUCB,
    AutoBCT,
    Halting,
    Hyperband,
    InfiniteHyperband,
    Ladder,
    Level,
    MultiFidelity,
    OptimalStopping,
    RandomSearch,
    Rollout,
    SuccessiveHalving,
    TruVaR,
)

OPTIONS: list[tuple[Callable[[], Any], str]] = [
    (lambda: Hyperband(81, 1), "above 1"),
    (lambda: Hyperband(math.inf), "not a finite number"),
    (lambda: Hyperband(81, 3, min_resource=100), "max_resource at least min_resource"),
    (lambda: Hyperband(n_max=3, n_min=9), "Lower n_min"),
    (lambda: Hyperband(schedule="table2"), "'line2', 'table1' or 'growing'"),  # type: ignore[arg-type]
    (lambda: Hyperband(schedule="growing", n_max=9), "n_max=9"),
    (lambda: Hyperband(schedule="growing", rounds=2), "rounds=2"),
    (lambda: Hyperband(81, schedule="growing").table(), "no single round"),
    (lambda: Hyperband(81, brackets=5), "s = 4, 3, 2, 1, 0"),
    (lambda: Hyperband(asynchronous="soon"), "'promote' or 'stop'"),  # type: ignore[arg-type]
    (lambda: Hyperband(asynchronous=True, resume=False), "needs resource='epochs' or 'seconds'"),
    (lambda: Hyperband(sampler="halton"), "'random', 'sobol', 'lhs'"),  # type: ignore[arg-type]
    (lambda: SuccessiveHalving(n=0), "n=0"),
    (lambda: InfiniteHyperband(eta=2.5), "whole number"),  # type: ignore[arg-type]
    (lambda: InfiniteHyperband(start_budget=0), "above 0"),
    (lambda: Ladder(first_cut=0.5), r"Ladder\(first_cut=0.5\) is not above 1"),
    (lambda: Ladder(min_trials_per_rung=0), r"Ladder\(min_trials_per_rung=0\): use a whole number, at least 1"),
    (lambda: MultiFidelity(initial=1), "initial"),
    (lambda: EI(cost_model=["a"]), "without cost="),
    (lambda: EI(cost=lambda c: 1.0), "cost_function="),  # type: ignore[arg-type]
    (lambda: Rollout(affordable=1.0), "between 0 and 1"),
    (lambda: Rollout(infeasible="drop"), "restrict"),  # type: ignore[arg-type]
    (lambda: Rollout(cost=lambda a, b, c: 1.0), "3 arguments"),  # type: ignore[arg-type]
    (lambda: BOBOS(GPUCB()), r"Pass one of the two policies to the study, or write Halting\(GPUCB"),  # type: ignore[arg-type]
    (lambda: Hyperband(GPUCB()), r"or write Hyperband\(sampler=GPUCB\(...\)\) or Halting\(GPUCB"),  # type: ignore[arg-type]
    (lambda: BOBOS(policy=GPUCB()), r"Halting\(policy\) stops the trials of another one"),  # type: ignore[call-arg]
    (lambda: BOBOS(K1=50.0), "theorem 2"),
    (lambda: BOBOS(K1=200.0, wrong_stop=0.1), "not both"),
    (lambda: BOBOS(wrong_stop=0.0), "a probability"),
    (lambda: BOBOS(kappa=0.5), "kappa"),
    (lambda: BOBOS(K1=300.0, c=2.0, stopping=OptimalStopping()), "stopping= and K1=, c=, which stopping= replaces"),
    (lambda: BOBOS("faithful", stopping=OptimalStopping()), "stopping= and mode=, which stopping= replaces"),
    (lambda: BOBOS(wrong_stop=0.1, stopping=OptimalStopping()), r"wrong_stop= is K1 = \(K2 \+ c\) / wrong_stop"),
    *[
        (lambda n=n: RandomSearch(trials=n), r"RandomSearch\(trials=.*\): use a whole number, or None; got float")
        for n in (2.5, math.inf)
    ],
    (lambda: BOBOS(certain_from=2.5), "certain_from=2.5.: use a whole number, or None"),  # type: ignore[arg-type]
    (lambda: Halting(GPUCB(), certain_from=True), "certain_from=True.: use a whole number, or None"),
    (lambda: OptimalStopping(min_visits=2.5), "min_visits=2.5.: use a whole number, or None"),  # type: ignore[arg-type]
    (lambda: BOBOS(audit=1.1), "from 0 to 1"),
    (lambda: OptimalStopping(resolve_at=(4,)), "must be above first"),
    (lambda: OptimalStopping("faithful", reference_curves=True), "one curve alone"),
    (lambda: TruVaR(threshold=1.0, implicit=0.5), "Give one of them"),
    (lambda: TruVaR(cost=lambda c: 1.0, cost_model="gp"), "both cost= and cost_model=. Give one of them"),
    (lambda: TruVaR(mean=0.5), "mean= without a given kernel, with which the mean is learnt"),
    (lambda: TruVaR(anticipate="no"), "anticipate='no'.: use True or False; got str"),  # type: ignore[arg-type]
    (lambda: TruVaR(monotone="no"), "monotone='no'.: use True or False, or None; got str"),  # type: ignore[arg-type]
    (lambda: Rollout(cooled=1), "cooled=1.: use True or False; got int"),  # type: ignore[arg-type]
    (lambda: OptimalStopping(reference_curves=1), "reference_curves=1.: use True or False"),  # type: ignore[arg-type]
    (lambda: Level("a", noise="0.1"), "noise='0.1'. is not a variance"),  # type: ignore[arg-type]
    (lambda: Level("a", cost="2"), "cost='2'. is not allowed"),  # type: ignore[arg-type]
    (lambda: TruVaR(kernel=Kernel("se", 1.0, np.ones(2))), "noise"),
    (lambda: TruVaR(representers=10**6), "at most 20,000"),
    (lambda: TruVaR(grid=[1, 2]), "list of configurations"),  # type: ignore[list-item]
    (lambda: TruVaR(0.5, levels=[Level("a"), Level("a", cost=2.0)]), "share a name"),
    (lambda: Level("a", noise=-1.0), "noise"),
    (lambda: AutoBCT(gamma=0.1, score_per_hour=1), "Give one of them"),
    (lambda: AutoBCT(worst=0.1), "Give both, or neither"),
    (lambda: AutoBCT(worst=0.0, best=1.0, score_scale="log"), "both positive for 'log'"),
    (lambda: AutoBCT(method="exact"), "Give max_trainings from 1 to 3"),
    (lambda: AutoBCT(prior="D.9"), "Give one of D.1"),
]


@pytest.mark.parametrize(("make", "says"), OPTIONS)
def test_options_that_make_no_sense_are_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(HaltuneError, match=says):
        make()


def test_whole_numbers_as_floats_and_truth_values_of_numpy_are_allowed() -> None:
    assert RandomSearch(trials=40 / 2).trials == 20  # type: ignore[arg-type]
    assert TruVaR(anticipate=np.bool_(True)).anticipate is True  # type: ignore[arg-type]
    assert OptimalStopping(reference_curves=np.bool_(False)).reference_curves is False  # type: ignore[arg-type]


UNSUITABLE: list[tuple[Any, int | None, str]] = [
    (Hyperband(), None, "needs max_resource"),
    (Hyperband(81), 27, "Lower it to 27"),
    (Hyperband(resource="seconds"), 5, "needs max_resource, in seconds"),
    (Hyperband(brackets=4), 27, "s = 3, 2, 1, 0"),
    (Hyperband(9, sampler=BOBOS()), None, "needs max_epochs"),
    (Ladder(), None, "needs max_epochs"),
    (Ladder(min_resource=10), 9, r"min_resource=10\) is above max_epochs=9"),
    (MultiFidelity(), None, "InfiniteHyperband"),
    (GPUCB(beta="theorem"), 9, "finitely many"),
    (EI(cost="per", cost_model=["c"]), 9, "parameters of the space"),
    (TruVaR(grid=[{"x": 7.0, "y": 0.0}]), 9, "not a configuration"),
    (TruVaR(monotone=True), 9, "monotone"),
    (TruVaR(kernel=Kernel("se", 1.0, np.ones(3)), noise=0.1), 9, r"3 lengthscales.*2 coordinates"),
    (TruVaR(threshold=92.0), 9, r"threshold=92\) is outside the bounds of acc, 0 to 1"),
    (
        TruVaR(kernel=Kernel("se", 1.0, np.ones(2)), noise=lambda c: -1.0, grid=3),
        9,
        "noise function returned .* for {'x'",
    ),
    (AutoBCT(worst=1.0, best=0.0), 1, "best must be better"),
    (AutoBCT(prior="D.1"), 1, "Give a prior for this space"),
    (AutoBCT(score_per_hour=1.0), 1, "in units of their own"),
]


@pytest.mark.parametrize(("policy", "epochs", "says"), UNSUITABLE)
def test_a_policy_that_does_not_suit_the_problem_is_refused_before_anything_is_trained(
    policy: Any, epochs: int | None, says: str
) -> None:
    space = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})
    with pytest.raises(HaltuneError, match=says):
        Study(Problem(space, Maximize("acc", (0, 1)), epochs), policy, seed=1, budget=Budget(cost=3)).ask()
