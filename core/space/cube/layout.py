"""The layout of a space: its parameters in an order in which each follows those it depends on.

A parameter depends on the parents of its condition and on those that its bounds name. Its hull is the
interval that its bounds can reach at all.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from haltune.errors import InvalidSpace

from ..domains import Choice, Constant, Domain, Float, Int, bounding, check_range
from .axes import Axis, Column, axis_of
from .conditions import Condition, condition_of

MISSING: Any = object()
Hull = tuple[float, float]  # outermost low and high; of a choice, its first and last index


@dataclass(frozen=True)
class Parameter:
    """One parameter, ready for work on columns."""

    name: str
    domain: Domain
    axis: Axis
    columns: slice  # its coordinates in the unit cube
    conditions: tuple[Condition, ...]
    hull: Hull
    low_of: str | None  # the parameter that is its lower bound
    high_of: str | None
    absent: Any  # what it is in a configuration that lacks it: a constant is itself. Else MISSING


@dataclass(frozen=True)
class Layout:
    """The parameters in order of evaluation."""

    ordered: tuple[Parameter, ...]
    names: tuple[str, ...]  # in the order they were given
    dim: int

    @property
    def coordinates(self) -> tuple[Parameter, ...]:
        """The parameters that have coordinates, in order of these."""
        return tuple(sorted((p for p in self.ordered if p.axis.width), key=lambda p: p.columns.start))


def layout_of(domains: Mapping[str, Domain]) -> Layout:
    """Checks how the parameters hang together and lays them out.

    Raises InvalidSpace for unknown or unfit references, circular dependence, impossible conditions and ranges
    that are always empty.
    """
    if not domains:
        raise InvalidSpace("A space needs a parameter; a constant will do, such as Space({'seed': 0}).")
    for name, domain in domains.items():
        _check_references(name, domain, domains)
    columns, dim = _columns(domains)
    hulls: dict[str, Hull] = {}
    ordered = [_parameter(name, domains, hulls, columns[name]) for name in _evaluation_order(domains)]
    return Layout(tuple(ordered), tuple(domains), dim)


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what there is, and what may have been meant."""
    known = list(names)
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(map(repr, known))}."


def constant_bound(domain: Domain) -> float | None:
    """The number of a numeric constant, which may serve as a bound; else None."""
    value = domain.value if isinstance(domain, Constant) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _references(domain: Domain) -> list[str]:
    return [*(domain.when or {}), *bounding(domain)]


def _check_references(name: str, domain: Domain, domains: Mapping[str, Domain]) -> None:
    for parent in domain.when or {}:
        if parent not in domains:
            raise InvalidSpace(
                f"{name!r} has a condition on {parent!r}, no parameter. {suggestion(parent, domains)}"
            )
    for bound in set(_references(domain)) - set(domain.when or {}):
        if bound not in domains:
            raise InvalidSpace(
                f"A bound of {name!r} names {bound!r}, no parameter. {suggestion(bound, domains)}"
            )
    for end in (domain.low, domain.high) if isinstance(domain, Float | Int) else ():
        if isinstance(end, str):
            _check_bound(name, domain, end, domains[end])


def _check_bound(name: str, domain: Domain, bound: str, other: Domain) -> None:
    number = constant_bound(other)
    whole = isinstance(other, Int) or isinstance(number, int)
    if isinstance(domain, Int) and not whole:
        raise InvalidSpace(f"{name!r} is an Int, so its bound {bound!r} must be an Int or a whole constant.")
    if not isinstance(other, Float | Int) and number is None:
        kind = "a choice" if isinstance(other, Choice) else "not a number"
        raise InvalidSpace(
            f"{name!r} has the bound {bound!r}, which is {kind}. A bound may name a Float or an Int."
        )


def _evaluation_order(domains: Mapping[str, Domain]) -> list[str]:
    order: dict[str, None] = {}
    for name in domains:
        _visit(name, domains, order, [])
    return list(order)


def _visit(name: str, domains: Mapping[str, Domain], order: dict[str, None], path: list[str]) -> None:
    if name in path:
        circle = " -> ".join([*path[path.index(name) :], name])
        raise InvalidSpace(
            f"The parameters depend on each other in a circle: {circle}. Drop one of these arrows."
        )
    if name in order:
        return
    for other in _references(domains[name]):
        _visit(other, domains, order, [*path, name])
    order[name] = None


def _columns(domains: Mapping[str, Domain]) -> tuple[dict[str, slice], int]:
    columns, start = {}, 0
    for name, domain in domains.items():
        one_hot = len(domain.options) if isinstance(domain, Choice) and not domain.ordered else 1
        width = 0 if isinstance(domain, Constant) else one_hot
        columns[name] = slice(start, start + width)
        start += width
    return columns, start


def _parameter(name: str, domains: Mapping[str, Domain], hulls: dict[str, Hull], columns: slice) -> Parameter:
    domain = domains[name]
    hulls[name] = _hull(name, domain, domains, hulls)
    when = domain.when or {}
    conditions = tuple(condition_of(name, p, values, domains[p], *hulls[p]) for p, values in when.items())
    low_of, high_of = (_free(end, domains) for end in _ends(domain))
    absent = domain.value if isinstance(domain, Constant) else MISSING
    axis = axis_of(domain, *hulls[name])
    return Parameter(name, domain, axis, columns, conditions, hulls[name], low_of, high_of, absent)


def _ends(domain: Domain) -> tuple[float | str, float | str]:
    if isinstance(domain, Float | Int):
        return domain.low, domain.high
    return 0, len(domain.options) - 1 if isinstance(domain, Choice) else 0


def _free(end: float | str, domains: Mapping[str, Domain]) -> str | None:
    return end if isinstance(end, str) and not isinstance(domains[end], Constant) else None


def _hull(name: str, domain: Domain, domains: Mapping[str, Domain], hulls: Mapping[str, Hull]) -> Hull:
    low, high = (_reach(end, side, domains, hulls) for side, end in enumerate(_ends(domain)))
    if isinstance(domain, Float | Int):
        try:
            check_range(domain, low, high)
        except InvalidSpace as error:
            raise InvalidSpace(
                f"The parameter {name!r} can never have a value or may be invalid: {error}"
            ) from None
    return (float(low), float(high)) if isinstance(domain, Float) else (low, high)


def _reach(end: float | str, side: int, domains: Mapping[str, Domain], hulls: Mapping[str, Hull]) -> float:
    if not isinstance(end, str):
        return end
    number = constant_bound(domains[end])
    return hulls[end][side] if number is None else number


def full(value: float, like: Domain, count: int) -> Column:
    """(count,) copies of a bound, of the type of the domain's columns."""
    return np.full(count, value, dtype=np.float64 if isinstance(like, Float) else np.int64)
