"""A study read from its log alone: for looking at it, by whoever has neither its program nor its policy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

from haltune._utils.disk import StrPath, is_gone
from haltune._utils.process import surely_gone
from haltune.errors import HaltuneError, StoreError
from haltune.log.decisions import Finish, Move, Resume
from haltune.log.events import ADVICE, Budgeted, Created, Event, Status
from haltune.log.history import History
from haltune.log.policy import Fold, Policy
from haltune.log.problem import Budget, Problem
from haltune.log.spending import Outcome
from haltune.store.base import Lease, Store, settled
from haltune.store.checkpoints import Checkpoints
from haltune.store.folders import own_folder
from haltune.store.open import only_study, open_store
from haltune.store.studies import enqueued, recorded_problem

from .asking import propose
from .attempt import Log
from .results import Results

_BETWEEN = 10.0  # seconds that a program may take from one trial to the next


def read_study(
    store: Store | StrPath, name: str | None = None, checkpoints: StrPath | None = None
) -> Reading:
    """A study as its log has it now, opened to look at; the only one in the store if `name` is None.

    store: a URL or a path is opened to be read, which writes nothing and waits for nobody.
    checkpoints: their folder, as it was given to the Study, where it is not the one beside the store.
    Raises StoreError listing the studies there are.
    """
    store = open_store(store, reading=True)
    name = only_study(store, name)
    return Reading(store, name, *folded(store, name), checkpoints)


def follow_study(
    store: Store | StrPath, name: str | None = None, checkpoints: StrPath | None = None
) -> Following:
    """As `read_study`, for who looks at the search while it runs."""
    store = open_store(store, reading=True)
    name = only_study(store, name)
    return Following(store, name, *folded(store, name), checkpoints)


def folded(store: Store, name: str) -> tuple[Created, History]:
    """The first event of a study, and its history with paths as they are recorded. Raises StoreError."""
    first = first_event(store, name)
    history = History(recorded_problem(first))
    history.whose = _whose(store, name)
    for event in store.read(name):
        history.apply(event)
    return first, history


def first_event(store: Store, name: str) -> Created:
    """What makes a study. Raises StoreError for a log that does not begin with it."""
    first = next(store.read(name, stop=1), None)
    if not isinstance(first, Created):
        raise StoreError(f"event 0 of {_whose(store, name)} does not make it. {ADVICE}")
    return first


def _whose(store: Store, name: str) -> str:
    return f"the study {name!r} in {store.url}"


class Reading(Results):
    """All that a Study tells, told from its log: by the budget that a worker recorded, and its policy as recorded."""

    def __init__(
        self,
        store: Store,
        name: str,
        created: Created,
        history: History,
        checkpoints: StrPath | None,
    ) -> None:
        self.name, self.problem = name, history.problem
        kept = Checkpoints(own_folder(store, name, created, checkpoints, mark=False))
        self.policy, self._known = _rebuilt(created, self.problem)
        self.budget = history.recorded or Budget()
        self._folded = _Folded(store, name, self.policy, history, kept)
        history.locate = self._present

    @property
    def log(self) -> Log:
        """The log at the moment of the reading."""
        return self._folded

    @property
    def _log(self) -> Log:
        return self._folded

    def sync(self) -> None:
        """A reading is of one moment."""

    @property
    def outcome(self) -> Outcome:
        """Whether the search is over, and why; or what only its own program can say of that."""
        found = super().outcome
        return Outcome(False, doubt) if not found.over and (doubt := self._doubt()) else found

    def _doubt(self) -> str | None:
        """Why it cannot be told whether the search is over, as its program can."""
        history = self.history
        if history.running or history.interrupted:
            return None
        if history.recorded is None and self.policy.endless:
            return "its log holds no budget: whether the search continues its program knows"
        if history.spent.starts_no_more(self.budget) is not None and not self._known:
            return "whether paused trials continue, its policy knows, which its log cannot hold"
        return None

    @property
    def lost(self) -> Set[int]:
        running = {t.id for t in self.history.with_status(Status.RUNNING)}
        gone = (w.trial for w in self.store.leases(self.name) if not self._alive(w))
        return running.intersection(gone)

    @property
    def idle(self) -> bool:
        return not self.attended and not self.outcome.over and self._doubt() is None

    @property
    def attended(self) -> bool:
        """Whether somebody trains, or decides what to train next."""
        return any(map(self._alive, self.store.leases(self.name)))

    def _alive(self, worker: Lease) -> bool:
        return worker.expires >= self.store.now() and not surely_gone(worker.holder)

    def goes_on_with_more(self) -> bool | None:
        """Whether a larger budget takes up a search that is over; None where only its own program knows."""
        if not self._known:
            return None
        if self.history.finished is not None and not self.policy.plans:
            return False
        fold = Fold(self.problem, self.policy, self.history.whose)
        fold.read(self.events())
        fold.take(Budgeted(at=self.history.now, budget=self._more(), plans=self.policy.plans))
        return not isinstance(propose(self.policy, fold.state, fold.history), Finish)

    def _more(self) -> dict[str, Any]:
        """A budget that is surely enough for another training."""
        spent, price = self.history.spent, self.budget.price
        gone = {**asdict(spent), "money": spent.money(price), "price": 0.0}
        limits = self.budget.to_json().items()
        return {name: limit if name == "price" else 1000 * max(limit, gone[name]) for name, limit in limits}

    def _present(self, path: str | None) -> str | None:
        """Where a checkpoint of the log is; None when it is not there any more."""
        if path is None:
            return None
        found = Path(os.path.abspath(self.checkpoints.folder / path))
        return None if is_gone(found) else str(found)


class Following(Reading):
    """A reading that reads on: `sync` takes in what was appended since. See `follow_study`."""

    @property
    def attended(self) -> bool:
        """See Reading; true also between two trials."""
        return super().attended or (not self.lost and self.store.now() < self.history.now + _BETWEEN)

    def sync(self) -> None:
        """Read what was appended since. Raises StoreError for a log that is gone, or begins anew."""
        with self._folded.lock:
            for event in self.store.read(self.name, self.history.position):
                self.history.apply(event)
                self._folded.forget()
            self.problem, self.budget = self.history.problem, self.history.recorded or Budget()

    def enqueue(self, store: Store, config: Mapping[str, Any], again: bool = False) -> bool:
        """See Study.enqueue. store: the same, to be written. Who trains applies constraints, which no log holds."""

        def once() -> bool:
            self.sync()
            canonical = self.problem.checked(config, "enqueue(config)")
            event = enqueued(self.history, self.policy, canonical, again, store.now())
            if event is not None:
                store.append(self.name, [event], seen=self.history.position, about=None)
            return event is not None

        return settled(once)


class _Folded:
    """See Log. The policy's state is folded when it is asked whether the search is over."""

    told: Budget | None = None  # it plans by what is recorded

    def __init__(
        self, store: Store, name: str, policy: Policy[Any], history: History, checkpoints: Checkpoints
    ) -> None:
        self.store, self.name, self.policy, self.history = store, name, policy, history
        self.checkpoints, self.problem, self.lock = checkpoints, history.problem, RLock()

    def events(self, start: int = 0) -> Iterator[Event]:
        return self.store.read(self.name, start, self.history.position)

    def forget(self) -> None:
        """The state is of fewer events than there are."""
        self.problem = self.history.problem
        self.__dict__.pop("state", None)

    @cached_property
    def state(self) -> Any:
        fold = Fold(self.problem, self.policy, self.history.whose)
        fold.read(self.store.read(self.name, 0, self.history.position))
        return fold.state


class _Unknown(Policy[None]):
    """A policy of the user's own, or one with functions: what is paused may go on."""

    @property
    def spec(self) -> dict[str, Any]:
        return {}

    def start(self, problem: Problem) -> None:
        return None

    def fold(self, state: None, event: Event) -> None:
        return None

    def propose(self, state: None, history: History, rng: Any) -> Move:
        return Resume(0)


def _rebuilt(created: Created, problem: Problem) -> tuple[Policy[Any], bool]:
    """The policy of a log, and whether it is known."""
    from haltune.policies.from_spec import policy_from, suited

    try:
        policy = suited(policy_from(created.policy), problem)
        policy.start(problem)
    except HaltuneError:
        return _Unknown(), False
    return policy, True
