"""The actor that keeps a study's log, and the checkpoints of workers that do not see their folder.

Ray starts it again when it dies, from the log on the disk, and calls again what it did not answer. So every
call may come twice, and does the second time what the first one did: an event that is in the log already is not
appended again, and a piece of a file is written to its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Concatenate, ParamSpec

from haltune.errors import HaltuneError
from haltune.log import events as ev
from haltune.log.codec import to_json
from haltune.store.base import Conflict, Lease, Release, Store
from haltune.store.checkpoints import Checkpoints
from haltune.store.open import open_store

from .checkpoints import Files

P = ParamSpec("P")
PAGE = 2000  # events in an answer


@dataclass(frozen=True)
class Reply:
    """What came of a call."""

    answer: Any
    error: Exception | None
    now: float  # seconds since the epoch, store's clock
    leave: str | None  # why workers should let go of their trials


class Keeper:
    """Owns the store of a study. The launcher makes an actor of it, on its own node.

    What it is asked is a method of PagedLog or of Files, as it stands in the class: `keeper.log(PagedLog.names)`.
    """

    def __init__(self, address: str, checkpoints: Checkpoints) -> None:
        self._store = open_store(address)
        self._log, self._files = PagedLog(self._store), Files(checkpoints)
        self._leave: str | None = None

    def leave(self, why: str) -> None:
        """Workers are to let go of their trials at their next reports."""
        self._leave = why

    def log(
        self, method: Callable[Concatenate[PagedLog, P], object], *arguments: P.args, **options: P.kwargs
    ) -> Reply:
        """Ask the log. Answers and errors alike are in the reply."""
        return self._reply(lambda: method(self._log, *arguments, **options))

    def files(
        self, method: Callable[Concatenate[Files, P], object], *arguments: P.args, **options: P.kwargs
    ) -> Reply:
        """Ask for checkpoints, likewise."""
        return self._reply(lambda: method(self._files, *arguments, **options))

    def _reply(self, ask: Callable[[], object]) -> Reply:
        answer: object = None
        error: Exception | None = None
        try:
            answer = ask()
        except (HaltuneError, Conflict, OSError) as raised:  # the rest is a bug
            error = raised
        return Reply(answer, error, self._store.now(), self._leave)


class PagedLog:
    """A store, as it can be asked from afar: in pages, and the same thing twice."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self) -> list[str]:
        return self._store.names()

    def read(self, name: str, start: int, stop: int | None) -> list[ev.Event]:
        """See Store; PAGE events at most."""
        return list(islice(self._store.read(name, start, stop), PAGE))

    def append(
        self,
        name: str,
        events: Sequence[ev.Event],
        seen: int,
        about: int | None,
        lease: Lease | Release | None,
    ) -> int:
        conflicts = about is None or about >= 0  # else what is there already must be looked for
        if not conflicts and (found := self._found(name, events, seen)) is not None:
            return found
        try:
            return self._store.append(name, events, seen=seen, about=about, lease=lease)
        except Conflict:
            if (found := self._found(name, events, seen)) is not None:
                return found
            raise

    def leases(self, name: str) -> list[Lease]:
        return self._store.leases(name)

    def claimed(self, name: str) -> Lease | None:
        return self._store.claimed(name)

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        return self._store.claim(name, claim, instead_of) or self._store.claimed(name) == claim

    def renew(self, name: str, lease: Lease) -> None:
        self._store.renew(name, lease)

    def _found(self, name: str, events: Sequence[ev.Event], seen: int) -> int | None:
        """Where these very events are in the log since `seen`; an event's time tells it from all others."""
        wanted = [to_json(event) for event in events]
        since = [to_json(event) for event in self._store.read(name, seen)]
        for n in range(len(since) - len(wanted) + 1):
            if since[n : n + len(wanted)] == wanted:
                return seen + n
        return None
