"""Trainings that are functions: they report themselves, or return the value they came to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from haltune._utils.checks import number
from haltune.errors import InvalidInput

from ..trial import Trial


class ReportingFunction:
    """`train`, and what it returns reported as the value of a full training, unless it reported itself."""

    def __init__(self, train: Callable[[Trial], object]) -> None:
        if not callable(train):
            raise InvalidInput(f"train is a function of a trial, optimize(train), not {train!r}")
        _check_takes_a_trial(train)
        self.train = train

    def __repr__(self) -> str:
        return repr(self.train)

    def __call__(self, trial: Trial) -> None:
        """Train. Raises InvalidInput where there is neither a value nor a report."""
        before = trial.epoch
        value: Any = self.train(trial)
        if trial.epoch == before:
            trial.session.recall(trial)  # a process that the training spawned may have reported
        if trial.epoch > before:
            return
        if value is None:
            raise InvalidInput(
                "train(trial) returned nothing and reported nothing: return the value, or call trial.report(value) "
                "after every epoch"
            )
        if not isinstance(value, Mapping):
            value = number(f"what train(trial) returns, the {trial.goal.metric},", value)
        trial.report(value, trial.horizon)


def _check_takes_a_trial(train: Callable[..., object]) -> None:
    """Raises InvalidInput for a function that cannot be called with one argument, as far as that is known."""
    try:
        signature = inspect.signature(train)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(train, "__name__", "train")
        raise InvalidInput(
            f"train is called with the trial alone, train(trial), and {name}{signature} takes something else: its "
            "configuration is trial.config, so that optimize(lambda trial: train(**trial.config)) hands it on"
        ) from None
