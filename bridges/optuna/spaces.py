"""Parameters and trials of Optuna in the terms of haltune, and the inverse.

Optuna steps are ordered choices here, which list the values; a choice that Optuna cannot keep, a tuple or one of two
that Python takes for equal, is its text there. Define-by-run does not state the space of a study, so its trials show
it: a parameter that some trials lack has a condition on a choice whose values decide whether it is there, or on a whole
number from, or up to, a value. If neither is found the parameter is left out. Optuna steps count from 0, epochs from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from typing import Any

from haltune.display import plural
from haltune.errors import InvalidSpace
from haltune.log.events import Status
from haltune.space import Space
from haltune.space.cube import Parameter, layout_of
from haltune.space.domains import Choice, Constant, Domain, Float, Int, token
from haltune.tuners.domains import grid_values

from .library import optuna

FrozenTrial = optuna.trial.FrozenTrial
TrialState = optuna.trial.TrialState
ENDS = {TrialState.COMPLETE: Status.COMPLETED, TrialState.PRUNED: Status.STOPPED}
WHOLE = tuple(ENDS)  # suggested all that they have


def curve_of(trial: FrozenTrial, from_zero: bool | None = None) -> dict[int, float]:
    """Epoch -> value, in order. from_zero: whether steps count from 0; None: they do where there is a step 0."""
    steps = sorted(trial.intermediate_values)
    begins = (bool(steps) and steps[0] == 0) if from_zero is None else from_zero
    return {step + begins: trial.intermediate_values[step] for step in steps}


def alike(value: float, final: float | None) -> bool:
    """Whether a value of the curve is what the trial came to."""
    return final is not None and math.isclose(value, final, rel_tol=1e-6, abs_tol=1e-12)


Distribution = optuna.distributions.BaseDistribution
FloatDistribution = optuna.distributions.FloatDistribution
IntDistribution = optuna.distributions.IntDistribution
CategoricalDistribution = optuna.distributions.CategoricalDistribution


@dataclass(frozen=True)
class Counterpart:
    """A parameter: its domain and its distribution."""

    domain: Domain
    distribution: Distribution
    labels: tuple[Any, ...] = ()  # what Optuna calls the options of a choice, in their order

    @property
    def options(self) -> tuple[Any, ...]:
        """Those of a choice; a constant is the only one."""
        if isinstance(self.domain, Constant):
            return (self.domain.value,)
        return self.domain.options if isinstance(self.domain, Choice) else ()

    def outward(self, value: Any) -> Any:
        """A value of the domain as Optuna has it."""
        if self.labels:
            return self.labels[[token(o) for o in self.options].index(token(value))]
        return _on_step(self.distribution, value)

    def inward(self, value: Any) -> Any:
        """The inverse. Raises InvalidSpace for a value that is none of the domain."""
        if self.labels:
            return self.options[self._index(value)]
        if isinstance(self.domain, Int):
            return int(value)
        return float(value)

    def _index(self, value: Any) -> int:
        try:
            if isinstance(self.distribution, CategoricalDistribution):
                return int(self.distribution.to_internal_repr(value))
            return min(range(len(self.labels)), key=lambda i: abs(float(self.labels[i]) - float(value)))
        except (TypeError, ValueError) as error:
            raise InvalidSpace(f"{value!r} is none of {self.labels}") from error


def _on_step(distribution: Distribution, value: Any) -> Any:
    """The value on the grid of a range whose steps are too many to be listed."""
    step = getattr(distribution, "step", None)
    if step is None or (isinstance(distribution, IntDistribution) and step == 1):
        return value
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    found = distribution.low + step * round((value - distribution.low) / step)
    kind = int if isinstance(distribution, IntDistribution) else float
    return kind(min(max(found, distribution.low), distribution.high))


def outward(space: Space) -> dict[str, Counterpart]:
    """The parameters of a space. A bound that names a parameter is the outermost it can be."""
    ordered = {p.name: p for p in layout_of(space.parameters).ordered}
    return {name: _outward(ordered[name]) for name in space.names}


def _outward(parameter: Parameter) -> Counterpart:
    domain, (low, high) = parameter.domain, parameter.hull
    if isinstance(domain, Float):
        return Counterpart(domain, FloatDistribution(low, high, log=domain.log))
    if isinstance(domain, Int):
        return Counterpart(domain, IntDistribution(int(low), int(high), log=domain.log))
    options = domain.options if isinstance(domain, Choice) else (domain.value,)
    if isinstance(domain, Choice) and domain.ordered and (stepped := _stepped(options)) is not None:
        return Counterpart(domain, stepped, options)
    labels = _labels(options)
    return Counterpart(domain, CategoricalDistribution(labels), labels)


def _labels(options: Sequence[Any]) -> tuple[Any, ...]:
    """Options as Optuna keeps them apart."""
    found: list[Any] = []
    for i, option in enumerate(options):
        plain = option is None or isinstance(option, bool | int | float | str)
        label = option if plain and option not in [*options[:i], *options[i + 1 :]] else repr(option)
        while label in found or (label is not option and label in options):
            label += "'"
        found.append(label)
    return tuple(found)


def _stepped(options: tuple[Any, ...]) -> Distribution | None:
    """The range of even steps that an ordered choice lists; None where it lists none."""
    kinds = set(map(type, options))
    if len(options) < 2 or kinds not in ({int}, {float}) or not options[0] < options[1]:
        return None
    found: Distribution
    if kinds == {int}:
        found = IntDistribution(options[0], options[-1], step=options[1] - options[0])
    else:
        step = float(Decimal(str(options[1])) - Decimal(str(options[0])))
        if not step > 0.0 or abs((options[-1] - options[0]) / step - len(options) + 1) > 1e-6:
            return None
        found = FloatDistribution(options[0], options[-1], step=step)
    kept = all(found._contains(float(o)) for o in options)
    return found if kept and _listed(found) == options else None


def inward(name: str, distribution: Distribution) -> Counterpart:
    """What a distribution of Optuna's is here. Raises InvalidSpace for one that has no counterpart."""
    try:
        return _inward(distribution)
    except InvalidSpace as error:
        raise InvalidSpace(f"Optuna's parameter {name!r}, {distribution!r}: {error}") from error


def _inward(distribution: Distribution) -> Counterpart:
    if isinstance(distribution, CategoricalDistribution):
        return Counterpart(Choice(distribution.choices), distribution, distribution.choices)
    if (listed := _listed(distribution)) is not None:
        return Counterpart(Choice(listed, ordered=True), distribution, listed)
    if isinstance(distribution, FloatDistribution):
        return Counterpart(Float(distribution.low, distribution.high, log=distribution.log), distribution)
    if isinstance(distribution, IntDistribution):
        return Counterpart(Int(distribution.low, distribution.high, log=distribution.log), distribution)
    raise InvalidSpace(
        "a distribution that haltune does not know; it knows FloatDistribution, IntDistribution and "
        "CategoricalDistribution"
    )


def _listed(distribution: Distribution) -> tuple[Any, ...] | None:
    """The values of a range with steps; None without any, and where they are too many."""
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        return None
    if distribution.step is None or (isinstance(distribution, IntDistribution) and distribution.step == 1):
        return None
    return grid_values(distribution.low, distribution.high, distribution.step)


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
    while orphans := [n for n, d in domains.items() if set(d.when or {}) - domains.keys()]:
        notes += [f"{n!r} is left out, because the parameter that it depends on is" for n in orphans]
        domains = {n: d for n, d in domains.items() if n not in orphans}
    if not domains:
        raise InvalidSpace(
            "no trial of this Optuna study was suggested a parameter to the end, so that there is no space: give it "
            "as space=, or take the study when a trial is complete"
        )
    return Translated(Space(domains), {n: counterparts[n] for n in domains}, tuple(notes))


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
