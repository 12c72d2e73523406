"""Problem: the space, goals and constraints, the length of a full training, and the budget.

`value` is the reported number, in the metric's unit. `score` is the same number on [0, 1], 1 is best. Policies that
need a scale use it, but ranking does not. A trial is feasible if every constraint holds at the epoch that counts for
it. Its violation is the sum over constraints of the distance to the limit, divided by the limit's size (by 1 if it is
0).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from haltune._utils.checks import is_number, pythonic, within
from haltune.display import numeral, several_of
from haltune.errors import InvalidInput, InvalidSpace
from haltune.hints import KnowsArguments
from haltune.space import Space

from .metric_names import is_learnt

ENDLESS = 1_000_000_000  # epochs that no training reaches
MOST_EPOCHS = 10**12  # of a full training; more would overflow computations
NEWER = "a newer haltune wrote this log; update haltune to read it"


# -- goals -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _MetricGoal(KnowsArguments):
    metric: str
    bounds: tuple[float, float] | None = None
    of: Literal["last", "best"] = "last"
    smooth: float | tuple[str, float] | None = None
    rank_by: str | None = None

    sign = 0.0  # +1 if larger is better, -1 if smaller is better

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidInput(f"the goal's metric must be a name such as 'val_loss'; got {self.metric!r}")
        if self.bounds is not None:
            object.__setattr__(self, "bounds", _checked_bounds(self.bounds))
        if self.of not in ("last", "best"):
            raise InvalidInput(
                f"of={self.of!r}: use 'last', so that a trial counts for its last epoch, or 'best' if you keep the "
                "weights of the best epoch"
            )
        if self.smooth is not None:
            object.__setattr__(self, "smooth", _checked_smooth(self.smooth))
        if self.rank_by is not None and (not isinstance(self.rank_by, str) or self.rank_by in ("", self.metric)):
            raise InvalidInput(f"rank_by={self.rank_by!r}: use the name of another metric, such as 'eval_loss'")

    def __repr__(self) -> str:
        """Return the goal as a user writes it: Minimize('val_loss', of='best')."""
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join([repr(self.metric), *given])})"

    @property
    def final(self) -> str:
        """The metric that ranks full trainings: that of rank_by=, or else its own."""
        return self.rank_by or self.metric

    def better(self, value: float, than: float) -> bool:
        """Return whether `value` ranks above `than`; a value that is not finite ranks last."""
        if not math.isfinite(value):
            return False
        return not math.isfinite(than) or self.sign * value > self.sign * than

    def to_json(self) -> dict[str, Any]:
        name = "maximize" if self.sign > 0 else "minimize"
        return {
            "goal": name,
            "metric": self.metric,
            "bounds": self.bounds and list(self.bounds),
            "of": self.of,
            "smooth": list(self.smooth) if isinstance(self.smooth, tuple) else self.smooth,
            "rank_by": self.rank_by,
        }


class Maximize(_MetricGoal):
    """Larger values of a metric are better.

    Args:
        metric: The name under which the training logs the metric, such as "val_acc".
        bounds: (lowest, highest) possible value, in its unit: score = (value - low) / (high - low). Default: None,
            and the scale is learnt from reported values.
        of: The epoch whose value counts for a trial: its "last" epoch, or its "best" if you keep the best weights.
            Default: "last".
        smooth: Width of an average of the reports, in the study's unit, for decisions and ranks: 200 is an
            exponential moving average over 200 steps; or ("median", 200). The log keeps the original values.
            Default: None.
        rank_by: Another metric, better in the same direction, whose last value ranks the fully trained trials:
            Minimize("train_loss", smooth=200, rank_by="eval_loss"). Default: None.

    Raises:
        InvalidInput: If the metric is not a name, or bounds are not two finite numbers, the smaller first.

    Example:
        >>> Maximize("val_acc", bounds=(0, 1)).better(0.9, than=0.8)
        True
    """

    sign = 1.0


class Minimize(_MetricGoal):
    """Smaller values of a metric are better.

    Args:
        metric: The name under which the training logs the metric, such as "val_loss".
        bounds: (lowest, highest) possible value, in its unit: score = (high - value) / (high - low). Default: None,
            and the scale is learnt from reported values.
        of: The epoch whose value counts for a trial: its "last" epoch, or its "best" if you keep the best weights.
            Default: "last".
        smooth: Width of an average of the reports, in the study's unit, for decisions and ranks: 200 is an
            exponential moving average over 200 steps; or ("median", 200). The log keeps the original values.
            Default: None.
        rank_by: Another metric, better in the same direction, whose last value ranks the fully trained trials:
            Minimize("train_loss", smooth=200, rank_by="eval_loss"). Default: None.

    Raises:
        InvalidInput: If the metric is not a name, or bounds are not two finite numbers, the smaller first.

    Example:
        >>> Minimize("val_loss").better(0.2, than=float("nan"))
        True
    """

    sign = -1.0


Goal = Maximize | Minimize


def goal_from_json(data: Mapping[str, Any]) -> Goal:
    kind = Maximize if data["goal"] == "maximize" else Minimize
    return kind(**{name: value for name, value in data.items() if name != "goal"})  # a newer option has its default


def _checked_bounds(bounds: Any) -> tuple[float, float]:
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise InvalidInput(f"bounds must be two numbers (lowest, highest); got {bounds!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(
            f"bounds {bounds!r}: use two finite numbers, the smaller first. "
            "If the metric has no bounds, omit them; then haltune learns the scale"
        )
    return low, high


def _checked_smooth(given: Any) -> float | tuple[str, float]:
    kind, width = given if isinstance(given, (list, tuple)) and len(given) == 2 else ("mean", given)
    if kind not in ("mean", "median") or not within(width, 0.0):
        raise InvalidInput(
            f"smooth={given!r}: use the width of the average in the study's unit, such as 200 or ('median', 200)"
        )
    return float(width) if kind == "mean" else (kind, float(width))


def smoothed(goal: Goal, epochs: Sequence[float], values: Sequence[float]) -> float:
    """Return the goal's value after the last of these reports.

    For positions p_i and a width w, the mean is sum v_i exp((p_i - p_n) / w) / sum exp((p_i - p_n) / w): the
    exponential moving average without its bias towards the start. The median is over the reports within w. Values that
    are not finite are ignored, but if the last one is not finite, it is returned.
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
        raise InvalidInput("goal=[] is empty. Use [Maximize('val_acc'), Minimize('latency_ms')], or one of them")
    for goal in goals:
        if isinstance(goal, str):
            raise InvalidInput(f"goal={goal!r} has no direction. Use Maximize({goal!r}) or Minimize({goal!r})")
        if not isinstance(goal, (Maximize, Minimize)):
            raise InvalidInput(
                f"the goal must be Maximize('val_acc', bounds=(0, 1)), Minimize('val_loss') or a list; got {goal!r}. "
                "Check that space and goal are not swapped"
            )
    names = [goal.metric for goal in goals]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(f"two goals have the metric {twice[0]!r}. Use a different metric for each")
    if len(goals) > 1 and (own := [g for g in goals if g.smooth is not None or g.rank_by is not None]):
        raise InvalidInput(
            f"{type(own[0]).__name__}({own[0].metric!r}) has smooth= or rank_by=, which need a study with one goal. "
            "Omit them, or use only this goal"
        )
    if len(goals) > 1 and (of_best := [goal for goal in goals if goal.of == "best"]):
        raise InvalidInput(
            f"{type(of_best[0]).__name__}({of_best[0].metric!r}, of='best') needs a single goal: several goals can "
            "have different best epochs, so a trial counts for its last. Omit of=, and save the best weights yourself"
        )
    return goals


# -- constraints -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constraint(KnowsArguments):
    """A metric that a trial must keep within limits.

    Args:
        metric: The name under which trials report the metric, such as "params".
        at_most: The largest allowed value. Default: None, no such limit.
        at_least: The smallest allowed value. Default: None, no such limit.
        changes: True if training changes the value. If False (parameters, latency, memory), a trial stops at its first
            report that violates a limit, but not before min_epochs. If True (recall, a gap), a trial that violates a
            limit ranks behind all feasible trials, and the policy treats its value as that bad. Default: None, by the
            name: acc, loss, recall, gap and similar names change; others do not.

    Raises:
        InvalidInput: If the metric is not a name, or the limits are missing, not finite or in the wrong order.

    Example:
        >>> Constraint("params", at_most=5e6).violation(6e6)
        0.2
    """

    metric: str
    at_most: float | None = None
    at_least: float | None = None
    changes: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidInput(f"a constraint's metric must be a name such as 'params'; got {self.metric!r}")
        for name in ("at_most", "at_least"):
            if (value := getattr(self, name)) is not None:
                if not is_number(value):
                    raise InvalidInput(f"Constraint({self.metric!r}, {name}={value!r}): use a finite number")
                object.__setattr__(self, name, float(value))
        if self.at_most is None and self.at_least is None:
            raise InvalidInput(f"Constraint({self.metric!r}) has no limit. Give at_most=, at_least= or both")
        if self.at_most is not None and self.at_least is not None and self.at_least > self.at_most:
            raise InvalidInput(
                f"Constraint({self.metric!r}, at_most={self.at_most:g}, at_least={self.at_least:g}): no value "
                "satisfies both limits"
            )
        if self.changes is None:
            object.__setattr__(self, "changes", is_learnt(self.metric))
        elif not isinstance(self.changes, bool):
            raise InvalidInput(f"Constraint({self.metric!r}, changes={self.changes!r}): use True or False")

    def violation(self, value: float) -> float:
        """Return the distance beyond a limit, as a share of the limit: 0 if it holds, infinite for NaN."""
        if math.isnan(value):
            return math.inf
        over = 0.0 if self.at_most is None else (value - self.at_most) / (abs(self.at_most) or 1.0)
        under = 0.0 if self.at_least is None else (self.at_least - value) / (abs(self.at_least) or 1.0)
        return max(0.0, over, under)

    def __str__(self) -> str:
        limits = {"at most": self.at_most, "at least": self.at_least}
        return f"{self.metric} {' and '.join(f'{k} {v:g}' for k, v in limits.items() if v is not None)}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON; `Constraint(**data)` is the inverse."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def violation(constraints: Sequence[Constraint], latest: Callable[[str], float]) -> float:
    """Return the sum over all constraints. latest: returns a metric's last reported value."""
    return sum(c.violation(latest(c.metric)) for c in constraints)


def latest(column: Sequence[float]) -> float:
    """Return the last reported value; NaN if there is none."""
    return next((value for value in reversed(column) if not math.isnan(value)), math.nan)


def _checked_constraints(given: Any) -> tuple[Constraint, ...]:
    if isinstance(given, Constraint):
        given = (given,)
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise InvalidInput(f"constraints must be a list, [Constraint('params', at_most=5e6)]; got {given!r}")
    for one in given:
        if not isinstance(one, Constraint):
            raise InvalidInput(
                f"a constraint on a metric must be Constraint('params', at_most=5e6); got {one!r}. A constraint on "
                "configurations belongs to the space: Space({...}, constraints=[...])"
            )
    names = [c.metric for c in given]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(
            f"two constraints on {twice[0]!r}. Give both limits in one: Constraint({twice[0]!r}, at_most=, at_least=)"
        )
    return tuple(given)


# -- the budget ------------------------------------------------------------------------------------

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)\s*")


def seconds_of(duration: float | str, what: str = "time") -> float:
    """Return the seconds in a duration such as "2h", "1h30m", "90 s", or a number of seconds.

    Raises InvalidInput if the duration cannot be read, or is not positive and finite.
    """
    total = math.nan
    if isinstance(duration, str):
        parts = list(_DURATION.finditer(text := duration.strip().lower()))
        if parts and "".join(p.group(0) for p in parts) == text:
            total = sum(float(p.group(1)) * _UNITS[p.group(2)[0]] for p in parts)
    elif is_number(duration):
        total = float(duration)
    if not (math.isfinite(total) and total > 0):
        raise InvalidInput(
            f"Cannot read {what}={duration!r}. Use a positive duration such as '2h', '1h30m', '90s', or seconds"
        )
    return total


@dataclass(frozen=True)
class Budget(KnowsArguments):
    """Limits on the cost of a search, over all its workers. Every given limit applies; None means no limit.

    A gain is a trial that ends or pauses as the best of the study (see `study.best`). With several goals it is a trial
    that no other dominates. A gain resets the count of `trials_without_gain` to 0. Each other trial that completes,
    stops early or pauses counts once; failed and interrupted trials do not count. Before the first complete trial,
    pauses do not count, because early values are not final values. If the policy fills rungs before it resumes trials,
    like Hyperband, use at least the size of a rung.

    Args:
        trials: Number of trials that may start, failed ones included. Trials that have started may continue.
            Default: None.
        epochs: Number of epochs that may be trained. Default: None.
        time: Wall-clock time while any worker has a trial, decisions included: seconds, or text such as "1h30m".
            Default: None.
        worker_time: The same time, summed over workers. Default: None.
        money: Worker time multiplied by each worker's price, in the price's unit. Default: None.
        price: Price of a worker per hour, if it has no price of its own; not a limit. A worker's own price is in its
            environment variable HALTUNE_PRICE, or in `study.optimize(train, price=)`. Default: None.
        cost: Sum of the `cost` that trials report, in the user's unit. Default: None.
        trials_without_gain: Number of consecutive trials that may end or pause without a gain. Then no trial starts.
            Trials that have started may continue, and a gain among them resets the count. Default: None.

    Raises:
        InvalidInput: If a limit is not positive, or a duration cannot be read.

    Example:
        >>> Budget(time="1h30m", trials=50).time
        5400.0
        >>> Budget(time="2h", trials_without_gain=10).trials_without_gain
        10
    """

    trials: int | None = None
    epochs: float | None = None
    time: float | str | None = None
    worker_time: float | str | None = None
    money: float | None = None
    price: float | None = None
    cost: float | None = None
    trials_without_gain: int | None = None

    def __post_init__(self) -> None:
        pythonic(self)
        for name in ("time", "worker_time"):
            if (duration := getattr(self, name)) is not None:
                object.__setattr__(self, name, seconds_of(duration, name))
        for name in ("trials", "trials_without_gain", "epochs", "money", "price", "cost"):
            if (limit := getattr(self, name)) is None:
                continue
            endless = isinstance(limit, float) and limit == math.inf
            if not (endless or within(limit, 0.0)) or (isinstance(limit, int) and limit >= 2**63):
                hint = ". Write the number alone; a duration is time='2h'" if isinstance(limit, str) else ""
                raise InvalidInput(f"Budget({name}={limit!r}): use a positive number, or None for no limit{hint}")
            if name.startswith("trials") and limit % 1 > 0:  # infinity has no remainder
                raise InvalidInput(f"Budget({name}={limit!r}): use a whole number, or None for no limit")

    @property
    def unlimited(self) -> bool:
        return set({**vars(self), "price": None}.values()) == {None}

    def to_json(self) -> dict[str, Any]:
        """Return the finite limits; `Budget(**limits)` is the inverse."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: limit for name, limit in given.items() if limit is not None and math.isfinite(limit)}


# -- the problem -----------------------------------------------------------------------------------

LENGTHS = {"max_epochs": "epoch", "max_steps": "step", "max_tokens": "token"}  # argument of Study -> its unit


def singular(unit: Any) -> Any:
    """Return the singular of epochs, steps and tokens; any other unit as it is."""
    return next((one for one in LENGTHS.values() if unit == several_of(one)), unit)


def length_argument(unit: str) -> str:
    """Return the argument of Study for the length of a full training; a unit of the user's own uses max_epochs."""
    return next((name for name, counts in LENGTHS.items() if counts == unit), "max_epochs")


def length_advice(unit: str, end: float) -> str:
    """Return what to do about a fit whose plan ends at `end`, and not with a full training, for messages."""
    full = length_argument(unit)
    set_it = f", or set {full}={end:.0f} in the search" if float(end).is_integer() else ""
    return f"Give the loop trial.{full}{set_it}"


def position_argument(unit: str) -> str:
    """Return the position argument of a report, as in trial.report(value, step=n)."""
    return {"step": "step=n", "token": "tokens=n"}.get(unit, "n")


_UNIT = re.compile(r"[^\W\d_](?:[\w -]{0,38}\w)?")  # one or more words: epoch, step, game played


def rounded(position: float) -> float:
    """Return a position without the rounding error of a sum of batches: the nearest whole number, if it is that."""
    near = round(position)
    return float(near) if near and abs(position - near) <= 1e-9 * near else position


@dataclass(frozen=True)
class Grid:
    """The points at which the study asks its policy; see haltune.log.points."""

    every: float  # distance between two points, in the study's unit
    horizon: float | None  # of a full training, in that unit
    slack = 0.01  # share of the distance by which a report may be early: loops compute positions from batches

    @property
    def last(self) -> int | None:
        return None if self.horizon is None else max(1, math.ceil(self.horizon / self.every - self.slack))

    @property
    def mean(self) -> float:
        """Mean distance between the points of a full training, whose last one may be nearer."""
        return self.every if self.horizon is None else self.horizon / (self.last or 1)

    def points(self, position: float) -> float:
        found = rounded(position / self.every)
        if self.horizon is None:
            return found
        last = float(self.last or 1)
        return last if position >= self.horizon * (1.0 - 1e-9) else min(found, math.nextafter(last, 0.0))

    def position(self, points: float) -> float:
        if self.horizon is not None and points >= (self.last or 1):
            return self.horizon
        return points * self.every


@dataclass(frozen=True)
class Problem(KnowsArguments):
    """A search: its space, its goals, and the length of a full training.

    Args:
        space: The search space.
        goal: Maximize(...) or Minimize(...) of a metric. A list of several goals searches for the Pareto front, see
            `study.pareto_front()`. `problem.goal` is the first one, `problem.goals` are all.
        max_epochs: Epochs of a full training. Default: None, no fixed length, for policies with their own schedule.
            Then `trial.max_epochs` is ENDLESS, a number that frameworks accept.
        start: Configurations that are trained first, in this order, with any policy: defaults or guesses.
            `study.enqueue` adds more. Default: none.
        constraints: Limits on metrics of trials, [Constraint("params", at_most=5e6)]. Default: none.
        further: The goals after the first; a list in `goal` sets them. Default: none.
        min_epochs: Epochs that each trial trains before the policy may stop or pause it, for a learning-rate warm-up.
            The budget, a failure or the user can still end it. Default: 0.
        unit: What a training counts: "epoch", "step", "token" or a word of your own, in the singular. max_epochs,
            min_epochs, judge_every and the positions of reports use this unit. Default: "epoch".
        judge_every: The policy judges a trial once per this many units. Default: None, at every report: haltune
            measures their distance from the first reports of the study.
        spacing: The same distance, as measured in the log. Default: None, not measured.
        grid: The points of the policy's own problem. Default: None, the study's problem.

    Raises:
        InvalidInput: If the space or a goal is invalid, two goals have the same metric, max_epochs is not a whole
            number of at least 1, or a configuration in `start` repeats or is not in the space.

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
    spacing: float | None = field(default=None, compare=False, repr=False)  # as judge_every, from the log
    grid: Grid | None = field(default=None, compare=False, repr=False)
    # read from a log, whose space may have been widened
    of_log: bool = field(default=False, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.space, Space):
            raise InvalidInput(f"the first argument must be Space({{...}}); got {type(self.space).__name__}")
        first, *others = _checked_goals(self.goal)
        object.__setattr__(self, "goal", first)
        if others or self.further:
            object.__setattr__(self, "further", _checked_goals([first, *(others or self.further)])[1:])
        object.__setattr__(self, "constraints", _checked_constraints(self.constraints))
        if self.goal.of == "best" and (changing := [c for c in self.constraints if c.changes]):
            raise InvalidInput(
                f"of='best' with {changing[0]}, which training changes: the best epoch may violate the limit. "
                f"Omit of=, to count the last epoch: {type(self.goal).__name__}({self.goal.metric!r})."
                f" Or, if it does not change, use Constraint({changing[0].metric!r}, ..., changes=False)"
            )
        pythonic(self)
        object.__setattr__(self, "unit", singular(self.unit))
        full, least, length = self.max_epochs, self.min_epochs, length_argument(self.unit)
        if full is not None and (isinstance(full, bool) or not isinstance(full, int) or full < 1):
            raise InvalidInput(f"{length} must be a whole number of at least 1, or None; got {full!r}")
        if full is not None and full > MOST_EPOCHS:
            raise InvalidInput(f"{length} is above 10**12. Omit it for no limit.")
        if isinstance(least, bool) or not isinstance(least, int) or least < 0:
            raise InvalidInput(f"min_epochs must be a whole number of at least 0; got {least!r}")
        if full is not None and least > full:
            raise InvalidInput(
                f"min_epochs={least} is above {length}={full}, the length of a full training. Lower min_epochs, "
                f"or raise {length}."
            )
        if not isinstance(self.unit, str) or not _UNIT.fullmatch(self.unit):
            raise InvalidInput(
                f"unit={self.unit!r}: use the singular of what a training counts, such as 'step' or 'game'"
            )
        every = self.judge_every
        if every is not None and not (within(every, 0.0) and every <= (full or math.inf)):
            most = "" if full is None else f", at most {full}, a full training"
            raise InvalidInput(f"judge_every={every!r}: use a number of {self.units} above 0{most}")
        if self.grid is None and (every := self.every) is not None and (full or 1) / every > MOST_EPOCHS:
            raise InvalidInput(f"judge_every={every!r}: a full training would have more than 10**12 judged reports")
        object.__setattr__(self, "start", self._checked_start())

    if TYPE_CHECKING:  # the argument may be a list; the attribute is its first entry

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
        """Units between two judged reports; None: one unit."""
        return self.judge_every or self.spacing

    def in_points(self) -> Problem:
        """Return the policy's problem: epochs are points at which trials are judged, values are smoothed.

        See haltune.log.points.
        """
        every, goal = self.every or 1.0, self.goal
        plain = goal.smooth is None and goal.rank_by is None
        if self.grid is not None or (self.every is None and plain):
            return self
        seen = goal if plain else type(goal)(goal.metric, goal.bounds, goal.of)
        grid = Grid(every, None if self.max_epochs is None else float(self.max_epochs))
        least = math.ceil(self.min_epochs / every - grid.slack)
        return replace(
            self,
            goal=seen,
            max_epochs=grid.last,
            min_epochs=min(least, grid.last or least),
            judge_every=None,
            grid=grid,
        )

    def points(self, option: float) -> float:
        """Return a policy's option, given in the study's unit, in points, at least 1."""
        return option if self.grid is None else max(1.0, float(round(self.grid.points(option))))

    def amount(self, epochs: float) -> str:
        """Return a number of epochs in words, in the study's unit: 9 epochs, 1 step, 2M tokens."""
        count = self.in_unit(epochs)
        return f"{numeral(count)} {self.unit if count == 1 else self.units}"

    def at(self, epoch: float) -> str:
        """Return a position in words, in the study's unit: epoch 9, epoch 0.35, step 1200."""
        return f"{self.unit} {numeral(self.in_unit(epoch))}"

    def reached(self, epoch: float) -> str:
        """Return the progress of a training: 3 of 12, 0.35 of 1, 1200 of 2000, or 3 without max_epochs."""
        end = f" of {numeral(self.in_unit(self.max_epochs))}" if self.max_epochs else ""
        return f"{numeral(self.in_unit(epoch))}{end}"

    def in_unit(self, epoch: float) -> float:
        """Return a position in the study's unit, also if this is the policy's problem, in points."""
        return epoch if self.grid is None else self.grid.position(epoch)

    @cached_property
    def units(self) -> str:
        return several_of(self.unit)

    @cached_property
    def goals(self) -> tuple[Goal, ...]:
        return (self.goal, *self.further)

    @property
    def by_best_epoch(self) -> Goal | None:
        """The goal with of="best", for advice; None if it has that, or cannot have it in this problem."""
        if self.goal.of == "best" or self.further or any(c.changes for c in self.constraints):
            return None
        return replace(self.goal, of="best")

    @property
    def plain(self) -> bool:
        """True with one goal and no constraints: the result of a trial is one number."""
        return not (self.further or self.constraints)

    @property
    def measured(self) -> tuple[str, ...]:
        """The other metrics of trials: of further goals, constraints and rank_by=."""
        return self.measures.others

    @cached_property
    def measures(self) -> Measures:
        goals, by = tuple(g.metric for g in self.further), self.goal.rank_by
        limited = tuple(c.metric for c in self.constraints if c.metric not in (self.goal.metric, *goals))
        ranked = () if by is None or by in (*goals, *limited) else (by,)
        return Measures(self.goal.metric, goals, limited, ranked)

    def _checked_start(self) -> tuple[dict[str, Any], ...]:
        if isinstance(self.start, (str, Mapping)) or not isinstance(self.start, Sequence):
            raise InvalidInput(f"start must be a list of configurations, [{{...}}, {{...}}]; got {self.start!r}")
        found = tuple(self.checked(config, f"start[{i}]", self.space.whole) for i, config in enumerate(self.start))
        keys = self.space.keys(found)
        for i, key in enumerate(keys):
            if (first := keys.index(key)) < i:
                raise InvalidInput(
                    f"start[{i}] is equal to start[{first}]. Remove one; to train a configuration twice, use "
                    "study.enqueue(config, again=True)"
                )
        return found

    def checked(self, config: Mapping[str, Any], what: str, space: Space | None = None) -> dict[str, Any]:
        """Return a complete configuration in canonical form. Raises InvalidInput, with `what`, if it is invalid.

        space: default: that of new configurations.
        """
        try:
            if space is None and self.space.inside is not self.space:
                self.space.inside.canonical(config)
            canonical = self.space.canonical(config)
            broken = [c.name for c in self.space.constraints if not c.allows(canonical)]
        except InvalidSpace as error:
            raise InvalidInput(f"{what}: {error}") from error
        if broken:
            raise InvalidInput(f"{what}: the constraint {broken[0]!r} forbids {canonical!r}")
        return canonical

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a study records and compares when it is reopened."""
        return {
            "space": self.space.to_json(),
            "goal": [g.to_json() for g in self.goals] if self.further else self.goal.to_json(),
            **{name: getattr(self, name) for name in _AS_IT_IS},
            "constraints": [c.to_json() for c in self.constraints],
            "start": list(self.start),
        }

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], constraints: Mapping[str, Callable[[dict[str, Any]], bool]] | None = None
    ) -> Problem:
        """Return the problem of `to_json`; a field that is newer than the log has its default.

        Raises InvalidSpace unless its constraint functions are supplied, InvalidInput for a field of a newer version.
        """
        if unknown := sorted(data.keys() - {"space", "goal", "constraints", "start", *_AS_IT_IS}):
            raise InvalidInput(f"a problem with {unknown[0]!r}: {NEWER}")
        goals = data["goal"] if isinstance(data["goal"], (list, tuple)) else [data["goal"]]
        return cls(
            Space.from_json(data["space"], constraints),
            [goal_from_json(goal) for goal in goals],
            start=data.get("start", ()),
            constraints=[Constraint(**limit) for limit in data.get("constraints", ())],
            **{name: data[name] for name in _AS_IT_IS if name in data},
        ).as_of_log()

    def as_of_log(self) -> Problem:
        """Return this problem marked as read from a log, whose space may have been widened."""
        found = replace(self)
        object.__setattr__(found, "of_log", True)
        return found


_AS_IT_IS = ("max_epochs", "min_epochs", "unit", "judge_every")  # fields that JSON records without a change


# -- what a report must contain ----------------------------------------------------------------------


@dataclass(frozen=True)
class Measures:
    """The metrics that reports must contain."""

    first: str  # of the first goal
    goals: tuple[str, ...] = ()  # of the other goals: in every report
    limited: tuple[str, ...] = ()  # of constraints: in the first report; a later report may omit them
    ranked: tuple[str, ...] = ()  # of rank_by=: in some report, preferably the last

    @cached_property
    def others(self) -> tuple[str, ...]:
        return (*self.goals, *self.limited, *self.ranked)

    def split(self, value: Any, metrics: Any) -> tuple[Any, dict[Any, Any]]:
        """Return the first goal's value and the other metrics of a report, which is a number or a mapping.

        Raises InvalidInput if a mapping has no first goal.
        """
        if not isinstance(metrics or {}, Mapping):
            raise InvalidInput(f"metrics={metrics!r}: use a mapping of names to numbers, such as {{'loss': 0.3}}")
        further = dict(metrics or {})
        if not isinstance(value, Mapping):
            return value, further
        if self.first not in value:
            raise self._lacks(self.first, value)
        further |= {name: one for name, one in value.items() if name != self.first}
        return value[self.first], further

    def check(self, metrics: Mapping[str, Any], known: Container[str]) -> None:
        """Raise InvalidInput if a metric is missing. known: metrics that the trial has reported before."""
        for name in (*self.goals, *self.limited):
            if name not in metrics and (name in self.goals or name not in known):
                raise self._lacks(name, {self.first: None, **metrics})

    def _lacks(self, name: str, given: Mapping[Any, Any]) -> InvalidInput:
        all_ = (self.first, *self.goals, *self.limited)
        near = get_close_matches(name, [str(n) for n in given], n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        what = (
            "every report needs all goals"
            if name in (self.first, *self.goals)
            else "the first report needs it for a constraint"
        )
        return InvalidInput(
            f"The report has no {name!r}: {what}. This study needs {', '.join(map(repr, all_))}; the report has "
            f"{', '.join(map(repr, given)) or 'nothing'}.{meant} Use trial.report("
            f"{{{', '.join(f'{n!r}: ...' for n in all_)}}}). A callback reports what the training logs by these names"
        )
