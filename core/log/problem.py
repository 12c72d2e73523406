"""What is searched: a space, its goals and constraints, the length of a full training, and the budget.

`value` is what the user reports, in the metric's own units. `score` is the same number on [0, 1], 1 best: policies
that need a scale use it, ranking never does. A trial is feasible when every constraint holds at the epoch that it
counts for. Its violation is the sum, over constraints, of what it is beyond the limit, as a share of the limit's size
(of 1 where the limit is 0).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from haltune._utils.checks import pythonic
from haltune.display import numeral, several_of
from haltune.errors import InvalidInput, InvalidSpace
from haltune.hints import KnowsArguments
from haltune.space import Space

from .metric_names import is_learnt

ENDLESS = 1_000_000_000  # epochs that no training reaches
MOST_EPOCHS = 10**12  # of a full training: beyond, what is reckoned from it leaves the floating-point numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# -- goals -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _MetricGoal(KnowsArguments):
    metric: str  # the name under which the training loop logs it
    bounds: tuple[float, float] | None = None  # (lowest, highest) possible value, metric units
    of: Literal["last", "best"] = "last"  # the epoch whose value a trial counts for
    smooth: float | tuple[str, float] | None = None  # width of the average, in the study's unit
    rank_by: str | None = None  # another metric, by which trials are ranked in the end

    sign = 0.0  # +1 when larger is better, -1 when smaller is

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidInput(f"the goal's metric is a name such as 'val_loss', not {self.metric!r}")
        if self.bounds is not None:
            object.__setattr__(self, "bounds", _checked_bounds(self.bounds))
        if self.of not in ("last", "best"):
            raise InvalidInput(
                f"of={self.of!r}: a trial counts for its 'last' epoch, or for its 'best' if you keep the best weights"
            )
        if self.smooth is not None:
            object.__setattr__(self, "smooth", _checked_smooth(self.smooth))
        if self.rank_by is not None and (not isinstance(self.rank_by, str) or self.rank_by in ("", self.metric)):
            raise InvalidInput(f"rank_by={self.rank_by!r}: the name of another metric, such as 'eval_loss'")

    def better(self, value: float, than: float) -> bool:
        """True when `value` ranks above `than`; what is not finite ranks below everything."""
        if not math.isfinite(value):
            return False
        return not math.isfinite(than) or self.sign * value > self.sign * than

    def to_json(self) -> dict[str, Any]:
        """A JSON form; `goal_from_json` reads it back."""
        name = "maximize" if self.sign > 0 else "minimize"
        # logs from before there was a choice stay equal
        other: dict[str, Any] = {} if self.of == "last" else {"of": self.of}
        if self.smooth is not None:
            other["smooth"] = list(self.smooth) if isinstance(self.smooth, tuple) else self.smooth
        if self.rank_by is not None:
            other["rank_by"] = self.rank_by
        return {"goal": name, "metric": self.metric, "bounds": self.bounds and list(self.bounds), **other}


class Maximize(_MetricGoal):
    """Larger values of a metric are better.

    Args:
        metric: The name under which the training logs it, such as "val_acc". It has no default.
        bounds: (lowest, highest) value that it can have, its own units: score = (value - low) / (high - low).
            Default: None, and the scale is learnt from what was reported.
        of: The epoch whose value a trial counts for, everywhere: its "last", or its "best" where the best weights
            are kept. Default: "last".
        smooth: Decide and rank by an average of the reports, of this width in the study's unit: 200, an exponential
            moving average over 200 steps, or ("median", 200). The log keeps each value as it was. Default: None.
        rank_by: Another metric, better in the same direction, whose last value ranks trials that were trained in full:
            Minimize("train_loss", smooth=200, rank_by="eval_loss"). Default: None.

    Raises:
        InvalidInput: For a metric that is no name, and bounds that are not two finite numbers, the smaller first.

    Example:
        >>> Maximize("val_acc", bounds=(0, 1)).better(0.9, than=0.8)
        True
    """

    sign = 1.0


class Minimize(_MetricGoal):
    """Smaller values of a metric are better.

    Args:
        metric: The name under which the training logs it, such as "val_loss". It has no default.
        bounds: (lowest, highest) value that it can have, its own units: score = (high - value) / (high - low).
            Default: None, and the scale is learnt from what was reported.
        of: The epoch whose value a trial counts for, everywhere: its "last", or its "best" where the best weights
            are kept. Default: "last".
        smooth: Decide and rank by an average of the reports, of this width in the study's unit: 200, an exponential
            moving average over 200 steps, or ("median", 200). The log keeps each value as it was. Default: None.
        rank_by: Another metric, better in the same direction, whose last value ranks trials that were trained in full:
            Minimize("train_loss", smooth=200, rank_by="eval_loss"). Default: None.

    Raises:
        InvalidInput: For a metric that is no name, and bounds that are not two finite numbers, the smaller first.

    Example:
        >>> Minimize("val_loss").better(0.2, than=float("nan"))
        True
    """

    sign = -1.0


Goal = Maximize | Minimize


def goal_from_json(data: Mapping[str, Any]) -> Goal:
    """The inverse of `to_json`."""
    bounds = tuple(data["bounds"]) if data["bounds"] else None
    kind = Maximize if data["goal"] == "maximize" else Minimize
    return kind(data["metric"], bounds, data.get("of", "last"), data.get("smooth"), data.get("rank_by"))


def _checked_bounds(bounds: Any) -> tuple[float, float]:
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise InvalidInput(f"bounds are two numbers (lowest, highest), not {bounds!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(
            f"bounds {bounds!r}: both must be finite and the first the smaller; "
            "leave bounds out when the metric has none, and the scale is learnt"
        )
    return low, high


def _checked_smooth(given: Any) -> float | tuple[str, float]:
    kind, width = given if isinstance(given, (list, tuple)) and len(given) == 2 else ("mean", given)
    if kind not in ("mean", "median") or not _is_number(width) or not 0 < width < math.inf:
        raise InvalidInput(
            f"smooth={given!r}: the width of the average in the study's unit, such as 200 or ('median', 200)"
        )
    return float(width) if kind == "mean" else (kind, float(width))


def smoothed(goal: Goal, epochs: Sequence[float], values: Sequence[float]) -> float:
    """Return the value that a goal sees after the last of these reports.

    Of positions p_i and a width w the mean is sum v_i exp((p_i - p_n) / w) / sum exp((p_i - p_n) / w): the exponential
    moving average without its bias towards the start. The median is of the reports within w. Values that are not
    finite are left out; a last one that is not finite stays what it is.
    """
    last, end = values[-1], epochs[-1]
    if goal.smooth is None or not math.isfinite(last):
        return last
    kind, width = goal.smooth if isinstance(goal.smooth, tuple) else ("mean", goal.smooth)
    reach = width if kind == "median" else 20.0 * width
    near: list[tuple[float, float]] = []
    for position, value in zip(reversed(epochs), reversed(values), strict=True):
        if end - position >= reach:
            break
        if math.isfinite(value):
            near.append((position, value))
    if kind == "median":
        return float(median(value for _, value in near))
    weights = [math.exp((position - end) / width) for position, _ in near]
    return math.fsum(w * value for w, (_, value) in zip(weights, near, strict=True)) / math.fsum(weights)


def _checked_goals(given: Any) -> tuple[Goal, ...]:
    goals = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not goals:
        raise InvalidInput("goal=[] is empty: [Maximize('val_acc'), Minimize('latency_ms')], or one of them")
    for goal in goals:
        if isinstance(goal, str):
            raise InvalidInput(f"the goal is Maximize({goal!r}) or Minimize({goal!r})")
        if not isinstance(goal, (Maximize, Minimize)):
            raise InvalidInput(
                "the goal is Maximize('val_acc', bounds=(0, 1)) or Minimize('val_loss'), or a list of such, "
                f"not {goal!r}; were space and goal swapped?"
            )
    names = [goal.metric for goal in goals]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(f"two goals of {twice[0]!r}: each is of another metric")
    if len(goals) > 1 and (own := [g for g in goals if g.smooth is not None or g.rank_by is not None]):
        raise InvalidInput(
            f"{type(own[0]).__name__}({own[0].metric!r}) has smooth= or rank_by=, which need a study with one goal. "
            "Leave them out, or give this goal alone"
        )
    if len(goals) > 1 and (of_best := [goal for goal in goals if goal.of == "best"]):
        raise InvalidInput(
            f"{type(of_best[0]).__name__}({of_best[0].metric!r}, of='best'): with several goals a trial counts for its "
            "last epoch, because each goal may have another best one. Leave of= out, and keep the best weights yourself"
        )
    return goals


# -- constraints -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constraint(KnowsArguments):
    """A metric that a trial must keep within limits.

    Args:
        metric: The name under which trials report it, such as "params".
        at_most: The largest value that is allowed. Default: None, no such limit.
        at_least: The smallest value that is allowed. Default: None, no such limit.
        changes: Whether training changes the value. If it does not (parameters, latency, memory), a trial whose first
            report is beyond a limit is stopped there. If it does (a recall, a gap), a trial that is beyond a limit is
            ranked behind all that are within, and its policy decides on it as on one that is that bad. Default: None,
            as the name says: acc, loss, recall, gap and the like change, others do not.

    Raises:
        InvalidInput: For a metric that is no name, limits that are no finite numbers, none at all, or in the wrong
            order.

    Example:
        >>> Constraint("params", at_most=5e6).violation(6e6)
        0.2
    """

    metric: str
    at_most: float | None = None  # the metric's own units
    at_least: float | None = None
    changes: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidInput(f"a constraint's metric is a name such as 'params', not {self.metric!r}")
        for name in ("at_most", "at_least"):
            if (value := getattr(self, name)) is not None:
                if not _is_number(value) or not math.isfinite(value):
                    raise InvalidInput(f"Constraint({self.metric!r}, {name}={value!r}): a finite number")
                object.__setattr__(self, name, float(value))
        if self.at_most is None and self.at_least is None:
            raise InvalidInput(f"Constraint({self.metric!r}) limits nothing: give at_most=, at_least= or both")
        if self.at_most is not None and self.at_least is not None and self.at_least > self.at_most:
            raise InvalidInput(
                f"Constraint({self.metric!r}, at_most={self.at_most:g}, at_least={self.at_least:g}): nothing "
                "is within both"
            )
        if self.changes is None:
            object.__setattr__(self, "changes", is_learnt(self.metric))
        elif not isinstance(self.changes, bool):
            raise InvalidInput(f"Constraint({self.metric!r}, changes={self.changes!r}): True or False")

    def violation(self, value: float) -> float:
        """By how much a value is beyond a limit, as a share of it: 0 within; infinite for NaN."""
        if math.isnan(value):
            return math.inf
        over = 0.0 if self.at_most is None else (value - self.at_most) / (abs(self.at_most) or 1.0)
        under = 0.0 if self.at_least is None else (self.at_least - value) / (abs(self.at_least) or 1.0)
        return max(0.0, over, under)

    def __str__(self) -> str:
        limits = {"at most": self.at_most, "at least": self.at_least}
        return f"{self.metric} {' and '.join(f'{k} {v:g}' for k, v in limits.items() if v is not None)}"

    def to_json(self) -> dict[str, Any]:
        """A JSON form; `Constraint(**data)` is the inverse."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def violation(constraints: Sequence[Constraint], latest: Callable[[str], float]) -> float:
    """Of all constraints; latest: what a metric was when it was reported last."""
    return sum(c.violation(latest(c.metric)) for c in constraints)


def latest(column: Sequence[float]) -> float:
    """The value that was reported last, which stands until the next; NaN before."""
    return next((value for value in reversed(column) if not math.isnan(value)), math.nan)


def _checked_constraints(given: Any) -> tuple[Constraint, ...]:
    if isinstance(given, Constraint):
        given = (given,)
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise InvalidInput(f"constraints is a list, [Constraint('params', at_most=5e6)], not {given!r}")
    for one in given:
        if not isinstance(one, Constraint):
            raise InvalidInput(
                f"a constraint on a metric is Constraint('params', at_most=5e6), not {one!r}; one on configurations "
                "belongs to the space: Space({...}, constraints=[...])"
            )
    names = [c.metric for c in given]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(
            f"two constraints on {twice[0]!r}: give both limits in one, Constraint({twice[0]!r}, at_most=, at_least=)"
        )
    return tuple(given)


# -- the budget ------------------------------------------------------------------------------------

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)\s*")


def seconds_of(duration: float | str, what: str = "time") -> float:
    """Seconds in a duration such as "2h", "1h30m", "90 s", or a number of seconds.

    Raises InvalidInput for anything else, and for what is not positive and finite.
    """
    total = math.nan
    if isinstance(duration, str):
        parts = list(_DURATION.finditer(duration.strip()))
        if parts and "".join(p.group(0) for p in parts) == duration.strip():
            total = sum(float(p.group(1)) * _UNITS[p.group(2)[0]] for p in parts)
    elif _is_number(duration):
        with suppress(OverflowError):
            total = float(duration)
    if not (math.isfinite(total) and total > 0):
        raise InvalidInput(
            f"{what}={duration!r}: write a duration such as '2h', '1h30m', '90s', or seconds, more than 0 and finite"
        )
    return total


@dataclass(frozen=True)
class Budget(KnowsArguments):
    """What a whole search may cost, over all its workers. Every limit that is given holds; None is no limit.

    A gain is a trial that ends or pauses as the best of the study, see `study.best`; with several goals as one that no
    other dominates. It sets the count of `trials_without_gain` to 0. Each other trial that completes, stops early or
    pauses counts once; failed and interrupted trials do not count. Before the first complete trial, pauses do not
    count: results at early epochs are no end result. If the policy fills rungs before it resumes trials, as Hyperband
    does, use at least the size of a rung.

    Args:
        trials: How many may start; trials that have started continue. Default: None.
        epochs: How many may be trained. Default: None.
        time: Wall-clock time while any trial is held, decisions included: seconds, or a text such as "1h30m".
            Default: None.
        worker_time: The same, summed over workers. Default: None.
        money: Worker time at the price of each worker, in the units of it. Default: None.
        price: Of a worker for an hour if it has none of its own; no limit by itself. A worker's own is in its
            environment, HALTUNE_PRICE, or `study.optimize(train, price=)`. Default: None.
        cost: The sum of what trials report as `cost`, in its own units. Default: None.
        trials_without_gain: How many may end or pause, one after the other, before a better result. Then no trial
            starts; trials that have started continue, and a gain among them starts the count again. Default: None.

    Raises:
        InvalidInput: For a limit that is not positive, and a duration that is none.

    Example:
        >>> Budget(time="1h30m", trials=50).time
        5400.0
        >>> Budget(time="2h", trials_without_gain=10).trials_without_gain
        10
    """

    trials: int | None = None
    epochs: float | None = None
    time: float | str | None = None  # seconds once built
    worker_time: float | str | None = None  # seconds once built
    money: float | None = None  # in the units of price
    price: float | None = None  # per worker-hour
    cost: float | None = None  # in the units of trial.report(cost=)
    trials_without_gain: int | None = None

    def __post_init__(self) -> None:
        pythonic(self)
        for name in ("time", "worker_time"):
            if (duration := getattr(self, name)) is not None:
                object.__setattr__(self, name, seconds_of(duration, name))
        for name in ("trials", "trials_without_gain", "epochs", "money", "price", "cost"):
            if (limit := getattr(self, name)) is None:
                continue
            if not _is_number(limit) or not 0 < limit <= math.inf or (isinstance(limit, int) and limit >= 2**63):
                meant = f"; Budget(time={limit!r})?" if isinstance(limit, str) else ""
                raise InvalidInput(f"Budget({name}={limit!r}): a positive number, or None for no limit{meant}")
            if name.startswith("trials") and limit % 1 > 0:  # not of infinity, which has no remainder
                raise InvalidInput(f"Budget({name}={limit!r}): a whole number, or None for no limit")

    @property
    def unlimited(self) -> bool:
        """True when no limit was given."""
        return all(getattr(self, f.name) is None for f in fields(self) if f.name != "price")

    def to_json(self) -> dict[str, Any]:
        """The limits that are given and finite; `Budget(**limits)` is the inverse."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: limit for name, limit in given.items() if limit is not None and math.isfinite(limit)}


# -- the problem -----------------------------------------------------------------------------------

LENGTHS = {"max_epochs": "epoch", "max_steps": "step", "max_tokens": "token"}  # argument of Study -> its unit


def length_argument(unit: str) -> str:
    """Return the argument that says how long a full training is; a unit of the user's has that of epochs."""
    return next((name for name, counts in LENGTHS.items() if counts == unit), "max_epochs")


def position_argument(unit: str) -> str:
    """Return how a report says its position, as in trial.report(value, step=n)."""
    return {"step": "step=n", "token": "tokens=n"}.get(unit, "n")


_UNIT = re.compile(r"[^\W\d_](?:[\w -]{0,38}\w)?")  # one word or some: epoch, step, game played


@dataclass(frozen=True)
class Grid:
    """The points at which a policy is asked; see haltune.log.points."""

    every: float  # distance of two points, in the study's unit
    horizon: float | None  # of a full training, in that unit

    @property
    def last(self) -> int | None:
        """The point that ends a full training."""
        return None if self.horizon is None else max(1, math.ceil(self.horizon / self.every - self.slack))

    @property
    def slack(self) -> float:
        """By how much of the distance a report may come early: loops reckon positions from batches."""
        return 0.01

    def points(self, position: float) -> float:
        """Return a position in points."""
        if self.horizon is not None and position >= self.horizon * (1.0 - 1e-9):
            return float(self.last or 1)
        exact = position / self.every
        near = round(exact)
        return float(near) if near and abs(exact - near) <= 1e-9 * near else exact

    def position(self, points: float) -> float:
        """Return points as a position in the study's unit."""
        if self.horizon is not None and points >= (self.last or 1):
            return self.horizon
        return points * self.every


@dataclass(frozen=True)
class Problem(KnowsArguments):
    """What is searched, what for, and how long a full training is.

    Args:
        space: What can be configured.
        goal: Maximize(...) or Minimize(...) of a metric. Several in a list search for the Pareto front,
            `study.pareto_front()`. `problem.goal` is the first of them, `problem.goals` are all.
        max_epochs: Epochs of a full training. Default: None, the infinite horizon, for policies that bring their
            own schedule: their trials have a `trial.max_epochs` of ENDLESS, which frameworks take.
        start: Configurations that are trained first, in their order, whatever the policy: defaults, guesses.
            `study.enqueue` adds more. Default: none.
        constraints: Metrics that trials must keep within limits, [Constraint("params", at_most=5e6)]. Default: none.
        further: The goals beyond the first, as a list in `goal` sets them. Default: none.
        min_epochs: Epochs that every trial trains before the policy may stop or pause it, for a learning-rate warm-up.
            A budget, a failure and the user's own stop still end it. Default: 0.
        unit: What a training counts: "epoch", "step", "token" or a word of yours, in the singular. max_epochs,
            min_epochs, judge_every and the positions of reports are in this unit. Default: "epoch".
        judge_every: The policy judges a trial once in so many units. Default: None, at every report: the first reports
            of the study show how far apart they are.
        spacing: As judge_every, as the log has learnt it. Default: None, not yet.
        grid: The points at which the policy is asked, in the problem that it gets. Default: None, the study's problem.

    Raises:
        InvalidInput: For a space or a goal that is none, several goals of one metric, epochs that are no whole number
            of at least 1, and configurations to start with that are not of the space or that are given twice.

    Example:
        >>> from haltune import Float, Space
        >>> problem = Problem(Space({"lr": Float(1e-4, 1e-1, log=True)}), Minimize("val_loss"), max_epochs=30)
        >>> problem.goal.metric
        'val_loss'
    """

    space: Space
    goal: Goal
    max_epochs: int | None = None
    start: Sequence[Mapping[str, Any]] = field(default=(), hash=False)
    constraints: Sequence[Constraint] = ()
    further: Sequence[Goal] = ()
    min_epochs: int = 0
    unit: str = "epoch"
    judge_every: float | None = None
    spacing: float | None = field(default=None, compare=False, repr=False)  # as judge_every, as the log has it
    grid: Grid | None = field(default=None, compare=False, repr=False)  # its epochs are points of this
    # read from a log, of whatever space that is by now
    of_log: bool = field(default=False, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.space, Space):
            raise InvalidInput(f"the first argument is a Space, not {type(self.space).__name__}: Space({{...}})")
        first, *others = _checked_goals(self.goal)
        object.__setattr__(self, "goal", first)
        if others or self.further:
            object.__setattr__(self, "further", _checked_goals([first, *(others or self.further)])[1:])
        object.__setattr__(self, "constraints", _checked_constraints(self.constraints))
        if self.goal.of == "best" and (changing := [c for c in self.constraints if c.changes]):
            raise InvalidInput(
                f"of='best' with {changing[0]}, which training changes: the best epoch may be beyond the limit. Let "
                f"trials count for their last epoch, {type(self.goal).__name__}({self.goal.metric!r}). Or give "
                f"Constraint({changing[0].metric!r}, ..., changes=False) if it stays as it is"
            )
        pythonic(self)
        full, least = self.max_epochs, self.min_epochs
        if full is not None and (isinstance(full, bool) or not isinstance(full, int) or full < 1):
            raise InvalidInput(f"max_epochs is a whole number of epochs, at least 1, or None; not {full!r}")
        if full is not None and full > MOST_EPOCHS:
            raise InvalidInput("max_epochs is at most 10**12. Leave it out to set no limit.")
        if isinstance(least, bool) or not isinstance(least, int) or least < 0:
            raise InvalidInput(f"min_epochs is a whole number of epochs, 0 or more; not {least!r}")
        if full is not None and least > full:
            raise InvalidInput(
                f"min_epochs={least} is more than max_epochs={full}, the epochs of a full training. Lower min_epochs, "
                "or raise max_epochs."
            )
        if not isinstance(self.unit, str) or not _UNIT.fullmatch(self.unit):
            raise InvalidInput(f"unit={self.unit!r}: what a training counts, in the singular, such as 'step' or 'game'")
        every = self.judge_every
        if every is not None and (not _is_number(every) or not 0 < every <= (full or math.inf) or every == math.inf):
            most = "" if full is None else f", at most {full}, a full training"
            raise InvalidInput(f"judge_every={every!r}: a number of {self.units} greater than 0{most}")
        object.__setattr__(self, "start", self._checked_start())

    if TYPE_CHECKING:  # what is handed in may be a list; what is held is the first of it

        def __init__(
            self,
            space: Space,
            goal: Goal | Sequence[Goal],
            max_epochs: int | None = None,
            start: Sequence[Mapping[str, Any]] = (),
            constraints: Sequence[Constraint] = (),
            further: Sequence[Goal] = (),
            min_epochs: int = 0,
            unit: str = "epoch",
            judge_every: float | None = None,
            spacing: float | None = None,
            grid: Grid | None = None,
        ) -> None: ...

    @property
    def every(self) -> float | None:
        """Units from one judged report to the next; None: one."""
        return self.judge_every or self.spacing

    def in_points(self) -> Problem:
        """As a policy gets it: its epochs are the points at which trials are judged, its values are smoothed.

        See haltune.log.points.
        """
        every, goal = self.every or 1.0, self.goal
        unit = "report" if self.every is None and self.unit != "epoch" else self.unit  # until the distance is known
        plain = goal.smooth is None and goal.rank_by is None
        if self.grid is not None or (every == 1.0 and plain and unit == self.unit):
            return self
        seen = goal if plain else type(goal)(goal.metric, goal.bounds, goal.of)
        grid = Grid(every, None if self.max_epochs is None else float(self.max_epochs))
        least = math.ceil(self.min_epochs / every - grid.slack)
        return replace(
            self,
            goal=seen,
            unit=unit,
            max_epochs=grid.last,
            min_epochs=min(least, grid.last or least),
            judge_every=None,
            grid=grid,
        )

    def points(self, option: float) -> float:
        """Return an option that a user gave in the study's unit as the policy counts, at least 1."""
        return option if self.grid is None else max(1.0, float(round(self.grid.points(option))))

    def amount(self, epochs: float) -> str:
        """So many epochs in words, in the study's unit: 9 epochs, 1 step, 2M tokens."""
        count = self.in_unit(epochs)
        return f"{numeral(count)} {self.unit if count == 1 else self.units}"

    def at(self, epoch: float) -> str:
        """A position in words, in the study's unit: epoch 9, epoch 0.35, step 1200."""
        return f"{self.unit} {numeral(self.in_unit(epoch))}"

    def reached(self, epoch: float) -> str:
        """How far a training is: 3 of 12, 0.35 of 1, 1200 of 2000, or 3 without max_epochs."""
        end = f" of {numeral(self.in_unit(self.max_epochs))}" if self.max_epochs else ""
        return f"{numeral(self.in_unit(epoch))}{end}"

    def in_unit(self, epoch: float) -> float:
        """A position in the study's unit, also if this is the policy's problem, which counts points."""
        return epoch if self.grid is None else self.grid.position(epoch)

    @property
    def units(self) -> str:
        """What a training counts, in the plural."""
        return several_of(self.unit)

    @cached_property
    def goals(self) -> tuple[Goal, ...]:
        """All of them, the first of which is `goal`."""
        return (self.goal, *self.further)

    @property
    def plain(self) -> bool:
        """True with one goal and without constraints: the result of a trial is one number."""
        return not (self.further or self.constraints)

    @property
    def measured(self) -> tuple[str, ...]:
        """The other metrics that trials report: of further goals, of constraints, and of rank_by=."""
        names = [g.metric for g in self.further] + [c.metric for c in self.constraints]
        names += [self.goal.rank_by] if self.goal.rank_by else []
        return tuple(dict.fromkeys(name for name in names if name != self.goal.metric))

    def _checked_start(self) -> tuple[dict[str, Any], ...]:
        if isinstance(self.start, (str, Mapping)) or not isinstance(self.start, Sequence):
            raise InvalidInput(f"start is a list of configurations, [{{...}}, {{...}}], not {self.start!r}")
        found = tuple(self.checked(config, f"start[{i}]") for i, config in enumerate(self.start))
        keys = self.space.keys(found)
        for i, key in enumerate(keys):
            if (first := keys.index(key)) < i:
                raise InvalidInput(
                    f"start[{i}] is start[{first}] again: once is enough; study.enqueue(config, again=True) trains a "
                    "configuration once more"
                )
        return found

    def checked(self, config: Mapping[str, Any], what: str) -> dict[str, Any]:
        """A whole configuration in canonical form. Raises InvalidInput that names `what` is none."""
        try:
            canonical = self.space.canonical(config)
            broken = [c.name for c in self.space.constraints if not c.allows(canonical)]
        except InvalidSpace as error:
            raise InvalidInput(f"{what}: {error}") from error
        if broken:
            raise InvalidInput(f"{what}: the constraint {broken[0]!r} does not allow {canonical!r}")
        return canonical

    def to_json(self) -> dict[str, Any]:
        """A JSON form: what a study records and compares when it is reopened. Logs of older versions stay equal."""
        found: dict[str, Any] = {
            "space": self.space.to_json(),
            "goal": [g.to_json() for g in self.goals] if self.further else self.goal.to_json(),
            "max_epochs": self.max_epochs,
        }
        if self.min_epochs:
            found["min_epochs"] = self.min_epochs
        if self.unit != "epoch":
            found["unit"] = self.unit
        if self.judge_every is not None:
            found["judge_every"] = self.judge_every
        if self.constraints:
            found["constraints"] = [c.to_json() for c in self.constraints]
        if self.start:
            found["start"] = list(self.start)
        return found

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], constraints: Mapping[str, Callable[[dict[str, Any]], bool]] | None = None
    ) -> Problem:
        """The inverse of `to_json`. Raises InvalidSpace unless the functions of its constraints are supplied."""
        goals = data["goal"] if isinstance(data["goal"], (list, tuple)) else [data["goal"]]
        return cls(
            Space.from_json(data["space"], constraints),
            [goal_from_json(goal) for goal in goals],
            data["max_epochs"],
            data.get("start", ()),
            [Constraint(**limit) for limit in data.get("constraints", ())],
            min_epochs=data.get("min_epochs", 0),
            unit=data.get("unit", "epoch"),
            judge_every=data.get("judge_every"),
        ).as_of_log()

    def as_of_log(self) -> Problem:
        """This problem, in whatever space the log of its study is by now."""
        found = replace(self)
        object.__setattr__(found, "of_log", True)
        return found


# -- what a report of it has to contain ------------------------------------------------------------


@dataclass(frozen=True)
class Measures:
    """The metrics that reports have to name."""

    first: str  # of the first goal
    goals: tuple[str, ...] = ()  # of the others: in every report
    limited: tuple[str, ...] = ()  # of constraints: in the first report; later the last one stands
    ranked: tuple[str, ...] = ()  # of rank_by=: in some report, the last at best

    @classmethod
    def of(cls, problem: Problem) -> Measures:
        """Those of a problem."""
        goals = tuple(g.metric for g in problem.further)
        limited = dict.fromkeys(c.metric for c in problem.constraints if c.metric != problem.goal.metric)
        ranked = tuple(n for n in problem.measured if n not in goals and n not in limited)
        return cls(problem.goal.metric, goals, tuple(n for n in limited if n not in goals), ranked)

    @cached_property
    def others(self) -> tuple[str, ...]:
        """All but the first goal's."""
        return (*self.goals, *self.limited, *self.ranked)

    def told(self, value: Any, metrics: Any) -> tuple[Any, dict[Any, Any]]:
        """The first goal's value, and the other metrics, of a report of one number or of a mapping.

        Raises InvalidInput for a mapping without the first goal.
        """
        if not isinstance(metrics or {}, Mapping):
            raise InvalidInput(f"metrics={metrics!r}: a mapping of names to numbers, such as {{'loss': 0.3}}")
        further = dict(metrics or {})
        if not isinstance(value, Mapping):
            return value, further
        if self.first not in value:
            raise self._lacks(self.first, value)
        further |= {name: one for name, one in value.items() if name != self.first}
        return value[self.first], further

    def check(self, metrics: Mapping[str, Any], known: Container[str]) -> None:
        """Raises InvalidInput where a metric is missing; known: those that the trial has reported before."""
        for name in (*self.goals, *self.limited):
            if name not in metrics and (name in self.goals or name not in known):
                raise self._lacks(name, {self.first: None, **metrics})

    def _lacks(self, name: str, given: Mapping[Any, Any]) -> InvalidInput:
        all_ = (self.first, *self.goals, *self.limited)
        near = get_close_matches(name, [str(n) for n in given], n=1)
        meant = f" Is {near[0]!r} meant to be it?" if near else ""
        what = (
            "every report has all goals"
            if name in (self.first, *self.goals)
            else "a constraint is on it, which the first report must have"
        )
        return InvalidInput(
            f"a report lacks {name!r}, and {what}: this study measures {', '.join(map(repr, all_))}. It has "
            f"{', '.join(map(repr, given)) or 'nothing'}.{meant} Write trial.report("
            f"{{{', '.join(f'{n!r}: ...' for n in all_)}}}); a callback takes what the training logs by these names"
        )
