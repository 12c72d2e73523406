"""The metrics of a boosting round, named "<data>-<metric>", of XGBoost, LightGBM and CatBoost."""

from __future__ import annotations

from collections.abc import Mapping

from haltune.errors import InvalidInput

from ..reporting.advice import missing

CANNOT_FOLD = "takes no boosters to continue from, so it cannot be paused"


def full_name(monitor: str, metrics: Mapping[str, float], train: str, how: str) -> str:
    """The full name of `monitor`, with its data set or without, with "-mean" of folds or without.

    train: what evaluates, and how: what to give it; for the errors.
    Raises InvalidInput when there is none or more than one.
    """
    plain = {name.removesuffix("-mean"): name for name in metrics if not name.endswith("-std")}
    if monitor in metrics or monitor in plain:
        return plain.get(monitor, monitor)
    found = [short for short in plain if short.partition("-")[2] == monitor]
    if len(found) > 1:
        raise InvalidInput(
            f"the metric {monitor!r} was logged for {len(found)} data sets: name one, {' or '.join(found)}, "
            f"as in HaltuneCallback(trial, monitor={found[-1]!r})"
        )
    if not found:
        raise missing(monitor, metrics, "in the first round", f"Give {train} {how}")
    return plain[found[0]]
