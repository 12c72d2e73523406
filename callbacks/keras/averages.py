"""An average of the weights that a callback of the program holds as arrays, puts into the model, and evaluates.

The value that it logs is that of the average, and a file of the model has the trained weights. Nothing in Keras shows
which weights were evaluated, so this looks for arrays like all weights that change in training and are no copy of them,
in a callback that sets weights at the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from haltune._utils.around import of_library
from haltune._utils.code import mentioned
from haltune._utils.learners import first_numbers

from ..reporter import digest

_SETS = {"set_weights", "assign", "load_weights", "copy_"}


class Averages:
    """Those that callbacks hold, since a fit has started.

    Args:
        model: The model of the fit.
        callbacks: The other callbacks by name, after the hooks of the start.
    """

    def __init__(self, model: Any, callbacks: Mapping[str, Any]) -> None:
        self._known = {mark for _, mark in _held(model, callbacks)}
        self.epoch_ends(model)

    def epoch_ends(self, model: Any) -> None:
        """Note the weights of an epoch: a callback may keep a copy of the best ones."""
        self._known |= {digest(first_numbers(weights)) for weights in _weights(model)}

    def changed(self, model: Any, callbacks: Mapping[str, Any]) -> str | None:
        """Return the name of an average that has changed in this fit and is not in the model, or None."""
        return next((name for name, mark in _held(model, callbacks) if mark not in self._known), None)


def _weights(model: Any) -> list[list[Any]]:
    return [model.weights, model.trainable_weights]


def _held(model: Any, callbacks: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of what callbacks of the program hold with the shapes of all weights, and marks of it."""
    shapes = [[tuple(weight.shape) for weight in weights] for weights in _weights(model)]
    for callback in callbacks.values():
        kind = type(callback)
        if of_library(kind.__module__) or not mentioned(kind, ("on_epoch_end",)) & _SETS:
            continue
        for name, value in vars(callback).items():
            arrays = [*value.values()] if isinstance(value, dict) else value
            if isinstance(arrays, (list, tuple)) and len(arrays) in map(len, shapes):
                with suppress(Exception):  # other elements than arrays
                    if arrays and [tuple(one.shape) for one in arrays] in shapes:
                        yield f"{kind.__qualname__.rpartition('.')[2]}.{name}", digest(first_numbers(arrays))
