"""Where the log and the leases live. A store appends, reads and compares; it decides nothing.

Appends are compare-and-append: they succeed only if nothing that matters to them was appended since the position
they were decided at. `haltune.store.open` opens one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from haltune._utils.signals import undisturbed
from haltune.errors import StoreAway
from haltune.log.events import Event

T = TypeVar("T")
CLAIM = -1  # in the place of a trial's number: the lease of whoever decides what to train next


class Conflict(Exception):
    """Something that matters was appended since; read it and decide again. Never reaches a user."""


def settled(work: Callable[[], T]) -> T:
    """Return what `work` returns. It is called again after each Conflict; between two calls signals are handled."""
    while True:
        try:
            return work()
        except Conflict:
            with undisturbed.heard:  # however often it is called, Ctrl-C ends it
                pass


def retry(
    work: Callable[[], T],
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    tell: Callable[[str], None] = lambda text: None,
) -> T:
    """Return what `work` returns, tried again for up to `seconds` of waiting for a server that is away.

    tell: is called the first time it waits. Raises StoreAway when the server is still away then.
    """
    pause, waited = 0.1, 0.0
    while True:
        began = time.monotonic()
        try:
            return work()
        except StoreAway as error:
            first, waited = not waited, waited + time.monotonic() - began
            if waited >= seconds:
                raise
            if first:
                tell(f"waiting up to {seconds:g} s for the study's server: {error}")
        pause = min(pause, seconds - waited)
        sleep(pause)
        waited += pause
        pause = min(2.0 * pause, 5.0)


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


@runtime_checkable
class Store(Protocol):
    """An append-only log of events for each study, and a small mutable table of leases."""

    url: str  # what it is called: where it is, without a password
    folder: Path | None  # where checkpoints lie, made by who needs it; None: where the program runs

    @property
    def outages(self) -> int:
        """Connections that a server has ended: what was read before may be lost."""
        ...

    def address(self) -> str:
        """The URL that opens it in another process, its password included. Raises NotSupported where there is none."""
        ...

    def now(self) -> float:
        """The store's clock, seconds since the epoch."""
        ...

    def names(self) -> list[str]:
        """The studies in this store, oldest first."""
        ...

    def create(self, name: str, first: Event) -> bool:
        """Make a study whose log begins with `first`; False when the name exists."""
        ...

    def replace(self, name: str, first: Event, seen: int) -> bool:
        """Make a study anew, without the events before `seen`, or its leases; False when there are later ones."""
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
