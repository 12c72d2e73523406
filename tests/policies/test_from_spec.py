"""A policy is rebuilt from what the log says of it, or an error says why not."""

import json
import math

import pytest
from worlds import POLICIES

from haltune.errors import NotSupported
from haltune.log.codec import plain
from haltune.policies import EI, GPUCB, Halting, RandomSearch, Rollout
from haltune.policies.from_spec import policy_from


def holds_a_function(spec):
    """Functions are recorded as {"function": name}."""
    parts = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    return (isinstance(spec, dict) and "function" in spec) or any(map(holds_a_function, parts))


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


@pytest.mark.parametrize(
    "policy",
    [EI(cost="per", cost_function=lambda c: 1.0), Rollout(cost=lambda config: 1.0)],
    ids=["ei", "rollout"],
)
def test_a_policy_that_holds_a_function_is_not_rebuilt_and_the_error_says_what_to_do(policy):
    spec = plain(policy.spec)
    for holder in (spec, {**Halting(RandomSearch(trials=3)).spec, "inner": spec}):
        with pytest.raises(NotSupported, match=r"holds (a|the) function.*in your program"):
            policy_from(holder)


@pytest.mark.parametrize(
    "spec",
    [
        {"policy": "Mine"},
        {},
        {"policy": "policy_from"},
        {"policy": "__all__"},
        {"policy": "Policy"},
        {"policy": None},
    ],
)
def test_a_policy_of_the_users_is_not_looked_for_in_haltune(spec):
    with pytest.raises(NotSupported, match=r"is not one of haltune's"):
        policy_from(spec)


def test_options_of_another_version_are_named():
    with pytest.raises(NotSupported, match="cleverness"):
        policy_from({**RandomSearch(trials=3).spec, "cleverness": 3})
    with pytest.raises(NotSupported, match="another version"):
        policy_from({name: v for name, v in GPUCB(initial=7).spec.items() if name != "initial"})


def test_what_is_infinite_stays_so():
    policy = POLICIES["bobos-faithful"]()
    assert policy_from(plain(policy.spec)).kappa == math.inf
