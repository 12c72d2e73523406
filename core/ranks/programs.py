"""Work that must be done before this process starts another program."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from haltune._utils.forks import fork_handlers

_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.system", "os.exec"}  # Python's audit events


Environment = Mapping[str, str]


class _Before:
    """Work to do before a program starts. A program that another thread starts waits for it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Callable[[Environment], bool]]] = []
        self._hooked = False
        self.after_fork()
        fork_handlers.add(self)

    def after_fork(self) -> None:
        """See forks.ForkHandler: a thread that held the lock does not exist in the fork."""
        self._lock = threading.RLock()  # a program that the work itself starts does not wait

    def hook(self) -> None:
        """Watch the programs that this process starts; an audit hook cannot be removed."""
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(self._heed)

    def _heed(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _STARTS:
            return
        with self._lock:
            due = [entry for entry in self.waiting if entry[1](_environment(event, arguments))]
            for entry in due:
                self.waiting.remove(entry)
                with suppress(Exception):  # an error here would prevent the program from starting
                    entry[0]()


def _environment(event: str, arguments: tuple[Any, ...]) -> Environment:
    """Return the environment of a program that starts, from the arguments of the audit event."""
    given = None if event == "os.system" or not arguments else arguments[-1]
    if not isinstance(given, Mapping):
        return os.environ
    return {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}


_before = _Before()


def before_programs(work: Callable[[], None], when: Callable[[Environment], bool] = lambda _: True) -> None:
    """Call `work` once, just before this process starts its next program in an environment with `when`."""
    _before.waiting.append((work, when))
    _before.hook()
