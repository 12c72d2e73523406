"""haltune.keras_tuner: a tuner for programs of Keras Tuner, in the place of RandomSearch, BayesianOptimization or
Hyperband.

    tuner = haltune.keras_tuner.Tuner(build, objective="val_accuracy", max_epochs=30, max_trials=20)
    tuner.search(x, y, validation_data=(x_val, y_val))
    model = tuner.get_best_models()[0]

haltune decides what is chosen and which fit ends early, by default by its default search; a run that is promoted goes
on where it was, optimizer and all.
"""

from typing import TYPE_CHECKING

from haltune._utils.lazy import shows

if TYPE_CHECKING:
    from .tuner import Tuner

_ROOMS = {"tuner": ("Tuner",)}
if not TYPE_CHECKING:  # who checks types hears of a name that is not there
    __getattr__, __dir__ = shows(__name__, _ROOMS)

__all__ = ["Tuner"]
