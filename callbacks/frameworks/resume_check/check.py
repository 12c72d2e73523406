"""Does a paused training go on as if it had never been paused? Trained both ways, and compared.

from haltune.callbacks import check_resume

def run(trial):
    trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)])
    trainer.fit(Net(), data, ckpt_path=trial.checkpoint)
    return trainer                                    # or the module, the Keras model, any arrays

print(check_resume(run, goal=Minimize("val_loss")))
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.words import plural
from haltune.display.terminal import visible
from haltune.errors import HaltuneWarning, InvalidInput
from haltune.log.decisions import Action, Finish, Move, Resume, Start, Verdict, go_on
from haltune.log.events import Event, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Goal, Minimize, Problem
from haltune.log.records import TrialRecord
from haltune.space import Space
from haltune.study import Study, Trial

from ..randomness import capture
from .states import differing, training_state

MakeRun = Callable[[Trial], Any]


@dataclass(frozen=True)
class ResumeCheck:
    """What differs between a training and the same one paused on its way; true when nothing does."""

    epochs: int
    pause_at: int
    compared: tuple[str, ...]  # "weights", "optimizer", ...: what both runs had
    differences: tuple[str, ...]  # one sentence each

    @property
    def ok(self) -> bool:
        """True when nothing differs."""
        return not self.differences

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        runs = f"{plural(self.epochs, 'epoch')} straight, and paused after {self.pause_at}"
        if self.ok:
            return visible(f"Resumes exactly: {runs}, agree to the last digit in {', '.join(self.compared)}.")
        listing = "\n".join(f"- {d}" for d in self.differences)
        return visible(f"Does NOT resume exactly. {runs}, differ:\n{listing}")


def check_resume(
    make_run: MakeRun,
    config: Mapping[str, Any] | None = None,
    *,
    goal: Goal | None = None,
    epochs: int = 4,
    pause_at: int | None = None,
    seed: int = 0,
) -> ResumeCheck:
    """Train straight, then again with a pause, and compare the ends bit for bit.

    Compared are weights, optimizer, learning rates and schedules, random state, and the metrics reported; of boosters,
    which draw from generators of their own, trees and metrics.

    Args:
        make_run: Trains the trial it is given as a search would, from trial.checkpoint on, reports to it, and
            returns what was trained: a Lightning Trainer or module, a torch module, a Keras model, a booster, an
            estimator of scikit-learn, or any dict, list or tuple of arrays and numbers. Called three times; what it
            raises is raised.
        config: What trial.config is. Default: None, nothing.
        goal: What is reported. Default: None, Minimize("val_loss").
        epochs: How many are trained. Default: 4.
        pause_at: The epoch after which one training is paused. Default: None, half-way.
        seed: Of all global generators before both trainings; the one that goes on begins with another, as a new
            process would, so that what is not restored shows. Default: 0.

    Returns:
        What differs; true when nothing does.

    Raises:
        InvalidInput: When `pause_at` is not within the training.

    Example:
        >>> from haltune.callbacks.loop import TrainingLoop
        >>> def run(trial):
        ...     weight = np.load(trial.checkpoint) if trial.checkpoint else np.zeros(1)
        ...     loop = TrainingLoop(trial, save=lambda path: np.save(path, weight), suffix=".npy")
        ...     for epoch in loop:
        ...         weight = weight + random.random()
        ...         _ = loop.report(float(weight[0]))
        ...     return weight
        >>> bool(check_resume(run))
        True
    """
    middle = epochs // 2 if pause_at is None else pause_at
    if not 0 < middle < epochs:
        raise InvalidInput(
            f"pause_at={middle} of epochs={epochs}: the pause lies within, at 1 to {epochs - 1}"
        )
    goal = goal or Minimize("val_loss")
    straight = _CheckedTraining(goal, epochs, None, config)
    straight.train(make_run, seed)
    broken = _CheckedTraining(goal, epochs, middle, config)
    broken.train(make_run, seed)
    if (why := broken.not_paused()) is not None:
        return ResumeCheck(epochs, middle, (), (why,))
    broken.train(make_run, seed + 1)
    return _compare(straight, broken, epochs, middle)


@dataclass(frozen=True)
class _PausesOnce(Policy[None]):
    """One trial, paused after some epoch, then trained to its end."""

    at: int | None
    endless = False

    @property
    def spec(self) -> dict[str, Any]:
        return {"policy": "PausesOnce", "at": self.at}

    def start(self, problem: Problem) -> None:
        return None

    def fold(self, state: None, event: Event) -> None:
        return None

    def propose(self, state: None, history: History, rng: Generator) -> Move:
        for t in history.with_status(Status.PAUSED):
            return Resume(t.id, reason="to see whether it continues as it would have")
        if len(history):
            return Finish("one training is enough")
        return Start({"run": 0}, until=self.at)

    def judge(self, state: None, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        if trial.attempt == 1 and self.at is not None and trial.epoch >= self.at:
            return Verdict(Action.PAUSE, f"paused after epoch {trial.epoch:g}")
        return go_on("on to the end")


class _CheckedTraining:
    """One training, whole or in two parts, and what it left."""

    def __init__(self, goal: Goal, epochs: int, pause_at: int | None, config: Any) -> None:
        self._config = dict(config or {})
        self.study = Study(Problem(Space({"run": 0}), goal, epochs), _PausesOnce(pause_at), seed=0, verbose=0)
        self.state: dict[str, Any] = {}
        self.randomness: dict[str, Any] = {}
        self.kind: str | None = None
        self.said: list[str] = []  # haltune's warnings: they often name the cause

    def train(self, make_run: MakeRun, seed: int) -> None:
        _seed(seed)
        trial = self.study.ask()
        assert isinstance(trial, Trial)
        trial.config = dict(self._config)
        with warnings.catch_warnings(record=True) as caught, trial:
            warnings.simplefilter("always", HaltuneWarning)
            trained = make_run(trial)
        self.said = [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]
        self.randomness = capture()
        self.state = training_state(trained)
        self.kind = None if trained is None else type(trained).__name__  # of what was returned

    @property
    def record(self) -> TrialRecord:
        return self.study.history.trial(0)

    def not_paused(self) -> str | None:
        """Why the run did not pause as it should have; None when it did."""
        if self.record.status is not Status.PAUSED:
            return (
                f"the run was not paused but {self.record.status}, after epoch {self.record.epoch:g}: is "
                "HaltuneCallback(trial) among its callbacks, or does its loop end when trial.report(...).stops?"
            )
        if self.record.checkpoint is None:
            return "the run was paused without saving anything: a loop of your own calls trial.save(write)"
        return None

    def metrics(self) -> dict[str, Any]:
        """What was reported, epoch by epoch."""
        r = self.record
        own = {name: list(column) for name, column in r.metrics.items()}
        return {"epoch": list(r.epochs), self.study.problem.goal.metric: list(r.values), **own}


def _compare(straight: _CheckedTraining, broken: _CheckedTraining, epochs: int, middle: int) -> ResumeCheck:
    parts = {"metrics": (straight.metrics(), broken.metrics())}
    for part in (*straight.state, *(p for p in broken.state if p not in straight.state)):
        parts[part] = (straight.state.get(part, {}), broken.state.get(part, {}))
    if "trees" not in straight.state:  # boosters draw from generators of their own
        parts["random state"] = (straight.randomness, broken.randomness)
    if not (straight.state and broken.state):
        return ResumeCheck(epochs, middle, tuple(parts), (_nothing(broken.kind),))
    found = [f"{part}: {what}" for part, pair in parts.items() if (what := differing(*pair)) is not None]
    if found:
        found += broken.said
    return ResumeCheck(epochs, middle, tuple(parts), tuple(found))


def _nothing(kind: str | None) -> str:
    """The sentence for a make_run that returned nothing to compare; kind: what it returned."""
    what = "nothing" if kind is None else f"an object of type {kind}, which cannot be compared"
    return (
        f"make_run returned {what}, so that it is not known whether weights and optimizer agree: let it return the "
        "trainer, the model, or a dict of arrays"
    )


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (users' code draws from it)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
    if (keras := sys.modules.get("keras")) is not None:
        keras.utils.set_random_seed(seed)
