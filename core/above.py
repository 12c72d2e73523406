"""Functions of packages above the core, found by entry points, so that the core does not import them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from haltune.errors import NotSupported

_ENTRY_POINTS = "haltune.above"  # the group in pyproject.toml


def above(name: str, asked: str, instead: str) -> Callable[..., Any]:
    """Return the function of an entry point. Raises NotSupported if haltune is not installed as a package.

    asked: the feature that needs it. instead: what to call in its place. Both are for the error.
    """
    if (function := _named(name)) is None:
        raise NotSupported(
            f"{asked} needs an installed haltune, but this one is not installed as a package. Call {instead}"
        )
    return function


@cache  # else each trial.load_model() reads the entry points of all installed packages
def _named(name: str) -> Callable[..., Any] | None:
    return next((found.load() for found in entry_points(group=_ENTRY_POINTS, name=name)), None)
