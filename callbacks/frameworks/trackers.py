"""What experiment trackers are told when a fit ends: the verdict, its probability, the epochs saved, the reason.

Lightning itself tells them that a stopped run was a success, as it is stopped by the Trainer's flag.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from haltune.log.decisions import Action

from ..reporting.reporter import Reporter

REASON = "haltune_reason"
_NUMBERS = {Action.PAUSE: 1.0, Action.STOP: 2.0}  # every other verdict is 0: the run went on to its end


def tell_loggers(trainer: Any, reporter: Reporter) -> None:
    """Log the end of the trial with every logger of the Trainer; a logger that fails is left out."""
    metrics, reason = ending_metrics(reporter)
    for logger in trainer.loggers:
        with suppress(Exception):  # a tracker out of reach breaks no training
            logger.log_metrics(metrics, step=trainer.global_step)
        with suppress(Exception):
            _tell_reason(logger, reason, trainer.global_step)
        with suppress(Exception):
            logger.save()


def ending_metrics(reporter: Reporter) -> tuple[dict[str, float], str]:
    """The metrics that say how the training ended, and the sentence why."""
    trial = reporter.trial
    verdict = reporter.verdict or trial.verdict
    metrics = {"haltune_verdict": _NUMBERS.get(verdict.action, 0.0) if verdict else 0.0}
    if trial.horizon is not None and reporter.verdict is not None:
        metrics["haltune_epochs_saved"] = max(0.0, trial.horizon - float(trial.epoch))
    else:
        metrics["haltune_epochs_saved"] = 0.0
    chance = verdict.evidence.get("p_win") if verdict else None
    if isinstance(chance, (int, float)):
        metrics["haltune_p_win"] = float(chance)
    return metrics, f"{verdict.action}: {verdict.reason}" if verdict else "trained without a verdict"


def _tell_reason(logger: Any, reason: str, step: int) -> None:
    """In the run's summary where the tracker has one, else beside its hyperparameters."""
    experiment: Any = logger.experiment
    summary: Any = getattr(experiment, "summary", None)
    if hasattr(summary, "__setitem__"):
        summary[REASON] = reason
    elif hasattr(experiment, "add_text"):
        # TensorBoard shows a run's last table of hyperparameters alone: another would hide the user's
        experiment.add_text(REASON, reason, step)
        logger.hparams[REASON] = reason
    else:
        logger.log_hyperparams({REASON: reason})
