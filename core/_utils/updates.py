"""The weights that torch's optimizers update: whether a loop of the user's own trains another model than before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet, ref

_stepped: dict[int, WeakSet[Any]] = {}  # thread -> optimizers that made a step since it asked last
_watches = False


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

    optim.register_optimizer_step_post_hook(stepped)
    _watches = True


def take() -> Updated | None:
    """Return the weights that this thread has updated since the last call; None if that is not known."""
    optimizers = _stepped.pop(threading.get_ident(), ())
    weights = [w for one in optimizers for group in one.param_groups for w in group["params"]]
    if not weights:
        return None
    return Updated({id(w): ref(w) for w in weights}, tuple(sorted(tuple(w.shape) for w in weights)))
