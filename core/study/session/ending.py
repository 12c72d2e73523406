"""What an attempt at a trial tells the log besides its reports: checkpoints, and how it ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.decisions import Action, Verdict
from haltune.log.events import OVER, Status
from haltune.log.history import History
from haltune.store.base import Release

from ..trial import counted
from .replica import Replica

if TYPE_CHECKING:
    from ..trial import Trial

_log = logging.getLogger("haltune")


def checkpointed(replica: Replica, trial: Trial, path: str, seconds: float) -> bool:
    """Append a checkpoint after the last epoch reported; False when the trial is not this worker's any more."""
    replica.wake(trial.id, trial.attempt)
    event = ev.Checkpointed(
        at=replica.now(), trial=trial.id, attempt=trial.attempt, epoch=float(trial.epoch), path=path,
        seconds=seconds,
    )  # fmt: skip
    held = replica.append_if_held(event, trial.id, trial.attempt, replica.lease(trial.id, trial.attempt))
    if held:
        trial.checkpoint = replica.checkpoints.located(path)
    return held or _is_recorded(replica, trial, path)


def _is_recorded(replica: Replica, trial: Trial, path: str) -> bool:
    """True when the log has a checkpoint though nobody said so: the server was away when it should have answered."""
    return any(
        isinstance(e, ev.Checkpointed) and (e.trial, e.attempt, e.path) == (trial.id, trial.attempt, path)
        for e in replica.store.read(replica.name)
    )


def end(
    replica: Replica,
    trial: Trial,
    status: Status | None,
    error: str | None,
    text: str | None,
    max_failures: int,
) -> None:
    """Append the end of an attempt, give the lease back, delete checkpoints that nobody needs; see Trial.finish."""
    with replica.lock:
        if trial.ended is not None:
            return
        replica.wake(trial.id, trial.attempt)
        _catch_up(replica, trial)
        silent = status is None and not len(replica.history.trial(trial.id).epochs)
        if silent:
            status, error = Status.FAILED, "ended without one report"
        event = ev.Ended(
            at=replica.now(), trial=trial.id, attempt=trial.attempt,
            status=status or _derived(trial.verdict), error=error, traceback=text,
        )  # fmt: skip
        held = replica.append_if_held(event, trial.id, trial.attempt, Release(trial.id))
        trial.ended = event.status if held else _as_recorded(replica, trial)
        if (
            trial.ended in OVER or trial.ended is Status.PAUSED
        ):  # a pause may complete a rung that others lost
            replica.tidy()
    if (
        held
        and trial.ended is Status.PAUSED
        and replica.history.trial(trial.id).checkpoint_epoch < trial.epoch
    ):
        _log.warning(
            "trial %d is paused and nothing was saved after epoch %g: it will train again what came since. "
            "Save it: trial.save(write), TrainingLoop(trial, save=write)", trial.id, trial.epoch,
        )  # fmt: skip
    if status is Status.INTERRUPTED and held:
        _log.warning("trial %d was interrupted: the same program goes on where it was", trial.id)
    if silent and held:
        _complain_of_silence(replica.history, trial, max_failures)


def lose(replica: Replica, trial: Trial, reason: str, max_retries: int) -> None:
    """Append that an attempt was lost, and why: it is offered again, up to `max_retries` times, then failed."""
    with replica.lock:
        replica.wake(trial.id, trial.attempt)
        _catch_up(replica, trial)
        event = replica.expired(replica.lease(trial.id, trial.attempt), max_retries, reason)
        held = replica.append_if_held(event, trial.id, trial.attempt, Release(trial.id))
        trial.ended = event.status if held else _as_recorded(replica, trial)
        if trial.ended is Status.FAILED:
            replica.tidy()


def tolerates(history: History, trial: Trial, error: BaseException, max_failures: int) -> bool:
    """True when the search goes on after `error`, which is in the log already."""
    if not history.any_success:
        error.add_note(
            f"haltune: trial {trial.id} failed and none has succeeded yet: a bug in the training code?"
        )
        return False
    if history.failures_in_a_row >= max_failures:
        error.add_note(f"haltune: {history.failures_in_a_row} trials failed in a row (max_failures)")
        return False
    _log.warning("trial %d failed and the search goes on: %s: %s", trial.id, type(error).__name__, error)
    return True


def _complain_of_silence(history: History, trial: Trial, max_failures: int) -> None:
    text = (
        f"trial {trial.id} ended without one report: call trial.report(value) after every epoch, "
        "or pass HaltuneCallback(trial), made for this trial, to the trainer; fast_dev_run reports nothing"
    )
    if not history.any_success or history.failures_in_a_row >= max_failures:
        raise InvalidInput(text)
    _log.warning(text)


def _catch_up(replica: Replica, trial: Trial) -> None:
    """A process that the training spawned may have reported for this trial."""
    r = replica.synced(trial.id)
    if r.attempt == trial.attempt and r.epoch > trial.epoch:
        trial.epoch, trial.until = counted(r.epoch), r.until
        trial.checkpoint = r.checkpoint
        for event in replica.store.read(replica.name, stop=replica.history.position):
            if isinstance(event, ev.Reported) and (event.trial, event.attempt) == (trial.id, trial.attempt):
                judged = event.verdict.action is not Action.UNJUDGED
                trial.verdict = event.verdict if judged else trial.verdict


def _as_recorded(replica: Replica, trial: Trial) -> Status:
    """How an attempt ended that is not held any more: in a process that the training spawned, or it was lost."""
    r = replica.history.trial(trial.id)
    return r.status if r.attempt == trial.attempt else Status.INTERRUPTED


def _derived(verdict: Verdict | None) -> Status:
    if verdict is None or not verdict.stops:
        return Status.COMPLETED
    if verdict.action is Action.PAUSE:
        return Status.PAUSED
    return Status.INTERRUPTED if verdict.resumable else Status.STOPPED  # a larger budget takes it up again
