"""Following a log and telling a tracker what is new, while the search runs: by a thread of its own.

A tracker that is out of reach breaks no training: what it did not take is told again later.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from zlib import crc32

from haltune._utils.checks import check_seconds
from haltune._utils.words import one_line, plural
from haltune.errors import warn
from haltune.log import events as ev
from haltune.log.events import Event
from haltune.log.fate import lead_of
from haltune.log.policy import called
from haltune.ranks.agreement import follows
from haltune.study import Study
from haltune.study.reading import Reading, follow_study

from .teller import Teller
from .tracker import Point, Search, Tracker, fate_tags

_log = logging.getLogger("haltune")
_END_SECONDS = 60.0  # seconds that the end waits for a tracker


@contextmanager
def track(study: Study | Reading, *trackers: Tracker, every: float = 2.0) -> Iterator[None]:
    """Tell trackers of a search while it runs: a run for each trial, with its curves, and why it ended.

    It follows the log, whoever trains: this process, a callback, a launcher's workers, other machines. A program that
    is started again goes on where it was. Of several programs on one machine that share a search one tells, and another
    goes on when it ends; of programs on several machines, track it in one.

    Args:
        study: What is searched, here or by other workers.
        trackers: MLflow(...), WandB(...), TensorBoard(...), or your own `haltune.trackers.tracker.Tracker`.
        every: Seconds between looks at the log. Default: 2.

    Raises:
        InvalidInput: For a time that is none.

    Example:
        >>> from haltune.trackers import TensorBoard, track
        >>> study = Study({"lr": Float(0.01, 1.0)}, "loss", max_epochs=2, seed=0, budget="3 trials", verbose=0)
        >>> with track(study, TensorBoard("runs")):
        ...     for trial in study:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(trial.config["lr"] / epoch)
        >>> import os
        >>> sorted(name for name in os.listdir("runs") if name.startswith("trial"))
        ['trial-0', 'trial-1', 'trial-2']
    """
    check_seconds(every=every)
    if follows():  # rank 0 tells
        yield
        return
    mirrors = [Mirror(study, tracker) for tracker in trackers]
    over = threading.Event()

    def follow() -> None:
        while not over.wait(every):
            for mirror in mirrors:
                mirror.update()
        for mirror in mirrors:
            mirror.close()

    thread = threading.Thread(target=follow, name="haltune-track", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_SECONDS)
        if thread.is_alive():
            warn(
                "a tracker takes long to answer: what it was not told by now is told when it is tracked again"
            )


class Mirror:
    """A search as one tracker knows it; where that has a `place`, one program of this machine at a time tells it."""

    def __init__(self, study: Study | Reading, tracker: Tracker) -> None:
        self._tracker, self._name = tracker, study.name
        self._read = follow_study(study.store, study.name)
        self._position = -1  # of the log, up to which it was told; -1: it was not opened
        self._due: deque[Callable[[], None]] = deque()
        self._seen = 0  # of the log, up to which it was read
        self._runs: dict[int, _ReportsRead] = {}
        self._waiting: dict[int, list[Point]] = {}  # trial -> reports that are told together
        self._warned = False
        self._teller: Teller | None = None
        self._waits = False  # for another program that tells

    def update(self) -> bool:
        """Tell what is new; False when the tracker did not take it."""
        try:
            if not self._has_turn():
                return False
            if self._position < 0:
                self._position = self._tracker.open(self._search())
            self._read.sync()
            self._collect()
            while self._due:
                self._due[0]()
                self._due.popleft()
        except Exception as error:  # whatever a tracker raises, a training goes on
            if not self._warned:
                warn(f"{type(self._tracker).__name__} was not told of {self._name!r}: {one_line(error)}")
            self._warned = True
            return False
        return True

    def _has_turn(self) -> bool:
        place = getattr(self._tracker, "place", None)
        if self._teller is None and place is not None:
            self._teller = Teller(self._search().id, f"{type(self._tracker).__name__} {place}")
        if self._teller is None or self._teller.mine():
            return True
        if not self._waits:
            _log.info(
                "another program here tells %s of %r; this one goes on when that ends",
                type(self._tracker).__name__, self._name,
            )  # fmt: skip
        self._waits = True
        return False

    def close(self) -> None:
        """Tell the rest, and that nothing more comes."""
        try:
            self._close()
        finally:
            if self._teller is not None:
                self._teller.release()

    def _close(self) -> None:
        if not self.update():
            return
        outcome = self._read.outcome
        several = bool(self._read.history.problem.further)
        best = None if several else self._read.best
        tags = {"haltune.outcome": outcome.reason, "haltune.trials": plural(len(self._read.trials), "trial")}
        if best is not None:
            tags |= {"haltune.best_trial": str(best.trial), "haltune.best_value": repr(best.value)}
        if several:
            tags["haltune.front"] = lead_of(self._read.history) or "no run has a value in every goal"
        self._due.append(partial(self._tracker.close, tags, outcome.over))
        self.update()

    def _search(self) -> Search:
        first = next(iter(self._read.events()))
        id = first.id if isinstance(first, ev.Created) else ""
        id = id or f"{crc32(f'{self._name} {first.at!r}'.encode()):08x}"
        return Search(id, self._name, self._read.history.problem, called(self._read.policy))

    def _collect(self) -> None:
        """Queue what happened since; reports of one trial in a row are told together."""
        end = self._read.history.position
        for position, event in enumerate(self._read.events(self._seen), self._seen):
            self._take(event, tell=position >= self._position)
        for trial in list(self._waiting):
            self._flush(trial)
        self._seen = end
        if end > self._position:
            self._position = end
            self._due.append(partial(self._tracker.told, end))

    def _take(self, event: Event, tell: bool) -> None:
        match event:
            case ev.Started():
                self._runs[event.trial] = _ReportsRead()
            case ev.Resumed():
                run = self._runs[event.trial]
                run.attempt, run.epoch = event.attempt, 0.0 if event.anew else run.saved
            case ev.Checkpointed():
                self._runs[event.trial].saved = event.epoch
            case ev.Reported():
                self._report(event, tell)
        if tell and isinstance(event, ev.Started | ev.Resumed):
            self._due.append(partial(self._tracker.begin, self._read.history.trial(event.trial)))
        if tell and isinstance(event, ev.Ended | ev.Expired):
            self._flush(event.trial)
            trial = self._read.history.trial(event.trial)
            tags = fate_tags(trial) | {"haltune.status": str(event.status)}  # it may go on by now
            self._due.append(partial(self._tracker.end, trial, event.status, tags))

    def _report(self, event: ev.Reported, tell: bool) -> None:
        run = self._runs[event.trial]
        if event.attempt != run.attempt or event.epoch <= run.epoch:
            return  # superseded, or seen before
        run.epoch = event.epoch
        metric = self._read.history.problem.goal.metric
        point = Point(event.epoch, event.at, {metric: event.value, **event.metrics})
        if tell and not event.copied:
            self._waiting.setdefault(event.trial, []).append(point)

    def _flush(self, trial: int) -> None:
        if points := self._waiting.pop(trial, None):
            self._due.append(partial(self._tracker.report, self._read.history.trial(trial), points))


@dataclass
class _ReportsRead:
    """How far a trial's reports are read."""

    attempt: int = 1
    epoch: float = 0.0  # reported last
    saved: float = 0.0  # of the last checkpoint
