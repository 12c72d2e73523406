"""A study's store as a worker on another node sees it: every call goes to the keeper, and waits while it restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from haltune.errors import NotSupported, StoreError
from haltune.log import events as ev
from haltune.store.base import Lease, Release

from .checkpoints import Files
from .keeper import PAGE, PagedLog, Reply

P = ParamSpec("P")
T = TypeVar("T")
_PAUSE = 0.5  # seconds before a keeper that cannot be reached is called again


class KeeperConnection:
    """What connects a process with the keeper; remembers what every answer tells besides."""

    def __init__(self, keeper: Any) -> None:
        self._keeper = keeper
        self._leave: str | None = None
        self.ahead = 0.0  # seconds that the store's clock is ahead of this machine's

    def leaving(self) -> str | None:
        """Why this process should let go of its trial, as of the last answer."""
        return self._leave

    def log(
        self, method: Callable[Concatenate[PagedLog, P], T], /, *arguments: P.args, **options: P.kwargs
    ) -> T:
        """What a method of the keeper's log answers. Raises what it raises, StoreError when the keeper is gone."""
        found: T = self._ask(self._keeper.log, "log", method, *arguments, **options)
        return found

    def files(
        self, method: Callable[Concatenate[Files, P], T], /, *arguments: P.args, **options: P.kwargs
    ) -> T:
        """What a method of its files answers. Raises likewise."""
        found: T = self._ask(self._keeper.files, "files", method, *arguments, **options)
        return found

    def _ask(self, door: Any, group: str, *arguments: Any, **options: Any) -> Any:
        began = time.time()
        reply = _answer(door.options(concurrency_group=group), arguments, options)
        self._leave = reply.leave
        self.ahead = reply.now - (began + time.time()) / 2.0
        if reply.error is not None:
            raise reply.error
        return reply.answer


def _answer(door: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Reply:
    while True:
        try:
            reply: Reply = ray.get(door.remote(*arguments, **options))
            return reply
        except ActorUnavailableError:
            time.sleep(_PAUSE)
        except RayActorError as error:
            raise StoreError(
                "the actor that keeps the study is gone: it was started again max_restarts times, or its node died. "
                f"What it recorded is on the disk; the same program continues from there ({error})"
            ) from error


class KeeperStore:
    """A Store. url: what the keeper's is called."""

    folder: Path | None = None
    outages = 0  # the keeper notices them

    def __init__(self, line: KeeperConnection, url: str) -> None:
        self._line, self.url = line, url

    def address(self) -> str:
        return self.url

    def now(self) -> float:
        """See Store: this machine's clock, set by the keeper's last answer."""
        return time.time() + self._line.ahead

    def names(self) -> list[str]:
        return self._line.log(PagedLog.names)

    def create(self, name: str, first: ev.Event) -> bool:
        """See Store: the launcher has made the study."""
        return False

    def replace(self, name: str, first: ev.Event, seen: int) -> bool:
        """See Store: that, too, is the launcher's."""
        return False

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[ev.Event]:
        while True:
            page = self._line.log(PagedLog.read, name, start, stop)
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
        return self._line.log(PagedLog.append, name, list(events), seen, about, lease)

    def leases(self, name: str) -> list[Lease]:
        return self._line.log(PagedLog.leases, name)

    def claimed(self, name: str) -> Lease | None:
        return self._line.log(PagedLog.claimed, name)

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        return self._line.log(PagedLog.claim, name, claim, instead_of)

    def renew(self, name: str, lease: Lease) -> None:
        self._line.log(PagedLog.renew, name, lease)

    def __reduce__(self) -> NoReturn:
        raise NotSupported(
            "on Ray a trial is trained by one process: a strategy that spawns others, such as 'ddp_spawn', cannot take "
            "its study there. Train on several devices by haltune.launch.run or `haltune run`"
        )
