"""Keras Tuner itself, or what to type where it is not installed."""

from __future__ import annotations

from haltune.errors import installing

try:
    import keras_tuner
except ImportError as error:
    raise ImportError(f"haltune.keras_tuner needs Keras Tuner: {installing('keras-tuner')}") from error

__all__ = ["keras_tuner"]
