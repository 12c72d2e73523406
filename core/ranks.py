"""One answer on all ranks of a distributed training. Knows no trial.

    answer = rank.decide(topic, work, to_json, from_json)       on every rank

Rank 0 does the work, and writes what `work` returned or raised as a line of JSON. The other ranks read the line of
their topic, and return or raise the same. How far the log is read travels with the line.

Why lines in a folder, and neither the study's log nor a broadcast of the framework:
- Lightning's "ddp" starts the other ranks within a fit of rank 0. They run the script again from its beginning, and
  need each answer that rank 0 got before they existed. torchrun's ranks ask for a trial without a process group.
- The log has no Wait, no path of a saved state, no exception of a store, no answer to `enqueue`.
- A rank on another machine may not reach the store.

Which rank a process is (`place`) is known from the environment alone:
- Lightning's ranks have LOCAL_RANK above 0 and no RANK. They are known by `HALTUNE_RUN`: rank 0 set it when it
  imported haltune. Once a fit is over WORLD_SIZE is gone and LOCAL_RANK stays.
- torchrun starts all ranks at once, perhaps each through a wrapper. What they share is the id of their job, or a
  port and their parent process.
- A process that one of the ranks starts for something else inherits all of these variables and is no rank.
- SLURM_PROCID numbers tasks, which may be workers of their own. It is a rank only if HALTUNE_RUN_FOLDER says that the
  tasks train one model.

Where the ranks meet:
    BASE/run-JOB.TIME/lines       what rank 0 writes; the first line says who it is, the last that it has left
    BASE/run-JOB.TIME/here-1-...  rank 1 reads; it becomes left-1-... when rank 1 leaves; the last removes the folder
What the ranks of one start share may come again: a job is started anew, or runs one program after another. So rank 0
always makes a new folder, and a rank takes the oldest that is not surely of another start: one that had such a rank,
or whose rank 0 was gone before this rank began. Whether a rank 0 on another machine lives only a sign of life tells.

A process by itself keeps its lines in memory, unconverted, until it starts another program: that may be a fit's ranks.
"""

from __future__ import annotations

import builtins
import contextvars
import hashlib
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Protocol, TypeVar

from haltune import errors
from haltune._utils.forks import fork_handlers
from haltune._utils.process import (
    base,
    checkable,
    is_own,
    make_own,
    new_holder,
    remove,
    started,
    surely_gone,
    sweep,
)  # fmt: skip
from haltune.display import one_line, plural
from haltune.errors import HaltuneError, InvalidInput, LeaseLost, NotSupported, RankLost

MARK, FOLDER = "HALTUNE_RUN", "HALTUNE_RUN_FOLDER"


def shared() -> str | None:
    """The folder where all ranks were told to meet; None for none, or for one without a name."""
    folder = os.environ.get(FOLDER)
    return os.path.expanduser(folder) if folder else None


@dataclass(frozen=True)
class Mark:
    """What a process leaves in the environment for those that it starts."""

    run: str  # names the folder of the hand-over
    holder: str  # its identity, see _utils.process
    launches: bool  # it is no local rank, so that a fit may start others
    job: str  # what started it as one of several ranks; empty for a process by itself

    def __str__(self) -> str:
        return json.dumps([self.run, self.holder, self.launches, self.job])

    @classmethod
    def of(cls, text: str | None) -> Mark | None:
        """The inverse of `str`; None for what is not a mark."""
        try:
            run, holder, launches, job = json.loads(text or "")
            return cls(str(run), str(holder), bool(launches), str(job))
        except (TypeError, ValueError, RecursionError):
            return None


@dataclass(frozen=True)
class Place:
    """One process of a training."""

    rank: int  # 0: decides
    world: int | None  # ranks in all; None where nobody said
    run: str  # names the folder of the hand-over
    launcher: str = ""  # the identity of the process whose fit started it
    nodes: bool = False  # several machines
    began: float = 0.0  # seconds since the epoch: when the process was started; of followers

    @property
    def folder(self) -> Path:
        """How the folders begin where rank 0 writes and the others read; see `meeting`.

        Raises NotSupported for nodes that share no folder.
        """
        if not shared() and self.nodes:
            raise NotSupported(
                f"this training runs on several nodes, and they must hear what rank 0 decides: set {FOLDER} to a "
                "folder that all of them can see, a fresh one for each job"
            )
        return base(shared()) / f"run-{self.run}"


def place(environment: Mapping[str, str], mark: Mark | None, own: str) -> Place:
    """The place of a process of identity `own` that inherited `mark`."""
    rank, world, job = _rank(environment), _count(environment, "WORLD_SIZE"), _job(environment)
    local = "RANK" not in environment and mark is not None
    if local and mark and mark.launches and _count(environment, "LOCAL_RANK"):  # started by a fit
        return Place(rank, world, mark.run, mark.holder, began=_began())
    inherited = mark is not None and (mark.job == job or (local and rank == 0))
    if not job or inherited:
        return Place(0, None, _digest(own))  # by itself
    nodes = _has_nodes(environment)
    # other nodes have other parents, and so has each rank that is started through a shell or a container's entry
    parent = "" if nodes or _is_named(environment) else f"{os.getppid()}/{started(os.getppid())}"
    return Place(rank, world, _digest(f"{job} {parent}"), nodes=nodes, began=_began())


def _began() -> float:
    """When this process was started, seconds since the epoch; now, where the system does not tell."""
    ticks, now = started(os.getpid()), time.time()
    if not ticks or not hasattr(time, "CLOCK_BOOTTIME"):
        return now
    start = (int(ticks) + 1) / os.sysconf("SC_CLK_TCK")  # the ticks that were over by then, and that one
    return now - max(time.clock_gettime(time.CLOCK_BOOTTIME) - start, 0.0)


def _rank(environment: Mapping[str, str]) -> int:
    """The rank among all; where only the local one is known, above 0 unless it is 0 on the first node."""
    for name in ("RANK", "SLURM_PROCID") if environment.get(FOLDER) else ("RANK",):
        if (rank := _count(environment, name)) is not None:
            return rank
    local, node = _count(environment, "LOCAL_RANK") or 0, _count(environment, "NODE_RANK") or 0
    return local + node * (_count(environment, "LOCAL_WORLD_SIZE") or 1)


def _job(environment: Mapping[str, str]) -> str:
    """What all ranks of one start have in common and no other start has; empty when there is one rank."""
    slurm = environment.get(FOLDER) and (_count(environment, "SLURM_NTASKS") or 1) > 1
    ranked = "RANK" in environment or "LOCAL_RANK" in environment or "NODE_RANK" in environment
    if not slurm and not (ranked and (_count(environment, "WORLD_SIZE") or 1) > 1):
        return ""
    names = (
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "MASTER_ADDR",
        "MASTER_PORT",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_RESTART_COUNT",
    )
    return " ".join([environment.get(name, "-") for name in names])


def _is_named(environment: Mapping[str, str]) -> bool:
    """True when what started the ranks gave them a name: a folder for this job, or an id."""
    torchrun = environment.get("TORCHELASTIC_RUN_ID", "none")  # what torchrun says when nobody chose one
    named = environment.get(FOLDER), "SLURM_JOB_ID" in environment, torchrun not in ("", "none")
    return any(named)


def _has_nodes(environment: Mapping[str, str]) -> bool:
    here, world = _count(environment, "LOCAL_WORLD_SIZE"), _count(environment, "WORLD_SIZE")
    if here is not None and world is not None:
        return here < world
    by_node = "NODE_RANK" in environment and "LOCAL_RANK" not in environment  # a fit starts the local ranks
    slurm = environment.get(FOLDER) and (_count(environment, "SLURM_NNODES") or 1) > 1
    return by_node or slurm or bool(_count(environment, "NODE_RANK"))


def _count(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class ThisProcess:
    """This process: what it inherited, and its place, which is found out once."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._environment, self._pid = environment, os.getpid()
        self._inherited, self.holder = Mark.of(environment.get(MARK)), new_holder()
        self._found: Place | None = None
        self._settle()  # at the import: a fit may start the other ranks before there is a study

    @property
    def place(self) -> Place:
        """Its place, for good from when it is first asked for: a launcher may set RANK after the import."""
        if self._found is None:
            if "RANK" in self._environment:
                self._settle()
            self._found = self._place
        return self._found

    @property
    def forked(self) -> bool:
        """True in a fork of the process that this speaks of."""
        return os.getpid() != self._pid

    def _settle(self) -> None:
        self._place = place(self._environment, self._inherited, self.holder)
        alone = self._place.rank == 0 and self._place.world is None
        launches = "RANK" not in self._environment and (alone or "LOCAL_RANK" not in self._environment)
        job = "" if alone else _job(self._environment)
        self._environment[MARK] = str(Mark(self._place.run, self.holder, launches, job))


_this = ThisProcess()


def this() -> ThisProcess:
    """This process; a forked one is another."""
    global _this
    if _this.forked:
        _this = ThisProcess()
    return _this


_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.system", "os.exec"}  # Python's audit events


class _Before:
    """What waits to be done. A program of another thread waits until it is."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self._hooked = False
        self.after_fork()
        fork_handlers.add(self)

    def after_fork(self) -> None:
        """See forks.ForkHandler: the thread that was just at it is not here."""
        self._lock = threading.RLock()  # a program that the work itself starts waits for nothing

    def hook(self) -> None:
        """Heed the programs of this process; a hook stays for good."""
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(self._heed)

    def _heed(self, event: str, _: object) -> None:
        if event not in _STARTS:
            return
        with self._lock:
            while self.waiting:
                with suppress(Exception):  # an error here would forbid the program
                    self.waiting.popleft()()


_before = _Before()


def before_programs(work: Callable[[], None]) -> None:
    """Call `work` once, just before this process starts a program, if ever it does."""
    _before.waiting.append(work)
    _before.hook()


LINES = "lines"
LEFT = "left"  # the topic of rank 0's last line
_STALE = 3600.0  # seconds for which the folder of a rank 0 that has left waits for ranks that were to come
_BEAT = 1.0  # seconds between signs of life
_FIRST_LINE = 4096  # bytes: the first line is shorter
OpenedMeeting = tuple[Path, int]  # a folder and its lines, opened


def begin(prefix: Path) -> OpenedMeeting:
    """Rank 0's new folder, and its lines to append to. Raises OSError."""
    make_own_or_shared(prefix.parent)
    tidy(prefix)
    while True:
        folder = prefix.with_name(f"{prefix.name}.{time.time_ns():020d}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            break
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
    return folder, os.open(folder / LINES, flags, 0o600)


def make_own_or_shared(folder: Path) -> None:
    """Make the folder of all runs. Raises OSError when it is somebody else's, and not said to be shared."""
    if shared():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        make_own(folder)


@contextmanager
def usable(prefix: Path) -> Iterator[None]:
    """Raises InvalidInput, which says what to do, for an OSError about the folder of all runs."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        what = f"ranks meet in {prefix.parent}, which cannot be used ({why}): take away what is there"
        if shared():
            what = f"{FOLDER}={shared()!r} cannot be used as a folder ({why}): make it"
        other = f"or let {FOLDER} name another that all ranks see and may write to"
        raise InvalidInput(f"{what}, {other}") from error


def beat(lines: Path) -> threading.Event:
    """Renew the time of a file until the event is set: for ranks on other machines."""
    enough = threading.Event()

    def work() -> None:
        with suppress(OSError):  # it is gone
            while not enough.wait(_BEAT):
                os.utime(lines)

    threading.Thread(target=work, name="haltune-beat", daemon=True).start()
    return enough


class Entrance:
    """Where another rank looks for its rank 0."""

    def __init__(self, me: ThisProcess) -> None:
        self._me, self._prefix = me, me.place.folder
        self._seen: dict[Path, tuple[int, int]] = {}  # size and time of lines from other machines, at first
        self._ahead: float | None = None  # seconds, of the clock of a shared folder

    def enter(self) -> OpenedMeeting | None:
        """The folder and its lines, opened for reading; None while there are none."""
        for folder in sorted(self._prefix.parent.glob(f"{self._prefix.name}.*")):
            with suppress(FileNotFoundError):
                if not shared() and not is_own(folder):
                    raise PermissionError(f"{folder} belongs to somebody else, or is a link")
                file = os.open(folder / LINES, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
                if self._is_ours(folder, file):  # it stays readable when the folder is removed
                    (folder / mark(self._me, "here")).touch(mode=0o600)
                    return folder, file
                os.close(file)
        return None

    @property
    def others(self) -> int:
        """How many folders there are of the same name."""
        return len(list(self._prefix.parent.glob(f"{self._prefix.name}.*")))

    def _is_ours(self, folder: Path, file: int) -> bool:
        rank, mine = self._me.place.rank, mark(self._me, "here")
        marks = (path.name for state in ("here", "left") for path in folder.glob(f"{state}-{rank}-*"))
        if not self._me.place.launcher and any(name != mine for name in marks):
            return False  # it has had another process of this rank: that was in another start
        status, author = os.fstat(file), _author(os.pread(file, _FIRST_LINE, 0))
        if not author:
            return False
        if self._ahead is None:
            self._ahead = _ahead(folder.parent) if shared() else 0.0
        if status.st_mtime >= self._me.place.began + self._ahead:
            return True
        if checkable(author):
            return not surely_gone(author)
        now = status.st_size, status.st_mtime_ns
        return self._seen.setdefault(folder, now) != now


def leave(folder: Path, me: ThisProcess) -> None:
    """At the end of another rank. The last to leave removes the folder."""
    if me.forked:
        return
    with suppress(OSError):
        (folder / mark(me, "here")).rename(folder / mark(me, "left"))
        if _has_left(folder / LINES) and nobody_reads(folder, me):
            remove(folder)


def nobody_reads(folder: Path, me: ThisProcess) -> bool:
    """True when no other rank reads any more, nor is still to come."""
    names = os.listdir(folder) if folder.exists() else []
    left = sum(name.startswith("left-") for name in names)
    return not any(name.startswith("here-") for name in names) and left >= (me.place.world or 1) - 1


def mark(me: ThisProcess, state: str) -> str:
    """The name of a file that says where a rank is: "here" or "left"."""
    return f"{state}-{me.place.rank}-{me.holder.rpartition('/')[2]}"


def _ahead(folder: Path) -> float:
    """Seconds that the clock of a folder's files is ahead of ours."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        ahead = os.fstat(file.fileno()).st_mtime - time.time()
        return ahead if abs(ahead) > 0.1 else 0.0  # files are dated by ticks
    return 0.0


def _author(beginning: bytes) -> str:
    """Who wrote it: the first line."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(beginning.partition(b"\n")[0])["holder"])
    return ""


def tidy(prefix: Path) -> None:
    """Remove what killed runs and processes have left behind, and runs that some rank never came to."""
    with suppress(OSError):  # another may be at it
        for found in list(prefix.parent.glob("run-*")):
            with suppress(OSError):
                if _is_over(found / LINES):
                    remove(found)
        sweep()


def _has_left(lines: Path) -> bool:
    with lines.open("rb") as file:
        file.seek(-min(64, lines.stat().st_size), os.SEEK_END)
        return f'"{LEFT}"'.encode() in file.read()


def _is_over(lines: Path) -> bool:
    if not lines.exists():  # killed before it wrote
        return time.time() - lines.parent.stat().st_mtime > _STALE
    with lines.open("rb") as file:
        author = _author(file.read(_FIRST_LINE))
    old = time.time() - lines.stat().st_mtime > _STALE
    return surely_gone(author) and (old or not _has_left(lines)) if author else old


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
            if kept is None:  # it has begun
                return
            try:
                with usable(self._me.place.folder):
                    self._folder, self._file = begin(self._me.place.folder)
            except InvalidInput:
                if self._is_needed():
                    raise
                return
            # not atexit, which processes of multiprocessing do not heed
            Finalize(None, self._leave, exitpriority=1)
            self.write({"topic": "here", "holder": self._me.holder})
            if shared() and (self._me.place.world or 1) > 1:
                self._beats = beat(self._folder / LINES)
            for line in kept:
                self.write(line)

    @property
    def writes(self) -> bool:
        """False once it has given up, and in a forked process: what that hears is its own."""
        return (self._file is not None or self._kept is not None) and not self._me.forked

    def write(self, line: Line) -> None:
        """Append one line. What in it is a function is called when it is written, and converts what it holds."""
        with self._lock:
            if self._kept is None:
                self._append(line)
                return
            self._kept.append(line)
            if len(self._kept) > _LINES_KEPT:
                self._begin()

    def _append(self, line: Line) -> None:
        if self._file is None or self._me.forked:
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

    def wait(self, topic: str, seconds: float | None = None, last: str | None = None) -> Line:
        """The next line of a topic.

        Raises RankLost when rank 0 has left, or has written nothing for so many seconds; LeaseLost when it has written
        on the topic `last`, after which it does not write on this one.
        """
        patience = self._patience if seconds is None else seconds
        began = checked = time.monotonic()
        pause = _POLLS[0]
        while not (found := self._topics.get(topic)):
            if last is not None and self._topics.get(last):
                raise LeaseLost(f"rank 0 has ended this trial, and rank {self._place.rank} waits for {topic!r}")
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
        return text + (f"Do all ranks run the same script, with the same study? {TIMEOUT}=seconds sets the patience")


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


T = TypeVar("T")


class Changed(Protocol):
    """Something of which every rank has one, changed by what rank 0 does."""

    @property
    def _label(self) -> str: ...
    def _changes(self) -> Line: ...
    def _change(self, changes: Line) -> None: ...


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
        from_json: Callable[[Any], T] = same,
        changed: Changed | None = None,
    ) -> T:
        """What `work` returns, on every rank; what it raises is raised on every rank.

        changed: what else is another by it. What its `changes` and `to_json` return is JSON, or a function that
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
            if changed is not None:
                line["changes"] = changed._changes()
            self._writer.write(line | self.news())


class Follower:
    """Another rank's part: waits for what rank 0 writes."""

    def __init__(self, reader: Reader, subject: str) -> None:
        self._reader, self._subject = reader, subject
        self.position = 0  # of the log, at the last answer heard

    def decide(
        self,
        topic: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
        changed: Changed | None = None,
    ) -> T:
        """What rank 0 came to. Raises what rank 0 raised, and RankLost when it is gone, or silent for too long.

        Raises LeaseLost where rank 0 has ended what it changes: an error there alone keeps no other rank waiting.
        """
        return self.hear(topic, from_json, changed)

    def hear(
        self,
        topic: str,
        from_json: Callable[[Any], T] = same,
        changed: Changed | None = None,
        seconds: float | None = None,
    ) -> T:
        """As `decide`. seconds: after which a rank 0 that is silent is lost."""
        line = self.heard(topic, seconds, None if changed is None else f"{changed._label} ends")
        if changed is not None and "changes" in line:
            changed._change(line["changes"])
        if "error" in line:
            raise error_from_json(*line["error"])
        return from_json(line["answer"])

    def heard(self, topic: str, seconds: float | None = None, last: str | None = None) -> Line:
        """The next line on a topic. last: see Reader.wait."""
        line = self._reader.wait(f"{self._subject}: {topic}", seconds, last and f"{self._subject}: {last}")
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


def joined(name: str, where: object) -> Leader | Follower:
    """This process's part for the next study of this name in this store."""
    if _alone.get():
        return Leader(None, "")
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
    """A study opened herein is nobody's rank: one carried into a process that a fit spawned."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


_ends: dict[ThisProcess, Writer | Reader] = {}  # what this process writes, or reads
_studies: Counter[str] = Counter()
