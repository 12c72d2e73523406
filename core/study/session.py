"""What one process does for a study: one interface, and a kind of it for each part that a process can have.

LocalSession     rank 0 of a distributed training, or a process by itself: reads and writes the store
FollowerSession  another rank: hears what rank 0 did, and writes nothing
SpawnedSession   a process that a training spawned: opens a LocalSession when something is asked of it
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any, Protocol, TypeVar

from haltune._utils.forks import fork_handlers, is_free
from haltune._utils.process import new_holder
from haltune.display import one_line, plural
from haltune.errors import (
    InvalidInput,
    LeaseLost,
    NotSupported,
    RankLost,
    is_shortage,
    told_shortage,
    warn,
)
from haltune.log import events as ev
from haltune.log.decisions import Action, Finish, Verdict, Wait
from haltune.log.events import (
    OVER,
    Event,
    Status,
    from_json,
    plain,
    to_json,
    verdict_from_json,
    verdict_to_json,
)
from haltune.log.history import History
from haltune.log.policy import Fold, Wrapper
from haltune.log.problem import Budget, Problem
from haltune.log.records import TrialRecord
from haltune.ranks import Follower, Line, alone, error_from_json, follower, leader, same
from haltune.store.base import Release, Store, retry
from haltune.store.checkpoints import Checkpoints, own_folder
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store

from .asking import answer, enqueue, in_turn
from .attempt import (
    A,
    Attempt,
    Failure,
    Json,
    Log,
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


class Session(Protocol):
    """One process's work for one study. What changes an attempt writes it there, on every rank."""

    budget: Budget
    monotonic: MonotonicClock
    logger: Logger
    waits: bool  # for a server that is away; a launcher does not: it has others to look after

    @property
    def log(self) -> Log: ...

    @property
    def checkpoints(self) -> Checkpoints: ...

    @property
    def settings(self) -> Settings:
        """What opens this study again, with the store and the folder of checkpoints that were found."""
        ...

    @property
    def holder(self) -> str:
        """This process, as its leases name it."""
        ...

    @property
    def lease_seconds(self) -> float:
        """How long a silent worker is taken to live."""
        ...

    def sync(self) -> None:
        """Read what other workers appended since."""
        ...

    def ask(self, make: Callable[[Attempt], A]) -> A | Wait | Finish:
        """See Study.ask. make: what the worker is given of its attempt; while it lives the attempt is trained here."""
        ...

    def enqueue(self, config: Mapping[str, Any], again: bool) -> bool:
        """See Study.enqueue. config: in canonical form."""
        ...

    def take(
        self,
        id: int,
        attempt: int,
        holder: str,
        leaving: Callable[[], str | None],
        make: Callable[[Attempt], A],
    ) -> A: ...

    def record(self, attempt: Attempt, report: Report, judge: bool) -> Verdict:
        """Append a report with its verdict; see Trial.report."""
        ...

    def recall(self, attempt: Attempt) -> None:
        """Take from the log what a report came to that was interrupted."""
        ...

    def checkpointed(self, attempt: Attempt, path: str, seconds: float, keep: bool = False) -> bool:
        """Append a checkpoint; False when the trial is not this worker's any more. See Trial.checkpointed.

        keep: of its best epoch, and not to go on from.
        """
        ...

    def end(self, attempt: Attempt, status: Status | None, failure: Failure | None = None) -> None:
        """Append the end of an attempt and give the lease back; see Trial.finish."""
        ...

    def tell(self) -> None:
        """Say how the trials went that have ended: by now their training draws nothing on the terminal."""
        ...

    def warn(self, text: str, about: str | None = None) -> None:
        """A HaltuneWarning, and in the log, once a search: the same text, or the first `about` a matter."""
        ...

    def lose(self, attempt: Attempt, reason: str) -> None:
        """Append that the training of a trial was lost: it is offered again, up to max_retries times."""
        ...

    def tolerates(self, attempt: Attempt, error: BaseException) -> bool:
        """True when the search goes on after `error`, which is in the log already."""
        ...

    def wake(self, attempt: Attempt) -> None:
        """Log what this machine slept since it was handed the trial."""
        ...

    def renew(self, attempt: Attempt) -> None:
        """Renew a lease; see Trial.heartbeat."""
        ...

    def adopt(self, attempt: Attempt) -> None:
        """Go on with an attempt in a forked or spawned process; see Trial.adopt."""
        ...

    def decide(
        self,
        attempt: Attempt,
        about: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
    ) -> T:
        """What `work` does on rank 0 and comes to on all ranks of a distributed training; see ranks."""
        ...

    def wait(self, seconds: float, why: str | None) -> None:
        """Wait between two asks; `why`: to be told."""
        ...

    def pass_over(self) -> None:
        """Leave out the trials that were over before this process was started: their training is not repeated."""
        ...


Attempts = set[tuple[int, int]]  # trials with their attempts


def spawning() -> bool:
    """True while multiprocessing pickles what a new process begins with."""
    return get_spawning_popen() is not None


class SpawnedSession:
    """Stands for a session; opens it when something is first asked of it, which only one rank does."""

    def __init__(self, opens: Callable[[], Session]) -> None:
        self._opens = opens
        self._session: Session | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._opened(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is set is the session's, but for how it is opened."""
        if name in ("_opens", "_session"):
            super().__setattr__(name, value)
        else:
            setattr(self._opened(), name, value)

    def warn(self, text: str, about: str | None = None) -> None:
        """See Session. Opens nothing."""
        if self._session is None:
            warn(text)
        else:
            self._session.warn(text, about)

    def _opened(self) -> Session:
        if self._session is None:
            self._session = self._opens()
        return self._session


def carried(opens: Callable[..., Session], *arguments: Any) -> tuple[Any, ...]:
    """How a session is pickled. opens: makes one of `arguments` in another process.

    Raises NotSupported for any purpose but to start a process, and for a policy whose class is made in a function.
    """
    if not spawning():
        raise NotSupported(
            "a study is not pickled: its log is its state. Open it again by the URL of its store, "
            "Study(problem, policy, store='sqlite:///search.db')"
        )
    for given in arguments:
        policy = getattr(given, "policy", None)
        decides = type(policy.policy if isinstance(policy, Wrapper) else policy)
        if "<locals>" in decides.__qualname__:
            raise NotSupported(
                f"a spawned process cannot import {decides.__qualname__}, the class of this study's policy, which a "
                "function defines: define it at the top of a module"
            )
    return SpawnedSession, (partial(opens, *arguments),)


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


class LocalSession:
    """See Session. `replica` is this process's copy of the log.

    sleep: waits, seconds. Raises what opening a Study raises.
    """

    def __init__(
        self,
        settings: Settings,
        seed: int | None = None,
        monotonic: MonotonicClock = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._given, self.budget = settings, settings.budget
        self.monotonic, self._sleep, self.waits = monotonic, sleep, True
        self.logger = Logger(settings.verbose)
        self._told = 0  # events of a log in memory that the other ranks know
        self._leader = leader(settings.name, settings.where)
        opening = partial(retry, partial(self._open, seed), settings.patience, sleep, warn)
        self.replica = self._leader.decide("opens", opening, opened_to_json)

    def _open(self, seed: int | None) -> Replica:
        given = self._given
        store = open_store(given.store)

        def kept(created: ev.Created) -> Checkpoints:
            if isinstance(given.checkpoints, Checkpoints):
                return given.checkpoints
            own = own_folder(store, given.name, created, given.checkpoints)
            return Checkpoints(own, given.keep_checkpoints, given.disk_quota)

        found = Replica(
            given.problem, given.policy, store, given.name, seed, kept, given.lease, self.monotonic
        )
        self._leader.news = partial(self._news, found)
        found.speaks = given.verbose > 0
        return found

    def _news(self, replica: Replica) -> Json:
        """How far the log is read, and the events of one that only this process has."""
        position = replica.history.position
        news: Json = {"position": position}
        if isinstance(replica.store, MemoryStore):
            start, self._told = self._told, max(self._told, position)
            # these alone: what is kept for other ranks must not keep a store
            news["events"] = partial(
                _events_to_json, tuple(replica.store.read(replica.name, start, self._told))
            )
        return news

    @property
    def log(self) -> Replica:
        return self.replica

    @property
    def checkpoints(self) -> Checkpoints:
        return self.replica.checkpoints

    @property
    def settings(self) -> Settings:
        return self._given.found(self.replica, self.budget, self.lease_seconds)

    @property
    def holder(self) -> str:
        return self.replica.holder()

    @property
    def lease_seconds(self) -> float:
        return self.replica.term

    def sync(self) -> None:
        self._retried(self.replica.sync)

    def ask(self, make: Callable[[Attempt], A]) -> A | Wait | Finish:
        begun: Attempts = set()
        self.tell()

        def answered() -> A | Wait | Finish:
            with self.replica.lock:
                found = answer(self.replica, self.budget, self._given.max_retries, self.monotonic)
                if isinstance(found, Wait | Finish):
                    return found
                begun.add((found.id, found.attempt))
                return self._trained(make(Attempt.of(found)))

        work = partial(self._retried, lambda: in_turn(answered, self._sleep))
        try:
            found = self._leader.decide("ask", work, answer_to_json)
            if isinstance(found, Attempt):
                self.logger.started(self.replica.history, found, unlimited(self.budget, self.replica.policy))
            elif isinstance(found, Finish):
                self.logger.over(self.replica.history, found, self.budget)
                if (told := shared_error(self.replica.history)) is not None:
                    self.replica.warn_once(told, about="the same error")
            return found
        except BaseException:
            self.replica.handed_out -= begun  # nobody has it: it is offered again at once
            raise

    def enqueue(self, config: Mapping[str, Any], again: bool) -> bool:
        work = partial(enqueue, self.replica, config, again)
        return self._leader.decide("enqueues", partial(self._retried, work))

    def take(
        self,
        id: int,
        attempt: int,
        holder: str,
        leaving: Callable[[], str | None],
        make: Callable[[Attempt], A],
    ) -> A:
        def taken() -> A:
            self.hold_as(holder, {(id, attempt)})
            self.replica.leaving = leaving
            r = self.replica.synced(id)
            if r.attempt != attempt or r.status is not Status.RUNNING:
                raise LeaseLost(
                    f"attempt {attempt} at trial {id} is over: it is {r.status}, attempt {r.attempt}"
                )
            return self._trained(make(Attempt.of(r)))

        return self._leader.decide("takes a trial", partial(self._retried, taken), Attempt.to_json)

    def hold_as(self, holder: str, handed_out: Attempts) -> None:
        """Hold the leases of another process, which started this one to train its trials."""
        self.replica.adopt(holder)
        self.replica.speaks = True  # a process that trains for another is silent, and gives its advice
        self.replica.handed_out |= handed_out

    def record(self, attempt: Attempt, report: Report, judge: bool) -> Verdict:
        once = partial(record, self.replica, self.budget, attempt, report, judge, self.monotonic)
        about = f"{attempt.label} reports epoch {report.epoch:g}"
        work = partial(self._retried, once, attempt.patient)
        verdict = self._leader.decide(about, work, _converts, attempt.changes)
        if self.logger.verbose > 1:
            self.logger.judged(self.replica.history, attempt, report.epoch, report.value, verdict)
        return verdict

    def recall(self, attempt: Attempt) -> None:
        self._retried(partial(catch_up, self.replica, attempt), attempt.patient)

    def checkpointed(self, attempt: Attempt, path: str, seconds: float, keep: bool = False) -> bool:
        work = partial(checkpointed, self.replica, attempt, path, seconds, keep)
        return self._retried(work, attempt.patient)

    def end(self, attempt: Attempt, status: Status | None, failure: Failure | None = None) -> None:
        if attempt.ended is not None:
            return
        once = partial(end, self.replica, attempt, status, failure, self._given.max_failures)

        def work() -> str | None:
            self._retried(once, status is not Status.INTERRUPTED)  # who is interrupted does not wait
            return None if failure is None else failure.error

        self.decide(attempt, "ends", work)

    def tell(self) -> None:
        self.logger.ended(self.replica.history, self.budget)

    def warn(self, text: str, about: str | None = None) -> None:
        warn(text, aloud=self.replica.first_time(f"aloud: {about or text}", advice=True))

    def lose(self, attempt: Attempt, reason: str) -> None:
        once = partial(lose, self.replica, attempt, reason, self._given.max_retries)
        self.decide(attempt, "is lost", partial(self._retried, once))

    def tolerates(self, attempt: Attempt, error: BaseException) -> bool:
        work = partial(tolerates, self.replica.history, attempt, error, self._given.max_failures)
        tolerated = self.decide(attempt, "is forgiven", work)
        if tolerated:
            self.logger.forget(attempt)
        return tolerated

    def wake(self, attempt: Attempt) -> None:
        self.replica.wake(attempt.id, attempt.attempt)

    def renew(self, attempt: Attempt) -> None:
        self.wake(attempt)
        replica = self.replica
        replica.store.renew(replica.name, replica.lease(attempt.id, attempt.attempt))

    def adopt(self, attempt: Attempt) -> None:
        """See Session. Raises NotSupported for a store in memory."""
        self.replica.adopt()
        self.renew(attempt)

    def decide(
        self,
        attempt: Attempt,
        about: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
    ) -> T:
        return self._leader.decide(f"{attempt.label} {about}", work, to_json, attempt.changes)

    def wait(self, seconds: float, why: str | None) -> None:
        if why is not None:
            _log.info("waiting: %s", why)
        self._sleep(seconds)

    def pass_over(self) -> None:
        """Nothing: a process by itself repeats no training."""

    def _trained(self, attempt: A) -> A:
        self.replica.trains(attempt.id, attempt.attempt, attempt)
        return attempt

    def _retried(self, work: Callable[[], T], wait: bool = True) -> T:
        tell = partial(self.replica.warn_once, about="away")

        def step() -> T:
            with self.replica.lock:
                return work()

        return retry(step, self._given.patience if wait and self.waits else 0.0, self._sleep, tell)

    def __reduce__(self) -> tuple[Any, ...]:
        return carried(reopened, self.settings, self.holder, set(self.replica.handed_out))


def reopened(settings: Settings, holder: str, handed_out: Attempts) -> LocalSession:
    """The session of a process that was started to train, under the leases of `holder`."""
    with alone():
        session = LocalSession(settings)
    session.hold_as(holder, handed_out)
    return session


def _events_to_json(events: tuple[ev.Event, ...]) -> list[Json]:
    return [to_json(event) for event in events]


def _converts(verdict: Verdict) -> Callable[[], Json]:
    return partial(verdict_to_json, verdict)


def opened_to_json(replica: Replica) -> Json:
    """What the other ranks have to know of a study."""
    kept = replica.checkpoints
    told = {"folder": str(kept.folder), "keep": kept.keep, "quota": kept.quota}
    return {"url": replica.store.url, "term": replica.term, "policy": plain(replica.policy.spec), **told}


GRACE = 10.0  # seconds that a rank which fails waits for word from rank 0, which may know nothing of it
_BRIEFLY = 0.5  # likewise, one that is interrupted: Ctrl-C waits for nobody


class FollowerSession:
    """See Session. What it is asked of the log it tells as far as rank 0 had read when it was last heard."""

    def __init__(
        self,
        settings: Settings,
        seed: int | None = None,
        monotonic: MonotonicClock = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._given, self.budget = settings, settings.budget
        self.monotonic, self.waits, self.logger = monotonic, True, Logger(0)
        self._rank_0 = follower(settings.name, settings.where)
        told: Json = self._rank_0.decide("opens")
        self.lease_seconds: float = told["term"]
        self.log = HeardLog(settings, self._rank_0, told)
        self.checkpoints = self.log.checkpoints
        self._holder = ""

    @property
    def settings(self) -> Settings:
        return self._given.found(self.log, self.budget, self.lease_seconds)

    @property
    def holder(self) -> str:
        """See Session. It holds nothing: the leases are rank 0's."""
        self._holder = self._holder or new_holder()
        return self._holder

    def sync(self) -> None:
        """Rank 0 alone reads on."""

    def tell(self) -> None:
        """Rank 0 does."""

    def ask(self, make: Callable[[Attempt], A]) -> A | Wait | Finish:
        found = self._rank_0.decide("ask", answer_from_json)
        return found if isinstance(found, Wait | Finish) else make(found)

    def enqueue(self, config: Mapping[str, Any], again: bool) -> bool:
        return bool(self._rank_0.decide("enqueues"))

    def take(
        self,
        id: int,
        attempt: int,
        holder: str,
        leaving: Callable[[], str | None],
        make: Callable[[Attempt], A],
    ) -> A:
        return make(self._rank_0.decide("takes a trial", Attempt.from_json))

    def record(self, attempt: Attempt, report: Report, judge: bool) -> Verdict:
        about = f"{attempt.label} reports epoch {report.epoch:g}"
        return self._rank_0.decide(about, verdict_from_json, attempt.change)

    def checkpointed(self, attempt: Attempt, path: str, seconds: float, keep: bool = False) -> bool:
        attempt.checkpoint = attempt.checkpoint if keep else path
        return True

    def end(self, attempt: Attempt, status: Status | None, failure: Failure | None = None) -> None:
        """See Session. Raises what rank 0 raises, unless this rank has an error of its own."""
        if attempt.ended is not None:
            return
        topic = f"{attempt.label} ends"
        if status is Status.INTERRUPTED:
            attempt.ended = status
            with suppress(RankLost):
                self._rank_0.heard(topic, _BRIEFLY)
            return
        failing = status is Status.FAILED
        line = self._rank_0.heard(topic, GRACE if failing else None)
        attempt.change(line["changes"])
        if not failing:
            self._bear(attempt, line)

    def _bear(self, attempt: Attempt, line: Line) -> None:
        """Raise what ended the attempt on rank 0, unless the search goes on after it."""
        if "error" in line:
            raise error_from_json(*line["error"])
        if line["answer"] is not None and not self._is_forgiven(attempt):
            kind, _, words = line["answer"].partition(": ")
            raise error_from_json(kind, words)

    def warn(self, text: str, about: str | None = None) -> None:
        """Rank 0 has the log."""
        warn(text)

    def lose(self, attempt: Attempt, reason: str) -> None:
        self._rank_0.decide(f"{attempt.label} is lost", change=attempt.change)

    def tolerates(self, attempt: Attempt, error: BaseException) -> bool:
        return self._is_forgiven(attempt)

    def _is_forgiven(self, attempt: Attempt) -> bool:
        """Whether the search goes on after the attempt failed; as rank 0 says where it failed there, too."""
        if attempt.ended is not Status.FAILED:
            return False
        try:
            return bool(self._rank_0.decide(f"{attempt.label} is forgiven", seconds=GRACE))
        except RankLost:
            return False

    def recall(self, attempt: Attempt) -> None:
        """Rank 0 knows, and tells with the next report."""

    def wake(self, attempt: Attempt) -> None:
        """Rank 0 notices a sleep for all."""

    def renew(self, attempt: Attempt) -> None:
        """Rank 0 renews the lease for all."""

    def adopt(self, attempt: Attempt) -> None:
        """In a fork of this rank: rank 0 holds the leases for all."""

    def decide(
        self,
        attempt: Attempt,
        about: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
    ) -> T:
        return self._rank_0.decide(f"{attempt.label} {about}", from_json, attempt.change)

    def wait(self, seconds: float, why: str | None) -> None:
        """Rank 0 waits."""

    def pass_over(self) -> None:
        def is_over(line: Line) -> bool:
            told = line.get("answer", {})
            if "trial" not in told:
                return "finish" not in told
            return self._rank_0.was_before(f"{label(**told['trial'])} ends")

        self._rank_0.skip("ask", is_over)

    def __reduce__(self) -> tuple[Any, ...]:
        return carried(reopened, self.settings, self.holder, set())


class HeardLog:
    """See Log. The policy's state is folded here like on rank 0, so that any question can be answered on one rank."""

    def __init__(self, settings: Settings, rank_0: Follower, told: Json) -> None:
        self._given, self.name = settings.problem, settings.name
        self.policy = settings.policy.as_recorded(told["policy"])
        self.checkpoints = Checkpoints(told["folder"], told["keep"], told["quota"])
        self.lock = threading.RLock()
        self.told: Budget | None = None  # it plans by what is recorded
        self._where, self._rank_0 = settings.store, rank_0
        self._store: Store | None = _ToldStore(rank_0) if told["url"] == "memory" else None
        self._begin()
        fork_handlers.add(self)

    def _begin(self) -> None:
        """Nothing is read yet."""
        self._history = History(self._given)
        self._history.whose = f"the study {self.name!r}"
        self._history.locate = self.checkpoints.located
        # as far as somebody asked for the state
        self._fold = Fold(
            self._given, self.policy, self._history.whose, lambda stop: self.store.read(self.name, 0, stop)
        )

    def after_fork(self) -> None:
        if not is_free(self.lock):
            self.lock = threading.RLock()
            self._begin()

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
        """The policy's, at the position of the history. Folded when it is asked for: few questions need it."""
        with self.lock:
            position = self._fold.history.position
            self._fold.read(self.store.read(self.name, position, self._history.position))
            return self._fold.state

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
