"""Trainings that are functions: they report themselves, or return the value they came to."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from haltune._utils.checks import number
from haltune.display import short
from haltune.errors import InvalidInput

from ..trial import Trial

_log = logging.getLogger("haltune")


class ReportingFunction:
    """`train`, and what it returns reported as the value of a full training, unless it reported itself."""

    def __init__(self, train: Callable[[Trial], object]) -> None:
        if not callable(train):
            raise InvalidInput(f"train is a function of a trial, optimize(train), not {train!r}")
        _check_takes_a_trial(train)
        self.train = train
        self._doubted = False

    def __repr__(self) -> str:
        return repr(self.train)

    def __call__(self, trial: Trial) -> None:
        """Train. Raises InvalidInput where there is neither a value nor a report."""
        before = trial.epoch
        value: Any = self.train(trial)
        if trial.epoch == before:
            trial.session.recall(trial)  # a process that the training spawned may have reported
        if trial.epoch > before:
            self._doubt(trial, value)
            return
        if value is None:
            raise InvalidInput(
                "train(trial) returned nothing and reported nothing: return the value, or call trial.report(value) "
                "after every epoch"
            )
        if not isinstance(value, Mapping):
            value = number(f"what train(trial) returns, the {trial.goal.metric},", value)
        trial.report(value, trial.horizon)

    def _doubt(self, trial: Trial, value: Any) -> None:
        """Say once of a number that is returned after reports, and is not what the run counts for, that it is none."""
        if isinstance(value, bool):
            return
        goal, record = trial.goal, trial.session.log.history.trial(trial.id)
        try:
            returned = number("", value.get(goal.metric) if isinstance(value, Mapping) else value)
        except InvalidInput:
            return  # a model, say
        counts = record.result(goal)
        if self._doubted or math.isclose(returned, counts, rel_tol=1e-6) or math.isnan(returned):
            return
        self._doubted = True
        hint = ""
        if goal.of == "last" and np.isclose(record.values, returned, rtol=1e-6).any():
            hint = f"; where the best epoch counts, {type(goal).__name__}({goal.metric!r}, of='best')"
        _log.warning(
            "train(trial) returned %s after it had reported its epochs: trial %d counts for what it reported, %s %s at "
            "epoch %g, and what is returned is left out. Report what counts, or return it and report nothing%s",
            short(returned), trial.id, goal.metric, short(counts), record.epoch, hint,
        )  # fmt: skip


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
