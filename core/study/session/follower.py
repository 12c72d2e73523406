"""The session of a rank above 0: it hears. It writes nothing, and reads the log only to look back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from haltune._utils.forks import heirs, is_free
from haltune._utils.process import new_holder
from haltune.errors import RankLost, warn
from haltune.log.decisions import Finish, Verdict, Wait
from haltune.log.events import Event, Status, from_json, verdict_from_json
from haltune.log.history import History
from haltune.log.policy import Fold
from haltune.log.problem import Budget, Problem
from haltune.ranks import agreement
from haltune.ranks.agreement import Follower, same
from haltune.ranks.handover import Line, error_from_json
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpoints
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store

from .attempt import Attempt, Json, answer_from_json, label
from .local import reopened
from .session import A, Failure, MonotonicClock, Report, Settings
from .spawned import carried
from .voice import Voice

T = TypeVar("T")
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
        self.monotonic, self.waits, self.voice = monotonic, True, Voice(0)
        self._rank_0 = agreement.follower(settings.name, settings.where)
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
        heirs.add(self)

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
