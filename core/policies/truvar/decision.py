"""What policies over a belief about sites decide alike: how they begin and end; pending trials count as seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Mask
from haltune._utils.words import plural
from haltune.gp import Kernel
from haltune.log.decisions import Finish, Move, Start
from haltune.log.history import History
from haltune.policies.random import fresh

from .belief.belief import SiteBelief, SiteSurrogate
from .belief.field import field_of
from .belief.options import SitePolicy, estimated, first_of, tags_of
from .members import MemberSet, TruVaRState


@dataclass(frozen=True, eq=False)
class Situation:
    """What a decision goes by."""

    belief: SiteBelief
    spent: float
    members: Mask  # (n,), not empty


def situation(
    policy: SitePolicy, member_set: MemberSet, state: TruVaRState, history: History, rng: Generator
) -> Situation | Move:
    """What is known, or a move that needs no more: of the initial design, or the end when nothing is open.

    Nothing open after few observations says more of the kernel learnt from them: all sites stay members then.
    """
    belief, initial = member_set.surrogate.belief(history, state.finished), first_of(policy)
    if belief is None or len(history) < initial:
        return begin(history, member_set.surrogate, initial, rng)
    spent = member_set.spent(history, state, belief)
    members = member_set.members(history, state, belief, spent)
    if seen_enough(policy, belief):
        if not members.any():
            classified = (
                f"all {plural(len(belief.sites), 'configuration is', 'configurations are')} classified"
            )
            return Finish(member_set.vain(history, belief) or classified)
        if member_set.aims.sets and belief.field.variance[members].max() <= belief.exact:
            near = member_set.root(state.stage, belief, spent) * belief.exact**0.5
            lie = plural(int(members.sum()), "configuration lies", "configurations lie")
            return Finish(f"{lie} within {near:.2g} of the threshold")
    return Situation(belief, spent, members if members.any() else ~members)


def begin(history: History, surrogate: SiteSurrogate, count: int, rng: Generator) -> Start:
    """The next of `count` trials at scrambled Sobol configurations, moved to the nearest site not tried.

    Where levels have to be estimated, the first configuration is measured twice at each of them.
    """
    repeated = estimated(surrogate.levels)
    plan = [(0, level) for level in repeated for _ in range(2)]
    cheap = min(surrogate.levels, key=lambda level: level.cost)
    initial = count - max(len(plan) - 1, 0)  # configurations
    plan += [(k, cheap) for k in range(bool(repeated), initial)]
    number = len(history)
    k, level = plan[number] if number < len(plan) else (number, cheap)
    space = history.problem.space
    design = space.sample_up_to(max(initial, 1), history.rng("design"), design="sobol")
    config: Mapping[str, Any] = design[k] if k < len(design) else fresh(history, rng)
    sites = surrogate.sites_of(history.problem)
    again = number < len(repeated) * 2
    if sites is not None:
        apart = np.linalg.norm(sites.points - space.encode(config), axis=1)
        tried = sites.tried(history.tried)
        config = sites.configs[int(np.argmin(apart + np.where(tried & (not again), 1e3, 0.0)))]
    elif not again and space.key(config) in history.tried:
        config = fresh(history, rng)
    return Start(config, tags=tags_of(level), reason=f"first design: {len(plan)} spread over the space")


def with_pending(history: History, belief: SiteBelief, surrogate: SiteSurrogate) -> SiteBelief:
    """The belief as if the trials that run had come out at their mean: their neighbours are less uncertain."""
    pending = history.pending
    if not pending:
        return belief
    levels = [surrogate.level_of(history, trial.id) for trial in pending]
    if not belief.sites.fixed:
        points = np.array([history.points[trial.id] for trial in pending])
        noise = belief.noise[levels].mean(axis=1)
        posterior = belief.posterior.condition(points, belief.posterior.mean(points), noise)
        return replace(belief, posterior=posterior, field=field_of(posterior, belief.sites.points))
    believed = belief.field.copy()
    for trial, level in zip(pending, levels, strict=True):
        site = belief.sites.number.get(history.problem.space.key(trial.config))
        if site is not None:
            believed.observe(site, float(believed.mean[site]), float(belief.noise[level, site]))
    return replace(belief, field=believed)


def seen_enough(policy: SitePolicy, belief: SiteBelief) -> bool:
    """Whether so much was seen that nothing may be left: a kernel learnt from less is a guess that can be too sure."""
    coordinates = belief.sites.points.shape[1]
    return isinstance(policy.kernel, Kernel) or belief.seen >= min(5 * (coordinates + 1), len(belief.sites))
