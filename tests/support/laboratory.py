"""Workers that search one study together, one small step at a time, and may die between any two of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from worlds import Clock

from haltune import Budget, Finish, Float, Maximize, Problem, Space, Study, Trial, Wait
from haltune.log.decisions import Action
from haltune.log.events import Event, Reported
from haltune.log.policy import Wrapper
from haltune.store.memory import MemoryStore
from haltune.study.redecide import redecide
from haltune.study.session import clocked

SPACE = Space({"x": Float(0.0, 1.0)})
Value = Callable[[int, float], float]


def problem(epochs: int | None) -> Problem:
    return Problem(SPACE, Maximize("acc"), epochs)


def rough(seed: int, bad: float = 0.0, steps: int = 6) -> Value:
    """Curves that cross, of few different values, so that many are equal; some are NaN."""

    def value(trial: int, epoch: float) -> float:
        rng = np.random.default_rng([seed, trial, int(epoch)])
        return math.nan if rng.random() < bad else float(rng.integers(steps)) / steps

    return value


def rising(trial: int, epoch: float) -> float:
    """Later epochs are better, and the order of the trials never changes."""
    return float(np.random.default_rng(trial).random()) - 1.0 / epoch


class Racing(Wrapper):
    """A policy that calls `meanwhile` after it has decided, to test concurrent events."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.meanwhile: Callable[[], None] | None = None

    def judge(self, *question: Any) -> Any:
        return self._then(super().judge(*question))

    def propose(self, *question: Any) -> Any:
        return self._then(super().propose(*question))

    def _then(self, answer: Any) -> Any:
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return answer


class Worker:
    """One process: a study of its own over the common store, and perhaps a trial."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.trial = lab, None
        self.policy = Racing(lab.make())
        with clocked(lab.clock):
            self.study = Study(
                lab.problem, self.policy, lab.store, seed=lab.seed, budget=lab.budget, max_failures=10**6, **lab.options
            )
        self.trial: Trial | None
        self.stuck = False  # a pause that cannot be saved
        self.answer: Any = None

    def ask(self) -> None:
        self.answer = self.study.ask()
        self.trial = self.answer if isinstance(self.answer, Trial) else None
        self.lab.answers.append(self.answer)

    def step(self) -> None:
        """Ask, train an epoch, or give the trial back."""
        if self.trial is None:
            self.ask()
            return
        trial = self.trial
        epoch = next(trial.epochs(), None)
        if epoch is not None:
            verdict = trial.report(self.lab.value(trial.id, epoch), seconds=self.lab.seconds(trial.id, epoch))
            self.lab.trained += 1
            if self.stuck and verdict.action is Action.PAUSE:
                trial.decline_pause()
            return
        if trial.verdict is not None and trial.verdict.resumable and self.lab.saves:
            trial.checkpointed(f"memory of {trial.id} at {trial.epoch}")
        trial.finish()
        self.trial = None

    def fail(self) -> None:
        if self.trial is not None:
            self.trial.fail(RuntimeError("boom"))
            self.trial = None

    def stop_early(self) -> None:
        """The user's own early stopping: the training is over before its horizon."""
        if self.trial is not None and len(self.study.history.trial(self.trial.id).epochs):
            self.trial.finish("completed")
            self.trial = None

    def save(self) -> None:
        if self.trial is not None and self.trial.epoch and self.lab.saves:
            self.trial.checkpointed(f"memory of {self.trial.id} at {self.trial.epoch}")

    def interrupt(self) -> None:
        if self.trial is not None:
            self.trial.interrupt()
            self.lab.lost.append(self.trial)
            self.trial = None


class Lab:
    """A store on a clock that tests advance, and the workers over it."""

    def __init__(
        self, make: Callable[[], Any], value: Value, epochs: int | None = 9, workers: int = 1,
        budget: Budget | None = None, seed: int = 3, saves: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        self.make, self.value, self.problem, self.budget, self.seed = (make, value, problem(epochs), budget, seed)
        self.saves, self.options = saves, options
        self.clock = Clock()
        self.store = MemoryStore(self.clock)
        self.answers: list[Any] = []
        self.trained = 0  # epochs
        self.workers = [Worker(self) for _ in range(workers)]
        self.lost: list[Trial] = []  # of dead workers, who may report yet

    @property
    def study(self) -> Study:
        self.workers[0].study.sync()
        return self.workers[0].study

    @property
    def log(self) -> list[Event]:
        return list(self.store.read("study"))

    def seconds(self, trial: int, epoch: float) -> float:
        return 1.0

    def kill(self, number: int) -> None:
        """A worker is gone; another takes its place; its lease has expired when somebody asks."""
        if (trial := self.workers[number].trial) is not None:
            self.lost.append(trial)
        self.workers[number] = Worker(self)
        self.clock.now += 1e4  # every lease that is not renewed from now on has expired
        for worker in self.workers:
            if worker.trial is not None:
                worker.trial.heartbeat()

    def late(self) -> None:
        """A worker that was taken for lost reports after all."""
        if self.lost:
            trial = self.lost.pop()
            if trial.epoch + 1 <= (trial.max_epochs or math.inf):
                trial.report(1e6)

    def run(self, steps: int = 20_000) -> Lab:
        """Run all workers in turn until each gets the end of the search; fail if it does not end."""
        for _ in range(steps):
            idle = 0
            for worker in self.workers:
                if isinstance(worker.answer, Finish) and worker.trial is None:
                    idle += 1
                    continue
                worker.step()
            if idle == len(self.workers):
                return self
        raise AssertionError(f"no end after {steps} steps: {[w.answer for w in self.workers]}")

    @property
    def waits(self) -> int:
        return sum(isinstance(a, Wait) for a in self.answers)

    def reports(self, trial: int | None = None) -> list[Reported]:
        return [e for e in self.log if isinstance(e, Reported) and trial in (None, e.trial)]


def act(lab: Lab, number: int, other: int, action: str) -> None:
    """Something happens to worker `number`, or to those that are left of it and `other`."""
    number, other = number % len(lab.workers), other % len(lab.workers)
    worker = lab.workers[number]
    if action == "race":
        worker.policy.meanwhile = lab.workers[other].step if other != number else None
        worker.step()
        worker.policy.meanwhile = None
    elif action == "kill":
        lab.kill(number)
    elif action == "mourn":  # one worker fewer permanently
        if len(lab.workers) > 1:
            lab.kill(number)
            del lab.workers[number]
    elif action == "late":
        lab.late()
    elif action == "stuck":
        worker.stuck = not worker.stuck
    else:
        {"step": worker.step, "save": worker.save, "fail": worker.fail, "early": worker.stop_early,
         "interrupt": worker.interrupt}[action]()  # fmt: skip


def happenings(actions: list[str], most: int) -> st.SearchStrategy[list[tuple[int, int, str]]]:
    """Steps for `act`: at least 10 and at most so many."""
    return st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(actions)), min_size=10, max_size=most
    )


def differences(lab: Lab) -> list[Any]:
    """The decisions that a replay finds otherwise than recorded."""
    return [d for d in redecide(lab.problem, lab.make(), lab.log) if d[1] != d[2]]
