"""Remote access to a study's log and checkpoints: an actor, the keeper, owns them; workers on other nodes call it.

If the actor dies, Ray starts it again from the log on the disk, and repeats calls without an answer. So every call is
idempotent: an event that is in the log already is not appended again, and a piece of a file has a fixed place.

A worker that cannot reach the study's folder of checkpoints writes them on its node, and copies them to the keeper
piece by piece. A checkpoint is recorded once the keeper has all of it on its disk, under its name. A killed worker
leaves its own copy behind, which the next worker on that node removes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, unquote

from haltune._utils.disk import discard, siblings
from haltune._utils.process import new_holder, remove, surely_gone
from haltune.errors import HaltuneError, NotSupported
from haltune.log import events as ev
from haltune.log.events import to_json
from haltune.store.base import Conflict, Lease, Release, Store
from haltune.store.checkpoints import Checkpoints
from haltune.store.open import open_store

PAGE = 2000  # events in an answer
PIECE = 8 * 2**20  # bytes in a call: on small machines object stores are small
_FOLDER = "haltune-ray-"


@dataclass(frozen=True)
class Reply:
    """The result of a call."""

    answer: Any
    error: Exception | None
    now: float  # the store's clock, seconds since 1970
    leave: str | None  # why workers must give back their trials


class Keeper:
    """Owns the store of a study; an actor on the launcher's node."""

    def __init__(self, address: str, checkpoints: Checkpoints) -> None:
        self._store, self._checkpoints = open_store(address), checkpoints
        self._log = PagedLog(self._store)
        self._leave: str | None = None

    def leave(self, why: str) -> None:
        """Make workers give back their trials at their next reports."""
        self._leave = why

    def log(self, method: Callable[..., object], *arguments: Any) -> Reply:
        """Call a method of PagedLog: `keeper.log(PagedLog.names)`. The reply has the answer or the error."""
        return self._reply(method, self._log, *arguments)

    def files(self, function: Callable[..., object], *arguments: Any) -> Reply:
        """Call a function of the study's checkpoints, as `log` does."""
        return self._reply(function, self._checkpoints, *arguments)

    def _reply(self, ask: Callable[..., object], *arguments: Any) -> Reply:
        answer: object = None
        error: Exception | None = None
        try:
            answer = ask(*arguments)
        except (HaltuneError, Conflict, OSError) as raised:  # other errors are bugs
            error = raised
        return Reply(answer, error, self._store.now(), self._leave)


class PagedLog:
    """A store for remote calls: it answers in pages, and its calls are idempotent."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self) -> list[str]:
        return self._store.names()

    def read(self, name: str, start: int, stop: int | None) -> list[ev.Event]:
        """See Store; returns at most PAGE events."""
        return list(islice(self._store.read(name, start, stop), PAGE))

    def append(
        self, name: str, events: Sequence[ev.Event], seen: int, about: int | None, lease: Lease | Release | None
    ) -> int:
        conflicts = about is None or about >= 0  # otherwise the store raises no Conflict if the event is there already
        if not conflicts and (found := self._found(name, events, seen)) is not None:
            return found
        try:
            return self._store.append(name, events, seen=seen, about=about, lease=lease)
        except Conflict:
            if (found := self._found(name, events, seen)) is not None:
                return found
            raise

    def leases(self, name: str) -> list[Lease]:
        return self._store.leases(name)

    def claimed(self, name: str) -> Lease | None:
        return self._store.claimed(name)

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        return self._store.claim(name, claim, instead_of) or self._store.claimed(name) == claim

    def renew(self, name: str, lease: Lease) -> None:
        self._store.renew(name, lease)

    def _found(self, name: str, events: Sequence[ev.Event], seen: int) -> int | None:
        """Return the position of the same events in the log since `seen`; events differ by their time."""
        if not events:  # a lease alone
            return None
        wanted = [to_json(event) for event in events]
        since = [to_json(event) for event in self._store.read(name, seen)]
        for n in range(len(since) - len(wanted) + 1):
            if since[n : n + len(wanted)] == wanted:
                return seen + n
        return None


class KeeperStore:
    """A worker's Store: every call goes to the keeper. connection: see ray.KeeperConnection; url: the keeper's."""

    folder: Path | None = None
    outages = 0  # the keeper notices them

    def __init__(self, connection: Any, url: str) -> None:
        self._connection, self.url = connection, url
        self._ask: Callable[..., Any] = connection.log

    def address(self) -> str:
        return self.url

    def now(self) -> float:
        """See Store: this machine's clock, set by the keeper's last answer."""
        return float(time.time() + self._connection.ahead)

    def names(self) -> list[str]:
        return list(self._ask(PagedLog.names))

    def create(self, name: str, first: ev.Event) -> bool:
        return False

    def replace(self, name: str, first: ev.Event, seen: int) -> bool:
        return False

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[ev.Event]:
        while True:
            page = self._ask(PagedLog.read, name, start, stop)
            yield from page
            if len(page) < PAGE:
                return
            start += len(page)

    def append(
        self,
        name: str,
        events: Sequence[ev.Event],
        *,
        seen: int,
        about: int | None,
        lease: Lease | Release | None = None,
    ) -> int:
        return int(self._ask(PagedLog.append, name, list(events), seen, about, lease))

    def leases(self, name: str) -> list[Lease]:
        return list(self._ask(PagedLog.leases, name))

    def claimed(self, name: str) -> Lease | None:
        found: Lease | None = self._ask(PagedLog.claimed, name)
        return found

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        return bool(self._ask(PagedLog.claim, name, claim, instead_of))

    def renew(self, name: str, lease: Lease) -> None:
        self._ask(PagedLog.renew, name, lease)

    def __reduce__(self) -> NoReturn:
        raise NotSupported(
            "On Ray one process trains a trial, so a strategy that spawns processes, such as 'ddp_spawn', does not "
            "work. To train on several devices, use haltune.launch.run or `haltune run`."
        )


# Functions of the keeper's checkpoints, by paths relative to their folder.


def write_piece(kept: Checkpoints, path: str, data: bytes | None, offset: int) -> None:
    where = kept.folder / path
    (where if data is None else where.parent).mkdir(parents=True, exist_ok=True)
    if data is None:
        return
    with os.fdopen(os.open(where, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
        file.seek(offset)
        file.write(data)


def publish(kept: Checkpoints, temporary: str, final: str) -> None:
    part = kept.folder / temporary
    if part.exists() or not (kept.folder / final).exists():
        kept.publish(part)


def discard_part(kept: Checkpoints, path: str) -> None:
    discard(kept.folder / path)


def supersede(kept: Checkpoints, latest: str, counted: str | None) -> None:
    kept.supersede(kept.folder / latest, counted)


def contents(kept: Checkpoints, path: str) -> list[tuple[str, int | None]]:
    """Return the files of a checkpoint with their sizes in bytes, None for a folder."""
    return [
        (p.relative_to(kept.folder).as_posix(), None if p.is_dir() else p.stat().st_size)
        for p in _parts(kept.folder / path)
    ]


def read_piece(kept: Checkpoints, path: str, offset: int) -> bytes:
    with (kept.folder / path).open("rb") as file:
        file.seek(offset)
        return file.read(PIECE)


class Carried(Checkpoints):
    """The checkpoints of a worker that cannot reach the study's folder."""

    def __init__(self, keep: int, ask: Callable[..., Any]) -> None:
        for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):  # by killed workers of this node
            if surely_gone(unquote(left.name.removeprefix(_FOLDER))):
                remove(left)
        name = _FOLDER + quote(new_holder(), safe="")
        super().__init__(Path(tempfile.gettempdir()) / name, keep)
        self._ask = ask

    def publish(self, temporary: Path) -> Path:
        final = super().publish(temporary)
        name = self.recorded(final)
        part = self.recorded(final.with_name(f"part-{final.name}"))
        try:
            for path in _parts(final):
                self._send(path, part + self.recorded(path)[len(name) :])
            self._ask(publish, part, name)
        except BaseException:
            discard(final)
            with suppress(Exception):  # the first error matters more
                self._ask(discard_part, part)
            raise
        return final

    def fetch(self, path: str | None) -> None:
        """Make a folder that only this user can read, and copy a checkpoint of the study there."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if path is None or not Path(path).is_relative_to(self.folder):
            return
        for name, size in self._ask(contents, self.recorded(Path(path))):
            where = self.folder / name
            (where if size is None else where.parent).mkdir(parents=True, exist_ok=True)
            if size is not None:
                with where.open("wb") as file:
                    for offset in range(0, size, PIECE):
                        file.write(self._ask(read_piece, name, offset))

    def files_of(self, trial: int) -> NoReturn:
        raise NotSupported(
            f"trial.folder is not kept for trial {trial}: its worker cannot reach the study's folder, "
            "and deletes its own folder when it ends. Write to storage that all nodes reach, "
            "or give the study a folder there: Study(..., checkpoints=folder)."
        )

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def located(self, path: str) -> str:
        return str(self.folder / path) if path.startswith("trial-") else path

    def missing(self, path: str | None) -> bool:
        """Return False, because only the keeper can answer."""
        return False

    def room_for(self, trial: int, size: int) -> None:
        super().room_for(trial, size)
        self._ask(Checkpoints.room_for, trial, size)

    def used(self) -> int:
        return int(self._ask(Checkpoints.used))

    def supersede(self, latest: Path, counted: str | None = None, begun: Sequence[str] = ()) -> None:
        super().supersede(latest, counted, begun)  # the keeper gets only files that are whole
        self._ask(supersede, self.recorded(latest), counted)

    def trials(self) -> list[int]:
        return list(self._ask(Checkpoints.trials))

    def forget(self, *trials: int) -> None:
        super().forget(*trials)
        if trials:
            self._ask(Checkpoints.forget, *trials)

    def _send(self, path: Path, name: str) -> None:
        if path.is_dir():
            self._ask(write_piece, name, None, 0)
            return
        with path.open("rb") as file:
            self._ask(write_piece, name, file.read(PIECE), 0)
            while data := file.read(PIECE):
                self._ask(write_piece, name, data, file.tell() - len(data))


def _parts(path: Path) -> Iterator[Path]:
    """Yield a checkpoint, its companion files, and their contents; folders before their contents."""
    for part in (path, *siblings(path)):
        if part.exists():
            yield part
            yield from sorted(part.rglob("*"))
