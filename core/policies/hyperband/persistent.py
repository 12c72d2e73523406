"""Sorted keys and a mapping of which a new version costs little: versions share all but one chunk.

A fold returns new states and leaves the old ones; copying ten thousand entries an event would make
a search cost the square of its length.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")
Key = tuple[float, int]  # (-score, trial): the best first, equal ones by their number
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class SortedKeys:
    """Keys in order, as chunks that versions share: an insertion copies one chunk, not ten thousand keys."""

    chunks: tuple[tuple[Key, ...], ...] = ()
    size: int = 0

    def add(self, key: Key) -> SortedKeys:
        """With one key more."""
        if not self.chunks:
            return SortedKeys(((key,),), 1)
        i = min(bisect_left(self.chunks, key, key=_last), len(self.chunks) - 1)
        chunk = list(self.chunks[i])
        insort(chunk, key)
        half = len(chunk) // 2
        parts = (tuple(chunk),) if len(chunk) <= _CHUNK else (tuple(chunk[:half]), tuple(chunk[half:]))
        return SortedKeys((*self.chunks[:i], *parts, *self.chunks[i + 1 :]), self.size + 1)

    def drop(self, key: Key) -> SortedKeys:
        """Without a key; the same when it is not there."""
        i = bisect_left(self.chunks, key, key=_last)
        if i == len(self.chunks) or key not in self.chunks[i]:
            return self
        rest = tuple(k for k in self.chunks[i] if k != key)
        return SortedKeys(
            (*self.chunks[:i], *((rest,) if rest else ()), *self.chunks[i + 1 :]), self.size - 1
        )

    def rank(self, key: Key) -> int:
        """How many come before a key."""
        i = bisect_left(self.chunks, key, key=_last)
        before = sum(map(len, self.chunks[:i]))
        return before if i == len(self.chunks) else before + bisect_left(self.chunks[i], key)

    def best(self, count: int) -> Iterator[Key]:
        """The first `count` keys."""
        return islice((key for chunk in self.chunks for key in chunk), count)


@dataclass(frozen=True, slots=True)
class Sparse(Generic[T]):
    """Trial numbers -> values. The trials of one bracket have numbers close to each other."""

    chunks: tuple[dict[int, T], ...] = ()  # never changed once they are here
    first: int = 0  # the number of the first chunk
    size: int = 0

    def get(self, id: int) -> T | None:
        """The value of a trial, or None."""
        i = id // _CHUNK - self.first
        return self.chunks[i].get(id) if 0 <= i < len(self.chunks) else None

    def put(self, id: int, value: T) -> Sparse[T]:
        """With another value for a trial."""
        number = id // _CHUNK
        first = min(self.first, number) if self.chunks else number
        before = self.first - first if self.chunks else 0
        chunks: tuple[dict[int, T], ...] = ({},) * before + self.chunks
        chunks += ({},) * (number - first + 1 - len(chunks))
        i = number - first
        size = self.size + (id not in chunks[i])
        return Sparse((*chunks[:i], {**chunks[i], id: value}, *chunks[i + 1 :]), first, size)

    def drop(self, id: int) -> Sparse[T]:
        """Without a trial; the same when it is not there."""
        if self.get(id) is None:
            return self
        i = id // _CHUNK - self.first
        rest = {t: value for t, value in self.chunks[i].items() if t != id}
        return Sparse((*self.chunks[:i], rest, *self.chunks[i + 1 :]), self.first, self.size - 1)

    def __iter__(self) -> Iterator[int]:
        return (id for chunk in self.chunks for id in chunk)


def _last(chunk: tuple[Key, ...]) -> Key:
    return chunk[-1]
