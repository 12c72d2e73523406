"""A study as a table: one row a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .history import History, TrialRecord

if TYPE_CHECKING:
    import pandas as pd


def frame(history: History) -> pd.DataFrame:
    """Columns: trial, attempt, status, epoch, value, score, seconds, config.<name>, metric.<name>."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError(
            "study.frame() needs pandas: pip install pandas (study.trials needs nothing)"
        ) from None
    tables = [pd.DataFrame(_columns(t)) for t in history.trials]
    full = [t for t in tables if len(t)]
    return pd.concat(full, ignore_index=True) if full else pd.DataFrame(columns=_LEADING)


_LEADING = ["trial", "attempt", "status", "epoch", "value", "score", "seconds"]


def _columns(t: TrialRecord) -> dict[str, Any]:
    n = len(t.epochs)
    leading = (t.id, t.attempt, str(t.status), t.epochs, t.values, t.scores, t.seconds)
    columns = {
        name: [v] * n if not hasattr(v, "shape") else v for name, v in zip(_LEADING, leading, strict=True)
    }
    columns |= {f"config.{name}": [value] * n for name, value in t.config.items()}
    return columns | {f"metric.{name}": values for name, values in t.metrics.items()}
