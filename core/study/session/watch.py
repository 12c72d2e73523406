"""A process's watch: its monotonic clock beside the store's, so that a jump or a sleep of the latter is noticed.

    jump = what the store's clock went ahead - what the monotonic clock says has passed

A machine that sleeps, a virtual one that is paused and a clock that is set look alike: the store's clock jumps and
nobody trained meanwhile, or was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_LEAST_JUMP = (
    5.0  # seconds that are called a jump: a server's time comes by the network, and may be some late
)
_DRIFT = 1e-3  # of the time between two looks: clocks are set right slowly, too


@dataclass(frozen=True, slots=True)
class Jump:
    """The store's clock was set, or stood still with its machine, between two looks at it."""

    since: float  # seconds since the epoch: the look before
    at: float  # and the one that found it
    seconds: float  # that did not pass; negative when the clock was set back


class Watch:
    """Looks at the store's clock, and remembers its jumps. tick: monotonic, seconds."""

    def __init__(self, clock: Callable[[], float], tick: Callable[[], float]) -> None:
        self._clock, self._tick = clock, tick
        self._began = tick()
        self._last: tuple[float, float, float] | None = (
            None  # at the last look: ticks around it, the clock between
        )
        self.jumps: list[Jump] = []

    def now(self) -> float:
        """The store's clock, seconds since the epoch."""
        before = self._tick()
        now = self._clock()
        self._look(before, now, self._tick())
        return now

    def told(self, now: float) -> None:
        """What another study of this process has just read from the same clock."""
        tick = self._tick()
        self._look(tick, now, tick)

    def age(self) -> float:
        """Seconds for which this process has been looking."""
        return self._tick() - self._began

    def grown(self, renewed: float, now: float) -> float:
        """Seconds that a lease renewed at `renewed` has to be given for jumps since; negative for a clock set back."""
        ahead = sum(jump.seconds for jump in self.jumps if jump.seconds > 0.0 and jump.at > renewed)
        back = 0.0
        for jump in reversed(self.jumps):  # as many of the last ones as make it lie in the past
            if jump.seconds < 0.0 and renewed + back > now:
                back += jump.seconds
        return ahead + back

    def _look(self, before: float, now: float, after: float) -> None:
        look = (before, now, after)
        if self._last is not None:
            self._compare(self._last, look)
        self._last = look

    def _compare(self, last: tuple[float, float, float], look: tuple[float, float, float]) -> None:
        (earliest, then, latest), (before, now, after) = last, look
        least, most = before - latest, after - earliest  # seconds that passed: a look may take long itself
        jumped = (now - then) - min(max(now - then, least), most)
        if abs(jumped) > _LEAST_JUMP + _DRIFT * most:
            self.jumps.append(Jump(then, now, jumped))
