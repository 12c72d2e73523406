"""The sentences for wrong use: what was wrong, what is there, what to write instead."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from haltune.errors import InvalidInput
from haltune.log.problem.metric_names import direction
from haltune.study.session.session import Session


def need_trial(trial: Any, monitor: Any) -> None:
    """Raises InvalidInput when what is given as a trial is none, or `monitor` is no name."""
    usage = "write HaltuneCallback(trial), with the trial that `for trial in study` or study.ask() gives"
    if isinstance(trial, str):
        raise InvalidInput(
            f"the string {trial!r} stands where the trial belongs; were the arguments swapped? "
            f"Write HaltuneCallback(trial, monitor={trial!r})"
        )
    if isinstance(trial, type) or not (
        hasattr(trial, "report") and hasattr(trial, "goal")
    ):  # a study reports, too
        raise InvalidInput(f"{_named(trial)} is not a trial: {usage}")
    if monitor is not None and not (isinstance(monitor, str) and monitor):
        raise InvalidInput(f"monitor is a logged metric's name such as 'val_loss', not {_named(monitor)}")


def need_record(record: Any) -> None:
    """Raises InvalidInput when `record` is neither "all" nor "monitor"."""
    if record not in ("all", "monitor"):
        raise InvalidInput(
            f"record={record!r}: 'all' stores every scalar of an epoch, 'monitor' the goal's metric alone"
        )


def scalar(value: Any, name: str) -> float:
    """`value` as a float. NaN and infinity pass: the study decides what they mean.

    Raises InvalidInput for a vector, printing its shape, and for what is no number.
    """
    shape = tuple(getattr(value, "shape", ()))
    if not shape and isinstance(value, (list, tuple)):
        shape = (len(value),)
    if math.prod(shape) != 1 or isinstance(value, (list, tuple)):
        raise InvalidInput(
            f"the metric {name!r} is not one number but has shape {shape}: "
            "reduce it, by its mean say, or monitor a metric that is a scalar"
        )
    try:
        return float(value.item() if shape else value)
    except (TypeError, ValueError):
        raise InvalidInput(f"the metric {name!r} is {_named(value)}, not a number") from None


def missing(name: str, logged: Iterable[str], when: str, how: str, guess: bool = True) -> InvalidInput:
    """The error for a metric that was never logged. `when`: "in the first epoch"; `how`: how to log it.

    `guess`: whether a name that was logged may be meant.
    """
    names = sorted(set(logged))
    listed = f"What was logged: {', '.join(names)}." if names else "Nothing was logged at all."
    near = nearest(name, names) if guess else None
    monitor = f"HaltuneCallback(trial, monitor={near or 'name'!r})"
    do = f"{how}, or name another one: {monitor}"
    if near:
        do = f"Did you mean {near!r}? Then {monitor}; if not, {how[0].lower()}{how[1:]}"
    return InvalidInput(f"the metric {name!r} was not logged {when}. {listed} {do}")


def first_epochs(count: int) -> str:
    """The first epoch, the first 2 epochs."""
    return "the first epoch" if count == 1 else f"the first {count} epochs"


def nearest(name: str, names: Iterable[str], likeness: float = 0.5) -> str | None:
    """The logged name most like `name`, None when none is like it; letter case does not count.

    likeness: difflib's ratio that it needs at least; 0.9 takes a slip of the pen and nothing else.

    Never one that points the other way, val_acc for val_loss, nor one of training for one that is not.
    """
    names = [n for n in names if _may_stand_for(n, name)]
    for suffixed in names:  # Lightning's, with several validation loaders
        if suffixed.startswith(f"{name}/dataloader_idx_"):
            return suffixed
    lower = {n.lower(): n for n in names}
    found = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=likeness)
    return lower[found[0]] if found else None


def _may_stand_for(found: str, name: str) -> bool:
    ways, of_training = (
        {direction(found), direction(name)},
        [n.lower().startswith("train") for n in (found, name)],
    )
    return ways != {-1.0, 1.0} and of_training != [True, False]


def once(study: Session, sentence: str, about: str | None = None) -> None:
    """A HaltuneWarning, and in the log, once a study: the same sentence, or the first `about` a matter."""
    given = _GIVEN.setdefault(study, set())
    if (about or sentence) not in given:
        given.add(about or sentence)
        study.warn(sentence, about)


def two_callbacks(where: str) -> InvalidInput:
    """The error for two of haltune's callbacks in one fit."""
    return InvalidInput(
        f"{where} holds two HaltuneCallbacks, and each would report every epoch: leave one of them, "
        "HaltuneCallback(trial), and delete the other line"
    )


def twice(study: Any, epochs: float) -> tuple[int, float]:
    """How many fits of a study have begun again, with one more, and the epochs that were trained twice by them."""
    fits, before = _TWICE.get(study, (0, 0.0))
    _TWICE[study] = (fits + 1, before + epochs)
    return _TWICE[study]


HOLDS_THE_CLASS = "callbacks=[HaltuneCallback] holds the class: write HaltuneCallback(trial)"


def need_instance(callback: Any, kind: type) -> None:
    """Raises InvalidInput in a hook that a framework calls on the class, in the place of an instance."""
    if not isinstance(callback, kind):
        raise InvalidInput(HOLDS_THE_CLASS)


def trained_by(study: Any, model: Any, trial: int) -> int | None:
    """The other trial of a study that has trained this very model, or None."""
    models = _MODELS.setdefault(study, WeakKeyDictionary())
    first = models.setdefault(model, trial)
    return first if first != trial else None


_MODELS: WeakKeyDictionary[Any, WeakKeyDictionary[Any, int]] = WeakKeyDictionary()
_TWICE: WeakKeyDictionary[Any, tuple[int, float]] = WeakKeyDictionary()
_GIVEN: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # study -> what it was told


def _named(value: Any) -> str:
    """A short description of a value of the wrong kind."""
    text = repr(value)
    kind = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"{text} ({kind})" if len(text) <= 60 else f"an object of type {kind}"
