"""Shared parts of the callbacks for XGBoost, LightGBM and CatBoost. A boosting round is an epoch."""

from __future__ import annotations

import json
import math
import os
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from haltune._utils.interruption import caller
from haltune.errors import InvalidInput, NotSupported
from haltune.study import Trial
from haltune.study.trial import Fold

from . import carried, objects
from .reporter import Reporter, missing, two_callbacks

CANNOT_FOLD = "takes no boosters to continue from"
_OWN = ".callbacks"  # the suffix of the file next to a booster
STARTED: WeakSet[Any] = WeakSet()  # boosters in a training with a HaltuneCallback


def begin(booster: Any) -> None:
    """Raise InvalidInput if a training has a second HaltuneCallback."""
    if booster in STARTED:
        raise two_callbacks("callbacks=[...]")
    STARTED.add(booster)


def given_by(trial: Trial, package: str, argument: str) -> tuple[int | None, int | None]:
    """Return what the training under way was given to continue: the trial of a file of the study, and its last round.

    Each is None if it is not known: the round of files other than the last checkpoint of this trial. After an error, a
    program can continue it a second time, when the trial has reported later rounds.

    Callbacks do not get it, so it is read from the call. Without it, a trial could continue another trial's model.
    argument: of the library's function `train`.
    """
    frame = caller("train", package)
    path = None if frame is None else frame.f_locals.get(argument)
    owner = trial.owner(path) if isinstance(path, (str, os.PathLike)) else None
    if owner != trial.id or isinstance(trial, Fold) or path != trial.resumes_from:
        return owner, None
    record = trial.history.trial(trial.id)
    return owner, int(record.checkpoint_epoch) if record.checkpoint == path else None


def begins(reporter: Reporter, rounds: float | None, model: Any, position: int, of: int | str | None) -> None:
    """Start a fit, see `Reporter.begin`. rounds: that it was given to train, from `position` on; None: not known.

    More rounds than those of a full training are no mistake: in boosting, early stopping ends a training.
    """
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


def advise_best(reporter: Reporter, keeper: str, unit: str = "round") -> None:
    """Warn if `keeper`, a part of the library, keeps the best round but the study counts the last."""
    trial, goal = reporter.trial, reporter.trial.goal
    if isinstance(trial, Fold):
        counts_last, what, do = not trial.counts_best, "a fold", f"Write trial.folds({trial.count}, of='best')"
    else:
        best = f"{type(goal).__name__}({goal.metric!r}, of='best')"
        counts_last, what, do = goal.of == "last", "a trial of this study", f"Make the goal {best}"
    if counts_last and not trial.measures.others and not reporter.ended:
        reporter.advise(
            f"{keeper} keeps the model of its best {unit}, but {what} counts with its last {unit}. {do}, so that the "
            "value is that of the model that is kept."
        )


def keep_best(reporter: Reporter, write: Callable[[Path, int], object], suffix: str) -> None:
    """Keep the rounds up to the one with which the trial counts, if this is not the last; write(path, rounds)."""
    trial = reporter.trial
    if trial.goal.of == "best" and reporter.keeps:
        rounds = int(trial.history.as_best(trial.id).epoch)
        reporter.keep(lambda path: write(path, rounds), suffix, float(rounds))


# the program's own callbacks, objectives and metrics, which libraries do not save


class Own:
    """What the program's own functions of a training remember: plain data in their attributes and variables.

    callbacks, functions: all callbacks, and all objectives and metrics, of the training.
    starts: it does not resume.
    """

    def __init__(self, callbacks: Iterable[Any], functions: Iterable[Any], trial: Trial, starts: bool) -> None:
        own, used = [*_parts(callbacks)], [*_parts(filter(None, functions))]
        self._parts, self._callbacks, self._trial = [*own, *used], len(own), trial.id
        self.parameters: Mapping[str, Any] = {}  # of the booster before the first round, set by its loop
        self._marks = {path: objects.mark(value) for path, value, _ in self._places()}
        for path, value, _ in self._places():
            if objects.is_data(self._marks[path]):
                objects.note(value, trial.id, self._marks[path])
        for one, now in zip(self._parts, self._counts(), strict=True):
            left = carried.begins(one, carried.who(trial), now)
            if left and starts:
                trial.warn(
                    f"{_name(one)} has been in another training, which changed its {left[0]}, and this one continues "
                    "with that. If it changes a training or a value, make one for each trial, within the loop.",
                    "carried",
                    once=True,
                )

    def ends(self) -> None:
        """State that the training ends."""
        for one, now in zip(self._parts, self._counts(), strict=True):
            carried.ends(one, now)

    def _counts(self) -> list[dict[str, str]]:
        """Return for each function the marks of its data by the names of its attributes and variables.

        Those of a callback are numbers and texts: most only record, in lists and dictionaries, and change nothing.
        """
        found: list[dict[str, str]] = [{} for _ in self._parts]
        for path, value, _ in self._places():
            at, _, name = path.partition("/")
            records = int(at) < self._callbacks and isinstance(value, Collection) and not isinstance(value, str)
            if not records and objects.is_data(now := objects.mark(value)):
                found[int(at)][name.removeprefix(_name(self._parts[int(at)])).lstrip(".")] = now
        return found

    def write(self, path: Path, parameters: Mapping[str, Any], library: Any = None) -> None:
        """Save next to a booster what has changed. Raises NotSupported if a part of it cannot be saved.

        parameters: its present ones. A callback may have set some, such as the learning rate.
        library: what the library itself would forget, as JSON.
        """
        _, states, _ = self._changes()
        if (why := self.unsaved()) is not None:
            raise NotSupported(why)
        set_ = {name: value for name, value in parameters.items() if self.parameters.get(name) != value}
        if states or set_ or library:
            found = {"states": states, "set": objects.data_of(set_ or None), "library": library}
            Path(f"{path}{_OWN}").write_text(json.dumps(found), encoding="utf-8")

    def put_back(self, path: str) -> tuple[Any, Any]:
        """Set what `write` saved next to a booster; return the parameters that a callback has set, and `library`."""
        file = Path(f"{path}{_OWN}")
        found = json.loads(file.read_bytes()) if file.exists() else {"states": {}, "set": None}
        states = found["states"]
        there = {name for name, _, _ in self._places()}
        for name, value, put in [*self._places(), *self._lacking(states.keys() - there)]:
            if name in states and not objects.is_shared(value, states[name], self._trial):
                with suppress(NotSupported):  # built otherwise in this attempt
                    put(objects.put_back(states[name], value))
        return objects.put_back(found["set"], None), found.get("library")

    def unsaved(self) -> str | None:
        """Return the words on what has changed and cannot be saved, or None."""
        values, _, unsaved = self._changes()
        return next((objects.unsaved(name.partition("/")[2], values[name]) for name in unsaved), None)

    def changed(self) -> str | None:
        """Return the name of a function, or of the class of an object, that remembers another thing now, or None."""
        _, states, unsaved = self._changes()
        return next((_name(self._parts[int(name.partition("/")[0])]) for name in (*states, *unsaved)), None)

    def _changes(self) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """Return all values, the states of those that changed, and the names of those that cannot be saved."""
        values = {name: value for name, value, _ in self._places()}
        states, lost, others = objects.changes(values, self._marks)
        return values, states, [*lost, *others]

    def _lacking(self, names: Iterable[str]) -> Iterator[tuple[str, Any, Callable[[Any], object]]]:
        """Yield attributes that the program sets where it trains, so that a new object has none yet."""
        for name in names:
            at, _, path = name.partition("/")
            one = self._parts[int(at)] if int(at) < len(self._parts) else None
            if hasattr(one, "__dict__") and path.startswith(f"{_name(one)}."):
                yield name, None, partial(setattr, one, path.removeprefix(f"{_name(one)}."))

    def _places(self) -> Iterator[tuple[str, Any, Callable[[Any], object]]]:
        for i, one in enumerate(self._parts):
            name = f"{i}/{_name(one)}"
            for key, (value, put) in objects.variables_of(one).items():
                yield f"{name}.{key}", value, put
            if isinstance(one, (partial, types.FunctionType)):  # its arguments are the same objects, but change
                given = (one.args, one.keywords) if isinstance(one, partial) else (one.__defaults__, one.__kwdefaults__)
                for at, value in (*enumerate(given[0] or ()), *(given[1] or {}).items()):
                    yield f"{name}[{at}]", value, lambda value: None
            if not isinstance(one, partial):
                for key, value in [*getattr(one, "__dict__", {}).items()]:
                    yield f"{name}.{key}", value, partial(setattr, one, key)


def _parts(functions: Iterable[Any], seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the functions and objects of the program in callables: libraries wrap them, and so do programs."""
    seen = set() if seen is None else seen
    for one in functions:
        one = one.__self__ if isinstance(one, types.MethodType) else one
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, partial):
            yield from _parts([one.func], seen)
            yield one
            continue
        if own := not from_library(one):
            yield one
        held = [*(value for value, _ in objects.variables_of(one).values()), *getattr(one, "__dict__", {}).values()]
        kinds = (types.FunctionType, types.MethodType, partial)
        inner = (v for v in held if isinstance(v, kinds) or (not own and callable(v) and objects.of_program(type(v))))
        yield from _parts([v for v in inner if not from_library(getattr(v, "__self__", v))], seen)


def _name(one: Any) -> str:
    one = one.func if isinstance(one, partial) else one
    return str(getattr(one, "__qualname__", type(one).__qualname__))


def from_library(one: Any) -> bool:
    """Return whether a function, or the class of an object, is of an installed package or of haltune."""
    return objects.of_library(one.__module__ if isinstance(one, types.FunctionType) else type(one).__module__)
