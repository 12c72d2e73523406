"""Successive halving: trials train to rungs, and the best of each rung continue.

One engine folds the log and decides for all policies of this folder, in two modes:

- `Synchronous`: a trial that reaches its rung pauses until the rung is complete; then the best n_{i+1} continue (Li et
  al. 2018). A free worker gets the first of: a trial that may continue, from the oldest bracket; a new configuration
  for a first rung with free places; the next bracket (section 6.1, so that no worker idles); a wait.
- `Asynchronous`: a trial continues as soon as it is among the top 1 / eta of those that arrived at its rung (Li et al.
  2020, ASHA). In the promotion form it pauses until then; in the stopping form it is judged once, on arrival.

A trial that failed, was stopped or has a value that is not finite arrives as the worst and never continues. A trial
whose training ended by itself is complete: it enters later rungs with its final value, without training.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from haltune.display import amount, ordinal, plural
from haltune.log import events as ev
from haltune.log.decisions import COMPARED_AT, FULL, Action, Finish, Move, Resume, Start, Verdict, Wait, continue_, stop
from haltune.log.events import OVER, Event, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord

from .brackets import Bracket, Plan, Rung
from .sampler import Sampler

OUT = -math.inf  # the score of a trial that never continues
Key = tuple[float, int]  # (-score, trial): sorts the best first, equal ones by number
_NO_MORE = "no new trial may start, and those that continue are still training"
_NOT_FINITE = "its value is not finite, so it never continues"


# -- common to both modes ----------------------------------------------------------------------


@dataclass(slots=True)
class RungEntry:
    """A trial at a rung, or on its way to it."""

    attempt: int = 1
    value: float = OUT  # sign * the value that it counts for so far; OUT if there is none
    had: float = 0.0  # resource so far
    saved: float = 0.0  # resource at its last checkpoint
    kept: float = OUT  # `value` at its last checkpoint
    result: float | None = None  # sign * value at the rung; None until it arrives
    whole: bool = False  # trained in full: it enters later rungs without training
    held: bool = True  # by a worker; later reports of that worker are ignored

    def key(self, trial: int) -> Key:
        return -(OUT if self.result is None else self.result), trial


class Halving(ABC):
    """Base of both modes: the problem, the plan of brackets, the sampler, and the number of trials started.

    unit: "epochs" or "seconds", counted here; another name is passed to the training as trial.resource. ends: True if
    the last rung of a bracket is a full training; False if a later bracket may train further.
    """

    def __init__(self, problem: Problem, plan: Plan, sampler: Sampler, unit: str, ends: bool = True) -> None:
        if isinstance(sampler.source, Policy):
            sampler.source.start(problem)  # raises if the problem does not suit it
        self.sign, self.peaks = problem.goal.sign, problem.goal.of == "best"
        self.horizon, self.min_epochs, self.problem = problem.max_epochs, problem.min_epochs, problem
        self.plan, self.sampler, self.unit, self.ends = plan, sampler, unit, ends
        self.n_started = 0  # trials
        self.limit = math.inf  # of n_started, by the budget

    def __repr__(self) -> str:  # the whole state, so that tests can compare two states
        known = {name: value for name, value in vars(self).items() if name not in ("plan", "sampler", "problem")}
        return f"{type(self).__name__}({known})"

    @abstractmethod
    def propose(self, history: History) -> Move: ...

    @abstractmethod
    def judge(self, history: History, trial: TrialRecord) -> Verdict: ...

    @abstractmethod
    def alive(self) -> frozenset[int] | None:
        """Return the paused trials that may still continue; None means all of them."""

    def take(self, event: Event) -> None:
        """Fold an event."""
        if isinstance(event, ev.Started):
            self._started(event)
            self.n_started = event.trial + 1
        elif isinstance(event, ev.Budgeted) and event.plans:
            self.limit = event.budget.get("trials", math.inf)
        elif not isinstance(event, ev.TrialEvent) or (entry := self.entry(event.trial)) is None:
            return
        elif isinstance(event, ev.Resumed):
            entry.attempt, entry.held = event.attempt, True
            if event.anew:
                entry.saved, entry.kept = 0.0, OUT
            entry.had, entry.value = entry.saved, entry.kept
            if event.given_up:
                self._give_up(event.trial, entry)
            if event.by_policy:
                self._enter_next(event.trial)
        elif not isinstance(event, ev.AttemptEvent) or event.attempt != entry.attempt:
            return  # superseded
        elif isinstance(event, ev.Reported) and entry.held:
            last = self.sign * event.value if math.isfinite(event.value) else OUT
            entry.value = max(entry.value, last) if self.peaks else last
            entry.had = self.had(entry, event.epoch, event.seconds)
            self._reported(event, entry, last)
        elif isinstance(event, ev.Checkpointed):
            entry.saved, entry.kept = entry.had, entry.value
        elif isinstance(event, ev.Ended | ev.Expired):
            entry.held = False
            self._over(event, entry)

    @abstractmethod
    def entry(self, trial: int) -> RungEntry | None:
        """Return the entry of a trial that may still continue or arrive at a rung, else None."""

    @abstractmethod
    def _started(self, e: ev.Started) -> None: ...

    @abstractmethod
    def _enter_next(self, trial: int) -> None: ...

    @abstractmethod
    def _reported(self, e: ev.Reported, entry: RungEntry, last: float) -> None:
        """Fold a report. last: sign * its value; OUT if that is not finite."""

    @abstractmethod
    def _over(self, e: ev.Ended | ev.Expired, entry: RungEntry) -> None: ...

    @abstractmethod
    def _give_up(self, trial: int, entry: RungEntry) -> None:
        """Withdraw a trial from the rungs that it reached in an attempt which its program gave up."""

    @property
    def no_more(self) -> bool:
        """True if no new trial may start: rungs are then complete with those that are there."""
        return self.n_started >= self.limit

    def had(self, entry: RungEntry, epoch: float, seconds: float) -> float:
        """Return the resource of a trial after a report; in another unit than epochs and seconds it is 0."""
        if self.unit == "epochs":
            return epoch
        return entry.had + seconds if self.unit == "seconds" else 0.0

    def score(self, trial: TrialRecord, history: History) -> float:
        """Return sign * the value that a trial counts for at its last report; OUT if that report is not finite."""
        finite = math.isfinite(trial.values[-1])
        return self.sign * trial.result(history.problem.goal) if finite else OUT

    def amount(self, resource: float) -> str:
        return self.problem.amount(resource) if self.unit == "epochs" else amount(resource, self.unit)

    def pause_at(self, resource: float) -> float | None:
        """Return the epoch to which a resource trains a trial, at most the horizon; None for another unit."""
        if self.unit != "epochs":
            return None
        return resource if self.horizon is None else min(resource, float(self.horizon))

    def own_rung(self, rungs: Sequence[Rung], at: int, had: float) -> dict[str, Any]:
        """Return the position of a rung, as evidence of a verdict there after a report that has passed the next one."""
        level = self.pause_at(rungs[at].resource)
        return {} if level is None or had < rungs[at + 1].resource else {COMPARED_AT: level}

    def first_compared(self, bracket: Bracket, rung: int, history: History) -> str:
        """Explain when a new trial is first compared: at the rung, if its bracket has a later one."""
        problem = self.problem
        unknown = self.horizon == 1 or (problem.unit != "epoch" and problem.every is None)
        if unknown and not history.reports:  # the first report shows how far apart the points are
            return "its first report shows when trials are compared"
        if rung >= len(bracket.rungs) - 1:
            return "compared with other trials only at the end"
        sooner = ""  # until the first report it is not known whether reports come within an epoch
        if self.unit == "epochs" and problem.unit == "epoch" and problem.every is None and not history.reports:
            sooner = ", or sooner if it reports within an epoch"
        return f"compared with other trials after {self.amount(bracket.rungs[rung].resource)}{sooner}"


# -- synchronous -------------------------------------------------------------------------------


@dataclass(eq=False)
class BracketState:
    """An open bracket: the rung that fills, and the trials that may enter it.

    A trial that was trained in full, or whose last report was already beyond the next rung, enters with its value.
    """

    number: int
    bracket: Bracket
    carries: bool  # False: a new trial continues for each winner
    places: int  # number of trials that enter this rung
    rung: int = 0
    members: dict[int, RungEntry] = field(default_factory=dict)
    arrived: int = 0  # members that have arrived
    ranked: list[Key] = field(default_factory=list)  # members that have arrived with a finite value
    past: dict[int, RungEntry] = field(default_factory=dict)  # winners of the last rung that have not entered this one
    planned: Bracket | None = None  # the bracket before it was cut to the trials that started

    @property
    def at(self) -> Rung:
        """The rung that fills."""
        return self.bracket.rungs[self.rung]

    @property
    def last(self) -> bool:
        return self.rung == len(self.bracket.rungs) - 1

    @property
    def promotes(self) -> int:
        """The number of trials that enter the next rung."""
        return 0 if self.last else min(self.places, self.bracket.rungs[self.rung + 1].n)

    @property
    def free(self) -> int:
        """The number of new configurations that the first rung still needs."""
        return self.places - len(self.members) if self.rung == 0 else 0

    def entry(self, trial: int) -> RungEntry | None:
        return self.members.get(trial) or self.past.get(trial)

    def enter(self, trial: int, entry: RungEntry, of: int | None = None) -> None:
        """Let `trial` train towards this rung; `of`: the winner that it replaces, if it is a new trial."""
        self.past.pop(trial if of is None else of, None)
        self.members[trial] = entry
        # more may have started, before a report showed how far apart the points are
        self.places = max(self.places, len(self.members))

    def arrive(self, trial: int, result: float) -> None:
        """Record that a member has arrived at the rung, or that its value there has changed."""
        entry = self.members[trial]
        if entry.result is None:
            self.arrived += 1
        elif entry.result != OUT:
            self.ranked.remove(entry.key(trial))
        entry.result = result
        if result != OUT:
            insort(self.ranked, entry.key(trial))

    def settled(self, arriving: Mapping[int, RungEntry]) -> BracketState | None:
        """Return this state while the rung is incomplete, else that of the next rung; None at the end of the bracket.

        The rule of successive halving: when all have arrived, the best n_{i+1} win, fewer if few are finite. arriving:
        a member that has not arrived, as if it had.
        """
        if len(self.members) < self.places or self.arrived + len(arriving) < len(self.members):
            return self
        ranked = sorted([*self.ranked, *(entry.key(id) for id, entry in arriving.items())])
        if not (winners := [id for _, id in ranked[: self.promotes]]):
            return None
        following = BracketState(self.number, self.bracket, self.carries, len(winners), self.rung + 1)
        for id in winners:
            entry = replace(arriving.get(id) or self.members[id], result=None)
            if entry.whole or (self.carries and entry.had >= following.at.resource):
                following.members[id] = entry
                following.arrive(id, entry.value)
            else:
                following.past[id] = entry
        return following.settled({})


class Synchronous(Halving):
    """Synchronous mode: a rung is compared when it is complete. resume: winners continue from their checkpoints."""

    def __init__(
        self, problem: Problem, plan: Plan, sampler: Sampler, unit: str, ends: bool = True, resume: bool = True
    ) -> None:
        super().__init__(problem, plan, sampler, unit, ends)
        self.counted = unit in ("epochs", "seconds")  # the reports show the resource
        self.resumes = resume and self.counted  # False: a new trial starts with each winner's configuration
        self.opened = 0  # brackets so far
        self.open: list[BracketState] = []  # oldest first
        self.aims: dict[int, float] = {}  # in seconds: the last rung that each trial trained towards
        self.short: list[Bracket] = []  # closed with fewer trials than planned; they run again when more may start

    def propose(self, history: History) -> Move:
        """Promote a winner of the oldest bracket, fill a first rung, open the next bracket, or wait for a rung."""
        for bracket in self.open:
            resource, end = bracket.at.resource, self.pause_at(bracket.at.resource)
            for id in bracket.past:
                trial = history.trial(id)
                if self.resumes and trial.status is not Status.PAUSED:
                    continue  # still with its worker, or interrupted: the study offers it again
                tags = {"bracket": bracket.number, "rung": bracket.rung}
                compared = bracket.bracket.rungs[bracket.rung - 1].resource
                before = self.amount(max(compared, bracket.past[id].had) if self.unit == "epochs" else compared)
                reason = f"among the best {bracket.places} after {before}; continues to {self.amount(resource)}"
                if self.resumes:
                    return Resume(id, end, resource, tags, reason)
                tags["of"] = id
                return Start(trial.config, end, resource, tags, reason, partial=self._partial(bracket))
            if bracket.free:
                return self._new(bracket, history)
        if self.no_more:  # and every first rung is full
            return Wait(_NO_MORE)
        again = self._again(self.opened)
        if again is not None or self.plan.has(self.opened, history):
            return self._new(self._bracket(self.opened, again), history)
        if not self.open:
            many = f"all {self.opened} brackets are complete"
            return Finish("the one bracket is complete" if self.opened == 1 else many)
        first = self.open[0]
        return Wait(f"bracket {first.number} waits for trials that still train {self.amount(first.at.resource)}")

    def _new(self, bracket: BracketState, history: History) -> Start:
        """Start a new configuration in the first rung of a bracket."""
        drawn = self.sampler.draw(history, bracket.number, bracket.bracket, len(bracket.members), self.unit)
        reason = f"{drawn.reason}; bracket {bracket.number}, {self.first_compared(bracket.bracket, 0, history)}"
        resource, tags = bracket.at.resource, {"bracket": bracket.number, "rung": 0}
        end, partial = self.pause_at(resource), self._partial(bracket)
        return Start(drawn.config, end, resource, tags, reason, drawn.evidence, partial)

    def _partial(self, bracket: BracketState) -> bool:
        """Return True if a trial of this rung is not a full training although it runs to its end, as on few samples."""
        return not self.counted and not (bracket.last and self.ends)

    def judge(self, history: History, trial: TrialRecord) -> Verdict:
        """CONTINUE to the rung, PAUSE there until it is complete, then CONTINUE for a winner, else STOP."""
        bracket = self._holding(trial.id)
        if bracket is None or (trial.id in bracket.past and not self.resumes):
            # Its bracket has moved on without it. Resumed after an interruption, it trains to where it was.
            in_epochs = self.unit == "epochs"
            had = trial.epoch if in_epochs else float(trial.seconds.sum())
            target = (trial.pause_at if in_epochs else self.aims.get(trial.id)) or 0.0
            if not self.counted or had < target:
                there = self.amount(target)
                return continue_(f"resumed after an interruption: continues to the {there} that it had before")
            last = self.plan(int(trial.tags["bracket"])).rungs[-1].resource
            full = {FULL: True} if self.ends and target >= last else {}
            return stop("its comparison is complete, and it is not among the trials that continue", **full)
        entry, resource = bracket.entry(trial.id), bracket.at.resource
        assert entry is not None
        had, score = self.had(entry, trial.epoch, float(trial.seconds[-1])), self.score(trial, history)
        if trial.id in bracket.past:  # the rung was completed while it trained on
            if score == OUT:
                return stop("after an interruption its value is not finite any more, so it never continues")
            reason = f"among the best that continue; next comparison after {self.amount(resource)}"
            return Verdict(Action.CONTINUE, reason, {}, self.pause_at(resource))
        if not self.counted or had < resource:
            return continue_(f"next comparison after {self.amount(resource)}")
        full = {FULL: True} if bracket.last and self.ends else {}
        if not self.resumes:
            return stop(f"trained its {self.amount(resource)}", **full)
        if OUT in (score, entry.result):  # now, or when it arrived in an earlier attempt
            return stop(_NOT_FINITE)
        arriving = {}
        if entry.result is None:
            entry = arriving[trial.id] = replace(entry, value=score, had=had, result=score)
        rank, arrived = 1 + bisect_left(bracket.ranked, entry.key(trial.id)), bracket.arrived + len(arriving)
        ranked = f"{ordinal(rank)} of {arrived} after {self.amount(resource)}"
        evidence = {
            "rank": rank, "arrived": arrived, "places": bracket.places, "promoted": bracket.promotes,
            "bracket": bracket.number, "rung": bracket.rung,
        }  # fmt: skip
        if bracket.last:
            return stop(f"{ranked}, the end of its bracket", **evidence, **full)
        those = plural(bracket.promotes, "continues", "continue")
        after = bracket.settled(arriving)
        if after is None or after.entry(trial.id) is None:
            return stop(f"{ranked}: {those}", **evidence, **self.own_rung(bracket.bracket.rungs, bracket.rung, had))
        if trial.id in after.members:  # the rung, or a later one that this report passed as well, is not complete
            return Verdict(Action.PAUSE, f"{ranked}; when {bracket.places} have arrived, {those}", evidence)
        following = after.at.resource
        best = f"{ranked}, which completes the comparison; among the best {bracket.promotes}"
        reason = f"{best}; next comparison after {self.amount(following)}"
        return Verdict(Action.CONTINUE, reason, evidence, self.pause_at(following))

    def alive(self) -> frozenset[int]:
        return frozenset(t for b in self.open for t in (*b.members, *b.past))

    def take(self, event: Event) -> None:
        super().take(event)
        if isinstance(event, ev.Started | ev.Budgeted):
            self._cut_or_restore()
        if self.unit == "seconds" and isinstance(event, ev.TrialEvent):  # an aim in epochs is in the trial's record
            bracket = self._holding(event.trial)
            if bracket is not None and event.trial in bracket.members:
                self.aims[event.trial] = bracket.at.resource

    def _holding(self, trial: int) -> BracketState | None:
        """Return the bracket in which a trial may still continue."""
        return next((b for b in self.open if b.entry(trial) is not None), None)

    def entry(self, trial: int) -> RungEntry | None:
        bracket = self._holding(trial)
        return None if bracket is None else bracket.entry(trial)

    def _bracket(self, number: int, again: Bracket | None) -> BracketState:
        bracket = again or self.plan(number)
        return BracketState(number, bracket, self.resumes, bracket.rungs[0].n)

    def _again(self, number: int) -> Bracket | None:
        """Return the bracket to run again under a number beyond the plan: one that could not be filled."""
        ends = self.plan.ends
        return self.short[0] if self.short and ends is not None and number >= ends else None

    def _started(self, e: ev.Started) -> None:
        number = self.plan.number(e)
        if number >= self.opened:
            if again := self._again(number):
                self.short.pop(0)
            self.opened = number + 1
            self.open.append(self._bracket(number, again))
        bracket = next((b for b in self.open if b.number == number), None)
        if bracket is not None:
            bracket.enter(e.trial, RungEntry(), e.tags.get("of"))

    def _enter_next(self, trial: int) -> None:
        if (bracket := self._holding(trial)) is not None and trial in bracket.past:
            bracket.enter(trial, bracket.past[trial])

    def _reported(self, e: ev.Reported, entry: RungEntry, last: float) -> None:
        bracket = self._holding(e.trial)
        assert bracket is not None
        continues, stopped = self.resumes and e.verdict.action is Action.CONTINUE, e.verdict.action is Action.STOP
        if e.trial in bracket.past and continues:
            bracket.enter(e.trial, entry)
        if e.trial not in bracket.members or e.epoch < self.min_epochs:
            return
        resource = bracket.at.resource
        if stopped and e.verdict.resumable:  # by the budget, not judged
            entry.had = min(entry.had, math.nextafter(resource, 0.0))
        reached = entry.had >= resource
        ended = reached and (bracket.last or not self.resumes)  # by the end of its schedule: its value counts
        out = stopped and not e.verdict.resumable and not ended  # it never continues
        if entry.result is None and (out or reached):
            bracket.arrive(e.trial, OUT if out or last == OUT else entry.value)
        after = self._settle(bracket)
        if after is not None and continues and e.trial in after.past:
            after.enter(e.trial, after.past[e.trial])  # it completed the rung and continues at once

    def _over(self, e: ev.Ended | ev.Expired, entry: RungEntry) -> None:
        bracket = self._holding(e.trial)
        assert bracket is not None
        if not self.resumes and e.trial in bracket.past:
            return  # a new trial continues for it
        if e.status is Status.COMPLETED:
            # its value counts here and, unless it was a part of a training, at later rungs
            entry.whole = self.counted
            bracket.enter(e.trial, entry)
            if entry.result is None:
                bracket.arrive(e.trial, entry.value)
        elif e.status not in (Status.STOPPED, Status.FAILED):
            return  # it may be offered again
        elif e.trial in bracket.past:
            del bracket.past[e.trial]
            bracket.places -= 1
        elif (self.resumes and not bracket.last) or e.status is Status.FAILED or entry.result is None:
            bracket.arrive(e.trial, OUT)
        self._settle(bracket)

    def _give_up(self, trial: int, entry: RungEntry) -> None:
        bracket = self._holding(trial)
        assert bracket is not None
        if entry.result is None or entry.had >= bracket.at.resource:
            return  # a rung that is complete stays so
        bracket.arrived -= 1
        if entry.result != OUT:
            bracket.ranked.remove(entry.key(trial))
        entry.result = None

    def _settle(self, bracket: BracketState) -> BracketState | None:
        """Put the following state in a bracket's place if its rung is complete; return the state."""
        after = bracket.settled({})
        if after is not bracket:
            at = self.open.index(bracket)
            self.open[at : at + 1] = [] if after is None else [after]
            if bracket.planned is not None:
                self.short.append(bracket.planned)
        return after

    def _cut_or_restore(self) -> None:
        """Cut first rungs to the trials that started if no more may start; restore them if more may.

        Later rungs consist of the trials that arrived there.
        """
        for bracket in [b for b in self.open if b.rung == 0]:
            if self.no_more and bracket.free:
                planned, started = bracket.planned or bracket.bracket, len(bracket.members)
                bracket.bracket, bracket.places, bracket.planned = planned.cut(started), started, planned
                self._settle(bracket)
            elif not self.no_more and bracket.planned is not None:
                bracket.bracket, bracket.places, bracket.planned = bracket.planned, bracket.planned.rungs[0].n, None


# -- asynchronous ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Promotion:
    """Rule that promotes a share of each rung.

    eta: 1 / eta of a rung continues; first: the same for the first rung, None for eta. stops_from: resource of the
    first rung where trials stop instead of waiting; 0 for the stopping form, infinite for the promotion form.
    min_trials_per_rung: trials that arrive at the first rung before any continues. base: index of the first rung at
    which trials are compared; all continue from lower ones. chooses_first: True if the policy itself chooses, among
    those that wait, the first trial that trains in full.
    """

    eta: Fraction
    first: Fraction | None = None
    stops_from: float = math.inf
    min_trials_per_rung: int = 1
    base: int = 0
    chooses_first: bool = False

    def cut(self, rung: int) -> Fraction:
        return self.eta if self.first is None or rung > self.base else self.first

    def top(self, rung: int, arrived: int) -> int:
        """Return how many of the trials that arrived at a rung continue."""
        if rung < self.base:
            return arrived
        if rung == self.base and arrived < self.min_trials_per_rung:
            return 0
        return int(arrived // self.cut(rung))

    def last(self, rung: int, arrived: int) -> int:
        """Return how many continue once no new trial may start: the share, at least one."""
        return max(1, int(arrived // self.cut(rung)))


@dataclass
class RungState:
    """The trials that arrived at a rung, and those that wait there."""

    arrived: list[Key] = field(default_factory=list)  # with a finite value
    count: int = 0  # all that arrived, including failed ones and values that are not finite
    waiting: list[Key] = field(default_factory=list)  # paused here

    def arrive(self, key: Key | None) -> None:
        """Record one more trial; None: without a finite value."""
        self.count += 1
        if key is not None:
            insort(self.arrived, key)

    def withdraw(self, trial: int) -> None:
        """Forget a trial, which has a finite value here."""
        self.count -= any(key[1] == trial for key in self.arrived)
        for keys in (self.arrived, self.waiting):
            keys[:] = [key for key in keys if key[1] != trial]

    def rank(self, key: Key) -> int:
        """Return how many trials are before a key."""
        return bisect_left(self.arrived, key)

    def wait(self, key: Key) -> None:
        if key not in self.waiting[(at := bisect_left(self.waiting, key)) : at + 1]:
            self.waiting.insert(at, key)

    def leave(self, key: Key) -> None:
        at = bisect_left(self.waiting, key)
        if self.waiting[at : at + 1] == [key]:
            del self.waiting[at]

    def leading(self, top: int) -> list[int]:
        """Return the waiting trials among the best `top` of all that arrived, best first."""
        return [key[1] for key in self.waiting[:top] if bisect_left(self.arrived, key) < top]


@dataclass(slots=True, kw_only=True)
class LadderEntry(RungEntry):
    bracket: Bracket
    rung: int = 0
    compared: float = 0.0  # resource at the report that counts at its rung

    @property
    def needed(self) -> float:
        return self.bracket.rungs[self.rung].resource

    @property
    def last(self) -> bool:
        return self.rung == len(self.bracket.rungs) - 1

    def passed(self, had: float) -> int:
        """Return the furthest rung that a report with this resource has passed."""
        rungs, at = self.bracket.rungs, self.rung
        while at + 1 < len(rungs) and rungs[at + 1].resource <= had:
            at += 1
        return at


class Asynchronous(Halving):
    """Asynchronous mode: no trial waits for a complete rung. Equal brackets share their rungs."""

    def __init__(
        self, problem: Problem, plan: Plan, sampler: Sampler, unit: str, promotion: Promotion, ends: bool = True
    ) -> None:
        super().__init__(problem, plan, sampler, unit, ends)
        self.promotion = promotion
        self.number = 0  # the bracket of new trials
        self.started = 0  # configurations of that bracket
        self.rungs: dict[Bracket, list[RungState]] = {}
        self.trials: dict[int, LadderEntry] = {}

    def propose(self, history: History) -> Move:
        """Promote a paused trial in the top share of its rung, from the highest rung down, or start a new one."""
        return self.of_started(history, self.promotion) or self.new(history, self.promotion)

    def of_started(self, history: History, by: Promotion) -> Resume | Wait | Finish | None:
        """Return a promotion, a wait or the end of the search; None if a new trial may start."""
        for bracket, rungs in self.rungs.items():
            for at in range(len(rungs) - 2, by.base - 1, -1):
                id = _first_paused(rungs[at], by.top(at, rungs[at].count), history)
                if id is not None:
                    return self.promoted(bracket, at, id, self.place(id), history)
        if self.no_more:
            return self._last_promotion(by, history)
        if self.plan.has(self.next[0], history):
            return None
        if history.running:
            return Wait("all configurations are started; those still training may let others continue")
        return Finish("all configurations are started, and none is to continue")

    @property
    def next(self) -> tuple[int, int]:
        """The bracket of the next new trial, and its number in the bracket."""
        full = self.started >= self.plan(self.number).rungs[0].n
        return (self.number + 1, 0) if full else (self.number, self.started)

    def new(self, history: History, by: Promotion, chosen: Start | None = None) -> Start:
        """Start a new trial with the chosen configuration, else with the sampler's next."""
        number, index = self.next
        bracket = self.plan(number)
        if chosen is None:
            drawn = self.sampler.draw(history, number, bracket, index, self.unit)
            chosen = replace(drawn, reason=f"{drawn.reason}; {self.first_compared(bracket, by.base, history)}")
        compared, tags = self.pause_at(bracket.rungs[by.base].resource), {"bracket": number, "rung": 0, **chosen.tags}
        return replace(chosen, pause_at=compared, resource=bracket.rungs[0].resource, tags=tags)

    def _last_promotion(self, by: Promotion, history: History) -> Resume | Wait:
        """Promote when no new trial may start, at rungs that no trial trains towards; see Promotion.last."""
        coming = self._coming()
        for bracket, rungs in self.rungs.items():
            for at, rung in enumerate(rungs[:-1]):
                top = by.last(at, rung.count)
                if (bracket, at) in coming:
                    break
                if (id := _first_paused(rung, top, history)) is not None:
                    why = f"no new trial may start; {self.place(id)}"
                    return self.promoted(bracket, at, id, why, history)
                if rung.leading(top):
                    break  # still with its worker, or interrupted: the study offers it again
        if self.one_in_full or history.running or history.interrupted:
            return Wait(_NO_MORE)
        # if all promoted trials failed, the best remaining one continues, because one must be trained in full
        left = [
            (-bracket.rungs[at].resource, rung.waiting[0], bracket, at)
            for bracket, rungs in self.rungs.items()
            for at, rung in enumerate(rungs)
            if rung.waiting
        ]
        if not left:
            return Wait(_NO_MORE)
        _, key, bracket, at = min(left, key=lambda found: found[:2])
        return self.promoted(bracket, at, key[1], "no new trial may start; the best one left", history)

    def promoted(self, bracket: Bracket, at: int, id: int, why: str, history: History) -> Resume:
        resource = bracket.rungs[at + 1].resource
        tags = {**history.trial(id).tags, "rung": at + 1}
        return Resume(id, self.pause_at(resource), resource, tags, f"{why}; continues to {self.amount(resource)}")

    def place(self, id: int) -> str:
        """Return the rank of a trial at its rung, in words."""
        entry = self.trials[id]
        rung = self.rung(entry)
        # a report may come after the rung
        at = max(entry.needed, entry.compared) if self.unit == "epochs" else entry.needed
        return f"{ordinal(1 + rung.rank(entry.key(id)))} of {rung.count} after {self.amount(at)}"

    def judge(self, history: History, trial: TrialRecord, promotion: Callable[[], Promotion] | None = None) -> Verdict:
        """CONTINUE to the rung; from there on CONTINUE, PAUSE or STOP by its rank among those that arrived.

        promotion: returns the rule; it is called only where trials are compared.
        """
        entry = self.trials[trial.id]
        had = self.had(entry, trial.epoch, float(trial.seconds[-1]))
        if had < (needed := entry.needed):
            return continue_(f"next comparison after {self.amount(needed)}")
        score = self.score(trial, history)
        if OUT in (score, entry.result):  # now, or when it arrived in an earlier attempt
            return stop(_NOT_FINITE)
        rungs, at = entry.bracket.rungs, entry.passed(had) if entry.result is None else entry.rung
        if at == len(rungs) - 1:
            full = {FULL: True} if self.ends else {}
            return stop(f"trained its {self.amount(rungs[at].resource)}", **full)
        by = self.promotion if promotion is None else promotion()
        if at < by.base:
            compared = rungs[by.base].resource
            text = f"trials are first compared after {self.amount(compared)}"
            return Verdict(Action.CONTINUE, text, {"rung": at, "first_rung": by.base}, self.pause_at(compared))
        rung = self.rungs[entry.bracket][at]
        result, arrived = (score, rung.count + 1) if entry.result is None else (entry.result, rung.count)
        stops = max(had, rungs[at].resource) >= by.stops_from
        # equal trials wait in the order of their arrival; a stop is for good, so only better trials count there
        key, top = (-result, -1 if stops else trial.id), max(int(stops), by.top(at, arrived))
        rank = rung.rank(key)
        last = by.last(at, arrived)
        alone = top <= rank < last and not stops and self._alone(rung, key, by, history)
        if alone:
            top = last  # a pause would be followed at once by its resume
        evidence = {"rank": rank + 1, "arrived": arrived, "promoted": top, "rung": at, **self.own_rung(rungs, at, had)}
        best = f"; the best {plural(top, 'continues', 'continue')}"
        outcome = best if top else ", too few trials yet to promote one"
        counted = had if entry.result is None else entry.compared
        after = self.amount(counted if self.unit == "epochs" else rungs[at].resource)
        text = f"{'no new trial may start; ' * alone}{ordinal(rank + 1)} of {arrived} after {after}{outcome}"
        if rank < top:
            return Verdict(Action.CONTINUE, text, evidence, self.pause_at(rungs[at + 1].resource))
        return Verdict(Action.STOP if stops else Action.PAUSE, text, evidence)

    def _alone(self, own: RungState, key: Key, by: Promotion, history: History) -> bool:
        """Return whether `_last_promotion` could resume only this trial if it paused at its own rung.

        No other one trains, none waits before it at this rung, and none leads another, also if that has one trial more.
        """
        if not self.no_more or len(history.pending) > 1 or any(other < key for other in own.waiting[:1]):
            return False
        every = [(at, rung) for rungs in self.rungs.values() for at, rung in enumerate(rungs)]
        if by.chooses_first and not self.one_in_full and any(rung.waiting for _, rung in every):
            return False
        return not any(rung.leading(by.last(at, rung.count + 1)) for at, rung in every if rung is not own)

    def alive(self) -> frozenset[int] | None:
        """Return None, any paused trial, while more may arrive at a rung; else those that may still continue."""
        if self.plan.ends is None or self.next[0] < self.plan.ends or self._coming():
            return None
        tops = ((r, self.promotion.top(at, r.count)) for rungs in self.rungs.values() for at, r in enumerate(rungs))
        return frozenset(id for rung, top in tops for id in rung.leading(top))

    @property
    def one_in_full(self) -> bool:
        return any(rungs[-1].arrived for rungs in self.rungs.values())

    def _coming(self) -> set[tuple[Bracket, int]]:
        """Return the rungs that some trial trains towards."""
        return {(entry.bracket, entry.rung) for entry in self.trials.values() if entry.result is None}

    def _give_up(self, trial: int, entry: RungEntry) -> None:
        assert isinstance(entry, LadderEntry)
        rungs = self.rungs[entry.bracket]
        reached = [at for at in range(entry.rung + 1) if entry.bracket.rungs[at].resource > entry.had]
        for at in reached:
            rungs[at].withdraw(trial)
        if reached:
            entry.rung, entry.result = reached[0], None

    def entry(self, trial: int) -> LadderEntry | None:
        return self.trials.get(trial)

    def rung(self, entry: LadderEntry) -> RungState:
        return self.rungs[entry.bracket][entry.rung]

    def _started(self, e: ev.Started) -> None:
        number = self.plan.number(e)
        bracket = self.plan(number)
        if bracket not in self.rungs:
            self.rungs[bracket] = [RungState() for _ in bracket.rungs]
        self.started = self.started + 1 if number == self.number else 1
        self.number = number
        self.trials[e.trial] = LadderEntry(bracket=bracket)

    def _enter_next(self, trial: int) -> None:
        entry = self.trials[trial]
        self.rung(entry).leave(entry.key(trial))
        entry.result = None
        entry.rung += 1

    def _reported(self, e: ev.Reported, entry: RungEntry, last: float) -> None:
        assert isinstance(entry, LadderEntry)
        cut = e.verdict.action is Action.STOP and e.verdict.resumable
        arrives = entry.had >= entry.needed and e.epoch >= self.min_epochs and entry.result is None and not cut
        if arrives:
            entry.result, entry.compared = entry.value if last > OUT else OUT, entry.had
            for rung in range(entry.rung, entry.passed(entry.had) + 1):  # a report may pass several rungs
                entry.rung = rung
                self.rung(entry).arrive(entry.key(e.trial) if last > OUT else None)
        if entry.result is None or entry.had < entry.needed or entry.last:
            return  # still training towards its rung, perhaps after a crash
        # a CONTINUE at the horizon is not the policy's and names no next rung
        if e.verdict.action is Action.CONTINUE and (e.verdict.evidence or e.verdict.pause_at is not None):
            self._enter_next(e.trial)
        elif e.verdict.action is Action.PAUSE:  # perhaps after its arrival, whose report was delivered late
            self.rung(entry).wait(entry.key(e.trial))

    def _over(self, e: ev.Ended | ev.Expired, entry: RungEntry) -> None:
        """Let a trial that is over arrive at its rung, a complete one at all later ones too; others are only counted.

        At a rung that it passed after its verdict its value is not known, so there it does not count.
        """
        assert isinstance(entry, LadderEntry)
        if e.status not in OVER:
            return
        whole = e.status is Status.COMPLETED and entry.value > OUT
        if entry.result is None:
            entry.result = entry.value if whole else OUT
            self.rung(entry).arrive(entry.key(e.trial) if whole else None)
        else:
            self.rung(entry).leave(entry.key(e.trial))
        while whole and not entry.last:
            entry.rung, entry.result = entry.rung + 1, entry.value
            if entry.last or entry.needed > entry.had:
                self.rung(entry).arrive(entry.key(e.trial))


def _first_paused(rung: RungState, top: int, history: History) -> int | None:
    """Return the best trial that pauses at a rung among the `top` of all that arrived."""
    return next((id for id in rung.leading(top) if history.trial(id).status is Status.PAUSED), None)
