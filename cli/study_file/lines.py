"""Where in a TOML file a key is, and errors that say so."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from haltune.errors import HaltuneError, InvalidInput

T = TypeVar("T")
TablePath = tuple[str, ...]  # from the outermost table inwards


class Lines:
    """The keys of one file; `data` is what it holds. Errors made here name the file and the line."""

    def __init__(self, path: Path, text: str, data: Mapping[str, Any]) -> None:
        self._path, self._lines, self._data = path, text.split("\n"), data

    def line(self, where: TablePath) -> int:
        """The line, from 1, on which a key begins, or the innermost table around it that is there.

        A key is complete with the first lines that are TOML by themselves and hold it; it begins where the
        last such lines without it end. So no text or list over several lines is mistaken for a key.
        """
        while where and not _holds(self._data, where):
            where = where[:-1]
        before = 0
        for count in range(1, len(self._lines) + 1) if where else ():
            try:
                found = tomllib.loads("\n".join(self._lines[:count]))
            except tomllib.TOMLDecodeError:
                continue
            if _holds(found, where):
                break
            before = count
        return before + 1

    def error(self, where: TablePath, text: str) -> InvalidInput:
        """The error to raise for a key."""
        return _Located(f"{self._path}, line {self.line(where)}: {'.'.join(where)}: {text}")

    def at(self, where: TablePath, make: Callable[[], T]) -> T:
        """What `make` returns; what it raises, as an error at this key."""
        try:
            return make()
        except _Located:
            raise
        except (HaltuneError, TypeError, ValueError) as error:
            raise self.error(where, str(error)) from error

    def known(
        self,
        where: TablePath,
        table: Mapping[str, Any],
        known: Iterable[str],
        elsewhere: Mapping[str, str] = {},
    ) -> None:
        """Raises InvalidInput for a key that is none of `known`, at its line. elsewhere: key -> the table it has."""
        known = list(known)
        for key in table:
            if key not in known:
                home = f"; it belongs under [{elsewhere[key]}]" if key in elsewhere else meant(key, known)
                raise self.error((*where, key), f"unknown{home}; known are {', '.join(known)}")


class _Located(InvalidInput):
    """Names its line already."""


def meant(word: Any, known: Iterable[str]) -> str:
    """A suggestion for a word that is misspelt."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(word).lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def _holds(data: Any, where: TablePath) -> bool:
    for key in where:
        if not isinstance(data, Mapping) or key not in data:
            return False
        data = data[key]
    return True
