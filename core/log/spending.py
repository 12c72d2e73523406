"""Cost of a search, and the limits of its budget.

Wall-clock time counts while at least one living worker has a trial, decisions included. Worker time is the same, summed
over workers. Both come only from the log, so a search is not charged while it is closed or its machine sleeps.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from haltune.display import amount, plural, several_of
from haltune.hints import KnowsAttributes

from .events import Reported
from .problem import Budget
from .records import Gains

_SET_BACK = 1.0  # seconds; clocks of two processes may differ by less


@dataclass(frozen=True)
class Outcome(KnowsAttributes):
    over: bool
    reason: str
    held: bool = False  # temporarily: a user paused the search, and can continue it
    interrupted: bool = False  # by Ctrl-C in this process

    @property
    def final(self) -> bool:
        """True if the search is over, and not only paused by a user."""
        return self.over and not self.held


@dataclass(frozen=True)
class Spent:
    """Totals of a study; times in seconds."""

    trials: int = 0
    epochs: float = 0.0  # trained, superseded attempts included
    time: float = 0.0  # wall-clock time while any worker has a trial
    worker_time: float = 0.0
    training: float = 0.0  # of worker_time: epochs without validation
    validation: float = 0.0
    checkpoint: float = 0.0
    start_up: float = 0.0  # from a trial's start to the start of its first epoch
    deciding: float = 0.0  # proposals and verdicts
    cost: float = 0.0  # reported by trials, in the user's unit
    unit: str = "epoch"  # of the study
    trials_without_gain: int = 0  # ended or paused since the last gain, see Budget
    priced_time: float = 0.0  # of worker_time: of workers with their own price
    paid: float = 0.0  # cost of priced_time, in units of money

    def money(self, price: float | None) -> float:
        """Return the cost, with `price` per hour for workers without their own price; 0 without any price."""
        return self.paid + (self.worker_time - self.priced_time) / 3600.0 * (price or 0.0)

    def payable(self, budget: Budget) -> float | None:
        """Return the worker seconds that a budget of money pays at the mean price so far; None without a limit."""
        if not budget.money or not self.priced_time:
            return budget.money / budget.price * 3600.0 if budget.money and budget.price else None
        cost = self.money(budget.price)
        return budget.money / cost * self.worker_time if cost else None

    def exhausts(self, budget: Budget) -> str | None:
        """Return a sentence about the first reached limit, except those of `starts_no_more`; None: no limit reached."""
        for unit, limit, spent in self._limits(budget):
            if spent >= limit * (1.0 - 1e-12):
                return f"the budget of {amount(limit, unit)} is spent"
        return None

    def share(self, budget: Budget) -> float | None:
        """Return the largest spent share of a limit, from 0 to 1; None without a limit."""
        limits = [(limit, spent) for _, limit, spent in self._limits(budget)]
        limits += [(limit, spent) for _, limit, spent in self._counts(budget)]
        return max((min(1.0, spent / limit) for limit, spent in limits if math.isfinite(limit)), default=None)

    def _limits(self, budget: Budget) -> list[tuple[str, float, float]]:
        """Return unit, limit and spent amount, except the limits of `_counts`."""
        known = (
            (several_of(self.unit), budget.epochs, self.epochs),
            ("s of time", budget.time, self.time),
            ("s of worker time", budget.worker_time, self.worker_time),
            ("of money", budget.money, self.money(budget.price)),
            ("of cost", budget.cost, self.cost),
        )
        return [(unit, float(limit), spent) for unit, limit, spent in known if limit is not None]

    def _counts(self, budget: Budget) -> list[tuple[str, float, float]]:
        """Return the same for the limits after which no trial starts."""
        known = (
            ("", budget.trials, self.trials),
            (" without gain", budget.trials_without_gain, self.trials_without_gain),
        )
        return [(unit, float(limit), float(spent)) for unit, limit, spent in known if limit is not None]

    def starts_no_more(self, budget: Budget) -> str | None:
        """Return why no new trial starts although started ones may continue; None if trials may start."""
        for unit, limit, spent in self._counts(budget):
            if spent >= limit:
                return f"the budget of {plural(limit, 'trial')}{unit} is spent"
        return None


@dataclass
class HeldTime:
    """Union of the intervals during which workers had trials, updated as trials start and end.

    Closed intervals are disjoint and sorted. Each running trial adds one open interval that ends at its last sign of
    life.
    """

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    total: float = 0.0  # length of the closed union
    summed: float = 0.0  # sum of the closed intervals' lengths
    open: dict[int, tuple[float, float]] = field(default_factory=dict)  # trial -> (start, last alive)

    def begin(self, trial: int, start: float) -> None:
        self.open[trial] = (start, start)

    def alive(self, trial: int, at: float) -> None:
        if trial in self.open:
            start, last = self.open[trial]
            self.open[trial] = (start, max(last, at))

    def end(self, trial: int, at: float) -> None:
        """Close the interval of `trial` at `at`, or at its last sign of life if that is later."""
        if trial in self.open:
            start, last = self.open.pop(trial)
            self.add(start, max(last, at))

    def add(self, start: float, end: float) -> None:
        self.summed += end - start
        first, last = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first < last:  # merge with the intervals it touches
            start, end = min(start, self.starts[first]), max(end, self.ends[last - 1])
            self.total -= sum(self.ends[i] - self.starts[i] for i in range(first, last))
        self.starts[first:last], self.ends[first:last] = [start], [end]
        self.total += end - start

    def wall(self) -> float:
        if not self.open:
            return self.total
        first = bisect_left(self.ends, min(self.open.values())[0])
        extra = HeldTime(self.starts[first:], self.ends[first:])  # its total counts only the added intervals
        for start, last in self.open.values():
            extra.add(start, last)
        return self.total + extra.total

    def worker(self) -> float:
        held = 0.0
        for start, last in self.open.values():
            held += last - start
        return self.summed + held

    def at(self, trial: int, now: float) -> HeldTime:
        found = HeldTime(self.starts, self.ends, self.total, self.summed, dict(self.open))
        found.alive(trial, now)
        return found


class Spending:
    def __init__(self, unit: str) -> None:
        self.trials, self.unit = 0, unit
        self.longest_epoch = 0.0  # seconds
        self.costs: dict[int, float] = {}  # trial -> reported cost
        self.gains = Gains()
        self._clock = HeldTime()
        self._epochs = self._training = self._validation = 0.0
        self._checkpoint = self._start_up = self._deciding = 0.0
        self._fresh: dict[int, float] = {}  # trial without a report -> start of its attempt
        self._held: dict[int, float] = {}  # trial -> worker seconds of its ended attempts
        self._prices: dict[int, float] = {}  # running trial -> its worker's own price per second
        self._priced = self._paid = 0.0  # seconds of ended attempts with such a price, and their cost
        self._back = 0.0  # seconds by which the clock was set back so far
        # running trial -> trials that started since its last sign of life
        self._later: dict[int, list[int]] = {}
        self._naps: list[tuple[float, float]] = []  # (start, end) of machines' sleeps
        # running trial -> its sleeps: time of the record, seconds
        self._slept: dict[int, list[tuple[float, float]]] = {}

    def begin(self, trial: int, at: float, deciding: float, price: float | None) -> None:
        """Start an attempt, after `deciding` seconds for the decision, on a worker with this price per hour."""
        if price is not None:
            self._prices[trial] = price / 3600.0
        before = -math.inf if self._clock.open else (self._clock.ends or [-math.inf])[-1]
        self._back += late if (late := before - at - self._back) > _SET_BACK else 0.0
        at += self._back
        for others in self._later.values():
            others.append(trial)
        self.trials = max(self.trials, trial + 1)
        self._deciding += deciding
        self._fresh[trial] = at
        self._clock.begin(trial, at - deciding)
        self._clock.alive(trial, at)
        self._later[trial] = []

    def report(self, e: Reported, epochs: float) -> None:
        """Count a report of the current attempt, which trained `epochs` more."""
        at = self._monotonic(e.trial, e.at)
        validation = min(e.validation or 0.0, e.seconds)
        self._epochs += epochs
        self._validation += validation
        self._training += e.seconds - validation
        self._deciding += e.deciding
        if e.cost is not None:
            self.costs[e.trial] = self.costs.get(e.trial, 0.0) + e.cost
        if e.trial in self._fresh:
            # the verdict came after `at`
            self._start_up += max(0.0, at - self._fresh.pop(e.trial) - e.seconds)
        self._clock.alive(e.trial, at)

    def save(self, trial: int, at: float, seconds: float) -> None:
        self._checkpoint += seconds
        self._clock.alive(trial, self._monotonic(trial, at))

    def sleep(self, trial: int, since: float, at: float, seconds: float) -> None:
        """Subtract `seconds` between `since` and `at`. Two processes may record the same sleep."""
        time = self._monotonic(trial, at)
        since = min(max(since + self._back, self._clock.open[trial][0]), time)
        known = sum(gap for recorded, gap in self._slept.get(trial, ()) if recorded > since)
        slept = min(seconds - known, time - since)
        if slept > 0.0:
            self._slept.setdefault(trial, []).append((time, slept))
            self._cut(trial, since, time, slept)
            if trial in self._fresh:
                self._fresh[trial] += slept
        self._clock.alive(trial, time)

    def _cut(self, trial: int, since: float, until: float, slept: float) -> None:
        """Remove `slept` seconds: first where other trials slept, then where there is space."""
        for start, end in self._naps:
            if since <= start and end <= until and end - start <= slept + _SET_BACK:
                self._nap(trial, start, end)
                since, slept = end, slept - (end - start)
        if slept > _SET_BACK:
            # another trial on the same machine would have recorded a sleep before its last sign of life
            lives = [last for _, last in self._clock.open.values()] + self._clock.ends[-1:]
            start = max((last for last in lives if since <= last <= until - slept), default=since)
            insort(self._naps, (start, start + slept))
            self._nap(trial, start, start + slept)

    def _nap(self, trial: int, start: float, end: float) -> None:
        first, last = self._clock.open[trial]
        self._clock.open[trial] = (first, start)
        self._close(trial, start)
        self._clock.begin(trial, end)
        self._clock.alive(trial, last)

    def end(self, trial: int, at: float, lost: bool = False) -> None:
        """End an attempt at `at`. If its worker was lost, `at` is its last report or renewal."""
        self._fresh.pop(trial, None)
        self._slept.pop(trial, None)
        self._close(trial, at + self._back if lost else self._monotonic(trial, at))
        self._later.pop(trial, None)
        self._prices.pop(trial, None)

    def _close(self, trial: int, at: float) -> None:
        before = self._clock.summed
        self._clock.end(trial, at)
        seconds = self._clock.summed - before
        self._held[trial] = self._held.get(trial, 0.0) + seconds
        if trial in self._prices:
            self._priced += seconds
            self._paid += seconds * self._prices[trial]

    def _monotonic(self, trial: int, at: float) -> float:
        """Return `at` on a clock that was never set back: an earlier event of the trial must have an earlier time."""
        last = self._clock.open.get(trial, (0.0, -math.inf))[1]
        later = self._later.get(trial, [])
        if (back := last - at - self._back) > _SET_BACK:
            self._back += back
            for other in later:  # started after the clock was set back
                first, alive = self._clock.open.get(other, (math.inf, 0.0))
                if first < last - _SET_BACK:
                    self._clock.open[other] = first + back, alive + back
                    if other in self._fresh:
                        self._fresh[other] += back
        later.clear()
        return at + self._back

    def worker_seconds(self, trial: int) -> float:
        start, last = self._clock.open.get(trial, (0.0, 0.0))
        return self._held.get(trial, 0.0) + last - start

    def spent(self, trial: int | None = None, now: float = 0.0, epochs: float = 0.0, cost: float = 0.0) -> Spent:
        """Return the totals, or the totals at `now` if a running trial has trained `epochs` more, for `cost`."""
        clock = self._clock if trial is None else self._clock.at(trial, now + self._back)
        priced, paid = self._priced, self._paid
        for id, price in self._prices.items():
            start, last = clock.open.get(id, (0.0, 0.0))
            priced, paid = priced + last - start, paid + (last - start) * price
        return Spent(
            trials=self.trials, epochs=self._epochs + epochs, time=clock.wall(), worker_time=clock.worker(),
            training=self._training, validation=self._validation, checkpoint=self._checkpoint,
            start_up=self._start_up, deciding=self._deciding, cost=math.fsum(self.costs.values()) + cost,
            unit=self.unit,
            trials_without_gain=self.gains.without, priced_time=priced, paid=paid,
        )  # fmt: skip
