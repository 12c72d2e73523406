"""One trial: as its events make it, as others see it, read-only, and by what it is ranked.

Which trial is the best, by one rule for every caller: a trial counts for one value, and the goal says which: its last,
none where that is not finite, or its best epoch's. It is complete when haltune did not cut it: it reached max_epochs,
ended by itself at whatever epoch, or had all that its policy gives any trial. The best trial is the complete one of the
best value; before there is one, the best of those that went furthest, failed ones behind all others. Where there are
constraints, all trials that satisfy them come before all that do not, and of these the one that is the least beyond
limits comes first.
"""

from __future__ import annotations

import copyreg
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from haltune._utils.arrays import Array, Mask
from haltune._utils.checks import LARGEST
from haltune._utils.process import named
from haltune.above import above
from haltune.display import facts, numeral, settings, short
from haltune.hints import KnowsAttributes

from .decisions import EARLIER, FULL, Action, Config, Verdict
from .events import OVER, AttemptEvent, Checkpointed, Ended, Expired, Kept, Reported, Resumed, Started, Status
from .problem import Goal, Problem, latest, smoothed, violation
from .scores import Scale, measured

Locate = Callable[[str], str | None]  # a path of the log, as a user opens it
Standing = tuple[float, float, float, float]  # the larger the better; the last is sign * value


def _read_only(mapping: dict[str, Any]) -> MappingProxyType[str, Any]:
    return MappingProxyType(mapping)


copyreg.pickle(MappingProxyType, lambda proxy: (_read_only, (dict(proxy),)))  # records and histories hold some


@dataclass(frozen=True, eq=False)
class TrialRecord(KnowsAttributes):
    """One trial, as the log has it. Arrays are read-only, one entry a report of the current attempt."""

    id: int
    config: Config
    until: float | None  # epochs: the end of this leg
    epochs: Array  # (n,) positions in the study's unit, increasing; fractional within an epoch
    values: Array  # (n,) the goal's metric, raw
    scores: Array  # (n,) on [0, 1], by the scale in force for this trial; NaN before any scale is known
    seconds: Array  # (n,) of each epoch alone, validation included
    metrics: Mapping[str, Array]  # name -> (n,), NaN where it was not reported
    status: Status
    attempt: int  # from 1
    tags: Mapping[str, Any]
    resource: float | None = None
    checkpoint: str | None = None  # path of what was saved, which may have been deleted since
    checkpoint_epoch: float = 0.0
    kept: str | None = None  # likewise: the state after its best epoch, where that counts
    started: float = 0.0  # seconds since the epoch
    verdict: Verdict | None = None  # the last that was not CONTINUE
    error: str | None = None
    proposed: str = ""  # why its policy chose it
    resumed: str = ""  # why its present attempt continues; "" for the first one
    partial: bool = False  # never a full training: on few samples, say
    complete: bool = False  # haltune did not cut it
    unit: str = "epoch"  # what the study counts
    smoothed: Array | None = None  # (n,) values as the goal's smooth= has them; None without

    @cached_property
    def whole(self) -> Mask:
        """(n,) True at whole epochs: of a history in points the judged reports, see haltune.log.points."""
        return np.asarray(self.epochs == np.floor(self.epochs))

    @cached_property
    def epoch_seconds(self) -> Array:
        """(n,) seconds an epoch: a report may cover several epochs, or a part of one."""
        return self.seconds / np.diff(self.epochs, prepend=0.0)

    @cached_property
    def epoch(self) -> float:
        """The last epoch reported, 0 before the first."""
        return float(self.epochs[-1]) if len(self.epochs) else self.checkpoint_epoch

    @property
    def ended_because(self) -> str:
        """Its error, or the reason of the verdict that ended it; "" if none did: it declined a pause, say."""
        ended = self.status in (Status.STOPPED, Status.PAUSED, Status.INTERRUPTED)
        return self.error or (self.verdict.reason if ended and self.verdict and self.verdict.stops else "")

    @property
    def cut_because(self) -> tuple[str, str]:
        """The title and the reason of its end; also of a trial that got a verdict to end and still trains."""
        if self.status is Status.RUNNING and self.verdict:
            return "cut because", self.verdict.reason
        return "paused because" if self.status is Status.PAUSED else "ended because", self.ended_because

    def __repr__(self) -> str:
        value = f", value={short(float(self.values[-1]))}" if len(self.values) else ""
        return f"TrialRecord({self.id}, {self.status}, epoch={self.epoch:.7g}{value}, config={dict(self.config)})"

    def _repr_html_(self) -> str:
        end = f" at {self.unit} {numeral(self.epoch)}" if len(self.epochs) else ""
        value = short(float(self.values[-1])) if len(self.values) else ""
        return facts(
            f"Trial {self.id}: {self.status}{end}",
            [("last value", value), ("configuration", settings(self.config)), ("chosen because", self.proposed),
             self.cut_because, ("checkpoint", self.checkpoint or "")],
        )  # fmt: skip

    def counting(self, goal: Goal) -> Array:
        """(n,) the value that the trial would count for had it ended at each report; see Goal.of."""
        values = self.values if self.smoothed is None else self.smoothed
        if goal.of == "last":
            return values
        heights = np.where(np.isfinite(values), goal.sign * values, -np.inf)
        tops = np.maximum.accumulate(heights)
        return np.where(np.isfinite(tops), goal.sign * tops, np.nan)

    def result(self, goal: Goal) -> float:
        """The value that the trial counts for: of its last or its best epoch; NaN when it has none."""
        value = float(self.counting(goal)[-1]) if len(self.values) else math.nan
        return value if math.isfinite(value) else math.nan

    def target(self, goal: Goal) -> float:
        """sign * its result, for models: NaN if it was not measured."""
        return goal.sign * float(measured(self.result(goal)))

    def column(self, metric: str, goal: Goal) -> Array:
        """(n,) a metric by its name, the goal's or a further one; NaN where it was not reported."""
        if metric == goal.metric:
            return self.values
        found = self.metrics.get(metric)
        return np.full(len(self.values), math.nan) if found is None else found

    def results(self, problem: Problem) -> dict[str, float]:
        """Its result in each goal, and in each metric that is constrained; NaN where it has no value."""
        found = {problem.goal.metric: self.result(problem.goal)}
        for name in problem.measured:
            found[name] = float(latest(self.column(name, problem.goal).tolist()))
        return found


@dataclass(frozen=True)
class Best(KnowsAttributes):
    """The best configuration found."""

    trial: int
    config: Config
    value: float  # the goal's metric
    epoch: float  # at which it had the value
    checkpoint: str | None = None  # path; None where none is kept
    checkpoint_epoch: float | None = None  # after which it was saved: `epoch`, unless that could not be
    unit: str = "epoch"  # what the study counts

    def load_model(self, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
        """The Keras model of `checkpoint`, as it was after that epoch; see haltune.callbacks.keras.load_best.

        make_model: then make_model(**config), with the weights and the optimizer of `checkpoint`.
        """
        load = above("load_best", "best.load_model", "haltune.callbacks.keras.load_best(best, make_model)")
        return load(self, make_model, **options)

    def _repr_html_(self) -> str:
        found = f"Best value {short(self.value, 6)} (trial {self.trial}, {self.unit} {numeral(self.epoch)})"
        config = [(name, short(value, 6)) for name, value in self.config.items()]
        return facts(found, [*config, ("checkpoint", self.checkpoint or "")])


@dataclass(frozen=True)
class OnFront(Best):
    """A trial of the Pareto front; `value` is the first goal's."""

    values: Mapping[str, float] = field(default_factory=dict)  # of each goal, and of each metric that is constrained


@dataclass(eq=False)
class TrialBuilder:
    """One trial of a history, changed in place by its events."""

    id: int
    config: Config
    until: float | None
    resource: float | None
    tags: Mapping[str, Any]
    started: float
    scale: Scale | None
    problem: Problem
    proposed: str
    partial: bool
    epoch: float = 0.0  # the last one reported, or where the attempt started
    epochs: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    smoothed: array[float] = field(default_factory=lambda: array("d"))  # of a goal with smooth=; else empty
    seconds: array[float] = field(default_factory=lambda: array("d"))
    metrics: dict[str, array[float]] = field(default_factory=dict)
    status: Status = Status.RUNNING
    attempt: int = 1
    fresh: bool = True  # its present attempt has reported nothing
    superseded: list[TrialRecord] = field(default_factory=list)  # attempts that a later one trains again
    losses: int = 0  # leases that expired
    checkpoint: str | None = None
    checkpoint_epoch: float = 0.0
    kept: str | None = None  # the state after `kept_epoch`, its best
    kept_epoch: float = 0.0
    verdict: Verdict | None = None
    error: str | None = None
    resumed: str = ""
    peak: float = -math.inf  # sign * the best finite value; -inf without one
    end: float = -math.inf  # sign * the last value; -inf when it is not finite
    counts: float = -math.inf  # of the two the one that the trial counts for
    top: int = -1  # index of the best finite value, the earliest of equals; -1: none
    restored: bool = False  # config went through the space: JSON has no tuples
    record: TrialRecord | None = None  # cache

    @classmethod
    def of(cls, e: Started, scale: Scale | None, problem: Problem) -> TrialBuilder:
        """The trial that an event starts."""
        return cls(e.trial, e.config, e.until, e.resource, e.tags, e.at, scale, problem, e.reason, e.partial)

    @property
    def complete(self) -> bool:
        """True when haltune did not cut it."""
        if self.partial:
            return False
        if self.status is Status.COMPLETED:
            return True
        if self.status is Status.STOPPED and self.verdict is not None and FULL in self.verdict.evidence:
            return True
        return self.problem.max_epochs is not None and self.epoch >= self.problem.max_epochs

    def standing(self, leaving: bool = False) -> Standing:
        """What it is ranked by. leaving: its training is about to end by itself."""
        complete = self.complete or (leaving and not self.partial)
        failed = self.status is Status.FAILED
        if self.problem.constraints and (complete or not failed) and (beyond := self.violation) > 0.0:
            return (0.5, -beyond, 0.0, self.counts)
        if complete:
            return (2.0, 0.0, 0.0, self._rank_value())
        given = (self.resource or 0.0) if self.partial else math.inf
        return (float(not failed), given, self.epoch, self.counts)

    @property
    def violation(self) -> float:
        """Of the constraints, by its last report; 0 where it keeps to them."""
        return violation(self.problem.constraints, self.latest)

    @property
    def vector(self) -> list[float]:
        """sign * its result in each goal, larger better; NaN where that is not finite."""
        signed = [g.sign * self.column(g.metric)[-1] for g in self.problem.further] if self.epochs else []
        return [v if math.isfinite(v) else math.nan for v in (self.counts, *signed)]

    def column(self, metric: str) -> Sequence[float]:
        """(n,) a metric by its name, the first goal's or a further one; NaN where it was not reported."""
        if metric == self.problem.goal.metric:
            return self.values
        return self.metrics.get(metric) or [math.nan] * len(self.epochs)

    def latest(self, metric: str) -> float:
        """The value of a metric that was reported last; NaN before there was any."""
        return latest(self.column(metric))

    def _rank_value(self) -> float:
        """sign * what it is ranked by in the end: the metric of rank_by=, else what it counts for."""
        goal = self.problem.goal
        if goal.rank_by is None:
            return self.counts
        value = self.latest(goal.rank_by)
        return goal.sign * value if math.isfinite(value) else -math.inf

    def best(self, locate: Locate) -> Best:
        """It as the best."""
        goal = self.problem.goal
        i = self.top if goal.of == "best" else -1
        value = (self.smoothed or self.values)[i]
        if goal.rank_by is not None and self.complete and (ranked := self._rank_value()) > -math.inf:
            i, value = -1, goal.sign * ranked
        found = Best(self.id, dict(self.config), value, self.epochs[i], unit=self.problem.unit)
        if self.kept is not None and self.kept_epoch == found.epoch:
            return replace(found, checkpoint=locate(self.kept), checkpoint_epoch=found.epoch)
        if self.checkpoint is None:
            return found
        return replace(found, checkpoint=locate(self.checkpoint), checkpoint_epoch=self.checkpoint_epoch)

    def resume(self, e: Resumed) -> None:
        """A later attempt, from the state that was saved last or from the start; it supersedes what came after."""
        if e.anew:
            self.checkpoint, self.checkpoint_epoch = None, 0.0
        keep = sum(n <= self.checkpoint_epoch for n in self.epochs)
        for column in (self.epochs, self.values, self.smoothed, self.seconds, *self.metrics.values()):
            del column[keep:]
        self.epoch = self.epochs[-1] if self.epochs else self.checkpoint_epoch
        self.top, self.peak, self.end, self.counts = -1, -math.inf, -math.inf, -math.inf
        for i, value in enumerate(self.smoothed or self.values):
            self._rank(i, value)
        if self.kept_epoch > self.checkpoint_epoch:
            self.kept, self.kept_epoch = None, 0.0
        self.attempt, self.started, self.status, self.fresh = e.attempt, e.at, Status.RUNNING, True
        self.until, self.resource, self.tags = e.until, e.resource, e.tags
        self.verdict, self.error, self.resumed, self.record = None, None, e.reason, None

    def take(self, e: AttemptEvent) -> bool:
        """An event of its present attempt; False where that is another or over, or the epoch was seen before."""
        if e.attempt != self.attempt or self.status is not Status.RUNNING:
            return False
        match e:
            case Reported():
                if e.epoch <= self.epoch:
                    return False
                if e.metrics or self.metrics:
                    self._append_metrics(e.metrics)
                self.fresh, self.epoch = False, e.epoch
                self.epochs.append(e.epoch)
                self.values.append(e.value)
                self.seconds.append(min(e.seconds, LARGEST))  # logs of older versions may have more
                value = e.value
                if self.problem.goal.smooth is not None:
                    value = smoothed(self.problem.goal, self.epochs, self.values)
                    self.smoothed.append(value)
                self._rank(len(self.values) - 1, value)
                if e.verdict.action in (Action.STOP, Action.PAUSE):
                    self.verdict = e.verdict
                elif e.verdict.until is not None:
                    self.until = e.verdict.until
            case Checkpointed():
                self.checkpoint, self.checkpoint_epoch = e.path, e.epoch
                if not self.epochs:
                    self.epoch = e.epoch
            case Kept():
                self.kept, self.kept_epoch = e.path, e.epoch
            case Ended():
                self.status, self.error = e.status, e.error
            case Expired():
                self.status, self.losses = e.status, self.losses + 1
                self.error = e.reason or f"{named(e.holder)} was lost"
        self.record = None
        return True

    def _append_metrics(self, metrics: Mapping[str, float]) -> None:
        for name in metrics:
            if name not in self.metrics:
                self.metrics[name] = array("d", [math.nan] * len(self.epochs))
        for name, column in self.metrics.items():
            column.append(metrics.get(name, math.nan))

    def _rank(self, i: int, value: float) -> None:
        goal = self.problem.goal
        self.end = goal.sign * value if math.isfinite(value) else -math.inf
        if self.end > self.peak:
            self.peak, self.top = self.end, i
        self.counts = self.end if goal.of == "last" else self.peak

    def missed(self, epoch: float) -> list[Reported]:
        """Reports of an earlier attempt that the present one continues after, if its first report is at `epoch`.

        An attempt that started at haltune's checkpoint would have reported where the earlier one did. So it started
        later, at a state that the training saved by itself, and the earlier reports before `epoch` belong to its curve.
        Of several attempts the one counts that came nearest to `epoch`, the latest of equals.
        """
        known = [_copies(t, self.epoch, epoch) for t in reversed(self.superseded)]
        return max(filter(None, known), key=lambda curve: curve[-1].epoch, default=[])

    def recorded(self, scale: Scale | None, locate: Locate) -> TrialRecord:
        """Its record made anew, a read-only copy. scale: where the trial started before any was known."""
        scale = self.scale or scale
        values, epochs, seconds = np.array(self.values), np.array(self.epochs), np.array(self.seconds)
        scores = scale.score(values) if scale else np.full(len(values), math.nan)
        metrics = {name: np.array(column) for name, column in self.metrics.items()} if self.metrics else {}
        seen = np.array(self.smoothed) if self.problem.goal.smooth is not None else None
        for column in (values, epochs, seconds, scores, *metrics.values(), *(() if seen is None else (seen,))):
            column.flags.writeable = False
        self.record = TrialRecord(
            id=self.id, config=self.config, until=self.until,
            epochs=epochs, values=values, scores=scores, seconds=seconds, metrics=MappingProxyType(metrics),
            status=self.status, attempt=self.attempt, tags=self.tags, resource=self.resource,
            checkpoint=self.checkpoint and locate(self.checkpoint), checkpoint_epoch=self.checkpoint_epoch,
            kept=self.kept and locate(self.kept), started=self.started, verdict=self.verdict, error=self.error,
            proposed=self.proposed, resumed=self.resumed, partial=self.partial, complete=self.complete, smoothed=seen,
            unit=self.problem.unit,
        )  # fmt: skip
        return self.record


def _copies(t: TrialRecord, after: float, before: float) -> list[Reported]:
    """The reports of a superseded attempt between two epochs, as a later attempt repeats them."""
    verdict = Verdict(Action.UNJUDGED, f"reported by attempt {t.attempt}", {EARLIER: t.attempt})
    return [
        Reported(
            at=t.started, trial=t.id, attempt=t.attempt, epoch=float(n), value=float(t.values[i]),
            seconds=float(t.seconds[i]), verdict=verdict, seen=0,
            metrics={name: float(c[i]) for name, c in t.metrics.items() if not math.isnan(c[i])},
        )
        for i, n in enumerate(t.epochs) if after < n < before
    ]  # fmt: skip


class TopTrial:
    """The trial that stands highest, of equals the first, kept while events are folded: it is asked after each."""

    def __init__(self) -> None:
        self._top: tuple[Standing, int] | None = None  # its standing, and minus its number
        self._fell = False  # it stands lower by now: others may stand higher

    def weigh(self, t: TrialBuilder) -> None:
        """A trial has changed."""
        stands = (t.standing(), -t.id) if t.counts > -math.inf else None
        if self._top is not None and self._top[1] == -t.id and (stands is None or stands < self._top):
            self._fell = True
        elif stands is not None and (self._top is None or stands > self._top):
            self._top = stands

    def among(self, trials: Sequence[TrialBuilder]) -> int | None:
        """Its number; None before a trial has a value."""
        if self._fell:
            valued = [(t.standing(), -t.id) for t in trials if t.counts > -math.inf]
            self._top, self._fell = max(valued, default=None), False
        return None if self._top is None else -self._top[1]


class Gains:
    """Trials that ended or paused since the last gain, folded from the ends of attempts; see Budget."""

    def __init__(self) -> None:
        self._group: tuple[float, ...] = ()  # standing of the best, its value apart
        self._front: list[list[float]] = []  # sign * results of the best trial, or of those on the front
        self._complete = False  # there is a complete trial
        self._idle: set[int] = set()

    @property
    def without(self) -> int:
        """How many trials ended or paused without a gain."""
        return len(self._idle)

    def end(self, t: TrialBuilder) -> None:
        """Fold the end of an attempt at a trial."""
        if t.status not in OVER and t.status is not Status.PAUSED:
            return
        self._complete |= t.complete
        if self._gain(t):
            self._idle.clear()
        elif t.status in (Status.COMPLETED, Status.STOPPED) or (t.status is Status.PAUSED and self._complete):
            self._idle.add(t.id)

    def _gain(self, t: TrialBuilder) -> bool:
        """Return whether a trial becomes the best, or one of the front."""
        group, vector = t.standing()[:-1], t.vector
        if any(map(math.isnan, vector)) or group < self._group:
            return False
        if group != self._group:
            self._group, self._front = group, []
        if any(all(a >= b for a, b in zip(other, vector, strict=True)) for other in self._front):
            return False
        kept = [other for other in self._front if any(a > b for a, b in zip(other, vector, strict=True))]
        self._front = [*kept, vector]
        return True
