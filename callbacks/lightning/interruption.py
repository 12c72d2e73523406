"""Ctrl-C and SIGTERM in a Lightning fit: they wait for an epoch's end, and are heard as the fit is torn down."""

from __future__ import annotations

import signal
from typing import Any

from ..reporting.interruption import Interruption
from ..reporting.reporter import Reporter
from .limits import sharded


def hear(trainer: Any, reporter: Reporter) -> None:
    """From now on they wait, where one process alone can save the state."""
    reporter.hear(Interruption(trainer.world_size == 1 and not sharded(trainer)))


def leave(trainer: Any, reporter: Reporter) -> None:
    """Raise what waited, when the loggers and the other callbacks have come to their end."""
    reporter.leave()
    if trainer.received_sigterm:  # which Lightning minds within its epochs alone
        raise SystemExit(128 + signal.SIGTERM)  # as a shell counts
