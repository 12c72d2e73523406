"""Build a policy from its recorded spec, and wrap a policy for a problem with several goals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from haltune.errors import NotSupported
from haltune.log.events import plain
from haltune.log.policy import Policy
from haltune.log.problem import Problem

_UNBOUNDED = {"inf": math.inf, "-inf": -math.inf}  # as JSON records them


def policy_from(spec: Mapping[str, Any]) -> Policy[Any]:
    """Build a policy of haltune from its spec.

    Raises NotSupported if the policy is not one of haltune's, or if it holds a user's function, of which a log records
    only the name. Raises it also if this version reads the spec of another version differently.
    """
    from haltune import policies

    name = str(spec.get("policy"))
    kind = getattr(policies, name, None) if name in policies.POLICY_NAMES else None
    if kind is None:
        raise NotSupported(
            f"The log names the policy {name!r}, which is not one of haltune's ({', '.join(policies.POLICY_NAMES)}). "
            "Build it in your program and pass it: Study(problem, policy, store)."
        )
    known = {f.name for f in fields(kind) if f.init}
    try:
        policy: Policy[Any] = kind(**_options(spec, known))
    except TypeError as error:
        raise NotSupported(
            f"The log's {name} has options that this version of haltune does not know: {error}. Open the log with the "
            "version that wrote it, or build the policy in your program."
        ) from error
    if plain(policy.spec) != plain(policy.completed(spec)):
        raise NotSupported(
            f"{name} cannot be rebuilt from its log: it holds a function, or another version of haltune wrote it. "
            "Build it in your program and pass it: Study(problem, policy, store)."
        )
    return policy


def suited(policy: Policy[Any], problem: Problem) -> Policy[Any]:
    """Return the policy, inside `SeveralGoals` if the problem has several goals or constraints."""
    if problem.plain:
        return policy
    from haltune.policies.several_goals import SeveralGoals

    return policy if isinstance(policy, SeveralGoals) else SeveralGoals(policy)


def _options(spec: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    options = {name: _value(value) for name, value in spec.items() if name not in ("policy", "stopping")}
    if "inner" in options:
        options["policy"] = options.pop("inner")
    if isinstance(stopping := spec.get("stopping"), Mapping):
        from haltune.policies.bobos.optimal_stopping import OptimalStopping  # it imports half of scipy

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
