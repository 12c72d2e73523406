"""Histories from single events, so that a test fixes every number in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from haltune import Float, Maximize, Problem, Space, Verdict
from haltune.log.decisions import continue_, stop
from haltune.log.events import Created, Ended, Reported, Started, Status
from haltune.log.history import History

REASON = "P(beats 0.9) = 0.01 at epoch 2; expected loss of stopping 1.0 < 2.0 of going on"


def told(problem: Problem | None = None) -> History:
    """A history without a trial."""
    history = History(problem or Problem(Space({"lr": Float(0, 1)}), Maximize("acc", (0, 1)), 10))
    history.apply(Created(at=0.0, problem={}, policy={}, seed=0))
    return history


def tell_trial(
    history: History,
    values: Sequence[float],
    status: Status | None = Status.COMPLETED,
    config: Mapping[str, Any] | None = None,
    reason: str = REASON,
    error: str | None = None,
    seconds: float = 2.0,
    proposed: str = "",
    tags: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Sequence[float]] | None = None,
) -> History:
    """One trial more, with a report an epoch; a stopped one carries the reason on its last."""
    id, at = len(history), history.now
    history.apply(
        Started(
            at=at, trial=id, config={"lr": 0.5} if config is None else config, pause_at=None, resource=None,
            tags=dict(tags or {}), reason=proposed, evidence={}, seen=history.position, deciding=0.0, worker="w",
        )
    )  # fmt: skip
    for n, value in enumerate(values, 1):
        last = n == len(values) and status is Status.STOPPED
        verdict: Verdict = stop(reason, loss_of_stopping=1.25, incumbent=math.nan) if last else continue_("on it goes")
        history.apply(
            Reported(
                at=at + n * seconds, trial=id, attempt=1, epoch=float(n), value=value, seconds=seconds,
                verdict=verdict, seen=history.position,
                metrics={name: column[n - 1] for name, column in (metrics or {}).items()},
            )
        )  # fmt: skip
    if status is not None:
        history.apply(Ended(at=at + len(values) * seconds, trial=id, attempt=1, status=status, error=error))
    return history


def a_search() -> History:
    """Three trials of 10 epochs: the best, one stopped after epoch 2, one that failed after epoch 3."""
    history = tell_trial(told(), [0.1 * n - 0.05 for n in range(1, 11)], config={"lr": 0.25})
    tell_trial(history, [0.2, 0.21], Status.STOPPED)
    return tell_trial(history, [0.3, 0.35, 0.36], Status.FAILED, error="RuntimeError: boom")
