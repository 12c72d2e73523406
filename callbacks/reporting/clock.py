"""The stopwatch of a training: seconds since the last report, and how many of them validated.

Monotonic, so a changed system time costs nothing. It is restarted after every
report, so that what the study takes to answer is not training time.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Laps of training time, in seconds.

    `now` is any monotonic clock in seconds; tests inject their own.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.restart()

    def restart(self) -> None:
        """The next lap begins here."""
        self._start = self._now()
        self._validation = 0.0
        self._validating: float | None = None

    def validating(self) -> None:
        """A validation begins."""
        self._validating = self._now()

    def validated(self) -> None:
        """The validation that began last is over; one that never began counts nothing."""
        if self._validating is not None:
            self._validation += self._now() - self._validating
            self._validating = None

    def lap(self) -> tuple[float, float]:
        """(seconds since the last restart, seconds of these spent validating)."""
        return self._now() - self._start, self._validation
