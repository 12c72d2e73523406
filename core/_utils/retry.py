"""Waiting for a database server that is away, as during its restart."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from haltune.errors import StoreAway

T = TypeVar("T")
_now = (
    threading.local()
)  # until: when the patience of this thread's innermost `retry` ends, by time.monotonic
_PAUSES = (0.1, 5.0)  # seconds between tries: from, to
_LEAST = 1.0  # seconds that one try may take, however little patience is left


def left() -> float:
    """Seconds that a server may still be waited for in this thread; infinite outside of `retry`."""
    until = getattr(_now, "until", None)
    return math.inf if until is None else max(0.0, until - time.monotonic())


def retry(
    work: Callable[[], T],
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    tell: Callable[[str], None] = lambda text: None,
) -> T:
    """What `work` returns, tried again for up to `seconds` of waiting. tell: is told the first time it waits.

    Raises StoreAway when the server is still away then.
    """
    pause, waited = _PAUSES[0], 0.0
    while True:
        began, around = time.monotonic(), getattr(_now, "until", None)
        _now.until = began + max(seconds - waited, _LEAST)
        try:
            return work()
        except StoreAway as error:
            first, waited = not waited, waited + time.monotonic() - began
            if waited >= seconds:
                raise
            if first:
                tell(f"waiting up to {seconds:g} s for the study's server: {error}")
        finally:
            _now.until = around
        pause = min(pause, seconds - waited)
        sleep(pause)
        waited += pause
        pause = min(2.0 * pause, _PAUSES[1])
