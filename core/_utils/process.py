"""Who holds a lease or a folder: an identity that another process on the same machine can check for life.

A holder is "host/boot/namespace/pid/start/nonce". When host, boot and process namespace are ours, a missing process
(or one that started at another time) is known to be gone at once; otherwise only the lease's expiry tells.

    TMP/haltune-UID/work-HOLDER     a folder as short-lived as its process; what killed processes left, the next ones
                                    remove. Nothing is removed whose owner may still live
    TMP/haltune-UID/run-...         see ranks
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote

_WORK = "work-"


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


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: the state first; none where /proc does not tell."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def started(pid: int) -> str:
    """The process's start time in clock ticks since boot; empty where /proc does not tell."""
    return found[19] if (found := _stat(pid)) else ""


def named(holder: str) -> str:
    """A holder for people: process 1234 on host; a name that somebody made up as it is."""
    parts = holder.split("/")
    return f"process {parts[3]} on {parts[0]}" if len(parts) == 6 else holder


def new_holder() -> str:
    """An identity for one worker of this process."""
    pid = os.getpid()
    return "/".join((*_machine(), str(pid), started(pid), secrets.token_hex(4)))


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
    pid, began = int(holder.split("/")[3]), holder.split("/")[4]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it runs, as somebody else
        pass
    found = _stat(pid)
    dead = bool(found) and found[0] in "ZX"  # killed, but its parent has not yet taken notice
    return dead or (bool(began) and bool(found) and found[19] != began)


def lives_beside(holder: str) -> bool:
    """True when the holder is another process of this machine, and lives."""
    return checkable(holder) and holder.split("/")[3] != str(os.getpid()) and not surely_gone(holder)


# -- folders --------------------------------------------------------------------------------


def base(shared: str | None = None) -> Path:
    """The folder of all runs of this user on this machine, or the one that is `shared`."""
    user = getattr(os, "getuid", lambda: "user")()
    return Path(shared or Path(tempfile.gettempdir()) / f"haltune-{user}")


def make_own(folder: Path) -> None:
    """Make a folder for this user alone. Raises OSError when it is somebody else's, or a link to another place."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own(folder):
        raise PermissionError(f"{folder} belongs to somebody else, or is a link")


def is_own(folder: Path) -> bool:
    """True for a folder, not for a link to one, that this user made. Raises FileNotFoundError."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "getuid") or status.st_uid == os.getuid())


def remove(folder: Path) -> None:
    """Delete a folder of this user's, and follow no link."""
    with suppress(OSError):
        if is_own(folder):
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove the folders of processes that surely are gone."""
    with suppress(OSError):
        for folder in base().glob(f"{_WORK}*"):
            if surely_gone(unquote(folder.name[len(_WORK) :])):
                remove(folder)


class Scratch:
    """A folder that goes with its owner, with this process at the latest; `make` makes it.

    stays: it goes with this process, because users are given paths in it.
    """

    def __init__(self, stays: bool = False) -> None:
        name = _WORK + quote(new_holder(), safe="")
        self.path = base() / name
        try:
            make_own(base())
        except OSError:  # somebody else's is in the way
            self.path = Path(tempfile.gettempdir()) / f"haltune-{name}"
        self.remove = weakref.finalize(Scratch if stays else self, _remove_if_mine, self.path, os.getpid())

    def make(self) -> Path:
        """Its path, now that it exists; what killed processes left goes."""
        sweep()
        self.path.mkdir(mode=0o700)
        return self.path


def _remove_if_mine(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not at the end of a forked process
        remove(folder)
