"""The end of an attempt: as the log gets it, what is doubtful about it, and whether the search continues."""

from __future__ import annotations

import logging

from haltune.display import numeral, one_line, plural
from haltune.errors import InvalidInput, is_shortage, told_shortage
from haltune.log import events as ev
from haltune.log.decisions import Action
from haltune.log.events import OVER, Status
from haltune.log.history import History
from haltune.log.problem import position_argument
from haltune.log.records import TrialRecord
from haltune.store.base import Release

from .attempt import Attempt, Failure
from .replica import Replica

_log = logging.getLogger("haltune")
_SHORTAGES = 4  # times max_failures: trials that may run out of memory before any has succeeded
_SILENT = "ended without one report"
_ANOTHER = "The next start of this program continues with another trial."


def append_end(
    replica: Replica, attempt: Attempt, status: Status | None, failure: Failure | None, weights: str
) -> bool:
    """Append the end of an attempt, release the lease, delete unneeded checkpoints. Return whether it was appended."""
    now = replica.log_sleep(attempt)
    replica.sync()
    replica.follow(attempt)
    if status is None and not len(replica.history.trial(attempt.id).epochs):
        status, failure = Status.FAILED, Failure(_SILENT)
    event = ev.Ended(
        at=now, trial=attempt.id, attempt=attempt.attempt,
        status=status or _derived(attempt, replica.problem.max_epochs),
        error=None if failure is None else failure.error,
        traceback=None if failure is None else failure.traceback, weights=weights,
    )  # fmt: skip
    held = replica.append_if_held(event, Release(attempt.id))
    ended = event.status if held else recorded_end(replica.history, attempt)
    if ended in OVER or ended is Status.PAUSED:  # a pause may complete a rung, and others lose it
        replica.tidy()
    return held


def _derived(attempt: Attempt, horizon: int | None) -> Status:
    verdict = attempt.verdict
    if verdict is None or not verdict.stops or (horizon is not None and attempt.epoch >= horizon):
        return Status.COMPLETED  # also if the loop ignored its verdict and trained it in full
    if verdict.action is Action.PAUSE:
        return Status.PAUSED
    return Status.INTERRUPTED if verdict.resumable else Status.STOPPED  # with a larger budget it resumes


def recorded_end(history: History, attempt: Attempt) -> Status:
    """Return how an attempt ended that is no longer held: ended by a process of the training, or lost."""
    r = history.trial(attempt.id)
    return r.status if r.attempt == attempt.attempt else Status.INTERRUPTED


def warn_of_end(replica: Replica, attempt: Attempt, status: Status | None, max_failures: int) -> None:
    """Warn of a probable mistake in an attempt that ended.

    Raises InvalidInput for a trial without a report, if no trial has succeeded or too many failed in a row.
    """
    history = replica.history
    record = history.trial(attempt.id)
    if attempt.ended is Status.PAUSED and record.checkpoint_epoch < attempt.epoch:
        then = "When it resumes, it trains the unsaved epochs again"
        if replica.policy.gives_up_pauses:
            then = "A trial that resumes trains again from its start, so trials that have trained 40% stop instead"
        if replica.first_time("nothing saved", advice=True):
            _log.warning(
                "Trial %d paused, but no checkpoint was saved after %s. %s. To save one, call trial.save(write) "
                "after trial.report(value) and before break, or use TrainingLoop(trial, save=write), or BOBOS(), which "
                "never pauses.",
                attempt.id, replica.problem.at(attempt.epoch), then,
            )  # fmt: skip
    elif status is Status.INTERRUPTED and attempt.ended is not Status.FAILED:  # not lost too often
        _log.warning("Trial %d was interrupted. %s", attempt.id, _how_it_resumes(replica, record, attempt))
    elif status is None and record.error == _SILENT:
        unit, most = replica.problem.unit, replica.problem.max_epochs
        often = "(value) after every epoch"
        if unit != "epoch":
            often = f"(value, {position_argument(unit)}) every few {replica.problem.units}"
            often += f", the last one at {unit} {numeral(most)}" if most is not None else ""
        text = (
            f"Trial {attempt.id} ended without one report. Call trial.report{often}, call "
            "study.tell(trial, value) at the end, or pass a new HaltuneCallback(trial) to a new trainer. With "
            "fast_dev_run nothing is reported. For a script of `haltune run`, name its metrics under [metrics] in the "
            "study file, or let it report to haltune.current_trial()."
        )
        if any(len(t.epochs) for t in history.trials):  # so the program does report
            text = (
                f"Trial {attempt.id} ended without one report, though other trials reported. If it loaded a file that "
                "all trials share, its loop perhaps started after the last epoch: load only trial.checkpoint. If its "
                "program handled an error, call trial.fail(error) there."
            )
        if not history.any_success or history.failures_in_a_row >= max_failures:
            raise InvalidInput(f"{text} {_ANOTHER}")
        _log.warning(text)
    elif attempt.ended is Status.COMPLETED:
        _doubt(replica, record, plain=not attempt.stated)


def _doubt(replica: Replica, ended: TrialRecord, plain: bool) -> None:
    """Warn of percent that look like shares, of a full training without a rank, and of a plain loop of one report."""
    goal, values, horizon = replica.problem.goal, ended.values, replica.problem.max_epochs
    if goal.rank_by is not None and goal.rank_by not in ended.metrics:
        how = f"Report it at the end, trial.report({{{goal.metric!r}: ..., {goal.rank_by!r}: ...}})"
        how = how if plain else "Let the loop log it where it ends"
        replica.warn_once(
            f"Trial {ended.id} ended without a report of {goal.rank_by!r}, so it has no rank among the full trainings "
            f"(rank_by={goal.rank_by!r}). {how}, or omit rank_by=.",
            about="no rank",
        )
    if goal.bounds == (0.0, 100.0) and (values > 0.0).any() and ((values >= 0.0) & (values <= 1.0)).all():
        replica.warn_once(
            f"{goal.metric} was within 0 and 1 in all reports of trial {ended.id}, but the goal's bounds are (0, 100). "
            "If it is a share, use bounds=(0, 1). Otherwise all trials have nearly the same score.",
            about="percent",
        )
    early = plain and horizon is not None and horizon >= 2 and ended.epochs.tolist() == [1.0]
    early = early and all(len(t.epochs) < 2 for t in replica.history.trials)  # its loop continues after a report
    if early and replica.first_time("one epoch", advice=True):
        _log.warning(
            "Trial %d ended by itself after 1 %s of %d. Report after every %s. End the loop if "
            "trial.report(value).stops, not if trial.report(value), which is always true. If a training has one value, "
            "report it with study.tell(trial, value).", ended.id, ended.unit, horizon, ended.unit,
        )  # fmt: skip


def _how_it_resumes(replica: Replica, record: TrialRecord, attempt: Attempt) -> str:
    """Return how an interrupted trial continues."""
    who = "The next start of this program, or the next study.ask(),"
    if record.checkpoint_epoch:
        return f"{who} resumes it after {replica.problem.at(record.checkpoint_epoch)}, its last checkpoint."
    if not attempt.epoch:
        return f"{who} trains it from scratch."
    saves = attempt.stated or any(t.checkpoint_epoch for t in replica.history.trials)
    how = "" if saves else " To save one, call trial.save(write) after trial.report(value)."
    return f"{who} trains it from scratch, because it has no checkpoint.{how}"


def append_loss(replica: Replica, attempt: Attempt, reason: str, max_retries: int) -> bool:
    """Append that an attempt was lost, and return whether it was appended.

    The trial is offered again up to `max_retries` times, then it has failed.
    """
    replica.log_sleep(attempt)
    replica.sync()
    event = replica.expired(replica.lease(attempt.id, attempt.attempt), max_retries, reason)
    held = replica.append_if_held(event, Release(attempt.id))
    if (event.status if held else recorded_end(replica.history, attempt)) is Status.FAILED:
        replica.tidy()
    return held


def not_tolerated(history: History, attempt: Attempt, max_failures: int) -> str | None:
    """Return why the search ends after a failure, which is in the log already; None if it continues."""
    if told_shortage(attempt._failure):
        short = sum(told_shortage(t.error) for t in history.with_status(Status.FAILED))
        if history.any_success or short < max(1, _SHORTAGES * max_failures):
            return None
        return f"{plural(short, 'trial')} ran out of memory and none has succeeded. Make the models or batches smaller."
    if not history.any_success:
        return f"Trial {attempt.id} failed and none has succeeded yet. The training code may have a bug. {_ANOTHER}"
    if (failures := history.failures_in_a_row) >= max_failures:
        return f"{plural(failures, 'trial')} failed in a row (max_failures). {_ANOTHER}"
    return None


def log_tolerated(attempt: Attempt, error: BaseException) -> None:
    if is_shortage(error):
        text = "Trial %d failed: it ran out of memory. The search continues. %s"
        _log.warning(text, attempt.id, one_line(error))
    else:
        _log.warning("Trial %d failed and the search continues: %s: %s", attempt.id, type(error).__name__, error)
