"""Where configurations lie in the unit cube, each encoded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from haltune._utils.arrays import Array

from .space import Space


class Points:
    """The points of the first configurations of a list that only grows."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known: Array = np.empty((0, space.dim))

    def upto(self, count: int, config: Callable[[int], Mapping[str, Any]]) -> Array:
        """(count, dim), read-only; `config` gives those that are not known yet."""
        if count > len(self._known):
            new = self._space.encode_many([config(i) for i in range(len(self._known), count)])
            self._known = np.vstack([self._known, new])
            self._known.flags.writeable = False
        return self._known[:count]
