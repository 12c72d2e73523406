"""Rank of a trial among those that came to the same rung, by the whole log: it changes while later trials arrive.

At a rung a trial counts with its first report there or beyond; if it ended by itself on the way, with its last one.
Trials are ranked by the violation of the constraints, then by value, then by number; a value that is not finite ranks
last. With several goals nothing is ranked: there a trial is on the front of its rung, or others dominate it.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from haltune._utils.arrays import Array
from haltune.display import amount, counted, ordinal, plural

from .decisions import ASKED, CUT, FULL
from .events import Status
from .history import History
from .problem import Problem, latest, violation
from .records import TrialRecord
from .scores import dominates


@dataclass(frozen=True)
class ComparedAt:
    """Where the trials of a group are compared."""

    group: tuple[str, str | float | None]  # a bracket, or the first rung of the ladder that brackets share
    level: float  # epochs; or seconds
    stage: int  # its number on the ladder
    unit: str = "epochs"  # or "seconds"; "anew": each rung is a trial of its own


@dataclass
class Arrivals:
    """The trials that came to a rung."""

    vectors: dict[int, Array] = field(default_factory=dict)  # trial -> costs, the smaller the better
    continued: set[int] = field(default_factory=set)

    @cached_property
    def ranked(self) -> list[tuple[float, ...]]:
        """The best first."""
        return sorted((*costs, id) for id, costs in self.vectors.items())


class Comparisons:
    """Where trials stand now at the rungs at which they did not continue. over: the search is."""

    def __init__(self, history: History, over: bool) -> None:
        self.history, self.over = history, over
        self._arrivals: dict[ComparedAt, Arrivals] = {}

    def now(self, t: TrialRecord) -> str:
        """The rank of a trial, and how many continued: "11th of 11 at epoch 9; 7 continued".

        "" for a trial that was not compared, that trained in full, or whose value there is not finite.
        """
        if (rung := self._rung(t)) is None:
            return ""
        if rung not in self._arrivals:
            self._arrivals[rung] = self._came(rung)
        found = self._arrivals[rung]
        own = found.vectors.get(t.id)
        if own is None or not np.isfinite(own).all():
            return ""
        if self.history.problem.further:
            place = among_others(own, [v for id, v in found.vectors.items() if id != t.id])[0]
        else:
            place = f"{ordinal(bisect(found.ranked, (*own, t.id)))} of {counted(len(found.vectors))}"
        where = f"with a resource of {t.resource:g}" if t.partial else f"at {_at(rung)}"
        so_far = "" if self.over else " so far"
        place = f"{place}{self._scope(rung)} {where}{so_far}"
        if t.id in found.continued:
            return f"{place}: its configuration continued as another trial"
        return f"{place}; {counted(len(found.continued)) if found.continued else 'none'} continued"

    def because(self, t: TrialRecord) -> list[tuple[str, str]]:
        """Why a trial did not continue, as (title, words): what is so now, then the reason of the decision."""
        (title, words), now = t.cut_because, self.now(t)
        found = [("ended because", now), (when_cut(t), words)] if now else [(title, words)]
        return [(title, words) for title, words in found if words]

    def reason(self, t: TrialRecord) -> str:
        """The same in a sentence, of a trial that ended or paused."""
        now, words = self.now(t), t.ended_because
        return f"{now}; {when_cut(t)}: {words}" if now and words else now or words

    # -- which rung, and who came there --------------------------------------------------------

    def _rung(self, t: TrialRecord) -> ComparedAt | None:
        """The rung at which a trial was cut; None for a trial that no comparison has cut."""
        told = {} if t.verdict is None else t.verdict.evidence
        partial = t.status is Status.COMPLETED and t.partial
        cut = t.status in (Status.STOPPED, Status.PAUSED) and not {FULL, CUT, ASKED} & told.keys()
        there = "rank" in told or (
            not told and (t.until or math.inf) <= t.epoch
        )  # else it diverged on the way, say
        if not isinstance(t.tags.get("rung"), int) or not (partial or (cut and there)):
            return None
        group = self._group_of(t, "bracket" in told or "rank" not in told)
        if partial or ("rank" not in told and self._winners):
            return ComparedAt(group, t.until or 0.0, t.tags["rung"], "anew")
        stage = told.get("rung", t.tags["rung"])
        if levels := [level for level in self._levels[group] if level <= t.epoch]:
            return ComparedAt(group, max(levels), stage)  # a report may pass several rungs
        ends = (u.resource for u in self._groups[group] if u.tags["rung"] == stage and u.resource)
        level = next(ends, math.inf)
        return ComparedAt(group, level, stage, "seconds") if level <= t.seconds.sum() else None

    def _group_of(self, t: TrialRecord, bracket: bool) -> tuple[str, str | float | None]:
        """Trials are compared within a bracket; if asynchronously, with those of all brackets that start alike."""
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
        return {group: {t.until for t in all if t.until is not None} for group, all in self._groups.items()}

    @cached_property
    def _winners(self) -> set[int]:
        """The trials in the place of which another continues."""
        return {t.tags["of"] for t in self.history.trials if "rung" in t.tags and "of" in t.tags}

    def _came(self, rung: ComparedAt) -> Arrivals:
        found, problem = Arrivals(), self.history.problem
        for t in self._groups[rung.group]:
            if rung.unit == "anew" and (t.tags["rung"] != rung.stage or t.status is Status.RUNNING):
                continue
            for run in (t, self.history.furthest_superseded(t.id)):
                if run is not None and (at := _arrival(run, rung)) is not None:
                    found.vectors[t.id] = _costs(run, at, problem)
                    if self._continued(t, run, at, rung):
                        found.continued.add(t.id)
                    break
        return found

    def _continued(self, t: TrialRecord, run: TrialRecord, at: int, rung: ComparedAt) -> bool:
        if rung.unit == "anew":
            return t.id in self._winners
        further = (
            t.tags["rung"] > rung.stage if rung.unit == "seconds" else (t.until or math.inf) > rung.level
        )
        return further or at < len(run.epochs) - 1

    def _scope(self, rung: ComparedAt) -> str:
        """Which trials are meant, if not all of the search."""
        kind, which = rung.group
        if kind == "bracket":
            return f" in bracket {which}" if len(self.history.first_rungs) > 1 else ""
        several = len(set(self.history.first_rungs.values())) > 1
        return f" from brackets that start at {_at(rung, which)}" if several and which else ""


def when_cut(t: TrialRecord) -> str:
    """The title of the reason that was given when a trial was cut."""
    return "when it paused" if t.status is Status.PAUSED else "when stopped"


def _at(rung: ComparedAt, level: float | str | None = None) -> str:
    count = float(rung.level if level is None else level)
    return amount(count, "seconds") if rung.unit == "seconds" else f"epoch {count:g}"


def _arrival(t: TrialRecord, rung: ComparedAt) -> int | None:
    """The index of the report with which a trial counts at a rung; None: it did not come there."""
    reached = np.cumsum(t.seconds) if rung.unit == "seconds" else t.epochs
    at = len(t.epochs) - 1 if t.partial else int(np.searchsorted(reached, rung.level))
    if at < len(t.epochs):
        return at if at >= 0 else None
    on_its_way = t.tags["rung"] == rung.stage if rung.unit == "seconds" else t.until == rung.level
    return at - 1 if at and t.status is Status.COMPLETED and on_its_way else None


def _costs(t: TrialRecord, at: int, problem: Problem) -> Array:
    """(goals,) -sign * value at a report, infinite where it is not finite; with one goal after the violation."""
    beyond = violation(problem.constraints, lambda m: latest(t.column(m, problem.goal)[: at + 1].tolist()))
    if problem.further:
        found = [-goal.sign * float(t.column(goal.metric, problem.goal)[at]) for goal in problem.goals]
        finite = not beyond and all(map(math.isfinite, found))
        return np.array(found) if finite else np.full(len(found), math.inf)
    finite = math.isfinite(t.values[at])
    cost = -problem.goal.sign * float(t.counting(problem.goal)[at]) if finite else math.inf
    return np.array([beyond, cost])


def among_others(own: Array, others: list[Array]) -> tuple[str, bool]:
    """How a vector of costs stands among others without any weights, and whether another dominates it."""
    known = [v for v in others if np.isfinite(v).all()]
    above = int(dominates(own, np.array(known)).sum()) if known else 0
    if above:
        return f"dominated by {above} of {plural(len(known), 'other trial')}", True
    return f"on the front of {plural(len(known) + 1, 'trial')}", False


def front_at(history: History, trial: TrialRecord) -> tuple[str, bool]:
    """How a trial stands at the last epoch that it reported, and whether it is off the front there.

    Others count by the last report at that epoch or before: those that came so far, or ended by themselves before.
    """
    problem, epoch = history.problem, trial.epoch
    own = _costs(trial, len(trial.epochs) - 1, problem)
    if not np.isfinite(own).all():
        return "beyond a limit" if problem.constraints else "without a finite value in every goal", True
    came = [
        t for t in history.trials if t.id != trial.id and len(t.epochs) and (t.epoch >= epoch or t.complete)
    ]
    ends = [int(np.searchsorted(t.epochs, epoch, side="right")) - 1 for t in came]
    others = [_costs(t, at, problem) for t, at in zip(came, ends, strict=True) if at >= 0]
    if not any(np.isfinite(v).all() for v in others):
        return f"the first to come to epoch {epoch:g}", False
    words, off = among_others(own, others)
    return f"at epoch {epoch:g} {words}", off
