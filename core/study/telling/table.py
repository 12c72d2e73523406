"""A study as a table: one row a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.arrays import Array
from haltune.log.history import History
from haltune.log.records import TrialRecord

if TYPE_CHECKING:
    import pandas as pd


def frame(history: History) -> pd.DataFrame:
    """Columns: trial, attempt, status, epoch, value, score, seconds, config.<name>, metric.<name>.

    A cell is empty (None, or NaN in a column of numbers) where a parameter is inactive or a metric
    was not reported.
    """
    try:
        import pandas as pd
    except ImportError:
        raise ImportError(
            "study.frame() needs pandas: pip install pandas (study.trials needs nothing)"
        ) from None
    trials = [t for t in history.trials if len(t.epochs)]
    columns: dict[str, Any] = {
        "trial": _repeated(trials, lambda t: t.id),
        "attempt": _repeated(trials, lambda t: t.attempt),
        "status": _repeated(trials, lambda t: str(t.status)),
        "epoch": _joined(t.epochs for t in trials),
        "value": _joined(t.values for t in trials),
        "score": _joined(t.scores for t in trials),
        "seconds": _joined(t.seconds for t in trials),
    }
    for name in history.problem.space.parameters:
        columns[_written(f"config.{name}")] = _repeated(trials, lambda t: _written(t.config.get(name)))  # noqa: B023 - called at once
    for name in dict.fromkeys(n for t in trials for n in t.metrics if not n.startswith("haltune_")):
        columns[_written(f"metric.{name}")] = _joined(_metric(t, name) for t in trials)
    return pd.DataFrame(columns)


def _written(cell: Any) -> Any:
    """A text that pandas can hold: half a surrogate pair is written as its code."""
    return cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell


def _metric(t: TrialRecord, name: str) -> Array:
    return t.metrics.get(name, np.full(len(t.epochs), np.nan))


def _repeated(trials: Iterable[TrialRecord], of: Callable[[TrialRecord], Any]) -> list[Any]:
    return [value for t in trials for value in [of(t)] * len(t.epochs)]


def _joined(parts: Iterable[Array]) -> Array:
    return np.concatenate([np.empty(0), *parts])
