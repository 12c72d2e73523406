"""State of callbacks, and of data, that would carry over from one training to another.

A program may make an EarlyStopping once, for all trials. Most reset themselves when a fit starts; patience that trial 0
has used up in one that does not would end trial 1 early, whose values would not be those of its configuration. So a fit
is refused if such a callback of a library starts it with what its last fit has changed. What a change in the
program's own functions and callbacks means is not known, so haltune warns. Likewise of data sets and samplers that a
program makes once, and whose numbers or rows a training has changed, as a curriculum does.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from haltune._utils.around import of_library
from haltune._utils.code import assigned, mentioned, read_first, set_first
from haltune.errors import NotSupported
from haltune.study.port import Port

from . import objects, plain, tensors
from .changes import is_time, set_again, set_by_epoch, transforms_of
from .reporter import digest

Marks = dict[str, str]  # attribute -> mark

# callback or function -> the trial or fold of its last fit, and what it held at its start and at its end
_FITS: WeakKeyDictionary[Any, tuple[str, Marks, Marks]] = WeakKeyDictionary()
_COUNTS = {  # class -> what it counts and does not reset
    "EarlyStopping": ("best_score", "wait_count", "stopping_history"),  # of Lightning, of XGBoost
    "EarlyStoppingCallback": ("early_stopping_patience_counter",),
    "EveryNTimesteps": ("last_time_trigger",),
    "StopTrainingOnMaxEpisodes": ("n_episodes",),
    "StopTrainingOnNoModelImprovement": ("last_best_mean_reward", "no_improvement_evals"),
}


def who(trial: Port) -> str:
    """Return what names a trial, or a fold of it, among those of all studies of this process."""
    return f"{trial.id} {getattr(trial, 'index', '')} {trial.configuration}"


def need_own_state(who: str, callbacks: Iterable[Any], starts: bool) -> None:
    """Raise NotSupported if a callback would change this training by what the one before left in it.

    Loops call it when a fit starts, after the hooks in which callbacks reset themselves.

    who: the trial or fold that trains, by the function of this name.
    starts: the training starts from its beginning. One that resumes has the callback's state from its checkpoint.
    """
    for callback in callbacks:
        counts = _marks(callback)
        if counts and (carried := begins(callback, who, counts, starts)) and starts:
            raise NotSupported(
                f"The {type(callback).__name__} object of this fit has been in another training, and its "
                f"{carried[0]} would change this one. Make one for each trial, within the loop."
            )


def warn_of_own(trial: Port, callbacks: Iterable[Any], starts: bool) -> None:
    """Warn once if a callback of a class of the program's has a count from another training; see `need_own_state`.

    For loops in which a program makes its callbacks as objects. Functions: `functions.OwnFunctions`.
    """
    for callback in callbacks:
        if not _marks(callback) and (left := begins(callback, who(trial), _own_marks(callback))) and starts:
            warn(trial, type(callback).__qualname__, left[0])


def warn_of_data(trial: Port, data: Iterable[tuple[str, Any]], starts: bool) -> None:
    """Warn once if a data set or a sampler starts a training with what another one has changed.

    Loops call it before the first batch is read, after the hooks that set the data of an epoch.

    data: by place. starts: see `need_own_state`.
    """
    for _, part in data:
        if (left := begins(part, who(trial), _of_data(part), made=False)) and starts:
            warn(trial, type(part).__qualname__, left[0])


def warn(trial: Port, name: str, changed: str) -> None:
    """Warn once a study of a callback, function or data set that another training has changed."""
    trial.warn(
        f"{name} has been in another training, which changed its {changed}, and this one continues with the change. "
        "If it affects a training or a value, make one for each trial, within the loop.",
        "carried",
        once=True,
    )


def begins(one: Any, who: str, now: Marks, refuses: bool = False, made: bool = True) -> list[str]:
    """Note what it holds when a fit starts, a callback, function or data set; return what another fit has changed.

    refuses: the fit does not start if there is a change, so that the next one of this trial is refused, too.
    made: attributes that the last fit has made count; those of data may be computed late, such as a length.
    """
    with suppress(Exception):  # it cannot be referred to weakly, or hashed, or compared, as a tensor
        of, start, end = _FITS.get(one, (who, {}, {}))
        end = end or now  # an exception ended that fit
        changed = [name for name in end if of != who and now.get(name) == end[name] != start.get(name)]
        changed = [name for name in changed if made or name in start]
        if not (changed and refuses):
            _FITS[one] = who, now, {}
        return changed
    return []


def ends(one: Any, now: Marks) -> None:
    """Note what it holds when the fit ends."""
    with suppress(Exception):  # as in `begins`
        if one in _FITS:
            _FITS[one] = *_FITS[one][:2], now


def leave(callbacks: Iterable[Any]) -> None:
    """Note what callbacks hold when a fit ends, for `need_own_state` and `warn_of_own`."""
    for callback in callbacks:
        if counts := _marks(callback) or _own_marks(callback):
            ends(callback, counts)


def leave_data(data: Iterable[tuple[str, Any]]) -> None:
    """Note what data sets and samplers hold when a fit ends, for `warn_of_data`."""
    for _, part in data:
        ends(part, _of_data(part))


def _marks(callback: Any) -> Marks:
    libraries = (base for base in type(callback).__mro__ if of_library(base.__module__))
    names = {name for base in libraries for name in _COUNTS.get(base.__name__, ())}
    return {name: plain.mark(value) for name, value in vars(callback).items() if name in names}


_COUNTED: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()
_NO_HOOKS = {"__init__", "__setstate__", "load_state_dict", "on_load_checkpoint"}  # of each step or epoch


def _own_marks(callback: Any) -> Marks:
    """Return the marks of what a callback of the program's counts: numbers and texts, without times and records."""
    kind = type(callback)
    if kind not in _COUNTED:
        found = set() if of_library(kind.__module__) else mentioned(kind, names_of=read_first)
        hooks = {name for base in kind.__mro__ if of_library(base.__module__) for name in vars(base)} - _NO_HOOKS
        _COUNTED[kind] = found - mentioned(kind, tuple(hooks), set_first)
    held = {name: value for name, value in vars(callback).items() if name in _COUNTED[kind]}
    held = {name: value for name, value in held.items() if type(value) in objects.PLAIN and value is not None}
    return {name: plain.mark(v) for name, v in held.items() if not (isinstance(v, float) and is_time(v))}


_LONGEST = 10**6  # numbers in a row
_READS = ("__getitem__", "__getitems__", "__len__")


def _of_data(part: Any) -> Marks:
    """Return the marks of what a training may change in a data set or a sampler: numbers, texts, rows and transforms.

    What its own code sets as it is read is no change, such as a count for debugging, nor is a cache, or a number that
    each pass, or set_epoch, sets first. Of an object of a library, what `set_again` names counts.
    """
    kind, again, found = type(part), set_again(part), dict[str, str]()
    own = not of_library(kind.__module__)
    skip = mentioned(kind, _READS, assigned) if own else set[str]()
    skip |= mentioned(kind, ("__iter__",), set_first) if own else set[str]()
    skip |= set_by_epoch(kind) if hasattr(part, "set_epoch") else set[str]()
    for name, value in objects.held_by(part, skip).items():
        if own and type(value) in (bool, int, float, str):
            found[name] = plain.mark(value)
        elif (own or name == again) and (row := _row(value)) is not None:
            found[name] = row
    return found | transforms_of(part)


def _row(value: Any) -> str | None:
    """Return a text that changes with the numbers in a row, and not with their order; None if it is no such row."""
    with suppress(Exception):  # such as a tensor of a kind that NumPy lacks
        if type(value) is list:
            value = np.asarray(value) if type(value[0]) in (int, float) and len(value) <= _LONGEST else None
        elif hasattr(type(value), "untyped_storage"):
            value = tensors.local(value).cpu().numpy() if value.ndim == 1 and len(value) <= _LONGEST else None
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biuf" and len(value) <= _LONGEST:
            return digest([np.sort(value)])
    return None
