"""A plain training loop with what the framework callbacks have: it outlives a broken study.

`for epoch in trial.epochs()` and `trial.report(value)` are enough for a short loop. This
adds what `trial.report` cannot: a store out of reach is an interruption of the record,
not of the training; validation is timed apart; a stop is latched.

    from haltune.callbacks.loop import TrainingLoop

    with trial:
        loop = TrainingLoop(trial)
        for epoch in loop:                 # trial.epoch + 1 ... trial.max_epochs, or until stopped
            train_one_epoch(model)
            with loop.validation():
                loss = validate(model)
            loop.report(loss)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from haltune.errors import InvalidInput

from .handle import Trial
from .reporter import Reporter


class TrainingLoop:
    """The epochs of one training, reported to `trial`.

    `verbose`: print a line for every report. `now`: a monotonic clock, seconds.
    Raises InvalidInput when `trial` is not a trial, or when an epoch is reported outside the loop.
    """

    def __init__(
        self, trial: Trial, verbose: bool = False, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._reporter = Reporter(trial, verbose=verbose, now=now)
        self._epoch: int | None = None

    @property
    def trial(self) -> Trial:
        """The trial it reports to."""
        return self._reporter.trial

    @property
    def stopping(self) -> bool:
        """True when the loop will not go on."""
        return self._reporter.stopping

    def __iter__(self) -> Iterator[int]:
        """Epochs counted from 1, or from after the checkpoint of a resumed trial."""
        self._reporter.begin()
        horizon = self.trial.max_epochs
        for epoch in itertools.count(int(self.trial.epoch) + 1):
            if self.stopping or (horizon is not None and epoch > horizon):
                break
            self._epoch = epoch
            yield epoch
        self._epoch = None
        self._reporter.end_of_fit()

    @contextmanager
    def validation(self) -> Iterator[None]:
        """Time spent here counts as validation."""
        self._reporter.clock.validating()
        try:
            yield
        finally:
            self._reporter.clock.validated()

    def report(self, value: Any) -> bool:
        """Report the goal's metric for the epoch in progress; True when the loop will not go on."""
        if self._epoch is None:
            raise InvalidInput("report within the loop: for epoch in loop: ...; loop.report(value)")
        return self._reporter.report(value, self._epoch)
