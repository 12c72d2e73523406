"""Workers that save, supersede, tidy, sleep, are interrupted and are killed between any two steps.

The law, checked after each step of each worker: the newest checkpoint in the log of each trial that may continue
exists, and has the state that was saved under its name.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clocked import World
from hypothesis import given, settings
from hypothesis import strategies as st
from whims import PAUSE, PROBLEM, STOP

from examples import many
from haltune import Study, Trial
from haltune._utils import disk
from haltune.errors import LeaseLost
from haltune.log.events import OVER
from haltune.log.history import History
from haltune.store.checkpoints import keepers
from haltune.store.memory import MemoryStore


class Killed(BaseException):
    """The process is gone: its further actions have no effect."""


class Worker:
    """A process, run step by step in a thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._go, self._stepped = threading.Semaphore(0), threading.Semaphore(0)
        self.raises: type[BaseException] | None = None  # at its next step
        self.over = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let it do what comes before its next pause."""
        self._go.release()
        self._stepped.acquire()

    def pause(self) -> None:
        """Called by itself: wait to be let on."""
        self._stepped.release()
        self._go.acquire()
        error = self.raises
        if error is not None:
            self.raises = error if error is Killed else None
            raise error

    def _run(self, work: Callable[[], None]) -> None:
        mine.worker = self
        self._go.acquire()
        try:
            work()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.over = True
        self._stepped.release()


mine = threading.local()  # the worker of this thread


def pause() -> None:
    if (worker := getattr(mine, "worker", None)) is not None:
        worker.pause()


def paused(real: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with a pause before it and one after."""

    def slow(*arguments: Any, **options: Any) -> Any:
        pause()
        found = real(*arguments, **options)
        pause()
        return found

    return slow


@pytest.fixture(autouse=True)
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    for what in ("delete", "force", "listed"):
        monkeypatch.setattr(disk, what, paused(getattr(disk, what)))
    monkeypatch.setattr(Path, "rename", paused(Path.rename))
    for what in ("append", "renew", "leases"):
        monkeypatch.setattr(MemoryStore, what, paused(getattr(MemoryStore, what)))


class Storm:
    """Three workers of one search, and a reader."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(trials=6, checkpoints=folder, max_retries=50, keep=seed % 2)
        self.seen = History(PROBLEM)
        self.kept: set[str] = set()  # folders of the trials whose last checkpoints stay
        self.workers = [self.worker() for _ in range(3)]

    def worker(self) -> Worker:
        return Worker(lambda: self.work(self.world.another()))

    def work(self, study: Study) -> None:
        while isinstance(trial := study.ask(), Trial):
            try:
                self.train(trial)
            except KeyboardInterrupt:
                trial.interrupt()
            except LeaseLost:
                trial.finish()
                assert trial.ended is not None

    def train(self, trial: Trial) -> None:
        if trial.checkpoint is not None:
            try:
                assert Path(trial.checkpoint).read_text() == f"{trial.id} at {trial.epoch}"
            except FileNotFoundError:
                trial.report(0.5)  # raises LeaseLost: it slept since it started, and another worker continues the trial
                raise
        while trial.epoch < 5 and not (trial.verdict and trial.verdict.stops):
            trial.report(self.chance.choice((0.5, 0.5, 0.6, PAUSE, STOP)))
            for _ in range(self.chance.choice((0, 1, 1, 2))):
                text = f"{trial.id} at {trial.epoch}"
                trial.save(lambda path, text=text: path.write_text(text))  # type: ignore[misc]
        trial.finish()

    def look(self) -> None:
        """The law."""
        for event in self.world.store.read("study", self.seen.position):
            self.seen.apply(event)
        for t in self.seen.trials:
            if t.status not in OVER and t.checkpoint is not None:
                path = self.world.study.checkpoints.folder / t.checkpoint
                assert path.read_text() == f"{t.id} at {t.checkpoint_epoch:g}", t

    def blow(self, steps: int) -> None:
        asleep = wakes = -1
        for now in range(steps):
            n = self.chance.choice([n for n in range(len(self.workers)) if n != asleep or now >= wakes])
            worker, fate = self.workers[n], self.chance.random()
            if fate < 0.01 and now >= wakes:
                asleep, wakes = n, now + self.chance.randrange(200)
                self.world.clock.now += 700.0
            elif fate < 0.04:
                worker.raises = KeyboardInterrupt
            elif fate < 0.05:
                worker.raises = Killed
            if not worker.over:
                worker.step()
            if worker.over:
                assert worker.error is None or isinstance(worker.error, KeyboardInterrupt), worker.error
                self.workers[n] = self.worker()
            self.look()

    def end(self) -> None:
        """Kill all workers, and continue with one."""
        for worker in self.workers:
            worker.raises = Killed
            while not worker.over:
                worker.step()
        self.look()
        self.world.clock.now += 10_000.0
        last = self.world.another()
        self.work(last)
        self.look()
        assert all(t.status in OVER for t in self.seen.trials)
        self.kept = {f"trial-{n}" for n in keepers(self.seen, last.checkpoints.keep)}
        last.session.replica.tidy()  # what those left who were killed after a trial was over


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=many(15), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_in_any_storm_the_checkpoints_that_the_log_needs_are_there(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("storm")
    storm = Storm(folder, seed)
    storm.blow(800)
    storm.end()
    assert {path.parent.name for path in folder.rglob("*") if path.is_file()} <= storm.kept
