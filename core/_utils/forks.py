"""A fork while other threads work: its child has their locks and half-done work, and not the threads to finish it.

    fork_handlers.add(thing)          the child calls thing.after_fork() before anything else
    with held_off: ...        no other thread forks this process meanwhile
    closed_before.add(engine) its connections are closed before a fork

SQLite keeps the locks of a process in the process: a child that inherits a connection takes those of its parent for
its own, waits for writers that are not there, and holds no lock that others see. So at a fork no thread is in a
transaction, and no connection is open.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol

from haltune.errors import StoreError

from .signals import undisturbed

LONGEST_WAIT = 5.0  # seconds that a fork waits for transactions of other threads


class ForkHandler(Protocol):
    """Something that a forked process must set right."""

    def after_fork(self) -> None:
        """In the child, where only the thread that forked goes on."""
        ...


fork_handlers: weakref.WeakSet[ForkHandler] = weakref.WeakSet()
closed_before: weakref.WeakSet[Any] = weakref.WeakSet()  # engines of SQLAlchemy


def is_free(lock: Any) -> bool:
    """True unless another thread holds it: in a forked process for good."""
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


class HeldOff:
    """A lock that a fork takes, too. Raises StoreError in a process where a fork could not wait for it."""

    def __init__(self) -> None:
        self.torn = False  # this process was forked while a thread was within
        self.depth = 0
        self._lock = threading.RLock()
        self._taken = False

    def __enter__(self) -> None:
        if self.torn:
            raise StoreError(
                "this process was forked while another thread was writing to a SQLite database, which nothing there "
                "survives: fork before such a thread begins, or start a new process (the start method 'spawn')"
            )
        self._lock.acquire()
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        self._lock.release()

    def before_fork(self) -> None:
        self._taken = self._lock.acquire(timeout=LONGEST_WAIT)
        if not self.depth:
            for engine in list(closed_before):
                engine.dispose()

    def after_in_parent(self) -> None:
        if self._taken:
            self._lock.release()

    def after_in_child(self) -> None:
        self.torn = self.torn or self.depth > 0
        if self._taken:
            self._lock.release()
        else:
            self._lock = threading.RLock()


held_off = HeldOff()


def _after_in_child() -> None:
    undisturbed.after_fork()
    held_off.after_in_child()
    for handler in list(fork_handlers):
        handler.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=held_off.before_fork, after_in_parent=held_off.after_in_parent, after_in_child=_after_in_child
    )
