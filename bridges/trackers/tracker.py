"""Trackers: their interface, and `track`, which follows a log and tells a tracker what is new, in a thread of its own.

A tracker that is out of reach breaks no training: what it did not take is told again later. Of several programs on this
machine that share a search one at a time tells it. The lock for that is the system lock on a file without content: it
goes with the process, however that ends. Without locks, on Windows or for want of a folder, every program tells.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from haltune._utils.checks import check_seconds
from haltune.display import one_line, plural
from haltune.errors import warn
from haltune.log import events as ev
from haltune.log.events import Event, Status
from haltune.log.policy import called
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.ranks import follows
from haltune.study import Study
from haltune.study.messages import lead_of
from haltune.study.view import RecordedStudy, follow_study


@dataclass(frozen=True)
class Search:
    """A study, as trackers name it."""

    id: str  # tells it from all others
    name: str
    problem: Problem
    policy: str


@dataclass(frozen=True)
class Point:
    """One report of a trial."""

    epoch: float
    at: float  # seconds since the epoch
    values: Mapping[str, float]  # the goal's metric first


class Tracker(Protocol):
    """Where a search is told. A run that is told again goes on in the place where it was.

    One that says its address, as `place`, is told by one program of a machine at a time.
    """

    def open(self, search: Search) -> int:
        """Begin with a search; the position of its log up to which this tracker was told it before."""
        ...

    def begin(self, trial: TrialRecord) -> None:
        """A trial begins, or goes on."""
        ...

    def report(self, trial: TrialRecord, points: Sequence[Point]) -> None:
        """What a trial has reported."""
        ...

    def end(self, trial: TrialRecord, status: Status, tags: Mapping[str, str]) -> None:
        """A trial has ended, or is paused; its verdict and reason, in words."""
        ...

    def told(self, position: int) -> None:
        """All up to this position was told."""
        ...

    def close(self, tags: Mapping[str, str], over: bool) -> None:
        """Nothing more comes for now. over: the search is."""
        ...


def fate_tags(trial: TrialRecord) -> dict[str, str]:
    """What became of a trial, in words."""
    found: dict[str, Any] = {"status": trial.status, "chosen": trial.proposed}
    if trial.verdict is not None:
        found |= {"verdict": trial.verdict.action, "reason": trial.verdict.reason}
        found["p_beats"] = trial.verdict.evidence.get("p_win")
    if trial.error is not None:
        found["reason"] = trial.error
    return {f"haltune.{name}": str(value) for name, value in found.items() if value not in (None, "")}


class Bookmark:
    """How far a tracker without a server was told, in a file beside what it wrote."""

    def __init__(self, folder: Path, search: Search) -> None:
        self._path = folder / f"haltune-{search.id}.json"

    def read(self) -> int:
        """The position; 0 before the first."""
        try:
            return int(json.loads(self._path.read_text())["position"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def write(self, position: int) -> None:
        """Keep it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"position": position}))


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Teller:
    """The turn to tell a place of a search.

    Args:
        search: What tells the search from all others.
        place: Where it is told: a tracker's kind and address.
    """

    def __init__(self, search: str, place: str) -> None:
        user = os.getuid() if hasattr(os, "getuid") else 0
        key = sha256(f"{search} {place}".encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir(), f"haltune-told-{user}-{key}.lock")
        self._file: int | None = None

    def mine(self) -> bool:
        """Take the turn where it is free; whether this program has it."""
        if fcntl is None or self._file is not None:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return True  # nobody can be asked
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            return not isinstance(error, BlockingIOError)  # some network disks know no locks
        self._file = file
        return True

    def release(self) -> None:
        """Give the turn back. The file stays: who waits for it may have it open."""
        if self._file is not None:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked child may have the file open
            os.close(self._file)
            self._file = None


_log = logging.getLogger("haltune")
_END_SECONDS = 60.0  # seconds that the end waits for a tracker


@contextmanager
def track(study: Study | RecordedStudy, *trackers: Tracker, every: float = 2.0) -> Iterator[None]:
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

    def __init__(self, study: Study | RecordedStudy, tracker: Tracker) -> None:
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
