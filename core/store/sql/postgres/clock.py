"""The clock that all workers share."""

from __future__ import annotations

import time
from collections.abc import Callable

import sqlalchemy as sa

_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


class ServerClock:
    """The server's time, which all workers share: those of their machines may be minutes apart.

    Asked for once in `every` seconds of this machine's monotonic clock, which tells the time in between; while
    the server cannot be reached that goes on alone.
    """

    def __init__(
        self, ask: Callable[[], float], every: float = 60.0, tick: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._every, self._tick = ask, every, tick
        self._ahead: float | None = None  # seconds
        self._asked = 0.0

    def __call__(self) -> float:
        """Seconds since the epoch. Raises what `ask` raises when the server never answered yet."""
        now = self._tick()
        if self._ahead is None or now - self._asked > self._every:
            self._look()
            now = self._tick()
        assert self._ahead is not None
        return now + self._ahead

    def _look(self) -> None:
        before = self._tick()
        try:
            there = self._ask()
        except Exception:
            if self._ahead is None:
                raise
        else:
            after = self._tick()
            self._ahead = there - (before + after) / 2.0
        self._asked = self._tick()


def time_of_server(c: sa.Connection) -> float:
    """The server's clock, seconds since the epoch."""
    return float(c.exec_driver_sql(_CLOCK).scalar_one())
