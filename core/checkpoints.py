"""Where the checkpoints of a study lie, written whole or not at all, and deleted when nobody needs them.

    FOLDER/trial-7/attempt-1-epoch-12.ckpt

A checkpoint is written under a temporary name in its trial's folder, forced to the disk
and renamed; it counts once the log says so. What is written beside it under its name and
an ending (NAME.random) belongs to it. The log keeps paths relative to FOLDER, so
that a search moves with its folder.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from .errors import InvalidInput, NoRoom
from .events import OVER, Status
from .history import History, TrialRecord
from .store import Store

_UNITS = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_PART = "part-"  # what is being written


class Checkpoints:
    """The checkpoint files of one study.

    folder: made when the first checkpoint is written.
    keep: of how many of the best trials that are over the last checkpoint stays.
    quota: bytes that all checkpoints of the study may take, or a text such as "20GB"; None: no limit.

    Raises InvalidInput for a quota or a number that makes no sense.
    """

    def __init__(
        self, folder: str | os.PathLike[str], keep: int = 0, quota: float | str | None = None
    ) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
            raise InvalidInput(
                f"keep_checkpoints={keep!r}: how many of the best trials keep theirs, 0 or more"
            )
        self.keep, self.quota = keep, bytes_of(quota, "disk_quota")
        self.folder = Path(folder).absolute()
        self.refused: dict[int, str] = {}  # trials whose states this process failed to save, and why

    def of(self, trial: int) -> Path:
        """A trial's folder."""
        return self.folder / f"trial-{trial}"

    def temporary(self, trial: int, attempt: int, epoch: float, suffix: str) -> Path:
        """A path to write a checkpoint to; its folder exists. Raises OSError when it cannot be made."""
        self.of(trial).mkdir(parents=True, exist_ok=True)
        return self.of(trial) / f"{_PART}{secrets.token_hex(4)}-attempt-{attempt}-epoch-{epoch:g}{suffix}"

    def publish(self, temporary: Path) -> Path:
        """Force what was written to the disk and give it its name.

        Raises NoRoom when the quota is exceeded, OSError when the disk fails; nothing is left behind.
        """
        try:
            self._within_quota(0)
            final = temporary.with_name(temporary.name.split("-", 2)[2])
            for part in (*_beside(temporary), temporary):
                for path in _below(part):
                    _force(path)
                _rename(part, final.with_name(final.name + part.name[len(temporary.name) :]))
            _force(final.parent)
        except BaseException:
            discard(temporary)
            raise
        return final

    def room_for(self, trial: int, size: int) -> None:
        """Raises NoRoom or OSError when a checkpoint of `size` bytes cannot be written now."""
        if trial in self.refused:
            raise NoRoom(f"it failed before: {self.refused[trial]}")
        probe = self.temporary(trial, 0, 0, ".probe")
        try:
            self._within_quota(size)
            free = shutil.disk_usage(probe.parent).free
            if free < size:
                raise NoRoom(f"{probe.parent} has {readable(free)} left, a checkpoint takes {readable(size)}")
            with probe.open("wb") as file:  # what the free space says is not always what can be written
                file.write(bytes(4096))
                if size and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
        finally:
            discard(probe)

    def recorded(self, path: Path) -> str:
        """A path as the log keeps it."""
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else str(path)

    def located(self, path: str | None) -> str | None:
        """A path of the log as a user opens it."""
        if path is None or os.path.isabs(path) or not (self.folder / path).exists():
            return path
        return str(self.folder / path)

    def missing(self, path: str | None) -> bool:
        """True when a checkpoint of this folder is not there any more; a user's own paths are believed."""
        if path is None:
            return False
        own = Path(path).is_relative_to(self.folder) if os.path.isabs(path) else path.startswith("trial-")
        return own and not (self.folder / path).exists()

    def supersede(self, latest: Path) -> None:
        """Delete what else is in the folder of a trial that this process holds."""
        for path in list(latest.parent.iterdir()):
            if path != latest and not path.name.startswith(latest.name + "."):
                discard(path)

    def tidy(self, history: History, alive: frozenset[int] | None = None) -> None:
        """Delete the checkpoints of trials that will not go on, but those of the best `keep`.

        alive: the paused trials that the policy may still resume; None: all of them.
        """
        spared = set(best(history, self.keep))
        for number in self.trials():
            if number >= len(history) or number in spared:
                continue
            t = history.trial(number)
            if _is_over(history, t) or (
                t.status is Status.PAUSED and alive is not None and t.id not in alive
            ):
                self.forget(number)

    def trials(self) -> list[int]:
        """The trials that have checkpoints."""
        numbers = (folder.name.removeprefix("trial-") for folder in self.folder.glob("trial-*"))
        return [int(number) for number in numbers if number.isdigit()]

    def forget(self, trial: int) -> None:
        """Delete all checkpoints of a trial."""
        discard(self.of(trial))

    def used(self) -> int:
        """Bytes that the checkpoints of the study take."""
        total = 0
        for path in self.folder.rglob("*"):
            with suppress(OSError):  # another worker tidied up
                total += path.lstat().st_size if path.is_file() else 0
        return total

    def _within_quota(self, more: int) -> None:
        if self.quota is not None and (used := self.used() + more) > self.quota:
            raise NoRoom(
                f"checkpoints would take {readable(used)}, and disk_quota allows {readable(self.quota)}"
            )


def default_folder(store: Store, name: str) -> Path:
    """Beside a SQLite file, FILE.checkpoints/NAME; with a store in memory, a folder as short-lived; else here."""
    scheme, _, path = store.url.partition(":///")
    base = (
        Path(path).with_suffix(".checkpoints") if scheme.startswith("sqlite") else Path("haltune.checkpoints")
    )
    return getattr(store, "scratch", base) / quote(name, safe=" ")


def best(history: History, count: int, also: int | None = None, cut: bool = False) -> list[int]:
    """The `count` best trials among those that are over, and `also`, which is about to be, cut or by itself."""
    if count == 0:
        return []
    ranked = (history.trial(id) for group in history.ranked(None if cut else also) for id in group)
    return [t.id for t in ranked if t.id == also or (_is_over(history, t) and _worked(t))][:count]


def _worked(t: TrialRecord) -> bool:
    return t.complete or t.status is not Status.FAILED


def _is_over(history: History, t: TrialRecord) -> bool:
    """True when a trial will never go on: a policy that finished resumes none."""
    return t.status in OVER or (history.finished is not None and t.status is not Status.RUNNING)


def discard(path: Path) -> None:
    """Delete a checkpoint, a file or a folder, with what is beside it; what cannot be deleted is left."""
    for part in (*_beside(path), path):
        _delete(part)


def _delete(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _beside(path: Path) -> list[Path]:
    """What belongs to a checkpoint: NAME.anything."""
    return [p for p in path.parent.glob(glob.escape(path.name) + ".*") if p != path]


def _rename(old: Path, new: Path) -> None:
    if new.is_dir():
        shutil.rmtree(new)
    old.rename(new)


def _below(path: Path) -> Iterator[Path]:
    """A file; or a folder's contents, and then the folder."""
    if path.is_dir():
        yield from sorted(path.rglob("*"), key=lambda p: -len(p.parts))
    yield path


def _force(path: Path) -> None:
    """fsync, where folders can be opened for it."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def bytes_of(quota: float | str | None, what: str) -> int | None:
    """Bytes in a text such as "20GB" or a number. Raises InvalidInput for anything else."""
    if quota is None:
        return None
    try:
        if isinstance(quota, str):
            number, unit = quota.strip()[:-2], quota.strip()[-2:].upper()
            size = float(number) * _UNITS[unit]
        else:
            size = float(quota)
        if not 0 < size < float("inf"):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(
            f"{what}={quota!r}: bytes, or a text such as '20GB' ({', '.join(_UNITS)})"
        ) from None
    return int(size)


def readable(size: float) -> str:
    """Bytes in words."""
    for unit, factor in reversed(_UNITS.items()):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:g} bytes"
