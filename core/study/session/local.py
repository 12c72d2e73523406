"""The session of rank 0, or of a process by itself: does a study's work, and tells the other ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from haltune._utils.retry import retry
from haltune.errors import LeaseLost, warn
from haltune.log import events as ev
from haltune.log.decisions import Finish, Verdict, Wait
from haltune.log.events import Status, plain, to_json, verdict_to_json
from haltune.log.fate import shared_error
from haltune.ranks import agreement
from haltune.ranks.agreement import alone, same
from haltune.store.checkpoints import Checkpoints
from haltune.store.folders import own_folder
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store

from . import ending
from .asking import answer, enqueue
from .attempt import Attempt, Json, answer_to_json
from .claims import in_turn
from .judging import record
from .replica import Replica
from .session import A, Failure, MonotonicClock, Report, Settings
from .spawned import Attempts, carried
from .voice import Voice, unlimited

T = TypeVar("T")
_log = logging.getLogger("haltune")


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
        self.voice = Voice(settings.verbose)
        self._told = 0  # events of a log in memory that the other ranks know
        self._leader = agreement.leader(settings.name, settings.where)
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
                self.voice.begins(self.replica.history, found, unlimited(self.budget, self.replica.policy))
            elif isinstance(found, Finish):
                self.voice.over(self.replica.history, found, self.budget)
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
        if self.voice.verbose > 1:
            self.voice.judged(self.replica.history, attempt, report.epoch, report.value, verdict)
        return verdict

    def recall(self, attempt: Attempt) -> None:
        self._retried(partial(ending.catch_up, self.replica, attempt), attempt.patient)

    def checkpointed(self, attempt: Attempt, path: str, seconds: float, keep: bool = False) -> bool:
        work = partial(ending.checkpointed, self.replica, attempt, path, seconds, keep)
        return self._retried(work, attempt.patient)

    def end(self, attempt: Attempt, status: Status | None, failure: Failure | None = None) -> None:
        if attempt.ended is not None:
            return
        once = partial(ending.end, self.replica, attempt, status, failure, self._given.max_failures)

        def work() -> str | None:
            self._retried(once, status is not Status.INTERRUPTED)  # who is interrupted does not wait
            return None if failure is None else failure.error

        self.decide(attempt, "ends", work)
        if status not in (Status.INTERRUPTED, Status.FAILED):  # of these a warning tells
            self.voice.leaves(attempt)

    def tell(self) -> None:
        self.voice.tell(self.replica.history, self.budget)

    def warn(self, text: str, about: str | None = None) -> None:
        warn(text, aloud=self.replica.first_time(f"aloud: {about or text}", advice=True))

    def lose(self, attempt: Attempt, reason: str) -> None:
        once = partial(ending.lose, self.replica, attempt, reason, self._given.max_retries)
        self.decide(attempt, "is lost", partial(self._retried, once))

    def tolerates(self, attempt: Attempt, error: BaseException) -> bool:
        work = partial(ending.tolerates, self.replica.history, attempt, error, self._given.max_failures)
        tolerated = self.decide(attempt, "is forgiven", work)
        if tolerated:
            self.voice.forgets(attempt)
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
