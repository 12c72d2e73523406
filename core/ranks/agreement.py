"""One answer on all ranks of a training: rank 0 does the work, the others hear what came of it.

    answer = leader.decide(topic, work, to_json)       on rank 0
    answer = follower.decide(topic, from_json)         on another

The leader writes down what `work` answered, or raised; a follower waits for that line and returns, or raises, the
same. Nothing is shared but JSON. What else changes by the work, and how far the log is read, travels with the line.
"""

from __future__ import annotations

import contextvars
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from .handover import Line, Reader, Writer, error_from_json, error_to_json
from .place import ThisProcess, this

T = TypeVar("T")
E = TypeVar("E", Writer, Reader)
_within = contextvars.ContextVar("within", default=False)  # a decision: those within it are one with it
_alone = contextvars.ContextVar("alone", default=False)


def same(value: Any) -> Any:
    """What JSON holds as it is."""
    return value


class Leader:
    """Rank 0's part, and that of a process by itself: does the work and writes what came of it.

    news: what the others hear besides, with every answer.
    """

    def __init__(self, writer: Writer | None, subject: str) -> None:
        self._writer, self._subject = writer, subject
        self.news: Callable[[], Line] = dict

    def decide(
        self,
        topic: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        changes: Callable[[], Line] | None = None,
    ) -> T:
        """What `work` returns, on every rank; what it raises is raised on every rank.

        changes: what else is another by it, told afterwards. What it and `to_json` return is JSON, or a function that
        converts what can not change: it is called only if somebody is there to hear.
        """
        if self._writer is None or not self._writer.writes or _within.get():
            return work()
        line: Line = {"study": self._subject, "topic": f"{self._subject}: {topic}"}
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
            if changes is not None:
                line["changes"] = changes()
            self._writer.write(line | self.news())


class Follower:
    """Another rank's part: waits for what rank 0 writes."""

    def __init__(self, reader: Reader, subject: str) -> None:
        self._reader, self._subject = reader, subject
        self.position = 0  # of the log, at the last answer heard

    def decide(
        self,
        topic: str,
        from_json: Callable[[Any], T] = same,
        change: Callable[[Line], None] | None = None,
        seconds: float | None = None,
    ) -> T:
        """What rank 0 came to; change: is told what else is another by it.

        Raises what rank 0 raised, and RankLost when it is gone, or silent for so many seconds.
        """
        line = self.heard(topic, seconds)
        if change is not None and "changes" in line:
            change(line["changes"])
        if "error" in line:
            raise error_from_json(*line["error"])
        return from_json(line["answer"])

    def heard(self, topic: str, seconds: float | None = None) -> Line:
        """The next line on a topic."""
        line = self._reader.wait(f"{self._subject}: {topic}", seconds)
        self.position = max(self.position, line.get("position", 0))
        return line

    @property
    def events(self) -> list[Line]:
        """What rank 0 told of a log in its memory, as far as it was read here; perhaps beyond `position`."""
        return self._reader.events.get(self._subject, [])

    def skip(self, topic: str, unneeded: Callable[[Line], bool]) -> None:
        """Leave out the next lines on a topic that were written before this process was started, if `unneeded`."""
        self._reader.skip(f"{self._subject}: {topic}", unneeded)

    def was_before(self, topic: str) -> bool:
        """True when rank 0 wrote on a topic before this process was started."""
        return self._reader.was_before(f"{self._subject}: {topic}")


def follows() -> bool:
    """True on the ranks above 0."""
    return not _alone.get() and this().place.rank > 0


def leader(name: str, where: object) -> Leader:
    """Rank 0's part for the next study of this name in this store."""
    if _alone.get():
        return Leader(None, "")
    return Leader(_end(Writer), _subject(name, where))


def follower(name: str, where: object) -> Follower:
    """Another rank's part for the next study of this name in this store."""
    return Follower(_end(Reader), _subject(name, where))


def _subject(name: str, where: object) -> str:
    study = f"{name} in {where}"
    _studies[study] += 1
    return study + f" ({_studies[study]})" * (_studies[study] > 1)


@contextmanager
def alone() -> Iterator[None]:
    """A study opened herein is nobody's rank: one carried into a process that a fit spawned."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


_ends: dict[ThisProcess, Any] = {}  # what this process writes, or reads
_studies: Counter[str] = Counter()


def _end(kind: Callable[[ThisProcess], E]) -> E:
    me = this()
    if me not in _ends:
        _studies.clear()  # of the process that this one was forked from
        _ends.clear()
        _ends[me] = kind(me)
    end: E = _ends[me]
    return end
