"""Ctrl-C in the middle of a step that must be whole is handled right after it, and is told from an error.

    with undisturbed:            Python's handlers of signals run after the block
        with undisturbed.heard:  and at once within this part of it, which may wait, however deep it is
    with steps:                  a lock, and its outermost block undisturbed

A handler that raises, as that of Ctrl-C, may do so between any two instructions: also where a lock was just taken, or
a connection is just being given back. Python runs handlers in the main thread alone, so other threads need nothing.
For short steps: whoever waits must hear Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from haltune.errors import NotSupported

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2")
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
_LOOKS = 0.001, 0.02  # seconds between looks of the main thread while another is in a step: from, to
Handler = Callable[[int, FrameType | None], Any]
# not by the module that makes members of an enumeration of all it is asked: an epoch has tens of blocks
_signal: Any = sys.modules.get("_signal", signal)
_ident, _main = threading.get_ident, threading.main_thread


class _Temporary:
    """Installed instead of a handler, which it calls at once unless handlers wait, wherever it was kept."""

    def __init__(self, handler: Handler, held: Undisturbed) -> None:
        self.handler, self._held = handler, held

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._held.depth:
            self._held.waiting[number] = self.handler, frame
        else:
            self.handler(number, frame)


class Undisturbed:
    """Has temporary handlers installed within its block, which may be within another.

    Every step of it may be ended by a handler that raises, those of coming and going as well: each leaves the handlers
    as they were found, and one that waited is called once.
    """

    def __init__(self) -> None:
        self.depth = 0  # above 0 while handlers wait
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
        except BaseException:  # of a handler that was not yet replaced
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
        if not self.depth:  # within what is heard
            self.call_waiting()

    def after_fork(self) -> None:
        """In the child of another thread than the one within: that one does not go on there."""
        if self._installed and _ident() != self._thread:
            self.depth, self._blocks, self.waiting = 0, 0, {}
            self._restore()

    def call_waiting(self) -> None:
        """Each handler that waits is called once, though one of them raises."""
        while self.waiting:
            number = next(iter(self.waiting))
            handler, frame = self.waiting.pop(number)
            try:
                handler(number, frame)
            finally:
                self.call_waiting()

    def _leave(self) -> None:
        try:
            self._restore()  # what is not yet restored still waits
        finally:
            self.depth = self._blocks = 0
            self.call_waiting()

    def _restore(self) -> None:
        """Each handler to its place, though one that is back is called at once and raises."""
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
    """A part of blocks in which handlers are called at once."""

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
    """A lock of steps that are whole: a handler that comes within one is called after it.

    So it finds what the steps change as one of them left it. Within a part that is heard it is called at once, and may
    look, but not take a step: that raises NotSupported. of: what refusals name.
    """

    def __init__(self, of: str) -> None:
        self._of = of
        self._lock = threading.RLock()
        self._inside = 0

    def __enter__(self) -> None:
        main = _ident() == _main().ident
        if main and self._inside and not undisturbed.depth and self.is_free():  # free: this thread has it
            raise NotSupported(
                f"{self._of} is being asked or told something by this thread already, and so it cannot be by a "
                "signal handler (or a policy) meanwhile: set a flag there, and look at it in the loop"
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
        """True unless another thread is in a step."""
        if not self._lock.acquire(blocking=False):
            return False
        self._lock.release()
        return True


# Those that announce the end of a process: by the user, the system, and SLURM before its time limit.
NOTICES = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


def named(number: int) -> str:
    """Return how a log line calls a signal."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


_PEERS = ("gloo/transport/", "Connection closed by peer", "Connection reset by peer")  # in a RuntimeError of gloo


def interrupts(error: BaseException) -> bool:
    """True for Ctrl-C and SIGTERM, raised as themselves or, by Lightning, as a SystemExit; and for a lost rank.

    When a rank of torch.distributed dies, the collectives of the others fail. The launcher restarts all of them.
    """
    if not isinstance(error, Exception):
        return True
    if not isinstance(error, RuntimeError) or "torch.distributed" not in sys.modules:
        return False
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return "DistError" in kinds or any(words in str(error) for words in _PEERS)
