"""A study in memory on a clock that tests advance, and other workers over the same log."""

from __future__ import annotations

from typing import Any

from whims import PROBLEM, Whims
from worlds import Clock, Ticks

from haltune import Budget, Checkpointing, Storage, Study, Trial
from haltune.store.memory import MemoryStore
from haltune.study.session import clocked


class World:
    """A store on a clock that tests advance, and studies over it."""

    def __init__(
        self, trials: int = 9, checkpoints: Any = None, keep: Any = 0, disk_quota: Any = None, max_retries: int = 2,
        **options: Any,
    ) -> None:  # fmt: skip
        self.clock = Clock()
        self.laps = Ticks(self.clock)  # monotonic
        self.store = MemoryStore(self.clock)
        kept = Checkpointing(checkpoints, keep, disk_quota)
        self.storage = Storage(self.store, max_retries=max_retries)
        self.options = {"budget": Budget(trials=trials), "seed": 1, "checkpoints": kept, **options}
        self.study = self.another()

    def another(self) -> Study:
        """The study as another worker holds it."""
        with clocked(self.laps, self.slept):
            return Study(PROBLEM, Whims(), self.storage, **self.options)

    def slept(self, seconds: float) -> None:
        self.clock.now += seconds

    def ask(self, study: Study | None = None) -> Trial:
        trial = (study or self.study).ask()
        assert isinstance(trial, Trial)
        return trial

    def events(self, *kinds: type) -> list[Any]:
        return [e for e in self.store.read("study") if isinstance(e, kinds)]

    def curve(self, trial: int = 0) -> list[float]:
        self.study.sync()
        return list(self.study.history.trial(trial).values)

    def succeed(self) -> None:
        """One trial that ends well, so that later failures are no longer taken for a bug."""
        with self.ask() as trial:
            trial.report(0.5)
