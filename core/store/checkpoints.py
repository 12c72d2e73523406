"""Checkpoint files of a study: written atomically, and deleted when they are no longer needed.

    digits.checkpoints/study-5f0c9a31b2d4/trial-7/attempt-1-epoch-12-9f3b61c4.ckpt     next to a SQLite file
    haltune.checkpoints/NAME-IDENTITY/...                                   working directory, for a store on a server
    FOLDER/NAME-IDENTITY/trial-7/best-attempt-1-epoch-9-0a17d2e8.ckpt       in Study(checkpoints=FOLDER)

In a study of steps or tokens a name says step-1200, token-9437184.

The identity is random and part of the study's first event, so studies never share a folder, whatever their names. Paths
in the log are relative to the study's folder, so you can move both.

A checkpoint is written under a temporary name in its trial's folder, flushed to the disk and renamed. It is valid once
the log contains its name. Files with an ending after its name (NAME.random, NAME.start) belong to it. NAME.parts lists
the files of a folder with their sizes: a trial whose checkpoint has lost one starts from scratch. "best-" is the state
after the best epoch, if the goal counts that epoch and it was saved in addition to the state to resume from.

No name is used twice. A superseded checkpoint can therefore be deleted by its name at any later time, and an attempt
never deletes a later attempt's checkpoints. Other files in the folder are not counted, followed or deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from haltune._utils import disk
from haltune._utils.checks import check_counts, pythonic
from haltune._utils.disk import StrPath
from haltune.display import plural
from haltune.errors import InvalidInput, NoRoom
from haltune.hints import KnowsArguments
from haltune.log.events import OVER, Created, Status, to_json
from haltune.log.history import History
from haltune.log.records import TrialRecord

from .base import Store

_UNITS = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_LONGEST_NAME = 60  # characters of a study's name in the name of its folder
_PART = "part-"  # prefix of a file that is being written
_PARTS = ".parts"  # suffix of the list of the files in a checkpoint that is a folder
_OWN = "files"  # folder of the files that a training writes itself
_GROWS = "haltune.json"  # a callback may write it again later, so its size is not listed
_FOLDER = re.compile("trial-(0|[1-9][0-9]{0,17})")
_FILE = re.compile(r"(?:part-)?(best-)?attempt-([0-9]{1,18})-[^\W\d_]\w*-[0-9.e+-]+-[0-9a-f]{8}.*", re.S)


@dataclass(frozen=True)
class Checkpointing(KnowsArguments):
    """Location, number and size limit of a study's checkpoints.

    Args:
        folder: Folder of the checkpoints; several studies may share one. Default: None, next to the store's file. For
            a study in memory, a temporary folder that is deleted at the end of the process.
        keep: Number of the best finished trials whose model is kept, from the epoch that counts:
            `study.best.checkpoint`. With several goals, all trials on the Pareto front are kept unless it is 0.
            Default: 1.
        disk_quota: Largest total size of the checkpoints in bytes, or text such as "20GB". If a checkpoint would
            exceed it, the trial is not paused. A checkpoint as large as the trial's last one is refused before it is
            written. Default: None, no limit.

    Raises:
        InvalidInput: If a number or the quota is invalid.

    Example:
        >>> kept = Checkpointing("models", keep=3, disk_quota="20GB")
        >>> study = Study({"x": Float(0.0, 1.0)}, "acc", max_epochs=3, seed=0, budget="1 trial", checkpoints=kept)
        >>> study.checkpoints.keep
        3
    """

    folder: StrPath | None = None
    keep: int = 1
    disk_quota: float | str | None = None

    def __post_init__(self) -> None:
        pythonic(self)
        check_counts(keep=self.keep)
        bytes_of(self.disk_quota, "disk_quota")


def own_folder(store: Store, name: str, created: Created, shared: StrPath | None = None) -> Path:
    """Return the folder of one study's checkpoints, which may not exist.

    created: the study's first event. shared: the user's folder, or the study's own one. None: next to the store's file,
    or in the working directory; or, if it is not there, in the folder that the study was created with in this store.
    """
    if shared is not None and (not isinstance(shared, str | os.PathLike) or "\0" in str(shared)):
        raise InvalidInput(f"checkpoints={shared!r}: use the path of a folder, without the character 0")
    base = (store.folder or Path("haltune.checkpoints") if shared is None else Path(shared)).absolute()
    there = next(path for path in (base, *base.parents) if os.path.lexists(path))
    if shared is not None and not there.is_dir():
        raise InvalidInput(f"checkpoints={str(shared)!r}: {there} is a file. Use the path of a folder")
    identity = created.id
    if not re.fullmatch("[0-9a-f]{1,64}", identity):
        text = json.dumps([name, to_json(created)], sort_keys=True)
        identity = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    own = f"{quote(name, safe=' ', errors='replace')[:_LONGEST_NAME]}-{identity}"
    recorded = os.path.join(created.checkpoints, own)
    is_copy = created.next_to != str(store.folder or "")  # each would delete checkpoints of the other
    named = shared is None and bool(created.checkpoints) and not is_copy
    if named and os.path.isdir(recorded) and not os.path.isdir(base / own):
        return Path(recorded)
    return base if base.name == own else base / own


class Checkpoints:
    """The checkpoint files of one study.

    Args:
        folder: Created with the first checkpoint.
        keep: Number of the best finished trials that keep their last checkpoint.
        quota: Largest total size in bytes, or text such as "20GB". Default: no limit.

    Raises:
        InvalidInput: If the quota is invalid.
    """

    def __init__(self, folder: StrPath, keep: int = 1, quota: float | str | None = None) -> None:
        self.keep, self.quota = keep, bytes_of(quota, "disk_quota")
        self.folder = Path(folder).absolute()
        self.refused: dict[int, str] = {}  # trials that this process failed to save, and why
        self._undecided: set[str] = set()  # names that this process is about to log

    def of(self, trial: int) -> Path:
        return self.folder / f"trial-{trial}"

    def files_of(self, trial: int) -> Path:
        """Return the folder for the files that a training writes itself."""
        return self.of(trial) / _OWN

    def artifacts(self, trial: int, most: int) -> list[Path]:
        """Return the first files that a training wrote itself: into its folder, or into that of its program."""
        roots = [self.of(trial) / _OWN, *sorted(self.of(trial).glob("run-*"))]
        found = (Path(above) / name for root in roots for above, _, names in os.walk(root) for name in sorted(names))
        return list(islice((path for path in found if path.is_file() and not path.is_symlink()), most))

    def output_of(self, trial: int) -> Path:
        """Return the file with the output of a trial that a worker process trained, if no other folder was named."""
        default = self.folder.parent.suffix == ".checkpoints"
        folder = self.folder.parent.with_suffix(".logs") / self.folder.name if default else self.folder / "logs"
        return folder / f"trial-{trial}.log"

    def begin(
        self, trial: int, attempt: int, epoch: float, suffix: str, keep: bool = False, unit: str = "epoch"
    ) -> Path:
        """Return `temporary`, if a checkpoint as large as the trial's last one of this kind has room.

        Otherwise raise NoRoom, before anything is written: a full disk may end other programs too.
        """
        kind = "best-" if keep else None
        known = (disk.size(path) for path, of, _ in _files(self.of(trial)) if of == kind)
        if size := max(known, default=0):
            self._need_room(self.of(trial), size)
        return self.temporary(trial, attempt, epoch, suffix, keep, unit)

    def temporary(
        self, trial: int, attempt: int, epoch: float, suffix: str, keep: bool = False, unit: str = "epoch"
    ) -> Path:
        """Create the trial's folder and return a path to write a checkpoint to. Raises OSError.

        keep: True for the state after the trial's best epoch, which is kept in addition to the state to continue from.
        unit: of `epoch`.
        """
        if os.path.basename(suffix) != suffix or "\0" in suffix:
            raise InvalidInput(f"suffix={suffix!r}: use the end of a file name, such as '.ckpt'")
        folder = self.of(trial)
        folder.mkdir(parents=True, exist_ok=True)
        kind = "best-" if keep else ""
        count = str(int(epoch)) if float(epoch).is_integer() else f"{epoch:g}"
        where = re.sub(r"\W+", "_", unit) + "-" + count
        return folder / f"{_PART}{kind}attempt-{attempt}-{where}-{secrets.token_hex(4)}{suffix}"

    def publish(self, temporary: Path) -> Path:
        """Flush a checkpoint to the disk, rename it, and return its path.

        If the quota is exceeded it raises NoRoom, if the disk fails OSError; then the checkpoint is deleted.
        """
        final = _final(temporary)
        try:
            self._within_quota(0)
            if disk.is_folder(temporary):
                sizes = {name: 0 if name == _GROWS else size for name, size in disk.sizes(temporary).items()}
                temporary.with_name(temporary.name + _PARTS).write_text(json.dumps(sizes), encoding="utf-8")
            for part in (*disk.siblings(temporary), temporary):
                disk.force(part)
                part.rename(final.with_name(final.name + part.name[len(temporary.name) :]))
            disk.force_folder(final.parent)
        except BaseException:
            disk.discard(temporary)
            disk.discard(final)
            raise
        return final

    @contextmanager
    def undecided(self, temporary: Path) -> Iterator[None]:
        """Prevent other threads of this process from superseding the checkpoint inside the block."""
        names = {temporary.name, _final(temporary).name}
        self._undecided |= names
        try:
            yield
        finally:
            self._undecided -= names

    def room_for(self, trial: int, size: int) -> None:
        """Raise NoRoom or OSError if a checkpoint of `size` bytes cannot be written now."""
        if trial in self.refused:
            raise NoRoom(f"saving it failed before: {self.refused[trial]}")
        probe = self.temporary(trial, 0, 0, ".probe")
        try:
            self._need_room(probe.parent, size)
            with probe.open("xb") as file:  # a disk quota may forbid the use of free space
                file.write(bytes(4096))
                if size and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
        finally:
            disk.discard(probe)

    def recorded(self, path: StrPath) -> str:
        """Return the path to log: relative to the study's folder if it is in it, because both may be moved."""
        own = Path(path)
        return own.relative_to(self.folder).as_posix() if own.is_relative_to(self.folder) else str(path)

    def located(self, path: str) -> str:
        """Return the full path of a logged checkpoint, which may be missing (see `missing`)."""
        return str(self.folder / path) if self._is_ours(path) else path

    def missing(self, path: str | None) -> bool:
        """Return whether a checkpoint in this folder was deleted. Paths of the user are never missing."""
        return path is not None and self._is_ours(path) and disk.is_gone(self.folder / path)

    def content(self, path: str) -> str:
        """Return the bytes and a digest of a checkpoint that is a file; "" for a folder, and without a file."""
        return disk.content(self.folder / path)

    def rewritten(self, path: str | None, content: str) -> bool:
        """Return whether a file of the user's has been written after it was recorded. content: as recorded."""
        if path is None or not content or self.is_written(self.folder / path):
            return False
        return self.content(path) not in ("", content)

    def damage(self, path: str | None, content: str = "") -> str | None:
        """Return what happened to a checkpoint in this folder, after "The checkpoint ..."; None if it seems whole.

        content: as recorded; "": not known.
        """
        if path is None or not self._is_ours(path):
            return None
        if self.missing(path):
            return "does not exist any more"
        whole = self.folder / path
        for name, size in _listed_parts(whole).items():
            if disk.is_gone(whole / name):
                return f"has lost its file {name}"
            if (found := disk.length(whole / name)) is not None and found < size:
                return f"has only {plural(found, 'byte')} of {size} in its file {name}"
        if not content or not self.is_written(whole) or (now := self.content(path)) in ("", content):
            return None
        found, size = (int(it.partition("-")[0]) for it in (now, content))
        return f"has only {plural(found, 'byte')} of {size}" if found < size else "is not as it was saved"

    def owner(self, path: StrPath) -> int | None:
        """Return the trial whose folder a path lies in, or None."""
        try:
            where, folder = os.path.realpath(path), os.path.realpath(self.folder)
        except ValueError:  # no file can have this name
            return None
        inside = os.path.relpath(where, folder).split(os.sep)
        found = _FOLDER.fullmatch(inside[0])
        return int(found[1]) if found and len(inside) > 1 else None

    def is_written(self, path: StrPath) -> bool:
        """Return whether haltune has named this checkpoint; False for a file of the program's own."""
        id = self.owner(path)
        return id is not None and not Path(path).is_relative_to(self.of(id) / _OWN)

    def _is_ours(self, path: str) -> bool:
        where = self.folder / path
        parts = where.relative_to(self.folder).parts if where.is_relative_to(self.folder) else ()
        return len(parts) > 1 and bool(_FOLDER.fullmatch(parts[0]))

    def supersede(self, latest: Path, counted: str | None = None, begun: Sequence[str] = ()) -> None:
        """Delete the trial's checkpoints of the same kind from this or earlier attempts, except `latest`.

        counted: the path of a state with which the trial still counts; see History.kept. begun: names of the files that
        are being written.
        """
        trial, found = _FOLDER.fullmatch(latest.parent.name), _FILE.fullmatch(latest.name)
        folder = self.of(int(trial[1])) if trial else None
        if folder is None or found is None or not disk.is_folder(folder):
            return
        kept = {latest.name, os.path.basename(counted or latest), *self._undecided, *begun}
        for path, kind, attempt in _files(folder):
            belongs = any(path.name == name or path.name.startswith(name + ".") for name in kept)
            if kind == found[1] and attempt <= int(found[2]) and not belongs:
                disk.delete(path)

    def tidy(self, history: History, alive: frozenset[int] | None = None, for_good: bool = True) -> None:
        """Delete the checkpoints of trials that will not continue, except those of the best `keep`.

        alive: paused trials that the policy may resume; None: all. for_good: False if a policy that ended the search
        may continue it with a larger budget.
        """
        kept = set(keepers(history, self.keep))

        def continues(t: TrialRecord) -> bool:
            if t.status in OVER or (for_good and _is_over(history, t)):
                return False
            return t.status is not Status.PAUSED or alive is None or t.id in alive

        there = [n for n in self.trials() if n < len(history) and n not in kept]
        self.forget(*(n for n in there if not continues(history.trial(n))))
        for t in map(history.trial, kept):  # its worker may have been killed before it deleted older ones
            own = t.kept if os.path.basename(t.kept or "").startswith("best-") else None  # else one of the others
            for path in filter(None, (t.checkpoint, own)):
                self.supersede(self.folder / path, history.kept(t.id))

    def trials(self) -> list[int]:
        return sorted(self._folders())

    def forget(self, *trials: int) -> None:
        found = self._folders() if trials else {}
        for folder in (found[trial] for trial in trials if trial in found):
            for path, _, _ in _files(folder):
                disk.delete(path)
            with suppress(OSError):  # not empty
                folder.rmdir()

    def used(self) -> int:
        return sum(self.sizes())

    def sizes(self) -> list[int]:
        return [disk.size(path) for folder in self._folders().values() for path, _, _ in _files(folder)]

    def _folders(self) -> dict[int, Path]:
        found = ((path, _FOLDER.fullmatch(path.name)) for path in disk.listed(self.folder))
        return {int(match[1]): path for path, match in found if match and disk.is_folder(path)}

    def _need_room(self, folder: Path, size: int) -> None:
        """Raise NoRoom if a checkpoint of `size` bytes would exceed the quota or the disk."""
        self._within_quota(size)
        if (free := shutil.disk_usage(folder).free) < size:
            raise NoRoom(f"{folder} has {readable(free)} left, but a checkpoint needs {readable(size)}")

    def _within_quota(self, more: int) -> None:
        if self.quota is not None and (used := self.used() + more) > self.quota:
            raise NoRoom(f"checkpoints would take {readable(used)}, but disk_quota is {readable(self.quota)}")


def _final(temporary: Path) -> Path:
    return temporary.with_name(temporary.name.removeprefix(_PART))


def _files(folder: Path) -> list[tuple[Path, str | None, int]]:
    found = ((path, _FILE.fullmatch(path.name)) for path in disk.listed(folder))
    return [(path, match[1], int(match[2])) for path, match in found if match]


def _listed_parts(checkpoint: Path) -> dict[str, int]:
    """Return the bytes of each file in a checkpoint's folder when it was committed; none if there is no list."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = json.loads(checkpoint.with_name(checkpoint.name + _PARTS).read_text(encoding="utf-8"))
        return {str(name): int(size) for name, size in found.items()}
    return {}


def keepers(history: History, count: int, also: int | None = None, cut: bool = False) -> list[int]:
    """Return the `count` best finished trials; with several goals, all on the Pareto front.

    also: a trial that is about to finish. cut: it was stopped or paused.
    """
    if count == 0:
        return []
    if history.problem.further:
        front = history.front(None if cut else also)
        return [id for id in front if id == also or _is_over(history, history.trial(id))]
    ranked = (history.trial(id) for group in history.ranked(None if cut else also) for id in group)
    kept = (t.id for t in ranked if t.id == also or (_is_over(history, t) and _worked(t)))
    return list(islice(kept, min(count, len(history))))


def _worked(t: TrialRecord) -> bool:
    return t.complete or t.status is not Status.FAILED


def _is_over(history: History, t: TrialRecord) -> bool:
    """Return whether a trial will never continue: a policy that has finished resumes none."""
    return t.status in OVER or (history.finished is not None and t.status is not Status.RUNNING)


def bytes_of(quota: float | str | None, what: str) -> int | None:
    """Return the bytes of a text such as "20GB" or of a number. Raises InvalidInput."""
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
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{what}={quota!r}: use bytes, or text such as '20GB' ({', '.join(_UNITS)})") from None
    return int(size)


def readable(size: float) -> str:
    for unit, factor in reversed(_UNITS.items()):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return plural(size, "byte")
