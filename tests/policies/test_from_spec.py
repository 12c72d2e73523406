"""A policy is rebuilt from its spec in the log, or an error gives the reason."""

import json

import pytest
from worlds import POLICIES, problem, search, small_study

import haltune
from haltune import Choice, Finish, Int, Space
from haltune.errors import NotSupported
from haltune.log.events import plain
from haltune.policies import GPUCB, RandomSearch
from haltune.policies.from_spec import policy_from


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
