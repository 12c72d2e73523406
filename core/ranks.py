"""Give all ranks of a distributed training the same answers. This module does not depend on trials.

    answer = rank.decide(topic, work, to_json, from_json)       on every rank

Rank 0 does the work, and writes the result or the exception of `work` as a line of JSON. The other ranks read the line
of their topic, and return or raise the same. The line also carries the position up to which the log is read.

Reasons for lines in a folder, instead of the study's log or a broadcast of the framework:
- Lightning's "ddp" starts the other ranks within a fit of rank 0. They run the script again from its start, and need
  every answer that rank 0 got before they existed. torchrun's ranks ask for a trial without a process group.
- The log has no Wait, no path of a saved state, no exception of a store, no answer to `enqueue`.
- A rank on another machine may not reach the store.

`place` finds the rank of a process from its environment:
- Lightning's ranks have LOCAL_RANK above 0 and no RANK. They are recognized by `HALTUNE_RUN`, which rank 0 set when it
  imported haltune. After a fit WORLD_SIZE is gone and LOCAL_RANK stays.
- torchrun starts all ranks at once, perhaps each through a wrapper. They share the id of their job, or a port and
  their parent process.
- A process that a rank starts for another purpose inherits all of these variables, and is not a rank.
- SLURM_PROCID numbers tasks, which may be separate workers. It is a rank only if HALTUNE_RUN_FOLDER is set, which says
  that the tasks train one model.

The rendezvous of the ranks:
    BASE/run-JOB.TIME/lines       written by rank 0; the first line names its process, the last says that it has left
    BASE/run-JOB.TIME/here-1-...  rank 1 reads; it becomes left-1-... when rank 1 leaves; the last removes the folder
A job may be started again, or run several programs, and the ranks of each start share the same name. So rank 0 always
makes a new folder. A rank takes the oldest folder that is not surely of another start: another start's folder had a
process of this rank already, or its rank 0 was gone before this rank started. A rank 0 on another machine is alive if
it renews its file.

A single process keeps its lines in memory, unconverted, until it starts another program, which may be a rank of a fit.
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
    """Return the folder that HALTUNE_RUN_FOLDER names for the rendezvous; None if it is not set or empty."""
    folder = os.environ.get(FOLDER)
    return os.path.expanduser(folder) if folder else None


@dataclass(frozen=True)
class Mark:
    """A process's entry in the environment, for the processes that it starts."""

    run: str  # name of the rendezvous folder
    holder: str  # its identity, see _utils.process
    launches: bool  # it is not a local rank, so that a fit may start others
    job: str  # the job that started it as one of several ranks; empty for a single process

    def __str__(self) -> str:
        return json.dumps([self.run, self.holder, self.launches, self.job])

    @classmethod
    def of(cls, text: str | None) -> Mark | None:
        """The inverse of `str`; None if the text is not a mark."""
        try:
            run, holder, launches, job = json.loads(text or "")
            return cls(str(run), str(holder), bool(launches), str(job))
        except (TypeError, ValueError, RecursionError):
            return None


@dataclass(frozen=True)
class Place:
    """One process of a training."""

    rank: int  # 0 decides
    world: int | None  # number of ranks; None if not known
    run: str  # name of the rendezvous folder
    launcher: str = ""  # the identity of the process whose fit started it
    nodes: bool = False  # several machines
    began: float = 0.0  # start of the process, seconds since 1970; of followers

    @property
    def folder(self) -> Path:
        """The start of the names of rendezvous folders, where rank 0 writes and the others read.

        Raises NotSupported for nodes that share no folder.
        """
        if not shared() and self.nodes:
            raise NotSupported(
                f"This training runs on several nodes, which need a shared folder for rank 0's answers. Set {FOLDER} "
                "to a folder that all nodes can reach, a new one for each job."
            )
        return base(shared()) / f"run-{self.run}"


def place(environment: Mapping[str, str], mark: Mark | None, own: str) -> Place:
    """Return the place of a process of identity `own` that inherited `mark`."""
    rank, world, job = _rank(environment), _count(environment, "WORLD_SIZE"), _job(environment)
    local = "RANK" not in environment and mark is not None
    if local and mark and mark.launches and _count(environment, "LOCAL_RANK"):  # started by a fit
        return Place(rank, world, mark.run, mark.holder, began=_began())
    inherited = mark is not None and (mark.job == job or (local and rank == 0))
    if not job or inherited:
        return Place(0, None, _digest(own))  # a single process
    nodes = _has_nodes(environment)
    # parents differ on other nodes, and if each rank is started through a shell or a container's entry point
    parent = "" if nodes or _is_named(environment) else f"{os.getppid()}/{started(os.getppid())}"
    return Place(rank, world, _digest(f"{job} {parent}"), nodes=nodes, began=_began())


def _began() -> float:
    """Return when this process was started, seconds since 1970; now, if the system does not say."""
    ticks, now = started(os.getpid()), time.time()
    if not ticks or not hasattr(time, "CLOCK_BOOTTIME"):
        return now
    start = (int(ticks) + 1) / os.sysconf("SC_CLK_TCK")  # the end of the tick in which it started
    return now - max(time.clock_gettime(time.CLOCK_BOOTTIME) - start, 0.0)


def _rank(environment: Mapping[str, str]) -> int:
    """Return the global rank; if only the local one is known, a number that is 0 only for rank 0 of the first node."""
    for name in ("RANK", "SLURM_PROCID") if environment.get(FOLDER) else ("RANK",):
        if (rank := _count(environment, name)) is not None:
            return rank
    local, node = _count(environment, "LOCAL_RANK") or 0, _count(environment, "NODE_RANK") or 0
    return local + node * (_count(environment, "LOCAL_WORLD_SIZE") or 1)


def _job(environment: Mapping[str, str]) -> str:
    """Return a text that all ranks of one start share and other starts do not; empty for one rank."""
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
    """True if the launcher gave the ranks a name: a folder for this job, or an id."""
    torchrun = environment.get("TORCHELASTIC_RUN_ID", "none")  # torchrun's default is "none"
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
    """This process: its inherited mark, and its place, which is found once."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._environment, self._pid = environment, os.getpid()
        self._inherited, self.holder = Mark.of(environment.get(MARK)), new_holder()
        self._found: Place | None = None
        self._settle()  # at the import: a fit may start the other ranks before there is a study

    @property
    def place(self) -> Place:
        """Its place, found at the first use, because a launcher may set RANK after the import."""
        if self._found is None:
            if "RANK" in self._environment:
                self._settle()
            self._found = self._place
        return self._found

    @property
    def forked(self) -> bool:
        """True in a fork of this process."""
        return os.getpid() != self._pid

    def _settle(self) -> None:
        self._place = place(self._environment, self._inherited, self.holder)
        alone = self._place.rank == 0 and self._place.world is None
        launches = "RANK" not in self._environment and (alone or "LOCAL_RANK" not in self._environment)
        job = "" if alone else _job(self._environment)
        self._environment[MARK] = str(Mark(self._place.run, self.holder, launches, job))


_this = ThisProcess()


def this() -> ThisProcess:
    """Return this process; a forked process is another one."""
    global _this
    if _this.forked:
        _this = ThisProcess()
    return _this


_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.system", "os.exec"}  # Python's audit events


class _Before:
    """Work to do before the next program starts. A program that another thread starts waits for it."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self._hooked = False
        self.after_fork()
        fork_handlers.add(self)

    def after_fork(self) -> None:
        """See forks.ForkHandler: a thread that held the lock does not exist in the fork."""
        self._lock = threading.RLock()  # a program that the work itself starts does not wait

    def hook(self) -> None:
        """Watch the programs that this process starts; an audit hook cannot be removed."""
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(self._heed)

    def _heed(self, event: str, _: object) -> None:
        if event not in _STARTS:
            return
        with self._lock:
            while self.waiting:
                with suppress(Exception):  # an error here would prevent the program from starting
                    self.waiting.popleft()()


_before = _Before()


def before_programs(work: Callable[[], None]) -> None:
    """Call `work` once, just before this process starts its next program."""
    _before.waiting.append(work)
    _before.hook()


LINES = "lines"
LEFT = "left"  # the topic of rank 0's last line
_STALE = 3600.0  # seconds for which a folder stays after its rank 0 has left, for ranks that come late
_BEAT = 1.0  # seconds between renewals of a file's time
_FIRST_LINE = 4096  # bytes: the first line is shorter
OpenedMeeting = tuple[Path, int]  # a folder and its lines, opened


def begin(prefix: Path) -> OpenedMeeting:
    """Make rank 0's new folder, and open its lines for appending. Raises OSError."""
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
    """Make the parent of the rendezvous folders. Raises OSError if it is another user's and not shared."""
    if shared():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        make_own(folder)


@contextmanager
def usable(prefix: Path) -> Iterator[None]:
    """Turn an OSError about the folder of all rendezvous into InvalidInput, with advice."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        what = f"Ranks exchange answers in {prefix.parent}, which cannot be used ({why}). Remove what is there"
        if shared():
            what = f"{FOLDER}={shared()!r} cannot be used as a folder ({why}). Make it"
        raise InvalidInput(f"{what}, or set {FOLDER} to another folder that all ranks can read and write.") from error


def beat(lines: Path) -> threading.Event:
    """Renew the time of a file until the event is set, for ranks on other machines."""
    enough = threading.Event()

    def work() -> None:
        with suppress(OSError):  # it is gone
            while not enough.wait(_BEAT):
                os.utime(lines)

    threading.Thread(target=work, name="haltune-beat", daemon=True).start()
    return enough


class Rendezvous:
    """A follower's search for the folder of its rank 0."""

    def __init__(self, me: ThisProcess) -> None:
        self._me, self._prefix = me, me.place.folder
        self._seen: dict[Path, tuple[int, int]] = {}  # first seen size and time of lines from other machines
        self._ahead: float | None = None  # seconds that the clock of a shared folder is ahead

    def enter(self) -> OpenedMeeting | None:
        """Return the folder and its lines, opened for reading; None if there are none yet."""
        for folder in sorted(self._prefix.parent.glob(f"{self._prefix.name}.*")):
            with suppress(FileNotFoundError):
                if not shared() and not is_own(folder):
                    raise PermissionError(f"{folder} belongs to another user, or is a link")
                file = os.open(folder / LINES, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
                if self._is_ours(folder, file):  # it stays readable when the folder is removed
                    (folder / mark(self._me, "here")).touch(mode=0o600)
                    return folder, file
                os.close(file)
        return None

    @property
    def others(self) -> int:
        """Number of folders of the same name."""
        return len(list(self._prefix.parent.glob(f"{self._prefix.name}.*")))

    def _is_ours(self, folder: Path, file: int) -> bool:
        rank, mine = self._me.place.rank, mark(self._me, "here")
        marks = (path.name for state in ("here", "left") for path in folder.glob(f"{state}-{rank}-*"))
        if not self._me.place.launcher and any(name != mine for name in marks):
            return False  # it had another process of this rank, in another start
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
    """Leave the rendezvous, as a follower. The last to leave removes the folder."""
    if me.forked:
        return
    with suppress(OSError):
        (folder / mark(me, "here")).rename(folder / mark(me, "left"))
        if _has_left(folder / LINES) and nobody_reads(folder, me):
            remove(folder)


def nobody_reads(folder: Path, me: ThisProcess) -> bool:
    """True if no other rank reads or can still start."""
    names = os.listdir(folder) if folder.exists() else []
    left = sum(name.startswith("left-") for name in names)
    return not any(name.startswith("here-") for name in names) and left >= (me.place.world or 1) - 1


def mark(me: ThisProcess, state: str) -> str:
    """Return the name of the file that says whether a rank reads, "here", or has left, "left"."""
    return f"{state}-{me.place.rank}-{me.holder.rpartition('/')[2]}"


def _ahead(folder: Path) -> float:
    """Return the seconds that the clock of a folder's files is ahead of ours."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        ahead = os.fstat(file.fileno()).st_mtime - time.time()
        return ahead if abs(ahead) > 0.1 else 0.0  # times of files are rounded to ticks
    return 0.0


def _author(beginning: bytes) -> str:
    """Return the identity of the writer, from the first line."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(beginning.partition(b"\n")[0])["holder"])
    return ""


def tidy(prefix: Path) -> None:
    """Remove the folders of killed processes, and of starts that some rank never joined."""
    with suppress(OSError):  # another process may remove them too
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
_LARGEST = 64 << 20  # bytes written while no rank is known to read
_LINES_KEPT = 10_000  # lines kept in memory


class Writer:
    """Writes rank 0's lines. Raises OSError only if other ranks are known to wait for them."""

    def __init__(self, me: ThisProcess) -> None:
        self._me = me
        self._file: int | None = None
        self._size = 0  # bytes
        self._beats: threading.Event | None = None
        self._lock = threading.RLock()
        self._kept: list[Line] | None = []  # until it starts to write
        _timeout()  # an invalid value must be refused on all ranks, not only on those that wait
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
            self.write({"topic": "here", "holder": self._me.holder})
            if shared() and (self._me.place.world or 1) > 1:
                self._beats = beat(self._folder / LINES)
            for line in kept:
                self.write(line)

    @property
    def writes(self) -> bool:
        """False once it has given up, and in a forked process, whose answers are its own."""
        return (self._file is not None or self._kept is not None) and not self._me.forked

    def write(self, line: Line) -> None:
        """Append one line. A function in it is called when the line is written, and returns JSON."""
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
            os.ftruncate(self._file, 0)  # no rank came; free the space
            why = f"wrote {_LARGEST >> 20} MB before another rank came, and gave up"
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
        """Write the last line. The folder stays for ranks that still read or can still start."""
        if self._me.forked:
            return
        self.write({"topic": LEFT})
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
        self.events: dict[str, list[Line]] = {}  # of each study in rank 0's memory, as far as read
        self._topics: dict[str, deque[Line]] = {}
        self._before: set[str] = set()  # topics of the lines written before this process was started
        self._file: int | None = None
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
        return found.popleft()

    def skip(self, topic: str, unneeded: Callable[[Line], bool]) -> None:
        """Drop the next lines of a topic that were written before this process was started, while `unneeded`."""
        self._read()
        found = self._topics.get(topic, deque())
        while found and "before" in found[0] and unneeded(found[0]):
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
                    f"Rank {self._place.rank} cannot read the answers of rank 0 in {self._place.folder} "
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
            line["before"] = True
        self._topics.setdefault(topic, deque()).append(line)

    def _open(self) -> bool:
        with usable(self._place.folder):
            found = self._rendezvous.enter()
        if found is None:
            return False
        folder, self._file = found
        Finalize(None, leave, (folder, self._me), exitpriority=1)
        return True

    def _need_rank_0(self, topic: str) -> None:
        if self._topics.get(LEFT):
            raise RankLost(self._says(topic, self._topics[LEFT][0].get("why", "has left")))
        gone = bool(self._leader) and surely_gone(self._leader)
        if gone and not self._read() and not self._topics.get(topic):  # its last lines count
            raise RankLost(self._says(topic, "is gone"))

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


def _converted(held: Callable[[], Any]) -> Any:
    return held()


def error_to_json(error: BaseException) -> list[str]:
    return [type(error).__name__, str(error)]


def error_from_json(name: str, text: str) -> Exception:
    """Return an exception of the same type, if it is haltune's or Python's; otherwise a HaltuneError with its name."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # some need more than a text
            return kind(text)
    return HaltuneError(f"{name}: {text}")


def _timeout() -> float:
    text = os.environ.get(TIMEOUT) or "1800"
    with suppress(ValueError):
        if 0.0 < (seconds := float(text)) < math.inf:
            return seconds
    raise InvalidInput(f"{TIMEOUT}={text!r} is not a time. Set it to seconds above 0, such as 1800, or unset it.")


T = TypeVar("T")


class Changed(Protocol):
    """An object that every rank has, and that rank 0's work changes."""

    @property
    def _label(self) -> str: ...
    def _changes(self) -> Line: ...
    def _change(self, changes: Line) -> None: ...


_within = contextvars.ContextVar("within", default=False)  # a decision: inner decisions are part of it
_alone = contextvars.ContextVar("alone", default=False)


def same(value: Any) -> Any:
    return value


class Leader:
    """The part of rank 0 or of a single process: does the work and writes the result.

    news: returns further data that goes with every answer.
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
        """Return the result of `work` on every rank, or raise its exception on every rank.

        changed: an object that the work changes. Its `_changes` and `to_json` return JSON, or a function that converts
        an immutable value and is called only if another rank reads.
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
    """The part of another rank: waits for rank 0's lines."""

    def __init__(self, reader: Reader, subject: str) -> None:
        self._reader, self._subject = reader, subject
        self.position = 0  # of the log, at the last answer

    def decide(
        self,
        topic: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
        changed: Changed | None = None,
    ) -> T:
        """Return rank 0's result, or raise its exception. Raises RankLost if it is gone, or silent for too long.

        Raises LeaseLost if rank 0 has ended the trial, so that an error on rank 0 alone does not keep others waiting.
        """
        return self.hear(topic, from_json, changed)

    def hear(
        self,
        topic: str,
        from_json: Callable[[Any], T] = same,
        changed: Changed | None = None,
        seconds: float | None = None,
    ) -> T:
        """Do the same as `decide`. seconds: time after which a silent rank 0 counts as lost."""
        line = self.heard(topic, seconds, None if changed is None else f"{changed._label} ends")
        if changed is not None and "changes" in line:
            changed._change(line["changes"])
        if "error" in line:
            raise error_from_json(*line["error"])
        return from_json(line["answer"])

    def heard(self, topic: str, seconds: float | None = None, last: str | None = None) -> Line:
        """Return the next line of a topic; see Reader.wait."""
        line = self._reader.wait(f"{self._subject}: {topic}", seconds, last and f"{self._subject}: {last}")
        self.position = max(self.position, line.get("position", 0))
        return line

    @property
    def events(self) -> list[Line]:
        """The events of a log in rank 0's memory, as far as they were read here; perhaps beyond `position`."""
        return self._reader.events.get(self._subject, [])

    def skip(self, topic: str, unneeded: Callable[[Line], bool]) -> None:
        """See Reader.skip."""
        self._reader.skip(f"{self._subject}: {topic}", unneeded)

    def was_before(self, topic: str) -> bool:
        """See Reader.was_before."""
        return self._reader.was_before(f"{self._subject}: {topic}")


def follows() -> bool:
    """True on the ranks above 0."""
    return not _alone.get() and this().place.rank > 0


def joined(name: str, where: object) -> Leader | Follower:
    """Return this process's part for the next study of this name in this store."""
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
    """Treat studies opened in the block as those of a single process, such as one that a fit spawned."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


_ends: dict[ThisProcess, Writer | Reader] = {}  # of this process
_studies: Counter[str] = Counter()
