"""What one process does for a study: one lock, one retry, and the one place that says which rank acts.

    Trial.report -> Session.record -> judging.record (lock, retry, rank) -> policy.judge -> Store.append

Rank 0 of a distributed training, or a process by itself, reads and writes the store. Every other rank hears what
rank 0 did (`haltune.ranks`) and writes nothing. A session that multiprocessing carries into a process opens the study
there when something is first asked of it, which only one rank does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property, partial
from multiprocessing.context import get_spawning_popen
from threading import RLock
from typing import Any, TypeVar

from haltune._utils.checks import number
from haltune._utils.forks import fork_handlers, is_free
from haltune._utils.process import new_holder
from haltune.display import numeral, one_line, plural
from haltune.errors import InvalidInput, LeaseLost, NotSupported, RankLost, is_shortage, told_shortage, warn
from haltune.log import events as ev
from haltune.log.decisions import Action, Finish, Verdict, Wait
from haltune.log.events import OVER, Event, Status, from_json, plain, to_json, verdict_from_json, verdict_to_json
from haltune.log.history import History
from haltune.log.policy import Fold, Wrapper
from haltune.log.problem import Budget, Problem
from haltune.log.records import TrialRecord
from haltune.ranks import Follower, Leader, Line, error_from_json, joined, same
from haltune.store.base import Conflict, Release, Store, retry
from haltune.store.checkpoints import Checkpoints, own_folder
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store

from .asking import Elsewhere, answer, enqueue
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
from .replica import Replica

T = TypeVar("T")
_log = logging.getLogger("haltune")
Attempts = set[tuple[int, int]]  # trials with their attempts
GRACE = 10.0  # seconds that a rank which fails waits for word from rank 0, which may know nothing of it
_BRIEFLY = 0.5  # likewise, one that is interrupted: Ctrl-C waits for nobody
_LOOKS = (0.02, 0.25)  # seconds between looks while another worker decides: from, to
_SHORTAGES = 4  # times max_failures: trials out of memory, before any succeeded, until the error is raised


_clocks: ContextVar[tuple[MonotonicClock, Callable[[float], None]]] = ContextVar(
    "clocks", default=(time.perf_counter, time.sleep)
)


@contextmanager
def clocked(monotonic: MonotonicClock, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Give studies opened in the block other clocks: what times epochs and decisions, and what waits between asks."""
    token = _clocks.set((monotonic, sleep))
    try:
        yield
    finally:
        _clocks.reset(token)


class Session:
    """One process's work for one study. What changes an attempt changes it on every rank.

    holds: of a process that was started to train, the holder whose leases it has, and its trials; `log` is then opened
    when it is first asked for. Raises what opening a Study raises.
    """

    def __init__(self, settings: Settings, seed: int | None = None, holds: tuple[str, Attempts] | None = None) -> None:
        self._given, self._seed, self._holds = settings, seed, holds
        self.budget = settings.budget
        self.monotonic, self._sleep = _clocks.get()
        self.launched = False  # it trains what a launcher holds, which decides what signals mean
        self.waits = True  # for a server that is away; a launcher does not: it has others to look after
        self._rank = joined(settings.name, settings.where) if holds is None else Leader(None, "")
        self.acts = isinstance(self._rank, Leader)  # rank 0, or a process by itself
        self.logger = Logger(settings.verbose if self.acts else 0)
        self._told = 0  # events of a log in memory that the other ranks know
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
            """How far the log is read, and the events of one that only this process has."""
            position = found.fold.history.position
            if not isinstance(store, MemoryStore):
                return {"position": position}
            start, self._told = self._told, max(self._told, position)
            new = tuple(store.read(given.name, start, self._told))  # not the store: it would live as long as the line
            return {"position": position, "events": lambda: [to_json(event) for event in new]}

        if isinstance(self._rank, Leader):
            self._rank.news = news
        return found

    @property
    def replica(self) -> Replica:
        """The log, on rank 0."""
        assert isinstance(self.log, Replica)
        return self.log

    def set_price(self, price: float | None) -> None:
        """Set what this worker costs for an hour; None changes nothing. Raises InvalidInput for what is no price."""
        if price is not None and self.acts:
            self.replica.price = number("price", price, None)

    @property
    def checkpoints(self) -> Checkpoints:
        return self.log.checkpoints

    @property
    def settings(self) -> Settings:
        """What opens this study again, with the store and the folder of checkpoints that were found."""
        return self._given.found(self.log, self.budget, self.lease_seconds)

    @property
    def holder(self) -> str:
        """This process, as its leases name it."""
        return self.log.holder()

    @property
    def lease_seconds(self) -> float:
        """How long a silent worker is taken to live."""
        return self.log.term

    def sync(self) -> None:
        """Read what other workers appended since. Rank 0 does."""
        if self.acts:
            self._do(None, Replica.sync)

    # what every change goes through

    def _do(
        self,
        topic: str | None,
        work: Callable[[Replica], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
        attempt: Attempt | None = None,
        patient: bool = True,
    ) -> T:
        """What `work` returns, done on rank 0: under the lock, again after a conflict, again while the server is away.

        The other ranks hear it under the topic; None: nobody else waits for it. Between two tries signals are handled.
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
        retried = partial(retry, once, seconds, self._sleep, self._tell_away)
        return retried() if topic is None else self._rank.decide(topic, retried, to_json, from_json, attempt)

    def _tell_away(self, text: str) -> None:
        self.replica.warn_once(text, about="away")

    def decide(
        self,
        attempt: Attempt,
        about: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
    ) -> T:
        """What `work` does on rank 0 and comes to on all ranks of a distributed training. The log is not locked."""
        return self._rank.decide(f"{attempt._label} {about}", work, to_json, from_json, attempt)

    # between trials

    def ask(self, make: Callable[[Attempt], A]) -> A | Wait | Finish:
        """See Study.ask. make: what the worker is given of its attempt; while it lives the attempt is trained here."""
        begun: Attempts = set()
        self.tell()

        def answered(replica: Replica) -> A | Wait | Finish:
            found = answer(replica, self.budget, self._given.store.max_retries, self.monotonic)
            if isinstance(found, Wait | Finish):
                return found
            begun.add((found.id, found.attempt))
            trial = make(Attempt._of(found))
            replica.trains(trial.id, trial.attempt, trial)
            return trial

        try:
            found = self._do("ask", answered, answer_to_json, partial(answer_from_json, make=make))
            if self.acts and isinstance(found, Attempt):
                self.logger.started(self.log.history, found, partial(unlimited, self.budget, self.log.policy))
            elif self.acts and isinstance(found, Finish):
                self.logger.over(self.log.history, found, self.budget)
                if (told := shared_error(self.log.history)) is not None:
                    self.replica.warn_once(told, about="the same error")
            return found
        except BaseException:
            if self.acts:
                self.replica.handed_out -= begun  # nobody has it: it is offered again at once
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
                raise LeaseLost(f"attempt {attempt} at trial {id} is over: it is {r.status}, attempt {r.attempt}")
            trial = make(Attempt._of(r))
            replica.trains(id, attempt, trial)
            return trial

        return self._do("takes a trial", taken, Attempt._to_json, lambda told: make(Attempt._from_json(told)))

    def wait(self, seconds: float, why: str | None) -> None:
        """Wait between two asks, on rank 0; `why`: to be told."""
        if why is not None and self.acts:
            _log.info("waiting: %s", why)
        if self.acts:
            self._sleep(seconds)

    def pass_over(self) -> None:
        """Leave out the trials that were over before this process was started as another rank."""
        if not isinstance(rank_0 := self._rank, Follower):
            return

        def is_over(line: Line) -> bool:
            told = line.get("answer", {})
            if "trial" not in told:
                return "finish" not in told
            return rank_0.was_before(f"{label(**told['trial'])} ends")

        rank_0.skip("ask", is_over)

    def tell(self) -> None:
        """Say how the trials went that have ended: by now their training draws nothing on the terminal."""
        if self.acts:
            self.logger.ended(self.log.history, self.budget)

    def warn(self, text: str, about: str | None = None) -> None:
        """A HaltuneWarning, and in the log, once a search: the same text, or the first `about` a matter.

        Opens nothing: where the log is not open it warns alone.
        """
        aloud = not self.acts or "log" not in vars(self) or self.replica.first_time(f"aloud: {about or text}", True)
        warn(text, aloud=aloud)

    def hint(self, text: str, about: str) -> None:
        """A line in the log that is worth reading once a study."""
        if self.acts and self.replica.first_time(about, advice=True):
            self.logger.note(text)

    # within a trial

    def record(self, attempt: Attempt, report: Report, judge: bool) -> Verdict:
        """Append a report with its verdict; see Trial.report."""
        verdict = self._do(
            f"{attempt._label} reports {attempt.unit} {report.epoch:.12g}",
            partial(record, budget=self.budget, attempt=attempt, report=report, judged=judge, clock=self.monotonic),
            _verdict_converts, verdict_from_json, attempt, attempt._patient,
        )  # fmt: skip
        if self.logger.verbose > 1:
            self.logger.judged(self.log.history, attempt, report.epoch, report.value, verdict)
        return verdict

    def recall(self, attempt: Attempt) -> None:
        """Take from the log what a report came to that was interrupted; rank 0 tells with the next report."""
        if self.acts:
            self._do(None, partial(_catch_up, attempt=attempt), patient=attempt._patient)

    def checkpointed(self, attempt: Attempt, path: str, seconds: float, keep: bool = False) -> bool:
        """Append a checkpoint; False when the trial is not this worker's any more. See Trial.checkpointed.

        keep: of its best epoch, and not to go on from.
        """
        if not self.acts:
            attempt.checkpoint = attempt.checkpoint if keep else path
            return True
        work = partial(_checkpointed, attempt=attempt, path=path, seconds=seconds, keep=keep)
        return self._do(None, work, patient=attempt._patient)

    def end(self, attempt: Attempt, status: Status | None, failure: Failure | None = None) -> None:
        """Append the end of an attempt and give the lease back; see Trial.finish."""
        if attempt.ended is not None:
            return
        if isinstance(self._rank, Follower):
            self._hear_end(self._rank, attempt, status)
            return
        work = partial(_end, attempt=attempt, status=status, failure=failure)
        error = None if failure is None else failure.error

        def ended() -> None:  # who is interrupted does not wait
            appended = self._do(None, work, patient=status is not Status.INTERRUPTED)
            _remark(self.replica, attempt, status, appended, self._given.max_failures)

        self.decide(attempt, "ends", ended, lambda _: error)

    def _hear_end(self, rank_0: Follower, attempt: Attempt, status: Status | None) -> None:
        """Raises what ended the attempt on rank 0, unless this rank has an error of its own, or the search goes on."""
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
        """Nobody trains an attempt any more whose end could not be recorded: its lease runs out."""
        if self.acts:
            self.replica.forget(attempt.id, attempt.attempt)

    def lose(self, attempt: Attempt, reason: str) -> None:
        """Append that the training of a trial was lost: it is offered again, up to max_retries times."""
        work = partial(_lose, attempt=attempt, reason=reason, max_retries=self._given.store.max_retries)
        self._do(f"{attempt._label} is lost", work, attempt=attempt)

    def tolerates(self, attempt: Attempt, error: BaseException) -> bool:
        """True when the search goes on after `error`, which is in the log already."""
        if isinstance(self._rank, Follower):
            return self._is_forgiven(self._rank, attempt)
        work = partial(_tolerates, self.log.history, attempt, error, self._given.max_failures)
        if tolerated := self.decide(attempt, "is forgiven", work):
            self.logger.forget(attempt)
        return tolerated

    @staticmethod
    def _is_forgiven(rank_0: Follower, attempt: Attempt) -> bool:
        """Whether the search goes on after the attempt failed; as rank 0 says where it failed there, too."""
        if attempt.ended is not Status.FAILED:
            return False
        try:
            return bool(rank_0.hear(f"{attempt._label} is forgiven", seconds=GRACE))
        except RankLost:
            return False

    def wake(self, attempt: Attempt) -> None:
        """Log what this machine slept since it was handed the trial. Rank 0 notices for all."""
        if not self.acts:
            return
        self.replica.now()
        if self.replica.jumps(attempt.id, attempt.attempt):
            self._do(None, partial(Replica.wake, trial=attempt.id, attempt=attempt.attempt), patient=False)

    def renew(self, attempt: Attempt) -> None:
        """Renew a lease; see Trial.heartbeat. Rank 0 does for all, and a heartbeat does not wait for the lock."""
        if self.acts:
            self.wake(attempt)
            self.replica.store.renew(self._given.name, self.replica.lease(attempt.id, attempt.attempt))

    def adopt(self, attempt: Attempt) -> None:
        """Go on with an attempt in a forked or spawned process, under the same lease: one rank's alone.

        Raises NotSupported for a store in memory.
        """
        if self.acts:
            self.replica.adopt()
            self.renew(attempt)

    def __reduce__(self) -> tuple[Any, ...]:
        """Only what multiprocessing pickles to start a process crosses; a study is never pickled otherwise.

        Raises NotSupported for any other purpose, and for a policy whose class is made in a function.
        """
        if not spawning():
            raise NotSupported(
                "a study is not pickled: its log is its state. Open it again by the URL of its store, "
                "Study(problem, policy, store='sqlite:///search.db')"
            )
        settings, handed_out = self.settings, set(self.replica.handed_out) if self.acts else set()
        decides = type(settings.policy.policy if isinstance(settings.policy, Wrapper) else settings.policy)
        if "<locals>" in decides.__qualname__:
            raise NotSupported(
                f"a spawned process cannot import {decides.__qualname__}, the class of this study's policy, which a "
                "function defines: define it at the top of a module"
            )
        return _carried, (settings, (self.holder, handed_out))


def spawning() -> bool:
    """True while multiprocessing pickles what a new process begins with."""
    return get_spawning_popen() is not None


def _carried(settings: Settings, holds: tuple[str, Attempts]) -> Session:
    return Session(settings, holds=holds)


def _hold(replica: Replica, holder: str, handed_out: Attempts) -> None:
    """Hold the leases of another process, which started this one to train its trials."""
    replica.adopt(holder)
    replica.speaks = True  # a process that trains for another is silent, and gives its advice
    replica.handed_out |= handed_out


def _opened_to_json(log: Replica) -> Json:
    """What the other ranks have to know of a study."""
    kept = log.checkpoints
    told = {"folder": str(kept.folder), "keep": kept.keep, "quota": kept.quota}
    return {"url": log.store.url, "term": log.term, "policy": plain(log.policy.spec), **told}


def _verdict_converts(verdict: Verdict) -> Callable[[], Json]:
    return partial(verdict_to_json, verdict)


# -- what an attempt tells the log besides its reports -----------------------------------------------------------------


def _checkpointed(replica: Replica, attempt: Attempt, path: str, seconds: float, keep: bool) -> bool:
    """Append a checkpoint after the last epoch reported; False when the trial is not this worker's any more."""
    replica.wake(attempt.id, attempt.attempt)
    event = (ev.Kept if keep else ev.Checkpointed)(
        at=replica.now(), trial=attempt.id, attempt=attempt.attempt, epoch=float(attempt.epoch), path=path,
        seconds=seconds,
    )  # fmt: skip
    if replica.append_if_held(event, replica.lease(attempt.id, attempt.attempt)):
        attempt.checkpoint = attempt.checkpoint if keep else replica.checkpoints.located(path)
        return True
    return any(  # it may be in the log though nobody said so: the server was away when it should have answered
        isinstance(e, ev.Checkpointed | ev.Kept) and (e.trial, e.attempt, e.path) == (attempt.id, attempt.attempt, path)
        for e in replica.store.read(replica.name)
    )


def _end(replica: Replica, attempt: Attempt, status: Status | None, failure: Failure | None) -> bool:
    """Append the end of an attempt, give the lease back, delete checkpoints that nobody needs. True when appended."""
    if attempt.ended is not None:
        return False
    replica.wake(attempt.id, attempt.attempt)
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
    if attempt.ended in OVER or attempt.ended is Status.PAUSED:  # a pause may complete a rung that others lost
        replica.tidy()
    return held


_SILENT = "ended without one report"


def _derived(attempt: Attempt, horizon: int | None) -> Status:
    verdict = attempt.verdict
    if verdict is None or not verdict.stops:
        return Status.COMPLETED
    if verdict.action is Action.PAUSE:  # a loop that did not leave has trained it in full
        return Status.PAUSED if horizon is None or attempt.epoch < horizon else Status.COMPLETED
    return Status.INTERRUPTED if verdict.resumable else Status.STOPPED  # a larger budget takes it up again


def _as_recorded(replica: Replica, attempt: Attempt) -> Status:
    """How an attempt ended that is not held any more: in a process that the training spawned, or it was lost."""
    r = replica.history.trial(attempt.id)
    return r.status if r.attempt == attempt.attempt else Status.INTERRUPTED


def _remark(replica: Replica, attempt: Attempt, status: Status | None, appended: bool, max_failures: int) -> None:
    """Say of an attempt that ended what is hardly meant. Raises InvalidInput for the first without one report."""
    if not appended:
        return
    history = replica.history
    record = history.trial(attempt.id)
    if attempt.ended is Status.PAUSED and record.checkpoint_epoch < attempt.epoch:
        then = "what continues trains again what was not saved"
        if replica.policy.gives_up_pauses:
            then = "from now on the search stops runs for good where it would pause them"
        if replica.first_time("nothing saved", advice=True):
            _log.warning(
                "trial %d is paused and nothing was saved after %s: %s. Save it: trial.save(write), "
                "TrainingLoop(trial, save=write); or BOBOS(), which never pauses",
                attempt.id, replica.problem.at(attempt.epoch), then,
            )  # fmt: skip
    elif status is Status.INTERRUPTED:
        _log.warning("trial %d was left unfinished: %s", attempt.id, _taken_up(record, attempt))
    elif status is None and record.error == _SILENT:
        text = (
            f"trial {attempt.id} ended without one report: call trial.report(value) after every epoch, "
            "study.tell(trial, value) at the end, or pass HaltuneCallback(trial), made for this trial, to the trainer; "
            "fast_dev_run reports nothing, and a script of `haltune run` reports to haltune.current_trial()"
        )
        if not history.any_success or history.failures_in_a_row >= max_failures:
            raise InvalidInput(text)
        _log.warning(text)
    elif attempt.ended is Status.COMPLETED:
        _doubt(replica, record, one_epoch=attempt._patient)  # a callback knows what its fit had planned


def _doubt(replica: Replica, ended: TrialRecord, one_epoch: bool) -> None:
    """Warn of a goal in percent whose values look like shares, and of a loop that left after its first report."""
    goal, values, horizon = replica.problem.goal, ended.values, replica.problem.max_epochs
    if goal.bounds == (0.0, 100.0) and (values > 0.0).any() and ((values >= 0.0) & (values <= 1.0)).all():
        replica.warn_once(
            f"{goal.metric} was within 0 and 1 at every epoch of trial {ended.id}, and the goal's bounds are (0, 100): "
            "as a share it wants bounds=(0, 1), or all runs look alike",
            about="percent",
        )
    early = one_epoch and horizon is not None and horizon >= 2 and ended.epochs.tolist() == [1.0]
    if early and replica.first_time("one epoch", advice=True):
        _log.warning(
            "trial %d ended by itself after 1 epoch of %d. Report after every epoch, and leave the loop where "
            "trial.report(value).stops, for a verdict by itself is always true; study.tell(trial, value) takes the one "
            "value of a full training", ended.id, horizon,
        )  # fmt: skip


def _taken_up(record: TrialRecord, attempt: Attempt) -> str:
    """What the same program makes of a trial that was interrupted."""
    if record.checkpoint_epoch:
        return f"the same program continues after {record.unit} {numeral(record.checkpoint_epoch)}, its last checkpoint"
    anew = "the same program offers it again, and it begins anew"
    if not attempt.epoch:
        return anew
    return (
        f"{anew}, for nothing was saved that it could continue from: callbacks save where a trial pauses, a loop of "
        "your own where it calls trial.save(write) after an epoch"
    )


def _lose(replica: Replica, attempt: Attempt, reason: str, max_retries: int) -> None:
    """Append that an attempt was lost, and why: it is offered again, up to `max_retries` times, then failed."""
    replica.wake(attempt.id, attempt.attempt)
    _catch_up(replica, attempt)
    event = replica.expired(replica.lease(attempt.id, attempt.attempt), max_retries, reason)
    held = replica.append_if_held(event, Release(attempt.id))
    attempt.ended = event.status if held else _as_recorded(replica, attempt)
    if attempt.ended is Status.FAILED:
        replica.tidy()


def _tolerates(history: History, attempt: Attempt, error: BaseException, max_failures: int) -> bool:
    """True when the search goes on after `error`, which is in the log already."""
    failures = history.failures_in_a_row
    if is_shortage(error):
        short = sum(told_shortage(t.error) for t in history.with_status(Status.FAILED))
        if history.any_success or short < max(1, _SHORTAGES * max_failures):
            text = "trial %d ran out of memory: it has failed, and the search continues. %s"
            _log.warning(text, attempt.id, one_line(error))
            return True
        why = f"{plural(short, 'trial')} ran out of memory, and none has fitted: make them smaller"
    elif not history.any_success:
        why = f"trial {attempt.id} failed and none has succeeded yet: a bug in the training code?"
    elif failures >= max_failures:
        why = f"{plural(failures, 'trial')} failed in a row (max_failures)"
    else:
        _log.warning("trial %d failed and the search continues: %s: %s", attempt.id, type(error).__name__, error)
        return True
    error.add_note(f"haltune: {why}")
    return False


def _catch_up(replica: Replica, attempt: Attempt) -> None:
    """A process that the training spawned may have reported for this trial; or Ctrl-C came before its verdict."""
    r = replica.synced(attempt.id)
    if r.attempt != attempt.attempt or r.epoch <= attempt.epoch:
        return
    attempt.epoch, attempt.until, attempt.checkpoint = epoch_number(r.epoch), r.until, r.checkpoint
    for event in replica.store.read(replica.name, stop=replica.history.position):
        if isinstance(event, ev.Reported) and (event.trial, event.attempt) == (attempt.id, attempt.attempt):
            judged = event.verdict.action is not Action.UNJUDGED
            attempt.verdict = event.verdict if judged else attempt.verdict


# -- the log on the ranks above 0 --------------------------------------------------------------------------------------


class HeardLog:
    """The log of a rank above 0: read to look back, as far as rank 0 had read it when it was last heard.

    The policy's state is folded here like on rank 0, so that any question can be answered on one rank.
    """

    def __init__(self, settings: Settings, rank_0: Follower, told: Json) -> None:
        self._given, self.name = settings.problem, settings.name
        self.policy, self.term = settings.policy.as_recorded(told["policy"]), told["term"]
        self.checkpoints = Checkpoints(told["folder"], told["keep"], told["quota"])
        self.lock = RLock()
        self.told: Budget | None = None  # it plans by what is recorded
        self._where, self._rank_0 = settings.store, rank_0
        self._store: Store | None = _ToldStore(rank_0) if told["url"] == "memory" else None
        self._holder = ""
        self._begin()
        fork_handlers.add(self)

    def _begin(self) -> None:
        """Nothing is read yet."""
        whose = f"the study {self.name!r}"
        self._fold = Fold(self._given, self.policy, whose, lambda stop: self.store.read(self.name, 0, stop))
        self._history = History(self._given)  # apart: few questions need the state, and folding it may be dear
        self._history.whose, self._history.locate = whose, self.checkpoints.located

    def after_fork(self) -> None:
        if not is_free(self.lock):
            self.lock = RLock()
            self._begin()

    def holder(self) -> str:
        """It holds nothing: the leases are rank 0's."""
        self._holder = self._holder or new_holder()
        return self._holder

    @property
    def problem(self) -> Problem:
        """As far as somebody looked back: this rank may have no way to the store."""
        return self._history.problem

    @property
    def store(self) -> Store:
        """Opened when somebody looks back: to read."""
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
        """The policy's, at the position of the history."""
        with self.lock:
            self._catch_up()
            return self._fold.state

    @property
    def judged(self) -> History:
        """The history as the policy counts."""
        with self.lock:
            self._catch_up()
            return self._fold.judged

    def _catch_up(self) -> None:
        position = self._fold.history.position
        self._fold.read(self.store.read(self.name, position, self._history.position))

    def events(self, start: int = 0) -> Iterator[Event]:
        return self.store.read(self.name, start, self.history.position)


class _ToldStore(MemoryStore):
    """The log of a study in rank 0's memory, as far as it was told."""

    def __init__(self, rank_0: Follower) -> None:
        super().__init__()
        self._rank_0 = rank_0
        self._events: list[Event] = []

    def _log(self, name: str) -> list[Event]:
        self._events += map(from_json, self._rank_0.events[len(self._events) :])
        return self._events[: self._rank_0.position]
