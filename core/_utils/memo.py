"""What was made before, by its key: first in, first out; a process of its own begins with none."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Memo(Generic[T]):
    """The `size` values made last. It only saves work: what is made anew from the same key is the same."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[Hashable, T] = {}

    def __reduce__(self) -> tuple[type[Memo[T]], tuple[int]]:
        """A copy is empty: what is kept may be large, or an iterator that no other process can have."""
        return type(self), (self._size,)

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made if it is not here."""
        if key in self._kept:
            return self._kept[key]
        return self.put(key, make())

    def get(self, key: Hashable) -> T | None:
        """The value of a key, or None."""
        return self._kept.get(key)

    def put(self, key: Hashable, value: T) -> T:
        """Keep a value, in the place of the oldest where there is no more room; returns it."""
        while len(self._kept) >= self._size and key not in self._kept:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = value
        return value

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
