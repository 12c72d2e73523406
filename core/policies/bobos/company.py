"""The curves of a study as optimal stopping sees them: of the run that is judged, and of the runs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from haltune._utils.arrays import Array
from haltune.log.events import Status
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.log.scores import FALL, Scale

from .matched_curves import Beside


class Runs(Protocol):
    """What optimal stopping asks of a study: a `History` answers, and so may the trials of another library."""

    @property
    def problem(self) -> Problem: ...
    @property
    def seed(self) -> int: ...
    @property
    def trials(self) -> Sequence[TrialRecord]: ...
    def with_status(self, *status: Status) -> list[TrialRecord]: ...
    def incumbent(self, exclude: int | None = None) -> float: ...
    def scale_of(self, trial: int) -> Scale | None: ...
    def rng(self, purpose: str, *keys: int) -> np.random.Generator: ...


_AT_REST = (Status.COMPLETED, Status.STOPPED, Status.PAUSED)  # a run under way would change with each report


def errors_of(trial: TrialRecord, peaks: bool, scale: Scale | None = None) -> tuple[Array, bool]:
    """Errors 1 - score of epochs 1..n, gaps filled along straight lines; and whether the curve falls.

    Where runs count for their best epoch (peaks), it is the curve of the running best, which never falls. Else
    one whose last finite value lies well below its best is replaced by that. scale: the trial's own if None.
    """
    epochs = trial.epochs[trial.whole]
    scores = (trial.scores if scale is None else scale.score(trial.values))[trial.whole]
    errors = np.interp(np.arange(1.0, epochs[-1] + 1.0), epochs, 1.0 - scores)
    finite = scores[np.isfinite(trial.values[trial.whole])]
    falls = bool(len(finite) and finite.max() - finite[-1] > FALL)
    return (np.minimum.accumulate(errors) if falls or peaks else errors), falls and not peaks


def company(history: Runs, trial: TrialRecord) -> list[TrialRecord]:
    """The runs at rest that were trained as this one is, on as many samples."""
    return [
        t
        for t in history.with_status(*_AT_REST)
        if t.id != trial.id and len(t.epochs) and (t.partial, t.resource) == (trial.partial, trial.resource)
    ]


def beside(runs: Sequence[TrialRecord], peaks: bool, scale: Scale, horizon: int, steps: slice) -> Beside:
    """Their errors on the scale of the run that is judged, at those of epochs 1, 2, ... that `steps` takes."""
    curves = [errors_of(t, peaks, scale)[0][steps] for t in runs if t.whole.any()]
    return Beside.of(curves, horizon)
