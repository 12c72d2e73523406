"""Checkpoints of a worker that does not see the study's folder: written on its node, and carried piece by piece.

A checkpoint counts once the keeper has all of it on its disk, under its name; only then is it recorded. A worker
that is killed leaves its own copy behind, which the next one on that node removes.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import quote, unquote

from haltune._utils.disk import discard
from haltune._utils.process import new_holder, surely_gone
from haltune._utils.scratch import remove
from haltune.store.checkpoints import Checkpoints

PIECE = 8 * 2**20  # bytes in a call: object stores are small where memory is
_FOLDER = "haltune-ray-"
P = ParamSpec("P")
T = TypeVar("T")


class AsksFiles(Protocol):
    """Asks the keeper's side: `ask(Files.used)`."""

    def __call__(
        self, method: Callable[Concatenate[Files, P], T], /, *arguments: P.args, **options: P.kwargs
    ) -> T: ...


class Files:
    """The keeper's side: the study's folder, by paths relative to it."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._kept = checkpoints

    def trials(self) -> list[int]:
        return self._kept.trials()

    def forget(self, *trials: int) -> None:
        self._kept.forget(*trials)

    def used(self) -> int:
        return self._kept.used()

    def room_for(self, trial: int, size: int) -> None:
        self._kept.room_for(trial, size)

    def write(self, path: str, data: bytes | None, offset: int) -> None:
        """A piece of a file; without data, a folder."""
        where = self._kept.folder / path
        (where if data is None else where.parent).mkdir(parents=True, exist_ok=True)
        if data is None:
            return
        with os.fdopen(os.open(where, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
            file.seek(offset)
            file.write(data)

    def publish(self, temporary: str, final: str) -> None:
        """Force it to the disk under its name. Raises NoRoom, OSError."""
        part = self._kept.folder / temporary
        if part.exists() or not (self._kept.folder / final).exists():
            self._kept.publish(part)

    def discard(self, path: str) -> None:
        """Delete what is not wanted after all."""
        discard(self._kept.folder / path)

    def supersede(self, latest: str) -> None:
        self._kept.supersede(self._kept.folder / latest)

    def contents(self, path: str) -> list[tuple[str, int | None]]:
        """The files of a checkpoint and what is beside it, by relative paths: bytes, None for a folder."""
        return [
            (p.relative_to(self._kept.folder).as_posix(), None if p.is_dir() else p.stat().st_size)
            for p in _parts(self._kept.folder / path)
        ]

    def read(self, path: str, offset: int) -> bytes:
        """A piece of a file."""
        with (self._kept.folder / path).open("rb") as file:
            file.seek(offset)
            return file.read(PIECE)


class Carried(Checkpoints):
    """The worker's side."""

    def __init__(self, keep: int, ask: AsksFiles) -> None:
        _sweep()
        name = _FOLDER + quote(new_holder(), safe="")
        super().__init__(Path(tempfile.gettempdir()) / name, keep)
        self._ask = ask

    def publish(self, temporary: Path) -> Path:
        """See Checkpoints; returns when the keeper has it."""
        final = super().publish(temporary)
        name = self.recorded(final)
        part = self.recorded(final.with_name(f"part-{final.name}"))
        try:
            for path in _parts(final):
                self._send(path, part + self.recorded(path)[len(name) :])
            self._ask(Files.publish, part, name)
        except BaseException:
            discard(final)
            with suppress(Exception):  # what went wrong matters more
                self._ask(Files.discard, part)
            raise
        return final

    def fetch(self, path: str | None) -> None:
        """Make a folder for this user alone, and bring a checkpoint of the log there if it is one of the study's."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if path is None or not Path(path).is_relative_to(self.folder):
            return
        for name, size in self._ask(Files.contents, self.recorded(Path(path))):
            where = self.folder / name
            (where if size is None else where.parent).mkdir(parents=True, exist_ok=True)
            if size is not None:
                with where.open("wb") as file:
                    for offset in range(0, size, PIECE):
                        file.write(self._ask(Files.read, name, offset))

    def clear(self) -> None:
        """Delete what is here: the keeper has it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def located(self, path: str | None) -> str | None:
        """See Checkpoints; where `fetch` puts it."""
        own = path is not None and path.startswith("trial-")
        return str(self.folder / str(path)) if own else path

    def missing(self, path: str | None) -> bool:
        """Only the keeper could tell."""
        return False

    def room_for(self, trial: int, size: int) -> None:
        """See Checkpoints; here and there."""
        super().room_for(trial, size)
        self._ask(Files.room_for, trial, size)

    def used(self) -> int:
        return self._ask(Files.used)

    def supersede(self, latest: Path) -> None:
        super().supersede(latest)
        self._ask(Files.supersede, self.recorded(latest))

    def trials(self) -> list[int]:
        return self._ask(Files.trials)

    def forget(self, *trials: int) -> None:
        super().forget(*trials)
        if trials:
            self._ask(Files.forget, *trials)

    def _send(self, path: Path, name: str) -> None:
        if path.is_dir():
            self._ask(Files.write, name, None, 0)
            return
        with path.open("rb") as file:
            self._ask(Files.write, name, file.read(PIECE), 0)
            while data := file.read(PIECE):
                self._ask(Files.write, name, data, file.tell() - len(data))


def _parts(path: Path) -> Iterator[Path]:
    """A checkpoint, what is beside it, and what is in them; folders before their contents."""
    for part in (path, *path.parent.glob(f"{glob.escape(path.name)}.*")):
        if part.exists():
            yield part
            yield from sorted(part.rglob("*"))


def _sweep() -> None:
    """Remove what killed workers left on this node."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        if surely_gone(unquote(folder.name.removeprefix(_FOLDER))):
            remove(folder)
