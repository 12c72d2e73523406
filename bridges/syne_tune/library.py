"""Syne Tune itself, or what to type where it is not installed, and what it calls the parts of a result."""

from __future__ import annotations

from haltune.errors import installing

try:
    import syne_tune.config_space as config_space
    from syne_tune.optimizer.scheduler import SchedulerDecision, TrialScheduler, TrialSuggestion
except ImportError as error:
    raise ImportError(f"haltune.syne_tune needs Syne Tune: {installing('syne-tune')}") from error

from haltune.tuners.results import Words


def words(metric: str, time_attr: str) -> Words:
    """What Syne Tune calls the parts of a result."""
    return Words(metric, time_attr, "", _is_own)


def _is_own(name: str) -> bool:
    return name.startswith(("st_", "config_")) or name == "trial_id"


__all__ = ["SchedulerDecision", "TrialScheduler", "TrialSuggestion", "config_space", "words"]
