"""Event log in the memory of one process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from haltune._utils.forks import fork_handlers
from haltune._utils.process import Scratch
from haltune._utils.signals import is_free, undisturbed
from haltune.errors import NotSupported, StoreError
from haltune.log.events import MOVES, Event, trial_of

from .base import CLAIM, Conflict, Lease, Release, check_new

_ELSEWHERE = "use a file, store='sqlite:///search.db', or a strategy that runs the script once per rank, such as 'ddp'"


class MemoryStore:
    """Event log in the memory of this process. It is lost when the process ends.

    Args:
        clock: Returns seconds since the epoch. Default: this machine's clock.
    """

    outages = 0

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.url = "memory"
        self.now = clock
        self._logs: dict[str, list[Event]] = {}
        self._leases: dict[str, dict[int, Lease]] = {}
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self.folder: Path | None = Scratch(stays=True).path
        fork_handlers.add(self)

    def address(self) -> str:
        raise NotSupported(
            "Other processes cannot train a study in memory. Give it a file: Study(space, goal, 'search.db', ...)."
        )

    def names(self) -> list[str]:
        return list(self._logs)

    def create(self, name: str, first: Event) -> bool:
        with undisturbed, self._locked():
            if name in self._logs:
                return False
            check_new([first])
            self._logs[name], self._leases[name] = [first], {}
            return True

    def replace(self, name: str, first: Event, seen: int) -> bool:
        with undisturbed, self._locked():
            if len(self._log(name)) != seen:
                return False
            check_new([first])
            self._logs[name], self._leases[name] = [first], {}
            return True

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        return iter(self._log(name)[start:stop])

    def append(
        self, name: str, events: Sequence[Event], *, seen: int, about: int | None, lease: Lease | Release | None = None
    ) -> int:
        check_new(events, lease)
        with undisturbed, self._locked():
            log, leases = self._log(name), self._leases[name]
            for e in log[seen:]:
                if isinstance(e, MOVES) if about is None else trial_of(e) == about:
                    raise Conflict
            position = len(log)
            log.extend(events)
            if about is None:
                leases.pop(CLAIM, None)
            if isinstance(lease, Release):
                leases.pop(lease.trial, None)
            elif lease is not None:
                leases[lease.trial] = lease
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
            check_new((), claim)
            free = self.claimed(name) == instead_of
            if free and claim is not None:
                self._leases[name][CLAIM] = claim
            elif free:
                self._leases[name].pop(CLAIM, None)
            return free

    def renew(self, name: str, lease: Lease) -> None:
        check_new((), lease)
        with self._locked():
            self._log(name)
            held = self._leases[name].get(lease.trial)
            if held is not None and (held.holder, held.attempt) == (lease.holder, lease.attempt):
                self._leases[name][lease.trial] = lease

    def after_fork(self) -> None:
        """Create a new lock if another thread has it. The log is complete: an append extends it in one step."""
        if not is_free(self._lock):
            self._lock = threading.RLock()

    def _log(self, name: str) -> list[Event]:
        if name not in self._logs:
            raise StoreError(f"there is no study {name!r} in {self.url}")
        return self._logs[name]

    def _locked(self) -> Any:
        if os.getpid() != self._pid:
            raise NotSupported(
                "This process was forked from the one with the study, but a store in memory works in one process: "
                f"{_ELSEWHERE}"
            )
        return self._lock

    def __reduce__(self) -> str:
        raise NotSupported(f"another process cannot use a store in memory: {_ELSEWHERE}")
