"""Domains: what one parameter may be. `Float`, `Int`, `Choice` and `Constant` only declare and validate.

`when={"kernel": "poly"}` makes a parameter conditional: it is active where every named parameter is
active and has the value, or one of a list or set of values. Where the named parameter is a number, a
comparison may stand for a value: `when={"layers": (">", 2)}`. A bound may be the name of another
parameter: `Int(5, "k2")`. Whether the names exist is checked by the space they are put in.
"""

import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from haltune.errors import InvalidSpace
from haltune.errors.foreign_words import KnowsArguments

from .options import alternatives, checked_options
from .values import as_float, pack, plain_value, unpack

_LARGEST_FLOAT = 1e300  # so that high - low is finite
LARGEST_INT = 2**53
_LARGEST_COUNT = 2**50  # (index + 1/2) / count must be told from its neighbours in a double
_LARGEST_LOG_INT = 2**40  # rounding exp(log v) must give v back


class _Declared(KnowsArguments):
    """Equality and text by what was declared, so that Choice([1]) is not Choice([True])."""

    def spec(self) -> dict[str, Any]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Declared) and _text(self) == _text(other)

    def __hash__(self) -> int:
        return hash(_text(self))

    def __repr__(self) -> str:
        shown = self.spec()
        shown.pop("type")
        options = {k: getattr(self, k) for k in ("log", "ordered", "when") if shown.pop(k, None)}
        words = [repr(getattr(self, k)) for k in shown] + [f"{k}={v!r}" for k, v in options.items()]
        return f"{type(self).__name__}({', '.join(words)})"


@dataclass(frozen=True, eq=False, repr=False)
class Float(_Declared):
    """A real number between two bounds, both included.

    Args:
        low: The least value, or the name of a parameter that gives it.
        high: The greatest value, or such a name.
        log: True spreads values evenly over magnitudes, as a learning rate wants it. Default: False.
        when: Makes it conditional: {"other parameter": value}, one of a list of values, or a comparison, (">", 2).
            Where the condition does not hold, configurations lack it. Default: None, it is always there.

    Raises:
        InvalidSpace: For bounds that are not finite numbers or names, cross, or with `log` are not positive.

    Example:
        >>> Float(1e-4, 1e-1, log=True)
        Float(0.0001, 0.1, log=True)
    """

    low: float | str
    high: float | str
    log: bool = field(default=False, kw_only=True)
    when: Mapping[str, Any] | None = field(default=None, kw_only=True)  # parent -> list of values

    def __post_init__(self) -> None:
        for end in ("low", "high"):
            object.__setattr__(self, end, _float_bound(getattr(self, end), end))
        object.__setattr__(self, "log", _flag(self.log, "log", self))
        object.__setattr__(self, "when", alternatives(self.when))
        check_range(self, self.low, self.high)

    def spec(self) -> dict[str, Any]:
        """JSON that `domain_from` reads back."""
        return {"type": "float", **_range_spec(self)}


@dataclass(frozen=True, eq=False, repr=False)
class Int(_Declared):
    """A whole number between two bounds, both included.

    Args:
        low: The least value, or the name of a parameter that gives it.
        high: The greatest value, or such a name.
        log: True makes each magnitude equally likely: v has the cell [v - 1/2, v + 1/2] of the axis from
            log(low - 1/2) to log(high + 1/2). False, the default: each number.
        when: As Float's. Default: None.

    Raises:
        InvalidSpace: For bounds that are not ints or names, cross, are under 1 with `log`, or are too far apart.

    Example:
        >>> Int(1, 8, when={"layers": (">", 2)})
        Int(1, 8, when={'layers': [('>', 2)]})
    """

    low: int | str
    high: int | str
    log: bool = field(default=False, kw_only=True)
    when: Mapping[str, Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for end in ("low", "high"):
            object.__setattr__(self, end, _int_bound(getattr(self, end), end))
        object.__setattr__(self, "log", _flag(self.log, "log", self))
        object.__setattr__(self, "when", alternatives(self.when))
        check_range(self, self.low, self.high)

    def spec(self) -> dict[str, Any]:
        """JSON that `domain_from` reads back."""
        return {"type": "int", **_range_spec(self)}


@dataclass(frozen=True, eq=False, repr=False)
class Choice(_Declared):
    """One of several plain values.

    Args:
        options: Texts, numbers, booleans or None, in an order that stays.
        ordered: True where neighbours in the list are alike: it has one coordinate then, not one an option.
            Default: False.
        when: As Float's. Default: None.

    Raises:
        InvalidSpace: For no options, a repeated one, one that JSON cannot keep, or more than 2,000 without `ordered`.

    Example:
        >>> Choice(["small", "medium", "large"], ordered=True).options
        ('small', 'medium', 'large')
    """

    options: tuple[Any, ...]
    ordered: bool = field(default=False, kw_only=True)
    when: Mapping[str, Any] | None = field(default=None, kw_only=True)

    def __init__(
        self, options: Iterable[Any], *, ordered: bool = False, when: Mapping[str, Any] | None = None
    ):
        ordered = _flag(ordered, "ordered", self)
        object.__setattr__(self, "options", checked_options(options, ordered))
        object.__setattr__(self, "ordered", ordered)
        object.__setattr__(self, "when", alternatives(when))

    def spec(self) -> dict[str, Any]:
        """JSON that `domain_from` reads back."""
        options = [pack(option) for option in self.options]
        return {"type": "choice", "options": options, "ordered": self.ordered, "when": _packed(self.when)}


@dataclass(frozen=True, eq=False, repr=False)
class Constant(_Declared):
    """A value that every configuration carries; it takes no coordinate of the cube.

    Args:
        value: A text, a number, a boolean or None.
        when: As Float's. Default: None.

    Raises:
        InvalidSpace: For a value that JSON cannot keep.

    Example:
        >>> Constant("adam").value
        'adam'
    """

    value: Any
    when: Mapping[str, Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain_value(self.value, "A constant"))
        object.__setattr__(self, "when", alternatives(self.when))

    def spec(self) -> dict[str, Any]:
        """JSON that `domain_from` reads back."""
        return {"type": "constant", "value": pack(self.value), "when": _packed(self.when)}


Domain = Float | Int | Choice | Constant


def domain_from(spec: Mapping[str, Any]) -> Domain:
    """The domain whose `spec()` this is."""
    when = {parent: unpack(values) for parent, values in spec["when"].items()}
    if spec["type"] == "choice":
        return Choice([unpack(o) for o in spec["options"]], ordered=bool(spec["ordered"]), when=when)
    if spec["type"] == "constant":
        return Constant(unpack(spec["value"]), when=when)
    kind: type[Float] | type[Int] = Float if spec["type"] == "float" else Int
    return kind(spec["low"], spec["high"], log=bool(spec["log"]), when=when)


def bounding(domain: Domain) -> tuple[str, ...]:
    """The parameters that are its bounds; none where these are numbers, or it has none."""
    bounds = (domain.low, domain.high) if isinstance(domain, Float | Int) else ()
    return tuple(bound for bound in bounds if isinstance(bound, str))


def check_range(domain: Float | Int, low: float | str, high: float | str) -> None:
    """Checks the two outermost bounds of a range as far as they are numbers. Raises InvalidSpace."""
    least = 1 if isinstance(domain, Int) else 0
    if domain.log and not isinstance(low, str) and (low < least or low == 0):
        fix = "at least 1" if least else "above 0"
        raise InvalidSpace(
            f"{domain!r} is logarithmic, so low must be {fix}; got {low}. Raise low, or drop log=True."
        )
    if isinstance(low, str) or isinstance(high, str):
        return
    if low > high:
        raise InvalidSpace(
            f"{domain!r} has low = {low} above high = {high}. Swap them; equal bounds are allowed."
        )
    if isinstance(domain, Int) and (high - low >= _LARGEST_COUNT or (domain.log and high > _LARGEST_LOG_INT)):
        limit = "high up to 2**40" if domain.log else "up to 2**50 values"
        raise InvalidSpace(
            f"{domain!r} is too wide to be exact: an Int like it may have {limit}. Use a Float."
        )


def _flag(value: Any, name: str, domain: Domain) -> bool:
    """True or False, as numpy and files write them, too. Raises InvalidSpace for what else: "no" would be true."""
    if isinstance(value, numbers.Integral | np.bool_) and value in (0, 1):
        return bool(value)
    kind = type(domain).__name__
    raise InvalidSpace(f"{kind}({name}={value!r}): {name} is True or False, without quotation marks.")


def _name_of(bound: str, end: str) -> str:
    """A bound that is a text names a parameter. Raises InvalidSpace for a number in quotation marks."""
    try:
        float(bound)
    except ValueError:
        return bound
    raise InvalidSpace(
        f"{end} = {bound!r} is a text: write the number, {bound.strip()}, without quotation marks."
    )


def _float_bound(bound: Any, end: str) -> float | str:
    if isinstance(bound, str):
        return _name_of(bound, end)
    if isinstance(bound, bool) or not isinstance(bound, numbers.Real):
        raise InvalidSpace(f"{end} of a Float must be a number or a parameter's name; got {bound!r}.")
    value = as_float(bound)
    if not math.isfinite(value) or abs(value) > _LARGEST_FLOAT:
        raise InvalidSpace(f"{end} of a Float must be finite and within 1e300 of zero; got {bound!r}.")
    return value + 0.0


def _int_bound(bound: Any, end: str) -> int | str:
    if isinstance(bound, str):
        return _name_of(bound, end)
    if isinstance(bound, bool) or not isinstance(bound, numbers.Integral):
        advice = (
            "Write it without a decimal point, or use Float." if isinstance(bound, float) else "Use an int."
        )
        raise InvalidSpace(
            f"{end} of an Int must be a whole number or a parameter's name; got {bound!r}. {advice}"
        )
    if abs(int(bound)) > LARGEST_INT:
        raise InvalidSpace(f"{end} of an Int must be within 2**53 of zero; got {bound}. Use a Float.")
    return int(bound)


def _range_spec(domain: Float | Int) -> dict[str, Any]:
    return {"low": domain.low, "high": domain.high, "log": domain.log, "when": _packed(domain.when)}


def _packed(when: Mapping[str, Any] | None) -> dict[str, Any]:
    return {parent: pack(values) for parent, values in (when or {}).items()}


def _text(declared: _Declared) -> str:
    return repr(sorted((k, repr(v)) for k, v in declared.spec().items()))
