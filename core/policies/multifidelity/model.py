"""What a search believes: the kernel that its own rows and earlier studies have taught, and the process given all."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from haltune._utils.memo import Memo
from haltune.log.history import History
from haltune.policies.guided.curve_rows import Table
from haltune.policies.guided.targets import fitted

from .lessons import Lessons
from .log_regret import LogRegret
from .seen import Seen
from .stage_kernel import StageKernel, Stages
from .stage_process import StageProcess, learn
from .stage_rows import KEPT, LEARNT, seen_at_stages, spread

_TAUGHT = 16  # rows before the first fit: by then eight runs were seen at the first two rungs


@dataclass(frozen=True)
class Model:
    """Of searches of one problem; what it learnt last is kept."""

    stages: Stages
    initial: int  # trials that set the scale
    lessons: Lessons | None = None  # of earlier studies; None: nothing
    _kernels: Memo[StageKernel] = field(
        default_factory=lambda: Memo(2), init=False, repr=False, compare=False
    )

    def kernel(self, history: History, rows: Table) -> StageKernel | None:
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
            return learn(self.stages, _both(own, earlier, LEARNT, history.rng("fit", m)))

        key = tuple(seen and seen.key for seen in (own, earlier))
        return self._kernels((history.seed, *key), learnt)

    def process(
        self, kernel: StageKernel, history: History, rows: Table, scale: LogRegret | None
    ) -> StageProcess:
        """Given all that was seen, and pending trials as if they had ended where they are expected to."""
        own = self._own(history, rows, scale)
        earlier = None if self.lessons is None else self.lessons.kept
        process = StageProcess.of(kernel, _both(own, earlier, KEPT, None))
        return process.with_ends(history.points[[t.id for t in history.pending]])

    def scale(self, history: History, rows: Table) -> LogRegret | None:
        """By the best so far, and by what the first trials have come to; None while nothing is finite."""
        last = np.full(self.initial, np.nan)
        first = rows.trial < self.initial
        last[rows.trial[first]] = rows.value[first]  # of equals the later stays
        return LogRegret.of(rows.value, last, history.problem.goal.sign)

    def _own(self, history: History, rows: Table, scale: LogRegret | None) -> Seen | None:
        return None if scale is None else seen_at_stages(history, rows, self.stages, scale)


def _both(own: Seen | None, earlier: Seen | None, limit: int, rng: Generator | None) -> Seen:
    """At most so many values of this study and of earlier ones; see `spread`."""
    if own is None:
        assert earlier is not None
        return earlier
    room = limit - (0 if earlier is None else len(earlier))
    kept = own.at(spread(own, room, rng))
    return kept if earlier is None else kept.beside(earlier)
