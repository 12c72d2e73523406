"""One parameter in both libraries: haltune's domain, Optuna's distribution, and a value of the one as of the other.

Optuna's steps are ordered choices here, which list the values; a choice that Optuna cannot keep, a tuple or one of two
that Python takes for equal, is its text there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from haltune.errors import InvalidSpace
from haltune.space import Space
from haltune.space.cube import Parameter, layout_of
from haltune.space.domains import Choice, Constant, Domain, Float, Int, token
from haltune.tuners.grids import grid_values

from .library import optuna

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
