"""Ray Tune itself, or what to type where it is not installed."""

from __future__ import annotations

from typing import Any

from haltune.errors import installing

try:
    from ray import tune
except ImportError as error:
    raise ImportError(f"haltune.ray_tune needs Ray Tune: {installing('ray-tune')}") from error

from ray.tune.result import AUTO_RESULT_KEYS, DEFAULT_METRIC, TIME_THIS_ITER_S, TRAINING_ITERATION

from haltune.tuners.results import Words

Params = dict[str, Any]  # as Tune hands them over
_OWN = (*AUTO_RESULT_KEYS, "trial_id", "experiment_tag", "done", "date", "should_checkpoint")


def words(metric: str | None, time_attr: str) -> Words:
    """What Tune calls the parts of a result."""
    return Words(str(metric), time_attr, TIME_THIS_ITER_S, _is_own)


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith("config/")


__all__ = ["DEFAULT_METRIC", "TRAINING_ITERATION", "Params", "tune", "words"]
