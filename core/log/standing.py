"""Which run is the best: the one rule, for all who ask.

A run counts for one value, and the goal says which: its last, none where that is not finite, or its best epoch's.
It is complete when haltune did not cut it: it came to the horizon, ended by itself at whatever epoch, or had all that
its policy gives any run. The best run is the complete one of the best value; before there is one, the best of those
that went furthest, failed ones behind all others.
"""

from __future__ import annotations

import math
from typing import Protocol

from .decisions import FULL, Verdict
from .events import Status

Standing = tuple[float, float, float, float]  # the larger the better; the last is sign * value


class Run(Protocol):
    """What is asked of a run, as it grows or as it was recorded."""

    @property
    def status(self) -> Status: ...
    @property
    def epoch(self) -> float: ...
    @property
    def resource(self) -> float | None: ...
    @property
    def partial(self) -> bool: ...
    @property
    def verdict(self) -> Verdict | None: ...


def is_complete(run: Run, horizon: int | None) -> bool:
    """True when haltune did not cut a run."""
    if run.partial:
        return False
    full = run.status is Status.STOPPED and run.verdict is not None and FULL in run.verdict.evidence
    return full or run.status is Status.COMPLETED or (horizon is not None and run.epoch >= horizon)


def standing(run: Run, complete: bool, counts: float) -> Standing:
    """What runs are ranked by. counts: sign * the value that the run counts for."""
    if complete:
        return (2.0, 0.0, 0.0, counts)
    given = (run.resource or 0.0) if run.partial else math.inf
    return (float(run.status is not Status.FAILED), given, run.epoch, counts)
