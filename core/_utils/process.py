"""Who holds a lease: an identity that another process on the same machine can check for life.

A holder is "host/boot/namespace/pid/start/nonce". When host, boot and process namespace
are ours, a missing process (or one that started at another time) is known to be gone at
once; otherwise only the lease's expiry tells.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from functools import cache
from pathlib import Path


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


@cache
def _machine() -> tuple[str, str, str]:
    try:
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        namespace = ""
    return socket.gethostname().replace("/", "-"), _read("/proc/sys/kernel/random/boot_id"), namespace


def started(pid: int) -> str:
    """The process's start time in clock ticks since boot; empty where /proc does not tell."""
    return stat[19] if (stat := _stat(pid)) else ""


def state(pid: int) -> str:
    """R, S, T for one that is stopped, and so on; empty where /proc does not tell."""
    return stat[0] if (stat := _stat(pid)) else ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: the state first; none where /proc does not tell."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def named(holder: str) -> str:
    """A holder as people are told it: process 1234 on host; a name that somebody made up as it is."""
    parts = holder.split("/")
    return f"process {parts[3]} on {parts[0]}" if len(parts) == 6 else holder


def new_holder() -> str:
    """An identity for one worker of this process."""
    pid = os.getpid()
    return "/".join((*_machine(), str(pid), started(pid), secrets.token_hex(4)))


def lives_beside(holder: str) -> bool:
    """True when the holder is another process of this machine, and lives."""
    here = checkable(holder) and holder.split("/")[3] != str(os.getpid())
    return here and not surely_gone(holder)


def checkable(holder: str) -> bool:
    """True when the holder is or was a process of this machine, of whose end we would know."""
    parts = holder.split("/")
    if len(parts) != 6 or tuple(parts[:3]) != _machine() or not parts[1]:
        return False
    return re.fullmatch("[1-9][0-9]{0,8}", parts[3]) is not None  # else a name that somebody made up


def surely_gone(holder: str) -> bool:
    """True when the holder was a process of this machine that no longer exists."""
    if not checkable(holder):
        return False
    pid, started = int(holder.split("/")[3]), holder.split("/")[4]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OverflowError:  # no system counts so far: not written by us
        return False
    except OSError:  # it runs, as somebody else
        pass
    stat = _stat(pid)
    dead = bool(stat) and stat[0] in "ZX"  # killed, but its parent has not yet taken notice
    return dead or (bool(started) and bool(stat) and stat[19] != started)
