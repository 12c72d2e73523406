"""What has to be done before this process starts another program: a fit may start the other ranks at any time."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from haltune._utils.forks import heirs

_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.system", "os.exec"}  # Python's audit events


class _Before:
    """What waits to be done. A program of another thread waits until it is."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self._hooked = False
        self.after_fork()
        heirs.add(self)

    def after_fork(self) -> None:
        """See forks.Heir: the thread that was just at it is not here."""
        self._lock = threading.RLock()  # a program that the work itself starts waits for nothing

    def hook(self) -> None:
        """Heed the programs of this process; a hook stays for good."""
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(self._heed)

    def _heed(self, event: str, _: object) -> None:
        if event not in _STARTS:
            return
        with self._lock:
            while self.waiting:
                with suppress(Exception):  # an error here would forbid the program
                    self.waiting.popleft()()


_before = _Before()


def before_programs(work: Callable[[], None]) -> None:
    """Call `work` once, just before this process starts a program, if ever it does."""
    _before.waiting.append(work)
    _before.hook()
