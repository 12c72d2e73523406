"""Recorded trainings that answer a search: tables of learning curves, and the meter that pays for epochs.

A proposed point of the unit cube becomes the nearest configuration of the table that was not tried yet; its curve is
then read epoch by epoch. So no search can try one configuration twice. In a continuous task it can: there a point has a
curve of its own, between those of the nearest rows. One worker trains, or several; a resumed trial pays only its
further epochs. Scripts in this folder run searches on it: `python benchmarks/search/curves.py --help`.
"""

from __future__ import annotations

import math
import os
import sys
import zlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from haltune import Budget, Float, Maximize, Problem, Space, Study, Trial
from haltune.log.decisions import Move, Start
from haltune.log.history import History
from haltune.log.policy import Policy, Wrapper
from haltune.ranks import alone

Array = NDArray[np.float64]
STEPS = 25  # from one report within an epoch to the next
NEAREST = 7  # rows that the curve of a continuous task lies between
NOISE = (0.06, 0.02)  # of a continuous task: deviation of a training and of an epoch, see Task.between


@dataclass(frozen=True)
class Task:
    """One table: configurations in the unit cube and their scores after each epoch."""

    name: str
    number: int  # among all tasks: part of the random stream
    points: Array  # (n, d)
    scores: Array  # (n, epochs), 1 best
    of: Literal["last", "best"] = "last"  # which epoch of a run counts
    seconds: Array | None = None  # (n, epochs) that each epoch took; None: all alike
    parts: int = 1  # reports an epoch; from 2 on the study counts steps
    noise: tuple[float, float] = (0.0, 0.0)  # deviation of what is reported from the score, and its correlation
    smooth: float | None = None  # epochs, see haltune.Maximize
    continuous: bool = False  # each point has a curve of its own
    saves: bool = True  # a trial that pauses has a checkpoint; without one it trains again from its start

    @cached_property
    def space(self) -> Space:
        """The unit cube, a coordinate for each hyperparameter."""
        return Space({f"u{i}": Float(0.0, 1.0) for i in range(self.points.shape[1])})

    @cached_property
    def problem(self) -> Problem:
        """A score to maximise, with bounds that are true."""
        length = self.scores.shape[1]
        if self.parts == 1:
            return Problem(self.space, Maximize("score", bounds=(0, 1), of=self.of), length)
        smooth = None if self.smooth is None else self.smooth * self.parts * STEPS
        goal = Maximize("score", bounds=(0, 1), of=self.of, smooth=smooth)
        return Problem(self.space, goal, length * self.parts * STEPS, unit="step")

    def reports(self, row: int) -> Array:
        """(epochs * parts,) what a training of a row reports: scores between epochs interpolated, with AR(1) noise."""
        if self.parts == 1 and not self.noise[0]:
            return self.scores[row]
        known = np.arange(self.scores.shape[1] + 1)
        asked = np.arange(1, self.scores.shape[1] * self.parts + 1) / self.parts
        scores = np.interp(asked, known, [0.0, *self.scores[row]])
        (deviation, rho), rng = self.noise, np.random.default_rng([self.number, row])
        noise = deviation * rng.standard_normal(len(scores))
        for n in range(1, len(noise)):
            noise[n] = rho * noise[n - 1] + math.sqrt(1.0 - rho**2) * noise[n]
        return np.clip(scores + noise, 0.0, 1.0)

    @cached_property
    def keys(self) -> list[str]:
        """Every row as the history names what was tried."""
        return list(self.space.keys([self.config(row) for row in range(len(self.points))]))

    def config(self, row: int) -> dict[str, float]:
        """A row as a configuration of `space`."""
        return {f"u{i}": float(u) for i, u in enumerate(self.points[row])}

    def point(self, config: dict[str, Any]) -> Array:
        """(d,) A configuration of `space` in the unit cube."""
        return np.array([config[f"u{i}"] for i in range(self.points.shape[1])])

    def nearest(self, point: Array, free: NDArray[np.bool_]) -> int:
        """The row nearest to a point among those that are free."""
        return int(np.where(free, self.squared_distances(point), np.inf).argmin())

    def squared_distances(self, point: Array) -> Array:
        """(n,) From a point to each row."""
        return np.asarray(((self.points - point) ** 2).sum(axis=1))

    def mixed(self, point: Array) -> Array:
        """(epochs,) The mean of the nearest rows, weighted by exp(-(distance / that of the fourth)^2)."""
        squared = self.squared_distances(point)
        near = np.argpartition(squared, NEAREST)[:NEAREST]
        weights = np.exp(-squared[near] / (np.sort(squared[near])[NEAREST // 2] + 1e-12))
        return np.asarray(weights @ self.scores[near] / weights.sum())

    def between(self, point: Array) -> Array:
        """(epochs,) Scores of a training at any point: the mean of the nearest rows, with noise.

        Its deviations are shares of the distance from the best to the median final score: one of the whole training,
        which grows to its full size with the epochs, and one of each epoch. Equal points have equal noise.
        """
        rng = np.random.default_rng([self.number, zlib.crc32(np.ascontiguousarray(point).tobytes())])
        whole, each = (deviation * self.width for deviation in NOISE)
        length = self.scores.shape[1]
        drift = whole * rng.standard_normal() * np.linspace(0.3, 1.0, length)
        return np.clip(self.mixed(point) + drift + each * rng.standard_normal(length), 0.0, 1.0)

    @property
    def width(self) -> float:
        """The distance from the best score to the median final score."""
        return float(self.scores.max() - np.median(self.scores[:, -1]))

    @cached_property
    def best(self) -> float:
        """The best score; of a continuous task the best mean of nearest rows at a row, which noise may exceed."""
        if not self.continuous:
            return float(self.scores.max())
        tops = np.argsort(-self.scores.max(axis=1))[:40]
        return max(float(self.mixed(self.points[row]).max()) for row in tops)

    def regret(self, incumbents: Array) -> Array:
        """0 at the best score, 1 at the median final score of the table."""
        return (self.best - incumbents) / (self.best - float(np.median(self.scores[:, -1])))


def load(folder: str | None) -> list[Task]:
    """The tasks of learning_curves.npz. Exits with what is missing."""
    tables = np.load(found(folder, "learning_curves.npz"))
    names = [key.split("/")[0] for key in tables.files if key.endswith("/valid_loss")]
    columns = [str(name) for name in tables["names"]]
    return [
        Task(
            name,
            number,
            to_cube(tables[f"{name}/hyperparameters"], columns),
            to_scores(tables[f"{name}/valid_loss"].astype(float))[:, 1:],
        )
        for number, name in enumerate(names)
    ]


def jitter(tasks: list[Task]) -> tuple[float, float]:
    """The deviation and the correlation of AR(1) noise around slow curves, by differences over one and two epochs.

    Their variances are 2 s^2 (1 - rho) and 2 s^2 (1 - rho^2).
    """
    late = np.concatenate([t.scores[t.scores[:, -1] > 0.2, 10:] for t in tasks])
    one, two = np.diff(late, axis=1).var(axis=1), (late[:, 2:] - late[:, :-2]).var(axis=1)
    rho = float(np.clip(np.median(two) / np.median(one) - 1.0, 0.0, 0.95))
    return float(np.sqrt(np.median(one) / (2.0 * (1.0 - rho)))), rho


def load_kinds(folder: str | None) -> dict[str, list[Task]]:
    """The tasks of both files by suite. Their runs count for their best epochs, as their regrets do."""
    text = [replace(task, of="best") for task in load(folder)]
    suites: dict[str, list[Task]] = {"text": text}
    tables, number = np.load(found(folder, "training_curves.npz")), len(text)
    for key in tables.files:
        if key.endswith("/scores"):
            suite, name, _ = key.split("/")
            points, scores = tables[f"{suite}/{name}/points"], tables[key]
            seconds = recorded_seconds(tables, f"{suite}/{name}/seconds")
            task = Task(name, number, points.astype(np.float64), scores.astype(np.float64), "best", seconds)
            suites.setdefault(suite, []).append(task)
            number += 1
    return suites


def recorded_seconds(tables: Any, key: str) -> Array | None:
    """Seconds of each epoch; the mean where one is missing."""
    if key not in tables.files:
        return None
    seconds = tables[key].astype(np.float64)
    return np.where(np.isfinite(seconds), seconds, np.nanmean(seconds))


def found(folder: str | None, file: str) -> Path:
    """A file of the data folder. Exits with a sentence when it is not there."""
    path = Path(folder or os.environ.get("HALTUNE_DATA") or ".") / file
    if not path.is_file():
        sys.exit(f"{path} is missing: name its folder by --data DIR or HALTUNE_DATA.")
    return path


def to_cube(hyperparameters: Array, names: list[str]) -> Array:
    """log10 of each column (of 1 - beta for the betas), scaled to [0, 1]."""
    columns = [1.0 - c if n.startswith("beta") else c for c, n in zip(hyperparameters.T, names, strict=True)]
    logs = np.log10(np.array(columns, dtype=np.float64)).T
    low, high = logs.min(axis=0), logs.max(axis=0)
    return np.asarray((logs - low) / (high - low))


def to_scores(loss: Array) -> Array:
    """1 - (loss - best) / (cap - best) in [0, 1]; cap: the median first loss; 0 where the loss is not finite."""
    finite = np.isfinite(loss)
    best, cap = loss[finite].min(), np.median(loss[finite[:, 0], 0])
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(finite, np.clip(1.0 - (loss - best) / (cap - best), 0.0, 1.0), 0.0)


@dataclass
class Meter:
    """Trains rows of a task and remembers the incumbent after every epoch that was paid.

    timed: epochs cost their seconds; otherwise 1 each. workers: how many train at a time, an epoch each in
    turn; haltune's policies only.
    """

    task: Task
    budget: float  # epochs, or seconds
    timed: bool = False
    workers: int = 1
    incumbents: list[float] = field(default_factory=list)
    paid: list[float] = field(default_factory=list)  # in all, after each epoch
    free: NDArray[np.bool_] = field(init=False)
    reported: dict[int, Array] = field(default_factory=dict)  # by row

    def __post_init__(self) -> None:
        self.free = np.ones(len(self.task.points), dtype=bool)

    @property
    def dim(self) -> int:
        """Return the number of coordinates of a point."""
        return int(self.task.points.shape[1])

    @property
    def horizon(self) -> int:
        """Return the epochs of a full training."""
        return int(self.task.scores.shape[1])

    def take(self, point: Array) -> int:
        """Return the row that a proposed point becomes, which is not used again; a new one in a continuous task."""
        if self.task.continuous:
            row = len(self.reported)
            self.reported[row] = self.task.between(point)
            return row
        row = self.task.nearest(point, self.free)
        self.free[row] = False
        return row

    def scores(self, row: int) -> Array:
        """Return the scores of a row."""
        return self.reported[row] if self.task.continuous else self.task.scores[row]

    def price(self, row: int, epoch: int) -> float:
        """Return the price of an epoch of a row."""
        seconds = self.task.seconds
        return 1.0 if not self.timed or seconds is None else float(seconds[row, epoch - 1])

    def train(self, row: int, epoch: int) -> float:
        """Return the score of a row at the end of an epoch, from 1, and pay for the epoch."""
        parts = self.task.parts
        return [self.train_part(row, part)[0] for part in range(parts * (epoch - 1) + 1, parts * epoch + 1)][-1]

    def train_part(self, row: int, part: int) -> tuple[float, float]:
        """Return the score of a row after a part of an epoch, from 1, and its price; it counts after whole epochs."""
        parts = self.task.parts
        epoch = -(-part // parts)
        price = self.price(row, epoch) / parts
        self.paid.append((self.paid[-1] if self.paid else 0.0) + price)
        known = self.incumbents[-1] if self.incumbents else 0.0
        self.incumbents.append(max(known, float(self.scores(row)[epoch - 1])) if part % parts == 0 else known)
        if row not in self.reported:
            self.reported[row] = self.task.reports(row)
        return float(self.reported[row][part - 1]), price

    @property
    def training(self) -> float:
        """Return the mean cost of a full training over the rows."""
        seconds = self.task.seconds
        timed = self.timed and seconds is not None
        return float(seconds.sum(axis=1).mean()) if timed else float(self.task.scores.shape[1])  # type: ignore[union-attr]

    @property
    def bounds(self) -> Budget:
        """The budget of the search."""
        if self.timed:
            return Budget(cost=self.budget)
        return Budget(epochs=self.budget * (self.task.parts * STEPS if self.task.parts > 1 else 1))

    @property
    def full(self) -> bool:
        """True when the budget is spent."""
        return bool(self.paid) and self.paid[-1] >= self.budget

    def after(self, costs: list[float]) -> Array:
        """The regret after so much was paid; a search that ended before keeps its last."""
        kept = np.array([0.0, *self.incumbents])
        return self.task.regret(kept[np.searchsorted(self.paid, costs, side="right")])


class OnRows(Wrapper):
    """A policy whose points become rows of the table: what its model learns from is what was trained."""

    def __init__(self, policy: Policy[Any], task: Task) -> None:
        self.policy, self._task = policy, task
        self._row_of = {key: row for row, key in enumerate(task.keys)}

    def propose(self, state: Any, history: History, rng: Generator) -> Move:
        """The policy's move, its configuration replaced by the nearest row not tried."""
        move = self.policy.propose(state, history, rng)
        if not isinstance(move, Start):
            return move
        free = np.ones(len(self._row_of), dtype=bool)
        free[[self._row_of[key] for key in history.tried]] = False
        row = self._task.nearest(self._task.point(dict(move.config)), free)
        return Start(self._task.config(row), move.pause_at, move.resource, move.tags, move.reason, move.evidence)


def search(policy: Policy[Any], meter: Meter, seed: int, snapped: bool = True) -> Study:
    """A study of the task until the meter is full or the policy finishes.

    snapped: trials are recorded with the rows they became; otherwise with the proposed points.
    """
    task = meter.task
    asked: Any = OnRows(policy, task) if snapped and not task.continuous else policy
    with alone():  # no other rank listens
        study = Study(task.problem, asked, seed=seed, budget=meter.bounds, verbose=0)
    at_work: list[Training] = []
    rows: dict[int, int] = {}
    while True:
        while len(at_work) < meter.workers and isinstance(trial := study.ask(), Trial):
            if trial.id not in rows:
                rows[trial.id] = meter.take(task.point(trial.config))
            at_work.append(Training(trial, rows[trial.id]))
        if not at_work:
            return study
        at_work = [training for training in at_work if training.goes_on(meter)]


@dataclass(frozen=True)
class Training:
    """A trial with its worker."""

    trial: Trial
    row: int

    def goes_on(self, meter: Meter) -> bool:
        """Train to the next report; False when that was the last before it pauses or ends."""
        parts, each = meter.task.parts, STEPS if meter.task.parts > 1 else 1
        part = int(self.trial.epoch) // each + 1
        value, price = meter.train_part(self.row, part)
        verdict = self.trial.report(value, part * each, seconds=price, cost=price)
        if verdict.resumable and meter.task.saves:
            self.trial.checkpointed(f"row-{self.row}")  # so that it continues where it was
        if not verdict.stops and part < meter.task.scores.shape[1] * parts:
            return True
        self.trial.finish()
        return False
