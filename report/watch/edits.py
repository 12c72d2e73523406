"""How one item of a page became another: what a page that has the old one need be told.

An edit is one of
    {"is": value}                                     it was replaced
    {"in": {name: edit}, "out": [name]}               of an object: what changed within, and what is gone
    {"cut": [[start, count, [value]]], "at": [[i, edit]]}   of a list: parts that others took the place of, from the
        last to the first; then what changed within elements, by their index in the new list
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from typing import Any

Edit = dict[str, Any]
_COLUMN = 50  # elements of a list that is no row of a table
_FEW_ELEMENTS = 8  # of so many elements at most one changed in its place: told one by one


def edit(old: Any, new: Any) -> Edit | None:
    """What leads from `old` to `new`; None when they are the same."""
    if old is new or old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        return _of_objects(old, new)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return _of_lists(list(old), list(new))
    return {"is": new}


def _of_objects(old: dict[str, Any], new: dict[str, Any]) -> Edit | None:
    within = {}
    for name, value in new.items():
        found = edit(old[name], value) if name in old else {"is": value}
        if found is not None:
            within[name] = found
    gone = [name for name in old if name not in new]
    told: Edit = {"in": within} if within else {}
    return (told | {"out": gone} if gone else told) or None


def _of_lists(old: list[Any], new: list[Any]) -> Edit | None:
    start, end = _same(old, new)
    was, now = old[start : len(old) - end], new[start : len(new) - end]
    cuts, pairs = [], []
    for kind, i, j, k, n in _steps(was, now):
        if kind == "equal":
            pairs += [(start + k + step, was[i + step], now[k + step]) for step in range(j - i)]
        else:
            cuts.append([start + i, j - i, now[k:n]])
    inner = [[index, found] for index, a, b in pairs if (found := edit(a, b)) is not None]
    told: Edit = {"cut": cuts[::-1]} if cuts else {}
    return (told | {"at": inner} if inner else told) or None


def _same(old: list[Any], new: list[Any]) -> tuple[int, int]:
    """How many elements at the beginning, and how many at the end, are the same."""
    most, start, end = min(len(old), len(new)), 0, 0
    while start < most and old[start] == new[start]:
        start += 1
    while end < most - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return start, end


def _steps(old: list[Any], new: list[Any]) -> Sequence[tuple[str, int, int, int, int]]:
    """As difflib's opcodes: which elements are the same ones, though something in them may have changed."""
    if len(old) == len(new):
        changed = sum(a != b for a, b in zip(old, new, strict=True))
        if isinstance(old[0], dict) or changed * _FEW_ELEMENTS <= len(old) or _are_columns(old):
            return [("equal", 0, len(old), 0, len(new))]
    return SequenceMatcher(None, [_known(v) for v in old], [_known(v) for v in new]).get_opcodes()


def _are_columns(values: list[Any]) -> bool:
    """Whether they are long lists: each is the one that stood in its place, told by what changed within."""
    return all(isinstance(value, (list, tuple)) for value in values) and max(map(len, values)) >= _COLUMN


def _known(value: Any) -> Hashable:
    """By what an element is known again: a trace by its name."""
    if isinstance(value, dict):
        return tuple(repr(value.get(name)) for name in ("uid", "name", "type", "xaxis"))
    return repr(value) if isinstance(value, (list, tuple)) else value
