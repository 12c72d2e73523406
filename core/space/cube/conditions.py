"""Conditions: where a parameter is active, compiled to tests of whole columns."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from haltune._utils.arrays import Mask
from haltune.errors import InvalidSpace

from ..domains import Choice, Constant, Domain, Int
from ..values import token
from .axes import Column

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt,
    "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """Active where the parent's column passes one of the tests."""

    parent: str
    tests: tuple[tuple[str, float], ...]  # (comparison, operand), alternatives

    def holds(self, column: Column) -> Mask:
        """(n,) to (n,)."""
        passed = np.zeros(len(column), dtype=np.bool_)
        for sign, operand in self.tests:
            passed |= _COMPARE[sign](column, operand)
        return passed


def condition_of(
    name: str, parent: str, values: list[Any], domain: Domain, low: float, high: float
) -> Condition:
    """`name` is active where `parent`, of this domain and outermost bounds, has one of the values.

    Raises InvalidSpace for a value that the parent never takes.
    """
    if isinstance(domain, Choice | Constant):
        options = domain.options if isinstance(domain, Choice) else (domain.value,)
        return Condition(parent, tuple(("==", _option(name, parent, value, options)) for value in values))
    return Condition(parent, tuple(_comparison(name, parent, value, domain, low, high) for value in values))


def _option(name: str, parent: str, value: Any, options: tuple[Any, ...]) -> int:
    tokens = list(map(token, options))
    if token(value) in tokens:
        return tokens.index(token(value))
    raise InvalidSpace(
        f"{name!r} is active when {parent!r} is {value!r}, which {parent!r} never is: "
        f"its values are {', '.join(map(repr, options))}."
    )


def _comparison(
    name: str, parent: str, value: Any, domain: Domain, low: float, high: float
) -> tuple[str, float]:
    sign, operand = value if isinstance(value, tuple) and len(value) == 2 else ("==", value)
    known = isinstance(sign, str) and sign in _COMPARE
    if not known or isinstance(operand, bool) or not isinstance(operand, int | float):
        raise InvalidSpace(
            f"{name!r} depends on the number {parent!r} by {value!r}. Give a number, or a comparison such as "
            f'(">", 6); the signs are {" ".join(_COMPARE)}.'
        )
    if not _possible(sign, operand, low, high, isinstance(domain, Int)):
        said = operand if sign == "==" else f"{sign} {operand}"
        raise InvalidSpace(
            f"{name!r} is active when {parent!r} is {said}, which {parent!r} never is: "
            f"it lies in [{low}, {high}]."
        )
    return sign, operand


def _possible(sign: str, operand: float, low: float, high: float, whole: bool) -> bool:
    if sign == "==":
        return low <= operand <= high and not (whole and operand != int(operand))
    if sign == "!=":
        return not low == high == operand
    return bool(_COMPARE[sign](high if sign[0] == ">" else low, operand))
