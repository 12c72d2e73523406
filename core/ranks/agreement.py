"""One study on all ranks of a training: rank 0 does the work, the others hear what came of it.

    answer = accord.agree(topic, work, to_json, from_json)

runs `work` on rank 0 and writes down its answer, or what it raised; the other ranks wait for that line and
return, or raise, the same. Nothing is shared but JSON.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from haltune.log import events as ev
from haltune.log.events import Status
from haltune.store.memory import MemoryStore

from .handover import Line, Reader, Writer, error_from_json, error_to_json
from .place import ThisProcess, this

if TYPE_CHECKING:
    from haltune.study import Trial
    from haltune.study.session.replica import Replica

T = TypeVar("T")
_within = contextvars.ContextVar("within", default=False)  # an agreement: those within it are one with it
_alone = contextvars.ContextVar("alone", default=False)


def same(value: Any) -> Any:
    """What JSON holds as it is."""
    return value


class Accord:
    """Rank 0's, and that of a process by itself: does the work and writes what came of it."""

    def __init__(self, writer: Writer | None, study: str) -> None:
        self._writer, self._study = writer, study
        self._replica: Replica | None = None
        self._told = 0  # events of a study in memory that the others know
        self._lock = threading.Lock()

    def attach(self, replica: Replica) -> None:
        """The study is open: others hear how far its log is read, and a log in memory itself."""
        self._replica = replica

    def agree(
        self,
        topic: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
        trial: Trial | None = None,
    ) -> T:
        """What `work` returns on rank 0, on every rank; what it raises is raised on every rank.

        trial: one whose state changes by it, on every rank.
        """
        if self._writer is None or not self._writer.writes or _within.get():
            return work()
        line: Line = {"study": self._study, "topic": f"{self._study}: {topic}"}
        token = _within.set(True)
        try:
            answer = work()
            line["answer"] = to_json(answer)
            return answer
        except BaseException as error:  # Ctrl-C too: the others must not wait
            line["error"] = error_to_json(error)
            raise
        finally:
            _within.reset(token)
            if trial is not None:
                line["trial"] = changes(trial)
            with self._lock:
                self._writer.write(line | self._news())

    def _news(self) -> Line:
        if self._replica is None:
            return {}
        position = self._replica.history.position
        news: Line = {"position": position}
        if isinstance(self._replica.store, MemoryStore) and position > self._told:
            log = self._replica.store.read(self._replica.name, self._told, position)
            news["events"] = [ev.to_json(event) for event in log]
            self._told = position
        return news


class Following(Accord):
    """Another rank's: waits for what rank 0 writes."""

    def __init__(self, reader: Reader, study: str) -> None:
        super().__init__(None, study)
        self._reader = reader
        self.position = 0  # of the log, at the last answer heard
        self._events: list[ev.Event] = []

    def agree(
        self,
        topic: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
        trial: Trial | None = None,
        *,
        seconds: float | None = None,
    ) -> T:
        """See Accord. Raises RankLost when rank 0 is gone, or silent for so many seconds."""
        line = self.heard(topic, seconds)
        if trial is not None and "trial" in line:
            change(trial, line["trial"])
        if "error" in line:
            raise error_from_json(*line["error"])
        return from_json(line["answer"])

    def heard(self, topic: str, seconds: float | None = None) -> Line:
        """The next line on a topic."""
        line = self._reader.wait(f"{self._study}: {topic}", seconds)
        self.position = max(self.position, line.get("position", 0))
        return line

    @property
    def events(self) -> list[ev.Event]:
        """The log of a study in rank 0's memory, as far as it was read here; perhaps beyond `position`."""
        told = self._reader.events.get(self._study, [])
        self._events += map(ev.from_json, told[len(self._events) :])
        return self._events

    def skip(self, topic: str, unneeded: Callable[[Line], bool]) -> None:
        """Leave out the next lines on a topic that were written before this process was started, if `unneeded`."""
        self._reader.skip(f"{self._study}: {topic}", unneeded)

    def was_before(self, topic: str) -> bool:
        """True when rank 0 wrote on a topic before this process was started."""
        return self._reader.was_before(f"{self._study}: {topic}")


def join(name: str, store: Any) -> Accord:
    """The part in the hand-over of the next study of this name in this store."""
    if _alone.get():
        return Accord(None, "")
    end = _end_of(this())
    where = "memory" if store is None else getattr(store, "url", store)
    study = f"{name} in {where}"
    _studies[study] += 1
    study += f" ({_studies[study]})" * (_studies[study] > 1)
    return Following(end, study) if isinstance(end, Reader) else Accord(end, study)


@contextmanager
def alone() -> Iterator[None]:
    """A study opened herein is nobody's rank: one carried into a process that a fit spawned."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


_ends: dict[ThisProcess, Writer | Reader] = {}
_studies: Counter[str] = Counter()


def _end_of(me: ThisProcess) -> Writer | Reader:
    if me not in _ends:
        _studies.clear()  # of the process that this one was forked from
        _ends.clear()
        _ends[me] = Reader(me) if me.place.rank else Writer(me)
    return _ends[me]


# what of a trial every rank knows


def label(id: int, attempt: int, **_: Any) -> str:
    """An attempt in words, as topics name it."""
    return f"trial {id}, attempt {attempt}"


def state(trial: Trial) -> dict[str, Any]:
    """A trial as it is handed out."""
    fixed = {name: getattr(trial, name) for name in ("id", "attempt", "resource", "tags")}
    return fixed | {"config": ev.plain(trial.config)} | changes(trial)


def changes(trial: Trial) -> dict[str, Any]:
    """What of a trial changes while it trains."""
    return {
        "epoch": trial.epoch,
        "until": trial.until,
        "checkpoint": trial.checkpoint,
        "verdict": None if trial.verdict is None else ev.verdict_to_json(trial.verdict),
        "ended": trial.ended,
    }


def change(trial: Trial, changes: dict[str, Any]) -> None:
    """The inverse of `changes`."""
    trial.epoch, trial.until, trial.checkpoint = (changes[name] for name in ("epoch", "until", "checkpoint"))
    trial.verdict = None if changes["verdict"] is None else ev.verdict_from_json(changes["verdict"])
    trial.ended = None if changes["ended"] is None else Status(changes["ended"])
