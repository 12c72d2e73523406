"""Widening: one layout contains another, parameter by parameter, so that a search can go on in it.

A range may grow at both ends, a choice gain options, a constant become a choice or a range that has it, and a condition
gain values that its parent could not have before. A parameter may be new where no configuration so far has it active,
or as a constant. Kinds, scales, bounds that name parameters and the order of those that were there stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from haltune.errors import InvalidSpace

from ..domains import Choice, Constant, Domain, Float, Int
from ..values import pack
from .axes import FloatAxis
from .conditions import condition_of
from .layout import Layout, Parameter

KnownParameters = Mapping[str, Parameter]


def lacking(new: Layout, old: Layout) -> list[str]:
    """What keeps a layout from having every configuration of another one, as it is; nothing when it has."""
    before, now = _by_name(old), _by_name(new)
    said = [f"{name!r} is gone" for name in old.names if name not in now]
    for name, p in now.items():
        if name not in before and not isinstance(p.domain, Constant) and not _is_idle(p, now, before):
            said.append(
                f"{name!r} is new, and nobody says what it was so far: open the study once with that value as a "
                "constant in its place, then with this"
            )
        if name in before and not _holds(p, now, before):
            said.append(f"{name!r} was {before[name].domain!r} and is {p.domain!r}")
    if not said and [n for n in new.names if n in before] != list(old.names):
        said.append(f"the order was {', '.join(old.names)}")
    return said


def widened(new: Layout, old: Layout) -> Layout:
    """The layout with what configurations of another one, which it contains, need to keep their very values."""
    before = _by_name(old)
    kept = (_keeping(p, before[p.name]) if p.name in before else p for p in new.ordered)
    return replace(new, ordered=tuple(kept))


def _by_name(layout: Layout) -> dict[str, Parameter]:
    return {p.name: p for p in layout.ordered}


def _keeping(new: Parameter, old: Parameter) -> Parameter:
    axis = new.axis
    if isinstance(axis, FloatAxis) and isinstance(old.axis, FloatAxis):
        axis = replace(axis, before=(*old.axis.before, (old.axis.grid, *old.hull)))
    elif isinstance(axis, FloatAxis):  # it was a constant
        axis = replace(axis, before=((axis.grid, float(old.absent), float(old.absent)),))
    return replace(new, axis=axis, absent=old.absent)


def _holds(new: Parameter, now: KnownParameters, before: KnownParameters) -> bool:
    """Whether it is active in the same configurations of the older layout, and has their values."""
    old = before[new.name].domain
    return _contains(new.domain, old) and _keeps_condition(new.domain, old, now, before)


def _contains(new: Domain, old: Domain) -> bool:
    if isinstance(new, Choice):
        return _has_options(new, old)
    if isinstance(old, Constant):
        return _reaches(new, old.value)
    if not isinstance(new, Float | Int) or not isinstance(old, Float | Int):
        return False
    alike = type(new) is type(old) and new.log == old.log
    return alike and _beyond(new.low, old.low, -1) and _beyond(new.high, old.high, 1)


def _has_options(new: Choice, old: Domain) -> bool:
    """Whether it has those of another choice, in their order where that counts, or a constant."""
    if isinstance(old, Constant):
        return _text(old.value) in map(_text, new.options)
    if not isinstance(old, Choice) or new.ordered != old.ordered:
        return False
    before = [_text(option) for option in old.options]
    kept = [text for option in new.options if (text := _text(option)) in before]
    return kept == before if old.ordered else len(kept) == len(before)


def _reaches(new: Domain, value: Any) -> bool:
    """Whether a constant's value is in a range, or is the constant still."""
    if isinstance(new, Constant):
        return _text(new.value) == _text(value)
    number = isinstance(value, int if isinstance(new, Int) else int | float) and not isinstance(value, bool)
    return (
        number
        and isinstance(new, Float | Int)
        and _beyond(new.low, value, -1)
        and _beyond(new.high, value, 1)
    )


def _beyond(end: float | str, than: float | str, sign: int) -> bool:
    """Whether a bound lies no nearer; one that names a parameter stays."""
    if isinstance(end, str) or isinstance(than, str):
        return end == than
    return sign * end >= sign * than


def _keeps_condition(new: Domain, old: Domain, now: KnownParameters, before: KnownParameters) -> bool:
    """Whether its condition has the same parents, and more values of these where they could not have them before."""
    was, is_now = old.when or {}, new.when or {}
    if was.keys() != is_now.keys():
        return False
    for parent, values in is_now.items():
        texts = list(map(_text, was[parent]))
        more = [value for value in values if _text(value) not in texts]
        gone = set(texts) - set(map(_text, values))
        if gone or any(_takes(now[parent], before[parent], value) for value in more):
            return False
    return True


def _is_idle(new: Parameter, now: KnownParameters, before: KnownParameters) -> bool:
    """Whether a parameter that is new is active in no configuration of the older layout."""
    return any(
        not any(_takes(now[parent], before[parent], value) for value in values)
        if parent in before
        else _is_idle(now[parent], now, before)
        for parent, values in (new.domain.when or {}).items()
    )


def _takes(new: Parameter, old: Parameter, value: Any) -> bool:
    """Whether a condition on a parameter could hold in the older layout."""
    options = isinstance(new.domain, Choice | Constant)
    hull = (old.domain.value,) * 2 if isinstance(old.domain, Constant) else old.hull
    try:
        condition_of("", old.name, [value], old.domain if options else new.domain, *hull)
    except InvalidSpace:
        return False
    return True


def _text(value: Any) -> str:
    """A value as a log has it: 1 is not 1.0 there, and a tuple no list."""
    return repr(pack(value))
