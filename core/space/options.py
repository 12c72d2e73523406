"""What a domain lists: the options of a Choice, and the values under which a parameter is active."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from haltune.errors import InvalidSpace

from .values import plain_value, token

_MOST = 2000  # options that are not ordered: their coordinates take memory by the square


def checked_options(options: Any, ordered: bool) -> tuple[Any, ...]:
    """The options of a Choice. Raises InvalidSpace, as Choice says."""
    if isinstance(options, str | bytes | Mapping | set | frozenset) or not isinstance(options, Iterable):
        raise InvalidSpace(f"Choice needs a list of options, in an order that stays; got {options!r}.")
    found = tuple(plain_value(option, "A Choice") for option in options)
    if not found:
        raise InvalidSpace("Choice got no options. Give it at least one.")
    if len(found) > _MOST and not ordered:
        raise InvalidSpace(
            f"Choice got {len(found)} options, and each is a coordinate of its own: {_MOST} are the most. Numbers are "
            "Int(low, high) or Float(low, high); options of which neighbours are alike Choice([...], ordered=True)."
        )
    seen = set()
    for option in found:
        if (mark := token(option)) in seen:
            raise InvalidSpace(
                f"Choice lists {option!r} twice (1 and 1.0 are one option). Remove one of them."
            )
        seen.add(mark)
    return found


def alternatives(when: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """The values of each parent under which a parameter is active. Raises InvalidSpace for none."""
    if when is not None and not isinstance(when, Mapping):
        raise InvalidSpace(f'when must map names to values, like when={{"kernel": "poly"}}; got {when!r}.')
    found: dict[str, list[Any]] = {}
    for parent, values in sorted((when or {}).items(), key=lambda item: str(item[0])):
        several = isinstance(values, list | set | frozenset)
        where = f"The condition on {parent!r}"
        listed = [plain_value(value, where) for value in (values if several else [values])]
        if not listed:
            raise InvalidSpace(
                f"{where} allows no value, so the parameter would never be active. Give it one."
            )
        found[parent] = sorted(listed, key=token) if isinstance(values, set | frozenset) else listed
    return found
