"""The part of this process in a study: rank 0 acts, and the other ranks follow. Only `joined` chooses.

A decision is the same call on every rank:

    part.decide(topic, act, follow)     rank 0 acts and sends the outcome; the others follow it at the same log position
    part.first(work)                    rank 0 works; the others do not wait and get None
"""

from __future__ import annotations

import contextvars
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .lines import Line, Log, Outcome, Reader, Writer, error_from_json, told
from .place import ThisProcess, this

T = TypeVar("T")
Said = Callable[[], Any]  # returns what rank 0 answered, or raises its exception
_within = contextvars.ContextVar("within", default=False)  # a decision: inner decisions are part of it
_alone = contextvars.ContextVar("alone", default=False)


@dataclass(frozen=True, slots=True)
class Settled(Generic[T]):
    """A decision that was carried out on this rank."""

    result: T
    position: int  # of the log
    answer: Any = None  # JSON, if the other ranks need more than the events up to there


class Part(ABC):
    """What a rank does for a study."""

    position = 0  # of the log at the last outcome of rank 0, on the others

    @abstractmethod
    def decide(
        self,
        topic: str,
        act: Callable[[], Settled[T]],
        follow: Callable[[Said], Settled[T]],
        last: str | None = None,
        leaves: float | None = None,
    ) -> T:
        """Act on rank 0 and follow on the others; return the result on each, or raise rank 0's exception on each.

        follow: called with a function that answers as rank 0 did, when its events can be read. last: a topic after
        which rank 0 decides no more about this one. leaves: seconds that a rank waits which ends by itself in any case;
        it does not raise rank 0's exception. Raises RankLost if rank 0 is gone or silent, LeaseLost after `last`.
        """

    @abstractmethod
    def first(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work` on rank 0; None on the others, which do not wait."""

    def sends(self, read: Callable[[int, int], list[Line]], seen: Callable[[], int]) -> None:  # noqa: B027 - rank 0
        """Send the events of a log. read: returns those between two positions, as JSON. seen: returns its position."""

    def skip(self, topic: str, unneeded: Callable[[Any], bool]) -> None:  # noqa: B027 - rank 0 skips nothing
        """Skip the next decisions about a topic made before this process was started, while the answer is unneeded."""

    def events(self) -> list[Line]:
        """Return the events that rank 0 has sent since the last call, as JSON; perhaps beyond `position`."""
        return []

    def was_before(self, topic: str) -> bool:
        """True if rank 0 decided about the topic before this process was started."""
        return False


class Leader(Part):
    """The part of rank 0 or of a single process: does the work and sends the outcomes."""

    def __init__(self, writer: Writer | None = None, subject: str = "") -> None:
        self._writer, self._log = writer, Log(subject)
        self._seen: Callable[[], int] = lambda: 0

    def sends(self, read: Callable[[int, int], list[Line]], seen: Callable[[], int]) -> None:
        self._log.read, self._seen = read, seen

    def decide(
        self,
        topic: str,
        act: Callable[[], Settled[T]],
        follow: Callable[[Said], Settled[T]],
        last: str | None = None,
        leaves: float | None = None,
    ) -> T:
        if self._writer is None or not self._writer.writes or _within.get():
            return act().result
        topic = f"{self._log.name}: {topic}"
        token = _within.set(True)
        try:
            settled = act()
            outcome = Outcome(self._log, topic, settled.position, settled.answer)
        except BaseException as error:  # Ctrl-C too: the others must not wait
            outcome = Outcome(self._log, topic, self._seen(), error=told(error))
            raise
        finally:
            _within.reset(token)
            self._writer.write(outcome)
        return settled.result

    def first(self, work: Callable[[], T]) -> T | None:
        return work()


class Follower(Part):
    """The part of another rank: waits for rank 0's outcomes."""

    def __init__(self, reader: Reader, subject: str) -> None:
        self._reader, self._subject = reader, subject

    def decide(
        self,
        topic: str,
        act: Callable[[], Settled[T]],
        follow: Callable[[Said], Settled[T]],
        last: str | None = None,
        leaves: float | None = None,
    ) -> T:
        line = self._reader.wait(f"{self._subject}: {topic}", leaves, last and f"{self._subject}: {last}")
        self.position = max(self.position, line["position"])

        def said() -> Any:
            if "error" in line and leaves is None:
                raise error_from_json(*line["error"])
            return line.get("answer")

        return follow(said).result

    def first(self, work: Callable[[], T]) -> T | None:
        return None

    def events(self) -> list[Line]:
        return self._reader.events.pop(self._subject, [])

    def skip(self, topic: str, unneeded: Callable[[Any], bool]) -> None:
        self._reader.skip(f"{self._subject}: {topic}", lambda line: unneeded(line.get("answer")))

    def was_before(self, topic: str) -> bool:
        return self._reader.was_before(f"{self._subject}: {topic}")


def follows() -> bool:
    """True on the ranks above 0."""
    return not _alone.get() and this().place.rank > 0


def joined(name: str, where: object) -> Part:
    """Return this process's part in the next study of this name in this store."""
    if _alone.get():
        return Leader()
    me, subject = this(), f"{name} in {where}"
    if me not in _ends:
        _studies.clear()  # of the process that this one was forked from
        _ends.clear()
        _ends[me] = Reader(me) if me.place.rank > 0 else Writer(me)
    _studies[subject] += 1
    subject += f" ({_studies[subject]})" * (_studies[subject] > 1)
    end = _ends[me]
    return Leader(end, subject) if isinstance(end, Writer) else Follower(end, subject)


@contextmanager
def alone() -> Iterator[None]:
    """Treat studies opened in the block as those of a single process, such as one that a fit spawned."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


_ends: dict[ThisProcess, Writer | Reader] = {}  # of this process
_studies: Counter[str] = Counter()
