"""The work of one process for a study: its lock, its retries, and how every rank follows an outcome.

Rank 0 of a distributed training, or a single process, reads and writes the store. Every other rank receives the events
that rank 0 folds (`haltune.ranks`), and writes nothing. Every rank calls `change` or `once`, or `first` where the
others need not wait. If multiprocessing pickles a session into a process, the session opens the study there at its
first use, on one rank.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, wraps
from multiprocessing.context import get_spawning_popen
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from haltune._utils.checks import number
from haltune._utils.extras import Extras
from haltune._utils.interruption import heard_in_wait
from haltune._utils.numbers import Numbers
from haltune._utils.own_generators import Restarts
from haltune._utils.process import new_holder
from haltune._utils.schedules import Rates, SchedulePlace
from haltune._utils.updates import Flags, Kind
from haltune.errors import LeaseLost, NotSupported, RankLost, warn
from haltune.log import events as ev
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Status, to_json
from haltune.log.history import History
from haltune.log.policy import Wrapper
from haltune.ranks import Part, error_from_json, joined, restart_advice, torch_ranks
from haltune.store.base import Conflict, Store, Tries, retry
from haltune.store.checkpoints import Checkpointing, Checkpoints, own_folder
from haltune.store.open import open_store
from haltune.store.studies import enqueued, known

from .attempt import A, Attempt, Failure, MonotonicClock, Settings, label
from .ending import append_end, append_loss, log_tolerated, not_tolerated, recorded_end, warn_of_end
from .messages import Logger, none_finite, shared_fault, unlimited
from .proposing import Elsewhere, answer, start_again
from .replica import Copy, Heard, Replica

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("haltune")
Attempts = set[tuple[int, int]]  # trials with their attempts
_MEET = 60.0  # seconds that rank 0 waits for the end of a failed trial on other ranks, in addition to their epoch
_SHOWN = 60.0  # seconds after which a shared folder shows at the latest what another machine wrote
GRACE = 10.0  # seconds that a failed rank waits for rank 0, which may not have noticed the failure
_BRIEFLY = 0.5  # likewise for an interrupted rank: Ctrl-C must end it soon
_LOOKS = (0.02, 0.25)  # seconds between looks while another worker decides: from, to
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


def _wait(sleep: Callable[[float], None], seconds: float) -> None:
    with heard_in_wait():
        sleep(seconds)


Place = tuple[int, int, str]  # a process, a thread of it, and the id of a study, or of one Session for a loop
_inside: WeakValueDictionary[Place, Attempt] = WeakValueDictionary()  # the trial of the study that the thread trains


def _same(answer: Any) -> Any:
    return answer


def _first(method: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T | None]:
    """Call a method on rank 0 only; the other ranks do not wait, and get None."""

    @wraps(method)
    def called(self: Session, /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        return self.first(lambda: method(self, *args, **kwargs))

    return called


@dataclass(eq=False)
class Seen:
    """What this process has seen of a study's trainings; `Port` and `OwnWeights` note it."""

    refused: set[int] = field(default_factory=set)  # trials in which the program was refused
    warned: set[str] = field(default_factory=set)  # matters of which a warning is given once
    # model or optimizer -> the trial, and its fold, that trained it first
    models: WeakKeyDictionary[Any, tuple[int, int]] = field(default_factory=WeakKeyDictionary)
    # mark of a model -> trials and folds that have trained it -> the last attempt that did; empty for the weights
    # with which trials start
    signed: dict[Hashable, dict[tuple[int, int], int]] = field(default_factory=dict)
    # trial and its fold -> kinds of optimizers that have trained it, or whose state is in the file that it resumed
    optimizers: dict[tuple[int, int], frozenset[Kind]] = field(default_factory=dict)
    # estimator or booster that a plain loop has trained -> the trial, its fold and attempt, and the mark at their end
    learners: WeakKeyDictionary[Any, tuple[int, int, int, str]] = field(default_factory=WeakKeyDictionary)
    untrained: WeakKeyDictionary[Any, str] = field(default_factory=WeakKeyDictionary)  # -> marks before any trial
    # trial and its fold -> position at the end of its last attempt, and of each optimizer that has learning-rate
    # schedules of torch: the digest of the shapes of its weights, and their places
    schedules: dict[tuple[int, int], tuple[float, list[tuple[Any, list[SchedulePlace]]]]] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)  # of optimizers without a schedule
    flags: dict[tuple[int, int], tuple[float, list[Flags]]] = field(default_factory=dict)  # likewise, where it paused
    extras: Extras = field(default_factory=Extras)  # what plain loops hold next to what they train
    numbers: Numbers = field(default_factory=Numbers)  # numbers that plain loops keep in variables
    generators: Restarts = field(default_factory=Restarts)  # generators that plain loops draw from
    keeps_first: bool | None = None  # the program saves the best state before it reports its value; None: not known
    keeps_weights: bool | None = None  # no trial trains new weights after a report; None: not known
    all_report = False  # all ranks have reported, in a study that does not count epochs
    # generators of the random state -> words that a plain loop draws from report to report; None: it sets another state
    draws: dict[str, float | None] = field(default_factory=dict)
    left: dict[str, dict[str, Any]] = field(default_factory=dict)  # the program's own files -> random state at each
    takes_turns = False  # trials of threads or coroutines have drawn from the generators of the process in turns
    reports_first = False  # the last epoch with a report and with steps of torch made them after the report


class Session:
    """One process's work for one study. Every rank makes the same calls, and an attempt changes on every rank.

    holds: in a process that was started to train, the holder whose leases it takes over, and its trials; `log` is then
    opened at its first use. Raises as Study does.
    """

    def __init__(self, settings: Settings, seed: int | None = None, holds: tuple[str, Attempts] | None = None) -> None:
        self._given, self._seed, self._holds = settings, seed, holds
        self.budget = settings.budget
        self.monotonic, sleep = _clocks.get()
        self._sleep = partial(_wait, sleep)
        self.launched = False  # it trains for a launcher, which handles signals
        self.waits = True  # for a server that does not answer; a launcher does not, because it has other workers
        self._rank = joined(settings.name, settings.where) if holds is None else Part()
        self.first = self._rank.first  # does work on rank 0 only
        self.logger = Logger(self._rank.first(lambda: settings.verbose) or 0)
        self.seen = Seen()
        if holds is None:
            _ = self.log
            if (advice := restart_advice()) is not None:
                self.first(lambda: self.hint(advice, "restarts"))

    # the log

    @cached_property
    def log(self) -> Copy:
        """The log as far as this process has read it."""
        decision = self._rank.decision("opens")
        assert decision is not None
        with decision:
            if decision.said is not None:
                return Heard(self._given, self._rank, decision.said())
            replica = retry(self._open, self._given.store.patience, self._sleep, warn)
            self._rank.position, decision.answer = replica.history.position, _facts(replica)
            return replica

    def _open(self) -> Replica:
        given = self._given
        store = open_store(given.store)

        def kept(created: ev.Created) -> Checkpoints:
            if isinstance(given.checkpoints, Checkpoints):
                return given.checkpoints
            own = own_folder(store, given.name, created, given.checkpoints.folder)
            return Checkpoints(own, given.checkpoints.keep, given.checkpoints.disk_quota)

        lease, folder = given.store.lease, given.checkpoints.folder
        found = Replica(given.problem, given.policy, store, given.name, self._seed, kept, lease, self.monotonic, folder)
        found.speaks = given.verbose > 0
        if self._holds is not None:
            _hold(found, *self._holds)
        self._rank.read = _events(store, given.name, given.store.patience)
        return found

    @property
    def replica(self) -> Replica:
        assert isinstance(self.log, Replica)
        return self.log

    @_first
    def set_price(self, price: float | None) -> None:
        """Set the price of this worker per hour; None changes nothing. Raises InvalidInput for an invalid price."""
        if price is not None:
            self.replica.price = number("price", price, None)

    @property
    def checkpoints(self) -> Checkpoints:
        return self.log.checkpoints

    @property
    def settings(self) -> Settings:
        """The settings that open this study again, with the store and folder of checkpoints that were found."""
        given, log, kept = self._given, self.log, self.checkpoints
        return replace(
            given, problem=log.problem.as_of_log(), policy=log.policy,
            store=replace(given.store, url=log.opens, lease=log.term), budget=self.budget,
            checkpoints=Checkpointing(str(kept.folder), kept.keep, kept.quota), verbose=0,
        )  # fmt: skip

    @property
    def holder(self) -> str:
        return self.log.holder()

    @property
    def lease_seconds(self) -> float:
        """Seconds after which a silent worker counts as lost."""
        return self.log.term

    def sync(self) -> None:
        self.change(Replica.sync)

    # every change uses these

    def change(
        self,
        work: Callable[[Replica], Any],
        topic: str | None = None,
        read: Callable[[Any], T] = _same,
        attempt: Attempt | None = None,
        patient: bool = True,
    ) -> T:
        """Do `work` on rank 0, under the lock; then return `read(answer)` on every rank, at the same position.

        It is tried again after conflicts and server outages; signals are handled between tries. answer: what `work`
        returned; JSON. topic: of the decision; None if only rank 0 does it, and the others do not wait for it.
        """
        decision = self._rank.decision(topic, None if attempt is None else f"{attempt._label} ends")
        if decision is None:
            return None  # type: ignore[return-value]
        patience = self._given.store.patience if patient and self.waits else 0.0
        tries = Tries(patience, self._sleep, lambda text: self.log.warn_once(text, about="away"))
        pause = _LOOKS[0]
        with decision:
            if decision.said is not None:
                return self._follow(attempt, decision.said, read)
            while True:
                try:
                    with tries, self.log.lock:
                        try:
                            decision.answer = work(self.replica)
                        finally:
                            self._catch_up(attempt)
                        return read(decision.answer)
                except Conflict:
                    continue
                except Elsewhere:  # another worker decides
                    self._sleep(pause)
                    pause = min(2.0 * pause, _LOOKS[1])

    def once(
        self,
        attempt: Attempt,
        about: str,
        work: Callable[[], Any] = lambda: None,
        read: Callable[[Any], T] = _same,
        leaves: float | None = None,
    ) -> T:
        """Do `work` once, on rank 0; then return `read(answer)` on every rank, at the same position of the log.

        work: returns JSON; the log is not locked. Without it, `read` is a question about the log and the attempt.
        leaves: see Part.decision.
        """
        last = None if leaves is not None else f"{attempt._label} ends"
        decision = self._rank.decision(f"{attempt._label} {about}", last, leaves)
        assert decision is not None
        with decision:
            if decision.said is not None:
                return self._follow(attempt, decision.said, read)
            try:
                decision.answer = work()
            except BaseException:
                self._follow(attempt, lambda: None, _same)
                raise
            return self._follow(attempt, lambda: decision.answer, read)

    def _follow(self, attempt: Attempt | None, said: Callable[[], Any], read: Callable[[Any], T]) -> T:
        """Follow rank 0's answer or exception at the position of the log at which it gave it."""
        with self.log.lock:
            try:
                answer = said()
            finally:
                self._catch_up(attempt)
            return read(answer)

    def _catch_up(self, attempt: Attempt | None) -> None:
        """Let the attempt follow the events read so far, also before an error. The caller holds the lock."""
        self._rank.position = max(self._rank.position, self.log.fold.history.position)
        if attempt is not None:
            self.log.follow(attempt)

    # between trials

    def need_outside(self) -> None:
        """Raise NotSupported within a trial of this study, for which a loop over the study would wait for ever."""
        if (outer := next(self._open_trials(), None)) is not None:
            raise NotSupported(
                f"A loop over the study {self._given.name!r} starts within trial {outer.id} of the same study, so it "
                "would wait for that trial for ever. Start it after the trial's end. For an inner search make another "
                "study, with another name=."
            )

    def enter(self, attempt: Attempt, loop: bool = False) -> None:
        """Note that this thread trains an attempt, until `leave`. loop: this Study's loop has yielded it.

        Loops over two Study objects of one study may take turns in a thread, as two workers do.
        """
        process, _, study = place = self._place(loop)
        others = [one for (of, _, name), one in [*_inside.items()] if (of, name) == (process, study)]
        self.seen.takes_turns |= any(one is not attempt and one.ended is None for one in others)
        _inside[place] = attempt

    def leave(self, attempt: Attempt, loop: bool = False) -> None:
        self._rank.arrives(attempt._label)
        if _inside.get(place := self._place(loop)) is attempt:
            del _inside[place]

    def attaches(self, attempt: Attempt, others: int) -> bool:
        """Return on rank 0 whether so many others have called this, too, or are not known; True on the others."""
        self._rank.arrives(place := f"trial {attempt.id} has its callback")
        return self._rank.meets(place, others, _SHOWN, known=True)

    def other_open(self, attempt: Attempt) -> int | None:
        """Return the trial that this thread trains now, if it is another one or another attempt."""
        own = attempt.id, attempt.attempt
        return next((one.id for one in self._open_trials() if (one.id, one.attempt) != own), None)

    def _open_trials(self) -> Iterator[Attempt]:
        """Yield the attempts of this study that this thread trains now."""
        for loop in (False, True):
            found = _inside.get(self._place(loop))
            if found is not None and found.ended is None:
                yield found

    def _place(self, loop: bool) -> Place:
        return os.getpid(), threading.get_ident(), str(id(self)) if loop else self.log.created.id

    def ask(self, make: Callable[[Attempt], A]) -> A | Wait | Finish:
        """See Study.ask. make: turns an attempt into the worker's Trial; while the Trial lives, it trains here."""
        started: Attempts = set()
        self.log_ended()

        def asked(replica: Replica) -> dict[str, Any]:
            given = self._given
            found = answer(replica, self.budget, given.store.max_retries, given.max_failures, self.monotonic)
            if isinstance(found, Wait | Finish):
                return {"finish" if isinstance(found, Finish) else "wait": found.reason}
            started.add((found.id, found.attempt))
            return {"trial": [found.id, found.attempt]}

        def read(answer: dict[str, Any]) -> A | Wait | Finish:
            if "trial" in answer:
                return self._trained(make, answer["trial"][0])
            return Finish(answer["finish"]) if "finish" in answer else Wait(answer["wait"])

        try:
            found = self.change(asked, "ask", read)
            if isinstance(found, Attempt):
                self.logger.started(self.log.history, found, partial(unlimited, self.budget, self.log.policy))
                self._warn_of_all(none_finite)
            elif isinstance(found, Finish):
                self.logger.over(self.log.history, found, self.budget)
                self._warn_of_all(shared_fault)
            return found
        except BaseException:
            if started:
                self.log.handed_out -= started  # it did not reach the caller: it is offered again at once
            raise

    def _warn_of_all(self, fault: Callable[[History], str | None]) -> None:
        """Warn once of a fault of most trials."""
        if (text := fault(self.log.history)) is not None:
            self.first(lambda: self.log.warn_once(text, about="the same fault"))

    def _trained(self, make: Callable[[Attempt], A], id: int) -> A:
        """Return a running trial, which this process trains from here on."""
        history = self.log.history
        trial = make(Attempt._of(history.trial(id), history.position))
        self.log.trains(trial)
        return trial

    def enqueue(self, config: Mapping[str, Any], again: bool) -> bool:
        """See Study.enqueue. config: in canonical form."""

        def append(replica: Replica) -> bool:
            event = enqueued(replica.sync(), replica.policy, config, again, replica.now())
            if event is not None:
                replica.append(event, None)
            return event is not None

        added: bool = self.change(append, "enqueues")
        if not added:
            why = known(self.log.history, config)
            self.logger.note(f"{why}. To train it once more, call study.enqueue(config, again=True).")
        return added

    def take(
        self, id: int, attempt: int, holder: str, leaving: Callable[[], str | None], make: Callable[[Attempt], A]
    ) -> A:
        """See Study.take."""

        def taken(replica: Replica) -> int:
            _hold(replica, holder, {(id, attempt)})
            self.launched, replica.leaving = True, leaving
            r = replica.synced(id)
            if r.attempt != replica.history.newest(id, attempt) or r.status is not Status.RUNNING:
                raise LeaseLost(f"Attempt {attempt} of trial {id} is over: it is {r.status}, attempt {r.attempt}.")
            return id

        return self.change(taken, "takes a trial", partial(self._trained, make))

    def succeed(self, holder: str) -> None:
        """Train under leases of this process what `take` has taken over from a process that has ended.

        Other trials of that process are lost: they are offered again.
        """
        replica = self.replica
        replica.former = holder
        replica.adopt(new_holder())
        self.change(Replica.take_over)

    @_first
    def wait(self, seconds: float, why: str | None) -> None:
        """Wait between two asks, on rank 0. why: logged, if it is not None."""
        if why is not None:
            _log.info("Waiting: %s", why)
        self._sleep(seconds)

    def skip_over(self) -> None:
        """Skip the trials that ended before this process was started as another rank."""

        def is_over(answer: dict[str, Any] | None) -> bool:
            if answer is None or "trial" not in answer:
                return "finish" not in (answer or {})
            id, attempt = answer["trial"]
            while self._rank.was_before(f"{label(id, attempt)} starts again"):
                attempt += 1
            return self._rank.was_before(f"{label(id, attempt)} ends")

        self._rank.skip("ask", is_over)

    def log_ended(self) -> None:
        """Log how trials ended. Their trainings no longer draw a progress bar on the terminal."""
        self.logger.ended(self.log.history, self.budget)

    def warn(self, text: str, about: str | None = None) -> None:
        """Warn, and log the warning once in a study: once for each text, or for each `about`.

        If the study's log is not open, it is not opened for this.
        """
        aloud = "log" not in vars(self) or self.log.first_time(f"aloud: {about or text}", True)
        warn(text, aloud=aloud)

    def hint(self, text: str, about: str) -> None:
        """Log a hint, once in a study for each `about`."""
        if self.log.first_time(about, advice=True):
            self.logger.note(text)

    # within a trial

    def restart(self, attempt: Attempt, position: float) -> bool:
        """Give up an attempt; it becomes the next one of its trial (`Copy.follow`). Return False if it is not held."""
        work = partial(start_again, attempt=attempt, position=position)
        held: bool = self.change(work, f"{attempt._label} starts again", attempt=attempt, patient=attempt.patient)
        return held

    def recall(self, attempt: Attempt, of: str | None = None) -> None:
        """Read the outcome of reports that this process has not followed from the log, such as of an interrupted one.

        of: what all ranks recall, such as a report that failed on all of them. None: rank 0 reads alone, and the others
        receive the outcome with the next report.
        """

        def work(replica: Replica) -> None:
            replica.sync()

        topic = None if of is None else f"{attempt._label} recalls {of}"
        self.change(work, topic, attempt=attempt, patient=attempt.patient)

    def checkpointed(
        self, attempt: Attempt, path: str, seconds: float, keep: bool | float = False, position: float | None = None,
        **facts: Any,
    ) -> bool:  # fmt: skip
        """Append a checkpoint; return False if this worker no longer holds the trial. See Trial.checkpointed.

        keep: True for the checkpoint of the best epoch, which is not one to continue from. position: of the report that
        it is of. Default: None, the last one. facts: further fields of the event of one to continue from.
        """
        checkpoints = self.log.checkpoints
        logged = checkpoints.recorded(path)
        work = partial(
            _checkpointed, attempt=attempt, path=logged, seconds=seconds, keep=keep, position=position, facts=facts
        )
        held: bool | None = self.change(work, attempt=attempt, patient=attempt.patient)
        if held is None and not keep:  # the others do not wait for its event
            attempt.checkpoint = checkpoints.located(logged)
        return held is not False

    def end(
        self, attempt: Attempt, status: Status | None, failure: Failure | None, lost: str | None, weights: str
    ) -> None:
        """Append the end of an attempt and give the lease back; see Trial.finish.

        weights: of the event.
        lost: of an interrupted one, why a process that trained it is gone. The trial is offered again, up to
        `max_retries` times.

        Raises the exception by which it failed on rank 0 alone, unless the search continues.
        """
        if all(one is not attempt for one in self._open_trials()):
            self._rank.arrives(attempt._label)
        if attempt.ended is not None:
            return

        def work() -> str | None:  # an interrupted trial does not wait for the server
            ends = partial(append_end, attempt=attempt, status=status, failure=failure, weights=weights)
            if lost is not None:
                most = self._given.store.max_retries
                ends = partial(append_loss, attempt=attempt, reason=lost, max_retries=most)
            patient = status is not Status.INTERRUPTED or lost is not None
            appended: bool = self.change(ends, attempt=attempt, patient=patient)
            self._notice_end(attempt)
            if appended and (lost is None or (self.waits and not self.launched)):  # a launcher says it itself
                warn_of_end(self.replica, attempt, status, self._given.max_failures)
            return None if failure is None else failure.error

        leaves = {Status.INTERRUPTED: _BRIEFLY, Status.FAILED: GRACE}.get(status) if status else None
        try:
            attempt._failure = self.once(attempt, "ends", work, leaves=leaves)
        except RankLost:
            if status is not Status.INTERRUPTED:
                raise
        finally:
            self._notice_end(attempt)
        if status is Status.INTERRUPTED:
            attempt.ended = attempt.ended or status
        failed = attempt._failure is not None and leaves is None
        if failed and not self.tolerates(attempt):
            kind, _, words = str(attempt._failure).partition(": ")
            raise error_from_json(kind, words)

    def _notice_end(self, attempt: Attempt) -> None:
        """Note how an attempt ended, by a process of the training or because it was lost."""
        if attempt._over and attempt.ended is None:
            attempt.ended = recorded_end(self.log.history, attempt)

    @_first
    def forget(self, attempt: Attempt) -> None:
        """Give up an attempt whose end could not be recorded: its lease expires."""
        self.replica.forget(attempt)

    def tolerates(self, attempt: Attempt, error: BaseException | None = None) -> bool:
        """Return whether the search continues after an attempt failed. error: on this rank; it gets the reason."""
        if attempt.ended is not Status.FAILED and attempt._failure is None:
            return False  # it failed on this rank alone
        others = torch_ranks().size - 1
        patience = _MEET + max(self.log.history.trial(attempt.id).seconds, default=0.0)
        if others and not self._rank.meets(attempt._label, others, patience):
            if error is not None:
                error.add_note(
                    "haltune: Other ranks have not ended this trial. Perhaps they wait in a collective of torch, which "
                    "would meet one of the next trial, so the search ends. Start it again, such as by torchrun "
                    "--max-restarts. If only rank 0 can fail so, share the failure: raise it on all ranks."
                )
            return False
        leaves = GRACE + patience * (others > 0)  # rank 0 meets the slowest of the others first
        question = partial(not_tolerated, attempt=attempt, max_failures=self._given.max_failures)
        try:
            why = self.once(attempt, "is forgiven", read=lambda _: question(self.log.history), leaves=leaves)
        except RankLost:
            return False
        if why is None:
            if error is not None:
                self.first(partial(log_tolerated, attempt, error))
            self.logger.forget(attempt)
        elif error is not None:
            error.add_note(f"haltune: {why}")
        return why is None

    @_first
    def log_sleep(self, attempt: Attempt) -> None:
        """Log how long this machine slept during the trial, on rank 0."""
        self.replica.now()
        if self.replica.jumps(attempt):
            self.change(partial(Replica.log_sleep, attempt=attempt), patient=False)

    @_first
    def renew(self, attempt: Attempt) -> None:
        """Renew a lease, on rank 0; see Trial.heartbeat. A heartbeat does not wait for the lock."""
        self.log_sleep(attempt)
        self.replica.store.renew(self._given.name, self.replica.lease(attempt.id, attempt.attempt))

    @_first
    def adopt(self, attempt: Attempt) -> None:
        """Continue an attempt in a forked or spawned process, under the same lease; only one rank may.

        Raises NotSupported for a store in memory.
        """
        self.replica.adopt()
        self.renew(attempt)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling only when multiprocessing starts a process.

        Raises NotSupported for any other purpose, and for a policy whose class is defined in a function.
        """
        if not spawning():
            raise NotSupported(
                "A study cannot be pickled, because its log is its state. Open it again with the URL of its store: "
                "Study(problem, policy, store='sqlite:///search.db'). If a model or a function that is saved holds the "
                "trial, such as lambda left: trial.config['lr'] * left, give it the value: lr = trial.config['lr']."
            )
        settings, handed_out = self.settings, set(self.log.handed_out)
        decides = type(settings.policy.policy if isinstance(settings.policy, Wrapper) else settings.policy)
        if "<locals>" in decides.__qualname__:
            raise NotSupported(
                f"A spawned process cannot import {decides.__qualname__}, the class of this study's policy, because "
                "it is defined in a function. Define it at the top of a module."
            )
        return partial(Session, holds=(self.holder, handed_out)), (settings,)


def spawning() -> bool:
    """True while multiprocessing pickles the data of a new process."""
    return get_spawning_popen() is not None


def _hold(replica: Replica, holder: str, handed_out: Attempts) -> None:
    """Take over the leases of the process that started this one to train its trials."""
    replica.adopt(holder)
    replica.speaks = True  # such a process does not log trials, but it logs hints
    replica.handed_out |= handed_out


def _facts(log: Copy) -> dict[str, Any]:
    """Return what other ranks need of a study that is not in its log, as JSON."""
    kept = log.checkpoints
    return {"url": log.store.url, "term": log.term, "folder": str(kept.folder), "keep": kept.keep, "quota": kept.quota}


def _events(store: Store, name: str, patience: float) -> Callable[[int, int], list[dict[str, Any]]]:
    """Return a function that reads the events between two positions, as JSON, for the other ranks.

    It does not keep a database open: once the study no longer exists, it opens it again.
    """
    try:
        address, weak = store.address(), ref(store)
    except NotSupported:  # in memory
        return lambda start, stop: [to_json(event) for event in store.read(name, start, stop)]

    def read(start: int, stop: int) -> list[dict[str, Any]]:
        found = weak() or open_store(address, reading=True)
        return retry(lambda: [to_json(event) for event in found.read(name, start, stop)], patience, tell=warn)

    return read


# -- a checkpoint ------------------------------------------------------------------------------------------------------


def _checkpointed(
    replica: Replica, attempt: Attempt, path: str, seconds: float, keep: bool | float, position: float | None,
    facts: Mapping[str, Any],
) -> bool:  # fmt: skip
    now, content = replica.log_sleep(attempt), replica.checkpoints.content
    event: ev.Kept | ev.Checkpointed = (ev.Kept if keep else partial(ev.Checkpointed, **facts, content=content(path)))(
        at=now, trial=attempt.id, attempt=attempt.attempt, epoch=saved_epoch(attempt, keep, position),
        path=path, seconds=seconds,
    )  # fmt: skip
    if replica.append_if_held(event, replica.lease(attempt.id, attempt.attempt, now=now)):
        return True
    return any(  # it may be in the log although the server did not answer
        isinstance(e, ev.Checkpointed | ev.Kept) and (e.trial, e.attempt, e.path) == (attempt.id, attempt.attempt, path)
        for e in replica.store.read(replica.name)
    )


def saved_epoch(attempt: Attempt, keep: bool | float, position: float | None = None) -> float:
    """Return the epoch whose state is saved. keep: see Trial.save. position: see `Session.checkpointed`."""
    last = attempt.epoch if position is None else position
    return float(last if isinstance(keep, bool) else keep)
