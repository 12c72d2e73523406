"""Interface of trackers, and `track`, whose thread follows a log and sends new events to a tracker.

If a tracker is unavailable, training continues, and the missing events are sent later. If several programs on this
machine share a search, only one sends it at a time. It holds a system lock on an empty file, which ends with the
process. Without locks (on Windows, or without a folder for them) every program sends.
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
from haltune._utils.disk import lock
from haltune.display import one_line, plural
from haltune.errors import InvalidInput, warn
from haltune.log import events as ev
from haltune.log.events import Event, Status
from haltune.log.policy import called
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.study import Study
from haltune.study.messages import lead_of
from haltune.study.view import RecordedStudy, follow_study


@dataclass(frozen=True)
class Search:
    id: str  # unique
    name: str
    problem: Problem
    policy: str


@dataclass(frozen=True)
class Point:
    epoch: float  # in the study's unit
    at: float  # seconds since the epoch
    values: Mapping[str, float]  # the goal's metric first
    step: int  # for trackers with whole steps


def step_of(problem: Problem, epoch: float) -> int:
    """Return the step of a report: its epoch, or the number of its judged report if there are several per epoch."""
    return round(epoch / min(1.0, problem.every or 1.0))


class Tracker(Protocol):
    """Target of a search's events. A run that is sent again continues the earlier one.

    If it has an address, `place`, one program of a machine sends to it at a time.
    """

    def open(self, search: Search) -> int:
        """Start a search; return the position of its log up to which the tracker has it."""
        ...

    def start(self, trial: TrialRecord) -> None:
        """Start or resume a trial."""
        ...

    def report(self, trial: TrialRecord, points: Sequence[Point]) -> None: ...

    def end(self, trial: TrialRecord, status: Status, tags: Mapping[str, str]) -> None:
        """End or pause a trial. tags: its verdict and reason."""
        ...

    def save_position(self, position: int) -> None: ...

    def close(self, tags: Mapping[str, str], over: bool) -> None:
        """Finish sending for now. over: the search has finished."""
        ...


class Bookmark:
    """Position of a tracker without a server, in a file next to its own files."""

    def __init__(self, folder: Path, search: Search) -> None:
        self._path = folder / f"haltune-{search.id}.json"

    def is_of_another(self) -> bool:
        """Return whether another search has its files in the folder."""
        return not self._path.exists() and any(self._path.parent.glob("haltune-*.json"))

    def read(self) -> int:
        try:
            return int(json.loads(self._path.read_text())["position"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def write(self, position: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".part")  # whole, or not: without a position all events are sent again
        written.write_text(json.dumps({"position": position}))
        written.replace(self._path)


class Turn:
    """The right to send a search to a place. search: its id. place: a tracker's kind and address."""

    def __init__(self, search: str, place: str) -> None:
        user = os.getuid() if hasattr(os, "getuid") else 0
        key = sha256(f"{search} {place}".encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir(), f"haltune-told-{user}-{key}.lock")
        self._file: int | None = None

    def mine(self) -> bool:
        """Acquire the right if it is free; return whether this program has it."""
        if os.name != "posix" or self._file is not None:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return True  # locks are not available
        if not lock(file):
            os.close(file)
            return False
        self._file = file
        return True

    def release(self) -> None:
        """Release the right. The file stays, because a waiting program may have it open."""
        if self._file is not None:
            import fcntl  # POSIX only

            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked child may have the file open
            os.close(self._file)
            self._file = None


_log = logging.getLogger("haltune")
_END_SECONDS = 60.0  # seconds to wait for a tracker at the end


@contextmanager
def track(study: Study | RecordedStudy, *trackers: Tracker, every: float = 2.0) -> Iterator[None]:
    """Send a search to trackers while it runs: a run for each trial, with its curves and the reason of its end.

    It follows the log, so trials may train anywhere: in this process, in a launcher's workers, on other machines. If
    you start the program again, it continues. If several programs on one machine share a search, one sends it; when it
    ends, another takes over. On several machines, track a search in one program.

    Args:
        study: The study, in this process or in another one.
        trackers: MLflow(...), WandB(...), TensorBoard(...), or your own `haltune.trackers.tracker.Tracker`.
        every: Seconds between reads of the log. Default: 2.

    Raises:
        InvalidInput: If a tracker is not one, or `every` is not a duration.

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
    for one in trackers:
        if isinstance(one, type) or not callable(getattr(one, "save_position", None)):
            raise InvalidInput(
                f"{one!r} is not a tracker. Make one of haltune.trackers: MLflow(...), WandB(...) or TensorBoard(...), "
                "such as track(study, WandB('digits'))."
            )
    if isinstance(study, Study) and study.session.first(lambda: True) is None:  # rank 0 sends
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
            warn(f"A tracker did not answer within {_END_SECONDS:.0f} s. Track the search again to send the rest.")


class Mirror:
    """A search, one tracker, and the events that are not sent yet."""

    def __init__(self, study: Study | RecordedStudy, tracker: Tracker) -> None:
        self._tracker, self._name = tracker, study.name
        self._read = follow_study(study.store, study.name)
        self._position = -1  # position in the log up to which the tracker has it; -1: not opened
        self._due: deque[Callable[[], None]] = deque()
        self._seen = 0  # position in the log up to which it was read
        self._runs: dict[int, _ReportsRead] = {}
        self._waiting: dict[int, list[Point]] = {}  # trial -> reports to send together
        self._warned = self._waits = False  # about an unavailable tracker; about another program that sends
        self._turn: Turn | None = None

    def update(self) -> bool:
        """Send the new events; return False if the tracker did not accept them."""
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
        except Exception as error:  # an error of a tracker must not end a training
            if not self._warned:
                name = type(self._tracker).__name__
                warn(f"Cannot send {self._name!r} to {name}: {one_line(error)}. haltune will try again.")
            self._warned = True
            return False
        return True

    def _has_turn(self) -> bool:
        place = getattr(self._tracker, "place", None)
        kind = type(self._tracker).__name__
        if self._turn is None and place is not None:
            self._turn = Turn(self._search().id, f"{kind} {place}")
        if self._turn is None or self._turn.mine():
            return True
        if not self._waits:
            _log.info("Another program sends %r to %s. This one continues when the other ends.", self._name, kind)
        self._waits = True
        return False

    def close(self) -> None:
        """Send the remaining events, then close the tracker."""
        try:
            if not self.update():
                return
            outcome, several = self._read.outcome, bool(self._read.history.problem.further)
            best = None if several else self._read.best
            tags = {"haltune.outcome": outcome.reason, "haltune.trials": plural(len(self._read.trials), "trial")}
            if best is not None:
                tags |= {"haltune.best_trial": str(best.trial), "haltune.best_value": repr(best.value)}
            if several:
                tags["haltune.front"] = lead_of(self._read.history) or "no trial has a value in every goal"
            self._due.append(partial(self._tracker.close, tags, outcome.over))
            self.update()
        finally:
            if self._turn is not None:
                self._turn.release()

    def _search(self) -> Search:
        first = next(iter(self._read.events()))
        id = first.id if isinstance(first, ev.Created) else ""
        id = id or f"{crc32(f'{self._name} {first.at!r}'.encode()):08x}"
        return Search(id, self._name, self._read.history.problem, called(self._read.policy))

    def _collect(self) -> None:
        """Queue the events since the last call; consecutive reports of a trial are sent together."""
        end = self._read.history.position
        events = list(self._read.events(self._seen))  # all of them, or none: the store may be away
        for position, event in enumerate(events, self._seen):
            self._take(event, new=position >= self._position)
        for trial in list(self._waiting):
            self._flush(trial)
        self._seen = end
        if end > self._position:
            self._position = end
            self._due.append(partial(self._tracker.save_position, end))

    def _take(self, event: Event, new: bool) -> None:
        match event:
            case ev.Started():
                self._runs[event.trial] = _ReportsRead()
            case ev.Resumed():
                run = self._runs[event.trial]
                run.attempt, run.epoch = event.attempt, 0.0 if event.anew else run.saved
            case ev.Checkpointed():
                self._runs[event.trial].saved = event.epoch
            case ev.Reported():
                run = self._runs[event.trial]
                if event.attempt == run.attempt and event.epoch > run.epoch:  # otherwise superseded or sent before
                    run.epoch = event.epoch
                    problem = self._read.history.problem
                    if new and not event.copied:
                        values = {problem.goal.metric: event.value, **event.metrics}
                        point = Point(event.epoch, event.at, values, step_of(problem, event.epoch))
                        self._waiting.setdefault(event.trial, []).append(point)
        if new and isinstance(event, ev.Started | ev.Resumed):
            self._due.append(partial(self._tracker.start, self._read.history.trial(event.trial)))
        if new and isinstance(event, ev.Ended | ev.Expired):
            self._flush(event.trial)
            trial = self._read.history.trial(event.trial)
            tags = _tags(trial) | {"haltune.status": str(event.status)}  # the trial may have resumed since
            self._due.append(partial(self._tracker.end, trial, event.status, tags))

    def _flush(self, trial: int) -> None:
        if points := self._waiting.pop(trial, None):
            self._due.append(partial(self._tracker.report, self._read.history.trial(trial), points))


def _tags(trial: TrialRecord) -> dict[str, str]:
    found: dict[str, Any] = {"status": trial.status, "chosen": trial.proposed}
    if trial.verdict is not None:
        found |= {"verdict": trial.verdict.action, "reason": trial.verdict.reason}
        found["p_beats"] = trial.verdict.evidence.get("p_win")
    if trial.error is not None:
        found["reason"] = trial.error
    return {f"haltune.{name}": str(value) for name, value in found.items() if value not in (None, "")}


@dataclass
class _ReportsRead:
    attempt: int = 1
    epoch: float = 0.0  # last reported one
    saved: float = 0.0  # epoch of the last checkpoint
