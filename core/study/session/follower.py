"""What a study does on the ranks above 0: it hears. It writes nothing, and reads the log only to look back."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from haltune._utils.forks import heirs, is_free
from haltune._utils.process import new_holder
from haltune.errors import RankLost
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.ranks import agreement as together
from haltune.ranks.agreement import Accord, Following
from haltune.ranks.handover import Line, error_from_json
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpoints
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store

if TYPE_CHECKING:
    from ..study import Study
    from ..trial import Trial
    from .replica import Replica

GRACE = 10.0  # seconds that a rank which fails waits for word from rank 0, which may know nothing of it
_BRIEFLY = 0.5  # likewise, one that is interrupted: Ctrl-C waits for nobody


class Shadow:
    """What stands for a replica: all that one is asked to tell, as far as rank 0 had read when it was last heard.

    The policy's state is folded here like there, so that any question can be answered on one rank alone.
    """

    def __init__(
        self, problem: Problem, policy: Policy[Any], store: Any, name: str, accord: Following, told: Any
    ) -> None:
        self.problem, self.policy, self.name = problem, policy, name
        self.term: float = told["term"]
        self.checkpoints = Checkpoints(told["folder"], told["keep"], told["quota"])
        self.lock = threading.RLock()
        self.told = None
        self._where = store
        self._store: Store | None = _Told(accord) if told["url"] == "memory" else None
        self._accord = accord
        self._begin()
        heirs.add(self)
        self.handed_out: set[tuple[int, int]] = set()
        self._holder = ""

    def _begin(self) -> None:
        """Nothing is read yet."""
        self._history = History(self.problem)
        self._history.locate = self.checkpoints.located
        self._state, self._folded = self.policy.start(self.problem), 0

    def after_fork(self) -> None:
        """See forks.Heir."""
        if not is_free(self.lock):
            self.lock = threading.RLock()
            self._begin()

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
            for event in self.store.read(self.name, self._history.position, self._accord.position):
                self._history.apply(event)
            return self._history

    @property
    def state(self) -> Any:
        """The policy's, at the position of the history. Folded when it is asked for: few questions need it."""
        with self.lock:
            for event in self.store.read(self.name, self._folded, self._history.position):
                self._state = self.policy.fold(self._state, event)
                self._folded += 1
            return self._state

    def sync(self) -> None:
        """Rank 0 alone reads on."""

    def holder(self) -> str:
        """This process's identity. It holds nothing: the leases are rank 0's."""
        self._holder = self._holder or new_holder()
        return self._holder

    def warn_once(self, text: str, about: str | None = None) -> None:
        """Rank 0 warns for all."""

    def adopt(self) -> None:
        """In a fork of this rank: rank 0 holds the leases for all."""


class _Told(MemoryStore):
    """The log of a study in rank 0's memory, as far as it was told."""

    def __init__(self, accord: Following) -> None:
        super().__init__()
        self._accord = accord

    def _log(self, name: str) -> list[Any]:
        return self._accord.events[: self._accord.position]


def shadow(
    problem: Problem, policy: Policy[Any], store: Any, name: str, accord: Accord, told: Any
) -> Replica:
    """A Shadow, where a replica is expected."""
    assert isinstance(accord, Following)
    return cast("Replica", Shadow(problem, policy, store, name, accord, told))


def opened_to_json(replica: Replica) -> dict[str, Any]:
    """What a Shadow has to know."""
    kept = replica.checkpoints
    told = {"folder": str(kept.folder), "keep": kept.keep, "quota": kept.quota}
    return {"url": replica.store.url, "term": replica.term, **told}


def answer_to_json(answer: Trial | Wait | Finish) -> dict[str, Any]:
    """What `Study.ask` answered."""
    if isinstance(answer, Wait | Finish):
        return {"finish" if isinstance(answer, Finish) else "wait": answer.reason}
    return {"trial": together.state(answer)}


def answer_from_json(study: Study, told: dict[str, Any]) -> Trial | Wait | Finish:
    """The inverse of `answer_to_json`, on another rank."""
    if "trial" in told:
        return trial_from_json(study, told["trial"])
    return Finish(told["finish"]) if "finish" in told else Wait(told["wait"])


def trial_from_json(study: Study, told: dict[str, Any]) -> Trial:
    """A trial as rank 0 holds it; its configuration regains the types that JSON lacks."""
    from ..trial import Trial

    trial = Trial.__new__(Trial)
    together.change(trial, told)
    trial.id, trial.attempt = told["id"], told["attempt"]
    trial.resource, trial.tags = told["resource"], told["tags"]
    trial.config = dict(study.problem.space.canonical(told["config"]))
    trial.belongs_to(study)
    return trial


def hear_end(accord: Following, trial: Trial, status: Status | None) -> None:
    """The end of an attempt, as rank 0 has it. Raises what rank 0 raises, unless this rank has an error of its own."""
    if status is Status.INTERRUPTED:
        trial.ended = status
        with suppress(RankLost):
            accord.heard(f"{trial.label} ends", _BRIEFLY)
        return
    failing = status is Status.FAILED
    line = accord.heard(f"{trial.label} ends", GRACE if failing else None)
    together.change(trial, line["trial"])
    if failing:
        return
    if "error" in line:
        raise error_from_json(*line["error"])
    if line["answer"] is not None and not hear_tolerance(accord, trial):
        kind, _, words = line["answer"].partition(": ")
        raise error_from_json(kind, words)


def hear_tolerance(accord: Following, trial: Trial) -> bool:
    """Whether the search goes on after the trial failed; as rank 0 says where it failed there, too."""
    if trial.ended is not Status.FAILED:
        return False
    try:
        return bool(accord.agree(f"{trial.label} is forgiven", lambda: False, seconds=GRACE))
    except RankLost:
        return False


def pass_over(accord: Accord) -> None:
    """Leave out the trials that were over before this process was started: their training is not repeated."""
    if not isinstance(accord, Following):
        return

    def is_over(line: Line) -> bool:
        told = line.get("answer", {})
        if "trial" not in told:
            return "finish" not in told
        return accord.was_before(f"{together.label(**told['trial'])} ends")

    accord.skip("ask", is_over)
