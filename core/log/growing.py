"""Trials as the history's growing copies: one, and what is said of all together."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.process import named
from haltune.errors import told_shortage

from .decisions import EARLIER, Action, Config, Verdict
from .events import (
    AttemptEvent,
    Checkpointed,
    Ended,
    Expired,
    Kept,
    Reported,
    Rescaled,
    Resumed,
    Started,
    Status,
)
from .problem import Goal, Problem
from .problem.constraints import latest, violation
from .problem.dominance import non_dominated
from .records import Best, Locate, TrialRecord
from .scores import Scale, Span, Standing, is_complete, learn, learn_spans, measured, outgrown, standing


@dataclass(eq=False)
class Growing:
    """A trial's buffers, and what is asked of them so often that it is kept."""

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
    epochs: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    metrics: dict[str, array[float]] = field(default_factory=dict)
    status: Status = Status.RUNNING
    attempt: int = 1
    fresh: bool = True  # its present attempt has reported nothing
    superseded: list[TrialRecord] = field(
        default_factory=list
    )  # attempts that a later one began before the end of
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
    top: int = -1  # index of the best finite value, the earliest of equals; -1: none
    restored: bool = False  # config went through the space: JSON has no tuples
    record: TrialRecord | None = None  # cache

    @classmethod
    def of(cls, e: Started, scale: Scale | None, problem: Problem) -> Growing:
        """The trial that an event starts."""
        return cls(e.trial, e.config, e.until, e.resource, e.tags, e.at, scale, problem, e.reason, e.partial)

    @property
    def epoch(self) -> float:
        """The last epoch reported, or where the attempt began."""
        return self.epochs[-1] if self.epochs else self.checkpoint_epoch

    @property
    def complete(self) -> bool:
        """True when haltune did not cut it."""
        return is_complete(self, self.problem.max_epochs)

    @property
    def ran_short(self) -> bool:
        """True when it ran out of memory: no bug in the training code."""
        return told_shortage(self.error)

    @property
    def counts(self) -> float:
        """sign * the value it counts for; -inf when it has none."""
        return self.end if self.problem.goal.of == "last" else self.peak

    def stands(self, leaving: bool = False) -> Standing:
        """What it is ranked by. leaving: its training is about to end by itself."""
        complete = self.complete or (leaving and not self.partial)
        return standing(self, complete, self.counts, self.violation if self.problem.constraints else 0.0)

    @property
    def violation(self) -> float:
        """Of the constraints, by its last report; 0 where it keeps to them."""
        return violation(self.problem.constraints, self.latest)

    @property
    def vector(self) -> list[float]:
        """sign * what it came to in each goal, larger better; NaN where that is not finite."""
        signed = [g.sign * self.column(g.metric)[-1] for g in self.problem.further] if self.epochs else []
        return [v if math.isfinite(v) else math.nan for v in (self.counts, *signed)]

    def column(self, metric: str) -> Sequence[float]:
        """(n,) a metric by its name, the first goal's or a further one; NaN where it was not reported."""
        if metric == self.problem.goal.metric:
            return self.values
        return self.metrics.get(metric) or [math.nan] * len(self.epochs)

    def latest(self, metric: str) -> float:
        """What was reported last of a metric; NaN before there was any."""
        return latest(self.column(metric))

    def best(self, locate: Locate) -> Best:
        """It as the best."""
        i = self.top if self.problem.goal.of == "best" else -1
        told = Best(self.id, dict(self.config), self.values[i], self.epochs[i])
        if self.kept is not None and self.kept_epoch == told.epoch:
            return replace(told, checkpoint=locate(self.kept), checkpoint_epoch=told.epoch)
        if self.checkpoint is None:
            return told
        return replace(told, checkpoint=locate(self.checkpoint), checkpoint_epoch=self.checkpoint_epoch)

    def resume(self, e: Resumed) -> None:
        """A later attempt, from the state that was saved last or anew."""
        if e.anew:
            self.checkpoint, self.checkpoint_epoch = None, 0.0
        self.rewind(self.checkpoint_epoch)
        self.attempt, self.started, self.status, self.fresh = e.attempt, e.at, Status.RUNNING, True
        self.until, self.resource, self.tags = e.until, e.resource, e.tags
        self.verdict, self.error, self.resumed = None, None, e.reason

    def take(self, e: AttemptEvent) -> bool:
        """What happened in its present attempt; False where that is another or over, or the epoch was seen before."""
        if e.attempt != self.attempt or self.status is not Status.RUNNING:
            return False
        match e:
            case Reported():
                if e.epoch <= self.epoch:
                    return False
                self._append(e)
            case Checkpointed():
                self.checkpoint, self.checkpoint_epoch = e.path, e.epoch
            case Kept():
                self.kept, self.kept_epoch = e.path, e.epoch
            case Ended():
                self.status, self.error = e.status, e.error
            case Expired():
                self.status, self.losses = e.status, self.losses + 1
                self.error = e.reason or f"{named(e.holder)} was lost"
        self.record = None
        return True

    def _append(self, e: Reported) -> None:
        if e.metrics or self.metrics:
            self._append_metrics(e.metrics)
        self.fresh = False
        self.epochs.append(e.epoch)
        self.values.append(e.value)
        self.seconds.append(e.seconds)
        self._rank(len(self.values) - 1, e.value)
        if e.verdict.action in _ENDS:
            self.verdict = e.verdict
        elif e.verdict.until is not None:
            self.until = e.verdict.until

    def _append_metrics(self, metrics: Mapping[str, float]) -> None:
        for name in metrics:
            if name not in self.metrics:
                self.metrics[name] = array("d", [math.nan] * len(self.epochs))
        for name, column in self.metrics.items():
            column.append(metrics.get(name, math.nan))

    def _rank(self, i: int, value: float) -> None:
        self.end = self.problem.goal.sign * value if math.isfinite(value) else -math.inf
        if self.end > self.peak:
            self.peak, self.top = self.end, i

    def rewind(self, epoch: float) -> None:
        """Forget what came after `epoch`: a later attempt supersedes it."""
        keep = sum(n <= epoch for n in self.epochs)
        for column in (self.epochs, self.values, self.seconds, *self.metrics.values()):
            del column[keep:]
        self.top = -1
        self.peak = self.end = -math.inf
        for i, value in enumerate(self.values):
            self._rank(i, value)
        if self.kept_epoch > epoch:
            self.kept, self.kept_epoch = None, 0.0
        self.record = None

    def missed(self, epoch: float) -> list[Reported]:
        """Reports of an earlier attempt that the present one continues after, if its first report is at `epoch`.

        An attempt that began at haltune's checkpoint would have reported where the earlier one did. So it began later,
        at a state that the training saved by itself, and the earlier reports before `epoch` belong to its curve. Of
        several attempts the one counts that came nearest to `epoch`, the latest of equals.
        """
        if not self.fresh:
            return []
        known = [_copies(t, self.epoch, epoch) for t in reversed(self.superseded)]
        return max(filter(None, known), key=lambda curve: curve[-1].epoch, default=[])

    def frozen(self, scale: Scale | None, locate: Locate) -> TrialRecord:
        """A read-only copy."""
        values = _frozen(self.values)
        scores = scale.score(values) if scale else np.full(len(values), math.nan)
        scores.flags.writeable = False
        return TrialRecord(
            id=self.id, config=self.config, until=self.until,
            epochs=_frozen(self.epochs), values=values, scores=scores, seconds=_frozen(self.seconds),
            metrics=MappingProxyType({name: _frozen(c) for name, c in self.metrics.items()}),
            status=self.status, attempt=self.attempt, tags=self.tags, resource=self.resource,
            checkpoint=locate(self.checkpoint), checkpoint_epoch=self.checkpoint_epoch, kept=locate(self.kept),
            started=self.started, verdict=self.verdict, error=self.error, proposed=self.proposed,
            resumed=self.resumed, partial=self.partial, complete=self.complete,
        )  # fmt: skip


_ENDS = (Action.STOP, Action.PAUSE)


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


def _frozen(column: array[float]) -> Array:
    values = np.array(column, dtype=np.float64)
    values.flags.writeable = False
    return values


class Grown:
    """What a history says of its trials together."""

    problem: Problem
    position: int
    _trials: list[Growing]
    scale: Scale | None
    _peaks: array[float]
    _firsts: dict[int, float]
    _spans: dict[str, Span]  # of several goals, by metric

    def ranked(self, leaving: int | None = None) -> list[list[int]]:
        """The trials that have a value, the best first, in groups that compare.

        leaving: one that runs and is about to end by itself.
        """
        valued = ((t.id, t.stands(t.id == leaving)) for t in self._trials if t.counts > -math.inf)
        found = sorted(valued, key=lambda pair: pair[1], reverse=True)
        return [[id for id, _ in group] for _, group in groupby(found, key=lambda pair: pair[1][:-1])]

    def front(self, leaving: int | None = None) -> list[int]:
        """The trials that nothing dominates of the first group of `ranked` with a value in every goal, the best in the
        first goal first."""
        for group in self.ranked(leaving):
            vectors = np.array([self._trials[id].vector for id in group])
            known = np.flatnonzero(~np.isnan(vectors).any(axis=1))
            if len(known):
                return [group[known[i]] for i in np.flatnonzero(non_dominated(vectors[known]))]
        return []

    def learnt_scale(self) -> Scale | None:
        """What the scale would be if it were learnt now; None with bounds or without data."""
        if self.problem.goal.bounds is not None or not self._firsts:
            return None
        best = float(np.fmax.reduce(measured(self._peaks), initial=-math.inf))
        return learn(list(self._firsts.values()), best, self.problem.goal.sign)

    def outgrown(self, at: float) -> Rescaled | None:
        """The event that learns a scale anew, of scores or of one of several goals; None: all fit."""
        new = self.learnt_scale()
        if new is not None and outgrown(self.scale, new):
            return Rescaled(at=at, low=new.low, high=new.high)
        for metric, span in (self.learnt_spans() if self.problem.further else {}).items():
            if metric not in self._spans or self._spans[metric].outgrown_by(span):
                return Rescaled(at=at, low=span.low, high=span.high, metric=metric, worst=span.worst)
        return None

    def learnt_spans(self) -> dict[str, Span]:
        """What several goals would be weighed by, were it learnt now, by metric; none before there is a vector."""
        goals, vectors = self.problem.goals, self.vectors()
        firsts = [[g.sign * t.column(g.metric)[0] for t in self._trials if t.epochs] for g in goals]
        return learn_spans(vectors, non_dominated(vectors), measured(firsts), goals)

    def vectors(self) -> Array:
        """(n, goals) sign * what runs have come to, of those measured in all; within the constraints where any is."""
        known = [t for t in self._trials if t.epochs]
        vectors = measured(np.array([t.vector for t in known]).reshape(len(known), len(self.problem.goals)))
        kept = ~np.isnan(vectors).any(axis=1)
        if self.problem.constraints:
            within = kept & np.array([not t.violation for t in known], dtype=bool)
            kept = within if within.any() else kept
        return np.asarray(vectors[kept])

    def latest(self, trial: int, metric: str) -> float:
        """What a trial reported last of a metric; NaN before there was any."""
        return self._trials[trial].latest(metric)

    def missed(self, trial: int, epoch: float, at: float) -> list[Reported]:
        """The reports of earlier attempts to repeat, at a time, before the first of a trial's attempt at `epoch`."""
        t = self._trials[trial]
        return [replace(e, at=at, attempt=t.attempt, seen=self.position) for e in t.missed(epoch)]

    def span(self, goal: Goal) -> Span:
        """What one of several goals is weighed by: learnt from the front; before there is one, by bounds."""
        scale = self.scale if goal == self.problem.goal else None
        return self._spans.get(goal.metric) or Span.before(goal, scale)
