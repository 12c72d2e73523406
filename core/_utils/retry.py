"""Waiting for a database server that is away, as during its restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from haltune.errors import StoreAway

T = TypeVar("T")
_PAUSES = (0.1, 5.0)  # seconds between tries: from, to


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
        try:
            return work()
        except StoreAway as error:
            if waited >= seconds:
                raise
            if not waited:
                tell(f"waiting up to {seconds:g} s for the study's server: {error}")
        sleep(pause)
        waited += pause
        pause = min(2.0 * pause, _PAUSES[1])
