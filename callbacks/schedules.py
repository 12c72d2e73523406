"""Learning-rate schedules: detect whether the rate would still decay at a stop or pause, and save rates of NumPy.

Values before the decay compare trials, because all trials are at the same position of the same schedule. But they are
far from the final values. `Reporter` warns once a study, at the first trial that pauses or stops by comparison.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Rate = Callable[[float], float]  # steps of a schedule -> learning rate
_POINTS = 200  # points at which a schedule is evaluated
_HALF = 0.5  # a rate decays if it loses at least half of its value in the second half of the remaining steps
_FLAT = 0.999  # share of the highest rate above which the schedule is constant
_TRUNK = 0.1  # share of a training; a constant part of this length is intended


def falls(rate: Rate, now: float, end: float) -> bool:
    """Return whether a rate decays from step `now` to the `end`, and any constant part is over.

    Schedules without an end, such as the inverse square root, lose less than half from a step to twice that step.
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
    """Return the name of a torch schedule, and its rate; None if it is not a function of the step.

    torch has no public access to the parts of a SequentialLR, nor to a rate at another step. Without its private names
    the hint about schedules is missing. tests/callbacks/test_schedules.py holds them on the installed torch.
    """
    scheduler = getattr(scheduler, "scheduler", scheduler)  # Accelerate's wrapper
    name = type(scheduler).__name__
    if name == "OneCycleLR":
        return name, lambda step: max(0.0, 1.0 - step / scheduler.total_steps)  # it matters only that it ends at 0
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


def make_plain(optimizers: Iterable[Any], schedules: Iterable[Any]) -> None:
    """Replace numbers of NumPy in optimizers and schedules of torch by the same ones of Python, before they are saved.

    A schedule with np.cos sets such numbers, and a file with them does not load with torch's weights_only, its default.
    """
    held = [group for optimizer in optimizers for group in optimizer.param_groups]
    held += [vars(getattr(schedule, "scheduler", schedule)) for schedule in schedules]  # within Accelerate's
    for one in held:
        one.update({name: _plain(value) for name, value in one.items() if name != "params" and _of_numpy(value)})
        make_plain((), one.get("_schedulers", ()))  # of a SequentialLR


def _of_numpy(value: Any) -> bool:
    return isinstance(value, np.generic) or (type(value) in (list, tuple) and any(map(_of_numpy, value)))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
