"""How many random numbers a process has drawn between two states of a generator, as `randomness.capture` returns them.

Python, NumPy and torch on the CPU draw from a Mersenne twister: blocks of 624 words, each made from the one before. The
generators of a device and of Keras count what they draw from a seed.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

_WORDS = 624
_AT_ONCE = 1000  # blocks
_MOST = 3 * 10**7  # words, in less than half a second


def drawn(name: str, before: Any, now: Any, most: float = _MOST) -> float | None:
    """Return how many words a generator has drawn since an earlier state; None: another state was set in between.

    None also if a state, of a file, is of no such form.

    Of many more than `most` words it is infinity for torch, which names its seed, and None for others.

    name: its key in the random state.
    """
    with suppress(LookupError, TypeError, ValueError, OverflowError):
        one, other = _twister(name, before), _twister(name, now)
        if one is not None and other is not None:
            words = _words_between(one, other, most)
            return math.inf if words is None and name == "torch" and one.seed == other.seed else words
        counts, then = _counts(name, now), _counts(name, before)
        if [seed for seed, _ in counts] == [seed for seed, _ in then]:
            made = [count - earlier for (_, count), (_, earlier) in zip(counts, then, strict=True)]
            return sum(made) if made and min(made) >= 0 else None
    return None


@dataclass
class _Twister:
    block: Sequence[int]
    place: int  # in the block
    seed: int = 0


def _words_between(before: _Twister, now: _Twister, most: float) -> int | None:
    wanted, words = _from_its_start(now.block).random_raw(4), _from_its_start(before.block)
    for i in range(1 + int(min(most, _MOST) / _WORDS / _AT_ONCE)):
        found = words.random_raw(_WORDS * _AT_ONCE).reshape(-1, _WORDS)[:, :4]
        if len(same := np.flatnonzero((found == wanted).all(1))):
            count = (i * _AT_ONCE + int(same[0])) * _WORDS + now.place - before.place
            return count if count >= 0 else None
    return None


def _from_its_start(block: Sequence[int]) -> np.random.MT19937:
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": np.array(block, np.uint32), "pos": 0}}
    return twister


def _twister(name: str, state: Any) -> _Twister | None:
    if name in ("python", "tensorflow"):
        *block, place = state[1] if name == "python" else state[1][1]
        return _Twister(block, place)
    if name == "numpy" and state["bit_generator"] == "MT19937":
        return _Twister(state["state"]["key"], state["state"]["pos"])
    if name == "torch":
        # torch names no fields of its state: a seed, the words left in its block, the place, and the block. Without
        # them nothing shows whether a program restores the state.
        fields = np.frombuffer(base64.b64decode(state), np.uint64, 3 + _WORDS)
        return _Twister(fields[3:].tolist(), 1 + _WORDS - int(fields[1] & 0xFFFFFFFF), int(fields[0]))
    return None


def _counts(name: str, state: Any) -> list[tuple[int, int]]:
    """Return the seeds of generators of devices or of Keras, and how many numbers each has drawn; none of others."""
    if name == "keras":
        return [tuple(state)]
    if name in ("cuda", "xpu"):
        return [tuple(np.frombuffer(base64.b64decode(one), np.uint64, 2).tolist()) for one in state]
    return []
