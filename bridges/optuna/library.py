"""Optuna itself, or what to type where it is not installed."""

from __future__ import annotations

from haltune.errors import installing

try:
    import optuna
except ImportError as error:
    raise ImportError(f"haltune.optuna needs Optuna: {installing('optuna')}") from error

PREFIX = "haltune:"  # of what haltune writes into attributes of a trial or of a study
PROBLEM = f"{PREFIX}problem"  # attribute of a study: the whole problem, from which its space comes back

__all__ = ["PREFIX", "PROBLEM", "optuna"]
