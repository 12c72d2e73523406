"""Folders as short-lived as the process that made them; what killed processes left, the next ones remove.

    TMP/haltune-UID/work-HOLDER     its name says whose it is, see _utils.process
    TMP/haltune-UID/look-HOLDER     likewise; to be looked at for a day
    TMP/haltune-UID/run-...         see ranks.meeting

Nothing is removed whose owner may still live: one on another machine, or in another container, may.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from .process import new_holder, surely_gone

_WORK, _LOOK = "work-", "look-"
_DAY = 86400.0  # seconds


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
    """True for a folder, not a link to one, that this user made. Raises FileNotFoundError."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "getuid") or status.st_uid == os.getuid())


def remove(folder: Path) -> None:
    """Delete a folder of this user's, and follow no link."""
    with suppress(OSError):
        if is_own(folder):
            shutil.rmtree(folder, ignore_errors=True)


class Scratch:
    """A folder that goes with its owner, with this process at the latest; `make` makes it.

    stays: it goes with this process, for what users are given of it.
    """

    def __init__(self, stays: bool = False) -> None:
        self.path = _named(_WORK)
        self.remove = weakref.finalize(Scratch if stays else self, _remove_if_mine, self.path, os.getpid())

    def make(self) -> Path:
        """Its path, now that it exists; what killed processes left goes."""
        sweep()
        self.path.mkdir(mode=0o700)
        return self.path


def lasting() -> Path:
    """A new folder that stays for a day after this process, for people to look at; what others left goes."""
    sweep()
    path = _named(_LOOK)
    path.mkdir(mode=0o700)
    return path


def sweep() -> None:
    """Remove the folders of processes that surely are gone."""
    with suppress(OSError):
        for folder in [*base().glob(f"{_WORK}*"), *base().glob(f"{_LOOK}*")]:
            seen = folder.name.startswith(_WORK) or time.time() - folder.lstat().st_mtime > _DAY
            if seen and surely_gone(unquote(folder.name[len(_WORK) :].replace(",", "%2F"))):
                remove(folder)


def _named(kind: str) -> Path:
    """The path of a new folder of this process."""
    name = kind + quote(new_holder(), safe="").replace(
        "%2F", ","
    )  # SQLAlchemy takes %2F in a path for a slash
    try:
        make_own(base())
    except OSError:  # somebody else's is in the way
        return Path(tempfile.gettempdir()) / f"haltune-{name}"
    return base() / name


def _remove_if_mine(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not at the end of a forked process
        remove(folder)
