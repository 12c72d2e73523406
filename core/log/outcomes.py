"""Ends of trials: their outcome, the epochs saved by stopping, and their rank if they did not continue."""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from haltune._utils.arrays import Array
from haltune.display import amount, numeral, ordinal, plural

from .decisions import ASKED, COMPARED_AT, CUT, FULL, WISH
from .events import Status
from .history import History
from .problem import Problem, latest, violation
from .records import TrialRecord
from .scores import dominates

OUTCOMES = {  # kind -> words for one trial, and for several
    "completed": ("trained in full", "trained in full"),
    "schedule": ("trained to the end of its schedule", "trained to the end of their schedule"),
    "itself": ("ended by itself", "ended by themselves"),
    "part": ("trained in part", "trained in part"),
    "nothing": ("ended without a value", "ended without a value"),
    "stopped": ("stopped early", "stopped early"),
    "paused": ("paused", "paused"),
    "left": ("not continued", "not continued"),
    "failed": ("failed", "failed"),
    "aside": ("paused by you", "paused by you"),
    "held": ("stopped for now", "stopped for now"),
    "interrupted": ("interrupted", "interrupted"),
    "lost": ("lost, its worker is gone", "lost, their workers are gone"),
    "running": ("running", "running"),
}


@dataclass(frozen=True)
class TrialOutcome:
    """Outcome of a trial, or its status while it runs."""

    kind: str  # one of OUTCOMES
    words: str  # "ended by itself at epoch 4 of 12"


def outcome_of(t: TrialRecord, problem: Problem, over: bool = False, lost: Container[int] = ()) -> TrialOutcome:
    """Return the outcome of a trial. over: the search has finished. lost: trials whose workers are gone."""
    kind, horizon = "lost" if t.id in lost else _kind(t, problem, over), problem.max_epochs
    words = OUTCOMES[kind][0]
    if kind == "completed" and horizon and t.epoch < horizon:
        words = f"trained to its last validation, at {problem.unit} {problem.reached(t.epoch)}"
    elif kind in ("itself", "nothing"):
        words += f" at {problem.unit} {problem.reached(t.epoch)}"
    elif kind == "part" and t.resource is not None:
        words += f", with a resource of {t.resource:g}"
    return TrialOutcome(kind, words)


def _kind(t: TrialRecord, problem: Problem, over: bool) -> str:
    if t.status is Status.STOPPED and t.complete:
        return "schedule" if t.epoch < (problem.max_epochs or math.inf) else "completed"
    if t.status is Status.PAUSED and over:
        return "left"
    wish = t.verdict.evidence.get(WISH) if t.verdict and t.error is None else None
    if t.status is Status.INTERRUPTED and wish:
        return "aside" if wish == "pause" else "held"
    if t.status is not Status.COMPLETED:
        return str(t.status)
    if math.isnan(t.result(problem.goal)):
        return "nothing"
    if t.partial:
        return "part"
    before, last = [0.0, *map(float, t.epochs)][-2:]
    following = last + (last - before)  # the next validation would have come at this epoch
    return "completed" if problem.max_epochs is not None and following > problem.max_epochs else "itself"


def saved_epochs(t: TrialRecord, problem: Problem, over: bool) -> float:
    """Return the epochs of a full training that were saved: 0 unless the policy stopped or finally paused the trial."""
    ended = t.status is Status.STOPPED or (t.status is Status.PAUSED and over)
    return max(0.0, problem.max_epochs - t.epoch) if ended and problem.max_epochs is not None else 0.0


def saved_seconds(history: History, over: bool) -> dict[int, float]:
    """Return `saved_epochs` times the seconds of an epoch, for each trial that saved some.

    A first report often includes start-up, so a trial's epoch takes the median of later reports. Without one it takes
    its first report, shortened as much as the later reports of other trials are shorter in the median.
    """
    later = {t.id: float(np.median(t.epoch_seconds[1:])) for t in history.trials if len(t.seconds) > 1}
    firsts = ((float(history.trial(id).epoch_seconds[0]), each) for id, each in later.items())
    shorter = float(np.median([min(each, first) / first for first, each in firsts if first > 0.0] or [1.0]))
    return {
        t.id: epochs * later.get(t.id, shorter * float(t.epoch_seconds[0]))
        for t in history.trials
        if len(t.seconds) and (epochs := saved_epochs(t, history.problem, over))
    }


def trained_again(history: History) -> float:
    """Return the epochs that a later attempt had to train again because they were not saved. They cost time."""
    return max(0.0, round(history.spent.epochs - math.fsum(t.epoch for t in history.trials), 6))


@dataclass(frozen=True)
class Savings:
    """Saved epochs: epochs that stopped or paused trials did not train.

    If other trials ended by themselves before max_epochs (by the user's own early stopping), stopped trials might have
    ended so too. Then the saved epochs are an upper bound.
    """

    epochs: float  # saved in trials that the policy stopped or finally paused
    seconds: float  # estimate for these trials
    itself: float  # epochs not trained by trials that ended by themselves
    problem: Problem  # for its unit

    @classmethod
    def of(cls, history: History, over: bool) -> Savings:
        problem, trials = history.problem, history.trials
        ended = [t for t in trials if problem.max_epochs and _kind(t, problem, over) == "itself"]
        return cls(
            math.fsum(saved_epochs(t, problem, over) for t in trials),
            math.fsum(saved_seconds(history, over).values()),
            math.fsum((problem.max_epochs or 0) - t.epoch for t in ended),
            problem,
        )

    @property
    def most(self) -> str:
        """The words before the saved epochs: "at most " if they are an upper bound."""
        return "at most " if self.itself else ""

    @property
    def words(self) -> list[str]:
        """The saved epochs and those of trials that ended by themselves, if there are any."""
        saved = [f"{self.most}{numeral(self.epochs)} saved"] * (self.epochs > 0.0)
        return saved + [self.left] * (self.itself > 0.0)

    @property
    def left(self) -> str:
        return f"{self.problem.amount(self.itself)} not trained by trials that ended by themselves"


# -- the rank of a trial at its rung -----------------------------------------------------------------------------------
#
# The rank is among all trials of the log at the same rung, so it changes when later trials arrive. At a rung a trial
# counts with its first report there or beyond; if it ended by itself before, with its last report: at every rung where
# trials are compared as they arrive, otherwise at the one it trained towards. The order is by violation of the
# constraints, then value, then number; a value that is not finite comes last. With several goals there is no rank: a
# trial is on the Pareto front of its rung, or others dominate it.


@dataclass(frozen=True)
class _Rung:
    group: tuple[str, str | float | None]  # a bracket, or the first rung of the ladder that brackets share
    level: float  # epochs or seconds
    stage: int  # its number on the ladder
    unit: str = "epochs"  # or "seconds"; "anew": each rung is a separate trial


@dataclass
class _Arrivals:
    costs: dict[int, Array] = field(default_factory=dict)  # trial -> costs, smaller is better
    epochs: dict[int, float] = field(default_factory=dict)  # trial -> of the report that counts
    continued: set[int] = field(default_factory=set)

    @cached_property
    def ranked(self) -> list[tuple[float, ...]]:
        return sorted((*costs, id) for id, costs in self.costs.items())

    @cached_property
    def finite(self) -> Array:
        return _finite(self.costs.values())


class Comparisons:
    """Ranks of trials at the rungs where they did not continue. over: the search has finished."""

    def __init__(self, history: History, over: bool) -> None:
        self.history, self.over = history, over
        self._arrivals: dict[_Rung, _Arrivals] = {}

    def now(self, t: TrialRecord) -> str:
        """Return a trial's rank and how many others continued: "11th of 11 after 9 epochs; 7 others continued".

        If its first report came after the rung: "..., counted at epoch 12; ...". Return "" if the trial
        was not compared or trained in full, or its value there is not finite.
        """
        if (rung := self._rung(t)) is None:
            return ""
        found = self._arrived(rung)
        own = found.costs.get(t.id)
        if own is None or not np.isfinite([*own, *t.values[-1:]]).all():
            return ""
        if self.history.problem.further:
            rank = _among(own, found.finite, len(found.finite) - 1)[0]
        else:
            rank = f"{ordinal(bisect(found.ranked, (*own, t.id)))} of {len(found.costs)}"
        where = f"with a resource of {t.resource:g}" if t.partial else f"after {self._amount(rung, rung.level)}"
        late = rung.unit == "epochs" and not t.partial and found.epochs[t.id] - self._early > rung.level
        where += f", counted at {self.history.problem.at(found.epochs[t.id])}" if late else ""
        rank = f"{rank}{'' if self.over else ' so far'} {where}{self._scope(rung)}"
        if t.id in found.continued:
            return f"{rank}: its configuration continued as another trial"
        return f"{rank}; {plural(len(found.continued), 'other') if found.continued else 'none'} continued"

    def counts(self, level: float) -> tuple[int, int] | None:
        """Return how many trials continued from the rungs at so many epochs, and how many arrived, in all brackets.

        None if all that were compared there continued.
        """
        rungs = [r for t in self.history.trials if (r := self._rung(t)) is not None]
        kinds = {r.group[0] for r in rungs if r.unit == "epochs" and r.level == level}
        compared = "first" if "first" in kinds else "bracket"  # a trial that diverged names only its bracket
        found = [
            self._arrived(_Rung((kind, which), level, 0))
            for kind, which in self._groups
            if kinds and kind == compared and self._first_of(kind, which) <= level
        ]
        return (sum(len(f.continued) for f in found), sum(len(f.costs) for f in found)) if found else None

    def _first_of(self, kind: str, which: str | float | None) -> float:
        """Return the first rung of a group."""
        first = self.history.first_rungs.get(str(which)) if kind == "bracket" else which
        return float(first or 0.0)

    def because(self, t: TrialRecord) -> list[tuple[str, str]]:
        """Return why a trial did not continue, as (title, words): its rank now, then the reason of the decision."""
        (title, reason), now = t.cut_because, self.now(t)
        found = [("ended because", now), (_when(t), reason)] if now else [(title, reason)]
        return [(title, words) for title, words in found if words]

    def reason(self, t: TrialRecord) -> str:
        """Return the same as one sentence, for a trial that ended or paused."""
        now, reason = self.now(t), t.ended_because
        return f"{now}; {_when(t)}: {reason}" if now and reason else now or reason

    def _amount(self, rung: _Rung, level: float) -> str:
        return amount(level, "seconds") if rung.unit == "seconds" else self.history.problem.amount(level)

    @cached_property
    def saved_seconds(self) -> dict[int, float]:
        return saved_seconds(self.history, self.over)

    @cached_property
    def _early(self) -> float:
        """Distance before a rung at which a report is still judged at it."""
        grid = self.history.problem.in_points().grid
        return grid.slack * grid.every if grid else 0.0

    def _rung(self, t: TrialRecord) -> _Rung | None:
        """Return the rung at which a trial was stopped or paused; None if no comparison ended it."""
        evidence = {} if t.verdict is None else t.verdict.evidence
        partial = t.status is Status.COMPLETED and t.partial
        cut = t.status in (Status.STOPPED, Status.PAUSED) and not {FULL, CUT, ASKED} & evidence.keys()
        # a trial without a rank in its verdict may also have ended between rungs, because it diverged
        fixed = [c for c in self.history.problem.constraints if not c.changes]  # a trial beyond one is stopped at once
        beyond = violation(fixed, lambda m: latest(t.column(m, self.history.problem.goal).tolist())) > 0.0
        reached = not evidence and not beyond and (t.pause_at or math.inf) <= t.epoch + self._early
        there = "rank" in evidence or reached
        if not isinstance(t.tags.get("rung"), int) or not (partial or (cut and there)):
            return None
        group = self._group_of(t, "bracket" in evidence or "rank" not in evidence)
        if partial or ("rank" not in evidence and self._winners):
            return _Rung(group, t.pause_at or 0.0, t.tags["rung"], "anew")
        stage = evidence.get("rung", t.tags["rung"])
        if (level := evidence.get(COMPARED_AT)) is not None:
            return _Rung(group, level, stage)
        if levels := [level for level in self._levels[group] if level <= t.epoch + self._early]:
            return _Rung(group, max(levels), stage)  # a report may pass several rungs
        ends = (u.resource for u in self._groups[group] if u.tags["rung"] == stage and u.resource)
        level = next(ends, math.inf)
        return _Rung(group, level, stage, "seconds") if level <= t.seconds.sum() else None

    def _group_of(self, t: TrialRecord, bracket: bool) -> tuple[str, str | float | None]:
        """Return the group: a bracket or, for asynchronous comparisons, all brackets with the same first rung."""
        number = str(t.tags.get("bracket"))
        return ("bracket", number) if bracket else ("first", self.history.first_rungs.get(number))

    @cached_property
    def _groups(self) -> dict[tuple[str, str | float | None], list[TrialRecord]]:
        found = defaultdict(list)
        for t in self.history.trials:
            if isinstance(t.tags.get("rung"), int):
                for bracket in (True, False):
                    found[self._group_of(t, bracket)].append(t)
        return found

    @cached_property
    def _levels(self) -> dict[tuple[str, str | float | None], set[float]]:
        return {group: {t.pause_at for t in all if t.pause_at is not None} for group, all in self._groups.items()}

    @cached_property
    def _winners(self) -> set[int]:
        """The trials whose configuration continues as another trial."""
        return {t.tags["of"] for t in self.history.trials if "rung" in t.tags and "of" in t.tags}

    def _arrived(self, rung: _Rung) -> _Arrivals:
        if rung in self._arrivals:
            return self._arrivals[rung]
        found, problem = _Arrivals(), self.history.problem
        for t in self._groups[rung.group]:
            if rung.unit == "anew" and (t.tags["rung"] != rung.stage or t.status is Status.RUNNING):
                continue
            for run in (t, self.history.furthest_superseded(t.id)):
                if run is not None and (at := _arrival(run, rung, self._early)) is not None:
                    found.costs[t.id], found.epochs[t.id] = _costs(run, at, problem), float(run.epochs[at])
                    if self._continued(t, run, at, rung):
                        found.continued.add(t.id)
                    break
        self._arrivals[rung] = found
        return found

    def _continued(self, t: TrialRecord, run: TrialRecord, at: int, rung: _Rung) -> bool:
        if rung.unit == "anew":
            return t.id in self._winners
        if (own := self._rung(t)) is not None:  # a decision may come late: then its reports go beyond its rung
            return own.level > rung.level
        further = t.tags["rung"] > rung.stage
        if rung.unit == "epochs":
            further = (t.pause_at or math.inf) > rung.level
        return further or at < len(run.epochs) - 1

    def _scope(self, rung: _Rung) -> str:
        """Return words for the compared trials, if not all are compared."""
        kind, which = rung.group
        if kind == "bracket":
            return f" in bracket {which}" if len(self.history.first_rungs) > 1 else ""
        several = len(set(self.history.first_rungs.values())) > 1
        return f" in brackets that start at {self._amount(rung, float(which))}" if several and which else ""


def _when(t: TrialRecord) -> str:
    return "when it paused" if t.status is Status.PAUSED else "when stopped"


def _arrival(t: TrialRecord, rung: _Rung, early: float) -> int | None:
    """Return the index of the report that counts at a rung; None if the trial did not reach it.

    early: how long before a rung a report may come.
    """
    reached = np.cumsum(t.seconds) if rung.unit == "seconds" else t.epochs + early
    at = len(t.epochs) - 1 if t.partial else int(np.searchsorted(reached, rung.level))
    if at < len(t.epochs):
        return at if at >= 0 else None
    on_its_way = t.tags["rung"] == rung.stage if rung.unit == "seconds" else t.pause_at == rung.level
    counts = on_its_way or rung.group[0] == "first"
    return at - 1 if at and t.status is Status.COMPLETED and counts else None


def _costs(t: TrialRecord, at: int, problem: Problem) -> Array:
    """Return (goals,) -sign * value at a report, infinite if not finite; with one goal (violation, cost)."""
    beyond = violation(problem.constraints, lambda m: latest(t.column(m, problem.goal)[: at + 1].tolist()))
    if problem.further:
        found = [-goal.sign * float(t.column(goal.metric, problem.goal)[at]) for goal in problem.goals]
        finite = not beyond and all(map(math.isfinite, found))
        return np.array(found) if finite else np.full(len(found), math.inf)
    finite = math.isfinite(t.values[at])
    return np.array([beyond, -problem.goal.sign * float(t.counting(problem.goal)[at]) if finite else math.inf])


def _finite(costs: Iterable[Array]) -> Array:
    """Return (n, goals) the vectors that are finite in every goal."""
    found = np.array(list(costs))
    return found[np.isfinite(found).all(axis=1)] if len(found) else found


def _among(own: Array, known: Array, others: int) -> tuple[str, bool]:
    """Return whether known vectors of costs dominate one, in words and as a bool. others: their number without it."""
    above = int(dominates(own, known).sum()) if len(known) else 0  # larger costs are worse
    if above:
        return f"dominated by {above} of {plural(others, 'other trial')}", True
    return f"on the Pareto front of {plural(others + 1, 'trial')}", False


def front_at(history: History, trial: TrialRecord) -> tuple[str, bool]:
    """Return whether others dominate a trial at its last reported epoch, in words and as a bool.

    Others count with their last report up to that epoch, if they reached it or ended by themselves earlier.
    """
    problem, epoch = history.problem, trial.epoch
    own = _costs(trial, len(trial.epochs) - 1, problem)
    if not np.isfinite(own).all():
        return "beyond a limit" if problem.constraints else "without a finite value in every goal", True
    came = [t for t in history.trials if t.id != trial.id and len(t.epochs) and (t.epoch >= epoch or t.complete)]
    ends = [int(np.searchsorted(t.epochs, epoch, side="right")) - 1 for t in came]
    others = _finite(_costs(t, at, problem) for t, at in zip(came, ends, strict=True) if at >= 0)
    if not len(others):
        return f"the first to reach {problem.at(epoch)}", False
    words, off = _among(own, others, len(others))
    return f"at {problem.at(epoch)} {words}", off
