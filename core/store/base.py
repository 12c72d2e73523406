"""Where the log and the leases live. A store appends, reads and compares; it decides nothing.

`open_store` takes a URL ("sqlite:///search.db"), a path, or None for memory. Appends are
compare-and-append: they succeed only if nothing that matters to them was appended since
the position they were decided at.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from haltune._utils.forks import heirs, is_free
from haltune._utils.scratch import Scratch
from haltune.errors import InvalidInput, NotSupported, StoreError
from haltune.log.events import MOVES, Event

CLAIM = -1  # in the place of a trial's number: the lease of whoever decides what to train next


class Conflict(Exception):
    """Something that matters was appended since; read it and decide again. Never reaches a user."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A running trial is held by one worker until `expires`, unless renewed."""

    trial: int
    attempt: int
    holder: str  # see haltune._utils.process
    expires: float  # seconds since the epoch, store's clock
    renewed: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Release:
    """Give back the lease of a trial."""

    trial: int


class Store(Protocol):
    """An append-only log of events for each study, and a small mutable table of leases."""

    url: str

    def now(self) -> float:
        """The store's clock, seconds since the epoch."""
        ...

    def names(self) -> list[str]:
        """The studies in this store, oldest first."""
        ...

    def create(self, name: str, first: Event) -> bool:
        """Make a study whose log begins with `first`; False when the name exists."""
        ...

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """The events from position `start` up to `stop`, or the end. Raises StoreError for an unknown name."""
        ...

    def append(
        self,
        name: str,
        events: Sequence[Event],
        *,
        seen: int,
        about: int | None,
        lease: Lease | Release | None = None,
    ) -> int:
        """Append all events or none, and change the lease with them; the position of the first.

        about: a trial's number, or None for a move. Raises Conflict when an event about that
        trial, or a move, was appended at `seen` or later; StoreError when the store fails.
        A move ends the claim to make one.
        """
        ...

    def leases(self, name: str) -> list[Lease]:
        """All leases of a study's trials, expired ones included."""
        ...

    def claimed(self, name: str) -> Lease | None:
        """Who decides what to train next, if anybody claims to."""
        ...

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        """Set the claim, or end it, unless it is not `instead_of` any more; True when it was set."""
        ...

    def renew(self, name: str, lease: Lease) -> None:
        """Set a lease anew without an event (a heartbeat); nothing happens when another attempt holds it."""
        ...


def matters(event: Event, about: int | None) -> bool:
    """True when `event` conflicts with an append about a trial, or with a move."""
    return isinstance(event, MOVES) if about is None else getattr(event, "trial", None) == about


class MemoryStore:
    """A log in this process alone: quick, and gone with it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.url = "memory"
        self._clock = clock
        self._logs: dict[str, list[Event]] = {}
        self._leases: dict[str, dict[int, Lease]] = {}
        self._lock = threading.RLock()
        heirs.add(self)
        self._pid = os.getpid()
        self._scratch = Scratch()
        self.scratch = self._scratch.path  # made by who needs it

    def now(self) -> float:
        """The injected clock."""
        return self._clock()

    def names(self) -> list[str]:
        """See Store."""
        return list(self._logs)

    def create(self, name: str, first: Event) -> bool:
        """See Store."""
        self._refuse_after_fork()
        with self._lock:
            if name in self._logs:
                return False
            self._logs[name], self._leases[name] = [first], {}
            return True

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """See Store."""
        return iter(self._log(name)[start:stop])

    def append(
        self,
        name: str,
        events: Sequence[Event],
        *,
        seen: int,
        about: int | None,
        lease: Lease | Release | None = None,
    ) -> int:
        """See Store."""
        self._refuse_after_fork()
        with self._lock:
            log = self._log(name)
            if any(matters(e, about) for e in log[seen:]):
                raise Conflict
            position = len(log)
            log.extend(events)
            if about is None:
                self._leases[name].pop(CLAIM, None)
            if isinstance(lease, Release):
                self._leases[name].pop(lease.trial, None)
            elif lease is not None:
                self._leases[name][lease.trial] = lease
            return position

    def leases(self, name: str) -> list[Lease]:
        """See Store."""
        with self._lock:
            self._log(name)
            return [lease for trial, lease in self._leases[name].items() if trial != CLAIM]

    def claimed(self, name: str) -> Lease | None:
        """See Store."""
        with self._lock:
            self._log(name)
            return self._leases[name].get(CLAIM)

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        """See Store."""
        with self._lock:
            free = self.claimed(name) == instead_of
            if free and claim is not None:
                self._leases[name][CLAIM] = claim
            elif free:
                self._leases[name].pop(CLAIM, None)
            return free

    def renew(self, name: str, lease: Lease) -> None:
        """See Store."""
        self._refuse_after_fork()
        with self._lock:
            self._log(name)
            held = self._leases[name].get(lease.trial)
            if held is not None and (held.holder, held.attempt) == (lease.holder, lease.attempt):
                self._leases[name][lease.trial] = lease

    def after_fork(self) -> None:
        """See forks.Heir: a log grows by whole lists, so that it can be read whoever was appending."""
        if not is_free(self._lock):
            self._lock = threading.RLock()

    def _log(self, name: str) -> list[Event]:
        if name not in self._logs:
            raise StoreError(f"there is no study {name!r} in {self.url}")
        return self._logs[name]

    def _refuse_after_fork(self) -> None:
        if os.getpid() != self._pid:
            raise NotSupported(
                "this process was forked from the one that made the study, and a store in memory does not "
                "cross that border: give the study a file, store='sqlite:///search.db', or train by a strategy that "
                "runs the script once for each rank, such as 'ddp'"
            )

    def __reduce__(self) -> str:
        raise NotSupported(
            "a store in memory cannot be sent to another process: give the study a file, store='sqlite:///search.db', "
            "or train by a strategy that runs the script once for each rank, such as 'ddp'"
        )


def open_store(where: str | os.PathLike[str] | Store | None, *, reading: bool = False) -> Store:
    """A store from a URL, a path ending in .db or .sqlite, None (memory), or a store itself.

    reading: it is only looked at. Nothing is written, made or locked then, and it must be there.

    Raises InvalidInput for what is none of these, StoreError when it cannot be opened.
    """
    if where is None or where == "memory":
        return MemoryStore()
    if isinstance(where, (str, os.PathLike)):
        url = os.fspath(where)
        if "://" not in url:
            if not url.endswith((".db", ".sqlite", ".sqlite3")):
                raise InvalidInput(
                    f"store={url!r}: a URL such as 'sqlite:///search.db', a path ending in .db, or None for memory"
                )
            url = f"sqlite:///{url}"
        from .sql.store import SqlStore

        return SqlStore(url, reading=reading)
    if not hasattr(where, "append") or not hasattr(where, "leases"):
        raise InvalidInput(
            f"store={where!r}: a URL such as 'sqlite:///search.db', a path, or None for memory"
        )
    return where


def address(store: Store) -> str:
    """The URL that opens a store in another process, its password included.

    Raises NotSupported for a store in memory.
    """
    if isinstance(store, MemoryStore):
        raise NotSupported(
            "a study in memory cannot be trained by other processes: give it a file, store='sqlite:///search.db'"
        )
    return getattr(store, "address", store.url)


def only_study(store: Store, name: str | None) -> str:
    """`name`, or the one study of the store. Raises StoreError listing what there is."""
    names = store.names()
    if name is None and len(names) == 1:
        return names[0]
    if name is None or name not in names:
        listing = ", ".join(map(repr, names)) or "none"
        raise StoreError(f"no study {name!r} in {store.url}; it holds: {listing}")
    return name
