"""Limits of a training on this machine: time, memory and accelerators; and the end of its processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from haltune._utils.process import stat_of
from haltune.errors import InvalidInput, NotSupported
from haltune.log.problem import seconds_of
from haltune.store.checkpoints import bytes_of, readable


@dataclass(frozen=True)
class Limits:
    """Limits of one attempt. seconds: start-up included. memory: bytes of all its processes. None: no limit."""

    seconds: float | None = None
    memory: int | None = None

    @classmethod
    def of(cls, timeout: float | str | None, memory: float | str | None) -> Limits:
        """Read a user's limits, such as "30min" and "8GB". Raises InvalidInput; NotSupported for memory off Linux."""
        if memory is not None and not sys.platform.startswith("linux"):
            raise NotSupported("memory_limit needs /proc, which this system does not have. Leave it out.")
        seconds = None if timeout is None else seconds_of(timeout, "trial_timeout")
        return cls(seconds, bytes_of(memory, "memory_limit"))

    def exceeded(self, session: int, seconds: float) -> str | None:
        """Return why the trial of this session must end after so many seconds; None if it may continue.

        session: 0 if it has no processes on this machine.
        """
        if self.seconds is not None and seconds > self.seconds:
            return f"trial_timeout: it ran for {seconds:.0f} s; {self.seconds:g} s are allowed"
        if self.memory is not None and session and (used := memory(session)) > self.memory:
            return f"memory_limit: it used {readable(used)}; {readable(self.memory)} are allowed"
        return None


def family(child: int) -> set[int]:
    """Return a child with its session, and all that these started: torchrun's ranks have sessions of their own.

    Empty without /proc.
    """
    parents, found = dict[int, int](), set[int]()
    with suppress(OSError):
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with suppress(ValueError, IndexError):  # it has ended meanwhile
                fields = stat_of(pid)
                parents[pid] = int(fields[1])
                if child in (pid, int(fields[3])):
                    found.add(pid)
    more = found
    while more:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
    return found


def memory(session: int) -> int:
    """Return the bytes that a child and its processes use; shared pages count in proportion."""
    total = 0
    for pid in family(session):
        with suppress(OSError, ValueError, IndexError, StopIteration):  # it has ended meanwhile
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total


def writes(session: int, path: Path) -> bool:
    """Return whether a child or one of its processes has a file open to write, or one in a folder; on Linux."""
    place = os.path.realpath(path)
    return any(_has_open(pid, place) for pid in family(session))


def _has_open(pid: int, place: str) -> bool:
    """Return whether a process has a file open to write, or one in a folder."""
    with suppress(OSError):  # it has ended meanwhile, or runs under another user
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError, ValueError, IndexError):  # the file was closed meanwhile
                name = os.readlink(f"/proc/{pid}/fd/{number}")
                if name == place or name.startswith(place + os.sep):
                    flags = Path(f"/proc/{pid}/fdinfo/{number}").read_text().split("flags:")[1].split()[0]
                    if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                        return True
    return False


def kill(child: int) -> None:
    """Kill a child and its processes, unless the child was reaped.

    After that another process may have its number. Before, the number stays reserved, also if the child has ended.
    """
    if ended(child) is None:
        return
    below = family(child) - {child}
    with suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(child, signal.SIGKILL)
        else:
            os.kill(child, signal.SIGTERM)
    for pid in below:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_rest(child: int, seconds: float = 0.0) -> None:
    """Kill the rest of a child's session once the child has ended; wait for that at most so many seconds."""
    until = time.monotonic() + seconds
    while hasattr(os, "waitid") and ended(child) is False and time.monotonic() < until:
        time.sleep(0.01)
    if ended(child):
        kill(child)


def ended(child: int) -> bool | None:
    """Return whether a child has ended, without reaping it; None if it was reaped or is not a child.

    False if the system cannot show it.
    """
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return None


def status_of(child: subprocess.Popen[bytes]) -> int | None:
    """Kill the rest of a child that has ended, and return its exit status, -N after signal N; None while it runs."""
    kill_rest(child.pid)
    code = child.poll()  # a shell exits with 128 + N
    return 128 - code if code is not None and 128 < code <= 128 + signal.SIGTERM else code


def how_it_died(code: int | None) -> str:
    if code is None:
        return "vanished"
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hints = {"SIGKILL": " (perhaps out of memory)", "SIGSEGV": " (a fault in compiled code)", "SIGABRT": " (aborted)"}
    return f"was killed by {name}{hints.get(name, '')}"


VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices_of(gpus: Sequence[int | str] | str | None) -> list[str]:
    """Return the devices for workers, by their names in CUDA_VISIBLE_DEVICES: "auto" finds them, None gives none.

    Raises InvalidInput for anything but "auto", None and a list of numbers or names.
    """
    if gpus is None:
        return []
    if gpus == "auto":
        named = os.environ.get(VISIBLE)
        if named is not None:
            return [part.strip() for part in named.split(",") if part.strip() not in ("", "-1")]
        try:
            listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return []
        return [str(i) for i, line in enumerate(listing.stdout.splitlines()) if line.startswith("GPU ")]
    listed = isinstance(gpus, Iterable) and not isinstance(gpus, str)
    if not listed or any(isinstance(g, bool) or not isinstance(g, (int, str)) for g in gpus):
        raise InvalidInput(f"gpus={gpus!r}: use 'auto', None, or a list of devices such as [0, 1].")
    devices = [str(g).strip() for g in gpus]
    for name in devices:
        # "0,1" are two for one worker. With a name that it does not know CUDA sees no device, and says nothing.
        if not all(re.fullmatch(r"-?\d+|(GPU|MIG)-.*", part.strip()) for part in name.split(",")):
            raise InvalidInput(
                f"gpus: CUDA has no device {name!r}. Use numbers, such as 0,1, or its names, GPU-... or MIG-..., not "
                "PyTorch's: cuda:0 is 0."
            )
    return devices


THREADS = "OMP_NUM_THREADS"  # for the libraries of NumPy and PyTorch


def threads_of(workers: int) -> dict[str, str]:
    """Return an environment that shares the CPUs among workers; empty for one worker, or if the user has set it."""
    if workers < 2 or any(name in os.environ for name in (THREADS, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")):
        return {}
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {THREADS: str(max(1, cpus // workers))}


@contextmanager
def set_while(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
