"""A policy from what a log says of it, the inverse of `policy.spec`; and the one that a problem needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from haltune.errors import NotSupported
from haltune.log.events import plain
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.old_names import renamed

_UNBOUNDED = {"inf": math.inf, "-inf": -math.inf}  # as JSON holds them


def policy_from(spec: Mapping[str, Any]) -> Policy[Any]:
    """The policy of haltune whose spec this is.

    Raises NotSupported for a policy that haltune does not know, for one that holds a function of the user's
    (a log keeps its name alone), and for one that another version wrote and this one reads otherwise.
    """
    from haltune import policies

    spec = renamed(spec)
    name = str(spec.get("policy"))
    kind = getattr(policies, name, None) if name in policies.POLICY_NAMES else None
    if kind is None:
        raise NotSupported(
            f"a policy {name!r} is not one of haltune's ({', '.join(policies.POLICY_NAMES)}): build it in "
            "your program, Study(problem, policy, store)"
        )
    known = {f.name for f in fields(kind) if f.init}
    try:
        policy: Policy[Any] = kind(**_options(spec, known))
    except TypeError as error:
        raise NotSupported(f"the log's {name} has options that this version does not know: {error}") from error
    if plain(policy.spec) != plain(spec):
        raise NotSupported(
            f"{name} cannot be rebuilt from its log: it holds a function, or another version wrote it. Build it in "
            "your program, Study(problem, policy, store)"
        )
    return policy


def suited(policy: Policy[Any], problem: Problem) -> Policy[Any]:
    """The policy for a problem: with several goals or constraints, `SeveralGoals` around it."""
    if problem.plain:
        return policy
    from haltune.policies.several_goals import SeveralGoals

    return policy if isinstance(policy, SeveralGoals) else SeveralGoals(policy)


def _options(spec: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    options = {name: _value(value) for name, value in spec.items() if name not in ("policy", "stopping")}
    if "inner" in options:
        options["policy"] = options.pop("inner")
    if isinstance(stopping := spec.get("stopping"), Mapping):
        from haltune.policies.bobos.optimal_stopping import OptimalStopping  # with it half of scipy

        known_to_it = {f.name for f in fields(OptimalStopping)}
        solver = {name: _value(value) for name, value in stopping.items()}
        own = {name: solver.pop(name) for name in list(solver) if name not in known_to_it}
        options["stopping"] = OptimalStopping.from_json(solver)
        options |= {name: value for name, value in own.items() if name in known}
    return options


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return policy_from(value) if "policy" in value else value
    return _UNBOUNDED.get(value, value) if isinstance(value, str) else value
