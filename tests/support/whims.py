"""A policy that stops, pauses and resumes by the reported values, so that tests can cause any sequence of events."""

from __future__ import annotations

from typing import Any

from numpy.random import Generator

from haltune import Finish, Float, Maximize, Problem, Space, Verdict, Wait
from haltune.log.decisions import Action, Move, continue_
from haltune.log.events import Event, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.records import TrialRecord
from haltune.policies import Resume, Start

PROBLEM = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 10)
UNBOUNDED = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc"), 10)
STOP, PAUSE = 0.25, 0.75  # report one of these to be stopped or paused


class Whims(Policy[int]):
    """STOP at a value of 0.25, PAUSE at 0.75, otherwise CONTINUE; paused trials are resumed first."""

    endless = True

    def __init__(self, finish_after: int | None = None, wait_at: int | None = None, option: int = 1) -> None:
        self.finish_after, self.wait_at, self.option = finish_after, wait_at, option
        self.endless = finish_after is None

    def __repr__(self) -> str:  # the same in every process: pages show it
        return f"Whims(option={self.option})"

    @property
    def spec(self) -> dict[str, Any]:
        return {"policy": "Whims", "option": self.option}

    def start(self, problem: Problem) -> int:
        return 0

    def fold(self, state: int, event: Event) -> int:
        return state + 1

    def propose(self, state: int, history: History, rng: Generator) -> Move:
        assert state == history.position
        if self.finish_after is not None and len(history) >= self.finish_after:
            return Finish(f"{self.finish_after} are enough")
        if self.wait_at is not None and history.running >= self.wait_at:
            return Wait("enough of them run")
        for t in history.with_status(Status.PAUSED):
            return Resume(t.id, reason="it was paused")
        return Start({"x": float(rng.random())}, tags={"n": len(history)}, reason="a whim")

    def judge(self, state: int, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        assert state == history.position
        last = trial.values[-1]
        if last in (STOP, PAUSE):
            return Verdict(Action.STOP if last == STOP else Action.PAUSE, "a whim", {"draw": float(rng.random())})
        return continue_("no reason to stop", draw=float(rng.random()))
