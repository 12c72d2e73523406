"""Whose turn it is to decide what to train next: one worker's at a time, so that no decision is made in vain.

Two workers that propose from the same log come to moves of which one is refused, and is made again. A claim in
the store's lease table lets the second wait instead. It is a courtesy, not a lock: whatever happens to it, the
compare-and-append of the move decides. Reports never look at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from haltune._utils.process import surely_gone
from haltune.store.base import CLAIM, Conflict, Lease

from .replica import Replica

T = TypeVar("T")
WORTH = 0.05  # seconds; where the last decision took less, claiming would cost more than deciding twice
TERM = 60.0  # seconds a claim holds, or five times the last decision
_LOOKS = (0.02, 0.25)  # seconds between looks while another worker decides: from, to


class Elsewhere(Exception):
    """Another worker decides at this moment: look again soon. Never reaches a user."""


def in_turn(work: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """What `work` returns, tried again while it is another worker's turn."""
    pause, longest = _LOOKS
    while True:
        try:
            return work()
        except Elsewhere:
            sleep(pause)
            pause = min(2.0 * pause, longest)


@contextmanager
def claimed(replica: Replica) -> Iterator[None]:
    """Decide inside the block; the move that is appended there ends the claim, or else the end of the block.

    Raises Elsewhere while another worker decides, Conflict when one has moved since the last sync.
    """
    if replica.history.deciding < WORTH:
        yield
        return
    mine = _claim(replica)
    moves, moved = replica.history.moves, False
    try:
        replica.sync()  # a move that was made before the claim
        if replica.history.moves != moves:
            raise Conflict
        yield
        moved = replica.history.moves != moves
    finally:
        if not moved:  # whatever came in between: others must not wait for who decides nothing
            replica.store.claim(replica.name, None, mine)


def _claim(replica: Replica) -> Lease:
    store, name = replica.store, replica.name
    found, now = store.claimed(name), replica.now()
    if found is not None and _holds(found, now, replica.holder()):
        raise Elsewhere
    term = max(TERM, 5.0 * replica.history.deciding)
    mine = Lease(CLAIM, 0, replica.holder(), now + term, now)
    if not store.claim(name, mine, found):
        raise Elsewhere
    return mine


def _holds(found: Lease, now: float, me: str) -> bool:
    return found.holder != me and found.expires >= now and not surely_gone(found.holder)
