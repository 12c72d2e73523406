"""A policy is rebuilt from its spec in the log, or an error gives the reason."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import POLICIES, problem, search, small_study

import haltune
from haltune import Choice, Finish, Int, Space, Study
from haltune.errors import NotSupported, StudyMismatch
from haltune.log.events import plain
from haltune.log.policy import defaults
from haltune.policies import GPUCB, Halting, RandomSearch
from haltune.policies.from_spec import policy_from
from haltune.store.memory import MemoryStore


def holds_a_function(spec):
    """Functions are recorded as {"function": name}."""
    parts = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    return (isinstance(spec, dict) and "function" in spec) or any(map(holds_a_function, parts))


def test_every_policy_has_a_form_that_the_laws_hold():
    made = {type(make()).__name__ for make in POLICIES.values()}
    lacking = set(haltune.policies.POLICY_NAMES) - made
    assert lacking == set(), "each needs a quick form in POLICIES of tests/support/worlds.py"


def test_type_checkers_see_every_name():
    tree = ast.parse(Path(haltune.policies.__file__).read_text(encoding="utf-8"))
    (typed,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {(one.module, alias.asname) for one in typed.body for alias in one.names}
    parts = haltune.policies._MODULES | haltune.policies._PARTS
    named = {(module, name) for module, names in parts.items() for name in names}
    assert seen == named, (
        "core/policies/__init__.py: import the names of _MODULES under TYPE_CHECKING, each `as` itself"
    )


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


@pytest.mark.parametrize("name", POLICIES)
def test_a_log_from_before_an_option_opens_with_its_default(name):
    """Each option that has its default is left out, one at a time, as a version that did not have it recorded it."""
    policy = POLICIES[name]()
    spec = json.loads(json.dumps(plain(policy.spec), allow_nan=False))
    for option, value in defaults(policy).items():
        if option not in spec or option == "learn_from" or getattr(policy, option) != value:
            continue
        recorded = {name: v for name, v in spec.items() if name != option}
        assert plain(policy.completed(recorded)) == spec
        if not holds_a_function(spec):
            assert policy_from(recorded) == policy


def test_a_study_from_before_options_of_its_parts_continues_and_refuses_other_values():
    """An option of the policy inside, of the stopping rule, and of both in one."""
    policy = Halting(GPUCB(), growth=1.0)
    posed, store = problem(), MemoryStore()
    created = next(iter(Study(posed, policy, verbose=0, budget="1 trial").events()))
    spec = plain(created.policy)
    for part, option in (("inner", "refit_every"), ("stopping", "reference_curves"), ("stopping", "growth")):
        del spec[part][option]
    assert store.create("study", replace(created, policy=spec))
    Study(posed, policy, store, budget="1 trial", verbose=0).ask().report(0.5)  # without a report it is made again
    assert policy_from(spec) == policy
    for other in (Halting(GPUCB(refit_every=7)), Halting(GPUCB(), growth=1.5)):
        with pytest.raises(StudyMismatch, match=r"(refit_every|growth): recorded"):
            Study(posed, other, store, budget="1 trial", verbose=0)


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
