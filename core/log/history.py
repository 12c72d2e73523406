"""Trials and totals, computed from events for policies and people.

A `History` folds one study's log up to a position. It changes only through `apply`, which the study calls; everything
it returns is read-only.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.checks import LARGEST
from haltune.display import one_line
from haltune.errors import HaltuneError, InvalidInput, InvalidSpace, StoreError, told_shortage
from haltune.space import Space
from haltune.space.space import Points

from . import events as ev
from .decisions import ENQUEUED, Config
from .events import ADVICE, Event, Reported, Status
from .problem import MOST_EPOCHS, Budget, Goal, Problem, smoothed
from .records import Best, Locate, OnFront, TopTrial, TrialBuilder, TrialRecord
from .scores import Scale, Span, given, learn, learn_spans, measured, non_dominated, outgrown
from .spending import Spending, Spent

_RANKED = (Status.COMPLETED, Status.STOPPED, Status.PAUSED)
# streams of randomness; these numbers must never change
PURPOSES = {"propose": 1, "judge": 2, "stopping": 3, "design": 4, "fit": 5, "audit": 6, "weights": 7}


@dataclass
class Wishes:
    """Users' requests that are not done yet."""

    runs: dict[int, ev.Asked] = field(default_factory=dict)  # trial -> request to stop or pause it
    limits: dict[str, float] = field(default_factory=dict)  # of the budget, raised

    def add(self, event: ev.Asked | ev.Raised) -> None:
        if isinstance(event, ev.Raised):
            for name, limit in event.budget.items():
                self.limits[name] = max(limit, self.limits.get(name, limit))
            return
        self.runs.pop(event.trial, None)
        if event.wish != "continue":
            self.runs[event.trial] = event

    @property
    def aside(self) -> set[int]:
        """The trials that are not offered to workers until they may continue."""
        return {id for id, asked in self.runs.items() if asked.wish == "pause"}

    def extended(self, budget: Budget | None) -> Budget:
        """Return the budget with the raised limits. None means no limit."""
        budget = budget or Budget()
        if not self.limits:
            return budget
        given = {name: getattr(budget, name) for name in self.limits}
        more = {name: max(limit, self.limits[name]) for name, limit in given.items() if limit is not None}
        return replace(budget, **more)


class History:
    """The state of a study at one log position."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.seed = 0
        self.position = 0  # events folded
        self.moves = 0  # the policy's logged moves: starts, resumes, the end
        self.now = 0.0  # time of the last event, in seconds since the epoch
        self.finished: str | None = None  # the policy's reason for ending the search
        self.held: str | None = None  # the reason if the search is paused
        self.budget: Budget | None = None  # the budget, if the policy plans by it
        self.recorded: Budget | None = None  # the last budget that a worker recorded; None: none
        self.scale: Scale | None = given(problem.goal)
        self.failures_in_a_row = 0
        self.deciding = 0.0  # seconds for the policy's last start or resume
        self.tried: set[str] = set()  # keys of all started configurations
        self.queue: deque[Config] = deque(problem.start)  # the user's configurations, which start first
        self.wishes = Wishes()
        self.notes: dict[int, str] = {}  # trial -> the user's note
        self.first_rungs: dict[str, float | None] = {}  # bracket, by its tag -> resource of its first rung
        self.whose = "the study"  # in errors
        self.locate: Locate = str  # from a logged path to one users can open
        self._trials: list[TrialBuilder] = []
        self._results = array("d")  # sign * result of each trial that ended or paused, until it ends again; or -inf
        self._firsts: dict[int, float] = {}  # trial -> sign * first finite value
        self._points = Points(problem.space)
        self._with: dict[Status, set[int]] = {status: set() for status in Status}
        self._top, self._spending = TopTrial(), Spending(problem.unit)
        self._spent: Spent | None = None  # the totals until the next event
        self._trainers: dict[str, set[int]] = {}  # by the marks of their models
        self._spans: dict[str, Span] = {}  # of several goals, by metric

    # -- its trials --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._trials)

    def trial(self, id: int) -> TrialRecord:
        if not 0 <= id < len(self._trials):
            known = f"has trials 0 to {len(self) - 1}" if self._trials else "has none yet"
            raise InvalidInput(f"there is no trial {id}: this study {known}")
        t = self._trials[id]
        if not t.restored:
            self._restore([t])
        return t.record or t.recorded(self.scale, self.locate)

    def trainers(self, mark: str) -> Set[int]:
        """Return the trials that have trained a model with a mark, see `Port.sign`, by their saved states and ends."""
        return self._trainers.get(mark, frozenset())

    def first_reported(self, id: int) -> float:
        """Return the first position that earlier attempts at a trial reported, which it trains again; else -inf."""
        return min((float(t.epochs[0]) for t in self._trials[id].superseded), default=-math.inf)

    @property
    def trials(self) -> Sequence[TrialRecord]:
        self._restore([t for t in self._trials if not t.restored])
        return [t.record or t.recorded(self.scale, self.locate) for t in self._trials]

    def _restore(self, trials: Sequence[TrialBuilder]) -> None:
        """Restore the types of configurations from the log, all together: JSON lacks some types."""
        if not trials:
            return
        try:
            configs = self.problem.space.canonical_many([t.config for t in trials])
        except InvalidSpace as error:
            raise StoreError(f"a configuration in the log of {self.whose}: {error}. {ADVICE}") from error
        for t, config in zip(trials, configs, strict=True):
            t.config, t.restored = MappingProxyType(config), True

    def furthest_superseded(self, id: int) -> TrialRecord | None:
        """Return the attempt that came furthest among those that a later attempt trains again."""
        return max(self._trials[id].superseded, key=lambda t: t.epoch, default=None)

    def paused_unsaved(self, id: int) -> float:
        """Return the furthest position at which a trial has paused without a state of it; 0 if it never did."""
        paused = (t for t in self._trials[id].superseded if t.status is Status.PAUSED)
        return max((t.epoch for t in paused if t.checkpoint_epoch < t.epoch), default=0.0)

    @property
    def points(self) -> Array:
        """(n, dim) the trials' configurations in the unit cube, read-only."""
        return self._points.upto(len(self._trials), lambda id: self.trial(id).config)

    def with_status(self, *status: Status) -> list[TrialRecord]:
        return [self.trial(i) for i in sorted(set[int]().union(*map(self._with.__getitem__, status)))]

    @property
    def pending(self) -> list[TrialRecord]:
        """Trials that are running on any worker, or wait to be offered again."""
        return self.with_status(Status.RUNNING, Status.INTERRUPTED)

    @property
    def interrupted(self) -> list[int]:
        """The trials that wait to be offered again, lowest number first."""
        return sorted(self._with[Status.INTERRUPTED] - self.wishes.aside)

    @property
    def running(self) -> int:
        return len(self._with[Status.RUNNING])

    @property
    def paused(self) -> int:
        """Number of trials that the policy may resume."""
        return len(self._with[Status.PAUSED])

    @property
    def any_success(self) -> bool:
        """Return whether a trial ended or paused with a finite value, so that the training code works."""
        return any(any(map(math.isfinite, self._trials[id].values)) for s in _RANKED for id in self._with[s])

    @property
    def diverged(self) -> int:
        """Return the number of trials that ended or paused with reports, but do not count with a finite value."""
        ended = [self._trials[id] for s in _RANKED for id in self._with[s]]
        return sum(len(t.values) > 0 and not math.isfinite(t.counts) for t in ended)

    @property
    def reports(self) -> int:
        """Number of reports in the curves: 0, 1, or 2 for 2 and more."""
        found = 0
        for t in self._trials:
            found += len(t.epochs)
            if found > 1:
                return 2
        return found

    def epochs(self, trial: int) -> Sequence[float]:
        """Return the positions of a trial's reports, in their order."""
        return self._trials[trial].epochs

    def seen(self, trial: int, epoch: float, value: float) -> float:
        """Return the goal's smoothed value for a new report; see Goal.smooth."""
        t = self._trials[trial]
        if self.problem.goal.smooth is None or epoch <= t.epoch:
            return value
        return smoothed(self.problem.goal, [*t.epochs, epoch], [*t.values, value])

    def position_of(self, trial: int, attempt: int) -> float:
        """Return the last epoch of an attempt, or its first; 0 if it is not the trial's last attempt."""
        t = self._trials[trial]
        return t.epoch if t.attempt == attempt else 0.0

    def gave_up(self, trial: int, attempt: int) -> bool:
        """Return whether a program has given up this attempt of its own, so that the next one trains in its place."""
        return trial < len(self._trials) and attempt in self._trials[trial].given_up

    def newest(self, trial: int, attempt: int) -> int:
        """Return the attempt that trains in place of one that its program has given up; the same if it has not."""
        while self.gave_up(trial, attempt):
            attempt += 1
        return attempt

    def losses(self, trial: int) -> int:
        return self._trials[trial].losses

    def latest(self, trial: int, metric: str) -> float:
        """Return a trial's last value of a metric; NaN if there is none."""
        return self._trials[trial].latest(metric)

    def missed(self, trial: int, epoch: float, at: float) -> list[Reported]:
        """Return copies, at time `at`, of earlier attempts' reports that precede the first report at `epoch`."""
        t = self._trials[trial]
        if not t.fresh:
            return []
        return [replace(e, at=at, attempt=t.attempt, seen=self.position) for e in t.missed(epoch)]

    # -- the best trials ---------------------------------------------------------------------------

    @property
    def top(self) -> int | None:
        """The number of the best trial by the rule of haltune.log.records; None if no trial has a value."""
        return self._top.among(self._trials)

    def best(self) -> Best | None:
        """Return the best trial; None if no trial has a value."""
        top = self.top
        return None if top is None else self.as_best(top)

    def as_best(self, id: int) -> Best:
        self.trial(id)  # restores the types of its configuration
        return self._trials[id].best(self.locate, self._trials[id].counted)

    def present_best(self, id: int) -> Best:
        """Return a trial as it counts when its present attempt ends."""
        self.trial(id)
        return self._trials[id].best(self.locate, self._trials[id])

    def complete(self, id: int) -> bool:
        """Return whether the attempt with which a trial counts is complete."""
        return self._trials[id].counted.complete

    def beyond(self, id: int) -> bool:
        """Return whether a trial violates constraints on metrics, by the attempt with which it counts."""
        return self._trials[id].counted.violation > 0.0

    def target(self, id: int) -> float:
        """Return sign * the value with which a trial counts, for models; NaN if it has none."""
        return float(measured(self._trials[id].counted.vector[0]))

    def kept(self, id: int) -> str | None:
        """Return the path of the state that was kept from the attempt with which a trial counts."""
        kept = self._trials[id].counted.kept
        return None if kept is None else self.locate(kept.path)

    def value_of(self, best: Best) -> float:
        """Return the goal's value of a best trial; that of `best` may be of the metric of rank_by=."""
        return self.problem.goal.sign * self._trials[best.trial].counted.counts

    def on_front(self, id: int) -> OnFront:
        run = self._trials[id].counted
        record = run.record or run.recorded(self.scale, self.locate)
        return OnFront(**vars(self.as_best(id)), values=record.results(self.problem))

    def incumbent(self, exclude: int | None = None) -> float:
        """Return y* of BO-BOS: the best result of the other ended or paused trials, unscaled; NaN if there is none.

        A trial's result is the value that the goal counts, by default the last. A maximum over epochs would be a
        maximum over their noise, and no trial would be expected to end above it.
        """
        results = np.array(self._results)
        if exclude is not None and exclude < len(results):
            results[exclude] = -np.inf
        top = float(results.max(initial=-np.inf))
        return self.problem.goal.sign * top if top > -np.inf else math.nan

    def ranked(self, leaving: int | None = None) -> list[list[int]]:
        """Return the trials with a value, best first, in groups whose members can be compared.

        leaving: a running trial that is about to end by itself.
        """
        runs = (t if t.id == leaving else t.counted for t in self._trials)
        valued = ((t.id, t.standing(t.id == leaving)) for t in runs if t.counts > -math.inf)
        found = sorted(valued, key=lambda pair: pair[1], reverse=True)
        return [[id for id, _ in group] for _, group in groupby(found, key=lambda pair: pair[1][:-1])]

    def front(self, leaving: int | None = None) -> list[int]:
        """Return the Pareto front, best in the first goal first.

        It is the front of the first group of `ranked` that has a trial with a value in every goal.
        """
        for group in self.ranked(leaving):
            runs = (self._trials[id] for id in group)
            vectors = np.array([(t if t.id == leaving else t.counted).vector for t in runs])
            known = np.flatnonzero(~np.isnan(vectors).any(axis=1))
            if len(known):
                return [group[known[i]] for i in np.flatnonzero(non_dominated(vectors[known]))]
        return []

    def vectors(self) -> Array:
        """(n, goals) sign * the results, of trials with all goals; only of feasible trials if there is one."""
        known = [t for t in (t.counted for t in self._trials) if t.epochs]
        vectors = measured(np.array([t.vector for t in known]).reshape(len(known), len(self.problem.goals)))
        kept = ~np.isnan(vectors).any(axis=1)
        if self.problem.constraints:
            within = kept & np.array([not t.violation for t in known], dtype=bool)
            kept = within if within.any() else kept
        return np.asarray(vectors[kept])

    # -- scales ------------------------------------------------------------------------------------

    def scale_of(self, trial: int) -> Scale | None:
        """Return the scale for a trial: the one at its start, or the first known after it."""
        return self._trials[trial].scale or self.scale

    def span(self, goal: Goal) -> Span:
        """Return the span of one of several goals: learnt from the front, or from bounds before there is a front."""
        scale = self.scale if goal == self.problem.goal else None
        return self._spans.get(goal.metric) or Span.before(goal, scale)

    def learnt_scale(self) -> Scale | None:
        """Return the scale learnt from the values so far; None with bounds or without data."""
        if self.problem.goal.bounds is not None or not self._firsts:
            return None
        best = float(np.fmax.reduce(measured([t.peak for t in self._trials]), initial=-math.inf))
        return learn(list(self._firsts.values()), best, self.problem.goal.sign)

    def outgrown(self, now: Callable[[], float]) -> ev.Rescaled | None:
        """Return an event with a new scale of the score or of one of several goals; None if all scales still fit."""
        new = self.learnt_scale()
        if new is not None and outgrown(self.scale, new):
            return ev.Rescaled(at=now(), low=new.low, high=new.high)
        if not self.problem.further:
            return None
        goals, vectors = self.problem.goals, self.vectors()
        firsts = [[g.sign * t.column(g.metric)[0] for t in self._trials if t.epochs] for g in goals]
        for metric, span in learn_spans(vectors, non_dominated(vectors), measured(firsts), goals).items():
            if metric not in self._spans or self._spans[metric].outgrown_by(span):
                return ev.Rescaled(at=now(), low=span.low, high=span.high, metric=metric, worst=span.worst)
        return None

    # -- costs, randomness -------------------------------------------------------------------------

    @property
    def spent(self) -> Spent:
        if self._spent is None:
            self._spent = self._spending.spent()
        return self._spent

    def spent_at(self, trial: int, now: float, epochs: float, cost: float = 0.0) -> Spent:
        """Return the total at `now` if a running trial has trained `epochs` more, for `cost`, than it reported."""
        return self._spending.spent(trial, now, epochs, cost)

    def exhausted(self, budget: Budget, trial: int, now: float, epochs: float, cost: float) -> str | None:
        """Return a sentence about the first limit reached at that total (see `spent_at`), or None."""
        limits = (budget.epochs, budget.time, budget.worker_time, budget.money, budget.cost)
        return None if limits == (None,) * 5 else self.spent_at(trial, now, epochs, cost).exhausts(budget)

    def worker_seconds(self, trial: int) -> float:
        """Return the worker time of a trial over all attempts, including start-up and decisions."""
        return self._spending.worker_seconds(trial)

    def cost(self, trial: int) -> float | None:
        return self._spending.costs.get(trial)

    @property
    def longest_epoch(self) -> float:
        return self._spending.longest_epoch

    def has_new_budget(self, budget: Budget, before: Budget | None) -> bool:
        """Return whether a planning policy must use this budget: it differs from the logged one and from `before`.

        If workers have different budgets, the last new one counts. Otherwise they would replace each other's forever.
        """
        return budget != before and budget.to_json() != (self.budget or Budget()).to_json()

    def rng(self, purpose: str, *keys: int) -> np.random.Generator:
        """Return the random generator of one decision: default_rng([seed, purpose, *keys])."""
        return np.random.default_rng([self.seed, PURPOSES[purpose], *keys])

    # -- the fold ----------------------------------------------------------------------------------

    def apply(self, event: Event, checked: bool = False) -> None:
        """Fold the next event of the log. Raises StoreError if it cannot follow the earlier ones. checked: it can."""
        if not checked:
            self.check(event)
        self._spent = None
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
                    self.budget, self.finished = (self.recorded, None)  # an end for lack of budget no longer holds
            case ev.Enqueued():
                self.queue.append(event.config)
            case ev.Refused() if self.queue:
                self.queue.popleft()
            case ev.Created():
                self.problem, self.seed = self.problem_from(event), event.seed
                self.queue, self._points = deque(self.problem.start), Points(self.problem.space)
            case ev.Widened():
                self._widened(event)
            case ev.JudgedEvery():
                self.problem = self.problem_from(event)
            case ev.Finished():
                self.moves, self.finished = self.moves + 1, event.reason
            case ev.Held():
                self.held = event.reason
            case ev.Asked() | ev.Raised():
                self.wishes.add(event)
            case ev.Noted():
                self.notes[event.trial] = event.text
        if isinstance(event, ev.TrialEvent):
            self._top.weigh(self._trials[event.trial])
        self.position, self.now = self.position + 1, max(self.now, event.at)

    def check(self, event: Event) -> None:
        """Raise StoreError if the event cannot follow the earlier ones."""
        if why := self.objection(event):
            raise StoreError(f"event {self.position} of {self.whose}: {why}. {ADVICE}")

    def objection(self, event: Event) -> str:
        """Return why the event cannot follow the earlier ones; "" if it can."""
        kind, count, full = event.kind, len(self._trials), self.problem.max_epochs
        if isinstance(event, ev.Started):
            if event.trial != count:
                return f"trial {event.trial} started, but the next number is {count}"
        elif isinstance(event, ev.TrialEvent) and event.trial >= count:
            return f"{kind} of trial {event.trial}, but there are only {count} trials"
        elif isinstance(event, ev.AttemptEvent | ev.Resumed | ev.Asked):
            trial, attempt, now = event.trial, event.attempt, self._trials[event.trial].attempt
            if (attempt != now + 1) if kind == "resumed" else (attempt > now):
                return f"{kind} of attempt {attempt} at trial {trial}, but its last attempt is {now}"
            if isinstance(event, Reported) and event.epoch > (full or MOST_EPOCHS):
                most = "10**12 is the largest position" if full is None else f"max_epochs is {full}"
                return f"{self.problem.unit} {event.epoch:g} of trial {trial}, but {most}"
        elif isinstance(event, ev.Created) and self.position:
            return "only the first event can create a study"
        elif isinstance(event, ev.Rescaled) and event.metric not in ("", *(g.metric for g in self.problem.goals)):
            return f"there is no goal {event.metric!r}"
        elif isinstance(event, ev.JudgedEvery):
            try:
                self.problem_from(event)
            except InvalidInput as error:
                return str(error)
        return ""

    def problem_from(self, event: ev.Created | ev.Widened | ev.JudgedEvery) -> Problem:
        """Return the problem after an event that changes its space or when trials are judged.

        Raises StoreError if the space is invalid or does not contain the previous one.
        """
        problem = self.problem
        if isinstance(event, ev.JudgedEvery):
            return problem if problem.grid is not None else replace(problem, spacing=event.every)
        if isinstance(event, ev.Created):
            if problem.spacing is not None and problem.grid is None:  # a later event sets it
                problem = replace(problem, spacing=None)
            recorded, start, inner_json = event.problem.get("space"), event.problem.get("start", ()), None
        else:
            recorded, start, inner_json = event.space, problem.start, event.inner
        narrow = inner_json is not None or problem.space.whole is not problem.space
        same = recorded == problem.space.to_json() and not narrow
        if recorded is None or (same and list(start) == list(problem.start)):
            return problem
        try:
            functions = {c.name: c.predicate for c in problem.space.constraints}
            space = Space.from_json(recorded, functions)
            if isinstance(event, ev.Created):
                return replace(problem, space=space, start=start)
            lacks = space.lacking(problem.space)
            if not lacks:
                space = space.widening(problem.space)
                if inner_json is None:
                    return replace(problem, space=space)
                inner = Space.from_json(inner_json, functions)
                lacks = space.lacking(inner)
                if not lacks:
                    return replace(problem, space=space.narrowed_to(inner))
            raise InvalidSpace(f"it does not contain the previous or the inner one: {'; '.join(lacks)}")
        except (HaltuneError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise StoreError(
                f"event {self.position} of {self.whose}: invalid space: {one_line(error)}. {ADVICE}"
            ) from error

    def _widened(self, e: ev.Widened) -> None:
        """Use the other space, and add its new constants to started and enqueued configurations."""
        self.problem = self.problem_from(e)
        space, self.finished = self.problem.space, None  # it may have more to search
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
        self._trials.append(TrialBuilder.of(e, self.scale, self.problem))
        self._results.append(-math.inf)
        self._with[Status.RUNNING].add(e.trial)
        self.deciding = e.deciding
        self._spending.begin(e.trial, e.at, e.deciding, e.price)

    def _resumed(self, e: ev.Resumed) -> None:
        self.moves += e.by_policy
        self.deciding = e.deciding if e.by_policy else self.deciding
        t = self._trials[e.trial]
        if t.epochs and (e.anew or t.checkpoint_epoch < t.epoch):
            t.superseded.append(self.trial(t.id))
        self._with[t.status].discard(t.id)
        t.resume(e)
        self._with[t.status].add(t.id)
        if e.given_up:
            self._results[t.id] = -math.inf
            if not any(map(math.isfinite, t.values)):
                self._firsts.pop(t.id, None)
        self._spending.begin(t.id, e.at, e.deciding, e.price)

    def _happened(self, e: ev.AttemptEvent) -> None:
        """Fold an event of an attempt. Events that the trial ignores stay in the log but not in the curve."""
        t = self._trials[e.trial]
        before = t.epoch
        if isinstance(e, Reported):  # also of a worker that counted as lost: it was only slow
            self._spending.longest_epoch = max(self._spending.longest_epoch, e.seconds)
        if not t.apply(e):
            return
        if isinstance(e, ev.Checkpointed | ev.Ended) and e.weights:
            for mark in e.weights.split("\n"):
                self._trainers.setdefault(mark, set()).add(t.id)
        match e:
            case Reported():
                if not e.copied:
                    self._spending.report(e, e.epoch - before)
                if abs(t.end) <= LARGEST:
                    self._firsts.setdefault(t.id, t.end)
            case ev.Checkpointed() | ev.Kept():
                self._spending.save(t.id, e.at, e.seconds)
            case ev.Slept():
                self._spending.sleep(t.id, e.since, e.at, e.seconds)
            case ev.Ended() | ev.Expired():
                self._with[Status.RUNNING].discard(t.id)
                self._with[t.status].add(t.id)
                if isinstance(e, ev.Expired):
                    self._spending.end(t.id, e.last_alive, lost=True)
                else:
                    self._spending.end(t.id, e.at)
                self._spending.gains.end(t)
                if t.status in _RANKED:
                    self._results[t.id], self.failures_in_a_row = t.counts, 0
                elif t.status is Status.FAILED:
                    self._results[t.id] = -math.inf
                    self.failures_in_a_row += not told_shortage(t.error)  # which is not a bug in the training code

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
