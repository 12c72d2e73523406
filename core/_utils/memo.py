"""Cache by key, first in, first out; each process starts with an empty one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Memo(Generic[T]):
    """The last `size` values. It only saves work: the same key always gives the same value."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[Hashable, T] = {}

    def __reduce__(self) -> tuple[type[Memo[T]], tuple[int]]:
        """A copy is empty, because values may be large, or iterators that another process cannot have."""
        return type(self), (self._size,)

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        if key in self._kept:
            return self._kept[key]
        return self.put(key, make())

    def get(self, key: Hashable) -> T | None:
        return self._kept.get(key)

    def put(self, key: Hashable, value: T) -> T:
        """Store a value, in place of the oldest one if the cache is full; return it."""
        while len(self._kept) >= self._size and key not in self._kept:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = value
        return value

    def drop(self, stale: Callable[[Any], bool]) -> None:
        """Remove the values whose keys are stale."""
        for key in [key for key in self._kept if stale(key)]:
            del self._kept[key]

    def clear(self) -> None:
        self._kept.clear()
