"""What is left of a trial in a pickled callback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from haltune.errors import NotSupported
from haltune.log.decisions import Verdict
from haltune.study import Trial


@dataclass(frozen=True)
class Detached:
    """What is left of a trial in a pickled callback: enough to look at, nothing to report to."""

    id: int
    config: dict[str, Any]
    max_epochs: int | None
    horizon: int | None
    goal: Any
    epoch: float
    attempt: int = 0  # none
    checkpoint: str | None = None
    verdict: Verdict | None = None

    @classmethod
    def of(cls, trial: Trial) -> Detached:
        """The description of `trial`."""
        return cls(
            trial.id, dict(trial.config), trial.max_epochs, trial.horizon, trial.goal, float(trial.epoch)
        )

    def adopt(self) -> NoReturn:
        """Raises NotSupported: there is nothing to go on with."""
        raise NotSupported(
            f"this callback was unpickled and is not tied to trial {self.id} any more: "
            "its reports would be lost. Make a new one where the training runs, HaltuneCallback(trial)"
        )

    def report(self, *args: Any, **kwargs: Any) -> Verdict:
        """Raises NotSupported."""
        self.adopt()

    def before_end(self, act: object) -> NoReturn:
        """Raises NotSupported: it never ends."""
        self.adopt()

    def finish(self, status: str | None = None) -> None:
        """Does nothing: the trial is ended where it lives."""

    def fail(self, error: BaseException) -> None:
        """Does nothing: the trial is ended where it lives."""
