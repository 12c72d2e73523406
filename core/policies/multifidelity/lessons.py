"""What earlier studies teach a search: their runs as configurations of its space, at its stages of training.

Parameters that both have are mapped; a run that lacks one of the new space, or lies outside, teaches nothing. A stage
stands for a share of the training, as t of `stage_kernel` counts it: a full training there is one here, however many
epochs either has, and the first epoch of a shorter one counts for a little more than the first epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.words import plural
from haltune.errors import InvalidInput, InvalidSpace
from haltune.space import Space

from .earlier_studies import EarlierRun, EarlierStudy
from .seen import Seen
from .stage_kernel import Stages
from .stage_rows import spread

_OF_KEPT = 120  # of the `VALUES_KEPT`
_OF_LEARNT = 60  # of the `LEARNT` ones
_BEST_RUNS = 3  # best runs of each whose neighbours are tried


@dataclass(frozen=True)
class Lessons:
    """Of J earlier studies."""

    names: tuple[str, ...]
    left_out: tuple[int, ...]  # runs of each that the new space does not hold
    every: tuple[Seen, ...]  # of each
    best: Array  # (k, d) the configurations of the best runs of all

    @classmethod
    def of(cls, studies: Sequence[EarlierStudy], space: Space, stages: Stages) -> Lessons:
        """As the problem's space and stages have it."""
        every, left_out, best = [], [], [np.empty((0, space.dim))]
        for number, earlier in enumerate(studies, 1):
            found = [(run, p) for run in earlier.runs if (p := _point(run, space)) is not None]
            points = np.array([p for _, p in found]).reshape(len(found), space.dim)
            every.append(_seen([run for run, _ in found], points, earlier.horizon, stages, number))
            left_out.append(len(earlier.runs) - len(found))
            best.append(points[:_BEST_RUNS])
        return cls(tuple(e.name for e in studies), tuple(left_out), tuple(every), np.vstack(best))

    def __bool__(self) -> bool:
        """Whether there is anything to learn from."""
        return any(len(seen) for seen in self.every)

    def remarks(self) -> list[str]:
        """What is learnt from, and what not, a sentence for each study."""
        return [
            f"learns from {plural(len(seen.points), 'run')} of {name!r}"
            + (f"; {out} more lie outside this space, or lack a parameter of it" if out else "")
            for name, seen, out in zip(self.names, self.every, self.left_out, strict=True)
        ]

    @cached_property
    def kept(self) -> Seen:
        """What a process keeps of them."""
        return self._at_most(_OF_KEPT)

    @cached_property
    def learnt(self) -> Seen:
        """What hyperparameters are learnt from."""
        return self._at_most(_OF_LEARNT)

    def _at_most(self, limit: int) -> Seen:
        each = max(1, limit // len(self.every))
        return reduce(Seen.beside, [seen.at(spread(seen, each, None)) for seen in self.every])

    def told(self, told: Array) -> list[dict[str, Any]]:
        """What is learnt from, and how much that tells of this search; told: (J,) q of each study."""
        return [
            {"name": name, "runs": len(seen.points), "left_out": out, "tells": round(float(q), 3)}
            for name, seen, q, out in zip(self.names, self.every, told, self.left_out, strict=True)
        ]


def earlier_in_words(name: str, runs: int, left_out: int, tells: float) -> str:
    """One of these in a reason."""
    without = f"; {left_out} outside this space" if left_out else ""
    return f"{plural(runs, 'trial')} of {name!r} (estimated relevance {tells:.2f}{without})"


def _point(run: EarlierRun, space: Space) -> Array | None:
    """(d,) the configuration in the new space; None where that does not hold it."""
    shared: dict[str, Any] = {name: run.config[name] for name in space.names if name in run.config}
    try:
        return space.encode(shared)
    except (InvalidSpace, InvalidInput):
        return None


def _seen(runs: Sequence[EarlierRun], points: Array, horizon: float, stages: Stages, number: int) -> Seen:
    """Each value at the stage that is nearest; of several there the latest."""
    found: dict[tuple[int, int], float] = {}
    for i, run in enumerate(runs):
        t = np.log1p(run.epochs) / np.log1p(horizon)
        for stage, target in zip(np.abs(stages.times[:, None] - t).argmin(axis=0), run.targets, strict=True):
            found[i, int(stage)] = target
    run_of, stage_of = np.array(list(found), dtype=np.intp).reshape(len(found), 2).T
    values = np.array(list(found.values()), dtype=np.float64)
    return Seen(points, run_of, stage_of, values, np.full(len(points), number))
