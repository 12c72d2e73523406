"""Which process of a distributed training this is, and where rank 0 hands its answers over.

    rank 0      asks, reports and decides: it alone reads and writes the store
    follower    any other rank: it hears what rank 0 heard (`handover`)

What starts the ranks is known by the environment alone, and it lies at times:
- Lightning's "ddp" starts the other ranks from within a fit of rank 0. They run the script again from its
  beginning, with LOCAL_RANK above 0 and no RANK. They are known by `HALTUNE_RUN`, which rank 0 set when it
  imported haltune. Once a fit is over WORLD_SIZE is gone and LOCAL_RANK stays.
- torchrun starts all ranks at once, perhaps each through a wrapper. What they share is the id of their job; where
  there is none, besides a port, their parent process.
- A process that one of the ranks starts for something else inherits all of these variables and is no rank.
- SLURM_PROCID numbers tasks, which may well be workers of their own. It is a rank only when
  HALTUNE_RUN_FOLDER says that the tasks train one model.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from haltune._utils.process import new_holder, started
from haltune._utils.scratch import base
from haltune.errors import NotSupported

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
        self._inherited, self._own = Mark.of(environment.get(MARK)), new_holder()
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
    def holder(self) -> str:
        """Its identity."""
        return self._own

    @property
    def forked(self) -> bool:
        """True in a fork of the process that this speaks of."""
        return os.getpid() != self._pid

    def _settle(self) -> None:
        self._place = place(self._environment, self._inherited, self._own)
        alone = self._place.rank == 0 and self._place.world is None
        launches = "RANK" not in self._environment and (alone or "LOCAL_RANK" not in self._environment)
        job = "" if alone else _job(self._environment)
        self._environment[MARK] = str(Mark(self._place.run, self._own, launches, job))


_this = ThisProcess()


def this() -> ThisProcess:
    """This process; a forked one is another."""
    global _this
    if _this.forked:
        _this = ThisProcess()
    return _this
