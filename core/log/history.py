"""Events folded into trials: what policies and people look at.

A `History` is the fold of one study's log up to a position. It changes only through `apply`, which the study calls;
everything it hands out is read-only.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.checks import LARGEST
from haltune.errors import InvalidInput, StoreError
from haltune.space.space import Points

from . import events as ev
from .decisions import ENQUEUED, Config
from .events import Event, Status, trial_of
from .growing import Growing, Grown
from .problem import Budget, Problem
from .records import Best, OnFront, TrialRecord
from .scores import Scale, Span, TopRun, given
from .spending import Accounted, Spending, summable
from .validity import ADVICE, misplaced, restore_trials, spanning

_RANKED = (Status.COMPLETED, Status.STOPPED, Status.PAUSED)
# streams of randomness; numbers are for ever
PURPOSES = {"propose": 1, "judge": 2, "stopping": 3, "design": 4, "fit": 5, "audit": 6, "weights": 7}


class History(Accounted, Grown):
    """The state of a study at one log position."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.seed = 0
        self.position = 0  # events folded
        self.moves = 0  # answers of the policy that were logged: starts, resumes, the end
        self.now = 0.0  # seconds since the epoch: the last event's time
        self.finished: str | None = None  # the policy's reason for ending the search
        self.held: str | None = None  # why somebody holds it for a while
        self.budget: Budget | None = None  # what the search may cost, where a policy that plans asked for it
        self.recorded: Budget | None = None  # as a worker said last what it may cost; None: none was given
        self.scale: Scale | None = given(problem.goal)
        self.failures_in_a_row = 0
        self.deciding = 0.0  # seconds that the policy's last start or resume took it
        self.tried: set[str] = set()  # keys of all configurations started
        self.queue: deque[Config] = deque(problem.start)  # the user's, begun before any of the policy's
        self.wishes = ev.Wishes()
        self._trials: list[Growing] = []
        self._peaks = array("d")  # sign * best value of each trial, -inf when none
        self._results = array("d")  # sign * what each trial that is over or paused came to, -inf for others
        self._firsts: dict[int, float] = {}  # trial -> sign * first value that is measured
        self.first_rungs: dict[
            str, float | None
        ] = {}  # bracket, by its tag -> the resource of its first rung
        self._points = Points(problem.space)
        self._with: dict[Status, set[int]] = {status: set() for status in Status}
        self._top_run, self._spending = TopRun(), Spending()
        self._spans: dict[str, Span] = {}
        self.whose = "the study"  # in words, for errors
        self.locate: Callable[[str | None], str | None] = lambda path: path  # of the log, as users open it

    def __len__(self) -> int:
        return len(self._trials)

    def furthest_superseded(self, id: int) -> TrialRecord | None:
        """Of the attempts at a trial that a later one trains again, the one that came furthest."""
        return max(self._trials[id].superseded, key=lambda t: t.epoch, default=None)

    def trial(self, id: int) -> TrialRecord:
        """The record of one trial. Raises InvalidInput for a number that does not exist."""
        if not 0 <= id < len(self._trials):
            known = f"has trials 0 to {len(self) - 1}" if self._trials else "has none yet"
            raise InvalidInput(f"there is no trial {id}: this study {known}")
        return self._trials[id].record or self._recorded([self._trials[id]])[0]

    @property
    def trials(self) -> Sequence[TrialRecord]:
        """All trials in the order of their numbers."""
        self._recorded([t for t in self._trials if t.record is None])
        return [t.record for t in self._trials if t.record is not None]

    @property
    def points(self) -> Array:
        """(n, dim) where the trials' configurations lie in the unit cube; read-only, each encoded once."""
        return self._points.upto(len(self), lambda id: self.trial(id).config)

    def with_status(self, *status: Status) -> list[TrialRecord]:
        """The trials in one of these states, lowest number first."""
        return [self.trial(i) for i in sorted(i for s in set(status) for i in self._with[s])]

    @property
    def pending(self) -> list[TrialRecord]:
        """Trials that run now, on any worker, or wait to be offered again."""
        return self.with_status(Status.RUNNING, Status.INTERRUPTED)

    @property
    def interrupted(self) -> list[int]:
        """The trials that wait to be offered again, lowest number first."""
        return sorted(self._with[Status.INTERRUPTED] - self.wishes.aside)

    @property
    def running(self) -> int:
        """How many trials run now."""
        return len(self._with[Status.RUNNING])

    @property
    def paused(self) -> int:
        """How many trials the policy may resume."""
        return len(self._with[Status.PAUSED])

    @property
    def any_success(self) -> bool:
        """True once a trial was completed, stopped or paused."""
        return any(self._with[s] for s in (Status.COMPLETED, Status.STOPPED, Status.PAUSED))

    def incumbent(self, exclude: int | None = None) -> float:
        """y* of BO-BOS: the best result of the other trials that are over or paused, raw; NaN when there is none.

        A trial's result is the value that the goal says it counts for: by default its last, for a maximum over epochs
        is a maximum over their noise, and no run could hope to end above it.
        """
        results = np.array(self._results)
        if exclude is not None and exclude < len(results):
            results[exclude] = -np.inf
        top = float(results.max(initial=-np.inf))
        return self.problem.goal.sign * top if top > -np.inf else math.nan

    def scale_of(self, trial: int) -> Scale | None:
        """The scale in force for a trial: the one at its start, or the first known after it."""
        return self._trials[trial].scale or self.scale

    def best(self) -> Best | None:
        """The best run by the rule of haltune.log.scores; None before one has a value."""
        top = self._top_run.among(self._trials)
        return None if top is None else self.as_best(top)

    def as_best(self, id: int) -> Best:
        """A trial that has a value, told as the best."""
        self.trial(id)  # its configuration regains its types
        return self._trials[id].best(self.locate)

    def on_front(self, id: int) -> OnFront:
        """The same as one of the front."""
        return OnFront(**vars(self.as_best(id)), values=self.trial(id).results(self.problem))

    def rng(self, purpose: str, *keys: int) -> np.random.Generator:
        """A stream of randomness of its own for each decision: default_rng([seed, purpose, *keys])."""
        return np.random.default_rng([self.seed, PURPOSES[purpose], *keys])

    def asks_anew(self, budget: Budget, told: Budget | None) -> bool:
        """True when a policy that plans should by this budget: neither the one logged last nor what was `told` before.

        Of workers with different budgets the last one to come has its way: did each insist, they would take turns for
        ever.
        """
        return budget != told and budget.to_json() != (self.budget or Budget()).to_json()

    def losses(self, trial: int) -> int:
        """How many times the lease of a trial has expired."""
        return self._trials[trial].losses

    def _recorded(self, trials: Sequence[Growing]) -> list[TrialRecord]:
        """Their records made anew; configurations that come from the log regain their types together."""
        restore_trials([t for t in trials if not t.restored], self.problem.space, self.whose)
        for t in trials:
            t.record = t.frozen(self.scale_of(t.id), self.locate)
        return [t.record for t in trials if t.record is not None]

    def apply(self, event: Event) -> None:
        """Fold one event, the next of the log. Raises StoreError for one that cannot follow those before it."""
        self.check(event)
        match event:
            case ev.AttemptEvent():
                self._happened(event)
            case ev.Started():
                self._started(event)
            case ev.Resumed():
                self._resumed(event)
            case ev.Rescaled():
                self._rescaled(event)
            case ev.Budgeted():
                self.recorded = Budget(**event.budget)
                if event.plans:
                    self.budget, self.finished = self.recorded, None  # who plans by one ends for want of it
            case ev.Enqueued():
                self.queue.append(event.config)
            case ev.Refused() if self.queue:
                self.queue.popleft()
            case ev.Created():
                self.problem, self.seed = self.problem_from(event), event.seed
                self.queue, self._points = deque(self.problem.start), Points(self.problem.space)
            case ev.Widened():
                self._widened(event)
            case ev.Finished():
                self.moves, self.finished = self.moves + 1, event.reason
            case ev.Held():
                self.held = event.reason
            case ev.Asked() | ev.Raised():
                self.wishes.take(event)
        if (about := trial_of(event)) is not None:
            self._top_run.weigh(self._trials[about])
        self.position, self.now = self.position + 1, max(self.now, event.at)

    def check(self, event: Event) -> None:
        """Raises StoreError when an event cannot be the next of the log."""
        if why := misplaced(event, trial_of(event), self.position, self._trials, self.problem.max_epochs):
            raise StoreError(f"event {self.position} of {self.whose}: {why}. {ADVICE}")
        named = event.metric if isinstance(event, ev.Rescaled) else ""
        if named and named not in [g.metric for g in self.problem.goals]:
            raise StoreError(f"event {self.position} of {self.whose}: no goal is called {named!r}. {ADVICE}")

    def problem_from(self, event: ev.Created | ev.Widened) -> Problem:
        """The problem from an event on: the log says of which space it is. Raises StoreError when that is none."""
        return spanning(self.problem, event, self.position, self.whose)

    def _widened(self, e: ev.Widened) -> None:
        """What was tried, and what waits, has what is new by now, such as a constant."""
        self.problem = self.problem_from(e)
        space, self.finished = self.problem.space, None  # there is more to search
        self._points, self.tried = Points(space), set(space.keys([t.config for t in self._trials]))
        self.queue = deque(space.canonical_many(self.queue))
        for t in self._trials:
            t.restored, t.record = False, None

    def _started(self, e: ev.Started) -> None:
        self.moves += 1
        self.tried.add(self.problem.space.key_of_canonical(e.config))
        if ENQUEUED in e.evidence and self.queue:
            self.queue.popleft()
        if "rung" in e.tags and "of" not in e.tags:
            self.first_rungs[str(e.tags.get("bracket"))] = e.resource
        self._trials.append(Growing.of(e, self.scale, self.problem))
        self._peaks.append(-math.inf)
        self._results.append(-math.inf)
        self._with[Status.RUNNING].add(e.trial)
        self.deciding = e.deciding
        self._spending.begin(e.trial, e.at, e.deciding)

    def _resumed(self, e: ev.Resumed) -> None:
        self.moves += e.by_policy
        self.deciding = e.deciding if e.by_policy else self.deciding
        t = self._trials[e.trial]
        before = t.status
        if t.epochs and (e.anew or t.checkpoint_epoch < t.epoch):
            t.superseded.append(self.trial(t.id))
        t.resume(e)
        self._moved(t, before)
        self._peaks[t.id], self._results[t.id] = t.peak, -math.inf
        self._spending.begin(t.id, e.at, e.deciding)

    def _happened(self, e: ev.AttemptEvent) -> None:
        """In an attempt; what its trial does not take up stays in the log, out of the curve."""
        e, t = summable(e) if isinstance(e, ev.Reported) else e, self._trials[e.trial]
        before = t.epoch
        if not t.take(e):
            return
        match e:
            case ev.Reported():
                if not e.copied:
                    self._spending.report(e, e.epoch - before)
                if abs(t.end) <= LARGEST:
                    self._firsts.setdefault(t.id, t.end)
                self._peaks[t.id] = t.peak
            case ev.Checkpointed() | ev.Kept():
                self._spending.save(t.id, e.at, e.seconds)
            case ev.Slept():
                self._spending.sleep(t.id, e.since, e.at, e.seconds)
            case ev.Ended():
                self._let_go(t, e.at)
            case ev.Expired():
                self._let_go(t, e.last_alive, lost=True)

    def _let_go(self, t: Growing, at: float, lost: bool = False) -> None:
        self._moved(t, Status.RUNNING)
        self._spending.end(t.id, at, lost)
        if t.status in _RANKED:
            self._results[t.id], self.failures_in_a_row = t.counts, 0
        elif t.status is Status.FAILED and not t.ran_short:
            self.failures_in_a_row += 1

    def _moved(self, t: Growing, before: Status) -> None:
        self._with[before].discard(t.id)
        self._with[t.status].add(t.id)

    def _rescaled(self, e: ev.Rescaled) -> None:
        if e.metric:
            sign = next(g.sign for g in self.problem.goals if g.metric == e.metric)
            worst = e.low if e.worst is None else e.worst
            self._spans[e.metric] = Span(e.low, worst, e.high, sign)
            return
        self.scale = Scale(e.low, e.high, self.problem.goal.sign)
        for t in self._trials:
            if t.scale is None:
                t.scale, t.record = self.scale, None
