"""What a search believes: the kernel that its own rows and earlier studies have taught, and the process given all.

An earlier study that misleads would leave more than its runs: the amplitudes, steps and lengthscales that it has
taught. So studies are left out, with a q of 0, the one that tells least first, while the rows of this study are
likelier without those that are left: while the largest density of all rows together, over that of the earlier ones by
themselves, falls short of that of its own rows by more than `_DOUBT` in the logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.random import Generator

from haltune._utils.memo import Memo
from haltune.log.history import History
from haltune.policies.guided.curve_rows import CurveTable
from haltune.policies.guided.targets import fitted

from .lessons import Lessons
from .log_regret import LogRegret
from .seen import Seen
from .stage_kernel import StageKernel, Stages
from .stage_process import StageProcess, density, learn_kernel
from .stage_rows import LEARNT, VALUES_KEPT, seen_at_stages, spread

_TAUGHT = 16  # rows before the first fit: by then eight runs were seen at the first two rungs
_DOUBTED = 16  # rows before it is asked whether earlier studies mislead
_DOUBT = 2.0  # so much they may cost and stay: with few rows, the difference of two maxima is rough


@dataclass(frozen=True)
class Model:
    """Of searches of one problem; what it learnt last is kept."""

    stages: Stages
    initial: int  # trials that set the scale
    lessons: Lessons | None = None  # of earlier studies; None: nothing
    _kernels: Memo[StageKernel] = field(
        default_factory=lambda: Memo(2), init=False, repr=False, compare=False
    )
    _earlier: Memo[float] = field(default_factory=lambda: Memo(8), init=False, repr=False, compare=False)

    def kernel(self, history: History, rows: CurveTable) -> StageKernel | None:
        """Learnt from the first m rows, m growing by a fifth; None while there are too few."""
        least = _TAUGHT if self.lessons is None else 0
        if len(rows) < least:
            return None
        m = fitted(len(rows), least)
        known = rows.upto(m)
        own = self._own(history, known, self.scale(history, known))
        earlier = None if self.lessons is None else self.lessons.learnt
        if own is None and earlier is None:
            return None

        def learnt() -> StageKernel:
            rng = history.rng("fit", m)
            if own is None or earlier is None or len(own) < _DOUBTED:
                return learn_kernel(self.stages, _both(own, earlier, LEARNT, rng))
            part = own.at(spread(own, LEARNT - len(earlier), rng)).of_this()
            return self._beside(part, earlier) or self._alone(own.at(spread(own, LEARNT, rng)).of_this())

        key = tuple(seen and seen.key for seen in (own, earlier))
        return self._kernels((history.seed, *key), learnt)

    def _beside(self, own: Seen, earlier: Seen) -> StageKernel | None:
        """Learnt from both but for the studies that mislead; None: all do."""
        assert earlier.of is not None
        kept = np.unique(earlier.of)
        least = _density(self.stages, own) - _DOUBT
        while len(kept):
            taken = earlier.at(np.flatnonzero(np.isin(earlier.of, kept)))
            both = own.beside(taken)
            kernel = learn_kernel(self.stages, both)
            before = self._earlier(tuple(kept.tolist()), partial(_density, self.stages, taken))
            if density(self.stages, both, kernel) - before >= least:
                return kernel.without([j for j in range(1, self.stages.earlier + 1) if j not in kept])
            kept = np.delete(kept, kernel.told[kept].argmin())
        return None

    def _alone(self, own: Seen) -> StageKernel:
        return learn_kernel(self.stages, own).without(range(1, self.stages.earlier + 1))

    def process(
        self, kernel: StageKernel, history: History, rows: CurveTable, scale: LogRegret | None
    ) -> StageProcess:
        """Given all that was seen, and pending trials as if they had ended where they are expected to."""
        own = self._own(history, rows, scale)
        earlier = None if self.lessons is None else self.lessons.kept
        process = StageProcess.of(kernel, _both(own, earlier, VALUES_KEPT, None))
        return process.with_ends(history.points[[t.id for t in history.pending]])

    def scale(self, history: History, rows: CurveTable) -> LogRegret | None:
        """By the best so far, and by what the first trials have come to; None while nothing is finite."""
        last = np.full(self.initial, np.nan)
        first = rows.trial < self.initial
        last[rows.trial[first]] = rows.value[first]  # of equals the later stays
        return LogRegret.of(rows.value, last, history.problem.goal.sign)

    def _own(self, history: History, rows: CurveTable, scale: LogRegret | None) -> Seen | None:
        return None if scale is None else seen_at_stages(history, rows, self.stages, scale)


def _density(stages: Stages, seen: Seen) -> float:
    """The largest there is."""
    return density(stages, seen, learn_kernel(stages, seen))


def _both(own: Seen | None, earlier: Seen | None, limit: int, rng: Generator | None) -> Seen:
    """At most so many values of this study and of earlier ones; see `spread`."""
    if own is None:
        assert earlier is not None
        return earlier
    room = limit - (0 if earlier is None else len(earlier))
    kept = own.at(spread(own, room, rng))
    return kept if earlier is None else kept.beside(earlier)
