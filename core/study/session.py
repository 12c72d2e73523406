"""The work of one process for a study: its lock, its retries, and the choice of the rank that acts.

    Trial.report -> Session.record -> judging.record (lock, retry, rank) -> policy.judge -> Store.append

Rank 0 of a distributed training, or a single process, reads and writes the store. Every other rank receives rank 0's
answers (`haltune.ranks`) and writes nothing. A session that multiprocessing pickles into a process opens the study
there at its first use, on one rank.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property, partial
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from haltune._utils.checks import number
from haltune._utils.disk import discard
from haltune._utils.forks import fork_handlers, is_free
from haltune._utils.process import new_holder
from haltune.display import numeral, one_line, plural
from haltune.errors import InvalidInput, LeaseLost, NotSupported, RankLost, StoreError, is_shortage, told_shortage, warn
from haltune.log import events as ev
from haltune.log.decisions import Action, Finish, Verdict, Wait
from haltune.log.events import OVER, Event, Status, from_json, plain, to_json, verdict_from_json, verdict_to_json
from haltune.log.history import History
from haltune.log.policy import Fold, Wrapper
from haltune.log.problem import Budget, Problem, position_argument
from haltune.log.records import TrialRecord
from haltune.ranks import Follower, Leader, Line, error_from_json, joined, same
from haltune.store.base import Conflict, Release, Store, retry
from haltune.store.checkpoints import Checkpoints, own_folder
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store

from .attempt import (
    A,
    Attempt,
    Failure,
    Json,
    MonotonicClock,
    Report,
    Settings,
    answer_from_json,
    answer_to_json,
    epoch_number,
    label,
)
from .judging import record
from .messages import Logger, shared_error, unlimited
from .proposing import Elsewhere, answer, enqueue
from .replica import Replica

T = TypeVar("T")
_log = logging.getLogger("haltune")
Attempts = set[tuple[int, int]]  # trials with their attempts
GRACE = 10.0  # seconds that a failed rank waits for rank 0, which may not have noticed the failure
_BRIEFLY = 0.5  # likewise for an interrupted rank: Ctrl-C must end it soon
_LOOKS = (0.02, 0.25)  # seconds between looks while another worker decides: from, to
_SHORTAGES = 4  # times max_failures: trials that may run out of memory before any has succeeded
_clocks: ContextVar[tuple[MonotonicClock, Callable[[float], None]]] = ContextVar(
    "clocks", default=(time.perf_counter, time.sleep)
)


@contextmanager
def clocked(monotonic: MonotonicClock, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Use other clocks in studies opened in the block: one that times epochs and decisions, and one that waits."""
    token = _clocks.set((monotonic, sleep))
    try:
        yield
    finally:
        _clocks.reset(token)


class Session:
    """One process's work for one study. A change of an attempt happens on every rank.

    holds: in a process that was started to train, the holder whose leases it takes over, and its trials; `log` is then
    opened at its first use. Raises as Study does.
    """

    def __init__(self, settings: Settings, seed: int | None = None, holds: tuple[str, Attempts] | None = None) -> None:
        self._given, self._seed, self._holds = settings, seed, holds
        self.budget = settings.budget
        self.monotonic, self._sleep = _clocks.get()
        self.launched = False  # it trains for a launcher, which handles signals
        self.waits = True  # for a server that does not answer; a launcher does not wait, because it has other workers
        self._rank = joined(settings.name, settings.where) if holds is None else Leader(None, "")
        self.acts = isinstance(self._rank, Leader)  # rank 0, or a single process
        self.logger = Logger(settings.verbose if self.acts else 0)
        self._told = 0  # events of a log in memory that the other ranks have
        if holds is None:
            _ = self.log

    # the log

    @cached_property
    def log(self) -> Replica | HeardLog:
        """The log as far as this process has read it."""
        if isinstance(self._rank, Follower):
            return HeardLog(self._given, self._rank, self._rank.hear("opens"))
        opening = partial(retry, self._open, self._given.store.patience, self._sleep, warn)
        log = self._rank.decide("opens", opening, _opened_to_json)
        if self._holds is not None:
            _hold(log, *self._holds)
        return log

    def _open(self) -> Replica:
        given = self._given
        store = open_store(given.store)

        def kept(created: ev.Created) -> Checkpoints:
            if isinstance(given.checkpoints, Checkpoints):
                return given.checkpoints
            own = own_folder(store, given.name, created, given.checkpoints.folder)
            return Checkpoints(own, given.checkpoints.keep, given.checkpoints.disk_quota)

        lease = given.store.lease
        found = Replica(given.problem, given.policy, store, given.name, self._seed, kept, lease, self.monotonic)
        found.speaks = given.verbose > 0

        def news() -> Line:
            """Return the log's position, and the new events if the log is in this process's memory."""
            position = found.fold.history.position
            if not isinstance(store, MemoryStore):
                return {"position": position}
            start, self._told = self._told, max(self._told, position)
            new = tuple(store.read(given.name, start, self._told))  # the function below must not keep the store alive
            return {"position": position, "events": lambda: [to_json(event) for event in new]}

        if isinstance(self._rank, Leader):
            self._rank.news = news
        return found

    @property
    def replica(self) -> Replica:
        assert isinstance(self.log, Replica)
        return self.log

    def set_price(self, price: float | None) -> None:
        """Set the price of this worker per hour; None changes nothing. Raises InvalidInput for an invalid price."""
        if price is not None and self.acts:
            self.replica.price = number("price", price, None)

    @property
    def checkpoints(self) -> Checkpoints:
        return self.log.checkpoints

    @property
    def settings(self) -> Settings:
        """The settings that open this study again, with the store and folder of checkpoints that were found."""
        return self._given.found(self.log, self.budget, self.lease_seconds)

    @property
    def holder(self) -> str:
        return self.log.holder()

    @property
    def lease_seconds(self) -> float:
        """Seconds after which a silent worker counts as lost."""
        return self.log.term

    def sync(self) -> None:
        if self.acts:
            self._do(None, Replica.sync)

    # every change uses these

    def _do(
        self,
        topic: str | None,
        work: Callable[[Replica], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
        attempt: Attempt | None = None,
        patient: bool = True,
    ) -> T:
        """Return the result of `work`, done on rank 0 under the lock; retry after conflicts and server outages.

        The other ranks receive it under the topic; with None no rank waits for it. Signals are handled between tries.
        """

        def once() -> T:
            replica, pause = self.replica, _LOOKS[0]
            while True:
                try:
                    with replica.lock:
                        return work(replica)
                except Conflict:
                    continue
                except Elsewhere:  # another worker decides
                    self._sleep(pause)
                    pause = min(2.0 * pause, _LOOKS[1])

        seconds = self._given.store.patience if patient and self.waits else 0.0
        retried = partial(retry, once, seconds, self._sleep, self._warn_away)
        return retried() if topic is None else self._rank.decide(topic, retried, to_json, from_json, attempt)

    def _warn_away(self, text: str) -> None:
        self.replica.warn_once(text, about="away")

    def decide(
        self,
        attempt: Attempt,
        about: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
    ) -> T:
        """Do `work` on rank 0 and return its result on all ranks. The log is not locked."""
        return self._rank.decide(f"{attempt._label} {about}", work, to_json, from_json, attempt)

    # between trials

    def ask(self, make: Callable[[Attempt], A]) -> A | Wait | Finish:
        """See Study.ask. make: turns an attempt into the worker's Trial; while the Trial lives, it trains here."""
        started: Attempts = set()
        self.log_ended()

        def answered(replica: Replica) -> A | Wait | Finish:
            found = answer(replica, self.budget, self._given.store.max_retries, self.monotonic)
            if isinstance(found, Wait | Finish):
                return found
            started.add((found.id, found.attempt))
            trial = make(Attempt._of(found))
            replica.trains(trial.id, trial.attempt, trial)
            return trial

        try:
            found = self._do("ask", answered, answer_to_json, partial(answer_from_json, make=make))
            if self.acts and isinstance(found, Attempt):
                self.logger.started(self.log.history, found, partial(unlimited, self.budget, self.log.policy))
            elif self.acts and isinstance(found, Finish):
                self.logger.over(self.log.history, found, self.budget)
                if (text := shared_error(self.log.history)) is not None:
                    self.replica.warn_once(text, about="the same error")
            return found
        except BaseException:
            if self.acts:
                self.replica.handed_out -= started  # it did not reach the caller: it is offered again at once
            raise

    def enqueue(self, config: Mapping[str, Any], again: bool) -> bool:
        """See Study.enqueue. config: in canonical form."""
        return self._do("enqueues", partial(enqueue, config=config, again=again))

    def take(
        self, id: int, attempt: int, holder: str, leaving: Callable[[], str | None], make: Callable[[Attempt], A]
    ) -> A:
        """See Study.take."""

        def taken(replica: Replica) -> A:
            _hold(replica, holder, {(id, attempt)})
            self.launched, replica.leaving = True, leaving
            r = replica.synced(id)
            if r.attempt != attempt or r.status is not Status.RUNNING:
                raise LeaseLost(f"Attempt {attempt} of trial {id} is over: it is {r.status}, attempt {r.attempt}.")
            trial = make(Attempt._of(r))
            replica.trains(id, attempt, trial)
            return trial

        return self._do("takes a trial", taken, Attempt._to_json, lambda data: make(Attempt._from_json(data)))

    def wait(self, seconds: float, why: str | None) -> None:
        """Wait between two asks, on rank 0. why: logged, if it is not None."""
        if why is not None and self.acts:
            _log.info("Waiting: %s", why)
        if self.acts:
            self._sleep(seconds)

    def skip_over(self) -> None:
        """Skip the trials that ended before this process was started as another rank."""
        if not isinstance(rank_0 := self._rank, Follower):
            return

        def is_over(line: Line) -> bool:
            answer = line.get("answer", {})
            if "trial" not in answer:
                return "finish" not in answer
            return rank_0.was_before(f"{label(**answer['trial'])} ends")

        rank_0.skip("ask", is_over)

    def log_ended(self) -> None:
        """Log how trials ended. Their trainings no longer draw a progress bar on the terminal."""
        if self.acts:
            self.logger.ended(self.log.history, self.budget)

    def warn(self, text: str, about: str | None = None) -> None:
        """Warn, and log the warning once in a study: once for each text, or for each `about`.

        If the study's log is not open, it is not opened for this.
        """
        aloud = not self.acts or "log" not in vars(self) or self.replica.first_time(f"aloud: {about or text}", True)
        warn(text, aloud=aloud)

    def hint(self, text: str, about: str) -> None:
        """Log a hint, once in a study for each `about`."""
        if self.acts and self.replica.first_time(about, advice=True):
            self.logger.note(text)

    # within a trial

    def record(self, attempt: Attempt, report: Report, judge: bool) -> Verdict:
        """Append a report with its verdict; see Trial.report."""
        verdict = self._do(
            f"{attempt._label} reports {attempt.unit} {report.epoch:.12g}",
            partial(record, budget=self.budget, attempt=attempt, report=report, judged=judge, clock=self.monotonic),
            _verdict_converts, verdict_from_json, attempt, attempt.patient,
        )  # fmt: skip
        if self.logger.verbose > 1:
            self.logger.judged(self.log.history, attempt, report.epoch, report.value, verdict)
        return verdict

    def recall(self, attempt: Attempt) -> None:
        """Read the outcome of an interrupted report from the log. Other ranks receive it with the next report."""
        if self.acts:
            self._do(None, partial(_catch_up, attempt=attempt), patient=attempt.patient)

    def checkpointed(self, attempt: Attempt, path: str, seconds: float, keep: bool = False) -> bool:
        """Append a checkpoint; return False if this worker no longer holds the trial. See Trial.checkpointed.

        keep: True for the checkpoint of the best epoch, which is not one to continue from.
        """
        if not self.acts:
            attempt.checkpoint = attempt.checkpoint if keep else path
            return True
        work = partial(_checkpointed, attempt=attempt, path=path, seconds=seconds, keep=keep)
        return self._do(None, work, patient=attempt.patient)

    def begin_save(self, attempt: Attempt, suffix: str = ".ckpt", keep: bool = False) -> Path:
        """Return a temporary path for `commit_save`, the same on all ranks. Raises OSError.

        keep: True for the state after the trial's best epoch, which is not one to continue from.
        """
        a = attempt
        work = partial(self.checkpoints.temporary, a.id, a.attempt, a.epoch, suffix, keep, a.unit)
        return self.decide(attempt, "starts to be saved", work, str, Path)

    def commit_save(self, attempt: Attempt, temporary: Path, seconds: float = 0.0, keep: bool = False) -> str:
        """Make the state at a path of `begin_save` the trial's checkpoint; return its path. Raises as Trial.save does.

        seconds: time that writing took.
        """
        return self.decide(attempt, "commits", partial(self._publish, attempt, temporary, seconds, keep))

    def _publish(self, attempt: Attempt, temporary: Path, seconds: float, keep: bool) -> str:
        checkpoints = self.checkpoints
        with checkpoints.undecided(temporary):
            with self.ours(attempt, temporary):
                final = checkpoints.publish(temporary)
            # an error may come after the append, so the file stays; the next save deletes files that the log lacks
            if not self.checkpointed(attempt, checkpoints.recorded(final), seconds, keep):
                discard(final)
                raise _lost(attempt)
            checkpoints.supersede(final)
        return str(final)

    @contextmanager
    def ours(self, attempt: Attempt, temporary: Path) -> Iterator[None]:
        """Raise LeaseLost if the block fails because another worker took the trial and deleted the temporary files."""
        try:
            yield
        except Exception as error:
            if not os.path.lexists(temporary):
                with suppress(StoreError):
                    self.sync()
                record = self.log.history.trial(attempt.id)
                if (record.attempt, record.status) != (attempt.attempt, Status.RUNNING):
                    raise _lost(attempt) from error
            raise

    def end(self, attempt: Attempt, status: Status | None, failure: Failure | None = None) -> None:
        """Append the end of an attempt and give the lease back; see Trial.finish."""
        if attempt.ended is not None:
            return
        if isinstance(self._rank, Follower):
            self._hear_end(self._rank, attempt, status)
            return
        work = partial(_end, attempt=attempt, status=status, failure=failure)
        error = None if failure is None else failure.error

        def ended() -> None:  # an interrupted trial does not wait for the server
            appended = self._do(None, work, patient=status is not Status.INTERRUPTED)
            _warn_of_end(self.replica, attempt, status, appended, self._given.max_failures)

        self.decide(attempt, "ends", ended, lambda _: error)

    def _hear_end(self, rank_0: Follower, attempt: Attempt, status: Status | None) -> None:
        """Raise the error that ended the attempt on rank 0, unless this rank has its own, or the search continues."""
        topic = f"{attempt._label} ends"
        if status is Status.INTERRUPTED:
            attempt.ended = status
            with suppress(RankLost):
                rank_0.heard(topic, _BRIEFLY)
            return
        failing = status is Status.FAILED
        line = rank_0.heard(topic, GRACE if failing else None)
        attempt._change(line["changes"])
        if failing:
            return
        if "error" in line:
            raise error_from_json(*line["error"])
        if line["answer"] is not None and not self._is_forgiven(rank_0, attempt):
            kind, _, words = line["answer"].partition(": ")
            raise error_from_json(kind, words)

    def forget(self, attempt: Attempt) -> None:
        """Give up an attempt whose end could not be recorded: its lease expires."""
        if self.acts:
            self.replica.forget(attempt.id, attempt.attempt)

    def mark_lost(self, attempt: Attempt, reason: str) -> None:
        """Append that a trial was lost. It is offered again, up to max_retries times."""
        work = partial(_mark_lost, attempt=attempt, reason=reason, max_retries=self._given.store.max_retries)
        self._do(f"{attempt._label} is lost", work, attempt=attempt)

    def tolerates(self, attempt: Attempt, error: BaseException) -> bool:
        if isinstance(self._rank, Follower):
            return self._is_forgiven(self._rank, attempt)
        work = partial(_tolerates, self.log.history, attempt, error, self._given.max_failures)
        if tolerated := self.decide(attempt, "is forgiven", work):
            self.logger.forget(attempt)
        return tolerated

    @staticmethod
    def _is_forgiven(rank_0: Follower, attempt: Attempt) -> bool:
        """Return whether the search continues after the attempt failed; rank 0 decides if it failed there too."""
        if attempt.ended is not Status.FAILED:
            return False
        try:
            return bool(rank_0.hear(f"{attempt._label} is forgiven", seconds=GRACE))
        except RankLost:
            return False

    def log_sleep(self, attempt: Attempt) -> None:
        """Log how long this machine slept during the trial, on rank 0."""
        if not self.acts:
            return
        self.replica.now()
        if self.replica.jumps(attempt.id, attempt.attempt):
            self._do(None, partial(Replica.log_sleep, trial=attempt.id, attempt=attempt.attempt), patient=False)

    def renew(self, attempt: Attempt) -> None:
        """Renew a lease, on rank 0; see Trial.heartbeat. A heartbeat does not wait for the lock."""
        if self.acts:
            self.log_sleep(attempt)
            self.replica.store.renew(self._given.name, self.replica.lease(attempt.id, attempt.attempt))

    def adopt(self, attempt: Attempt) -> None:
        """Continue an attempt in a forked or spawned process, under the same lease; only one rank may.

        Raises NotSupported for a store in memory.
        """
        if self.acts:
            self.replica.adopt()
            self.renew(attempt)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling only when multiprocessing starts a process.

        Raises NotSupported for any other purpose, and for a policy whose class is defined in a function.
        """
        if not spawning():
            raise NotSupported(
                "A study cannot be pickled, because its log is its state. Open it again with the URL of its store: "
                "Study(problem, policy, store='sqlite:///search.db')."
            )
        settings, handed_out = self.settings, set(self.replica.handed_out) if self.acts else set()
        decides = type(settings.policy.policy if isinstance(settings.policy, Wrapper) else settings.policy)
        if "<locals>" in decides.__qualname__:
            raise NotSupported(
                f"A spawned process cannot import {decides.__qualname__}, the class of this study's policy, because "
                "it is defined in a function. Define it at the top of a module."
            )
        return _carried, (settings, (self.holder, handed_out))


def spawning() -> bool:
    """True while multiprocessing pickles the data of a new process."""
    return get_spawning_popen() is not None


def _carried(settings: Settings, holds: tuple[str, Attempts]) -> Session:
    return Session(settings, holds=holds)


def _hold(replica: Replica, holder: str, handed_out: Attempts) -> None:
    """Take over the leases of the process that started this one to train its trials."""
    replica.adopt(holder)
    replica.speaks = True  # such a process does not log trials, but it logs hints
    replica.handed_out |= handed_out


def _opened_to_json(log: Replica) -> Json:
    """Return the data of a study that the other ranks need, as JSON."""
    kept = log.checkpoints
    folder = {"folder": str(kept.folder), "keep": kept.keep, "quota": kept.quota}
    return {"url": log.store.url, "term": log.term, "policy": plain(log.policy.spec), **folder}


def _verdict_converts(verdict: Verdict) -> Callable[[], Json]:
    return partial(verdict_to_json, verdict)


# -- the other events of an attempt ------------------------------------------------------------------------------------


def _checkpointed(replica: Replica, attempt: Attempt, path: str, seconds: float, keep: bool) -> bool:
    replica.log_sleep(attempt.id, attempt.attempt)
    event = (ev.Kept if keep else ev.Checkpointed)(
        at=replica.now(), trial=attempt.id, attempt=attempt.attempt, epoch=float(attempt.epoch), path=path,
        seconds=seconds,
    )  # fmt: skip
    if replica.append_if_held(event, replica.lease(attempt.id, attempt.attempt)):
        attempt.checkpoint = attempt.checkpoint if keep else replica.checkpoints.located(path)
        return True
    return any(  # it may be in the log although the server did not answer
        isinstance(e, ev.Checkpointed | ev.Kept) and (e.trial, e.attempt, e.path) == (attempt.id, attempt.attempt, path)
        for e in replica.store.read(replica.name)
    )


def _lost(attempt: Attempt) -> LeaseLost:
    why = f"has ended ({attempt.ended})" if attempt.ended else "was offered to another worker"
    return LeaseLost(f"Trial {attempt.id} {why}. Its state is not saved.")


def _end(replica: Replica, attempt: Attempt, status: Status | None, failure: Failure | None) -> bool:
    """Append the end of an attempt, release the lease, delete unneeded checkpoints. Return whether it was appended."""
    if attempt.ended is not None:
        return False
    replica.log_sleep(attempt.id, attempt.attempt)
    _catch_up(replica, attempt)
    if status is None and not len(replica.history.trial(attempt.id).epochs):
        status, failure = Status.FAILED, Failure(_SILENT)
    event = ev.Ended(
        at=replica.now(), trial=attempt.id, attempt=attempt.attempt,
        status=status or _derived(attempt, replica.problem.max_epochs),
        error=None if failure is None else failure.error,
        traceback=None if failure is None else failure.traceback,
    )  # fmt: skip
    held = replica.append_if_held(event, Release(attempt.id))
    attempt.ended = event.status if held else _as_recorded(replica, attempt)
    if attempt.ended in OVER or attempt.ended is Status.PAUSED:  # a pause may complete a rung, and others lose it
        replica.tidy()
    return held


_SILENT = "ended without one report"


def _derived(attempt: Attempt, horizon: int | None) -> Status:
    verdict = attempt.verdict
    if verdict is None or not verdict.stops:
        return Status.COMPLETED
    if verdict.action is Action.PAUSE:  # a loop that ignored the pause may have trained it in full
        return Status.PAUSED if horizon is None or attempt.epoch < horizon else Status.COMPLETED
    return Status.INTERRUPTED if verdict.resumable else Status.STOPPED  # with a larger budget it resumes


def _as_recorded(replica: Replica, attempt: Attempt) -> Status:
    """Return how an attempt ended that is no longer held: ended by a process of the training, or lost."""
    r = replica.history.trial(attempt.id)
    return r.status if r.attempt == attempt.attempt else Status.INTERRUPTED


def _warn_of_end(replica: Replica, attempt: Attempt, status: Status | None, appended: bool, max_failures: int) -> None:
    """Warn of a probable mistake in an attempt that ended.

    Raises InvalidInput for a trial without a report, if no trial has succeeded or too many failed in a row.
    """
    if not appended:
        return
    history = replica.history
    record = history.trial(attempt.id)
    if attempt.ended is Status.PAUSED and record.checkpoint_epoch < attempt.epoch:
        then = "When it resumes, it trains the unsaved epochs again"
        if replica.policy.gives_up_pauses:
            then = "A trial that resumes trains again from its start, so trials that have trained 40% stop instead"
        if replica.first_time("nothing saved", advice=True):
            _log.warning(
                "Trial %d paused, but no checkpoint was saved after %s. %s. To save checkpoints, use trial.save(write) "
                "or TrainingLoop(trial, save=write). Or use BOBOS(), which never pauses.",
                attempt.id, replica.problem.at(attempt.epoch), then,
            )  # fmt: skip
    elif status is Status.INTERRUPTED:
        _log.warning("Trial %d was interrupted. %s", attempt.id, _how_it_resumes(record, attempt))
    elif status is None and record.error == _SILENT:
        unit, most = replica.problem.unit, replica.problem.max_epochs
        often = "(value) after every epoch"
        if unit != "epoch":
            often = f"(value, {position_argument(unit)}) every few {replica.problem.units}"
            often += f", the last one at {unit} {numeral(most)}" if most is not None else ""
        text = (
            f"Trial {attempt.id} ended without one report. Call trial.report{often}, call "
            "study.tell(trial, value) at the end, or pass a new HaltuneCallback(trial) to the trainer. With "
            "fast_dev_run nothing is reported. A script of `haltune run` must report to haltune.current_trial()."
        )
        if not history.any_success or history.failures_in_a_row >= max_failures:
            raise InvalidInput(text)
        _log.warning(text)
    elif attempt.ended is Status.COMPLETED:
        _doubt(replica, record, one_epoch=attempt.patient)  # a callback knows how long its fit should be


def _doubt(replica: Replica, ended: TrialRecord, one_epoch: bool) -> None:
    """Warn of percent that look like shares, of a full training without a rank, and of a loop of one report."""
    goal, values, horizon = replica.problem.goal, ended.values, replica.problem.max_epochs
    if goal.rank_by is not None and goal.rank_by not in ended.metrics:
        replica.warn_once(
            f"Trial {ended.id} ended without a report of {goal.rank_by!r}, so it has no rank among the full trainings "
            f"(rank_by={goal.rank_by!r}). Report it at the end, trial.report({{{goal.metric!r}: ..., "
            f"{goal.rank_by!r}: ...}}), or omit rank_by=.",
            about="no rank",
        )
    if goal.bounds == (0.0, 100.0) and (values > 0.0).any() and ((values >= 0.0) & (values <= 1.0)).all():
        replica.warn_once(
            f"{goal.metric} was within 0 and 1 at every epoch of trial {ended.id}, but the goal's bounds are (0, 100). "
            "If it is a share, use bounds=(0, 1). Otherwise all trials have nearly the same score.",
            about="percent",
        )
    early = one_epoch and horizon is not None and horizon >= 2 and ended.epochs.tolist() == [1.0]
    if early and replica.first_time("one epoch", advice=True):
        _log.warning(
            "Trial %d ended by itself after 1 epoch of %d. Report after every epoch. End the loop if "
            "trial.report(value).stops, not if trial.report(value), which is always true. If a training has one value, "
            "report it with study.tell(trial, value).", ended.id, horizon,
        )  # fmt: skip


def _how_it_resumes(record: TrialRecord, attempt: Attempt) -> str:
    """Return how an interrupted trial continues."""
    if record.checkpoint_epoch:
        at = f"{record.unit} {numeral(record.checkpoint_epoch)}"
        return f"The next ask, or the next start of this program, resumes it after {at}, its last checkpoint."
    if not attempt.epoch:
        return "The next ask, or the next start of this program, trains it from scratch."
    return (
        "The next ask, or the next start of this program, trains it from scratch, because it has no checkpoint. "
        "Callbacks save when a trial pauses; in your own loop call trial.save(write) after an epoch."
    )


def _mark_lost(replica: Replica, attempt: Attempt, reason: str, max_retries: int) -> None:
    """Append that an attempt was lost. The trial is offered again up to `max_retries` times, then it has failed."""
    replica.log_sleep(attempt.id, attempt.attempt)
    _catch_up(replica, attempt)
    event = replica.expired(replica.lease(attempt.id, attempt.attempt), max_retries, reason)
    held = replica.append_if_held(event, Release(attempt.id))
    attempt.ended = event.status if held else _as_recorded(replica, attempt)
    if attempt.ended is Status.FAILED:
        replica.tidy()


def _tolerates(history: History, attempt: Attempt, error: BaseException, max_failures: int) -> bool:
    """True if the search continues after `error`, which is in the log already."""
    failures = history.failures_in_a_row
    if is_shortage(error):
        short = sum(told_shortage(t.error) for t in history.with_status(Status.FAILED))
        if history.any_success or short < max(1, _SHORTAGES * max_failures):
            text = "Trial %d failed: it ran out of memory. The search continues. %s"
            _log.warning(text, attempt.id, one_line(error))
            return True
        why = f"{plural(short, 'trial')} ran out of memory and none has succeeded. Make the models or batches smaller."
    elif not history.any_success:
        why = f"Trial {attempt.id} failed and none has succeeded yet. The training code may have a bug."
    elif failures >= max_failures:
        why = f"{plural(failures, 'trial')} failed in a row (max_failures)."
    else:
        _log.warning("Trial %d failed and the search continues: %s: %s", attempt.id, type(error).__name__, error)
        return True
    error.add_note(f"haltune: {why}")
    return False


def _catch_up(replica: Replica, attempt: Attempt) -> None:
    """Read reports that another process of the training made, or whose call Ctrl-C interrupted."""
    r = replica.synced(attempt.id)
    if r.attempt != attempt.attempt or r.epoch <= attempt.epoch:
        return
    attempt.epoch, attempt.pause_at, attempt.checkpoint = epoch_number(r.epoch), r.pause_at, r.checkpoint
    for event in replica.store.read(replica.name, stop=replica.history.position):
        if isinstance(event, ev.Reported) and (event.trial, event.attempt) == (attempt.id, attempt.attempt):
            judged = event.verdict.action is not Action.UNJUDGED
            attempt.verdict = event.verdict if judged else attempt.verdict


# -- the log on the ranks above 0 --------------------------------------------------------------------------------------


class HeardLog:
    """The log of a rank above 0: it is read up to rank 0's position at its last answer.

    The policy's state is folded here as on rank 0, so that one rank can answer any question.
    """

    def __init__(self, settings: Settings, rank_0: Follower, data: Json) -> None:
        self._given, self.name = settings.problem, settings.name
        self.policy, self.term = settings.policy.as_recorded(data["policy"]), data["term"]
        self.checkpoints = Checkpoints(data["folder"], data["keep"], data["quota"])
        self.lock = RLock()
        self.logged_budget: Budget | None = None  # the recorded budget counts
        self._where, self._rank_0 = settings.store, rank_0
        self._store: Store | None = _ToldStore(rank_0) if data["url"] == "memory" else None
        self._holder = ""
        self._begin()
        fork_handlers.add(self)

    def _begin(self) -> None:
        whose = f"the study {self.name!r}"
        self._fold = Fold(self._given, self.policy, whose, lambda stop: self.store.read(self.name, 0, stop))
        self._history = History(self._given)  # separate: few questions need the state, and to fold it may be expensive
        self._history.whose, self._history.locate = whose, self.checkpoints.located

    def after_fork(self) -> None:
        if not is_free(self.lock):
            self.lock = RLock()
            self._begin()

    def holder(self) -> str:
        """An identity that holds nothing: the leases are rank 0's."""
        self._holder = self._holder or new_holder()
        return self._holder

    @property
    def problem(self) -> Problem:
        """The problem, without reading the store, which this rank may not reach."""
        return self._history.problem

    @property
    def store(self) -> Store:
        """The store, opened for reading at its first use."""
        if self._store is None:
            self._store = open_store(self._where, reading=True)
        return self._store

    @property
    def history(self) -> History:
        """The same on all ranks after the same calls."""
        with self.lock:
            for event in self.store.read(self.name, self._history.position, self._rank_0.position):
                self._history.apply(event)
            return self._history

    @property
    def state(self) -> Any:
        with self.lock:
            self._catch_up()
            return self._fold.state

    @property
    def judged(self) -> History:
        with self.lock:
            self._catch_up()
            return self._fold.judged

    def _catch_up(self) -> None:
        position = self._fold.history.position
        self._fold.read(self.store.read(self.name, position, self._history.position))

    def events(self, start: int = 0) -> Iterator[Event]:
        return self.store.read(self.name, start, self.history.position)


class _ToldStore(MemoryStore):
    """The log of a study in rank 0's memory, as far as this rank received it."""

    def __init__(self, rank_0: Follower) -> None:
        super().__init__()
        self._rank_0 = rank_0
        self._events: list[Event] = []

    def _log(self, name: str) -> list[Event]:
        self._events += map(from_json, self._rank_0.events[len(self._events) :])
        return self._events[: self._rank_0.position]
