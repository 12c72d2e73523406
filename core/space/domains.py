"""Domains: the values that a parameter may have. `Float`, `Int`, `Choice` and `Constant` only declare and validate.

`when={"kernel": "poly"}` makes a parameter conditional. It is active if every named parameter is active and has the
value, or one value of a list or set. If the named parameter is a number, you can use a comparison instead of the value:
`when={"layers": (">", 2)}`. A bound may be the name of another parameter: `Int(5, "k2")`. The space checks that the
names exist.

A choice, a constant and a condition contain plain values: None, bool, int, finite float, str, and lists and tuples of
these. `True` and `1` are different values. `1` and `1.0` are the same value, because JSON does not distinguish them.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from haltune.errors import InvalidSpace
from haltune.hints import KnowsArguments

LARGEST_INT = 2**53
_LARGEST_FLOAT = 1e300  # keeps high - low finite
_LARGEST_COUNT = 2**50  # keeps (index + 1/2) / count distinct from its neighbours in a double
_LARGEST_LOG_INT = 2**40  # rounding exp(log v) must return v
_MOST_OPTIONS = 2000  # of an unordered choice: the memory of its coordinates grows with the square


def plain_value(value: Any, where: str) -> Any:
    """Return the value as plain Python, copied. `where` starts the error. Raises InvalidSpace for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value) + 0.0  # -0.0 becomes 0.0: they are equal but print differently
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list | tuple):
        items = (plain_value(item, where) for item in value)
        return list(items) if isinstance(value, list) else tuple(items)
    raise InvalidSpace(
        f"{where} contains {value!r}, which JSON cannot store. Use None, bool, finite numbers, str, and "
        f"lists or tuples of these. For an object, use a name and look it up in your own code."
    )


def token(value: Any) -> str:
    """Return one JSON text per plain value. It is equal for `1` and `1.0`, and for a tuple and a list."""

    def levelled(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        return list(map(levelled, value)) if isinstance(value, list | tuple) else value

    return json.dumps(levelled(value), separators=(",", ":"), allow_nan=False)


def as_float(number: Any) -> float:
    """Return the number as a double. An int that is too large becomes infinity, which callers reject."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def pack(value: Any) -> Any:
    """Return JSON that distinguishes tuples from lists."""
    if isinstance(value, tuple):
        return {"tuple": [pack(item) for item in value]}
    return [pack(item) for item in value] if isinstance(value, list) else value


def unpack(data: Any) -> Any:
    if isinstance(data, dict):
        return tuple(unpack(item) for item in data["tuple"])
    return [unpack(item) for item in data] if isinstance(data, list) else data


class _Declared(KnowsArguments):
    """Domain that compares and prints what was declared, so that Choice([1]) differs from Choice([True])."""

    when: Mapping[str, Any] | None

    def spec(self) -> dict[str, Any]:
        """Return JSON that `domain_from` can read."""
        raise NotImplementedError

    def _with_when(self, **spec: Any) -> dict[str, Any]:
        return {**spec, "when": {parent: pack(values) for parent, values in (self.when or {}).items()}}

    def _text(self) -> str:
        return repr(sorted((k, repr(v)) for k, v in self.spec().items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Declared) and self._text() == other._text()

    def __hash__(self) -> int:
        return hash(self._text())

    def __repr__(self) -> str:
        shown = self.spec()
        shown.pop("type")
        options = {k: getattr(self, k) for k in ("log", "ordered", "when") if shown.pop(k, None)}
        words = [repr(getattr(self, k)) for k in shown] + [f"{k}={v!r}" for k, v in options.items()]
        return f"{type(self).__name__}({', '.join(words)})"


@dataclass(frozen=True, eq=False, repr=False)
class _Range(_Declared):
    low: Any
    high: Any
    log: bool = field(default=False, kw_only=True)
    when: Mapping[str, Any] | None = field(default=None, kw_only=True)  # parent -> list of values

    def __post_init__(self) -> None:
        for end in ("low", "high"):
            object.__setattr__(self, end, _bound(type(self).__name__, getattr(self, end), end))
        object.__setattr__(self, "log", _flag(self.log, "log", self))
        object.__setattr__(self, "when", _alternatives(self.when))
        self.check(self.low, self.high)

    def spec(self) -> dict[str, Any]:
        return self._with_when(type=type(self).__name__.lower(), low=self.low, high=self.high, log=self.log)

    def check(self, low: float | str, high: float | str) -> None:
        """Check the two outermost bounds, if they are numbers. Raises InvalidSpace."""
        whole = isinstance(self, Int)
        if self.log and not isinstance(low, str) and (low < whole or low == 0):
            least = "at least 1" if whole else "above 0"
            raise InvalidSpace(
                f"{self!r} is logarithmic, so low must be {least}; got {low}. Raise low, or drop log=True."
            )
        if isinstance(low, str) or isinstance(high, str):
            return
        if low > high:
            raise InvalidSpace(f"{self!r} has low = {low} above high = {high}. Swap them. Equal bounds are allowed.")
        if whole and (high - low >= _LARGEST_COUNT or (self.log and high > _LARGEST_LOG_INT)):
            limit = "high up to 2**40" if self.log else "up to 2**50 values"
            raise InvalidSpace(f"{self!r} is too wide to be exact. The limit is {limit}. Use a Float.")


@dataclass(frozen=True, eq=False, repr=False)
class Float(_Range):
    """A real number between two bounds, both included.

    Args:
        low: The lowest value, or the name of a parameter that gives it.
        high: The highest value, or the name of a parameter that gives it.
        log: True spreads values evenly over magnitudes, which suits a learning rate. Default: False.
        when: Makes the parameter conditional: {"other parameter": value}. Instead of one value, give a list of values
            or a comparison, such as (">", 2). If the condition does not hold, configurations do not contain the
            parameter. Default: None, always active.

    Raises:
        InvalidSpace: If a bound is not a finite number or a name, low is above high, or `log` is set and low is not
            positive.

    Example:
        >>> Float(1e-4, 1e-1, log=True)
        Float(0.0001, 0.1, log=True)
    """

    low: float | str
    high: float | str


@dataclass(frozen=True, eq=False, repr=False)
class Int(_Range):
    """A whole number between two bounds, both included.

    Args:
        low: The lowest value, or the name of a parameter that gives it.
        high: The highest value, or the name of a parameter that gives it.
        log: True makes each magnitude equally likely: v has the cell [v - 1/2, v + 1/2] on the axis from
            log(low - 1/2) to log(high + 1/2). Default: False, each number is equally likely.
        when: As for `Float`. Default: None.

    Raises:
        InvalidSpace: If a bound is not an int or a name, low is above high, `log` is set and low is below 1, or the
            bounds are too far apart.

    Example:
        >>> Int(1, 8, when={"layers": (">", 2)})
        Int(1, 8, when={'layers': [('>', 2)]})
    """

    low: int | str
    high: int | str


@dataclass(frozen=True, eq=False, repr=False)
class Choice(_Declared):
    """One of several plain values.

    Args:
        options: Texts, numbers, booleans or None, in a fixed order.
        ordered: True if neighbours in the list are similar. The choice then has one coordinate instead of one per
            option. Default: False.
        when: As for `Float`. Default: None.

    Raises:
        InvalidSpace: If there is no option, an option repeats, JSON cannot store an option, or there are more than
            2,000 options without `ordered`.

    Example:
        >>> Choice(["small", "medium", "large"], ordered=True).options
        ('small', 'medium', 'large')
    """

    options: tuple[Any, ...]
    ordered: bool = field(default=False, kw_only=True)
    when: Mapping[str, Any] | None = field(default=None, kw_only=True)

    def __init__(self, options: Iterable[Any], *, ordered: bool = False, when: Mapping[str, Any] | None = None):
        ordered = _flag(ordered, "ordered", self)
        object.__setattr__(self, "options", _checked_options(options, ordered))
        object.__setattr__(self, "ordered", ordered)
        object.__setattr__(self, "when", _alternatives(when))

    def spec(self) -> dict[str, Any]:
        return self._with_when(type="choice", options=[pack(o) for o in self.options], ordered=self.ordered)


@dataclass(frozen=True, eq=False, repr=False)
class Constant(_Declared):
    """A value that every configuration contains. It has no coordinate in the unit cube.

    Args:
        value: A text, a number, a boolean or None.
        when: As for `Float`. Default: None.

    Raises:
        InvalidSpace: If JSON cannot store the value.

    Example:
        >>> Constant("adam").value
        'adam'
    """

    value: Any
    when: Mapping[str, Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain_value(self.value, "A constant"))
        object.__setattr__(self, "when", _alternatives(self.when))

    def spec(self) -> dict[str, Any]:
        return self._with_when(type="constant", value=pack(self.value))


Domain = Float | Int | Choice | Constant
Parameters = Mapping[str, Any] | Iterable[tuple[str, Any]]


def domain_from(spec: Mapping[str, Any]) -> Domain:
    when = {parent: unpack(values) for parent, values in spec.get("when", {}).items()}
    if spec["type"] == "choice":
        return Choice([unpack(o) for o in spec["options"]], ordered=bool(spec.get("ordered")), when=when)
    if spec["type"] == "constant":
        return Constant(unpack(spec["value"]), when=when)
    kind: type[Float] | type[Int] = Float if spec["type"] == "float" else Int
    return kind(spec["low"], spec["high"], log=bool(spec.get("log")), when=when)


def bounding(domain: Domain) -> tuple[str, ...]:
    bounds = (domain.low, domain.high) if isinstance(domain, Float | Int) else ()
    return tuple(bound for bound in bounds if isinstance(bound, str))


def options_of(domain: Domain) -> tuple[Any, ...]:
    """Return the options of a choice, the value of a constant; none of a range."""
    if isinstance(domain, Choice):
        return domain.options
    return (domain.value,) if isinstance(domain, Constant) else ()


def domains_from(parameters: Parameters) -> dict[str, Domain]:
    """Return the domains by name. A bare value becomes a constant. Raises InvalidSpace."""
    given: Any = parameters.items() if isinstance(parameters, Mapping) else parameters
    pairs = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise InvalidSpace(
            f"{parameters!r} is not a space. Write a dict of its parameters, such as "
            "{'lr': Float(1e-4, 1e-1, log=True), 'optimizer': Choice(['adam', 'sgd'])}."
        )
    found: dict[str, Domain] = {}
    for name, value in pairs:
        if not isinstance(name, str) or not name or name != name.strip():
            raise InvalidSpace(f"A parameter's name must be text without spaces around it; got {name!r}.")
        if name in found:
            raise InvalidSpace(f"The parameter {name!r} is given twice. Rename or remove one.")
        found[name] = _as_domain(name, value)
    return found


def _as_domain(name: str, value: Any) -> Domain:
    if isinstance(value, Float | Int | Choice | Constant):
        return value
    try:
        constant = Constant(value)
    except InvalidSpace:
        meant = "a text for one value, which your code turns into the object, because a log stores only plain values"
    else:
        if not isinstance(value, list | tuple):
            return constant
        meant = f"Constant({value!r}) for the value itself"
    if isinstance(value, Mapping) and any(isinstance(v, _Declared) for v in value.values()):
        raise InvalidSpace(
            f"The parameter {name!r} contains parameters, but spaces cannot nest. Give each its own name, such as "
            f"{f'{name}_{next(iter(value))}'!r}."
        )
    raise InvalidSpace(
        f"The parameter {name!r} is {value!r}, which can mean several things. Use Choice([...]) for one of several "
        f"values, Float(low, high) or Int(low, high) for a range, or {meant}."
    )


def _checked_options(options: Any, ordered: bool) -> tuple[Any, ...]:
    if isinstance(options, str | bytes | Mapping | set | frozenset) or not isinstance(options, Iterable):
        raise InvalidSpace(f"Choice needs a list of options, because their order must not change; got {options!r}.")
    found = tuple(plain_value(option, "A Choice") for option in options)
    if not found:
        raise InvalidSpace("Choice has no options. Give at least one.")
    if len(found) > _MOST_OPTIONS and not ordered:
        raise InvalidSpace(
            f"Choice has {len(found)} options, each with its own coordinate; the limit is {_MOST_OPTIONS}. Use "
            "Int(low, high) or Float(low, high) for numbers, or Choice([...], ordered=True) if neighbours are similar."
        )
    seen = set()
    for option in found:
        if (mark := token(option)) in seen:
            raise InvalidSpace(f"Choice contains {option!r} twice (1 and 1.0 are the same option). Remove one of them.")
        seen.add(mark)
    return found


def _alternatives(when: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """Return the values of each parent for which a parameter is active."""
    if when is not None and not isinstance(when, Mapping):
        raise InvalidSpace(f'when must map names to values, like when={{"kernel": "poly"}}; got {when!r}.')
    found: dict[str, list[Any]] = {}
    for parent, values in sorted((when or {}).items(), key=lambda item: str(item[0])):
        several = isinstance(values, list | set | frozenset)
        where = f"The condition on {parent!r}"
        listed = [plain_value(value, where) for value in (values if several else [values])]
        if not listed:
            raise InvalidSpace(
                f"{where} allows no value, so the parameter would never be active. Give at least one value."
            )
        found[parent] = sorted(listed, key=token) if isinstance(values, set | frozenset) else listed
    return found


def _flag(value: Any, name: str, domain: Domain | _Range) -> bool:
    if isinstance(value, numbers.Integral | np.bool_) and value in (0, 1):
        return bool(value)
    kind = type(domain).__name__
    raise InvalidSpace(f"{kind}({name}={value!r}) is not valid. Use True or False, without quotation marks.")


def _bound(kind: str, bound: Any, end: str) -> float | str:
    whole = kind == "Int"
    if isinstance(bound, str):
        try:
            float(bound)
        except ValueError:
            return bound
        raise InvalidSpace(f"{end} = {bound!r} is text. Write the number {bound.strip()} without quotation marks.")
    kinds: Any = numbers.Integral if whole else numbers.Real
    if isinstance(bound, bool) or not isinstance(bound, kinds):
        advice = " Write it without a decimal point, or use Float." if isinstance(bound, float) else ""
        needed = "a whole number" if whole else "a number"
        raise InvalidSpace(f"{end} of {kind} must be {needed} or a parameter's name; got {bound!r}.{advice}")
    if whole and abs(int(bound)) > LARGEST_INT:
        raise InvalidSpace(f"{end} of Int must be within 2**53 of zero; got {bound}. Use a Float.")
    value = int(bound) if whole else as_float(bound) + 0.0
    if not math.isfinite(value) or abs(value) > _LARGEST_FLOAT:
        raise InvalidSpace(f"{end} of Float must be finite and within 1e300 of zero; got {bound!r}.")
    return value
