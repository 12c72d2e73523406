"""Ray Tune itself, or what to type where it is not installed."""

from __future__ import annotations

from haltune.errors import installing

try:
    from ray import tune
except ImportError as error:
    raise ImportError(f"haltune.ray_tune needs Ray Tune: {installing('ray-tune')}") from error

__all__ = ["tune"]
