"""Rank 0's outcomes, as lines of JSON in a folder: one rank writes, the others read."""

from __future__ import annotations

import builtins
import errno
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from haltune import errors
from haltune._utils.process import remove, surely_gone
from haltune.display import one_line, plural
from haltune.errors import HaltuneError, InvalidInput, LeaseLost, RankLost

from .place import FOLDER, ThisProcess, fits, shared
from .programs import before_programs
from .rendezvous import (
    LEFT,
    LINES,
    Rendezvous,
    arrive,
    arrived,
    beat,
    begin,
    leave,
    make_own_or_shared,
    nobody_reads,
    reading,
    tidy,
    usable,
)

Line = dict[str, Any]
TIMEOUT = "HALTUNE_RANK_TIMEOUT"  # seconds without a line from rank 0
_POLLS = (0.0005, 0.05)  # seconds between looks: from, to
_LARGEST = 64 << 20  # bytes written while no rank is known to read
_MOST = 100_000  # outcomes kept in memory


@dataclass(eq=False)
class SentLog:
    """A study's log, as far as rank 0 has sent it to the others."""

    name: str = ""  # the same on all ranks
    read: Callable[[int, int], list[Line]] = lambda start, stop: []  # returns its events between positions, as JSON
    position: int = 0  # at the last outcome
    sent: int = 0  # events


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one decision of rank 0: what its events do not contain."""

    log: SentLog
    topic: str
    position: int  # of the log
    answer: Any = None  # JSON
    error: tuple[str, str, int | None] | None = None  # type, text, and the errno of an OSError


class Writer:
    """Writes rank 0's outcomes. Raises OSError only if other ranks are known to wait for them.

    A single process keeps light outcomes until a fit starts a program that is a rank. The events are read only then.
    """

    def __init__(self, me: ThisProcess) -> None:
        self._me = me
        self._file: int | None = None
        self._size = 0  # bytes
        self._beats: threading.Event | None = None
        self._lock = threading.RLock()
        self._kept: list[Outcome] | None = []  # until it starts to write
        self._gave_up: str | None = None  # why
        _timeout()  # an invalid value must be refused on all ranks, not only on those that wait
        if self._is_needed() or shared():
            self._begin()
        else:
            tidy(me.place.folder)
            before_programs(self._begin, fits)

    def _begin(self) -> None:
        if self._me.forked:
            return
        with self._lock:
            kept, self._kept = self._kept, None
            if kept is None:  # it has started
                return
            try:
                with usable(self._me.place.folder):
                    self._folder, self._file = begin(self._me.place.folder)
            except InvalidInput:
                if self._is_needed():
                    raise
                return
            # not atexit, which processes of multiprocessing do not call
            Finalize(None, self._leave, exitpriority=1)
            self._append({"topic": "here", "holder": self._me.holder})
            if shared() and (self._me.place.world or 1) > 1:
                self._beats = beat(self._folder / LINES)
            if self._gave_up is not None:
                self._give_up()
            for outcome in kept:
                with suppress(HaltuneError):  # the other ranks raise it
                    self._send(outcome)

    @property
    def writes(self) -> bool:
        """False once it has given up, and in a forked process, whose outcomes are its own."""
        return (self._file is not None or self._kept is not None) and not self._me.forked

    def write(self, outcome: Outcome) -> None:
        """Write an outcome, or keep it. Raises HaltuneError if its events cannot be read, as the other ranks do."""
        with self._lock:
            outcome.log.position = max(outcome.log.position, outcome.position)
            if self._kept is None:
                self._send(outcome)
            elif self._gave_up is None:
                self._kept.append(outcome)
                if len(self._kept) > _MOST:
                    self._gave_up, self._kept = f"decided {_MOST:,} times before another rank came, and gave up", []

    def _send(self, outcome: Outcome) -> None:
        """Write an outcome, and all events that were not sent yet."""
        log, broken = outcome.log, None
        line: Line = {"study": log.name, "topic": f"{log.name}: {outcome.topic}", "position": outcome.position}
        if log.sent < log.position and self._file is not None:
            try:
                line["events"] = log.read(log.sent, log.position)
                log.sent = log.position
            except HaltuneError as found:
                broken, line["position"] = found, log.sent
        error = outcome.error or (broken and error_to_json(broken))
        self._append(line | ({"error": error} if error else {"answer": outcome.answer}))
        if broken is not None and outcome.error is None:
            raise broken

    def _append(self, line: Line) -> None:
        if self._file is None or self._me.forked:
            return
        if self._size > _LARGEST and not self._is_needed():
            self._gave_up = f"wrote {_LARGEST >> 20} MB before another rank came, and gave up"
            self._give_up()
            return
        text = (json.dumps(line | {"at": time.time()}) + "\n").encode()
        try:
            if os.write(self._file, text) != len(text):
                raise OSError(errno.ENOSPC, "a line for the other ranks was cut short")
        except OSError:  # a full disk
            if not self._is_needed():
                self._close()
                return
            with suppress(OSError):
                os.ftruncate(self._file, 0)  # which needs no room: the others notice it, and do not wait
            self._close()
            raise
        self._size += len(text)

    def _give_up(self) -> None:
        """Free the space; a rank that comes later gets the reason."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            self._size = 0
            self._append({"topic": LEFT, "why": self._gave_up, "holder": self._me.holder})
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._beats is not None:
            self._beats.set()

    def meets(self, where: str, others: int, seconds: float, known: bool) -> bool:
        """Return whether so many other ranks have reached a place, within these seconds or HALTUNE_RANK_TIMEOUT.

        known: see `Part.meets`.
        """
        until = time.monotonic() + min(seconds, _timeout())
        while self._file is not None and not self._me.forked and arrived(self._folder, where) < others:
            if known and reading(self._folder) < others:
                return True
            if time.monotonic() > until:
                return False
            time.sleep(_POLLS[1])
        return True

    def _is_needed(self) -> bool:
        return (self._me.place.world or 1) > 1 or "LOCAL_RANK" in os.environ

    def _leave(self) -> None:
        """Write the last line. The folder stays for ranks that still read or can still start."""
        if self._me.forked:
            return
        self._append({"topic": LEFT})
        self._close()
        if nobody_reads(self._folder, self._me):
            remove(self._folder)


class Reader:
    """Reads rank 0's lines, on another rank."""

    def __init__(self, me: ThisProcess) -> None:
        self._place, self._me, self._rendezvous = me.place, me, Rendezvous(me)
        self._patience = _timeout()  # seconds
        with usable(me.place.folder):
            make_own_or_shared(me.place.folder.parent)  # rank 0 may have failed to make it, without an error
        self.events: dict[str, list[Line]] = {}  # of each study, those that were read and not taken yet
        self._topics: dict[str, deque[Line]] = {}
        self._before: set[str] = set()  # topics of the lines written before this process was started
        self._file: int | None = None
        self._folder: Path | None = None
        self._read_to = 0  # bytes; a process forked from this one shares the file's own position
        self._rest = b""
        self._leader = self._place.launcher

    def wait(self, topic: str, seconds: float | None = None, last: str | None = None) -> Line:
        """Return the next line of a topic.

        seconds: longest wait without any line; None: HALTUNE_RANK_TIMEOUT. last: a topic after which rank 0 writes no
        more lines of `topic`. Raises RankLost if rank 0 has left or the wait is too long; LeaseLost after a line of
        `last`.
        """
        patience = self._patience if seconds is None else seconds
        began = checked = time.monotonic()
        pause = _POLLS[0]
        while not (found := self._topics.get(topic)):
            if last is not None and self._topics.get(last):
                raise LeaseLost(f"Rank 0 has ended this trial, but rank {self._place.rank} waits for {topic!r}.")
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
        line = found.popleft()
        if not found:  # each report has a topic of its own
            del self._topics[topic]
        return line

    def arrives(self, where: str) -> None:
        """State that this rank has reached a place in its program; see `Writer.meets`."""
        if self._folder is not None:
            arrive(self._folder, self._me, where)

    def skip(self, topic: str, unneeded: Callable[[Line], bool]) -> None:
        """Drop the next lines of a topic that were written before this process was started, while `unneeded`."""
        self._read()
        found = self._topics.get(topic, deque())
        while found and found[0]["at"] < self._place.began and unneeded(found[0]):
            found.popleft()

    def was_before(self, topic: str) -> bool:
        """True if rank 0 wrote a line of the topic before this process was started."""
        return topic in self._before

    def _read(self) -> bool:
        """Read new lines; return whether there were any."""
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
                    f"Rank {self._place.rank} cannot read the outcomes of rank 0 in {self._place.folder} "
                    f"({one_line(error)}). Perhaps another program writes there. Give each training its own folder."
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
        self._topics.setdefault(topic, deque()).append(line)

    def _open(self) -> bool:
        with usable(self._place.folder):
            found = self._rendezvous.enter()
        if found is None:
            return False
        self._folder, self._file = found
        Finalize(None, leave, (self._folder, self._me), exitpriority=1)
        return True

    def _need_rank_0(self, topic: str) -> None:
        if self._topics.get(LEFT):
            raise RankLost(self._says(topic, self._topics[LEFT][0].get("why", "has left")))
        gone = bool(self._leader) and surely_gone(self._leader)
        if gone and not self._read() and not self._topics.get(topic):  # its last lines count
            raise RankLost(self._says(topic, "is gone"))
        if self._file is not None and os.fstat(self._file).st_size < self._read_to:
            raise RankLost(
                f"Rank {self._place.rank} waits for rank 0, which could not write {topic!r} to {self._place.folder}. "
                f"Perhaps the disk is full: make room there, or set {FOLDER} to a folder on another disk."
            )

    def _says(self, topic: str, what: str) -> str:
        text = f"Rank {self._place.rank} waits for rank 0, which {what}, to write {topic!r} ({self._place.folder}). "
        if self._file is None:
            others = plural(self._rendezvous.others, "folder")
            text += (
                f"It never found rank 0's folder, only {others} of other starts. If ranks start one by one, or each "
                f"through another program, set {FOLDER} to one folder for all of them. "
            )
        return text + (
            "Check that all ranks run the same script with the same study. To wait longer, set "
            f"{TIMEOUT} to more seconds."
        )


def error_to_json(error: BaseException) -> tuple[str, str, int | None]:
    """Return the type, the text and, of an OSError, the errno of an exception, for other ranks."""
    return type(error).__name__, str(error), error.errno if isinstance(error, OSError) else None


def error_from_json(name: str, text: str, errno: int | None = None) -> Exception:
    """Return an exception of the same type, if it is haltune's or Python's; otherwise a HaltuneError with its name."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # some need more than a text
            found = kind(text)
            if isinstance(found, OSError):
                found.errno = errno
            return found
    return HaltuneError(f"{name}: {text}")


def _timeout() -> float:
    text = os.environ.get(TIMEOUT) or "1800"
    with suppress(ValueError):
        if 0.0 < (seconds := float(text)) < math.inf:
            return seconds
    raise InvalidInput(f"{TIMEOUT}={text!r} is not a time. Set it to seconds above 0, such as 1800, or unset it.")
