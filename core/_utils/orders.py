"""Lists and arrays of indices that a plain loop shuffles in place, as random.shuffle(train_data) does.

A training that resumes makes them again, in their first order. So it reads its data in another order than without the
pause, unless the program restores it. haltune leaves the program's data alone, and names them. A dataset of tf.data
that shuffles from a seed starts with its first order, too, and so does a generator or a cycle over data from which the
loop reads on in each epoch, as itertools.cycle(loader).
"""

from __future__ import annotations

import gc
import inspect
import itertools
import sys
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from types import GeneratorType
from typing import Any

import numpy as np

from .around import attributes

_LONGEST, _SHORT, _SAMPLED = 10**6, 20, 1000  # elements

Variables = Sequence[tuple[str, Any]]  # those of the program's functions, by `around.on_stack`


class Orders:
    """Those of a trial."""

    def __init__(self) -> None:
        self._starts: dict[str, tuple[Any, Any]] = {}  # name -> list or array where the loop started, and its marks
        self._shuffled: set[str] = set()  # names of what has been shuffled since the trial first started

    def begins(self, variables: Variables, shuffled: Iterable[str], apart: Container[int] = ()) -> list[str]:
        """State that a loop starts. shuffled: names at the pause; return those that are there again.

        apart: ids of lists and arrays that are saved.
        """
        self._shuffled |= {*shuffled}
        held = {name: value for name, value in _held(variables).items() if id(value) not in apart}
        known = {name: start for name, start in self._starts.items() if start[0] is held.get(name)}
        self._starts = {name: (value, _marks(value)) for name, value in held.items()} | known
        return sorted(name.partition(".")[2] for name in shuffled if name in held)

    def shuffled(self, variables: Variables) -> set[str]:
        """Return the names of what the program has shuffled."""
        for name, value in _held(variables).items() if self._starts else ():
            of, start = self._starts.get(name, (None, None))
            if of is value and name not in self._shuffled and len(value) == len(start):
                every = len(value) // _SAMPLED + 1  # a shuffle moves nearly all, and a save must not take long
                moved = (_marks(value[::every]) != start[::every]).any()
                if moved and (np.sort(_marks(value)) == np.sort(start)).all():
                    self._shuffled.add(name)
        return self._shuffled


def taken(value: Any) -> bool | None:
    """Return whether a program has taken elements of its generator or cycle; None: it is none, has ended, or has texts.

    Other iterators do not show it.
    """
    if type(value) is itertools.cycle:  # a proxy may raise if isinstance asks it
        kept: list[Any] = next((held for held in gc.get_referents(value) if type(held) is list), [])  # what was taken
        return None if kept and type(kept[0]) is str else bool(kept)  # such as the colours of a plot
    if type(value) is GeneratorType and (frame := value.gi_frame) is not None:
        own = not str(frame.f_globals.get("__name__")).startswith("haltune.")
        return inspect.getgeneratorstate(value) != inspect.GEN_CREATED if own else None
    return None


def seeded(variables: Variables) -> list[str]:
    """Return the names of datasets of tf.data in variables that shuffle from a seed, in another order in each pass."""
    return sorted({name.partition(".")[2] for name, value in variables if _is_seeded(value)})


def _is_seeded(value: Any) -> bool:
    left = [value] if type(value).__module__.startswith("tensorflow.") and hasattr(value, "_inputs") else []
    with suppress(Exception):  # another version of TensorFlow
        for one in left:
            if getattr(one, "_reshuffle_each_iteration", False) is not False and any(map(int, (one._seed, one._seed2))):
                return True
            left += one._inputs()
    return False


def words_of_passes(variables: Variables) -> int:
    """Return how many words loaders of torch in variables draw in a pass over each, if these change nothing; else 0.

    A loader draws a seed for workers from torch's generator, although it has none.
    """
    torch: Any = sys.modules.get("torch.utils.data")
    found: dict[int, Any] = {}
    for _, value in variables if torch is not None else ():
        found |= {id(one): one for one in (value, *_inner(value).values()) if issubclass(type(one), torch.DataLoader)}
    fixed = all(one.num_workers == 0 and _is_fixed(one.sampler) for one in found.values())
    return 2 * sum(one.generator is None for one in found.values()) if fixed else 0


def _is_fixed(sampler: Any) -> bool:
    """Return whether a sampler draws nothing from torch's generator of the process."""
    return type(sampler).__name__ == "SequentialSampler" or getattr(sampler, "generator", None) is not None


def _held(variables: Variables) -> dict[str, Any]:
    """Return the lists and arrays of indices in variables, also in objects and dicts there.

    What has several names is returned once.
    """
    found: dict[int, tuple[str, Any]] = {}
    for name, value in variables:
        for path, one in ((name, value), *((f"{name}.{key}", held) for key, held in _inner(value).items())):
            indices = type(one) is np.ndarray and one.ndim == 1 and one.dtype.kind in "iu"
            if (indices or type(one) is list) and 1 < len(one) <= _LONGEST and ".__" not in name:
                found.setdefault(id(one), (path, one))
    return dict(found.values())


def _inner(value: Any) -> dict[Any, Any]:
    return value if type(value) is dict and len(value) <= _SHORT else attributes(value)


def _marks(value: Any) -> Any:
    """Return an array of what names each element: the ids of a list's, the numbers of an array."""
    return np.fromiter(map(id, value), np.uint64, len(value)) if isinstance(value, list) else value.copy()
