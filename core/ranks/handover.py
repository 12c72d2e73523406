"""What rank 0 did, written down for the other ranks: one line of JSON for each answer.

The first line says who rank 0 is, the last that it has left. A process by itself keeps what it would write, in
memory and unconverted, until it starts another program: that may be a fit's other ranks, which run the script again
from its beginning. From then on it writes. A follower takes the lines of each topic
in their order, so it may pass some over ("if rank == 0: trial.report(...)") and hears what rank 0 heard all the
same. Where they meet is told in `meeting`; whoever leaves last removes the folder.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any

from haltune import errors
from haltune._utils.process import surely_gone
from haltune._utils.scratch import remove
from haltune.display import one_line, plural
from haltune.errors import HaltuneError, InvalidInput, RankLost

from .meeting import (
    LEFT,
    LINES,
    Entrance,
    beat,
    begin,
    leave,
    make_own_or_shared,
    nobody_reads,
    tidy,
    usable,
)
from .place import FOLDER, ThisProcess, shared
from .programs import before_programs

Line = dict[str, Any]
TIMEOUT = "HALTUNE_RANK_TIMEOUT"  # seconds without a line from rank 0
_POLLS = (0.0005, 0.05)  # seconds between looks: from, to
_LARGEST = 64 << 20  # bytes written while nobody is known to read
_LINES_KEPT = 10_000  # lines kept in memory


class Writer:
    """Rank 0's end. Raises OSError only when other ranks are known to wait for what it writes."""

    def __init__(self, me: ThisProcess) -> None:
        self._me = me
        self._file: int | None = None
        self._size = 0  # bytes
        self._beats: threading.Event | None = None
        self._lock = threading.RLock()
        self._kept: list[Line] | None = []  # until it begins to write
        _timeout()  # one that is none is refused on all ranks, not on those that wait
        if self._is_needed() or shared():
            self._begin()
        else:
            tidy(me.place.folder)
            before_programs(self._begin)

    def _begin(self) -> None:
        if self._me.forked:
            return
        with self._lock:
            kept, self._kept = self._kept, None
            if kept is not None:
                self._meet()
            for line in kept or ():
                self.write(line)

    def _meet(self) -> None:
        try:
            with usable(self._me.place.folder):
                self._folder, self._file = begin(self._me.place.folder)
        except InvalidInput:
            if self._is_needed():
                raise
        else:
            # not atexit, which processes of multiprocessing do not heed
            Finalize(None, self._leave, exitpriority=1)
            self.write({"topic": "here", "holder": self._me.holder})
            if shared() and (self._me.place.world or 1) > 1:
                self._beats = beat(self._folder / LINES)

    @property
    def writes(self) -> bool:
        """False once it has given up, and in a forked process: what that hears is its own."""
        return (self._file is not None or self._kept is not None) and not self._me.forked

    def write(self, line: Line) -> None:
        """Append one line. What in it is a function is called when it is written, and converts what it holds."""
        if self._me.forked:
            return
        with self._lock:
            if self._kept is None:
                self._append(line)
                return
            self._kept.append(line)
            if len(self._kept) > _LINES_KEPT:
                self._begin()

    def _append(self, line: Line) -> None:
        if self._file is None:
            return
        if self._size > _LARGEST and not self._is_needed():
            os.ftruncate(self._file, 0)  # nobody came, and space is dear
            why = f"wrote {_LARGEST >> 20} MB before it had company, and gave up"
            line = {"topic": LEFT, "why": why, "holder": self._me.holder}
        text = (json.dumps(line | {"at": time.time()}, default=_converted) + "\n").encode()
        try:
            if os.write(self._file, text) != len(text):
                raise OSError("a line for the other ranks was cut short")
        except OSError:  # a full disk
            self._close()
            if self._is_needed():
                raise
            return
        self._size += len(text)
        if "why" in line:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._beats is not None:
            self._beats.set()

    def _is_needed(self) -> bool:
        return (self._me.place.world or 1) > 1 or "LOCAL_RANK" in os.environ

    def _leave(self) -> None:
        """The folder stays for those who still read, or are still to come."""
        if self._me.forked:
            return
        self.write({"topic": LEFT})
        self._close()
        if nobody_reads(self._folder, self._me):
            remove(self._folder)


class Reader:
    """The end of another rank."""

    def __init__(self, me: ThisProcess) -> None:
        self._place, self._me, self._entrance = me.place, me, Entrance(me)
        self._patience = _timeout()  # seconds
        with usable(me.place.folder):
            make_own_or_shared(me.place.folder.parent)  # rank 0 may have failed to, without a word
        self.events: dict[str, list[Line]] = {}  # of each study in rank 0's memory, as far as read
        self._topics: dict[str, deque[Line]] = {}
        self._before: set[str] = set()  # topics of the lines written before this process was started
        self._file: int | None = None
        self._read_to = 0  # bytes; a process forked from this one shares the file's own position
        self._rest = b""
        self._leader = self._place.launcher

    def wait(self, topic: str, seconds: float | None = None) -> Line:
        """The next line of a topic.

        Raises RankLost when rank 0 has left, or has written nothing for so many seconds.
        """
        patience = self._patience if seconds is None else seconds
        began = checked = time.monotonic()
        pause = _POLLS[0]
        while not (found := self._topics.get(topic)):
            if self._read():
                began, pause = time.monotonic(), _POLLS[0]
                continue
            now = time.monotonic()
            if now - began > patience:
                raise RankLost(self._says(topic, f"has written nothing for {patience:g} s"))
            if now - checked > 0.5:
                checked = now
                self._need_rank_0(topic)
            time.sleep(pause)
            pause = min(2 * pause, _POLLS[1])
        return found.popleft()

    def skip(self, topic: str, unneeded: Callable[[Line], bool]) -> None:
        """Drop the next lines of a topic that were written before this process was started, while `unneeded`."""
        self._read()
        found = self._topics.get(topic, deque())
        while found and "before" in found[0] and unneeded(found[0]):
            found.popleft()

    def was_before(self, topic: str) -> bool:
        """True when rank 0 wrote on a topic before this process was started."""
        return topic in self._before

    def _read(self) -> bool:
        """Take in what is there; False when that is nothing."""
        if self._file is None and not self._open():
            return False
        assert self._file is not None
        size = len(self._rest)
        while piece := os.pread(self._file, 1 << 20, self._read_to):
            self._rest += piece
            self._read_to += len(piece)
        *whole, self._rest = self._rest.split(b"\n") if len(self._rest) > size else [self._rest]
        for text in whole:
            try:
                self._take(json.loads(text))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise RankLost(
                    f"rank {self._place.rank} cannot read what is written for it in {self._place.folder}, "
                    f"{one_line(error)}: does something else than rank 0 write there? Give each training a folder of "
                    "its own"
                ) from error
        return bool(whole)

    def _take(self, line: Line) -> None:
        topic = line["topic"]
        if topic == "here":
            self._leader = line["holder"]
        if "events" in line:
            self.events.setdefault(line["study"], []).extend(line.pop("events"))
        if line["at"] < self._place.began:
            self._before.add(topic)
            line["before"] = True
        self._topics.setdefault(topic, deque()).append(line)

    def _open(self) -> bool:
        with usable(self._place.folder):
            found = self._entrance.enter()
        if found is None:
            return False
        folder, self._file = found
        Finalize(None, leave, (folder, self._me), exitpriority=1)
        return True

    def _need_rank_0(self, topic: str) -> None:
        if self._topics.get(LEFT):
            raise RankLost(self._says(topic, self._topics[LEFT][0].get("why", "has left")))
        gone = bool(self._leader) and surely_gone(self._leader)
        if gone and not self._read() and not self._topics.get(topic):  # what it wrote last counts
            raise RankLost(self._says(topic, "is gone"))

    def _says(self, topic: str, what: str) -> str:
        text = f"rank {self._place.rank} waits for rank 0, which {what}, to write {topic!r} ({self._place.folder}). "
        if self._file is None:
            others = plural(self._entrance.others, "folder is", "folders are")
            text += (
                f"It was never met, and {others} there of other starts: ranks that start "
                f"one by one, or each through another program, meet when {FOLDER} names one folder for them all. "
            )
        return text + (
            f"Do all ranks run the same script, with the same study? {TIMEOUT}=seconds sets the patience"
        )


def _converted(held: Callable[[], Any]) -> Any:
    return held()


def error_to_json(error: BaseException) -> list[str]:
    """An exception's type and words."""
    return [type(error).__name__, str(error)]


def error_from_json(name: str, text: str) -> Exception:
    """The same type where it is haltune's or Python's own, else a HaltuneError that names it."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # some take more than words
            return kind(text)
    return HaltuneError(f"{name}: {text}")


def _timeout() -> float:
    """How long another rank waits without a word from rank 0, seconds."""
    text = os.environ.get(TIMEOUT) or "1800"
    with suppress(ValueError):
        if 0.0 < (seconds := float(text)) < math.inf:
            return seconds
    raise InvalidInput(f"{TIMEOUT}={text!r}: seconds, more than 0 and finite, such as 1800; or leave it out")
