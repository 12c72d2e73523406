"""The function that `Study.optimize` calls for each trial: what it returns is reported, if it reports nothing."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from haltune._utils.checks import number, unfit
from haltune.display import numeral, several_of, short
from haltune.errors import InvalidInput

from .trial import Trial

_log = logging.getLogger("haltune")


class ReportingFunction:
    """A `train` function whose returned value is reported as the final value, unless it reported itself."""

    def __init__(self, train: Callable[[Trial], object]) -> None:
        if not callable(train):
            raise InvalidInput(f"train={train!r} is not a function. Pass a function of a trial: optimize(train).")
        if (signature := unfit(train)) is not None:
            name = getattr(train, "__name__", "train")
            raise InvalidInput(
                f"train is called as train(trial), but {name}{signature} takes other arguments. To pass it the "
                "configuration, write optimize(lambda trial: train(**trial.config))."
            )
        self.train = train
        self._doubted = False

    def __repr__(self) -> str:
        return repr(self.train)

    def __call__(self, trial: Trial) -> None:
        """Train. Raises InvalidInput if there is neither a value nor a report."""
        value: Any = self.train(trial)
        trial._session.recall(trial, "what it has reported")  # a process that it spawned, or rank 0 alone, may have
        if trial.epoch or trial.has_reported:  # it may resume where it had ended by itself; a retry may report nothing
            self._doubt(trial, value)
            return
        if value is None and (trial.ended is not None or trial._unheard is not None):
            return  # the program ended it; or the end of its block raises the error of a store that took no report
        if value is None:
            raise InvalidInput(
                "train(trial) returned nothing and reported nothing. Return the value, call trial.report(value) "
                f"after every {trial.unit}, or give HaltuneCallback(trial) to the trainer or to fit."
            )
        if not isinstance(value, Mapping):
            value = number(f"the {trial.goal.metric} that train(trial) returns", value)
        trial.report(value, trial.horizon)
        if trial.horizon is not None and trial.horizon > 1:
            units = several_of(trial.unit)
            trial.hint(
                f"train(trial) returned a value without a report, so it counts as {numeral(trial.horizon)} {units} and "
                f"no trial is stopped early. To save {units}, report each {trial.unit}: write "
                "`if trial.report(value).stops: break` at its end.",
                "returned only",
            )

    def _doubt(self, trial: Trial, value: Any) -> None:
        """Warn once if a number is returned after reports and differs from the value with which the trial counts."""
        if isinstance(value, bool):
            return
        goal, record = trial.goal, trial.history.trial(trial.id)
        try:
            returned = number("", value.get(goal.metric) if isinstance(value, Mapping) else value)
        except InvalidInput:
            return  # for example a model
        counts = record.result(goal)
        if self._doubted or math.isclose(returned, counts, rel_tol=1e-6) or math.isnan(returned):
            return
        self._doubted = True
        hint, best = "", trial.history.problem.by_best_epoch
        if best is not None and np.isclose(record.values, returned, rtol=1e-6).any():
            hint = f" If the best epoch counts, use {best!r}."
        _log.warning(
            "train(trial) returned %s after its reports. The returned value is ignored: trial %d counts "
            "with its reports, %s %s at %s. Report the value that counts, or return it and report nothing.%s",
            short(returned), trial.id, goal.metric, short(counts), trial._at(record.epoch), hint,
        )  # fmt: skip
