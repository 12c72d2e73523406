"""Signs of life while an epoch runs long: a daemon thread that renews the trial's lease.

It touches no framework and holds nothing: it ends when told to, and by itself when the trial has
ended or its reporter is gone, as after an exception for which a framework calls no hook.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import Any

from haltune._utils.forks import heirs


class Heartbeat:
    """Calls `trial.heartbeat()` every `trial.heartbeat_seconds`, for as long as `owner` lives."""

    def __init__(self, owner: Any) -> None:
        self._owner = weakref.ref(owner)
        self._enough = threading.Event()
        self._thread: threading.Thread | None = None
        heirs.add(self)

    def after_fork(self) -> None:
        """See haltune._utils.forks: the thread, which may have held the event's lock, is the parent's."""
        self._enough, self._thread = threading.Event(), None

    def start(self, trial: Any) -> None:
        """Begin, unless it has begun."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._enough = threading.Event()
        weakref.finalize(self._owner(), _end, self._enough, os.getpid())
        arguments = (weakref.ref(trial), trial.heartbeat_seconds, self._enough)
        self._thread = threading.Thread(target=_beat, args=arguments, name="haltune-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more renewals from now on."""
        self._enough.set()
        self._thread = None


def _end(enough: threading.Event, pid: int) -> None:
    if os.getpid() == pid:  # not at the end of a forked process
        enough.set()


def _beat(trial: Any, interval: float, enough: threading.Event) -> None:
    while not enough.wait(interval):
        held = trial()
        if held is None or held.ended is not None:
            return
        with suppress(Exception):  # the next report says what is wrong with the store
            held.heartbeat()
        del held  # else the trial would live on through this thread
