"""Interface of a store, which contains the event logs and the leases. A store appends, reads and compares.

An append succeeds only if no conflicting event was appended after the position at which it was decided.
`haltune.store.open` opens a store.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from haltune._utils.process import surely_gone
from haltune._utils.signals import undisturbed
from haltune.errors import InvalidInput, StoreAway
from haltune.log.events import Event, check_new_event
from haltune.log.history import History

T = TypeVar("T")
CLAIM = -1  # in place of a trial's number: the lease of the worker that decides what to train next
LAST = 2**31 - 1  # the largest position; an event that was decided there conflicts with none


class Conflict(Exception):
    """A conflicting event was appended: read it and decide again. Users never see this exception."""


def settled(work: Callable[[], T]) -> T:
    """Return the result of `work`, which is called again after each Conflict. Signals are handled between calls."""
    while True:
        try:
            return work()
        except Conflict:
            with undisturbed.heard:  # Ctrl-C ends the loop
                pass


class _Patience(threading.local):
    ends = math.inf  # by time.monotonic


_patience = _Patience()


def seconds_left() -> float:
    """Return the seconds until the surrounding `retry` gives up; infinity without one."""
    return max(0.0, _patience.ends - time.monotonic())


class Tries:
    """Tries of a step on a server that may not answer: `while True: with tries: return step()`.

    A StoreAway is caught, and the step is tried again after a pause, for up to `seconds`. Then it is raised.

    tell: called with a message at the first pause.
    """

    def __init__(
        self,
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._seconds, self._sleep, self._tell = seconds, sleep, tell
        self._pause, self._waited = 0.1, 0.0

    def __enter__(self) -> None:
        self._started, self._around = time.monotonic(), _patience.ends
        _patience.ends = min(self._around, self._started + self._seconds - self._waited)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        _patience.ends = self._around
        if not isinstance(error, StoreAway):
            return False
        first, self._waited = not self._waited, self._waited + time.monotonic() - self._started
        if self._waited >= self._seconds:
            return False
        if first:
            self._tell(f"waiting up to {self._seconds:g} s for the study's server: {error}")
        pause = min(self._pause, self._seconds - self._waited)
        self._sleep(pause)
        self._waited += pause
        self._pause = min(2.0 * pause, 5.0)
        return True


def retry(
    work: Callable[[], T],
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    tell: Callable[[str], None] = lambda text: None,
) -> T:
    """Return the result of `work`, tried as in Tries. Raises StoreAway if the server is still unavailable."""
    tries = Tries(seconds, sleep, tell)
    while True:
        with tries:
            return work()


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's right to train a trial, until `expires` unless it is renewed."""

    trial: int
    attempt: int
    holder: str  # see haltune._utils.process
    expires: float  # seconds since the epoch, store's clock
    renewed: float  # seconds since the epoch

    @property
    def fits(self) -> bool:
        """True if its fields have the types and ranges of a lease, so that it can be read again."""
        typed = isinstance(self.holder, str) and isinstance(self.trial, int) and isinstance(self.attempt, int)
        timed = isinstance(self.expires, (int, float)) and isinstance(self.renewed, (int, float))
        return typed and timed and math.isfinite(self.expires) and math.isfinite(self.renewed)


@dataclass(frozen=True, slots=True)
class Release:
    """Give back the lease of a trial."""

    trial: int


def holder_is_gone(store: Store, holder: str) -> bool:
    """Return whether the holder of a lease of a store was a process that surely no longer exists.

    All processes that open a SQLite file are on one machine, so those of an earlier boot of it are gone, too.
    """
    return surely_gone(holder, bool(getattr(store, "one_machine", False)))


def check_new(events: Sequence[Event], lease: Lease | Release | None = None) -> None:
    """Raise InvalidInput for an event or a lease that could not be read again. Every store asks before it writes."""
    for event in events:
        check_new_event(event)
    if isinstance(lease, Lease) and not lease.fits:
        raise InvalidInput(f"a lease is not recorded, because its times are invalid: {lease!r:.200}. Check the clock")


def check_next(history: History, events: Iterable[Event]) -> None:
    """Raise InvalidInput for an event that a reader could not fold after a history.

    A worker asks before each append, and so does a copy of another library's study. Events that are appended together
    do not depend on each other.
    """
    for event in events:
        if why := history.objection(event):
            raise InvalidInput(f"Nothing is recorded: {why}.")


@runtime_checkable
class Store(Protocol):
    """An append-only log of events for each study, and a small mutable table of leases.

    Nothing that could not be read again is written: `append`, `create`, `replace`, `renew` and `claim` call
    `haltune.store.base.check_new` before, which raises InvalidInput. A store whose processes are all on one machine has
    `one_machine = True`. Then workers of an earlier boot are lost at once; otherwise when their leases expire.
    """

    url: str  # to show to people, without a password
    folder: Path | None  # for checkpoints; it may not exist. None: in the working directory

    @property
    def outages(self) -> int:
        """Number of connections closed by a server: events that were read before may be lost."""
        ...

    def address(self) -> str:
        """Return the URL, with its password, for another process. Raises NotSupported if there is none."""
        ...

    def now(self) -> float:
        """Return the store's time, in seconds since the epoch."""
        ...

    def names(self) -> list[str]:
        """Return the names of the studies, oldest first."""
        ...

    def create(self, name: str, first: Event) -> bool:
        """Create a study whose log starts with `first`; return False if the name exists."""
        ...

    def replace(self, name: str, first: Event, seen: int) -> bool:
        """Create a study again, without its `seen` events and its leases; return False if it has more events."""
        ...

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """Return the events from position `start` up to `stop` or the end. Raises StoreError for an unknown name."""
        ...

    def append(
        self, name: str, events: Sequence[Event], *, seen: int, about: int | None, lease: Lease | Release | None = None
    ) -> int:
        """Append all events or none, and change the lease with them; return the position of the first.

        events: empty, to change the lease alone. about: what conflicts with them: a trial's number, an event of this
        trial (`trial_of`); None, a move (`MOVES`), and the claim ends; -1, nothing. Raises Conflict if such an event
        stands at position `seen` or later, which may be far beyond the end (`LAST`); StoreError if the store fails.
        """
        ...

    def leases(self, name: str) -> list[Lease]:
        """Return all leases of a study's trials, also expired ones."""
        ...

    def claimed(self, name: str) -> Lease | None:
        """Return the lease of the worker that decides what to train next, or None."""
        ...

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        """Set or end the claim if it still equals `instead_of`; return whether that worked."""
        ...

    def renew(self, name: str, lease: Lease) -> None:
        """Renew a lease without an event (a heartbeat), if the same holder still has it for the same attempt."""
        ...
