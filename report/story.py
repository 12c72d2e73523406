"""The story of a search: best so far, attempts of the workers and rungs, folded from the log event by event."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from haltune.log import events as ev
from haltune.log.decisions import AUDIT, Action, Verdict
from haltune.log.problem import Problem
from haltune.log.records import TopTrial, TrialBuilder


@dataclass
class Stretch:
    """One attempt at a trial, on one worker. Seconds."""

    trial: int
    attempt: int
    worker: str
    start: float  # since the epoch
    end: float  # the last heartbeat; later the release
    choosing: float = 0.0  # before its start
    judging: float = 0.0  # within it
    training: float = 0.0  # in epochs, validation excluded
    validation: float = 0.0
    checkpoint: float = 0.0
    slept: float = 0.0  # the machine was asleep
    epochs: float = 0.0
    outcome: str = "running"  # its final status, or "lost"

    @property
    def other(self) -> float:
        known = self.training + self.validation + self.judging + self.checkpoint + self.slept
        return max(0.0, self.end - self.start - known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a search up to some time."""

    epochs: float  # trained by all trials
    seconds: float  # since the first trial started
    cost: float  # as reported by trials


@dataclass(frozen=True, slots=True)
class NewBest(Cost):
    """A change of the best trial or of its value."""

    trial: int
    value: float
    beyond: bool = False  # it violates constraints on metrics


@dataclass
class Story:
    """The fold of the log. Call `fold` with the events in their order, any number at a time."""

    problem: Problem
    position: int = 0  # events folded
    begun: float = math.nan  # the first start, seconds since the epoch
    now: float = math.nan  # the last event's time
    epochs: float = 0.0
    cost: float = 0.0
    steps: list[NewBest] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    rungs: set[float] = field(default_factory=set)  # epochs at which trials are compared, and max_epochs
    # trial -> epoch at which it reached a rung -> verdict
    compared: dict[int, dict[float, Verdict]] = field(default_factory=dict)
    stop: ev.Reported | None = None  # the last stop by the probability to win
    # audited trial -> its stated probabilities to win, each with the value to beat
    stated: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    tracebacks: dict[int, str] = field(default_factory=dict)  # trial -> traceback of its last failure
    ends: dict[int, Cost] = field(default_factory=dict)  # trial -> cost of the search at its last report
    _open: dict[int, Stretch] = field(default_factory=dict)  # trial -> its attempt
    _at: dict[int, float] = field(default_factory=dict)  # trial -> the last epoch of its attempt
    _pause_at: dict[int, float] = field(default_factory=dict)  # trial -> its next rung
    _saved: dict[int, float] = field(default_factory=dict)  # trial -> the epoch from which it resumes
    _runs: list[TrialBuilder] = field(default_factory=list)
    _top: TopTrial = field(default_factory=TopTrial)

    def fold(self, events: Iterable[ev.Event]) -> Story:
        for event in events:
            self.position += 1
            self.now = event.at if math.isnan(self.now) else max(self.now, event.at)
            match event:
                case ev.Reported():
                    self._reported(event)
                case ev.Started() | ev.Resumed():
                    self._begun(event)
                case ev.Checkpointed() | ev.Kept():
                    if (held := self._mine(event.trial, event.attempt)) is not None:
                        held.checkpoint += event.seconds
                        held.end = max(held.end, event.at)
                        if isinstance(event, ev.Checkpointed):
                            self._saved[event.trial] = event.epoch
                case ev.JudgedEvery():
                    self.problem = replace(self.problem, spacing=event.every)
                    self._pause_at = dict.fromkeys(self._pause_at, 0.0)  # the first trial's rung was a guess
                    if not self.compared:
                        self.rungs.clear()
                case ev.Slept():
                    if (held := self._mine(event.trial, event.attempt)) is not None:
                        held.slept += event.seconds
                case ev.Ended():
                    if event.traceback:
                        self.tracebacks[event.trial] = event.traceback
                    self._release(event.trial, event.attempt, event.at, str(event.status))
                case ev.Expired():
                    self._release(event.trial, event.attempt, event.last_alive, "lost")
            self._led(event)
        return self

    def _led(self, event: ev.Event) -> None:
        """Record a change of the best trial, by the rule of haltune.log.scores, or of its value."""
        match event:
            case ev.Started():
                self._runs.append(TrialBuilder.of(event, None, self.problem))
            case ev.Resumed():
                self._runs[event.trial].resume(event)
            case ev.AttemptEvent():
                self._runs[event.trial].apply(event)
        if isinstance(event, ev.Started | ev.Resumed | ev.AttemptEvent):
            self._top.weigh(self._runs[event.trial])
        if (top := self._top.among(self._runs)) is None:
            return
        run, at, goal = self._runs[top].counted, event.at - self.begun, self.problem.goal
        value = goal.sign * run.counts
        if goal.rank_by is not None:
            if (best := run.best(str, run)).metric != goal.final:
                return
            value = best.value
        beyond = bool(self.problem.constraints) and run.violation > 0.0
        last = self.steps[-1] if self.steps else None
        if last is None or (last.trial, last.value, last.beyond) != (run.id, value, beyond):
            self.steps.append(NewBest(run.id, value, beyond, epochs=self.epochs, seconds=at, cost=self.cost))

    def _begun(self, e: ev.Started | ev.Resumed) -> None:
        if math.isnan(self.begun):
            self.begun = e.at
        attempt = 1 if isinstance(e, ev.Started) else e.attempt
        since = 0.0 if isinstance(e, ev.Started) or e.anew else self._saved.get(e.trial, 0.0)
        found = Stretch(e.trial, attempt, e.worker, e.at, e.at, choosing=e.deciding)
        self._open[e.trial], self._at[e.trial] = found, since
        self.stretches.append(found)
        if AUDIT in e.evidence:
            self.stated.setdefault(e.trial, [])
        self._pause_at.pop(e.trial, None)
        if "rung" in e.tags:
            self._towards(e.trial, e.pause_at)

    def _towards(self, trial: int, pause_at: float | None) -> None:
        if pause_at is not None and math.isfinite(pause_at):
            self.rungs.add(pause_at)
            self._pause_at[trial] = pause_at

    def _mine(self, trial: int, attempt: int) -> Stretch | None:
        found = self._open.get(trial)
        return found if found is not None and found.attempt == attempt else None

    def _reported(self, e: ev.Reported) -> None:
        held = self._mine(e.trial, e.attempt)
        epochs = e.epoch - self._at.get(e.trial, 0.0)
        if held is None or epochs <= 0:
            return
        if e.copied:
            self._at[e.trial] = e.epoch  # counted in an earlier attempt
            return
        seconds = e.seconds if math.isfinite(e.seconds) else 0.0
        validation = min(e.validation or 0.0, seconds)
        held.training += seconds - validation
        held.validation += validation
        held.judging += e.deciding
        held.epochs += epochs
        held.end = max(held.end, e.at)
        self._at[e.trial] = e.epoch
        self.epochs += epochs
        self.cost += e.cost if e.cost is not None and math.isfinite(e.cost) else 0.0
        self.ends[e.trial] = Cost(epochs=self.epochs, seconds=e.at - self.begun, cost=self.cost)
        grid, pause_at = self.problem.in_points().grid, self._pause_at.get(e.trial, math.inf)
        early = grid.slack * grid.every if grid else 0.0  # a report may come before its point by this much
        if not pause_at and grid and "rank" in e.verdict.evidence:
            self.rungs.add(pause_at := grid.position(math.floor(grid.points(e.epoch) + grid.slack)))
        if pause_at and e.epoch + early >= pause_at and e.verdict.action is not Action.UNJUDGED:
            self.compared.setdefault(e.trial, {})[e.epoch] = e.verdict  # it reached a rung
            if e.verdict.action is Action.CONTINUE:
                self._towards(e.trial, e.verdict.pause_at)
        self.stop = e if gives_p_win(e) and e.verdict.stops else self.stop
        if e.trial in self.stated:
            given = [e.verdict.evidence.get(name) for name in ("p_win", "incumbent")]
            known = [float(n) for n in given if isinstance(n, (int, float)) and math.isfinite(n)]
            if len(known) == len(given):
                self.stated[e.trial].append((known[0], known[1]))

    def _release(self, trial: int, attempt: int, at: float, outcome: str) -> None:
        held = self._mine(trial, attempt)
        if held is not None:
            held.end, held.outcome = max(held.end, at) if outcome != "lost" else max(held.start, at), outcome
            del self._open[trial]


def gives_p_win(event: ev.Event) -> TypeGuard[ev.Reported]:
    """Return whether a report was judged by its probability to win."""
    evidence = event.verdict.evidence if isinstance(event, ev.Reported) else {}
    return isinstance(evidence.get("p_win"), float) and evidence.get("basis") == "solved"
