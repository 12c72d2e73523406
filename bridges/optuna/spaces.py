"""The space that the trials of an Optuna study were drawn from: define-by-run says it nowhere, the trials show it.

A parameter that some trials lack has a condition: on a choice whose values tell whether it is there, or on a whole
number from, or up to, a value of which it is. Where neither is found it cannot be said, and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from haltune._utils.words import plural
from haltune.errors import InvalidSpace
from haltune.space import Space
from haltune.space.domains import Choice, Int, token

from .counterparts import (
    CategoricalDistribution,
    Counterpart,
    Distribution,
    FloatDistribution,
    IntDistribution,
    inward,
    outward,
)
from .curves import FrozenTrial


@dataclass(frozen=True)
class Translated:
    """A space, and its parameters in both libraries."""

    space: Space
    counterparts: dict[str, Counterpart]
    notes: tuple[str, ...] = ()  # what is not as it was

    @classmethod
    def of_space(cls, space: Space) -> Translated:
        """Of a space that is known."""
        return cls(space, outward(space))

    @classmethod
    def of_distributions(cls, distributions: dict[str, Distribution]) -> Translated:
        """Of parameters that are always there. Raises InvalidSpace for one that has no counterpart."""
        found = {name: inward(name, d) for name, d in distributions.items()}
        return cls(Space({name: c.domain for name, c in found.items()}), found)

    def inward(self, params: dict[str, Any]) -> dict[str, Any]:
        """A trial's parameters as a configuration. Raises InvalidSpace for one outside the space."""
        known = {n: self.counterparts[n].inward(v) for n, v in params.items() if n in self.counterparts}
        return self.space.canonical(known)

    def outward(self, config: dict[str, Any]) -> dict[str, Any]:
        """The inverse."""
        return {name: self.counterparts[name].outward(value) for name, value in config.items()}


def space_of(trials: Sequence[FrozenTrial]) -> Translated:
    """The space of trials that were suggested all their parameters.

    Raises InvalidSpace when there is none, and for distributions that haltune has not or that do not go together.
    """
    seen: dict[str, list[Distribution]] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            seen.setdefault(name, []).append(distribution)
    counterparts = {name: inward(name, reduce(_both, found)) for name, found in seen.items()}
    notes, domains = [], {}
    for name, counterpart in counterparts.items():
        lacking = len(trials) - len(seen[name])
        if lacking and (when := _condition(name, trials, counterparts)) is None:
            notes.append(
                f"{name!r} is left out: {plural(lacking, 'trial')} of {len(trials)} lack it, and no parameter of "
                "theirs says which; space= can say it"
            )
            continue
        domains[name] = replace(counterpart.domain, when=when) if lacking else counterpart.domain
        if lacking:
            notes.append(f"{name!r} has the condition that the trials show: when={when}")
        if len(set(map(str, seen[name]))) > 1:
            notes.append(f"{name!r} had several ranges; it has the widest: {domains[name]!r}")
    domains = _without_orphans(domains, notes)
    if not domains:
        raise InvalidSpace(
            "no trial of this Optuna study was suggested a parameter to the end, so that there is no space: give it "
            "as space=, or take the study when a trial is complete"
        )
    return Translated(Space(domains), {n: counterparts[n] for n in domains}, tuple(notes))


def _without_orphans(domains: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Without those whose condition is on what was left out."""
    while orphans := [n for n, d in domains.items() if set(d.when or {}) - domains.keys()]:
        notes += [f"{n!r} is left out, for what it depends on is" for n in orphans]
        domains = {n: d for n, d in domains.items() if n not in orphans}
    return domains


def _both(one: Distribution, other: Distribution) -> Distribution:
    """A distribution that holds the values of two. Raises InvalidSpace where there is none."""
    if one == other:
        return one
    # of two grids there is none, of both one range
    if isinstance(one, FloatDistribution) and isinstance(other, FloatDistribution) and one.log == other.log:
        return FloatDistribution(min(one.low, other.low), max(one.high, other.high), log=one.log)
    if isinstance(one, IntDistribution) and isinstance(other, IntDistribution) and one.log == other.log:
        return IntDistribution(min(one.low, other.low), max(one.high, other.high), log=one.log)
    alike = isinstance(one, CategoricalDistribution) and isinstance(other, CategoricalDistribution)
    advice = (
        "choices that change are none of one parameter" if alike else "one name for two kinds of parameter"
    )
    raise InvalidSpace(f"{one!r} in one trial and {other!r} in another: {advice}; rename one of them")


def _condition(
    name: str, trials: Sequence[FrozenTrial], counterparts: dict[str, Counterpart]
) -> dict[str, Any] | None:
    """Where a parameter that some trials lack is there; None when no other parameter says so."""
    kinds: tuple[type, ...] = (Choice, Int)
    for kind in kinds:
        for parent, counterpart in counterparts.items():
            if parent != name and isinstance(counterpart.domain, kind):
                found = _given(name, parent, counterpart, trials)
                if found is not None:
                    return {parent: found}
    return None


def _given(name: str, parent: str, counterpart: Counterpart, trials: Sequence[FrozenTrial]) -> Any:
    """The values of a parent with which a parameter is there; None when they do not tell."""
    with_it: list[Any] = []
    without: list[Any] = []
    for trial in trials:
        if parent in trial.params:
            value = counterpart.inward(trial.params[parent])
            (with_it if name in trial.params else without).append(value)
        elif name in trial.params:
            return None
    if not with_it or not without:
        return None
    if isinstance(counterpart.domain, Int):
        if max(without) < min(with_it):
            return (">=", min(with_it))
        return ("<=", max(with_it)) if max(with_it) < min(without) else None
    there, not_there = ({token(v) for v in values} for values in (with_it, without))
    if there & not_there:
        return None
    return [option for option in counterpart.options if token(option) in there]
