"""Shared parts of the callbacks for XGBoost, LightGBM and CatBoost. A boosting round is an epoch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

from haltune._utils.interruption import caller, variables
from haltune.errors import InvalidInput
from haltune.study import Trial
from haltune.study.trial import Fold

from .reporter import Reporter, missing, two_callbacks

CANNOT_FOLD = "takes no boosters to continue from"
STARTED: WeakSet[Any] = WeakSet()  # boosters in a training with a HaltuneCallback


def given_by(trial: Trial, package: str, argument: str) -> tuple[int | None, int | None]:
    """Return what the training under way was given to continue: the trial of a file of the study, and its last round.

    Each is None if it is not known: the round of files other than the last checkpoint of this trial. After an error, a
    program can continue it a second time, when the trial has reported later rounds.

    Callbacks do not get it, so it is read from the call. Without it, a trial could continue another trial's model.
    argument: of the library's function `train`.
    """
    path = variables(caller("train", package)).get(argument)
    owner = trial.owner(path) if isinstance(path, (str, os.PathLike)) else None
    if owner != trial.id or isinstance(trial, Fold) or path != trial.resumes_from:
        return owner, None
    record = trial.history.trial(trial.id)
    return owner, int(record.checkpoint_epoch) if record.checkpoint == path else None


def begins(reporter: Reporter, rounds: float | None, model: Any, position: int, of: int | str | None) -> None:
    """Start a fit, see `Reporter.begin`. rounds: that it was given to train, from `position` on; None: not known.

    More rounds than those of a full training are no mistake: in boosting, early stopping ends a training.

    Raises InvalidInput if the training has a second HaltuneCallback.
    """
    if model in STARTED:
        raise two_callbacks("callbacks=[...]")
    STARTED.add(model)
    horizon = math.inf if reporter.trial.horizon is None else reporter.trial.horizon
    planned = None if rounds is None or position + rounds >= horizon else position + rounds
    reporter.begin(planned, model, position, of)


def is_cv(booster: Any) -> bool:
    """Return whether these are the boosters of xgb.cv or lgb.cv, one for each fold."""
    return hasattr(booster, "cvfolds") or hasattr(booster, "boosters")


def named(rows: Iterable[tuple[str, str, Any, Any]]) -> dict[str, float]:
    """Return a round's metrics by "<data>-<metric>", from (data, metric, value, deviation over folds or None)."""
    metrics: dict[str, float] = {}
    for data, metric, value, deviation in rows:
        if deviation is None:
            metrics[f"{data}-{metric}"] = value
        else:
            metrics[f"{data}-{metric}-mean"], metrics[f"{data}-{metric}-std"] = value, deviation
    return metrics


def full_name(monitor: str, metrics: Mapping[str, float], train: str, how: str) -> str:
    """Return the full name of `monitor`, which can omit the data set and the "-mean" of folds.

    Raises InvalidInput if no name or more than one matches. Its message names `train`, the function that evaluates, and
    `how`, the arguments to give to it.
    """
    plain = {name.removesuffix("-mean"): name for name in metrics if not name.endswith("-std")}
    if monitor in metrics or monitor in plain:
        return plain.get(monitor, monitor)
    found = [short for short in plain if short.partition("-")[2] == monitor]
    if len(found) > 1:
        raise InvalidInput(
            f"The metric {monitor!r} was logged for {len(found)} data sets. Name one, {' or '.join(found)}, as in "
            f"HaltuneCallback(trial, monitor={found[-1]!r})."
        )
    if not found:
        raise missing(monitor, metrics, "in the first round", f"Give {train} {how}")
    return plain[found[0]]


# early stopping: the library keeps the model of its best round


def advise_best(reporter: Reporter, library: str, cv: str | None) -> None:
    """Warn if a study counts the last round of a training with early stopping. cv: the function, if it trains folds."""
    stopping = f"{library}'s early stopping"
    if cv is None:
        reporter.advise_best(stopping)
    else:
        reporter.advise_best(stopping, keeps=f"cuts the results of {cv} after", of="the last one in these results")


def keep_best(reporter: Reporter, write: Callable[[Path, int], object], suffix: str) -> None:
    """Keep the rounds up to the one with which the trial counts, if this is not the last; write(path, rounds)."""
    trial = reporter.trial
    if trial.goal.of == "best" and reporter.keeps:
        rounds = int(trial.history.as_best(trial.id).epoch)
        reporter.keep(lambda path: write(path, rounds), suffix, float(rounds))
