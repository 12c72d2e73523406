"""Optuna itself, or what to type where it is not installed."""

from __future__ import annotations

try:
    import optuna
except ImportError as error:
    raise ImportError("haltune.optuna needs Optuna: pip install 'haltune[optuna]'") from error

__all__ = ["optuna"]
