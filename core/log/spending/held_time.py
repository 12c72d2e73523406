"""How long trials were held, by all and by each: the union of intervals that come and go."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field


@dataclass
class HeldTime:
    """The union of the intervals during which trials were held, kept as trials come and go.

    Closed intervals are disjoint and sorted; each running trial adds one open interval
    that ends at its last sign of life.
    """

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    total: float = 0.0  # length of the closed union
    summed: float = 0.0  # sum of the closed intervals' lengths
    open: dict[int, tuple[float, float]] = field(default_factory=dict)  # trial -> (start, last alive)

    def begin(self, trial: int, start: float) -> None:
        """Worker time of `trial` begins."""
        self.open[trial] = (start, start)

    def alive(self, trial: int, at: float) -> None:
        """A sign of life."""
        if trial in self.open:
            start, last = self.open[trial]
            self.open[trial] = (start, max(last, at))

    def end(self, trial: int, at: float) -> None:
        """Worker time of `trial` ends at `at`, or at its last sign of life when that was later."""
        if trial in self.open:
            start, last = self.open.pop(trial)
            self.add(start, max(last, at))

    def add(self, start: float, end: float) -> None:
        """One closed interval more."""
        self.summed += end - start
        first, last = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first < last:  # merges with what it touches
            start, end = min(start, self.starts[first]), max(end, self.ends[last - 1])
            self.total -= sum(self.ends[i] - self.starts[i] for i in range(first, last))
        self.starts[first:last], self.ends[first:last] = [start], [end]
        self.total += end - start

    def wall(self) -> float:
        """Seconds during which any trial was held."""
        if not self.open:
            return self.total
        first = bisect_left(self.ends, min(start for start, _ in self.open.values()))
        extra = HeldTime(self.starts[first:], self.ends[first:])  # its total counts only what is added
        for start, last in self.open.values():
            extra.add(start, last)
        return self.total + extra.total

    def worker(self) -> float:
        """Seconds summed over trials."""
        return self.summed + sum(last - start for start, last in self.open.values())

    def at(self, trial: int, now: float) -> HeldTime:
        """The same with one more sign of life; the closed intervals are shared, and left as they are."""
        later = HeldTime(self.starts, self.ends, self.total, self.summed, dict(self.open))
        later.alive(trial, now)
        return later
