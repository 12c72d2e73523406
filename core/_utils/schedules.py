"""Places of torch's learning-rate schedules, whether a schedule continues from its place, and rates set by hand."""

from __future__ import annotations

import copy
import gc
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

_NUMBERS = (int, float, np.int64, np.float64)  # a program may give step() a number of NumPy
_STEPS = 1000  # of a schedule that are compared
_REGULAR = 2  # epochs with as many steps of a schedule, of which one more shows that each epoch has as many


def schedules_of(optimizer: Any) -> list[Any]:
    """Return torch's learning-rate schedules of an optimizer that count. They hold it, but it does not hold them.

    So they are searched in what Python's collector knows to refer to it. Without that, and the private names here, a
    plain loop that does not load its schedules would resume with other rates, unnoticed.
    """
    torch = sys.modules["torch.optim"]
    holders = _holders([optimizer])
    wraps = [one for one in holders if issubclass(type(one), torch.Optimizer) and one is not optimizer]  # as Fabric's
    holders += _holders(wraps) if wraps else []
    found = {id(one): one for one in holders if issubclass(type(one), torch.lr_scheduler.LRScheduler)}
    # a chain has them in its parts
    return [one for one in found.values() if vars(one).keys() >= {"last_epoch", "_last_lr"}]


def _holders(optimizers: list[Any]) -> list[Any]:
    """Return what refers to optimizers, also as attributes."""
    found: list[Any] = gc.get_referrers(*optimizers)
    names = ("optimizer", "_optimizer")
    held = [d for d in found if type(d) is dict and any(d.get(name) is one for name in names for one in optimizers)]
    return [*found, *(gc.get_referrers(*held) if held else ())]


Options = dict[str, list[float]]  # numbers of an optimizer that a program may set, such as "lr", for each group


@dataclass
class Rates:
    """What this process has seen of rates, and of other numbers, that a program sets by hand in an optimizer."""

    # trial and its fold -> digest of the shapes of an optimizer's weights -> numbers at the trial's start and at its
    # last report, position of its last pause, and numbers there
    of: dict[tuple[int, int], dict[int, tuple[list[Options], float, Options]]] = field(default_factory=dict)
    # such digests, names, and parts of an epoch after which the training continues with the number that it had
    carried: set[tuple[int, str, float]] = field(default_factory=set)
    lost: dict[tuple[int, str, float], str] = field(default_factory=dict)  # -> the warning, if they are carried
    late: set[tuple[int, str]] = field(default_factory=set)  # likewise, of numbers that are set after a report
    stays: set[tuple[int, str]] = field(default_factory=set)  # of those that are not set after another one


def options_of(optimizer: Any) -> Options:
    """Return the learning rates of an optimizer's groups, and their other numbers."""
    found: Options = {}
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, float) and name != "initial_lr":
                found.setdefault(name, []).append(value)
    return found


def renew(optimizer: Any) -> Options:
    """Put equal numbers in the place of an optimizer's, and return them: one that is set later is another object.

    The number that was there may be one that the program sets again.
    """
    for group in optimizer.param_groups:
        group.update({name: value + 0.0 for name, value in group.items() if isinstance(value, float)})
    return options_of(optimizer)


def set_since(optimizer: Any, renewed: Options) -> set[str]:
    """Return the names of the numbers that were set since `renew`, also to the same value."""
    now = options_of(optimizer)
    return {name for name in now if [*map(id, now[name])] != [*map(id, renewed.get(name, ()))]}


def rates_of(optimizer: Any) -> list[float]:
    """Return the learning rates of an optimizer's groups; none of one without."""
    with suppress(Exception):  # such as a rate that is a function
        return [float(group["lr"]) for group in optimizer.param_groups]
    return []


def alike(rates: list[float], others: list[float]) -> bool:
    """Return whether rates are equal but for rounding: a schedule computes them from the last ones, or by a formula."""
    close = (math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12) for one, other in zip(rates, others, strict=False))
    return len(rates) == len(others) and all(close)


@dataclass(frozen=True)
class SchedulePlace:
    """Where a learning-rate schedule of torch is, and the rates of its optimizer."""

    kind: str
    numbers: Mapping[str, float]
    rates: list[float]
    sets: bool  # it has set them
    begun: tuple[tuple[float, int], ...] = ()  # positions of the last reports before it, and its steps at the next step

    @classmethod
    def of(cls, schedule: Any, by_hand: bool = False, begun: tuple[tuple[float, int], ...] = ()) -> SchedulePlace:
        """Return that of a schedule now. by_hand: the program sets the rates, too."""
        numbers = {k: v for k, v in vars(schedule).items() if type(v) in _NUMBERS and k != "_step_count"}
        rates = rates_of(schedule.optimizer)
        sets = not by_hand and [*map(float, schedule._last_lr)] == rates
        return cls(type(schedule).__name__, numbers, rates, sets, begun)

    @property
    def made(self) -> int:
        """The steps that it has made."""
        return int(self.numbers["last_epoch"])

    def due(self, position: float, paces: list[float]) -> int | None:
        """Return the steps that it makes before the training continues after a position; None: not known (yet).

        paces: its steps from each position to the next after that one. If those before do not agree, such as of a
        schedule that waits for the end of a warm-up, nothing is known.
        """
        if not self.begun:
            return None
        at, made = self.begun[-1]
        due = made + paces[0] * (position - at)
        before = paces_of(self.begun)
        regular = len({*before, *paces}) == 1 and before and len(before) + len(paces) > _REGULAR
        return int(due) if due == self.made or (regular and due > self.made) else None


def paces_of(begun: Sequence[tuple[float, int]]) -> list[float]:
    return [(steps - before) / (at - since) for (since, before), (at, steps) in pairwise(begun)]


def continues(schedule: Any, before: SchedulePlace, steps: int) -> bool:
    """Return whether a schedule sets the rates of the next steps as it would have from its place before.

    An exponential decay does so without its count, and a function of the program may count by itself.
    """
    now, base = SchedulePlace.of(schedule), sys.modules["torch.optim.lr_scheduler"].LRScheduler
    if not alike(now.rates, before.rates):
        return False
    if type(schedule).step is not base.step:  # it follows a metric, or counts cycles
        return {**now.numbers, "last_epoch": 0} == {**before.numbers, "last_epoch": 0}
    if hasattr(schedule, "lr_lambdas"):
        return now.sets or not before.sets
    one, other = ahead(schedule, now, steps), ahead(schedule, before, steps)
    return len(one) == len(other) and all(map(alike, one, other))


def ahead(schedule: Any, place: SchedulePlace, steps: int) -> list[list[float]]:
    """Return the rates that a schedule sets from a place on, without a change of it or of its optimizer."""
    twin, held = copy.copy(schedule), schedule.optimizer.param_groups  # which may have got a group since
    groups = [{**group, "lr": rate} for group, rate in zip(held, place.rates, strict=False)]
    vars(twin).update(place.numbers, optimizer=SimpleNamespace(param_groups=groups), _get_lr_called_within_step=True)
    found = []
    with suppress(Exception):  # it has ended
        for _ in range(min(steps, _STEPS)):
            twin.last_epoch += 1
            found.append([float(rate) for rate in twin.get_lr()])
            for group, rate in zip(groups, found[-1], strict=True):
                group["lr"] = rate
    return found
