"""A policy is rebuilt from what the log says of it, or an error says why not."""

import json
from dataclasses import replace

import pytest
from worlds import POLICIES, problem, search, small_study

import haltune
from haltune import Choice, Finish, Int, Space
from haltune.errors import NotSupported
from haltune.log.events import plain
from haltune.policies import EI, GPUCB, Halting, RandomSearch, TruVaR
from haltune.policies.from_spec import policy_from
from haltune.store.memory import MemoryStore


def holds_a_function(spec):
    """Functions are recorded as {"function": name}."""
    parts = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    return (isinstance(spec, dict) and "function" in spec) or any(map(holds_a_function, parts))


def test_every_policy_has_a_form_that_the_laws_hold():
    """What a new policy needs: a row of POLICIES in tests/support/worlds.py."""
    made = [make() for make in POLICIES.values()]
    assert {type(policy).__name__ for policy in made} >= set(haltune.policies.POLICY_NAMES)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_rebuilt_from_its_spec_as_the_log_holds_it(name):
    policy = POLICIES[name]()
    spec = json.loads(json.dumps(plain(policy.spec), allow_nan=False))
    if holds_a_function(spec):
        with pytest.raises(NotSupported, match=r"holds (a|the) function"):
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
def test_a_policy_of_an_earlier_log_opens_under_its_name_of_today_and_goes_on(spec, now):
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
    ):
        with pytest.warns(UserWarning, match=f"{old} is (EI|TruVaR)"):
            assert getattr(haltune.policies, old)(**options).spec == now.spec


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
