"""Scripted stopping rules, and studies of given curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.random import Generator

from haltune import Budget, Float, Maximize, Problem, Space, Study, Verdict
from haltune.log.decisions import Action, Move, continue_
from haltune.log.events import Ended, Event, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.records import TrialRecord
from haltune.policies import Resume, Start

Told = Mapping[tuple[int, int], Action]  # (trial, epoch) -> what is said there


class Scripted(Policy[int]):
    """Gives the scripted verdict at (trial, epoch), otherwise CONTINUE; resumes paused trials. Its state: ended trials.

    A trial that started again is not paused at the same epoch.
    """

    def __init__(self, told: Told | None = None) -> None:
        self.told = told or {}
        self.asked: list[tuple[int, float]] = []  # (trial, epoch)

    def start(self, problem: Problem) -> int:
        return 0

    def fold(self, state: int, event: Event) -> int:
        return state + isinstance(event, Ended)

    def propose(self, state: int, history: History, rng: Generator) -> Move:
        for t in history.with_status(Status.PAUSED):
            return Resume(t.id, reason="it was paused")
        return Start({"x": float(rng.random())}, reason="a guess")

    def judge(self, state: int, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        self.asked.append((trial.id, trial.epoch))
        action = self.told.get((trial.id, int(trial.epoch)), Action.CONTINUE)
        action = Action.CONTINUE if action is Action.PAUSE and trial.attempt > 1 else action
        return Verdict(action, f"{action}, after {state} that ended", {"incumbent": history.incumbent(trial.id)})


class Behind(Scripted):
    """Stops all trials behind the incumbent at one epoch."""

    def __init__(self, epoch: int, action: Action = Action.STOP) -> None:
        super().__init__()
        self.epoch, self.action = epoch, action

    def judge(self, state: int, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        best = history.incumbent(exclude=trial.id)
        if trial.epoch == self.epoch and trial.values[-1] < best:
            return Verdict(self.action, f"{trial.values[-1]:g} is behind {best:g}")
        return continue_("not behind")


class At(Scripted):
    """Stops every run at one epoch."""

    def __init__(self, epoch: int, action: Action = Action.STOP) -> None:
        super().__init__()
        self.epoch, self.action = epoch, action

    def judge(self, state: int, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        action = self.action if trial.epoch >= self.epoch else Action.CONTINUE
        return Verdict(action, f"{action} at epoch {trial.epoch:g}")


def written(
    curves: Sequence[Sequence[float]], told: Told | None = None, obeys: bool = True, saves: bool = True, **options: Any
) -> Study:
    """Return a study of these curves, one trial after the other.

    told: verdicts of its own policy. obeys: the training ends at a STOP. saves: a paused trial leaves a checkpoint.
    """
    goal = options.pop("goal", Maximize("acc", (0, 1)))
    problem = Problem(Space({"x": Float(0.0, 1.0)}), goal, max(map(len, curves)))
    study = Study(problem, Scripted(told), options.pop("store", None), seed=0, budget=Budget(trials=len(curves)))
    for trial in study:
        with trial:
            first = int(trial.epoch) + 1
            for epoch, value in enumerate(curves[trial.id][first - 1 :], first):
                if trial.report(value, epoch, seconds=1.0).stops and obeys:
                    break
            if saves and trial.verdict and trial.verdict.action is Action.PAUSE:
                trial.checkpointed(f"{trial.id}-{trial.epoch:g}")
    return study
