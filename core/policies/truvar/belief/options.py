"""The options that policies over a belief about sites share: what they may be, what they make, and their JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from haltune._utils.checks import MOST_POINTS, check_whole, is_number, within
from haltune.errors import InvalidInput, NotSupported
from haltune.gp import Kernel
from haltune.log.policy import Policy
from haltune.log.problem import Problem

from .belief import Matters, SiteSurrogate
from .levels import ONLY, Level, levels_from
from .sites import MOST_SITES, is_grid


class SitePolicy(Policy[Any]):
    """The options of a policy over a belief about sites, with what they are where it has them not."""

    kernel: Any
    mean: float
    noise: Any
    refit_every: int
    initial: int | None
    grid: Any
    representers: int
    threshold: float | None = None
    implicit: float | None = None
    levels: Sequence[Level | Mapping[str, Any]] = ()
    cost: Callable[..., float] | None = None
    cost_model: str | None = None


def check_shared(name: str, policy: SitePolicy) -> None:
    """Raise InvalidInput for options that all these policies have, where they are not what they can be."""
    check_whole(name, 1, refit_every=policy.refit_every)
    check_whole(name, 8, MOST_POINTS, representers=policy.representers)
    if policy.initial is not None:
        check_whole(name, 0, MOST_POINTS, initial=policy.initial)
    noise, levels = policy.noise, _levels(policy)
    if isinstance(noise, Mapping) or isinstance(policy.grid, Mapping):
        raise NotSupported(
            f"{name} has a noise function or a list of configurations, of which a log keeps a name or a digest alone: "
            "build the policy with it in your program"
        )
    if policy.representers > MOST_SITES:
        raise InvalidInput(f"{name}(representers={policy.representers!r}): at most {MOST_SITES:,}")
    if not (policy.grid is None or is_grid(policy.grid)):
        raise InvalidInput(
            f"{name}(grid={policy.grid!r}): how many values a continuous parameter takes, or a list of configurations"
        )
    if not is_number(policy.mean):
        raise InvalidInput(f"{name}(mean={policy.mean!r}): a finite value of the metric")
    if not (noise is None or callable(noise) or noise == 0 or within(noise, 0.0)):
        raise InvalidInput(f"{name}(noise={noise!r}): a variance, 0 or more, or None to learn it")
    if isinstance(policy.kernel, Kernel):
        unknown = any(level.noise is None for level in levels) if levels else noise is None
        if unknown:
            raise InvalidInput(
                f"{name}: a given kernel comes with known noise: give noise=, or that of all levels"
            )


_NARROWING: dict[str, tuple[Callable[[Any], bool], str]] = {
    "threshold": (lambda v: v is None or is_number(v), "a finite value of the metric"),
    "implicit": (lambda v: v is None or within(v, 0.0, 1.0), "a share of the best, between 0 and 1"),
    "candidates": (
        lambda v: v in ("all", "members") or (isinstance(v, int) and v >= 1),
        "'all', 'members', or how many of the highest upper bounds",
    ),
    "a": (lambda v: v is None or within(v, 0.0), "a positive number"),
    "beta": (lambda v: v in ("practical", "theorem"), "'practical' or 'theorem'"),
    "delta": (lambda v: within(v, 0.0, 1.0), "a probability between 0 and 1"),
    "eta": (
        lambda v: v == 0.0 or within(v, 0.0),
        "prior deviations, 0 or more; 0 is pure variance reduction",
    ),
    "r": (lambda v: within(v, 0.0, 1.0), "between 0 and 1"),
    "slack": (lambda v: v == 0.0 or within(v, 0.0), "0 or more"),
    "floor": (lambda v: within(v, 0.0), "prior deviations, more than 0"),
    "accuracy": (lambda v: v is None or within(v, 0.0), "a positive number, or None"),
}


def check_narrowing(name: str, policy: SitePolicy) -> None:
    """Raise InvalidInput for options of TruVaR alone that are outside what is allowed."""
    for option, (fits, allowed) in _NARROWING.items():
        value = getattr(policy, option)
        if not fits(value):
            raise InvalidInput(f"{name}({option}={value!r}): {allowed}")


def surrogate_of(policy: SitePolicy, matters: Matters | None = None) -> SiteSurrogate:
    """The belief that a policy's options describe."""
    only = ONLY if policy.noise is None else replace(ONLY, noise=0.0)
    return SiteSurrogate(
        policy.kernel, policy.mean, policy.noise, _levels(policy) or (only,), policy.refit_every,
        max(1, first_of(policy)), policy.grid, policy.representers,
        policy.threshold is not None or policy.implicit is not None, policy.threshold, matters,
    )  # fmt: skip


def first_of(policy: SitePolicy) -> int:
    """Trials before the first decision: the initial configurations, and repeats of the first."""
    given = 1 if isinstance(policy.kernel, Kernel) else 3
    initial = given if policy.initial is None else int(policy.initial)
    repeats = 2 * len(estimated(_levels(policy)))
    return initial + max(repeats - 1, 0)


def estimated(levels: tuple[Level, ...]) -> list[Level]:
    """The levels whose noise repeats have to tell; a single one's is learnt with the kernel."""
    return [level for level in levels if level.noise is None] if len(levels) > 1 else []


def check_threshold(name: str, threshold: float | None, problem: Problem) -> None:
    """Raise InvalidInput for a threshold that no value of the metric can be on both sides of."""
    goal = problem.goal
    if (
        threshold is not None
        and goal.bounds is not None
        and not goal.bounds[0] <= threshold <= goal.bounds[1]
    ):
        low, high = goal.bounds
        raise InvalidInput(f"{name}(threshold={threshold:g}): {goal.metric} goes from {low:g} to {high:g}")


def _levels(policy: SitePolicy) -> tuple[Level, ...]:
    return levels_from(policy.levels)


def tags_of(level: Level) -> dict[str, Any]:
    """What tells a training its level."""
    return {} if level.name == ONLY.name else {"level": level.name}


def kernel_from(name: str, kernel: Any) -> Any:
    """A kernel, its kind, or either from JSON. Raises InvalidInput for anything else."""
    if isinstance(kernel, Mapping) and kernel.keys() >= {"kind", "variance", "lengthscales"}:
        return Kernel(kernel["kind"], float(kernel["variance"]), np.array(kernel["lengthscales"]))
    if isinstance(kernel, Kernel) or (isinstance(kernel, str) and kernel in ("se", "matern32", "matern52")):
        return kernel
    raise InvalidInput(
        f"{name}(kernel={kernel!r}): 'se', 'matern32' or 'matern52' to learn one, or a haltune.gp.Kernel"
    )


def kernel_to_json(kernel: Any) -> Any:
    """The inverse of `kernel_from`."""
    if not isinstance(kernel, Kernel):
        return kernel
    return {"kind": kernel.kind, "variance": kernel.variance, "lengthscales": kernel.lengthscales.tolist()}
