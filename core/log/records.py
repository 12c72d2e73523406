"""One trial: built from its events, read-only for others, and its rank.

The best trial is chosen by one rule. A trial counts for one value; the goal decides which: the last value (none if it
is not finite) or the best. A trial is complete if haltune did not end it early: it reached max_epochs, ended by itself
at any epoch, or reached its policy's longest training. The best trial is the complete one with the best value. Before
any trial is complete, it is the best of those that trained furthest, failed ones last. If there are constraints,
trials that satisfy them come first; among the others, the one with the smallest violation comes first.

A trial that trains again, after an interruption, counts with its earlier attempt until the new one has come as far or
has ended. So a value that was recorded does not get worse because its training was cut off: the attempts train the same
configuration from the same states. A training that its program gave up does not count (see Port.restart): another one
replaces it, and no state of it will be saved.
"""

from __future__ import annotations

import copy
import copyreg
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from haltune._utils.arrays import Array, Mask
from haltune._utils.process import named
from haltune.above import above
from haltune.display import facts, numeral, settings, short
from haltune.errors import InvalidInput
from haltune.hints import KnowsAttributes

from .decisions import EARLIER, FULL, Action, Config, Verdict
from .events import OVER, AttemptEvent, Checkpointed, Ended, Expired, Kept, Reported, Resumed, Started, Status
from .folds import SETTLED, curves, ends, over_folds, plus_minus, spread
from .problem import MOST_EPOCHS, Goal, Problem, latest, smoothed, violation
from .scores import Scale, measured

Locate = Callable[[str], str | None]  # from a path in the log to one that users can open
Standing = tuple[float, float, float, float]  # larger is better; the last entry is sign * value


def _read_only(mapping: dict[str, Any]) -> MappingProxyType[str, Any]:
    return MappingProxyType(mapping)


copyreg.pickle(MappingProxyType, lambda proxy: (_read_only, (dict(proxy),)))  # records and histories contain some


@dataclass(frozen=True, eq=False)
class TrialRecord(KnowsAttributes):
    """One trial as recorded in the log. Arrays are read-only, with one entry per report of the current attempt."""

    id: int
    config: Config
    pause_at: float | None  # end of this leg, in epochs
    epochs: Array  # (n,) positions in the study's unit, increasing; fractional within an epoch
    values: Array  # (n,) the goal's metric, raw
    scores: Array  # (n,) on [0, 1], on this trial's scale; NaN if no scale is known
    seconds: Array  # (n,) since the report before, validation included
    metrics: Mapping[str, Array]  # name -> (n,), NaN if not reported
    status: Status
    attempt: int  # from 1
    tags: Mapping[str, Any]
    resource: float | None = None
    checkpoint: str | None = None  # path of the last checkpoint, which may have been deleted since
    checkpoint_epoch: float = 0.0
    weights: str = ""  # marks of the model in `checkpoint`, a line each; "": not known
    content: str = ""  # size and digest of `checkpoint` when it was recorded; "": a folder, or not known
    kept: str | None = None  # path of the state after its best epoch, if that epoch counts
    started: float = 0.0  # seconds since the epoch
    verdict: Verdict | None = None  # the last one that stops or pauses it
    error: str | None = None
    proposed: str = ""  # the policy's reason for choosing it
    resumed: str = ""  # the reason for its current attempt; "" for the first one
    partial: bool = False  # True: never a full training, for example because it uses few samples
    complete: bool = False  # haltune did not end it early
    unit: str = "epoch"  # of the study
    smoothed: Array | None = None  # (n,) values smoothed by the goal's smooth=; None without

    @cached_property
    def whole(self) -> Mask:
        """(n,) true at whole epochs; in a history in points, at the judged reports (see haltune.log.points)."""
        return np.asarray(self.epochs == np.floor(self.epochs))

    @cached_property
    def epoch_seconds(self) -> Array:
        """(n,) seconds per epoch: a report may cover several epochs or a part of one."""
        return self.seconds / np.maximum(np.diff(self.epochs, prepend=0.0), 1.0 / MOST_EPOCHS)

    @cached_property
    def typical_epoch(self) -> float:
        """Seconds of an epoch, the median over its reports, of which there must be one."""
        return float(np.median(self.epoch_seconds))

    @cached_property
    def epoch(self) -> float:
        return float(self.epochs[-1]) if len(self.epochs) else self.checkpoint_epoch

    @property
    def ended_because(self) -> str:
        """Its error, or the reason of the verdict that ended it; "" if neither did, as after a refused pause."""
        ended = self.status in (Status.STOPPED, Status.PAUSED, Status.INTERRUPTED)
        return self.error or (self.verdict.reason if ended and self.verdict else "")

    @property
    def cut_because(self) -> tuple[str, str]:
        """Title and reason of its end, also if a verdict ended it but it is still training."""
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
            [("last value", value), ("configuration", settings(self.config)), ("proposed", self.proposed),
             self.cut_because, ("checkpoint", self.checkpoint or "")],
        )  # fmt: skip

    def counting(self, goal: Goal) -> Array:
        """Return (n,) the value that would count if the trial had ended at each report; see Goal.of."""
        values = self.values if self.smoothed is None else self.smoothed
        if goal.of == "last":
            return values
        heights = np.where(np.isfinite(values), goal.sign * values, -np.inf)
        tops = np.maximum.accumulate(heights)
        return np.where(np.isfinite(tops), goal.sign * tops, np.nan)

    def result(self, goal: Goal) -> float:
        """Return the value that counts for the trial, of its last or best epoch; NaN if it has none."""
        value = float(self.counting(goal)[-1]) if len(self.values) else math.nan
        return value if math.isfinite(value) else math.nan

    def folds(self, problem: Problem) -> tuple[float, ...]:
        """Return the values of its folds that have ended, of which its result is the mean; empty without folds."""
        known = curves(self.metrics, problem.goal.metric)
        return ends(known, problem.max_epochs, self.status is Status.COMPLETED)

    def target(self, goal: Goal) -> float:
        """Return sign * its result, for models; NaN if it is not finite."""
        return goal.sign * float(measured(self.result(goal)))

    def column(self, metric: str, goal: Goal) -> Array:
        """Return (n,) a metric, of the first goal, smoothed, or another; NaN where it was not reported."""
        if metric == goal.metric:
            return self.values if self.smoothed is None else self.smoothed
        found = self.metrics.get(metric)
        return np.full(len(self.values), math.nan) if found is None else found

    def results(self, problem: Problem) -> dict[str, float]:
        """Return its result in each goal and each constrained metric; NaN if it has no value."""
        found = {problem.goal.metric: self.result(problem.goal)}
        for name in problem.measured:
            found[name] = float(latest(self.column(name, problem.goal).tolist()))
        return found


@dataclass(frozen=True)
class Best(KnowsAttributes):
    """The best configuration found.

    `checkpoint` is the state after `epoch`, never that of another epoch. While its trial trains, that is often not
    saved yet; the last state that was is study.trials[best.trial].checkpoint, of checkpoint_epoch.
    """

    trial: int
    config: Config
    value: float  # of `metric`
    epoch: float  # of that value
    checkpoint: str | None = None  # path of the state with `value`; None if that was not saved, or not yet
    unit: str = "epoch"  # what the study counts
    metric: str = ""  # the goal's, or that of rank_by=
    folds: tuple[float, ...] = ()  # the value of each fold, of which `value` is the mean; empty without folds

    @property
    def checkpoint_epoch(self) -> float | None:
        """The epoch of `checkpoint`, which is `epoch`; None without a checkpoint."""
        return None if self.checkpoint is None else self.epoch

    @property
    def std(self) -> float | None:
        """The sample standard deviation over its folds; None without folds."""
        return spread(self.folds)

    def __repr__(self) -> str:
        names = [f.name for f in fields(self) if f.name != "folds" or self.folds]
        names.insert(names.index("unit"), "checkpoint_epoch")
        shown = {name: getattr(self, name) for name in names}
        if self.std is not None:
            shown["std"] = float(short(self.std))
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __fspath__(self) -> str:
        """Return `checkpoint`, for functions that take a path: torch.load(study.best)."""
        if self.checkpoint is None:
            raise InvalidInput(
                f"Trial {self.trial} has no saved state of {self.unit} {numeral(self.epoch)}: study.best.checkpoint is "
                "None. In your own loop, call trial.save(write) after trial.report(...)."
            )
        return self.checkpoint

    def load_model(self, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Return the Keras model of `checkpoint`; see haltune.callbacks.keras.load_best.

        make_model: if given, the model is make_model(**config) with the weights and optimizer of `checkpoint`.
        """
        load = above("load_best", "best.load_model", "haltune.callbacks.keras.load_best(best, make_model)")
        return load(self, make_model, **options)

    def _repr_html_(self) -> str:
        at = f"trial {self.trial}, {self.unit} {numeral(self.epoch)}"
        found = f"Best {self.metric} {short(self.value, 6)}{plus_minus(self.folds)} ({at})"
        config = [(name, short(value, 6)) for name, value in self.config.items()]
        return facts(found, [*config, ("checkpoint", self.checkpoint or "")])


@dataclass(frozen=True, repr=False)
class OnFront(Best):
    """A trial of the Pareto front; `value` is the first goal's."""

    values: Mapping[str, float] = field(default_factory=dict)  # of each goal and each constrained metric


@dataclass(eq=False)
class TrialBuilder:
    """One trial of a history, updated by its events."""

    id: int
    config: Config
    pause_at: float | None
    resource: float | None
    tags: Mapping[str, Any]
    started: float
    scale: Scale | None
    problem: Problem
    proposed: str
    partial: bool
    epoch: float = 0.0  # the last reported one, or the start of the attempt
    epochs: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    smoothed: array[float] = field(default_factory=lambda: array("d"))  # of a goal with smooth=; else empty
    seconds: array[float] = field(default_factory=lambda: array("d"))
    metrics: dict[str, array[float]] = field(default_factory=dict)
    status: Status = Status.RUNNING
    attempt: int = 1
    fresh: bool = True  # its current attempt has no report
    superseded: list[TrialRecord] = field(default_factory=list)  # attempts that a later one trains again
    given_up: set[int] = field(default_factory=set)  # attempts of which nothing counts that a later one trains again
    former: TrialBuilder | None = None  # the attempt with which it counts, while the present one is behind it
    losses: int = 0  # leases that expired
    saved: Checkpointed | None = None  # the state to continue from
    kept: Kept | None = None  # the state after its best epoch
    verdict: Verdict | None = None
    error: str | None = None
    resumed: str = ""
    peak: float = -math.inf  # sign * the best finite value; -inf if there is none
    end: float = -math.inf  # sign * the last value; -inf if it is not finite
    counts: float = -math.inf  # `peak` or `end`, whichever counts for the trial
    top: int = -1  # index of the best finite value, the earliest of equal ones; -1: none
    restored: bool = False  # the space has restored the types of config: JSON has no tuples
    record: TrialRecord | None = None  # cache

    @classmethod
    def of(cls, e: Started, scale: Scale | None, problem: Problem) -> TrialBuilder:
        return cls(e.trial, e.config, e.pause_at, e.resource, e.tags, e.at, scale, problem, e.reason, e.partial)

    @property
    def counted(self) -> TrialBuilder:
        """The attempt with which the trial counts: the present one, unless that is behind an earlier one."""
        return self.former or self

    @property
    def checkpoint_epoch(self) -> float:
        return 0.0 if self.saved is None else self.saved.epoch

    @property
    def complete(self) -> bool:
        if self.partial:
            return False
        if self.status is Status.COMPLETED:
            return True
        if self.status is Status.STOPPED and self.verdict is not None and FULL in self.verdict.evidence:
            return True
        return self.problem.max_epochs is not None and self.epoch >= self.problem.max_epochs

    def standing(self, leaving: bool = False) -> Standing:
        """Return the sort key for ranks. leaving: its training is about to end by itself."""
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
        """Violation of the constraints by its last report; 0 if it satisfies them."""
        return violation(self.problem.constraints, self.latest)

    @property
    def vector(self) -> list[float]:
        """sign * its result in each goal, larger is better; NaN if not finite."""
        signed = [g.sign * self.column(g.metric)[-1] for g in self.problem.further] if self.epochs else []
        return [v if math.isfinite(v) else math.nan for v in (self.counts, *signed)]

    def column(self, metric: str) -> Sequence[float]:
        if metric == self.problem.goal.metric:
            return self.smoothed or self.values
        return self.metrics.get(metric) or [math.nan] * len(self.epochs)

    def latest(self, metric: str) -> float:
        return latest(self.column(metric))

    def _rank_value(self) -> float:
        """Return sign * its final rank value: the metric of rank_by=, or else the value that counts."""
        goal = self.problem.goal
        if goal.rank_by is None:
            return self.counts
        value = self.latest(goal.rank_by)
        return goal.sign * value if math.isfinite(value) else -math.inf

    def best(self, locate: Locate, run: TrialBuilder) -> Best:
        """Return it with the value of an attempt, and the state that has this value, if it was saved."""
        goal = self.problem.goal
        i = run.top if goal.of == "best" else -1
        value, metric = (run.smoothed or run.values)[i], goal.metric
        if goal.rank_by is not None and run.complete and (ranked := run._rank_value()) > -math.inf:
            i, value, metric = -1, goal.sign * ranked, goal.rank_by
        found = Best(
            self.id, copy.deepcopy(dict(self.config)), value, run.epochs[i], unit=self.problem.unit, metric=metric
        )
        if over_folds(run.metrics):  # no file has the mean over folds
            known = curves(run.metrics, metric, sparse=metric != goal.metric)
            completed = run.status is Status.COMPLETED
            if i == -1 and len(run.epochs) > 1 and run.epochs[-1] <= run.epochs[-2] * (1.0 + SETTLED):
                found = replace(found, epoch=run.epochs[-2])  # where the last fold ended by itself
            return replace(found, folds=ends(known, self.problem.max_epochs, completed))
        if run.kept is not None and run.kept.epoch == found.epoch:
            return replace(found, checkpoint=locate(run.kept.path))
        if self.saved is None or self.saved.resumes_only or self.saved.epoch != found.epoch:
            return found
        return replace(found, checkpoint=locate(self.saved.path))

    def resume(self, e: Resumed) -> None:
        """Start a later attempt from the last checkpoint, or from scratch. It supersedes later reports."""
        former = copy.copy(self)
        if e.anew:
            self.saved = None
        keep = sum(n <= self.checkpoint_epoch for n in self.epochs)
        if e.given_up:
            self.former = None
            self.given_up.add(self.attempt)
        elif self.former is None and keep < len(self.epochs):
            self.former = former
        self.epochs, self.values, self.smoothed = self.epochs[:keep], self.values[:keep], self.smoothed[:keep]
        self.seconds, self.metrics = self.seconds[:keep], {name: col[:keep] for name, col in self.metrics.items()}
        self.epoch = self.epochs[-1] if self.epochs else self.checkpoint_epoch
        self.top, self.peak, self.end, self.counts = -1, -math.inf, -math.inf, -math.inf
        for i, value in enumerate(self.smoothed or self.values):
            self._rank(i, value)
        if self.kept is not None and self.kept.epoch > self.checkpoint_epoch:
            self.kept = None
        self.attempt, self.started, self.status, self.fresh = e.attempt, e.at, Status.RUNNING, True
        self.pause_at, self.resource, self.tags = e.pause_at, e.resource, e.tags
        self.verdict, self.error, self.resumed, self.record = None, None, e.reason, None

    def apply(self, e: AttemptEvent) -> bool:
        """Apply an event. Return False if its attempt is not the current one or has ended, or the epoch is not new."""
        if e.attempt != self.attempt or self.status is not Status.RUNNING:
            return False
        match e:
            case Reported():
                if e.epoch <= self.epoch:
                    return False
                for name in e.metrics:
                    if name not in self.metrics:
                        self.metrics[name] = array("d", [math.nan] * len(self.epochs))
                for name, column in self.metrics.items():
                    column.append(e.metrics.get(name, math.nan))
                self.fresh, self.epoch = False, e.epoch
                self.epochs.append(e.epoch)
                self.values.append(e.value)
                self.seconds.append(e.seconds)
                value = e.value
                if self.problem.goal.smooth is not None:
                    value = smoothed(self.problem.goal, self.epochs, self.values)
                    self.smoothed.append(value)
                self._rank(len(self.values) - 1, value)
                stops = e.verdict.stops
                if e.verdict.action is not Action.UNJUDGED:  # CONTINUE after a pause that was declined
                    self.verdict = e.verdict if stops else None
                if not stops and e.verdict.pause_at is not None:
                    self.pause_at = e.verdict.pause_at
            case Checkpointed():
                self.saved = e
                if self.kept is not None and self.kept.path == e.path and self.kept.epoch != e.epoch:
                    self.kept = None  # a program that writes each epoch to the same file
                if not self.epochs:
                    self.epoch = e.epoch
            case Kept():
                self.kept = e
            case Ended():
                self.status, self.error = e.status, e.error
            case Expired():
                self.status, self.losses = e.status, self.losses + 1
                self.error = e.reason or f"{named(e.holder)} was lost"
        if self.former is not None:
            over = isinstance(e, Ended | Expired) and self.status is not Status.INTERRUPTED
            if over or (isinstance(e, Reported) and e.epoch >= self.former.epoch):
                self.former = None
        self.record = None
        return True

    def _rank(self, i: int, value: float) -> None:
        goal = self.problem.goal
        self.end = goal.sign * value if math.isfinite(value) else -math.inf
        if self.end > self.peak:
            self.peak, self.top = self.end, i
        self.counts = self.end if goal.of == "last" else self.peak

    def missed(self, epoch: float) -> list[Reported]:
        """Return reports of an earlier attempt that precede the current one, if its first report is at `epoch`.

        An attempt that starts at haltune's checkpoint reports at the same epochs as the earlier one. If it starts
        later, the training saved a state by itself, and the earlier reports before `epoch` belong to its curve.
        Of several attempts, the one that came nearest to `epoch` counts; of equals, the latest.
        """
        known = [_copies(t, self.epoch, epoch) for t in reversed(self.superseded) if t.attempt not in self.given_up]
        return max(filter(None, known), key=lambda curve: curve[-1].epoch, default=[])

    def recorded(self, scale: Scale | None, locate: Locate) -> TrialRecord:
        """Return a new read-only record. `scale` applies if none was known when the trial started."""
        scale = self.scale or scale
        values, epochs, seconds = np.array(self.values), np.array(self.epochs), np.array(self.seconds)
        scores = scale.score(values) if scale else np.full(len(values), math.nan)
        metrics = {name: np.array(column) for name, column in self.metrics.items()}
        seen = np.array(self.smoothed) if self.problem.goal.smooth is not None else None
        for column in (values, epochs, seconds, scores, *metrics.values(), *(() if seen is None else (seen,))):
            column.flags.writeable = False
        saved, kept = self.saved, self.kept
        self.record = TrialRecord(
            id=self.id, config=self.config, pause_at=self.pause_at,
            epochs=epochs, values=values, scores=scores, seconds=seconds, metrics=MappingProxyType(metrics),
            status=self.status, attempt=self.attempt, tags=self.tags, resource=self.resource,
            checkpoint=None if saved is None else locate(saved.path), checkpoint_epoch=self.checkpoint_epoch,
            weights="" if saved is None else saved.weights, content="" if saved is None else saved.content,
            kept=None if kept is None else locate(kept.path),
            started=self.started, verdict=self.verdict, error=self.error, proposed=self.proposed,
            resumed=self.resumed, partial=self.partial, complete=self.complete, smoothed=seen,
            unit=self.problem.unit,
        )  # fmt: skip
        return self.record


def _copies(t: TrialRecord, after: float, before: float) -> list[Reported]:
    """Return the reports of a superseded attempt between two epochs, as copies for a later attempt."""
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
    """The best trial, updated with each event; of equals, the first."""

    def __init__(self) -> None:
        self._top: tuple[Standing, int] | None = None  # its standing, and minus its number
        self._fell = False  # its standing fell: others may be better

    def weigh(self, trial: TrialBuilder) -> None:
        t = trial.counted
        stands = (t.standing(), -t.id) if t.counts > -math.inf else None
        if self._top is not None and self._top[1] == -t.id and (stands is None or stands < self._top):
            self._fell = True
        elif stands is not None and (self._top is None or stands > self._top):
            self._top = stands

    def among(self, trials: Sequence[TrialBuilder]) -> int | None:
        if self._fell:
            valued = [(t.standing(), -t.id) for t in (t.counted for t in trials) if t.counts > -math.inf]
            self._top, self._fell = max(valued, default=None), False
        return None if self._top is None else -self._top[1]


class Gains:
    """Trials that ended or paused since the last gain; see Budget."""

    def __init__(self) -> None:
        self._group: list[float] = []  # standing of the best trial, without its value
        self._front: list[list[float]] = []  # sign * results of the best trial, or of the Pareto front
        self._complete = False  # True after the first complete trial
        self._idle: set[int] = set()

    @property
    def without(self) -> int:
        return len(self._idle)

    def end(self, t: TrialBuilder) -> None:
        if t.status not in OVER and t.status is not Status.PAUSED:
            return
        self._complete |= t.complete
        if self._gain(t):
            self._idle.clear()
        elif t.status in (Status.COMPLETED, Status.STOPPED) or (t.status is Status.PAUSED and self._complete):
            self._idle.add(t.id)

    def _gain(self, t: TrialBuilder) -> bool:
        """Return whether a trial becomes the best, or joins the Pareto front."""
        *group, value = t.standing()
        vector = t.vector if t.problem.further else [value]
        if t.counts == -math.inf or any(map(math.isnan, vector)) or group < self._group:
            return False
        if group != self._group:
            self._group, self._front = group, []
        if any(all(a >= b for a, b in zip(other, vector, strict=True)) for other in self._front):
            return False
        kept = [other for other in self._front if any(a > b for a, b in zip(other, vector, strict=True))]
        self._front = [*kept, vector]
        return True
