"""The session of a study that is only looked at: it tells what was read, and refuses what would go on with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from haltune.errors import NotSupported
from haltune.log.events import Status
from haltune.ranks.agreement import same

from ..reading import Reading
from ..session.attempt import Attempt
from ..session.session import Failure, Report, Settings
from ..session.voice import Voice


class ReadingSession:
    """See Session.

    Args:
        reading: The study as its log has it.
        why: What refusals say.
    """

    def __init__(self, reading: Reading, why: str) -> None:
        self.log, self.checkpoints, self.budget = reading.log, reading.checkpoints, reading.budget
        self.monotonic, self.voice, self.waits = time.perf_counter, Voice(0), False
        self._why = why

    @property
    def settings(self) -> Settings:
        """Nothing opens it again."""
        self._refuse()

    @property
    def holder(self) -> str:
        """It holds nothing."""
        self._refuse()

    @property
    def lease_seconds(self) -> float:
        """It has no lease."""
        self._refuse()

    def sync(self) -> None:
        """A reading is of one moment."""

    def tell(self) -> None:
        """Nothing has ended here."""

    def ask(self, make: Callable[[Attempt], Any]) -> NoReturn:
        self._refuse()

    def enqueue(self, config: Mapping[str, Any], again: bool) -> NoReturn:
        self._refuse()

    def take(
        self,
        id: int,
        attempt: int,
        holder: str,
        leaving: Callable[[], str | None],
        make: Callable[[Attempt], Any],
    ) -> NoReturn:
        self._refuse()

    def record(self, attempt: Attempt, report: Report, judge: bool) -> NoReturn:
        self._refuse()

    def recall(self, attempt: Attempt) -> None:
        self._refuse()

    def checkpointed(self, attempt: Attempt, path: str, seconds: float, keep: bool = False) -> NoReturn:
        self._refuse()

    def end(self, attempt: Attempt, status: Status | None, failure: Failure | None = None) -> None:
        self._refuse()

    def warn(self, text: str, about: str | None = None) -> None:
        self._refuse()

    def lose(self, attempt: Attempt, reason: str) -> None:
        self._refuse()

    def tolerates(self, attempt: Attempt, error: BaseException) -> NoReturn:
        self._refuse()

    def wake(self, attempt: Attempt) -> None:
        self._refuse()

    def renew(self, attempt: Attempt) -> None:
        self._refuse()

    def adopt(self, attempt: Attempt) -> None:
        self._refuse()

    def decide(
        self,
        attempt: Attempt,
        about: str,
        work: Callable[[], Any],
        to_json: Callable[[Any], Any] = same,
        from_json: Callable[[Any], Any] = same,
    ) -> NoReturn:
        self._refuse()

    def wait(self, seconds: float, why: str | None) -> None:
        self._refuse()

    def pass_over(self) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotSupported(self._why)
