"""The trial as a callback sees it, and what is left of it in a pickled callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from haltune.errors import NotSupported
from haltune.log.decisions import Verdict


class Trial(Protocol):
    """What a callback needs of a trial."""

    id: int
    attempt: int
    config: dict[str, Any]
    horizon: int | None  # epochs of a full training; None: the policy alone ends it
    goal: Any
    epoch: float  # the last epoch reported in this attempt
    until: float | None  # epochs: the end of this leg
    ended: Any  # None while this worker holds it
    checkpoint: str | None
    verdict: Verdict | None  # the last
    patient: bool  # its reports wait for a database server that is away

    @property
    def max_epochs(self) -> int | None: ...

    @property
    def heartbeat_seconds(self) -> float: ...

    @property
    def keeps_checkpoint(self) -> bool: ...

    def report(
        self,
        value: float,
        epoch: float | None = None,
        seconds: float | None = None,
        *,
        validation: float | None = None,
        metrics: Mapping[str, float] | None = None,
        cost: float | None = None,
        judge: bool = True,
    ) -> Verdict: ...

    def finish(self, status: str | None = None) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def save(self, write: Callable[[Path], object], suffix: str = ".ckpt") -> str: ...

    def begin_save(self, suffix: str = ".ckpt") -> Path: ...

    def commit_save(self, temporary: Path, seconds: float = 0.0) -> str: ...

    def room_for(self, size: int) -> None: ...

    def cannot_save(self, why: str) -> None: ...

    def go_on(self) -> None: ...

    def heartbeat(self) -> None: ...

    def adopt(self) -> None: ...


@dataclass(frozen=True)
class Detached:
    """What is left of a trial in a pickled callback: enough to look at, nothing to report to."""

    id: int
    config: dict[str, Any]
    max_epochs: int | None
    horizon: int | None
    goal: Any
    epoch: float

    @classmethod
    def of(cls, trial: Trial) -> Detached:
        """The description of `trial`."""
        return cls(
            trial.id, dict(trial.config), trial.max_epochs, trial.horizon, trial.goal, float(trial.epoch)
        )

    def refuse(self) -> NoReturn:
        """Raises NotSupported."""
        raise NotSupported(
            f"this callback was unpickled and is not tied to trial {self.id} any more: "
            "its reports would be lost. Make a new one where the training runs, HaltuneCallback(trial)"
        )

    def report(self, *args: Any, **kwargs: Any) -> Verdict:
        """Raises NotSupported."""
        self.refuse()

    def finish(self, status: str | None = None) -> None:
        """Does nothing: the trial is ended where it lives."""

    def fail(self, error: BaseException) -> None:
        """Does nothing: the trial is ended where it lives."""
