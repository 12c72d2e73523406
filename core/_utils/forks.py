"""Forks while other threads work: the child has their locks and unfinished work, but not the threads themselves.

    fork_handlers.add(thing)          the child calls thing.after_fork() first
    with held_off: ...        no other thread forks this process in the block
    closed_before.add(engine) its connections are closed before a fork

SQLite stores a process's locks in the process. A child with an inherited connection would use its parent's locks as its
own, and wait for writers that do not exist. Its own locks would be invisible to others. Therefore, at a fork, no thread
is in a transaction and no connection is open.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol

from haltune.errors import StoreError

from .signals import undisturbed

LONGEST_WAIT = 5.0  # seconds that a fork waits for other threads' transactions


class ForkHandler(Protocol):
    """Object that must be repaired in a forked process."""

    def after_fork(self) -> None:
        """Repair the object in the child, where only the forking thread exists."""
        ...


fork_handlers: weakref.WeakSet[ForkHandler] = weakref.WeakSet()
closed_before: weakref.WeakSet[Any] = weakref.WeakSet()  # engines of SQLAlchemy


class HeldOff:
    """Lock that a fork waits for. Raises StoreError in a process whose fork did not wait long enough."""

    def __init__(self) -> None:
        self.torn = False  # this process was forked while a thread was in the block
        self.depth = 0
        self._lock = threading.RLock()
        self._taken = False

    def __enter__(self) -> None:
        if self.torn:
            raise StoreError(
                "this process was forked while another thread was writing to a SQLite database, so SQLite cannot be "
                "used here. Fork before such a thread starts, or start a new process (start method 'spawn')"
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
