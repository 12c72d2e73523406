"""What the core asks for that stands above it: found among the entry points, so that nothing below names it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from haltune.errors import NotSupported

_DOORS = "haltune.above"  # the group of entry points, in pyproject.toml


def above(door: str, asked: str, instead: str) -> Callable[..., Any]:
    """The function behind a door, imported now. Raises NotSupported where haltune is not installed as a package.

    asked: what needs it, and instead: what to call in its place, in words.
    """
    for found in entry_points(group=_DOORS, name=door):
        function: Callable[..., Any] = found.load()
        return function
    raise NotSupported(
        f"{asked}: this haltune is not installed as a package, so that what it needs is not found; call {instead}"
    )
