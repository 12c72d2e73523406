"""Deferred signals: Ctrl-C in the middle of a step that must be complete is handled directly after it.

    with undisturbed:            Python's signal handlers run after the block
        with undisturbed.heard:  but at once in this part of it, which may wait, at any depth
    with steps:                  a lock whose outermost block is undisturbed

A handler that raises, such as Ctrl-C's, may run between any two instructions: also directly after a lock was acquired,
or while a connection is returned. Python runs handlers only in the main thread, so other threads need nothing. Use this
for short steps: a step that waits must react to Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from haltune.display import one_line
from haltune.errors import NotSupported

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2")
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
_LOOKS = 0.001, 0.02  # seconds between checks of the main thread while another is in a step: from, to
Handler = Callable[[int, FrameType | None], Any]
# `signal` makes an enumeration member in each call, which is slow: an epoch has tens of blocks
_signal: Any = sys.modules.get("_signal", signal)
_ident, _main = threading.get_ident, threading.main_thread


class _Temporary:
    """Temporary handler: it calls the original one at once, unless signals are deferred."""

    def __init__(self, handler: Handler, held: Undisturbed) -> None:
        self.handler, self._held = handler, held

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._held.depth:
            self._held.waiting[number] = self.handler, frame
        else:
            self.handler(number, frame)


class Undisturbed:
    """Block in which signals are deferred by temporary handlers; blocks may nest.

    A handler that raises may interrupt any step, also the entry and the exit of the block. In each case the original
    handlers are restored, and a deferred one is called once.
    """

    def __init__(self) -> None:
        self.depth = 0  # above 0 while signals are deferred
        self.waiting: dict[int, tuple[Handler, FrameType | None]] = {}
        self.heard = _Heard(self)
        self._blocks, self._thread = 0, 0
        self._installed: dict[int, _Temporary] = {}

    def __enter__(self) -> None:
        if _ident() != _main().ident:
            return
        self.depth += 1
        self._blocks += 1
        if self._blocks > 1:
            return
        try:
            self._thread = _ident()
            for number in _NUMBERS:
                handler = _signal.getsignal(number)
                if callable(handler):
                    temporary = handler if isinstance(handler, _Temporary) else _Temporary(handler, self)
                    self._installed[number] = temporary
                    _signal.signal(number, temporary)
        except BaseException:  # from a handler that was not replaced yet
            self._leave()
            raise

    def __exit__(self, *_: object) -> None:
        if _ident() != _main().ident:
            return
        if self._blocks == 1:
            self._leave()
            return
        self._blocks -= 1
        self.depth -= 1
        if not self.depth:  # in a `heard` part
            self.call_waiting()

    def after_fork(self) -> None:
        """Reset in the child if another thread forked: the thread in the block does not exist there."""
        if self._installed and _ident() != self._thread:
            self.depth, self._blocks, self.waiting = 0, 0, {}
            self._restore()

    def call_waiting(self) -> None:
        """Call each deferred handler once, even if one of them raises."""
        while self.waiting:
            number = next(iter(self.waiting))
            handler, frame = self.waiting.pop(number)
            try:
                handler(number, frame)
            finally:
                self.call_waiting()

    def _leave(self) -> None:
        try:
            self._restore()  # handlers that are not restored yet still defer
        finally:
            self.depth = self._blocks = 0
            self.call_waiting()

    def _restore(self) -> None:
        """Restore each handler, even if a restored one is called at once and raises."""
        try:
            while self._installed:
                number, temporary = next(iter(self._installed.items()))
                if _signal.getsignal(number) is temporary:
                    _signal.signal(number, temporary.handler)
                self._installed.pop(number)
        except BaseException:
            self._restore()
            raise


class _Heard:
    """Part of a block in which handlers are called at once."""

    def __init__(self, held: Undisturbed) -> None:
        self._held = held
        self._depths: list[int] = []

    def __enter__(self) -> None:
        if _ident() != _main().ident:
            return
        self._depths.append(self._held.depth)
        self._held.depth = 0
        try:
            self._held.call_waiting()
        except BaseException:
            self._held.depth = self._depths.pop()
            raise

    def __exit__(self, *_: object) -> None:
        if _ident() == _main().ident:
            self._held.depth = self._depths.pop()


undisturbed = Undisturbed()


class Steps:
    """Lock for steps that must be complete: a handler that comes during a step is called after it.

    The handler therefore finds complete data. In a `heard` part it is called at once; it may read, but a step raises
    NotSupported. of: the object's name in errors.
    """

    def __init__(self, of: str) -> None:
        self._of = of
        self._lock = threading.RLock()
        self._inside = 0

    def __enter__(self) -> None:
        main = _ident() == _main().ident
        if main and self._inside and not undisturbed.depth and self.is_free():  # free for us: this thread has it
            raise NotSupported(
                f"{self._of} is in use in this thread, so a signal handler (or a policy) cannot use it at the same "
                "time. Set a flag in the handler, and check it in the loop"
            )
        undisturbed.__enter__()
        try:
            pause = _LOOKS[0]
            while not self._lock.acquire(blocking=not main):
                with undisturbed.heard:
                    time.sleep(pause)
                pause = min(2.0 * pause, _LOOKS[1])
        except BaseException:
            undisturbed.__exit__()
            raise
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        self._lock.release()
        undisturbed.__exit__()

    def is_free(self) -> bool:
        return is_free(self._lock)


def is_free(lock: Any) -> bool:
    """Return False if another thread has the lock; in a forked process it would never release it."""
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


# Signals that announce the end of a process: from the user, the system, and SLURM before its time limit.
NOTICES = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


def named(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


_PEERS = ("gloo/transport/", "Connection closed by peer", "Connection reset by peer")  # in a RuntimeError of gloo


def interrupts(error: BaseException) -> bool:
    """Return True for Ctrl-C and SIGTERM, also as Lightning's SystemExit, and for a lost rank."""
    return not isinstance(error, Exception) or lost_rank(error) is not None


def lost_rank(error: BaseException) -> str | None:
    """Return in words that another rank was lost, if that is why a collective failed; otherwise None.

    If a rank of torch.distributed dies, the collectives of the others fail. The launcher restarts all of them.
    """
    if not isinstance(error, RuntimeError) or "torch.distributed" not in sys.modules:
        return None
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "DistError" in kinds or any(words in str(error) for words in _PEERS):
        return f"another rank was lost: {one_line(error)}"
    return None
