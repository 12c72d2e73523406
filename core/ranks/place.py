"""Which rank of a training this process is.

`place` finds it in the environment:
- Lightning's ranks have LOCAL_RANK above 0 and no RANK. They are recognized by `HALTUNE_RUN`, which rank 0 set when it
  imported haltune. After a fit WORLD_SIZE is gone and LOCAL_RANK stays.
- torchrun starts all ranks at once, perhaps each through a wrapper. They share the id of their job, or a port and
  their parent process.
- A process that a rank starts for another purpose inherits all of these variables, and is not a rank.
- SLURM_PROCID numbers tasks, which may be separate workers. It is a rank only if HALTUNE_RUN_FOLDER is set,
  because then the tasks train one model.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from haltune._utils.process import base, new_holder, started
from haltune.errors import NotSupported

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
    if mark and mark.launches and fits(environment):
        return Place(rank, world, mark.run, mark.holder, began=_began())
    inherited = mark is not None and (mark.job == job or ("RANK" not in environment and rank == 0))
    if not job or inherited:
        return Place(0, None, _digest(own))  # a single process
    nodes = _has_nodes(environment)
    # parents differ on other nodes, and if each rank is started through a shell or a container's entry point
    parent = "" if nodes or _is_named(environment) else f"{os.getppid()}/{started(os.getppid())}"
    return Place(rank, world, _digest(f"{job} {parent}"), nodes=nodes, began=_began())


def restart_advice() -> str | None:
    """Return advice if torchrun may restart these ranks and they may not connect then; otherwise None.

    The ranks read the addresses of each other from a store. If torchrun keeps one store for all its starts, a rank may
    read an address of the start before (pytorch/pytorch#135712), and waits for it or fails.
    """
    if not _count(os.environ, "TORCHELASTIC_MAX_RESTARTS"):
        return None
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or (_count(os.environ, "WORLD_SIZE") or 1) < 2:
        return None
    return (
        "After a restart by torchrun (--max-restarts), the ranks may not connect again, because PyTorch keeps the "
        "addresses of the start before. Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun, and "
        "use --standalone or --rdzv-backend c10d."
    )


def fits(environment: Mapping[str, str]) -> bool:
    """True for the environment of a rank above 0 that a fit starts."""
    return "RANK" not in environment and bool(_count(environment, "LOCAL_RANK"))


def _began() -> float:
    """Return when this process was started, seconds since 1970; now, if the system does not show it."""
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
    names = [
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "MASTER_ADDR",
        "MASTER_PORT",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_RESTART_COUNT",
    ]
    if _has_nodes(environment):  # torchrun counts the restarts on each node: a new node has had none
        names.remove("TORCHELASTIC_RESTART_COUNT")
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
    def alone(self) -> bool:
        """True if it is the only process of its training."""
        place = self.place
        return place.rank == 0 and place.world in (None, 1)

    @property
    def single(self) -> bool:
        """True if it is alone, and no fit of it has started other ranks."""
        return self.alone and "LOCAL_RANK" not in self._environment

    def own(self, name: str) -> str:
        """Return the name of this rank's own file, next to rank 0's file `name`."""
        return f"{name}{self.place.rank or ''}"

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
