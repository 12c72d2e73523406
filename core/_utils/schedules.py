"""Places of torch's learning-rate schedules, and whether a schedule continues from its place."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

_STEPS = 1000  # of a schedule that are compared


def schedules_of(optimizer: Any) -> list[Any]:
    """Return torch's learning-rate schedules of an optimizer that count. They hold it, but it does not hold them.

    So they are searched in what Python's collector knows to refer to it. Without that, and the private names here, a
    plain loop that does not load its schedules would resume with other rates, unnoticed.
    """
    holders: list[Any] = gc.get_referrers(optimizer)
    held = [one for one in holders if type(one) is dict and one.get("optimizer") is optimizer]  # their attributes
    base = sys.modules["torch.optim.lr_scheduler"].LRScheduler
    found = (one for one in (*holders, *(gc.get_referrers(*held) if held else ())) if issubclass(type(one), base))
    return [one for one in found if vars(one).keys() >= {"last_epoch", "_last_lr"}]  # a chain has them in its parts


@dataclass
class Rates:
    """What this process has seen of rates that a program sets by hand."""

    # trial and its fold -> digest of the shapes of an optimizer's weights -> rates at the trial's start, position of
    # its last pause, and rates there
    of: dict[tuple[int, int], dict[int, tuple[list[float], float, list[float]]]] = field(default_factory=dict)
    carry: bool | None = None  # an epoch starts with the rates that the one before has set; None: not known


def rates_of(optimizer: Any) -> list[float]:
    """Return the learning rates of an optimizer's groups; none of one without."""
    with suppress(Exception):  # such as a rate that is a function
        return [float(group["lr"]) for group in optimizer.param_groups]
    return []


@dataclass(frozen=True)
class SchedulePlace:
    """Where a learning-rate schedule of torch is, and the rates of its optimizer."""

    kind: str
    numbers: Mapping[str, float]
    rates: list[float]
    sets: bool  # it has set them

    @classmethod
    def of(cls, schedule: Any, by_hand: bool = False) -> SchedulePlace:
        """Return that of a schedule now. by_hand: the program sets the rates, too."""
        numbers = {k: v for k, v in vars(schedule).items() if type(v) in (int, float) and k != "_step_count"}
        rates = rates_of(schedule.optimizer)
        return cls(type(schedule).__name__, numbers, rates, not by_hand and [*map(float, schedule._last_lr)] == rates)

    @property
    def made(self) -> int:
        """The steps that it has made."""
        return int(self.numbers["last_epoch"])


def continues(schedule: Any, before: SchedulePlace, steps: int) -> bool:
    """Return whether a schedule sets the rates of the next steps as it would have from its place before.

    An exponential decay does so without its count, and a function of the program may count by itself.
    """
    now, base = SchedulePlace.of(schedule), sys.modules["torch.optim.lr_scheduler"].LRScheduler
    if now.rates != before.rates:
        return False
    if type(schedule).step is not base.step:  # it follows a metric, or counts cycles
        return {**now.numbers, "last_epoch": 0} == {**before.numbers, "last_epoch": 0}
    if hasattr(schedule, "lr_lambdas"):
        return now.sets or not before.sets
    return _ahead(schedule, now, steps) == _ahead(schedule, before, steps)


def _ahead(schedule: Any, place: SchedulePlace, steps: int) -> list[list[float]]:
    """Return the rates that a schedule sets from a place on, without a change of it or of its optimizer."""
    twin = copy.copy(schedule)
    groups = [{**group, "lr": rate} for group, rate in zip(schedule.optimizer.param_groups, place.rates, strict=True)]
    vars(twin).update(place.numbers, optimizer=SimpleNamespace(param_groups=groups), _get_lr_called_within_step=True)
    found = []
    with suppress(Exception):  # it has ended
        for _ in range(min(steps, _STEPS)):
            twin.last_epoch += 1
            found.append([float(rate) for rate in twin.get_lr()])
            for group, rate in zip(groups, found[-1], strict=True):
                group["lr"] = rate
    return found
