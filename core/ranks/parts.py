"""The part of this process in a study: rank 0 acts, and the other ranks follow. Only `joined` chooses.

Every rank runs the same code:

    with part.decision(topic) as decision:      rank 0 works, and sends the outcome; the others wait for it and follow
        answer = work() if decision.said is None else decision.said()
    part.first(work)                            rank 0 works; the others do not wait and get None
"""

from __future__ import annotations

import contextvars
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self, TypeVar

from .group import torch_ranks
from .lines import Line, Outcome, Reader, SentLog, Writer, error_from_json, error_to_json
from .place import ThisProcess, this

T = TypeVar("T")
Said = Callable[[], Any]  # returns what rank 0 answered, or raises its exception
_last = contextvars.ContextVar[Any]("last", default=None)  # the last decision that is sent, a Sent
_alone = contextvars.ContextVar("alone", default=False)


class Decision:
    """A block that rank 0 works in, while the others follow: `with part.decision(topic) as decision`.

    said: on the other ranks, returns what rank 0 answered or raises its exception. answer: set by rank 0; JSON.
    """

    said: Said | None = None
    answer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Send the outcome, if there are ranks to send it to."""


class Sent(Decision):
    """A decision of rank 0. Its outcome goes to the other ranks, also Ctrl-C, because they must not wait."""

    _block: FrameType | None = None  # the call that has the block; None: it has not entered, or left it

    def __init__(self, part: Part, topic: str, writer: Writer) -> None:
        self._part, self._topic, self._writer = part, topic, writer

    def __enter__(self) -> Self:
        _last.set(self)
        self._block = sys._getframe(1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._block = None
        failed = None if error is None else error_to_json(error)
        answer = self.answer if error is None else None
        self._writer.write(Outcome(self._part, self._topic, self._part.position, answer, failed))


def _within() -> bool:
    """Return whether this is called within the block of a decision that is sent: inner decisions are part of it.

    Ctrl-C may end a block in the first step of its `__exit__`, so it is over once its call has ended.
    """
    block: FrameType | None = getattr(_last.get(), "_block", None)
    frame: FrameType | None = sys._getframe()
    while block is not None and frame is not None and frame is not block:
        frame = frame.f_back
    return block is not None and frame is not None


class Part(SentLog):
    """The part of rank 0, or of a single process, for a study's log: does the work and sends the outcomes."""

    def __init__(self, name: str = "", writer: Writer | None = None) -> None:
        super().__init__(name)
        self._writer = writer

    def decision(self, topic: str | None, last: str | None = None, leaves: float | None = None) -> Decision | None:
        """Return the next decision about a topic; for the topic None a decision of rank 0 alone, None on the others.

        last: a topic after which rank 0 decides no more about this one. leaves: seconds that a rank waits which ends by
        itself in any case; it does not raise rank 0's exception. Raises RankLost if rank 0 is gone or silent, LeaseLost
        after `last`.
        """
        if topic is None or self._writer is None or _within() or not self._writer.writes:
            return Decision()
        return Sent(self, topic, self._writer)

    def first(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work` on rank 0; None on the others, which do not wait."""
        return work()

    def events(self) -> list[Line]:
        """Return the events that came from rank 0 since the last call, as JSON; perhaps beyond `position`."""
        return []

    def skip(self, topic: str, unneeded: Callable[[Any], bool]) -> None:
        """Skip the next decisions about a topic made before this process was started, while the answer is unneeded."""

    def arrives(self, where: str) -> None:
        """State, on another rank, that it has reached a place in its program; see `meets`."""

    def meets(self, where: str, others: int, seconds: float, known: bool = False) -> bool:
        """Return on rank 0 whether so many others reach a place within a time; True on the others.

        known: True on rank 0, too, while fewer others follow: they have left, or haltune does not know them.
        """
        return self._writer is None or self._writer.meets(f"{self.name}: {where}", others, seconds, known)

    def was_before(self, topic: str) -> bool:
        """True if rank 0 decided about the topic before this process was started."""
        return False


class Follower(Part):
    """The part of another rank: waits for rank 0's outcomes."""

    def __init__(self, name: str, reader: Reader) -> None:
        super().__init__(name)
        self._reader = reader

    def decision(self, topic: str | None, last: str | None = None, leaves: float | None = None) -> Decision | None:
        if topic is None:
            return None
        line = self._reader.wait(f"{self.name}: {topic}", leaves, last and f"{self.name}: {last}")
        self.position = max(self.position, line["position"])

        def said() -> Any:
            if "error" in line and leaves is None:
                raise error_from_json(*line["error"])
            return line.get("answer")

        decision = Decision()
        decision.said = said
        return decision

    def first(self, work: Callable[[], T]) -> T | None:
        return None

    def events(self) -> list[Line]:
        return self._reader.events.pop(self.name, [])

    def arrives(self, where: str) -> None:
        self._reader.arrives(f"{self.name}: {where}")

    def skip(self, topic: str, unneeded: Callable[[Any], bool]) -> None:
        self._reader.skip(f"{self.name}: {topic}", lambda line: unneeded(line.get("answer")))

    def was_before(self, topic: str) -> bool:
        return self._reader.was_before(f"{self.name}: {topic}")


def follows() -> bool:
    """True on the ranks above 0."""
    return not _alone.get() and this().place.rank > 0


def lone() -> bool:
    """True if no other rank trains with this process, neither one that haltune knows nor one that a fit connects."""
    return this().alone and torch_ranks().alone


def joined(name: str, where: object) -> Part:
    """Return this process's part in the next study of this name in this store."""
    if _alone.get():
        return Part()
    me, subject = this(), f"{name} in {where}"
    if me not in _ends:
        _studies.clear()  # of the process that this one was forked from
        _ends.clear()
        _ends[me] = Reader(me) if me.place.rank > 0 else Writer(me)
    _studies[subject] += 1
    name = subject + f" ({_studies[subject]})" * (_studies[subject] > 1)
    return Part(name, end) if isinstance(end := _ends[me], Writer) else Follower(name, end)


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
