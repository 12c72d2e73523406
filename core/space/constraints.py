"""Constraints: named predicates of a configuration, which a space can check but not solve."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from haltune.errors import InvalidSpace

Predicate = Callable[[dict[str, Any]], bool]
Constraints = Iterable[Predicate | tuple[str, Predicate]] | Mapping[str, Predicate]


@dataclass(frozen=True)
class NamedPredicate:
    """True for the configurations that are allowed; the name stands for it in JSON."""

    name: str
    predicate: Predicate

    def allows(self, config: dict[str, Any]) -> bool:
        """Whether a canonical configuration passes. Raises InvalidSpace if the predicate raises."""
        try:
            return bool(self.predicate(dict(config)))
        except Exception as error:
            raise InvalidSpace(
                f"The constraint {self.name!r} raised {type(error).__name__}({error}) for {config!r}. It "
                f"must answer for every configuration; an inactive parameter is absent: use config.get(name)."
            ) from error


def constraints_from(given: Constraints) -> tuple[NamedPredicate, ...]:
    """Functions, (name, function) pairs or a mapping. Raises InvalidSpace for repeated names."""
    items = given.items() if isinstance(given, Mapping) else given
    found = tuple(_constraint(item) for item in items)
    for index, constraint in enumerate(found):
        if constraint.name in [other.name for other in found[:index]]:
            raise InvalidSpace(
                f"Two constraints are called {constraint.name!r}, and JSON keeps constraints by name. "
                f"Name them: constraints=[('wide enough', function), ...]."
            )
    return found


def _constraint(item: Any) -> NamedPredicate:
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and callable(item[1]):
        return NamedPredicate(*item)
    if callable(item):
        return NamedPredicate(getattr(item, "__qualname__", type(item).__qualname__), item)
    raise InvalidSpace(
        f"A constraint is a function of a configuration, or a pair (name, function); got {item!r}."
    )
