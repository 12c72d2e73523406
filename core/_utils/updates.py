"""The weights that torch's optimizers update: what a loop of the user's own trains, which states no model.

`take` shows whether it is another model than before. `Training` has the weights of each optimizer of a trial, from its
first step on, and `mark_of` a digest by which weights that another trial has trained are known.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet, ref

_stepped: dict[int, WeakSet[Any]] = {}  # thread -> optimizers that made a step since it asked last
_trainings: dict[int, Training] = {}  # thread -> that of its trial
_watches = False
_SAMPLED = 8  # elements of each weight in a mark


@dataclass(frozen=True)
class Updated:
    """Weights that were updated, held weakly."""

    weights: Mapping[int, Any]  # id -> weak reference
    shapes: tuple[tuple[int, ...], ...]

    def shares(self, other: Updated) -> bool:
        """Return whether some of the weights are among others."""
        both = self.weights.keys() & other.weights.keys()
        return any((w := self.weights[i]()) is not None and other.weights[i]() is w for i in both)

    @property
    def alive(self) -> bool:
        """True while some of them exist."""
        return any(reference() is not None for reference in self.weights.values())


class Training:
    """The weights that the optimizers of a trial update, in the thread in which it starts.

    begins: is called with the mark of an optimizer's weights before its first step.
    """

    def __init__(self, begins: Callable[[str], None]) -> None:
        self._begins, self._thread = begins, threading.get_ident()
        self._outer = _trainings.get(self._thread)  # of a trial around this one
        self._known: WeakSet[Any] = WeakSet()  # optimizers
        self._weights: list[tuple[list[Any], str]] = []  # weak references, and the mark before the first step
        _trainings[self._thread] = self
        watch()

    def steps(self, optimizer: Any) -> None:
        """Note an optimizer that is about to make a step."""
        if optimizer not in self._known:
            self._known.add(optimizer)
            weights = [w for group in optimizer.param_groups for w in group["params"]]
            self._weights.append(([ref(w) for w in weights], mark := mark_of(weights)))
            self._begins(mark)

    def marks(self) -> list[str]:
        """Return the marks of all weights that have changed and still exist."""
        now = [([reference() for reference in weights], start) for weights, start in self._weights]
        marks = [(mark_of(weights), start) for weights, start in now if all(w is not None for w in weights)]
        return [mark for mark, start in marks if mark != start]

    def ends(self) -> None:
        """Note no more optimizers, but those of the trial around this one."""
        if _trainings.get(self._thread) is self:
            del _trainings[self._thread]
            if self._outer is not None:
                _trainings[self._thread] = self._outer

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A process that is started to train has none: it is None there."""
        return type(None), ()


def mark_of(weights: Iterable[Any]) -> str:
    """Return a digest of a sample of each weight; "" if they cannot be read."""
    mark = hashlib.sha256()
    with suppress(Exception):  # weights without data, or of a kind that has no list
        for weight in weights:
            here = weight.detach()
            here = here.to_local() if hasattr(here, "to_local") else here
            mark.update(f"{tuple(here.shape)} {here.reshape(-1)[:_SAMPLED].tolist()}".encode())
        return mark.hexdigest()
    return ""


def watch() -> None:
    """Note from now on which optimizers make steps, if torch is used. In compiled code nothing is noted."""
    global _watches
    optim = sys.modules.get("torch.optim.optimizer")
    if _watches or optim is None or not hasattr(optim, "register_optimizer_step_post_hook"):
        return
    compiler: Any = sys.modules.get("torch.compiler")

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiler is None or not compiler.is_compiling():
            _stepped.setdefault(threading.get_ident(), WeakSet()).add(optimizer)

    def steps(optimizer: Any, args: Any, kwargs: Any) -> None:
        training = _trainings.get(threading.get_ident())
        if training is not None and (compiler is None or not compiler.is_compiling()):
            training.steps(optimizer)

    optim.register_optimizer_step_pre_hook(steps)
    optim.register_optimizer_step_post_hook(stepped)
    _watches = True


def take() -> Updated | None:
    """Return the weights that this thread has updated since the last call; None if that is not known."""
    optimizers = _stepped.pop(threading.get_ident(), ())
    weights = [w for one in optimizers for group in one.param_groups for w in group["params"]]
    if not weights:
        return None
    return Updated({id(w): ref(w) for w in weights}, tuple(sorted(tuple(w.shape) for w in weights)))
