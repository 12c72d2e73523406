"""What `haltune doctor` looks at, each check a few findings: is it well, what was found, what to do."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from haltune._utils.process import named, surely_gone
from haltune._utils.words import plural
from haltune.errors import HaltuneError, NotSupported
from haltune.log.events import OVER, Created, Event, Status
from haltune.log.history import History
from haltune.log.problem import Problem
from haltune.policies.from_spec import policy_from
from haltune.store.base import Lease, Store
from haltune.store.checkpoints import Checkpoints, readable
from haltune.store.open import open_store
from haltune.store.sql.sqlite.file import path_at
from haltune.study.reading import folded
from haltune.study.replay import decided, replay

_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "fuse.sshfs",
    "lustre",
    "beegfs",
)  # where SQLite's locks fail
_LEAST_ROOM = 100e6  # bytes of room for checkpoints where none was written yet
_REPLAYING = 60.0  # seconds spent on asking a policy its decisions again


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's."""

    about: str
    well: bool | None  # None: neither, such as what is not installed
    told: str  # what was found
    advice: str = ""  # what to do about it


def store(found: Store, name: str) -> Iterator[Finding]:
    """Opened, writable, whole."""
    yield Finding("store", True, f"{found.url} opens")
    try:
        open_store(found.address()).renew(
            name, Lease(-2, 0, "doctor", 0.0, 0.0)
        )  # a transaction that writes to no row
        yield Finding("store", True, "it can be written to")
    except HaltuneError as error:
        yield Finding("store", False, str(error), "let this user write to the file and to its folder")
    if found.url.startswith("sqlite:///"):
        yield from _sqlite(Path(path_at(found.address())))


def _sqlite(path: Path) -> Iterator[Finding]:
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as c:
            mode, whole = (
                c.execute("PRAGMA journal_mode").fetchone()[0],
                c.execute("PRAGMA quick_check(3)").fetchall(),
            )
    except sqlite3.Error as error:
        yield Finding(
            "store", False, f"SQLite says: {error}", "bring back a copy of the file with its -wal file"
        )
        return
    advice = "" if mode == "wal" else "several processes will wait for each other; is the disk a local one?"
    yield Finding("store", mode == "wal", f"its journal is {mode.upper()}", advice)
    problems = "; ".join(str(row[0]) for row in whole)
    well = problems == "ok"
    advice = "" if well else "bring back a copy of the file with its -wal file, or begin another search"
    yield Finding("store", well, "the file is whole" if well else f"the file is damaged: {problems}", advice)
    if (kind := _file_system(path)) in _NETWORK:
        yield Finding("store", False, f"it lies on a network file system ({kind})",
                      "put it on a local disk, or use PostgreSQL for several machines")  # fmt: skip


def _file_system(path: Path) -> str:
    """The kind of file system that a path lies on; empty where /proc does not tell."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    around = [(len(place), kind) for place, kind in mounts if path.resolve().is_relative_to(place)]
    return max(around)[1] if around else ""


def log(found: Store, name: str) -> Generator[Finding, None, History | None]:
    """It folds, and its policy decides again as it did; returns what it folds to."""
    try:
        created, history = folded(found, name)
    except HaltuneError as error:
        yield Finding("log", False, str(error))  # which says what to do
        return None
    yield Finding(
        "log", True, f"{plural(history.position, 'event')} of {plural(len(history), 'trial')} folded"
    )
    yield _replayed(history.problem, created, found.read(name, stop=history.position))
    return history


def _replayed(problem: Problem, created: Created, events: Iterator[Event]) -> Finding:
    if problem.space.constraints:
        return Finding(
            "log", None, "decisions cannot be replayed: the space has constraints, which a log does not keep"
        )
    try:
        policy = policy_from(created.policy)
    except NotSupported as error:
        return Finding("log", None, f"decisions cannot be replayed here: {error}")
    differ, count, end = [], 0, time.monotonic() + _REPLAYING
    for position, recorded, again in replay(problem, policy, events):
        count += 1
        if decided(recorded) != decided(again):
            differ.append(position)
        if time.monotonic() > end:
            break
    if differ:
        told = f"of {plural(count, 'decision')} {len(differ)} come out otherwise now, the first at event {differ[0]}"
        return Finding(
            "log", False, told,
            "continue with the versions of haltune, NumPy and SciPy that the search was begun with",
        )  # fmt: skip
    return Finding("log", True, f"{plural(count, 'decision')} replayed to the same")


def leases(found: Store, name: str) -> Iterator[Finding]:
    """Who trains, and whose worker is lost."""
    for lease in found.leases(name):
        what = f"trial {lease.trial}, attempt {lease.attempt}"
        if surely_gone(lease.holder) or lease.expires < found.now():
            yield Finding("leases", False, f"the worker of {what}, {named(lease.holder)}, is lost",
                          "start the search again: the trial continues from its last checkpoint")  # fmt: skip
        else:
            yield Finding("leases", True, f"{what} trains, heard of {found.now() - lease.renewed:.0f} s ago")


def checkpoints(kept: Checkpoints, history: History | None) -> Iterator[Finding]:
    """The folder can be written to, has room, and holds what the log says."""
    there = next(folder for folder in (kept.folder, *kept.folder.parents) if os.path.exists(folder))
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        yield Finding("checkpoints", False, f"{there}: {error.strerror}",
                      "let this user write there, or name another folder: checkpoints = \"...\"")  # fmt: skip
        return
    yield Finding("checkpoints", True, f"{kept.folder} can be written to")
    sizes = kept.sizes()
    need, free = max(2.0 * max(sizes, default=0), _LEAST_ROOM), shutil.disk_usage(there).free
    advice = "" if free >= need else "make room: a run that cannot be saved cannot be paused"
    yield Finding("checkpoints", free >= need, f"{readable(free)} left, {readable(sum(sizes))} taken", advice)
    for t in history.trials if history else ():
        if t.status not in OVER and t.status is not Status.RUNNING and kept.missing(t.checkpoint):
            yield Finding("checkpoints", False, f"the checkpoint of trial {t.id}, {t.checkpoint}, is not there",
                          "bring it back, or its training begins anew")  # fmt: skip
