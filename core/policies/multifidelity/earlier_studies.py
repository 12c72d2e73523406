"""What an earlier study found, as the log of a new one keeps it: of some of its runs what they had come to.

It is taken once, when the new study is made, and recorded with its policy: whatever becomes of the earlier study, the
new one decides by what it had then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haltune._utils.arrays import Array, Indices
from haltune.errors import InvalidInput
from haltune.gp import subset
from haltune.log.codec import plain
from haltune.log.history import History
from haltune.policies.guided.curve_rows import CurveRows, CurveTable

from .log_regret import LogRegret

RUNS_KEPT = 80  # runs of each earlier study
_SCALE_TRIALS = 20  # trials that are taken for not chosen by their promise: they set the scale
_DIGITS = 5  # of a target


@dataclass(frozen=True)
class EarlierRun:
    """A run of an earlier study. What diverged counts for its end: it stays so."""

    config: Mapping[str, Any]
    epochs: tuple[float, ...]  # at which it is known, ascending
    targets: tuple[float, ...]  # -log(1 + regret there), as `LogRegret` has it on the scale of its own study

    def to_json(self) -> dict[str, Any]:
        """As a log keeps it."""
        return {"config": plain(self.config), "epochs": list(self.epochs), "targets": list(self.targets)}


@dataclass(frozen=True)
class EarlierStudy:
    """What an earlier study found."""

    name: str
    horizon: float  # epochs of a full training there
    runs: tuple[EarlierRun, ...]  # some, best first
    trials: int  # that it had begun

    def __repr__(self) -> str:
        return f"EarlierStudy({self.name!r}, {len(self.runs)} of {self.trials} runs)"

    def to_json(self) -> dict[str, Any]:
        """As a log keeps it."""
        runs = [run.to_json() for run in self.runs]
        return {"name": self.name, "horizon": self.horizon, "trials": self.trials, "runs": runs}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> EarlierStudy:
        """The inverse of `to_json`. Raises InvalidInput for what is none."""
        try:
            runs = tuple(
                EarlierRun(dict(r["config"]), _numbers(r["epochs"]), _numbers(r["targets"]))
                for r in body["runs"]
            )
            found = cls(str(body["name"]), float(body["horizon"]), runs, int(body["trials"]))
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidInput(f"learn_from= holds an earlier study that is not whole: {error!r}") from error
        if any(len(run.epochs) != len(run.targets) for run in runs) or not 0 < found.horizon < math.inf:
            raise InvalidInput(f"learn_from= holds an earlier study that is not whole: {found!r}")
        return found

    @classmethod
    def of(cls, study: Any) -> EarlierStudy:
        """Of a study as far as it is read. Raises InvalidInput for what is none."""
        history = getattr(study, "history", None)
        if not isinstance(history, History):
            raise InvalidInput(
                "learn_from=[...] takes studies, such as load_study('earlier.db') or read_study('earlier.db'), "
                f"not {study!r}; stores are named to the study, Study(..., learn_from=['earlier.db'])"
            )
        rows = CurveRows(history.problem.goal)
        for event in study.events():
            rows = rows.fold(event)
        horizon = float(history.problem.max_epochs or max([1.0, *rows.table.epoch]))
        runs = _runs(history, _in_full(history, rows.table), horizon)
        return cls(str(study.name), horizon, tuple(runs), len(history))


def earlier_studies_of(given: Any) -> tuple[EarlierStudy, ...]:
    """Of studies, or of what a log keeps of them. Raises InvalidInput for anything else."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidInput(f"learn_from= is a list of studies, learn_from=[study], not {given!r}")
    return tuple(_one(study) for study in given)


def _one(given: Any) -> EarlierStudy:
    if isinstance(given, EarlierStudy):
        return given
    return EarlierStudy.from_json(given) if isinstance(given, Mapping) else EarlierStudy.of(given)


def _numbers(values: Iterable[Any]) -> tuple[float, ...]:
    found = tuple(float(v) for v in values)
    if not all(map(math.isfinite, found)):
        raise ValueError(f"{found} are not all finite")
    return found


def _in_full(history: History, rows: CurveTable) -> CurveTable:
    """Without runs that were no full trainings, however far they got."""
    whole = np.array([not t.partial for t in history.trials], dtype=bool)
    kept = whole[rows.trial]
    return CurveTable(rows.trial[kept], rows.epoch[kept], rows.value[kept])


def _runs(history: History, rows: CurveTable, horizon: float) -> Iterator[EarlierRun]:
    """The runs that are kept, best first."""
    last = np.full(_SCALE_TRIALS, np.nan)
    first = rows.trial < _SCALE_TRIALS
    last[rows.trial[first]] = rows.value[first]  # of equals the later stays
    scale = LogRegret.of(rows.value, last, history.problem.goal.sign)
    if scale is None:
        return
    targets = np.round(scale.targets(rows.value), _DIGITS)
    epochs = np.where(np.isfinite(rows.value), np.minimum(rows.epoch, horizon), horizon)
    trials = np.unique(rows.trial)
    ends, reached = np.empty(len(history)), np.zeros(len(history))
    ends[rows.trial] = targets
    np.maximum.at(reached, rows.trial, rows.epoch)
    for trial in _spread(trials, history.points[trials], ends[trials], reached[trials]):
        mine = np.flatnonzero(rows.trial == trial)
        yield EarlierRun(
            history.trials[trial].config, tuple(epochs[mine].tolist()), tuple(targets[mine].tolist())
        )


def _spread(trials: Indices, points: Array, ends: Array, reached: Array) -> Indices:
    """At most `RUNS_KEPT` of the trials, best first: those that went furthest, the best, the latest, and a spread."""
    kept = np.arange(len(trials))
    if len(trials) > RUNS_KEPT:
        far = np.argsort(-reached, kind="stable")[: RUNS_KEPT // 2]
        rest = np.setdiff1d(kept, far)
        kept = np.concatenate([far, rest[subset(points[rest], ends[rest], RUNS_KEPT - len(far))]])
    order = np.lexsort((trials[kept], -ends[kept]))
    return trials[kept[order]]
