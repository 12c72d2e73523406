"""One trial as others see it, read-only, and the best of them."""

from __future__ import annotations

import copyreg
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from haltune._utils.arrays import Array, Mask
from haltune.above import above
from haltune.display import facts, settings, short
from haltune.errors.foreign_words import KnowsAttributes

from .decisions import Config, Verdict
from .events import Status
from .problem import Goal, Problem
from .problem.constraints import latest
from .scores import measured

Locate = Callable[[str | None], str | None]  # a path of the log, as a user opens it


def _read_only(mapping: dict[str, Any]) -> MappingProxyType[str, Any]:
    return MappingProxyType(mapping)


copyreg.pickle(
    MappingProxyType, lambda proxy: (_read_only, (dict(proxy),))
)  # records and histories hold some


@dataclass(frozen=True, eq=False)
class TrialRecord(KnowsAttributes):
    """One trial as the log tells it. Arrays are read-only, one entry a report of the current attempt."""

    id: int
    config: Config
    until: float | None  # epochs: the end of this leg
    epochs: Array  # (n,) strictly increasing, from 1; fractional for validations within an epoch
    values: Array  # (n,) the goal's metric, raw
    scores: Array  # (n,) on [0, 1], by the scale in force for this trial; NaN before any scale is known
    seconds: Array  # (n,) of each epoch alone, validation included
    metrics: Mapping[str, Array]  # name -> (n,), NaN where it was not reported
    status: Status
    attempt: int  # from 1
    tags: Mapping[str, Any]
    resource: float | None = None
    checkpoint: str | None = None  # path of what was saved, which may have been deleted since
    checkpoint_epoch: float = 0.0
    kept: str | None = None  # likewise: the state after its best epoch, where that counts
    started: float = 0.0  # seconds since the epoch
    verdict: Verdict | None = None  # the last that was not CONTINUE
    error: str | None = None
    proposed: str = ""  # why its policy chose it
    resumed: str = ""  # why its present attempt goes on; of the first one nothing
    partial: bool = False  # no full training, however far it gets: on few samples, say
    complete: bool = False  # haltune did not cut it; see scores

    @cached_property
    def whole(self) -> Mask:
        """(n,) True at reports of whole epochs: the ones that are judged."""
        return np.asarray(self.epochs == np.floor(self.epochs))

    @cached_property
    def epoch_seconds(self) -> Array:
        """(n,) seconds an epoch: a report may cover several epochs, or a part of one."""
        return self.seconds / np.diff(self.epochs, prepend=0.0)

    @property
    def epoch(self) -> float:
        """The last epoch reported, 0 before the first."""
        return float(self.epochs[-1]) if len(self.epochs) else self.checkpoint_epoch

    @property
    def ended_because(self) -> str:
        """Its error, or the reason of the verdict that ended it; "" where none did: it declined a pause, say."""
        ended = self.status in (Status.STOPPED, Status.PAUSED, Status.INTERRUPTED)
        return self.error or (self.verdict.reason if ended and self.verdict and self.verdict.stops else "")

    @property
    def cut_because(self) -> tuple[str, str]:
        """What it is called, and why: of a run that was told to end and still trains, too."""
        if self.status is Status.RUNNING and self.verdict:
            return "cut because", self.verdict.reason
        return "paused because" if self.status is Status.PAUSED else "ended because", self.ended_because

    def __repr__(self) -> str:
        value = f", value={short(float(self.values[-1]))}" if len(self.values) else ""
        return (
            f"TrialRecord({self.id}, {self.status}, epoch={self.epoch:g}{value}, config={dict(self.config)})"
        )

    def _repr_html_(self) -> str:
        end = f" at epoch {self.epoch:g}" if len(self.epochs) else ""
        value = short(float(self.values[-1])) if len(self.values) else ""
        return facts(
            f"Trial {self.id}: {self.status}{end}",
            [("last value", value), ("configuration", settings(self.config)), ("chosen because", self.proposed),
             self.cut_because, ("checkpoint", self.checkpoint or "")],
        )  # fmt: skip

    def counting(self, goal: Goal) -> Array:
        """(n,) the value that the run would count for had it ended at each report; see Goal.of."""
        if goal.of == "last":
            return self.values
        heights = np.where(np.isfinite(self.values), goal.sign * self.values, -np.inf)
        tops = np.maximum.accumulate(heights)
        return np.where(np.isfinite(tops), goal.sign * tops, np.nan)

    def result(self, goal: Goal) -> float:
        """The value that the run counts for: of its last or its best epoch; NaN when it has none."""
        value = float(self.counting(goal)[-1]) if len(self.values) else math.nan
        return value if math.isfinite(value) else math.nan

    def target(self, goal: Goal) -> float:
        """sign * what the run counts for, as models are told it: NaN where nothing was measured."""
        return goal.sign * float(measured(self.result(goal)))

    def column(self, metric: str, goal: Goal) -> Array:
        """(n,) a metric by its name, the goal's or a further one; NaN where it was not reported."""
        if metric == goal.metric:
            return self.values
        found = self.metrics.get(metric)
        return np.full(len(self.values), math.nan) if found is None else found

    def results(self, problem: Problem) -> dict[str, float]:
        """What the run came to in each goal, and in each metric that is constrained; NaN where it has no value."""
        found = {problem.goal.metric: self.result(problem.goal)}
        for name in problem.measured:
            found[name] = float(latest(self.column(name, problem.goal).tolist()))
        return found


@dataclass(frozen=True)
class Best(KnowsAttributes):
    """The best configuration found."""

    trial: int
    config: Config
    value: float  # the goal's metric
    epoch: float  # at which it had the value
    checkpoint: str | None = None  # path; None where none is kept
    checkpoint_epoch: float | None = None  # after which it was saved: `epoch`, unless that could not be

    def load_model(self, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
        """The Keras model of `checkpoint`, as it was after that epoch; see haltune.callbacks.keras.load_best.

        make_model: then make_model(**config), with the weights and the optimizer of `checkpoint`.
        """
        load = above("load_best", "best.load_model", "haltune.callbacks.keras.load_best(best, make_model)")
        return load(self, make_model, **options)

    def _repr_html_(self) -> str:
        found = f"Best value {short(self.value, 6)} (trial {self.trial}, epoch {self.epoch:g})"
        config = [(name, short(value, 6)) for name, value in self.config.items()]
        return facts(found, [*config, ("checkpoint", self.checkpoint or "")])


@dataclass(frozen=True)
class OnFront(Best):
    """A run that nothing betters in all goals; `value` is the first goal's."""

    values: Mapping[str, float] = field(
        default_factory=dict
    )  # of each goal, and of each metric that is constrained
