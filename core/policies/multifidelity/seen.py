"""What the process learns from: values that runs have reached at stages of training, in this study and earlier ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from haltune._utils.arrays import Array, Indices, Mask


@dataclass(frozen=True)
class Seen:
    """What runs have reached: n values, each on the scale of the study that it was seen in."""

    points: Array  # (runs, d)
    run: Indices  # (n,) row of `points`
    stage: Indices  # (n,)
    value: Array  # (n,)
    study: Indices | None = None  # (runs,) 0 this one, 1 to J the earlier ones; None: all of this one

    def __len__(self) -> int:
        return len(self.value)

    def at(self, kept: Indices) -> Seen:
        """Some of the values, and their runs."""
        runs, run = np.unique(self.run[kept], return_inverse=True)
        study = None if self.study is None else self.study[runs]
        return Seen(self.points[runs], run, self.stage[kept], self.value[kept], study)

    def beside(self, other: Seen) -> Seen:
        """The values of both, whose runs are others."""
        studies = [
            np.zeros(len(s.points), dtype=np.intp) if s.study is None else s.study for s in (self, other)
        ]
        return Seen(
            np.vstack([self.points, other.points]),
            np.concatenate([self.run, other.run + len(self.points)]),
            np.concatenate([self.stage, other.stage]),
            np.concatenate([self.value, other.value]),
            None if self.study is None and other.study is None else np.concatenate(studies),
        )

    def of_this(self) -> Seen:
        """The same, of which each run is said to be of this study."""
        return replace(self, study=np.zeros(len(self.points), dtype=np.intp))

    @property
    def key(self) -> tuple[bytes, ...]:
        """What tells it apart."""
        study = b"" if self.study is None else self.study.tobytes()
        return (self.points.tobytes(), self.run.tobytes(), self.stage.tobytes(), self.value.tobytes(), study)

    @cached_property
    def of(self) -> Indices | None:
        """(n,) the study that each value was seen in; None: this one."""
        return None if self.study is None else self.study[self.run]

    @cached_property
    def together(self) -> Mask | float:
        """(n, n) whether two values are of one study; 1 where there is but one."""
        return 1.0 if self.of is None else self.of[:, None] == self.of

    @cached_property
    def same(self) -> Mask:
        """(n, n) whether two values are of one run."""
        return np.asarray(self.run[:, None] == self.run)

    def runs_at(self, points: Array) -> Mask:
        """(n, m) whether a value is of a run of this study at a point of (m, d)."""
        there = (self.points[:, None] == points).all(axis=2)
        if self.study is not None:
            there &= (self.study == 0)[:, None]
        return np.asarray(there[self.run])

    @cached_property
    def pairs(self) -> tuple[Array, Array]:
        """Indices that make (n, n) of a table of stages."""
        return np.ix_(self.stage, self.stage)  # type: ignore[return-value]
