"""The log in this process alone: quick, and gone with it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from haltune._utils.forks import fork_handlers, is_free
from haltune._utils.process import Scratch
from haltune._utils.signals import undisturbed
from haltune.errors import NotSupported, StoreError
from haltune.log.events import Event

from .base import CLAIM, Conflict, Lease, Release, matters


class MemoryStore:
    """A log in this process alone: quick, and gone with it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.url = "memory"
        self._clock = clock
        self._logs: dict[str, list[Event]] = {}
        self._leases: dict[str, dict[int, Lease]] = {}
        self._lock = threading.RLock()
        fork_handlers.add(self)
        self._pid = os.getpid()
        self._scratch = Scratch(stays=True)
        self.folder: Path | None = self._scratch.path

    @property
    def outages(self) -> int:
        """See Store: there is nobody to lose."""
        return 0

    def address(self) -> str:
        raise NotSupported(
            "a study in memory cannot be trained by other processes: give it a file, store='sqlite:///search.db'"
        )

    def now(self) -> float:
        """The injected clock."""
        return self._clock()

    def names(self) -> list[str]:
        return list(self._logs)

    def create(self, name: str, first: Event) -> bool:
        self._refuse_after_fork()
        with undisturbed, self._lock:
            if name in self._logs:
                return False
            self._logs[name], self._leases[name] = [first], {}
            return True

    def replace(self, name: str, first: Event, seen: int) -> bool:
        self._refuse_after_fork()
        with undisturbed, self._lock:
            if len(self._log(name)) != seen:
                return False
            self._logs[name], self._leases[name] = [first], {}
            return True

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
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
        self._refuse_after_fork()
        with undisturbed, self._lock:
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
        with self._lock:
            self._log(name)
            return [lease for trial, lease in self._leases[name].items() if trial != CLAIM]

    def claimed(self, name: str) -> Lease | None:
        with self._lock:
            self._log(name)
            return self._leases[name].get(CLAIM)

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        with self._lock:
            free = self.claimed(name) == instead_of
            if free and claim is not None:
                self._leases[name][CLAIM] = claim
            elif free:
                self._leases[name].pop(CLAIM, None)
            return free

    def renew(self, name: str, lease: Lease) -> None:
        self._refuse_after_fork()
        with self._lock:
            self._log(name)
            held = self._leases[name].get(lease.trial)
            if held is not None and (held.holder, held.attempt) == (lease.holder, lease.attempt):
                self._leases[name][lease.trial] = lease

    def after_fork(self) -> None:
        """See forks.ForkHandler: a log grows by whole lists, so that it can be read whoever was appending."""
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
