"""Prior studies: the values of some of their trials, as the log of a new study keeps them.

They are read once, when the new study is made, and recorded with its policy. If a prior study changes later, the new
one still decides by what it read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune.display import plural
from haltune.errors import InvalidInput, InvalidSpace
from haltune.log.events import plain
from haltune.log.history import History
from haltune.log.points import log_in_points
from haltune.models.curve_rows import CurveRows, CurveTable
from haltune.models.scales import Heights
from haltune.models.stage_process import Seen, Stages, spread_by
from haltune.space import Space

RUNS_KEPT = 80  # trials of each prior study
_DIGITS = 5  # of a target


@dataclass(frozen=True)
class EarlierRun:
    """A trial of a prior study. A diverged one counts at its end: it stays diverged."""

    config: Mapping[str, Any]
    epochs: tuple[float, ...]  # of its values, ascending; in points, see haltune.log.points
    targets: tuple[float, ...]  # on the scale of its own study

    def to_json(self) -> dict[str, Any]:
        return {"config": plain(self.config), "epochs": list(self.epochs), "targets": list(self.targets)}


@dataclass(frozen=True)
class EarlierStudy:
    """A prior study: its best trials and a spread of the others."""

    name: str
    horizon: float  # points of a full training there
    runs: tuple[EarlierRun, ...]  # some, best first
    trials: int  # that it had started

    def __repr__(self) -> str:
        return f"EarlierStudy({self.name!r}, {len(self.runs)} of {self.trials} trials)"

    def to_json(self) -> dict[str, Any]:
        runs = [run.to_json() for run in self.runs]
        return {"name": self.name, "horizon": self.horizon, "trials": self.trials, "runs": runs}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> EarlierStudy:
        """Return the inverse of `to_json`. Raises InvalidInput for anything else."""
        try:
            runs = tuple(
                EarlierRun(dict(r["config"]), _numbers(r["epochs"]), _numbers(r["targets"])) for r in body["runs"]
            )
            found = cls(str(body["name"]), float(body["horizon"]), runs, int(body["trials"]))
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidInput(f"learn_from= holds an incomplete prior study: {error!r}") from error
        if any(len(run.epochs) != len(run.targets) for run in runs) or not 0 < found.horizon < math.inf:
            raise InvalidInput(f"learn_from= holds an incomplete prior study: {found!r}")
        return found

    @classmethod
    def of(cls, study: Any) -> EarlierStudy:
        """Read a study, as far as it has come. Raises InvalidInput for anything else."""
        history = getattr(study, "history", None)
        if not isinstance(history, History):
            raise InvalidInput(
                "learn_from=[...] takes studies, such as load_study('earlier.db') or read_study('earlier.db'); "
                f"got {study!r}. To name a file, write Study(..., learn_from=['earlier.db']). "
                "For a study of Optuna, write learn_from=[haltune.optuna.from_study(study)]"
            )
        problem = history.problem.in_points()
        rows = CurveRows(problem.goal, full=problem.max_epochs or 0.0)
        for event in log_in_points(history.problem, study.events()):
            rows.take(event)
        horizon = float(problem.max_epochs or max([1.0, *rows.table.epoch]))
        # trials on the full resource, at whatever epoch they ended
        whole = np.array([not t.partial for t in history.trials], dtype=bool)[rows.table.trial]
        return cls(str(study.name), horizon, tuple(_runs(history, rows.table.at(whole), horizon)), len(history))


def earlier_studies_of(given: Any) -> tuple[EarlierStudy, ...]:
    """Return the prior studies of studies, or of their JSON in a log. Raises InvalidInput for anything else."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        one = repr(given) if isinstance(given, str) else "study"
        raise InvalidInput(f"learn_from= is a list of studies, not {given!r}. Write learn_from=[{one}]")
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


def _runs(history: History, rows: CurveTable, horizon: float) -> Iterator[EarlierRun]:
    """Yield at most `RUNS_KEPT` trials, best first."""
    if (heights := Heights.of(rows)) is None:
        return
    targets = np.round(heights.map().targets(heights.known), _DIGITS)
    epochs = np.where(np.isfinite(rows.height), np.minimum(rows.epoch, horizon), horizon)
    trials = np.unique(rows.trial)
    ends, reached = np.empty(len(history)), np.zeros(len(history))
    ends[rows.trial] = targets
    np.maximum.at(reached, rows.trial, rows.epoch)
    kept = trials[spread_by(reached[trials], history.points[trials], ends[trials], RUNS_KEPT, None)]
    for trial in kept[np.lexsort((kept, -ends[kept]))]:
        mine = np.flatnonzero(rows.trial == trial)
        yield EarlierRun(history.trials[trial].config, tuple(epochs[mine].tolist()), tuple(targets[mine].tolist()))


_BEST_RUNS = 3  # best runs of each whose neighbours are tried


@dataclass(frozen=True)
class PriorValues:
    """The values of prior studies, as the problem's space and stages hold them."""

    studies: tuple[dict[str, Any], ...]  # of each its name, its trials in the new space, and the number of others
    every: tuple[Seen, ...]  # of each study that has values in the new space
    best: Array  # (k, d) the best configurations of all

    @classmethod
    def of(cls, given: Sequence[EarlierStudy], space: Space, stages: Stages) -> PriorValues:
        every: list[Seen] = []
        studies, best = [], [np.empty((0, space.dim))]
        for earlier in given:
            found = [(run, p) for run in earlier.runs if (p := _point(run, space)) is not None]
            out = len(earlier.runs) - len(found)
            studies.append({"name": earlier.name, "runs": len(found), "left_out": out})
            if found:  # a study without values here must not take a share from the others, or have a relevance
                points = np.array([p for _, p in found])
                every.append(_seen([run for run, _ in found], points, earlier.horizon, stages, len(every) + 1))
                best.append(points[:_BEST_RUNS])
        return cls(tuple(studies), tuple(every), np.vstack(best))

    def remarks(self) -> list[str]:
        outside = "; {} more lie outside this space, or lack one of its parameters"
        return [
            f"learns from {plural(study['runs'], 'trial')} of {study['name']!r}"
            + outside.format(study["left_out"]) * (study["left_out"] > 0)
            for study in self.studies
        ]

    def evidence(self, relevance: Array) -> list[dict[str, Any]]:
        """Return the trials and the relevance of each study that has values here; relevance: (J,) q."""
        used = [study for study in self.studies if study["runs"]]
        return [{**study, "relevance": round(float(q), 3)} for study, q in zip(used, relevance, strict=True)]


def earlier_in_words(name: str, runs: int, left_out: int, relevance: float) -> str:
    """Return one prior study's part of a reason."""
    without = f"; {left_out} outside this space" if left_out else ""
    return f"{plural(runs, 'trial')} of {name!r} (estimated relevance {relevance:.2f}{without})"


def _point(run: EarlierRun, space: Space) -> Array | None:
    """Return the point (d,) of the configuration in the new space; None if that does not contain it."""
    shared: dict[str, Any] = {name: run.config[name] for name in space.names if name in run.config}
    try:
        return space.encode(shared)
    except (InvalidSpace, InvalidInput):
        return None


def _seen(runs: Sequence[EarlierRun], points: Array, horizon: float, stages: Stages, number: int) -> Seen:
    """Return each value at its nearest stage; of several there the latest."""
    found: dict[tuple[int, int], float] = {}
    for i, run in enumerate(runs):
        for stage, target in zip(stages.nearest(run.epochs, horizon), run.targets, strict=True):
            found[i, int(stage)] = target
    run_of, stage_of = np.array(list(found), dtype=np.intp).reshape(len(found), 2).T
    values = np.array(list(found.values()), dtype=np.float64)
    return Seen(points, run_of, stage_of, values, np.full(len(points), number))
