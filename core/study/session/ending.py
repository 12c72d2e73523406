"""What an attempt at a trial tells the log besides its reports: checkpoints, and how it ended."""

from __future__ import annotations

import logging

from haltune.display import one_line, plural
from haltune.errors import InvalidInput, is_shortage, told_shortage
from haltune.log import events as ev
from haltune.log.decisions import Action
from haltune.log.events import OVER, Status
from haltune.log.history import History
from haltune.log.records import TrialRecord
from haltune.store.base import Release

from .attempt import Attempt, epoch_number
from .replica import Replica
from .session import Failure

_log = logging.getLogger("haltune")

_SHORTAGES = (
    4  # times max_failures: trials without room in memory, none having fitted, before the error is raised
)


def checkpointed(replica: Replica, attempt: Attempt, path: str, seconds: float, keep: bool) -> bool:
    """Append a checkpoint after the last epoch reported; False when the trial is not this worker's any more."""
    replica.wake(attempt.id, attempt.attempt)
    event = (ev.Kept if keep else ev.Checkpointed)(
        at=replica.now(), trial=attempt.id, attempt=attempt.attempt, epoch=float(attempt.epoch), path=path,
        seconds=seconds,
    )  # fmt: skip
    held = replica.append_if_held(
        event, attempt.id, attempt.attempt, replica.lease(attempt.id, attempt.attempt)
    )
    if held and not keep:
        attempt.checkpoint = replica.checkpoints.located(path)
    return held or _is_recorded(replica, attempt, path)


def _is_recorded(replica: Replica, attempt: Attempt, path: str) -> bool:
    """True when the log has a checkpoint though nobody said so: the server was away when it should have answered."""
    return any(
        isinstance(e, ev.Checkpointed | ev.Kept)
        and (e.trial, e.attempt, e.path) == (attempt.id, attempt.attempt, path)
        for e in replica.store.read(replica.name)
    )


def end(
    replica: Replica,
    attempt: Attempt,
    status: Status | None,
    failure: Failure | None,
    max_failures: int,
) -> None:
    """Append the end of an attempt, give the lease back, delete checkpoints that nobody needs; see Trial.finish."""
    with replica.lock:
        if attempt.ended is not None:
            return
        replica.wake(attempt.id, attempt.attempt)
        catch_up(replica, attempt)
        silent = status is None and not len(replica.history.trial(attempt.id).epochs)
        if silent:
            status, failure = Status.FAILED, Failure("ended without one report")
        event = ev.Ended(
            at=replica.now(), trial=attempt.id, attempt=attempt.attempt,
            status=status or _derived(attempt, replica.problem.max_epochs),
            error=None if failure is None else failure.error,
            traceback=None if failure is None else failure.traceback,
        )  # fmt: skip
        held = replica.append_if_held(event, attempt.id, attempt.attempt, Release(attempt.id))
        attempt.ended = event.status if held else _as_recorded(replica, attempt)
        if (
            attempt.ended in OVER or attempt.ended is Status.PAUSED
        ):  # a pause may complete a rung that others lost
            replica.tidy()
    if (
        held
        and attempt.ended is Status.PAUSED
        and replica.history.trial(attempt.id).checkpoint_epoch < attempt.epoch
        and replica.first_time("nothing saved", advice=True)
    ):
        then = "what continues trains again what was not saved"
        if replica.policy.gives_up_pauses:
            then = "from now on the search stops runs for good where it would pause them"
        _log.warning(
            "trial %d is paused and nothing was saved after epoch %g: %s. Save it: trial.save(write), "
            "TrainingLoop(trial, save=write); or BOBOS(), which never pauses",
            attempt.id, attempt.epoch, then,
        )  # fmt: skip
    if status is Status.INTERRUPTED and held:
        _log.warning("trial %d was left unfinished: %s", attempt.id, _taken_up(replica.history, attempt))
    if silent and held:
        _complain_of_silence(replica.history, attempt, max_failures)
    elif held and attempt.ended is Status.COMPLETED:
        record = replica.history.trial(attempt.id)
        _doubt_percent(replica, record)
        if attempt.patient:  # a callback knows what its fit had planned
            _doubt_one_epoch(replica, record)


def _doubt_percent(replica: Replica, ended: TrialRecord) -> None:
    """Warn where a run of a goal in percent has values that look like shares."""
    goal, values = replica.problem.goal, ended.values
    if goal.bounds == (0.0, 100.0) and (values > 0.0).any() and ((values >= 0.0) & (values <= 1.0)).all():
        replica.warn_once(
            f"{goal.metric} was within 0 and 1 at every epoch of trial {ended.id}, and the goal's bounds are (0, 100): "
            "as a share it wants bounds=(0, 1), or all runs look alike",
            about="percent",
        )


def _doubt_one_epoch(replica: Replica, ended: TrialRecord) -> None:
    """Say of a loop that left after its first report that there were more to come."""
    horizon = replica.problem.max_epochs
    if (
        horizon is None
        or horizon < 2
        or ended.epochs.tolist() != [1.0]
        or not replica.first_time("one epoch", advice=True)
    ):
        return
    _log.warning(
        "trial %d ended by itself after 1 epoch of %d. Report after every epoch, and leave the loop where "
        "trial.report(value).stops, for a verdict by itself is always true; study.tell(trial, value) takes the one "
        "value of a full training", ended.id, horizon,
    )  # fmt: skip


def _taken_up(history: History, attempt: Attempt) -> str:
    """What the same program makes of a trial that was interrupted."""
    saved = history.trial(attempt.id).checkpoint_epoch
    if saved:
        return f"the same program continues after epoch {saved:g}, its last checkpoint"
    anew = "the same program offers it again, and it begins anew"
    if not attempt.epoch:
        return anew
    return (
        f"{anew}, for nothing was saved that it could continue from: callbacks save where a trial pauses, a loop of "
        "your own where it calls trial.save(write) after an epoch"
    )


def lose(replica: Replica, attempt: Attempt, reason: str, max_retries: int) -> None:
    """Append that an attempt was lost, and why: it is offered again, up to `max_retries` times, then failed."""
    with replica.lock:
        replica.wake(attempt.id, attempt.attempt)
        catch_up(replica, attempt)
        event = replica.expired(replica.lease(attempt.id, attempt.attempt), max_retries, reason)
        held = replica.append_if_held(event, attempt.id, attempt.attempt, Release(attempt.id))
        attempt.ended = event.status if held else _as_recorded(replica, attempt)
        if attempt.ended is Status.FAILED:
            replica.tidy()


def tolerates(history: History, attempt: Attempt, error: BaseException, max_failures: int) -> bool:
    """True when the search goes on after `error`, which is in the log already."""
    if is_shortage(error):
        return _fits(history, attempt, error, _SHORTAGES * max_failures)
    if not history.any_success:
        error.add_note(
            f"haltune: trial {attempt.id} failed and none has succeeded yet: a bug in the training code?"
        )
        return False
    if history.failures_in_a_row >= max_failures:
        error.add_note(
            f"haltune: {plural(history.failures_in_a_row, 'trial')} failed in a row (max_failures)"
        )
        return False
    _log.warning("trial %d failed and the search continues: %s: %s", attempt.id, type(error).__name__, error)
    return True


def _fits(history: History, attempt: Attempt, error: BaseException, most: int) -> bool:
    """True unless none of so many trials had room in memory."""
    short = sum(told_shortage(t.error) for t in history.with_status(Status.FAILED))
    if not history.any_success and short >= max(1, most):
        error.add_note(
            f"haltune: {plural(short, 'trial')} ran out of memory, and none has fitted: make them smaller"
        )
        return False
    _log.warning(
        "trial %d ran out of memory: it has failed, and the search continues. %s", attempt.id, one_line(error)
    )
    return True


def _complain_of_silence(history: History, attempt: Attempt, max_failures: int) -> None:
    text = (
        f"trial {attempt.id} ended without one report: call trial.report(value) after every epoch, "
        "study.tell(trial, value) at the end, or pass HaltuneCallback(trial), made for this trial, to the trainer; "
        "fast_dev_run reports nothing, and a script of `haltune run` reports to haltune.current_trial()"
    )
    if not history.any_success or history.failures_in_a_row >= max_failures:
        raise InvalidInput(text)
    _log.warning(text)


def catch_up(replica: Replica, attempt: Attempt) -> None:
    """A process that the training spawned may have reported for this trial; or Ctrl-C came before its verdict."""
    r = replica.synced(attempt.id)
    if r.attempt == attempt.attempt and r.epoch > attempt.epoch:
        attempt.epoch, attempt.until = epoch_number(r.epoch), r.until
        attempt.checkpoint = r.checkpoint
        for event in replica.store.read(replica.name, stop=replica.history.position):
            if isinstance(event, ev.Reported) and (event.trial, event.attempt) == (
                attempt.id,
                attempt.attempt,
            ):
                judged = event.verdict.action is not Action.UNJUDGED
                attempt.verdict = event.verdict if judged else attempt.verdict


def _as_recorded(replica: Replica, attempt: Attempt) -> Status:
    """How an attempt ended that is not held any more: in a process that the training spawned, or it was lost."""
    r = replica.history.trial(attempt.id)
    return r.status if r.attempt == attempt.attempt else Status.INTERRUPTED


def _derived(attempt: Attempt, horizon: int | None) -> Status:
    verdict = attempt.verdict
    if verdict is None or not verdict.stops:
        return Status.COMPLETED
    if verdict.action is Action.PAUSE:  # a loop that did not leave has trained it in full
        return Status.PAUSED if horizon is None or attempt.epoch < horizon else Status.COMPLETED
    return Status.INTERRUPTED if verdict.resumable else Status.STOPPED  # a larger budget takes it up again
