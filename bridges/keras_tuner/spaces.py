"""The hyperparameters of Keras Tuner as a space of haltune's, conditions included.

A function that builds says what it searches while it runs. Keras Tuner runs it until every conditional scope was
entered; here also with the largest value of every whole number and each option of every choice, for
`for i in range(hp.Int("layers", 1, 3)): hp.Int(f"units_{i}", ...)` names the last units with the most layers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from haltune.errors import InvalidSpace
from haltune.space import Space
from haltune.space.domains import Choice, Constant, Domain, Float, Int
from haltune.tuners.grids import MOST_VALUES

from .library import keras_tuner

_hps = keras_tuner.engine.hyperparameters
HyperParameters = keras_tuner.HyperParameters


def explored(build: Callable[[Any], object], known: Any) -> Any:
    """Hyperparameters with those that only some values of others bring about."""
    tried: set[str] = set()
    while True:
        extremes = [(hp.name, value) for hp in known.space for value in _extremes(hp)]
        left = [(name, value) for name, value in extremes if f"{name}={value!r}" not in tried]
        if not left:
            return known
        name, value = left[0]
        tried.add(f"{name}={value!r}")
        found = known.copy()
        found.values = hyperparameter_values({**known.values, name: value}, known)
        build(found)
        known.merge([hp for hp in found.space if not known._exists(hp.name, hp.conditions)])


def _extremes(hp: Any) -> list[Any]:
    if isinstance(hp, _hps.Int):
        return [hp.max_value]
    if isinstance(hp, _hps.Boolean):
        return [True, False]
    return list(hp.values) if isinstance(hp, _hps.Choice) else []


def space_of(known: Any) -> Space:
    """Raises InvalidSpace for what haltune has not, and where nothing is searched."""
    if not known.space:
        raise InvalidSpace(
            "build(hp) asks hp for nothing, so that there is nothing to search: hp.Float('lr', ...), or give "
            "hyperparameters="
        )
    found: dict[str, Domain] = {}
    for name, kinds in _by_name(known):
        found[name] = _declared(name, kinds)
    return Space(found)


def hyperparameter_values(config: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """A configuration as hyperparameters have it: those that are active, in its order, others by their default."""
    found = known.copy()
    found.values = {}
    for hp in found.space:
        if hp.name not in found.values and found.is_active(hp):
            found.values[hp.name] = config.get(hp.name, hp.default)
    return dict(found.values)


def _by_name(known: Any) -> Iterator[tuple[str, list[Any]]]:
    named: dict[str, list[Any]] = {}
    for hp in known.space:
        named.setdefault(hp.name, []).append(hp)
    yield from named.items()


def _declared(name: str, kinds: list[Any]) -> Domain:
    """The domain of a name, which several scopes may ask for alike."""
    domains = [_domain(name, hp) for hp in kinds]
    whens = [_when(name, hp) for hp in kinds]
    if any(str(_plainly(d)) != str(_plainly(domains[0])) for d in domains):
        raise InvalidSpace(
            f"{name!r} is asked for in several scopes with other ranges: give each a name of its own"
        )
    if not all(whens):
        return domains[0]  # one of them is always there
    parents = {tuple(when) for when in whens}
    if len(whens) > 1 and (len(parents) > 1 or len(whens[0]) > 1):
        several = ", ".join(sorted({parent for when in whens for parent in when}))
        raise InvalidSpace(
            f"{name!r} is asked for in scopes of several parameters, {several}: give each a name of its own"
        )
    merged = {parent: [v for when in whens for v in when[parent]] for parent in whens[0]}
    return _with(domains[0], {parent: list(dict.fromkeys(values)) for parent, values in merged.items()})


def _with(domain: Domain, when: dict[str, list[Any]]) -> Domain:
    return replace(domain, when=when)  # type: ignore[type-var, unused-ignore]


def _plainly(domain: Domain) -> dict[str, Any]:
    return {**domain.spec(), "when": None}


def _when(name: str, hp: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for condition in hp.conditions:
        values = [v for v in condition.values if v in found.get(condition.name, condition.values)]
        found[condition.name] = values
    return found


def _domain(name: str, hp: Any) -> Domain:
    try:
        if isinstance(hp, _hps.Fixed):
            return Constant(hp.value)
        if isinstance(hp, _hps.Boolean):
            return Choice([False, True])
        if isinstance(hp, _hps.Choice):
            return (
                Choice(hp.values, ordered=bool(hp.ordered)) if len(hp.values) > 1 else Constant(hp.values[0])
            )
        return _range(hp)
    except InvalidSpace as error:
        raise InvalidSpace(f"Keras Tuner's hyperparameter {name!r}: {error}") from error


def _range(hp: Any) -> Domain:
    whole = isinstance(hp, _hps.Int)
    if not whole and not isinstance(hp, _hps.Float):
        raise InvalidSpace(
            f"{type(hp).__name__} is not known here; Float, Int, Choice, Boolean and Fixed are"
        )
    if hp.step is not None and not (whole and hp.step == 1 and hp.sampling == "linear"):
        values = [int(v) if whole else float(f"{v:.12g}") for v in hp.values]
        if len(values) > MOST_VALUES:
            raise InvalidSpace(f"more than {MOST_VALUES} steps: leave step= out, and round in build(hp)")
        return Choice(values, ordered=True) if len(values) > 1 else Constant(values[0])
    if hp.sampling == "reverse_log":
        raise InvalidSpace("sampling='reverse_log' is not known here: ask for 1 - value by sampling='log'")
    kind = Int if whole else Float
    return kind(hp.min_value, hp.max_value, log=hp.sampling == "log")
