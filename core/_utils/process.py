"""Identity of the process that holds a lease or a folder; other processes on the machine can check if it is alive.

A holder is "host/boot/namespace/pid/start/nonce". If host, boot and process namespace are equal to ours, a missing
process (or one with another start time) is known to be gone at once. If all holders are on one machine, so is one of
an earlier boot. Otherwise only the lease's expiry shows it.

    TMP/haltune-UID/work-HOLDER     a folder that is deleted with its process. Later processes delete the folders of
                                    killed ones, but never a folder whose owner may be alive
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


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, the state first; empty without /proc."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def started(pid: int) -> str:
    """Return the process's start time in clock ticks since boot; empty without /proc."""
    return found[19] if (found := stat_of(pid)) else ""


def named(holder: str) -> str:
    """Return a holder in words: process 1234 on host; a name given by a user does not change."""
    parts = holder.split("/")
    return f"process {parts[3]} on {parts[0]}" if len(parts) == 6 else holder


def new_holder() -> str:
    pid = os.getpid()
    return "/".join((*_machine(), str(pid), started(pid), secrets.token_hex(4)))


def checkable(holder: str) -> bool:
    """Return whether the holder is or was a process of this machine, so that its end can be detected."""
    parts = holder.split("/")
    if len(parts) != 6 or tuple(parts[:3]) != _machine() or not parts[1]:
        return False
    return re.fullmatch("[1-9][0-9]{0,8}", parts[3]) is not None  # otherwise a name given by a user


def surely_gone(holder: str, one_machine: bool = False) -> bool:
    """Return whether the holder was a process of this machine that no longer exists.

    one_machine: all holders with this machine's name are on it; two machines of a server's store may have one name.
    """
    if not checkable(holder):
        return one_machine and _was_before_boot(holder)
    pid, start = int(holder.split("/")[3]), holder.split("/")[4]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it runs under another user
        pass
    found = stat_of(pid)  # "Z": it was killed, but its parent has not collected it yet
    return bool(found) and (found[0] in "ZX" or (start != "" and found[19] != start))


def _was_before_boot(holder: str) -> bool:
    parts, (host, boot, _) = holder.split("/"), _machine()
    return len(parts) == 6 and parts[0] == host and bool(parts[1] and boot) and parts[1] != boot


def is_elsewhere(holder: str) -> bool:
    """Return whether the holder is a process of another machine: of another name and kernel, not of a container."""
    parts, (host, boot, _) = holder.split("/"), _machine()
    return len(parts) == 6 and parts[0] != host and bool(parts[1] and boot) and parts[1] != boot


def is_mine(holder: str) -> bool:
    return checkable(holder) and holder.split("/")[3] == str(os.getpid())


def is_other_alive(holder: str) -> bool:
    return checkable(holder) and not is_mine(holder) and not surely_gone(holder)


# -- folders --------------------------------------------------------------------------------


def base(shared: str | None = None) -> Path:
    user = getattr(os, "getuid", lambda: "user")()
    return Path(shared or Path(tempfile.gettempdir()) / f"haltune-{user}")


def make_own(folder: Path) -> None:
    """Create a folder for this user alone. Raises OSError if it belongs to another user or is a link."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own(folder):
        raise PermissionError(f"{folder} belongs to another user, or is a link")


def is_own(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "getuid") or status.st_uid == os.getuid())


def remove(folder: Path) -> None:
    with suppress(OSError):
        if is_own(folder):
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    with suppress(OSError):
        for folder in base().glob(f"{_WORK}*"):
            if surely_gone(unquote(folder.name[len(_WORK) :])):
                remove(folder)


class Scratch:
    """Folder that is deleted with its owner, at the latest with this process; `make` creates it.

    stays: delete it only with this process, because users get paths in it.
    """

    def __init__(self, stays: bool = False) -> None:
        name = _WORK + quote(new_holder(), safe="")
        self.path = base() / name
        try:
            make_own(base())
        except OSError:  # another user has a folder with this name
            self.path = Path(tempfile.gettempdir()) / f"haltune-{name}"
        self.remove = weakref.finalize(Scratch if stays else self, _remove_if_mine, self.path, os.getpid())

    def make(self) -> Path:
        """Create the folder and return its path; delete the folders of killed processes."""
        sweep()
        self.path.mkdir(mode=0o700)
        return self.path


def _remove_if_mine(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not at the end of a forked process
        remove(folder)
