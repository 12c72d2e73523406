"""A policy is rebuilt from its spec in the log, or an error gives the reason."""

import json
from dataclasses import replace

import pytest
from worlds import POLICIES, problem, search, small_study

import haltune
from haltune import Budget, Choice, Finish, Int, Space, load_study
from haltune.errors import NotSupported, StudyMismatch
from haltune.log.events import plain
from haltune.policies import EI, GPUCB, Halting, Hyperband, MultiFidelity, RandomSearch, TruVaR
from haltune.policies.from_spec import policy_from
from haltune.store.memory import MemoryStore


def holds_a_function(spec):
    """Functions are recorded as {"function": name}."""
    parts = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    return (isinstance(spec, dict) and "function" in spec) or any(map(holds_a_function, parts))


def test_every_policy_has_a_form_that_the_laws_hold():
    """A new policy needs a row of POLICIES in tests/support/worlds.py."""
    made = [make() for make in POLICIES.values()]
    assert {type(policy).__name__ for policy in made} >= set(haltune.policies.POLICY_NAMES)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_rebuilt_from_its_spec_as_the_log_holds_it(name):
    policy = POLICIES[name]()
    spec = json.loads(json.dumps(plain(policy.spec), allow_nan=False))
    if holds_a_function(spec):
        with pytest.raises(NotSupported, match=r"(holds|uses) (a|the) function"):
            policy_from(spec)
        return
    again = policy_from(spec)
    assert type(again) is type(policy)
    assert plain(again.spec) == spec
    assert again == policy


@pytest.mark.parametrize("spec", [{"policy": "Mine"}, {"policy": "policy_from"}, {"policy": None}])
def test_a_policy_of_the_users_is_not_looked_for_in_haltune(spec):
    with pytest.raises(NotSupported, match=r"is not one of haltune's"):
        policy_from(spec)


def test_options_of_another_version_are_named():
    with pytest.raises(NotSupported, match="cleverness"):
        policy_from({**RandomSearch(trials=3).spec, "cleverness": 3})
    with pytest.raises(NotSupported, match="another version"):
        policy_from({name: v for name, v in GPUCB(initial=7).spec.items() if name != "initial"})


SITES = {
    "noise": None, "kernel": "matern52", "mean": 0.0, "refit_every": 3, "initial": None, "grid": None,
    "representers": 400,
}  # fmt: skip
EARLIER = [  # policies as version 0.1 recorded them, and what they are now
    ({"policy": "EI", "initial": 4, "refit_every": 10}, EI()),
    (
        {"policy": "EIPerCost", "initial": 3, "refit_every": 10, "cost": None, "cost_model": ["lr"]},
        EI(cost="per", cost_model=["lr"]),
    ),
    (
        {"policy": "CostCooledEI", "initial": 2, "refit_every": 10, "cost": None, "cost_model": "gp"},
        EI(2, cost="cooled"),
    ),
    (
        {"policy": "LevelSetSearch", "threshold": 0.7, "rule": "gchk", "root_beta": 3.0, **SITES},
        TruVaR(0.7, rule="gchk"),
    ),
    (
        {"policy": "LevelSetSearch", "threshold": 0.7, "rule": "straddle", "root_beta": 2.0, **SITES},
        TruVaR(0.7, rule="straddle", a=4.0),
    ),
]


@pytest.mark.parametrize(("spec", "now"), EARLIER)
def test_a_policy_of_an_earlier_log_opens_under_its_name_of_today_and_continues(spec, now):
    assert policy_from(spec).spec == now.spec
    inside = {**Halting(RandomSearch(trials=3)).spec, "inner": spec}
    assert policy_from(inside).policy.spec == now.spec
    events = list(search(small_study(now, trials=3)).events())
    before = MemoryStore()
    before.create("study", replace(events[0], policy=spec))
    before.append("study", events[1:], seen=1, about=None)
    assert len(search(small_study(now, before, trials=4)).trials) == 4


def test_the_old_name_of_a_policy_makes_the_new_one_and_says_so():
    for old, options, now in (
        ("EIPerCost", {"cost_model": ["lr"]}, EI(cost="per", cost_model=["lr"])),
        ("CostCooledEI", {"initial": 2}, EI(2, cost="cooled")),
        ("LevelSetSearch", {"threshold": 0.7, "root_beta": 2.0}, TruVaR(0.7, rule="gchk", a=4.0)),
        ("Guided", {"policy": Hyperband(), "initial": 9}, MultiFidelity()),
    ):
        with pytest.warns(UserWarning, match=f"{old} is (EI|TruVaR|gone)"):
            assert getattr(haltune.policies, old)(**options).spec == now.spec


def test_what_moved_to_the_policies_is_at_the_top_for_a_version_and_says_so():
    for name in ("Level", "OptimalStopping", "Resume", "Start"):
        assert name not in dir(haltune)
        with pytest.warns(UserWarning, match=f"from haltune.policies import {name}"):
            assert getattr(haltune, name) is getattr(haltune.policies, name)


def test_no_configuration_is_drawn_twice_while_others_are_left() -> None:
    space = Space({"a": Int(1, 3), "b": Choice(["x", "y"])})
    study = search(small_study(RandomSearch(), problem=problem(space=space), trials=6))
    assert len({space.key(t.config) for t in study.trials}) == 6


def test_it_finishes_after_the_number_of_trials_asked_for() -> None:
    study = search(small_study(RandomSearch(trials=3), trials=99))
    answer = study.ask()
    assert isinstance(answer, Finish)
    assert "all 3" in answer.reason
    assert len(study.trials) == 3


def recorded_with_guided(inner, around=lambda spec: spec):
    """A study, and its log as Guided had it: its events were those of the policy inside, with other configurations."""
    recorded, store = search(small_study(POLICIES[inner](), trials=6)), MemoryStore()
    spec = {"policy": "Guided", "inner": recorded.policy.spec, "initial": 20, "deviations": 1.0, "share": 0.0,
            "candidates": 300}  # fmt: skip
    first, *events = recorded.events()
    store.create("study", replace(first, policy=around(spec)))
    store.append("study", events, seen=1, about=None)
    return recorded, store


@pytest.mark.parametrize("inner", ["ladder", "multifidelity"])
@pytest.mark.parametrize("around", [lambda spec: spec, lambda spec: {**Halting(RandomSearch()).spec, "inner": spec}])
def test_a_log_of_guided_opens_and_continues_with_the_default_search_and_says_so(inner, around):
    recorded, store = recorded_with_guided(inner, around)
    with pytest.warns(UserWarning, match=r"recorded with Guided, which was removed.*continues with MultiFidelity\(\)"):
        study = load_study(store, budget=Budget(trials=9))
    had = MultiFidelity(initial=20, deviations=3.0, candidates=300, min_share=0.0)
    assert study.policy.part(MultiFidelity) == had
    assert (study.best, len(study.trials)) == (recorded.best, 6)
    assert all(study.explain(t.id) for t in study.trials)
    assert len(search(study).trials) == 9


@pytest.mark.parametrize("inner", ["hyperband", "hyperband-retrains", "truvar", "halting-ladder"])
def test_a_log_of_guided_around_another_schedule_can_be_read_alone(inner):
    recorded, store = recorded_with_guided(inner)
    study = load_study(store)
    assert study.best == recorded.best
    assert all(study.explain(t.id) for t in study.trials)
    with pytest.raises(NotSupported, match="Guided"):
        study.ask()
    with pytest.raises(StudyMismatch, match="Guided"):
        small_study(MultiFidelity(), store)
