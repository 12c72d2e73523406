"""Learning-rate schedules that end with the training: whether the rate of a trial that was cut was still to fall.

A value before the decay of the rate compares trials, which all have the same schedule at the same position, but is far
from the final value. `Reporter` says so once a study, at the first trial that is paused or stopped by comparison.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

Rate = Callable[[float], float]  # steps of a schedule -> learning rate
_POINTS = 200  # at which a schedule is looked at
_HALF = 0.5  # a rate falls if half of it, or more, is lost in the second half of what is left
_FLAT = 0.999  # of the highest rate: a constant part
_TRUNK = 0.1  # of a training: a constant part as long is one on purpose


def falls(rate: Rate, now: float, end: float) -> bool:
    """True if a rate falls from step `now` to the `end` of the training, and has left its constant part, if it has one.

    Schedules that know no end, such as the inverse square root, lose less than half from any step to its double.
    """
    if not 0.0 <= now < end:
        return False
    steps = [end * i / _POINTS for i in range(_POINTS + 1)]
    rates = [rate(step) for step in steps]
    flat = [step for step, r in zip(steps, rates, strict=True) if r >= _FLAT * max(rates)]
    if len(flat) > _TRUNK * _POINTS and now <= flat[-1]:
        return False
    return rate(end) <= _HALF * rate((now + end) / 2.0)


def of_torch(scheduler: Any) -> tuple[str, Rate] | None:
    """The name of a schedule of torch's, and its rate; None if that is not a function of the step."""
    scheduler = getattr(scheduler, "scheduler", scheduler)  # Accelerate's wrapper
    name = type(scheduler).__name__
    if name == "OneCycleLR":
        return name, lambda step: max(0.0, 1.0 - step / scheduler.total_steps)  # what counts is that it ends at 0
    if name == "SequentialLR":
        parts = [of_torch(part) for part in scheduler._schedulers]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        starts = [0, *scheduler._milestones]

        def of_parts(step: float) -> float:
            which = bisect_right(starts, step) - 1
            return known[which][1](step - starts[which])

        return " then ".join(part for part, _ in known), of_parts
    if hasattr(scheduler, "lr_lambdas"):
        return name, lambda step: float(scheduler.base_lrs[0] * scheduler.lr_lambdas[0](int(step)))
    if hasattr(scheduler, "_get_closed_form_lr"):
        twin = copy.copy(scheduler)

        def closed(step: float) -> float:
            twin.last_epoch = int(step)
            return float(twin._get_closed_form_lr()[0])

        return name, closed
    return None
