"""Ctrl-C in the middle of a step that must be whole is heard right after it, and is told from an error.

    with undisturbed: ...    Python's handlers of signals run after the block

A handler that raises, as that of Ctrl-C, may do so between any two instructions: also where a lock was just taken, or
a connection is just being given back. Python runs handlers in the main thread alone, so other threads need nothing.
For short steps: whoever waits must hear Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2")
_NUMBERS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
Handler = Callable[[int, FrameType | None], Any]


class Undisturbed:
    """Stands in for the handlers within its block, which may be within another.

    A stand-in that is called when no block is open hands on at once: so nothing is lost whenever a handler raises.
    """

    def __init__(self) -> None:
        self._depth, self._thread = 0, 0
        self._handlers: dict[int, Handler] = {}
        self._waiting: list[int] = []
        self._stand_in = self._called  # one object: what is installed is recognised

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if not self._depth:
            for number in _NUMBERS:
                handler = signal.getsignal(number)
                if callable(handler) and handler is not self._stand_in:
                    self._handlers[number] = handler
                    signal.signal(number, self._stand_in)
            self._thread = threading.get_ident()
        self._depth += 1  # last: nothing is held back before all are

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if not self._depth:
            try:
                self._restore()
            finally:
                self._hand_on()

    def after_fork(self) -> None:
        """In the child of another thread than the one within: that one does not go on there."""
        if self._depth and threading.get_ident() != self._thread:
            self._depth, self._waiting = 0, []
            self._restore()

    def _restore(self) -> None:
        for number, handler in list(self._handlers.items()):
            if signal.getsignal(number) is self._stand_in:
                signal.signal(number, handler)

    def _called(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._waiting.append(number)
        else:
            self._handlers[number](number, frame)

    def _hand_on(self) -> None:
        """Each signal to its handler, once, though one of them raises."""
        while self._waiting:
            number = self._waiting[0]
            self._waiting = [other for other in self._waiting if other != number]
            try:
                self._handlers[number](number, None)
            finally:
                self._hand_on()


undisturbed = Undisturbed()


def interrupts(error: BaseException) -> bool:
    """True for Ctrl-C and SIGTERM, raised as themselves or, by Lightning, as a SystemExit."""
    return not isinstance(error, Exception)
