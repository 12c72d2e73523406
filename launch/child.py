"""What a launcher needs of a process that trains trials, whatever runs in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from haltune.study import Trial


@dataclass(frozen=True)
class Ending:
    """How the training of a trial ended, as its process tells or shows."""

    raised: str | None = None  # the traceback of what the search does not forgive
    died: str | None = None  # how the process ended without a word
    exceeded: str | None = None  # the limit for which it was ended


class Child(Protocol):
    """A process that trains one trial at a time."""

    @property
    def session(self) -> int:
        """The session, and process group, of all that it starts."""
        ...

    @property
    def began(self) -> float | None:
        """When it took up its trial, by time.monotonic; None before."""
        ...

    def ready(self) -> bool:
        """True when a trial would begin at once, not wait for room on some machine."""
        ...

    def begin(self, trial: Trial, log: Path) -> None:
        """Train a trial; what it prints goes to `log`, unless it is kept elsewhere."""
        ...

    def waitables(self) -> Sequence[Any]:
        """What multiprocessing.connection.wait can watch for news."""
        ...

    def poll(self) -> Ending | None:
        """How its trial ended, once it has."""
        ...

    def close(self, kill: bool = False) -> None:
        """Let the process end, or end it."""
        ...


@dataclass
class Slot:
    """Room for one run at a time."""

    number: int
    extra: dict[str, str]  # environment
    child: Child | None = None
    trial: Trial | None = None
    ending: Ending | None = None  # of its trial, until the log has it

    @property
    def busy(self) -> bool:
        """True while it trains."""
        return self.trial is not None
