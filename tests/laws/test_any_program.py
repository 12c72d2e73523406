"""The truths about trainings, for programs as people write plain loops, drawn at random, under any policy.

Each program counts its own updates. Its weights are a digest of them, so a value shows what was trained: a report of
an epoch has the value of that configuration after so many updates, or the trial continued something else.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import many
from haltune import Budget, Constraint, Float, Minimize, Problem, Space, Study, Trial, load_study
from haltune.callbacks.loop import TrainingLoop
from haltune.log.events import Status
from haltune.policies import BOBOS, Halting, Hyperband, MultiFidelity, RandomSearch, SuccessiveHalving

SPACE = Space({"lr": Float(0.01, 1.0)})
PRIME = 2**61 - 1
POLICIES: dict[str, Callable[[int], Any]] = {
    "default": lambda epochs: MultiFidelity(),
    "asha": lambda epochs: SuccessiveHalving(9, 1, epochs, asynchronous=True),
    "halving": lambda epochs: SuccessiveHalving(9, 1, epochs),
    "hyperband": lambda epochs: Hyperband(epochs, eta=3),
    "halting": lambda epochs: Halting(RandomSearch()),
    "bobos": lambda epochs: BOBOS(),
}


class OutOfMemory(RuntimeError):
    pass


@dataclass
class Net:
    """What is trained: its weights tell the configuration and the number of updates."""

    lr: float
    fold: int
    updates: int = 0
    weights: int = 1

    def update(self, draws: bool) -> None:
        """draws: with random numbers of the process, as dropout has."""
        self.updates += 1
        drawn = random.randrange(PRIME) + int(np.random.randint(2**30)) if draws else 0  # noqa: NPY002
        self.weights = (self.weights * 6364136223846793005 + round(self.lr * 1e12) + self.fold + drawn) % PRIME

    @property
    def value(self) -> float:
        return (1.0 - self.lr) * 0.8**self.updates + 0.3 * self.lr + 0.02 * self.weights / PRIME

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(vars(self)))


def loaded(path: str) -> Net:
    return Net(**json.loads(Path(path).read_text()))


def new(lr: float, fold: int) -> Net:
    random.seed(lr)
    np.random.seed(round(lr * 1e9))  # noqa: NPY002
    return Net(lr, fold)


@cache
def curve(lr: float, fold: int, epochs: int, draws: bool) -> list[float]:
    """The values of a training that nothing interrupts."""
    net, values = new(lr, fold), []
    for _ in range(epochs):
        net.update(draws)
        values.append(net.value)
    return values


@dataclass
class Program:
    """A training script. Accidents come at most once at a place."""

    policy: str
    epochs: int
    loop: str
    saves: str  # where it saves its state
    every: int  # epochs from report to report
    positions: bool  # its reports say where they are
    patience: int  # reports without a better value after which it ends by itself
    keeps_best: bool
    counts_best: bool
    draws: bool
    folds: int  # 0: none
    limited: bool
    unit: str
    retries: str  # what it does where memory runs out
    accidents: dict[str, int]  # name -> one in so many
    in_file: bool
    seed: int
    happened: set[tuple[str, int, int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.folds:
            self.keeps_best = self.counts_best = False
            self.retries, self.saves = "fails", self.saves.replace("before", "after")
        if self.draws:  # other loops and files of its own have no random state
            self.loop = self.loop if self.loop == "TrainingLoop" else "epochs"
            self.retries, self.saves = "fails", "after" if self.saves in ("never", "own file") else self.saves
        self.positions |= self.unit == "step"

    @property
    def notices(self) -> bool:
        """True if its loop shows that a training starts again."""
        return self.loop in ("epochs", "TrainingLoop")

    def study(self, folder: Path) -> Study:
        goal = Minimize("loss", of="best" if self.counts_best else "last")
        limits = [Constraint("size", at_most=0.8)] if self.limited else ()
        problem = Problem(SPACE, goal, self.epochs, unit=self.unit, constraints=limits)
        store = str(folder / "study.db") if self.in_file else None
        return Study(
            problem, POLICIES[self.policy](self.epochs), store, seed=self.seed, budget=Budget(trials=6), verbose=0
        )

    def accident(self, trial: Trial, place: int, epoch: int) -> None:
        for name, error in (("Ctrl-C", KeyboardInterrupt), ("memory", OutOfMemory)):
            key = name, trial.id, place, epoch
            due = name in self.accidents and hash((key[1:], self.seed)) % self.accidents[name] == 0
            if due and key not in self.happened:
                self.happened.add(key)
                raise error(place)

    def train(self, trial: Trial) -> None:
        if self.folds:
            for fold in trial.folds(self.folds):
                self.once(fold, fold.index)
        from_start = False
        for _ in range(9 * (not self.folds)):
            try:
                self.once(trial, 0, from_start)
                break
            except OutOfMemory as error:
                if self.retries == "fails":
                    raise
                state = trial.checkpoint if self.retries == "from the state" and self.saves != "never" else None
                from_start = state is None
                if not self.notices or error.args[0] or (from_start and trial.resumes_from is not None):
                    trial.restart(0.0 if state is None else loaded(state).updates)

    def once(self, trial: Trial, fold: int, from_start: bool = False) -> None:
        path = None if from_start or self.saves == "never" else trial.checkpoint
        net = new(trial.config["lr"], fold) if path is None else loaded(path)
        best, waited = math.inf, 0
        loop = self.epochs_of(trial, net)
        for epoch in loop:
            assert epoch == net.updates + 1
            net.update(self.draws)
            self.accident(trial, 0, epoch)
            if epoch % self.every and epoch != self.epochs:
                continue
            stops = self.reports(trial, net, loop)
            if self.keeps_best and net.value < best and self.saves != "never":
                trial.save(net.save, ".best", keep=True)
            self.accident(trial, 1, epoch)
            best, waited = min(best, net.value), 0 if net.value < best else waited + 1
            if waited > self.patience or stops:
                break

    def epochs_of(self, trial: Trial, net: Net) -> Any:
        def counted() -> Iterator[int]:
            while net.updates < self.epochs:
                yield net.updates + 1

        if self.loop == "TrainingLoop":
            return TrainingLoop(trial, save=None if self.saves == "never" else net.save, suffix=".json")
        return trial.epochs() if self.loop == "epochs" else counted()

    def reports(self, trial: Trial, net: Net, loop: Any) -> bool:
        told: Any = {"loss": net.value, "size": net.lr} if self.limited else net.value
        if isinstance(loop, TrainingLoop):
            loop.report(told)
            return False
        if self.saves == "before":
            trial.save(net.save, ".json")
        verdict = trial.report(told, net.updates) if self.positions or self.every > 1 else trial.report(told)
        if self.saves == "after" or (self.saves == "at the end" and (verdict.stops or net.updates == self.epochs)):
            trial.save(net.save, ".json")
        elif self.saves == "own file":
            own = trial.folder / f"{trial.attempt}-{net.updates}.json"
            net.save(own)
            trial.checkpointed(str(own))
        return verdict.stops and self.loop == "range"


programs = st.builds(
    Program,
    policy=st.sampled_from([*POLICIES]),
    epochs=st.sampled_from([1, 2, 3, 5, 9]),
    loop=st.sampled_from(["epochs", "TrainingLoop", "range"]),
    saves=st.sampled_from(["after", "before", "at the end", "own file", "never"]),
    every=st.sampled_from([1, 1, 2]),
    positions=st.booleans(),
    patience=st.sampled_from([99, 99, 1]),
    keeps_best=st.booleans(),
    counts_best=st.booleans(),
    draws=st.booleans(),
    folds=st.sampled_from([0, 0, 2]),
    limited=st.booleans(),
    unit=st.sampled_from(["epoch", "step"]),
    retries=st.sampled_from(["fails", "from its start", "from the state"]),
    accidents=st.dictionaries(st.sampled_from(["Ctrl-C", "memory"]), st.integers(3, 9)),
    in_file=st.booleans(),
    seed=st.integers(0, 999),
)


@settings(max_examples=many(100), deadline=None)
@example(
    Program(
        "halting", 2, "epochs", "before", 1, False, 99, True, False, True, 0, False, "epoch", "fails", {}, False, 37
    )
)
@example(
    Program("halving", 3, "range", "before", 1, False, 99, True, True, False, 0, False, "epoch", "fails", {}, False, 1)
)
@example(
    Program(
        "default", 9, "TrainingLoop", "after", 2, False, 99, True, True, False, 0, True, "epoch", "from the state",
        {"memory": 4}, False, 0,
    )
)  # fmt: skip
@given(programs)
@pytest.mark.filterwarnings("ignore::haltune.HaltuneWarning")
def test_what_is_reported_was_trained_and_the_best_value_is_that_of_its_file(program: Program) -> None:
    with TemporaryDirectory() as name:
        folder, study = Path(name), None
        for _ in range(99):  # starts of the program
            study = study if study is not None and not program.in_file else program.study(folder)
            with suppress(KeyboardInterrupt):
                for trial in study:
                    with trial:
                        program.train(trial)
                break
        assert study is not None
        assert study.outcome.over
        errors = {record.error for record in study.trials if "OutOfMemory" not in str(record.error)}
        assert errors <= {None}, errors
        for record in study.trials if not program.folds else ():
            whole = curve(record.config["lr"], 0, program.epochs, program.draws)
            assert [*record.values] == [whole[int(epoch) - 1] for epoch in record.epochs]
        for record in study.trials if program.folds else ():
            if record.status is Status.COMPLETED and record.epoch == program.epochs:
                ends = [curve(record.config["lr"], f, program.epochs, program.draws)[-1] for f in range(program.folds)]
                assert record.values[-1] == pytest.approx(np.mean(ends))
        if (best := study.best) is not None and best.checkpoint is not None and not program.folds:
            assert loaded(best.checkpoint).value == best.value
        if program.in_file:
            assert load_study(str(folder / "study.db")).best == study.best
