"""This process's copy of one study: the log folded so far, and the way to append to it.

The log is the only state. A replica folds every event exactly as the store returns it, so that a rebuilt process holds
the same bits as one that recorded the events.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from haltune._utils.checks import number
from haltune._utils.disk import StrPath
from haltune._utils.forks import fork_handlers
from haltune._utils.process import is_elsewhere, is_other_alive, named, new_holder
from haltune._utils.signals import Steps, undisturbed
from haltune.errors import InvalidInput, StudyMismatch, warn
from haltune.log import events as ev
from haltune.log.events import Status, from_json, plain, to_json
from haltune.log.history import History
from haltune.log.policy import Fold, Policy
from haltune.log.problem import Budget, Problem
from haltune.log.records import TrialRecord
from haltune.ranks import Part
from haltune.store.base import Conflict, Lease, Release, Store, check_next, holder_is_gone, settled
from haltune.store.checkpoints import Checkpoints
from haltune.store.memory import MemoryStore
from haltune.store.studies import continued_in, make

from .attempt import Attempt, Settings, end_of, epochs_term

_log = logging.getLogger("haltune")
_LEAST_JUMP = 5.0  # seconds: a server's time comes over the network, and may be late
PRICE = "HALTUNE_PRICE"  # environment variable: price of a worker per hour
_SKEW = 60.0  # seconds that the clocks of two machines may differ
_DRIFT = 1e-3  # of the time between two looks: clocks are also corrected slowly


@dataclass(frozen=True, slots=True)
class Jump:
    """A jump of the store's clock between two looks: it was set, or its machine slept."""

    since: float  # the look before, seconds since 1970
    at: float  # the look that found it
    seconds: float  # size of the jump; negative if the clock was set back


class Watch:
    """Compares the store's clock with the process's monotonic clock, to notice that the former jumped or slept.

        jump = seconds that the store's clock advanced - seconds that the monotonic clock advanced

    A machine that sleeps, a paused virtual machine and a clock that is set look alike: the store's clock jumps. No
    worker trained in that time, and none was lost. tick: monotonic, seconds.
    """

    def __init__(self, clock: Callable[[], float], tick: Callable[[], float]) -> None:
        self._clock, self._tick = clock, tick
        self._began = tick()
        self._last: tuple[float, float, float] | None = None  # the last look: ticks around it, the clock between
        self.jumps: list[Jump] = []

    def now(self) -> float:
        """Return the store's clock, seconds since 1970."""
        before = self._tick()
        now = self._clock()
        self._look(before, now, self._tick())
        return now

    def looked(self, now: float) -> None:
        """Note a time that another study of this process has just read from the same clock."""
        tick = self._tick()
        self._look(tick, now, tick)

    def age(self) -> float:
        """Seconds since the first look."""
        return self._tick() - self._began

    def grown(self, renewed: float, now: float) -> float:
        """Return the seconds by which jumps extend a lease renewed at `renewed`; negative if the clock was set back."""
        ahead = sum(jump.seconds for jump in self.jumps if jump.seconds > 0.0 and jump.at > renewed)
        back = 0.0
        for jump in reversed(self.jumps):  # take the last ones until the renewal lies in the past
            if jump.seconds < 0.0 and renewed + back > now:
                back += jump.seconds
        return ahead + back

    def _look(self, before: float, now: float, after: float) -> None:
        last, self._last = self._last, (before, now, after)
        if last is None:
            return
        earliest, then, latest = last
        least, most = before - latest, after - earliest  # seconds that passed; a look itself may take long
        jumped = (now - then) - min(max(now - then, least), most)
        if abs(jumped) > _LEAST_JUMP + _DRIFT * most:
            self.jumps.append(Jump(then, now, jumped))


def _price_of_worker() -> float | None:
    """Read the price of this process from its environment; None without one."""
    given = os.environ.get(PRICE, "").strip()
    try:
        return number(PRICE, float(given), None) if given else None
    except ValueError:
        raise InvalidInput(
            f"{PRICE}={given!r} is not a price. Set it to a number, the price of this worker per hour, such as 2.10."
        ) from None


class Copy:
    """A study's history and its policy's state at one log position, and the store from which they are read."""

    fold: Fold
    _torn: bool  # the log must be read from its start

    def __init__(
        self,
        problem: Problem,
        policy: Policy[Any],
        store: Store,
        name: str,
        created: ev.Created,
        checkpoints: Checkpoints,
        term: float,  # seconds that a lease lasts, or five times the longest epoch if that is more
    ) -> None:
        self._given, self.store, self.name = problem, store, name
        self.opens: Store | StrPath = store  # opens it in another process
        self.created, self.checkpoints, self.term = created, checkpoints, term
        self.policy = policy.as_recorded(created.policy)
        self.logged_budget: Budget | None = None  # the budget that this process logged last; None: the recorded counts
        self.handed_out: set[tuple[int, int]] = set()  # (trial, attempt) that this process trains or trained
        self._whose = f"the study {name!r} in {store.url}"
        self._training: WeakValueDictionary[tuple[int, int], Attempt] = WeakValueDictionary()
        self._warned: set[str] = set()
        self.speaks = True  # hints are logged
        self._holder = (0, "")
        self.lock = Steps(self._whose)
        self._begin()
        fork_handlers.add(self)

    def _begin(self) -> None:
        self._torn = True
        self.fold = Fold(self._given, self.policy, self._whose, partial(self.store.read, self.name, 0))
        self.fold.history.locate = self.fold.judged.locate = self.checkpoints.located

    def sync(self) -> History:
        """Fold the events that were appended, and return the history. The caller holds the lock."""
        if self._torn or self.fold.torn:
            self._begin()
        with undisturbed.heard if self._torn else nullcontext():  # a whole log may be long
            for event in self.store.read(self.name, self.fold.history.position):
                self.fold.read([event])
                self._folded(event)
        self._torn = False
        return self.fold.history

    def _folded(self, event: ev.Event) -> None:
        """Pass an event that was folded to the attempt that this process trains."""
        if self._training and isinstance(event, ev.AttemptEvent):
            attempt = self._training.get((event.trial, event.attempt))
            if attempt is not None:
                attempt._hear(event, self.fold.history.position)

    def follow(self, attempt: Attempt) -> None:
        """Change an attempt by its events up to this position of the log. The caller holds the lock.

        It becomes the next one if the training has started again in another process, as below a launcher.
        """
        history = self.fold.history
        if history.gave_up(attempt.id, attempt.attempt):
            record = history.trial(attempt.id)
            if record.attempt == history.newest(attempt.id, attempt.attempt):
                attempt._restart(record, history.position)
                attempt._over = record.status is not Status.RUNNING
        if self._training.get((attempt.id, attempt.attempt)) is not attempt:
            self.trains(attempt)
        attempt._follow(self.checkpoints.located)

    def trains(self, attempt: Attempt) -> None:
        """Note that this process trains an attempt, as long as the object lives; the attempt receives its events."""
        self._training[key := (attempt.id, attempt.attempt)] = attempt
        if attempt._heard < self.history.position:  # another process of this training has it
            for position, event in enumerate(self.events(attempt._heard), attempt._heard + 1):
                if isinstance(event, ev.AttemptEvent) and (event.trial, event.attempt) == key:
                    attempt._hear(event, position)

    def events(self, start: int = 0) -> Iterator[ev.Event]:
        return self.store.read(self.name, start, self.history.position)

    def is_lost(self, lease: Lease, now: float) -> bool:
        """See attempt.Log. A rank above 0 cannot check a worker."""
        return False

    @property
    def history(self) -> History:
        """The log, as far as it is folded."""
        if self._torn or self.fold.torn:
            with self.lock:
                self.sync()
        return self.fold.history

    @property
    def judged(self) -> History:
        self.history  # noqa: B018 - folds again if a fold was interrupted
        return self.fold.judged

    @property
    def problem(self) -> Problem:
        return self.history.problem

    @property
    def state(self) -> Any:
        self.history  # noqa: B018
        return self.fold.state

    def holder(self) -> str:
        """This process's identity; a forked process gets another."""
        if self._holder[0] != os.getpid():
            self._holder = (os.getpid(), new_holder())
        return self._holder[1]

    def after_fork(self) -> None:
        """See forks.ForkHandler: a fold that another thread had not finished is repeated when needed."""
        if not self.lock.is_free():
            self.lock, self._torn = Steps(self._whose), True

    def warn_once(self, text: str, about: str | None = None) -> None:
        """Warn once in a process and study: once for each text, or for each `about`."""
        if self.first_time(about or text):
            warn(text, aloud=self.speaks)

    def first_time(self, about: str, advice: bool = False) -> bool:
        """Return whether this is the first message of this process about `about`. advice: False if hints are off."""
        new = about not in self._warned
        self._warned.add(about)
        return new and (self.speaks or not advice)


class Heard(Copy):
    """The log of a rank above 0: the events that rank 0 sent, up to its last outcome. It opens no store.

    facts: what rank 0 found when it opened the study, as JSON.
    """

    def __init__(self, settings: Settings, rank_0: Part, facts: dict[str, Any]) -> None:
        checkpoints = Checkpoints(facts["folder"], facts["keep"], facts["quota"])
        store = _HeardStore(settings.name, facts["url"], checkpoints.folder.parent, rank_0)
        created: Any = next(store.read(settings.name, stop=1))
        super().__init__(settings.problem, settings.policy, store, settings.name, created, checkpoints, facts["term"])
        self._rank_0 = rank_0
        self.opens = store if settings.store.url is None else settings.store.url
        self.speaks = settings.verbose > 0

    @property
    def history(self) -> History:
        """The same on all ranks after the same calls."""
        if self._torn or self.fold.torn or self.fold.history.position < self._rank_0.position:
            with self.lock:
                self.sync()
        return self.fold.history

    def follow(self, attempt: Attempt) -> None:
        self.history  # noqa: B018 - folds what came
        super().follow(attempt)


class _HeardStore(MemoryStore):
    """The events that this rank received; none beyond rank 0's last outcome can be read."""

    def __init__(self, name: str, url: str, folder: Path, rank_0: Part) -> None:
        super().__init__()
        self.url, self.folder, self._rank_0 = url, folder, rank_0
        self._logs[name], self._leases[name] = [], {}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[ev.Event]:
        with self._lock:
            log, end = self._log(name), self._rank_0.position
            log += map(from_json, self._rank_0.events())
            return iter(log[start : end if stop is None else min(stop, end)])


_of_this_process: WeakSet[Replica] = WeakSet()


class Replica(Copy):
    """The copy of rank 0, or of a single process, and the way to append to its log."""

    def __init__(
        self,
        problem: Problem,
        policy: Policy[Any],
        store: Store,
        name: str,
        seed: int | None,
        kept: Callable[[ev.Created], Checkpoints],  # the checkpoints of a study, by its first event
        term: float,  # seconds that a lease lasts, or five times the longest epoch if that is more
        tick: Callable[[], float],  # monotonic, seconds
        folder: object,  # of checkpoints, as the program has named it
    ) -> None:
        self._watch = Watch(store.now, tick)
        self.now = self._watch.now  # the store's clock; its jumps are noticed
        self._since = self.now()
        self._logged_jumps: dict[tuple[int, int], int] = {}  # attempt -> number of clock jumps in the log
        self._outages = 0
        created = _open(store, name, problem, policy, seed, self._since, folder)
        super().__init__(problem, policy, store, name, created, kept(created), term)
        _of_this_process.add(self)
        self.leaving: Callable[[], str | None] | None = None  # returns why this process must give back its trials
        self.former = ""  # the holder of an ended process whose trials this one continues, until they report
        self.price = _price_of_worker()  # of this process for an hour; None: that of the budget
        self.diverged: int | None = None  # trials that had diverged when this process asked first
        self._change_space()

    def sync(self) -> History:
        """Fold the events that any worker appended, and return the history. The caller holds the lock."""
        while True:
            history = super().sync()
            if (outages := self.store.outages) == self._outages:
                return history
            self.need_own()  # it may have been deleted, or created again
            self._outages = outages
            if self.fold.last is not None and not self._is_in_log(self.fold.last):
                self._begin()  # a crash of the server lost events that were read before

    def need_own(self) -> None:
        """Raise StudyMismatch if another program has created the study again."""
        first = next(self.store.read(self.name, stop=1), None)
        if not (isinstance(first, ev.Created) and first.id == self.created.id):
            raise StudyMismatch(
                f"Another program created {self._whose} again while this program used it. Nothing more is written to "
                "it. Open it again with Study(...) and the same settings, or under another name=."
            )

    def synced(self, trial: int) -> TrialRecord:
        """Read the log and return a trial."""
        return self.sync().trial(trial)

    def append(
        self, events: ev.Event | Sequence[ev.Event], about: int | None, lease: Lease | Release | None = None
    ) -> None:
        """Append and fold. Raises Conflict if a relevant event was appended since the last sync.

        Raises InvalidInput, and appends nothing, if the event could not be folded when the log is read again.
        """
        batch, history = [events] if isinstance(events, ev.Event) else events, self.fold.history
        check_next(history, batch)
        for event in batch:
            if isinstance(event, ev.Widened | ev.JudgedEvery):
                self.fold.under(history.problem_from(event))  # raises if the policy does not support it
        seen = history.position
        if self.store.append(self.name, batch, seen=seen, about=about, lease=lease) != seen:
            self.sync()
            return
        for event in batch:
            self.fold.take(event, checked=len(batch) == 1)
            self._folded(event)

    def append_if_held(self, event: Any, lease: Lease | Release) -> bool:
        """Append an event about an attempt if it is still held; return whether it was appended."""
        record = self.synced(event.trial)
        if held := record.attempt == event.attempt and record.status is Status.RUNNING:
            self.append(event, event.trial, lease)
        return held

    def trains(self, attempt: Attempt) -> None:
        self.now()
        key = attempt.id, attempt.attempt
        self.handed_out.add(key)
        self._logged_jumps.setdefault(key, len(self._watch.jumps))
        super().trains(attempt)

    def forget(self, attempt: Attempt) -> None:
        """Note that this process no longer trains the attempt."""
        self._training.pop((attempt.id, attempt.attempt), None)

    def jumps(self, attempt: Attempt) -> list[Jump]:
        """Return the clock's forward jumps while this process trained the attempt that are not in the log."""
        logged = self._logged_jumps.get((attempt.id, attempt.attempt), 0)
        return [jump for jump in self._watch.jumps[logged:] if jump.seconds > 0.0]

    def log_sleep(self, attempt: Attempt, seconds: float = 0.0) -> float:
        """Log that the clock jumped while this process trained, if it did. Return the time. The caller holds the lock.

        seconds: time that it surely trained.
        """
        now, key = self.now(), (attempt.id, attempt.attempt)
        if self._watch.jumps and (jumps := self.jumps(attempt)):
            history = self.sync()
            # since its last report or heartbeat
            silent = history.spent_at(attempt.id, now, 0.0).worker_time - history.spent.worker_time
            if (slept := min(sum(jump.seconds for jump in jumps), silent - seconds)) > 0.0:
                event = ev.Slept(at=now, trial=attempt.id, attempt=attempt.attempt, since=jumps[0].since, seconds=slept)
                if self.append_if_held(event, self.lease(*key)):
                    _log.info("The clock jumped by %.0f s. No trial is lost, and the budget is not charged.", slept)
            self._logged_jumps[key] = len(self._watch.jumps)
        return now

    def lease(self, trial: int, attempt: int, epoch_seconds: float = 0.0, now: float | None = None) -> Lease:
        """Return a lease for this process that starts now."""
        now = self.now() if now is None else now
        term = max(self.term, epochs_term(self.fold.history, epoch_seconds))
        return Lease(trial, attempt, self.holder(), now + term, now)

    def take_over(self) -> None:
        """Write this process as the holder into the leases of what it trains. The caller holds the lock."""
        for trial, attempt in [*self._training]:
            record = self.synced(trial)
            if record.attempt == attempt and record.status is Status.RUNNING:
                self.append((), trial, self.lease(trial, attempt))

    def adopt(self, holder: str | None = None) -> None:
        """In a forked or spawned process: take over the leases of `holder`, by default the parent's."""
        self._holder = (os.getpid(), holder or self._holder[1] or new_holder())

    def expire(self, max_retries: int) -> bool:
        """Log lost workers; return whether there was one. Raises Conflict if the log has grown."""
        now, lost = self.now(), False
        for lease in self.store.leases(self.name):
            history = self.fold.history
            later = lease.renewed > self._since + _SKEW  # so it runs now; a moved file may have the leases of before
            if later and getattr(self.store, "one_machine", False) and is_elsewhere(lease.holder):
                self.warn_once(
                    f"{self.store.url} is a SQLite file, and {named(lease.holder)} trains with it, too. Two machines "
                    "that use one SQLite file at the same time damage it. For several machines use PostgreSQL, or run "
                    "all workers on one machine.",
                    "machines",
                )
            if lease.trial >= len(history) or lease.attempt > history.trial(lease.trial).attempt:
                position = history.position
                if self.sync().position != position:  # started or resumed since the last sync
                    raise Conflict
                self.warn_once(
                    f"{self._whose} has a lease for attempt {lease.attempt} of trial {lease.trial}, but its log has no "
                    "such attempt. The lease is ignored. Run `haltune doctor` to check the whole store."
                )
                continue
            if self.is_lost(lease, now):
                event = self.expired(lease, max_retries)
                self.append(event, lease.trial, Release(lease.trial))
                if event.status is Status.FAILED:
                    self.tidy()
                lost = True
        return lost

    def is_lost(self, lease: Lease, now: float) -> bool:
        """See attempt.Log."""
        key = (lease.trial, lease.attempt)
        if self.former and key in self._training:  # a tuner was restored once more
            return False
        if lease.holder in (self.holder(), self.former):
            first = lease.attempt  # a process that it has started to train may have given up some since
            while (lease.trial, first) not in self.handed_out and self.fold.history.gave_up(lease.trial, first - 1):
                first -= 1
            if (lease.trial, first) not in self.handed_out:  # Ctrl-C came between the append and the trial
                return True
            if key in self._training:  # at any time of the clock
                return False
        if holder_is_gone(self.store, lease.holder):
            return True
        if self._lasts(lease, now) or any(other._spares(lease, now) for other in list(_of_this_process)):
            return False
        # right after the machine slept all leases look expired, although their processes run
        return not (is_other_alive(lease.holder) and self._watch.age() < self.term / 4.0)

    def _spares(self, lease: Lease, now: float) -> bool:
        """True if a trial of this study holds the lease, and the lease lasts when clock jumps are added."""
        if lease.holder != self._holder[1] or (lease.trial, lease.attempt) not in self._training:
            return False
        self._watch.looked(now)
        return self._lasts(lease, now)

    def _lasts(self, lease: Lease, now: float) -> bool:
        return end_of(lease, self.fold.history) + self._watch.grown(lease.renewed, now) >= now

    def expired(self, lease: Lease, max_retries: int, reason: str | None = None) -> ev.Expired:
        """Return the end of a lost attempt: the trial is offered again, or has failed after too many retries."""
        failed = self.history.losses(lease.trial) >= max_retries
        return ev.Expired(
            at=self.now(), trial=lease.trial, attempt=lease.attempt, holder=lease.holder,
            last_alive=lease.renewed, status=Status.FAILED if failed else Status.INTERRUPTED, reason=reason,
        )  # fmt: skip

    def tidy(self) -> None:
        alive, for_good = self.policy.alive(self.state), not self.policy.plans
        self.checkpoints.tidy(self.history, alive, for_good)

    def rescale(self) -> bool:
        """Log a new learnt scale if the old one no longer fits; return whether it did."""
        if (found := self.fold.history.outgrown(self.now)) is None:
            return False
        self.append(found, None)
        return True

    def log_budget(self, budget: Budget) -> None:
        """Log the budget if the policy plans with it, or it is not recorded yet. Raises Conflict."""
        history = self.fold.history
        plans = self.policy.plans and history.has_new_budget(budget, self.logged_budget)
        known = self.logged_budget == budget or budget.to_json() == (history.recorded or Budget()).to_json()
        if plans or not (known or history.finished):
            self.append(ev.Budgeted(at=self.now(), budget=plain(budget.to_json()), plans=plans), None)
        self.logged_budget = budget  # once: otherwise workers with different budgets would log in turn for ever

    def _is_in_log(self, last: ev.Event) -> bool:
        """True if the log still has the event that was read last."""
        found = next(self.store.read(self.name, (end := self.fold.history.position) - 1, end), None)
        return found is not None and to_json(found) == to_json(last)

    def _change_space(self) -> None:
        """Log that the search continues in the given space, if that is not its current one."""

        def once() -> None:
            history = self.sync()
            if (space := continued_in(self.store, self.name, self._given, history.problem)) is not None:
                difference = " ".join(history.problem.space.diff(space))
                inner = None if space.inside is space else plain(space.to_json())
                self.append(ev.Widened(at=self.now(), space=plain(space.whole.to_json()), inner=inner), None)
                change, best = ("wider" if inner is None else "narrower"), self.sync().best()
                if best is not None and not space.contains(best.config):
                    difference += f" Trial {best.trial}, the best so far, lies outside and stays study.best."
                _log.info("The space of the study %r is %s from here on: %s", self.name, change, difference)

        with self.lock:
            settled(once)


def _open(
    store: Store, name: str, problem: Problem, policy: Policy[Any], seed: int | None, now: float, folder: object
) -> ev.Created:
    """Return the first event of the study; create the study if there is none."""
    created = ev.Created(
        at=now, problem=plain(problem.to_json()), policy=plain(policy.spec),
        seed=secrets.randbits(32) if seed is None else seed, id=secrets.token_hex(6),
        checkpoints=os.path.abspath(folder) if isinstance(folder, str | Path) else "", next_to=str(store.folder or ""),
    )  # fmt: skip
    return make(store, name, created, seed, problem, policy)
