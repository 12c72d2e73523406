"""A parameter of a study file: { float = [low, high] }, { int = ... }, { choice = [...] }, or a constant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haltune.errors import InvalidInput
from haltune.space.domains import Choice, Constant, Domain, Float, Int

from .lines import meant

_OPTIONS = {
    "float": ("log", "when"), "int": ("log", "when"), "choice": ("ordered", "when"), "constant": ("when",),
}  # fmt: skip
_SAY = "{ float = [low, high] }, { int = [low, high] }, { choice = [...] } or { constant = ... }"
_SIGNS = (">", ">=", "<", "<=", "==", "!=")


def parameter(value: Any) -> Domain:
    """The domain that a value of the table [space] stands for. Raises InvalidInput, InvalidSpace."""
    if isinstance(value, list):
        raise InvalidInput(f"{value!r} may mean several things: say {_SAY}")
    if not isinstance(value, dict):
        return Constant(value)
    kinds = [kind for kind in _OPTIONS if kind in value]
    if len(kinds) != 1:
        raise InvalidInput(f"{value!r}: say what it is, once: {_SAY}")
    (kind,) = kinds
    options = _options(kind, {name: option for name, option in value.items() if name != kind})
    what = value[kind]
    if kind == "choice":
        if not isinstance(what, list):
            raise InvalidInput(f"choice = {what!r}: a list of the options")
        return Choice(what, **options)
    if kind == "constant":
        return Constant(what, **options)
    if not (isinstance(what, list) and len(what) == 2):
        raise InvalidInput(f"{kind} = {what!r}: two bounds, [low, high]")
    return (Float if kind == "float" else Int)(*what, **options)


def _options(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    allowed = _OPTIONS[kind]
    for name, option in options.items():
        if name not in allowed:
            raise InvalidInput(
                f"unknown option {name!r}{meant(name, allowed)}; {kind} has {', '.join(allowed)}"
            )
        if name != "when" and not isinstance(option, bool):
            raise InvalidInput(f"{name} = {option!r}: true or false")
    when = options.get("when")
    if isinstance(when, Mapping):
        options["when"] = {name: _condition(values) for name, values in when.items()}
    return options


def _condition(values: Any) -> Any:
    """[">", 2] is a comparison, [[">", 2], 1] and ["a", "b"] are alternatives."""
    if _compares(values):
        return tuple(values)
    return [tuple(v) if _compares(v) else v for v in values] if isinstance(values, list) else values


def _compares(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and value[0] in _SIGNS and not isinstance(value[1], str)
    )
