"""Keras Tuner itself, or what to type where it is not installed."""

from __future__ import annotations

from haltune.errors import installing

try:
    import keras_tuner
    from keras_tuner.src.engine import tuner_utils  # what results may be: there is no public way
except ImportError as error:
    raise ImportError(f"haltune.keras_tuner needs Keras Tuner: {installing('keras-tuner')}") from error

import keras  # last: where the tuner is missing nobody waits for it

__all__ = ["keras", "keras_tuner", "tuner_utils"]
