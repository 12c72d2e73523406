"""The contract of policies: what one leaves out it has from the base, and a wrapper hands on all it does not change."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import POLICIES, problem, quick, small_study

import haltune
from examples import many
from haltune import Budget, policies
from haltune.errors import HaltuneError, InvalidInput
from haltune.log.policy import Policy, Wrapper, in_words
from haltune.policies import EI, Halting, Hyperband, Ladder, OptimalStopping, RandomSearch, SuccessiveHalving

CONTRACT = [name for name in vars(Policy) if not name.startswith("_")]
OWN = {  # what a wrapper is there to change
    Halting: {"spec", "start", "fold", "judge"},
    Wrapper: set[str](),
}
WRAPPERS: dict[type, Callable[[Any], Any]] = {
    Halting: lambda inner: Halting(inner, quick()),
    Wrapper: lambda inner: Around(inner),
}


class Around(Wrapper):
    """Changes nothing."""

    def __init__(self, policy: Policy[Any]) -> None:
        self.policy = policy


class Told(Exception):
    """Raised by the member that was called."""


def teller(member: str) -> Policy[Any]:
    """Return a policy that raises when `member` is used."""

    def tell(self: Any, *_: Any) -> Any:
        raise Told(member)

    is_attribute = isinstance(vars(Policy)[member], property)
    kind = type("Teller", (type(POLICIES["random"]()),), {member: property(tell) if is_attribute else tell})
    policy: Policy[Any] = kind()
    return policy


def question(policy: Any, member: str) -> Any:
    """Any question that makes a policy answer by `member`."""
    if isinstance(vars(Policy)[member], property):
        return getattr(policy, member)
    state = None if member == "start" else policy.start(problem())
    arguments: dict[str, tuple[Any, ...]] = {
        "start": (problem(),), "fold": (state, None), "alive": (state,), "with_prior_studies": ([],),
        "as_recorded": ({},), "remarks": (problem(),),
        "part": (Told,), "completed": ({"policy": type(policy).__name__, "inner": {}},),
    }  # fmt: skip
    return getattr(policy, member)(*arguments.get(member, (state, *[None] * (2 + (member == "judge")))))


@pytest.mark.parametrize("member", CONTRACT)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_asks_the_policy_inside_for_every_member_of_the_contract(kind: type, member: str) -> None:
    with pytest.raises(Told, match=member):
        question(WRAPPERS[kind](teller(member)), member)


@settings(max_examples=many(60), deadline=None)
@given(st.data())
def test_wrappers_in_any_order_around_any_policy_answer_as_that_policy(data: st.DataObject) -> None:
    inner: Any = POLICIES[data.draw(st.sampled_from(sorted(POLICIES)))]()
    kinds = data.draw(st.lists(st.sampled_from(list(WRAPPERS)), min_size=1, max_size=3))
    policy = inner
    for kind in kinds:
        policy = WRAPPERS[kind](policy)
    for member in set(CONTRACT) - set().union(*(OWN[kind] for kind in kinds)):
        if isinstance(vars(Policy)[member], property):
            assert getattr(policy, member) == getattr(inner, member)
    assert policy.alive(policy.start(problem())) == inner.alive(inner.start(problem()))


SAMPLED: list[Callable[[Any], Any]] = [
    lambda sampler: Hyperband(eta=2, rounds=None, sampler=sampler),
    lambda sampler: SuccessiveHalving(n=9, sampler=sampler),
    lambda sampler: SuccessiveHalving(n=9, sampler=sampler, asynchronous=True),
    lambda sampler: Ladder(2, 2, min_trials_per_rung=3, sampler=sampler),
]


class Planner(RandomSearch):
    """Plans by the budget, and notes what it is shown of it."""

    plans = True
    seen: tuple[Budget | None, ...] = ()

    def propose(self, state: Any, history: Any, rng: Any) -> Any:
        object.__setattr__(self, "seen", (*self.seen, history.budget))
        return super().propose(state, history, rng)


@pytest.mark.parametrize(
    "around",
    [
        *WRAPPERS.values(),
        *(pytest.param(p, marks=pytest.mark.slow) for p in SAMPLED),
        lambda p: Halting(SAMPLED[0](p), quick()),
    ],
)
def test_a_policy_that_plans_sees_the_budget_whatever_it_is_in(around: Callable[[Any], Any]) -> None:
    planner, budget = Planner(), Budget(worker_time=400.0, epochs=120)
    study = small_study(around(planner), budget=budget)
    assert study.policy.plans
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(trial.config["lr"] * epoch / 6.0, seconds=1.0)
    assert planner.seen
    assert all(seen == budget for seen in planner.seen)


def test_what_is_no_policy_is_refused_wherever_one_is_expected() -> None:
    class Duck:
        def propose(self) -> None: ...
        def judge(self) -> None: ...

    for door in (Halting, lambda p: small_study(p)):
        for wrong in (Duck(), EI, "ei"):
            with pytest.raises(InvalidInput, match=r"policy such as .* got"):
                door(wrong)
    with pytest.raises(InvalidInput, match=r"policy such as .* got"):  # a study alone has one of its own
        Halting(None)
    with pytest.raises(InvalidInput, match=r"derive from haltune\.policies\.Policy"):
        small_study(Duck())
    with pytest.raises(InvalidInput, match=r"Use EI\(\)"):
        small_study(EI)


@pytest.mark.parametrize("name", [n for n in POLICIES if n not in ("truvar-grid", "multifidelity-taught")])
def test_a_policy_in_words_is_what_makes_it(name: str) -> None:
    policy = POLICIES[name]()
    known = {**vars(haltune), **{n: getattr(haltune.policies, n) for n in haltune.policies.__all__}, "inf": math.inf}
    assert eval(in_words(policy), known).spec == policy.spec


_OF_OTHER_KINDS = ("x", [], {}, None, object(), True, 1j, [1, "a"], math.nan)


@pytest.mark.parametrize("name", [*policies.POLICY_NAMES, "OptimalStopping"])
def test_an_option_of_another_kind_is_answered_by_a_sentence(name):
    """Any value for a number, a word or a policy is accepted or gives an error."""
    kind = OptimalStopping if name == "OptimalStopping" else getattr(policies, name)
    needed = {"policy": policies.RandomSearch(), "threshold": 0.5}
    given = {f.name: needed[f.name] for f in fields(kind) if f.name in needed}
    kind(**given)
    for option in (f.name for f in fields(kind) if f.init):
        for value in _OF_OTHER_KINDS:
            with suppress(HaltuneError):  # what else is raised fails
                kind(**{**given, option: value})
