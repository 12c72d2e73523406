"""Optuna itself, or what to type where it is not installed."""

from __future__ import annotations

from haltune.errors import installing

try:
    import optuna
except ImportError as error:
    raise ImportError(f"haltune.optuna needs Optuna: {installing('optuna')}") from error

__all__ = ["optuna"]
