"""The outcome of a trial in words, and its rank among those that came to the same rung.

Ranks are by the whole log: they change while later trials arrive. At a rung a trial counts with its first report there
or beyond; if it ended by itself on the way, with its last one. Trials are ranked by the violation of the constraints,
then by value, then by number; a value that is not finite ranks last. With several goals nothing is ranked: there a
trial is on the front of its rung, or others dominate it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Container
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from haltune._utils.arrays import Array
from haltune.display import amount, clipped, counted, ordinal, plural, short

from .decisions import ASKED, CUT, FULL, WISH
from .events import Status
from .history import History
from .problem import Problem, latest, violation
from .records import TrialRecord
from .scores import dominates

OUTCOMES = {  # kind -> of one trial, and of several
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
    """The outcome of a trial so far."""

    kind: str  # one of OUTCOMES
    words: str  # "ended by itself at epoch 4 of 12"


def outcome_of(
    t: TrialRecord, problem: Problem, over: bool = False, lost: Container[int] = ()
) -> TrialOutcome:
    """The outcome of a trial by the log. over: the search is, so that no paused trial continues.

    lost: the trials whose workers are gone, if the caller knows.
    """
    kind, full = "lost" if t.id in lost else _kind(t, problem, over), problem.max_epochs
    words = OUTCOMES[kind][0]
    if kind == "completed" and full and t.epoch < full:
        words = f"trained to its last validation, at epoch {t.epoch:g} of {full}"
    if kind in ("itself", "nothing"):
        words += f" at epoch {t.epoch:g}{f' of {full}' if full else ''}"
    elif kind == "part" and t.resource is not None:
        words += f", with a resource of {t.resource:g}"
    return TrialOutcome(kind, words)


def _kind(t: TrialRecord, problem: Problem, over: bool) -> str:
    full = problem.max_epochs or math.inf
    if t.status is Status.STOPPED and t.complete:
        return "schedule" if t.epoch < full else "completed"
    if t.status is Status.PAUSED and over:
        return "left"
    if t.status is Status.INTERRUPTED and t.error is None and t.verdict and WISH in t.verdict.evidence:
        return "aside" if t.verdict.evidence[WISH] == "pause" else "held"
    if t.status is not Status.COMPLETED:
        return str(t.status)
    if math.isnan(t.result(problem.goal)):
        return "nothing"
    if t.partial:
        return "part"
    before, last = [0.0, *map(float, t.epochs)][-2:]
    return "completed" if last + (last - before) > full else "itself"  # no validation was to follow


def values_of(t: TrialRecord, problem: Problem) -> str:
    """The values of a trial by now: acc 0.91, ms 12."""
    first = f"{problem.goal.metric} {short(float(t.counting(problem.goal)[-1]))}"
    others = t.results(problem) if problem.measured else {}
    return ", ".join([first, *(f"{name} {short(others[name])}" for name in problem.measured)])


def lead_of(history: History) -> str | None:
    """The best, or the front, in a few words; None before a trial has a value."""
    problem = history.problem
    if not problem.further:
        best = history.best()
        return (
            None if best is None else f"best {problem.goal.metric} {short(best.value)} (trial {best.trial})"
        )
    front = [history.on_front(id).values for id in history.front()]
    if not front:
        return None
    spans: list[str] = []
    for goal in problem.goals:
        values = sorted((trial[goal.metric] for trial in front), key=lambda v: -goal.sign * v)
        if len(problem.goals) == 2 and spans:  # of two goals, what is best in one is worst in the other
            values.reverse()
        first, last = short(values[0]), short(values[-1])
        spans.append(f"{goal.metric} {first}" + (f" to {last}" if last != first else ""))
    return f"front of {plural(len(front), 'run')}: {', '.join(spans)}"


def shared_error(history: History) -> str | None:
    """The error with which at least half of the trials failed, and at least 3; errors that differ in digits are one."""
    failed = [t.error.strip() for t in history.with_status(Status.FAILED) if t.error]
    errors = [error.partition("\n")[0] for error in failed if error]
    for alike, count in Counter(re.sub(r"\d+", "", error) for error in errors).most_common(1):
        if count >= max(3, len(history) / 2):
            example = next(error for error in errors if re.sub(r"\d+", "", error) == alike)
            return f"{count} of {len(history)} trials failed with the same error: {clipped(example, 300)}"
    return None


# -- saved epochs ----------------------------------------------------------------------------------


def saved_epochs(t: TrialRecord, problem: Problem, over: bool) -> float:
    """Epochs of a full training that a trial did not train because its policy stopped it, or left it paused."""
    ended = t.status is Status.STOPPED or (t.status is Status.PAUSED and over)
    return max(0.0, problem.max_epochs - t.epoch) if ended and problem.max_epochs is not None else 0.0


def saved_seconds(t: TrialRecord, problem: Problem, over: bool) -> float:
    """`saved_epochs` times the trial's median epoch, seconds."""
    epochs = saved_epochs(t, problem, over)
    return epochs * float(np.median(t.epoch_seconds)) if epochs and len(t.seconds) else 0.0


@dataclass(frozen=True)
class Savings:
    """Epochs of full trainings that were not trained.

    If trials ended by themselves before max_epochs, by an early stopping of the user's, those that were stopped might
    have, too: then what is saved is the most that it can be.
    """

    epochs: float  # saved
    seconds: float  # about, of these
    itself: float  # epochs that trials which ended by themselves did not train

    @classmethod
    def of(cls, history: History, over: bool) -> Savings:
        """Of all trials; over: the search is."""
        problem, trials = history.problem, history.trials
        ended = [t for t in trials if problem.max_epochs and _kind(t, problem, over) == "itself"]
        return cls(
            math.fsum(saved_epochs(t, problem, over) for t in trials),
            math.fsum(saved_seconds(t, problem, over) for t in trials),
            math.fsum((problem.max_epochs or 0) - t.epoch for t in ended),
        )

    @property
    def most(self) -> str:
        """The words before the saved epochs."""
        return "at most " if self.itself else ""

    @property
    def words(self) -> list[str]:
        """The saved epochs, and `left`, if there are any."""
        saved = [f"{self.most}{counted(round(self.epochs, 1))} saved"] * (self.epochs > 0.0)
        return saved + [self.left] * (self.itself > 0.0)

    @property
    def left(self) -> str:
        """The epochs that trials which ended by themselves did not train."""
        return f"{plural(round(self.itself, 1), 'epoch')} spared by runs that ended by themselves"


def trained_again(history: History) -> float:
    """Epochs that were trained but not saved, and so trained again by later attempts."""
    return max(0.0, round(history.spent.epochs - math.fsum(t.epoch for t in history.trials), 6))


# -- the rank at a rung ----------------------------------------------------------------------------

Group = tuple[str, str | float | None]  # a bracket, or the first rung of the ladder that brackets share


@dataclass(frozen=True)
class ComparedAt:
    """A rung of a group."""

    group: Group
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
    """The ranks of trials at the rungs at which they did not continue. over: the search is."""

    def __init__(self, history: History, over: bool) -> None:
        self.history, self.over = history, over
        self._arrivals: dict[ComparedAt, Arrivals] = {}
        self._groups: dict[Group, list[TrialRecord]] = defaultdict(list)
        self._levels: dict[Group, set[float]] = defaultdict(set)
        self._winners: set[int] = set()  # the trials whose configuration continued as another trial
        for t in history.trials:
            if isinstance(t.tags.get("rung"), int):
                for bracket in (True, False):
                    group = self._group_of(t, bracket)
                    self._groups[group].append(t)
                    if t.until is not None:
                        self._levels[group].add(t.until)
            if "rung" in t.tags and "of" in t.tags:
                self._winners.add(t.tags["of"])

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
        where = f"with a resource of {t.resource:g}" if t.partial else f"at {_at(rung, rung.level)}"
        so_far = "" if self.over else " so far"
        place = f"{place}{self._scope(rung)} {where}{so_far}"
        if t.id in found.continued:
            return f"{place}: its configuration continued as another trial"
        return f"{place}; {counted(len(found.continued)) if found.continued else 'none'} continued"

    def because(self, t: TrialRecord) -> list[tuple[str, str]]:
        """Why a trial did not continue, as (title, words): the rank by now, then the reason of the decision."""
        (title, words), now = t.cut_because, self.now(t)
        found = [("ended because", now), (when_cut(t), words)] if now else [(title, words)]
        return [(title, words) for title, words in found if words]

    def reason(self, t: TrialRecord) -> str:
        """The same in a sentence, of a trial that ended or paused."""
        now, words = self.now(t), t.ended_because
        return f"{now}; {when_cut(t)}: {words}" if now and words else now or words

    def _rung(self, t: TrialRecord) -> ComparedAt | None:
        """The rung at which a trial was cut; None for a trial that no comparison has cut."""
        told = {} if t.verdict is None else t.verdict.evidence
        partial = t.status is Status.COMPLETED and t.partial
        cut = t.status in (Status.STOPPED, Status.PAUSED) and not {FULL, CUT, ASKED} & told.keys()
        # else it diverged on the way, say
        there = "rank" in told or (not told and (t.until or math.inf) <= t.epoch)
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

    def _group_of(self, t: TrialRecord, bracket: bool) -> Group:
        """Trials are compared within a bracket; if asynchronously, with those of all brackets that start alike."""
        number = str(t.tags.get("bracket"))
        return ("bracket", number) if bracket else ("first", self.history.first_rungs.get(number))

    def _came(self, rung: ComparedAt) -> Arrivals:
        found, problem = Arrivals(), self.history.problem
        for t in self._groups[rung.group]:
            if rung.unit == "anew" and (t.tags["rung"] != rung.stage or t.status is Status.RUNNING):
                continue
            for run in (t, self.history.furthest_superseded(t.id)):
                if run is None or (at := _arrival(run, rung)) is None:
                    continue
                found.vectors[t.id] = _costs(run, at, problem)
                if rung.unit == "anew":
                    continued = t.id in self._winners
                elif rung.unit == "seconds":
                    continued = t.tags["rung"] > rung.stage or at < len(run.epochs) - 1
                else:
                    continued = (t.until or math.inf) > rung.level or at < len(run.epochs) - 1
                if continued:
                    found.continued.add(t.id)
                break
        return found

    def _scope(self, rung: ComparedAt) -> str:
        """Which trials are meant, if not all of the search."""
        kind, which = rung.group
        if kind == "bracket":
            return f" in bracket {which}" if len(self.history.first_rungs) > 1 else ""
        several = len(set(self.history.first_rungs.values())) > 1
        return f" from brackets that start at {_at(rung, float(which))}" if several and which else ""


def when_cut(t: TrialRecord) -> str:
    """The title of the reason that was given when a trial was cut."""
    return "when it paused" if t.status is Status.PAUSED else "when stopped"


def _at(rung: ComparedAt, level: float) -> str:
    return amount(level, "seconds") if rung.unit == "seconds" else f"epoch {level:g}"


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
    """Where a vector of costs is among others without any weights, and whether another dominates it."""
    known = [v for v in others if np.isfinite(v).all()]
    above = int(dominates(own, np.array(known)).sum()) if known else 0
    if above:
        return f"dominated by {above} of {plural(len(known), 'other trial')}", True
    return f"on the front of {plural(len(known) + 1, 'trial')}", False


def front_at(history: History, trial: TrialRecord) -> tuple[str, bool]:
    """Where a trial is at the last epoch that it reported, and whether it is off the front there.

    Others count by the last report at that epoch or before: those that came so far, or ended by themselves before.
    """
    problem, epoch = history.problem, trial.epoch
    own = _costs(trial, len(trial.epochs) - 1, problem)
    if not np.isfinite(own).all():
        return "beyond a limit" if problem.constraints else "without a finite value in every goal", True
    others = []
    for t in history.trials:
        if t.id != trial.id and len(t.epochs) and (t.epoch >= epoch or t.complete):
            at = int(np.searchsorted(t.epochs, epoch, side="right")) - 1
            others += [_costs(t, at, problem)] if at >= 0 else []
    if not any(np.isfinite(v).all() for v in others):
        return f"the first to come to epoch {epoch:g}", False
    words, off = among_others(own, others)
    return f"at epoch {epoch:g} {words}", off
