"""What a journal has lost: transactions after a frame that is not what was written.

SQLite reads a -wal file up to the first frame whose checksum disagrees, and says nothing of those behind it: so it
must, for a transaction that was cut off by a crash looks the same, but for its end. A frame that commits, whole and
of this journal (its salts are the header's), stands beyond the readable part only where something was lost.
A journal that was cut off looks like a shorter one: its length is in the -shm file alone, and to open that beside
SQLite and close it again would take away the locks that SQLite holds on it.

The checksum of n pairs of words (a, b) is linear modulo 2^32: s0 += a + s1, then s1 += b + s0, begun with that of the
frame before (sqlite.org/fileformat2.html, 4.2). So a frame's own share is one product with powers of [[1, 1], [1, 2]].
"""

from __future__ import annotations

import struct
import time
from functools import cache

import numpy as np
from numpy.typing import NDArray

_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence, salts, checksums
_MAGIC = {0x377F0682: "<u4", 0x377F0683: ">u4"}  # and in which order the checksum takes bytes
_FRAME = 24  # bytes before a page: its number, the size of the database after a commit or 0, salts, checksums
_LOOKS, _PAUSE = 3, 0.05  # another process may be writing: only what stays is damage
_MASK = 0xFFFFFFFF
_Words = NDArray[np.uint32]


def lost(path: str) -> int:
    """How many transactions of a -wal file no longer count, though they were committed."""
    found = 0
    for look in range(_LOOKS):
        try:
            with open(path, "rb") as file:  # no lock of SQLite's lies on this file
                data = file.read()
        except OSError:
            return 0
        if not (found := _lost(data)):
            return 0
        if look + 1 < _LOOKS:
            time.sleep(_PAUSE)
    return found


def _lost(data: bytes) -> int:
    if len(data) < _HEADER.size:
        return 0
    magic, _, page, _, *salts, first, second = _HEADER.unpack_from(data)
    order = _MAGIC.get(magic)
    if order is None or not 512 <= page <= 65536 or page % 8:
        return 0  # SQLite begins a new one
    size = _FRAME + page
    count = (len(data) - _HEADER.size) // size
    rows = np.frombuffer(data, np.uint8, count * size, _HEADER.size).reshape(count, size)
    heads = rows[:, :_FRAME].copy().view(">u4")  # page, size after a commit, salts, checksums
    ours = (heads[:, 2] == salts[0]) & (heads[:, 3] == salts[1])
    summed = np.concatenate([rows[:, :8], rows[:, _FRAME:]], axis=1).view(order).astype(np.uint32)
    step, shares = _shares(summed)
    state, good = (first, second), 0
    for (own0, own1), told in zip(shares.tolist(), heads[:, 4:].tolist(), strict=True):
        s0, s1 = state
        state = ((step[0] * s0 + step[1] * s1 + own0) & _MASK, (step[2] * s0 + step[3] * s1 + own1) & _MASK)
        if not ours[good] or list(state) != told:
            break
        good += 1
    return int(np.count_nonzero(ours[good:] & (heads[good:, 1] != 0)))


def _shares(words: _Words) -> tuple[tuple[int, int, int, int], _Words]:
    """What a frame does to the checksum before it: a matrix, the same for all, and what it adds."""
    step, weights = _powers(words.shape[1] // 2)
    return step, np.stack([(words * w).sum(axis=1, dtype=np.uint32) for w in weights], axis=1)


@cache
def _powers(pairs: int) -> tuple[tuple[int, int, int, int], _Words]:
    """The matrix of so many pairs, and the weight of each word of them in both sums."""
    a, b, c, d = 1, 0, 0, 1  # the power of [[1, 1], [1, 2]] that the pairs behind a word amount to
    weights = np.empty((2, 2 * pairs), np.uint32)
    for pair in reversed(range(pairs)):
        weights[:, 2 * pair] = (a + b) & _MASK, (c + d) & _MASK  # of the first word, which both sums take
        weights[:, 2 * pair + 1] = b, d
        a, b, c, d = (a + b) & _MASK, (a + 2 * b) & _MASK, (c + d) & _MASK, (c + 2 * d) & _MASK
    return (a, b, c, d), weights
