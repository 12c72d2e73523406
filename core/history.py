"""Events folded into trials: what policies and people look at.

A `History` is the fold of one study's log up to a position. It changes only through
`apply`, which the study calls; everything it hands out is read-only.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import events as ev
from .decisions import Action, Config, Verdict
from .errors import InvalidInput
from .events import OVER, Event, Status
from .ledger import Clockwork, Spent
from .problem import Goal, Problem
from .scale import Scale, given, learn

Array = NDArray[np.float64]
PURPOSES = {
    "propose": 1,
    "judge": 2,
    "stopping": 3,
    "design": 4,
    "fit": 5,
}  # streams of randomness; numbers are for ever


@dataclass(frozen=True, eq=False)
class TrialRecord:
    """One trial as the log tells it. Arrays are read-only, one entry a report of the current attempt."""

    id: int
    config: Config
    until: float | None  # epochs: the end of this leg
    epochs: Array  # (n,) strictly increasing, from 1; fractional for validations within an epoch
    values: Array  # (n,) the goal's metric, raw
    scores: Array  # (n,) on [0, 1], by the scale in force for this trial; NaN before any scale is known
    seconds: Array  # (n,) of each epoch alone, validation included
    metrics: Mapping[str, Array]  # name -> (n,), NaN where it was not reported
    status: Status
    attempt: int  # from 1
    tags: Mapping[str, Any]
    resource: float | None = None
    checkpoint: str | None = None  # path
    checkpoint_epoch: float = 0.0
    started: float = 0.0  # seconds since the epoch
    verdict: Verdict | None = None  # the last that was not CONTINUE
    error: str | None = None

    @cached_property
    def whole(self) -> NDArray[np.bool_]:
        """(n,) True at reports of whole epochs: the ones that are judged."""
        return np.asarray(self.epochs == np.floor(self.epochs))

    @cached_property
    def epoch_seconds(self) -> Array:
        """(n,) seconds an epoch: a report may cover several epochs, or a part of one."""
        return self.seconds / np.diff(self.epochs, prepend=0.0)

    @property
    def epoch(self) -> float:
        """The last epoch reported, 0 before the first."""
        return float(self.epochs[-1]) if len(self.epochs) else self.checkpoint_epoch

    def best(self, goal: Goal) -> float:
        """The best finite value of any epoch; NaN when there is none."""
        finite = self.values[np.isfinite(self.values)]
        return float(goal.sign * np.max(goal.sign * finite)) if len(finite) else math.nan


@dataclass(frozen=True)
class Best:
    """The best configuration found."""

    trial: int
    config: Config
    value: float  # the goal's metric
    epoch: float


@dataclass(eq=False)
class _Trial:
    """A trial's growing buffers."""

    id: int
    config: Config
    until: float | None
    resource: float | None
    tags: Mapping[str, Any]
    started: float
    scale: Scale | None
    epochs: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    metrics: dict[str, array[float]] = field(default_factory=dict)
    status: Status = Status.RUNNING
    attempt: int = 1
    losses: int = 0  # leases that expired
    checkpoint: str | None = None
    checkpoint_epoch: float = 0.0
    verdict: Verdict | None = None
    error: str | None = None
    restored: bool = False  # config went through the space: JSON has no tuples
    record: TrialRecord | None = None  # cache

    def append(self, e: ev.Reported) -> None:
        for name in e.metrics:
            if name not in self.metrics:
                self.metrics[name] = array("d", [math.nan] * len(self.epochs))
        self.epochs.append(e.epoch)
        self.values.append(e.value)
        self.seconds.append(e.seconds)
        for name, column in self.metrics.items():
            column.append(e.metrics.get(name, math.nan))
        if e.verdict.action in (Action.STOP, Action.PAUSE):
            self.verdict = e.verdict
        elif e.verdict.until is not None:
            self.until = e.verdict.until

    def rewind(self, epoch: float) -> None:
        """Forget what came after `epoch`: a later attempt supersedes it."""
        keep = sum(1 for n in self.epochs if n <= epoch)
        for column in (self.epochs, self.values, self.seconds, *self.metrics.values()):
            del column[keep:]


def _frozen(column: array[float]) -> Array:
    values = np.array(column, dtype=np.float64)
    values.flags.writeable = False
    return values


class History:
    """The state of a study at one log position."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.seed = 0
        self.position = 0  # events folded
        self.moves = 0  # answers of the policy that were logged: starts, resumes, the end
        self.now = 0.0  # seconds since the epoch: the last event's time
        self.finished: str | None = None  # the policy's reason for ending the search
        self.scale: Scale | None = given(problem.goal)
        self.failures_in_a_row = 0
        self.longest_epoch = 0.0  # seconds
        self.tried: set[str] = set()  # keys of all configurations started
        self._trials: list[_Trial] = []
        self._best = array("d")  # sign * running best of each trial, -inf when none
        self._last = array("d")  # sign * last value of each trial, -inf when it is not finite
        self._firsts: dict[int, float] = {}  # trial -> sign * first finite value
        self._running: set[int] = set()
        self._waiting: set[int] = set()
        self._clock = Clockwork()
        self._sums = dict.fromkeys(
            ("epochs", "training", "validation", "checkpoint", "start_up", "deciding"), 0.0
        )

    # -- what policies and people read ------------------------------------------------

    def __len__(self) -> int:
        return len(self._trials)

    def trial(self, id: int) -> TrialRecord:
        """The record of one trial. Raises InvalidInput for a number that does not exist."""
        if not 0 <= id < len(self._trials):
            raise InvalidInput(f"there is no trial {id}: this study has trials 0 to {len(self._trials) - 1}")
        t = self._trials[id]
        if t.record is None:
            t.record = self._record(t)
        return t.record

    @property
    def trials(self) -> Sequence[TrialRecord]:
        """All trials in the order of their numbers."""
        return [self.trial(i) for i in range(len(self._trials))]

    def with_status(self, *status: Status) -> list[TrialRecord]:
        """The trials in one of these states."""
        return [self.trial(t.id) for t in self._trials if t.status in status]

    @property
    def pending(self) -> list[TrialRecord]:
        """Trials that run now, on any worker, or wait to be offered again."""
        return [self.trial(i) for i in sorted([*self._running, *self._waiting])]

    @property
    def interrupted(self) -> list[int]:
        """The trials that wait to be offered again, lowest number first."""
        return sorted(self._waiting)

    @property
    def running(self) -> int:
        """How many trials run now."""
        return len(self._running)

    def incumbent(self, exclude: int | None = None) -> float:
        """y* of BO-BOS: the best of the other trials' last values, raw; NaN when none is finite.

        The last, not the best of each curve: a maximum over epochs is a maximum over their noise, and
        no run could hope to end above it.
        """
        lasts = np.array(self._last)
        if exclude is not None and exclude < len(lasts):
            lasts[exclude] = -np.inf
        top = float(lasts.max(initial=-np.inf))
        return self.problem.goal.sign * top if top > -np.inf else math.nan

    def scale_of(self, trial: int) -> Scale | None:
        """The scale in force for a trial: the one at its start, or the first known after it."""
        return self._trials[trial].scale or self.scale

    def learnt_scale(self) -> Scale | None:
        """What the scale would be if it were learnt now; None with bounds or without data."""
        if self.problem.goal.bounds is not None or not self._firsts:
            return None
        best = float(np.max(np.array(self._best)))
        return learn(list(self._firsts.values()), best, self.problem.goal.sign)

    def best(self, anywhere: bool = False) -> Best | None:
        """The best finite value at the largest epoch any trial reached, or `anywhere` on a curve."""
        top: Best | None = None
        goal = self.problem.goal
        reach = 0.0 if anywhere else max((self._reach(t) for t in self._trials), default=0.0)
        for t in self._trials:
            for epoch, value in zip(t.epochs, t.values, strict=True):
                if (anywhere or epoch == reach) and goal.better(value, top.value if top else math.nan):
                    top = Best(t.id, dict(self.trial(t.id).config), value, epoch)
        return top

    @property
    def spent(self) -> Spent:
        """What the search has cost so far."""
        return Spent(
            trials=len(self._trials),
            time=self._clock.wall(),
            worker_time=self._clock.worker(),
            **self._sums,
        )

    def spent_at(self, trial: int, now: float, epochs: float) -> Spent:
        """What is spent at `now`, when a running trial has trained `epochs` more than it reported."""
        clock = Clockwork(self._clock.starts, self._clock.ends, self._clock.total, self._clock.summed)
        clock.open = dict(self._clock.open)
        clock.alive(trial, now)
        sums = {**self._sums, "epochs": self._sums["epochs"] + epochs}
        return Spent(trials=len(self._trials), time=clock.wall(), worker_time=clock.worker(), **sums)

    def rng(self, purpose: str, *keys: int) -> np.random.Generator:
        """A stream of randomness of its own for each decision: default_rng([seed, purpose, *keys])."""
        return np.random.default_rng([self.seed, PURPOSES[purpose], *keys])

    def losses(self, trial: int) -> int:
        """How many times the lease of a trial has expired."""
        return self._trials[trial].losses

    @property
    def any_success(self) -> bool:
        """True once a trial was completed, stopped or paused."""
        good = (Status.COMPLETED, Status.STOPPED, Status.PAUSED)
        return any(t.status in good for t in self._trials)

    @staticmethod
    def _reach(t: _Trial) -> float:
        finite = (n for n, v in zip(t.epochs, t.values, strict=True) if math.isfinite(v))
        return max(finite, default=0.0)

    def _record(self, t: _Trial) -> TrialRecord:
        if not t.restored:
            t.config, t.restored = MappingProxyType(self.problem.space.canonical(t.config)), True
        scale = self.scale_of(t.id)
        values = _frozen(t.values)
        scores = scale.score(values) if scale else np.full(len(values), math.nan)
        scores.flags.writeable = False
        return TrialRecord(
            id=t.id, config=t.config, until=t.until,
            epochs=_frozen(t.epochs), values=values, scores=scores, seconds=_frozen(t.seconds),
            metrics=MappingProxyType({name: _frozen(c) for name, c in t.metrics.items()}),
            status=t.status, attempt=t.attempt, tags=t.tags, resource=t.resource,
            checkpoint=t.checkpoint, checkpoint_epoch=t.checkpoint_epoch,
            started=t.started, verdict=t.verdict, error=t.error,
        )  # fmt: skip

    # -- the fold ----------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Fold one event, the next of the log."""
        getattr(self, "_" + event.kind)(event)
        self.position += 1
        self.now = max(self.now, event.at)

    def _created(self, e: ev.Created) -> None:
        self.seed = e.seed

    def _started(self, e: ev.Started) -> None:
        self.moves += 1
        self.tried.add(self.problem.space.key_of_canonical(e.config))
        self._trials.append(_Trial(e.trial, e.config, e.until, e.resource, e.tags, e.at, self.scale))
        self._best.append(-math.inf)
        self._last.append(-math.inf)
        self._begin(self._trials[-1], e.at, e.deciding)

    def _resumed(self, e: ev.Resumed) -> None:
        self.moves += e.by_policy
        t = self._trials[e.trial]
        t.rewind(t.checkpoint_epoch)
        t.attempt, t.until, t.resource, t.tags, t.started = e.attempt, e.until, e.resource, e.tags, e.at
        t.verdict = t.error = None
        signed = [self.problem.goal.sign * v if math.isfinite(v) else -math.inf for v in t.values]
        self._best[t.id], self._last[t.id] = max(signed, default=-math.inf), [-math.inf, *signed][-1]
        self._begin(t, e.at, e.deciding)

    def _begin(self, t: _Trial, at: float, deciding: float) -> None:
        t.status, t.record = Status.RUNNING, None
        self._running.add(t.id)
        self._waiting.discard(t.id)
        self._sums["deciding"] += deciding
        self._clock.begin(t.id, at - deciding)

    def _reported(self, e: ev.Reported) -> None:
        t = self._trials[e.trial]
        previous = t.epochs[-1] if t.epochs else t.checkpoint_epoch
        if e.attempt != t.attempt or e.epoch <= previous:
            return  # superseded, or seen before: kept in the log, out of the curve
        t.append(e)
        t.record = None
        v = self.problem.goal.sign * e.value
        self._last[t.id] = v if math.isfinite(v) else -math.inf
        if math.isfinite(v):
            self._firsts.setdefault(t.id, v)
            self._best[t.id] = max(self._best[t.id], v)
        self._charge(t, e, e.epoch - previous)

    def _charge(self, t: _Trial, e: ev.Reported, epochs: float) -> None:
        validation = e.validation or 0.0
        sums = self._sums
        sums["epochs"] += epochs
        sums["validation"] += validation
        sums["training"] += e.seconds - validation
        sums["deciding"] += e.deciding
        self.longest_epoch = max(self.longest_epoch, e.seconds)
        if len(t.epochs) == 1:
            sums["start_up"] += max(0.0, e.at - t.started - e.seconds)
        self._clock.alive(t.id, e.at)

    def _checkpointed(self, e: ev.Checkpointed) -> None:
        t = self._trials[e.trial]
        if e.attempt == t.attempt:
            t.checkpoint, t.checkpoint_epoch, t.record = e.path, e.epoch, None
            self._sums["checkpoint"] += e.seconds
            self._clock.alive(t.id, e.at)

    def _ended(self, e: ev.Ended) -> None:
        t = self._trials[e.trial]
        if e.attempt == t.attempt and t.status is Status.RUNNING:
            self._let_go(t, e.status, e.at)
            t.error = e.error
            self._count_failure(e.status)

    def _expired(self, e: ev.Expired) -> None:
        t = self._trials[e.trial]
        if e.attempt == t.attempt and t.status is Status.RUNNING:
            self._let_go(t, e.status, None)
            t.losses += 1
            t.error = f"worker {e.holder} was lost"

    def _let_go(self, t: _Trial, status: Status, at: float | None) -> None:
        t.status, t.record = status, None
        self._running.discard(t.id)
        if status is Status.INTERRUPTED:
            self._waiting.add(t.id)
        self._clock.end(t.id, at)

    def _count_failure(self, status: Status) -> None:
        if status is Status.FAILED:
            self.failures_in_a_row += 1
        elif status in OVER or status is Status.PAUSED:
            self.failures_in_a_row = 0

    def _rescaled(self, e: ev.Rescaled) -> None:
        self.scale = Scale(e.low, e.high, self.problem.goal.sign)
        for t in self._trials:
            if t.scale is None:
                t.scale, t.record = self.scale, None

    def _finished(self, e: ev.Finished) -> None:
        self.moves += 1
        self.finished = e.reason
