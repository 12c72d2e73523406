"""A fork while other threads work: its child has their locks and half-done work, and not the threads to finish it.

    heirs.add(thing)            the child calls thing.after_fork() before anything else
    with doors.within(): ...    no fork happens inside the block, unless it lasts too long

SQLite keeps the locks of a process in the process: a child that inherits a connection takes those of its parent for
its own, waits for writers that are not there, and holds no lock that others see. So at a fork no thread is in a
transaction, and no connection is open.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from haltune.errors import StoreError

from .signals import undisturbed

LONGEST_WAIT = 5.0  # seconds that a fork waits for transactions of other threads


class Heir(Protocol):
    """Something that a forked process must set right."""

    def after_fork(self) -> None:
        """In the child, where only the thread that forked goes on."""
        ...


heirs: weakref.WeakSet[Heir] = weakref.WeakSet()


def is_free(lock: Any) -> bool:
    """True unless another thread holds it: in a forked process for good."""
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


class Doors:
    """Threads go in and out; a fork closes the doors and waits until nobody is within."""

    def __init__(self) -> None:
        self.torn = False  # this process was forked while another thread was within
        self.connections: weakref.WeakSet[Any] = weakref.WeakSet()  # engines, closed before a fork
        self._mine = threading.local()  # how deep this thread is within
        self._begin(0)

    def _begin(self, count: int) -> None:
        self._changed = threading.Condition()
        self._count, self._closed = count, False

    @property
    def _depth(self) -> int:
        return getattr(self._mine, "depth", 0)

    @contextmanager
    def within(self) -> Iterator[None]:
        """Inside the block this process is not forked by another thread, nor is it left half-way by Ctrl-C.

        Raises StoreError in a process where a fork could not wait for that.
        """
        if self.torn:
            raise StoreError(
                "this process was forked while another thread was writing to a SQLite database, which nothing there "
                "survives: fork before such a thread begins, or start a new process (the start method 'spawn')"
            )
        with undisturbed:
            with self._changed:
                while self._closed and not self._depth:  # who is in may go deeper
                    self._changed.wait()
                self._count += 1
                self._mine.depth = self._depth + 1
            try:
                yield
            finally:
                with self._changed:
                    self._count -= 1
                    self._mine.depth -= 1
                    self._changed.notify_all()

    def before_fork(self) -> None:
        """Close the doors, and every connection. The lock is held through the fork: none is taken half-way."""
        self._changed.acquire()
        self._closed = True
        self._changed.wait_for(lambda: self._count == self._depth, LONGEST_WAIT)
        if not self._count:
            for engine in list(self.connections):
                engine.dispose()

    def after_fork_in_parent(self) -> None:
        """Open them."""
        self._closed = False
        self._changed.notify_all()
        self._changed.release()

    def after_fork_in_child(self) -> None:
        """Open them: nobody else is here."""
        self.torn = self.torn or self._count > 0
        self._begin(self._depth)


doors = Doors()


def _after_fork_in_child() -> None:
    undisturbed.after_fork()
    doors.after_fork_in_child()
    for heir in list(heirs):
        heir.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=doors.before_fork,
        after_in_parent=doors.after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
