"""A study carried into a process that a training spawned: opened again there, under the same leases.

Only what multiprocessing pickles to start a process crosses, and only with a store that both processes can
reach. A study is never pickled otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

from haltune.errors import LeaseLost, NotSupported
from haltune.log.events import Status
from haltune.ranks.agreement import alone

from .trial import Trial

if TYPE_CHECKING:
    from .session.replica import Replica
    from .study import Study


def spawning() -> bool:
    """True while multiprocessing pickles what a new process begins with."""
    return get_spawning_popen() is not None


class Carried:
    """Stands for a study; opens it when something is first asked of it, which only one rank does."""

    def __init__(self, arguments: dict[str, Any], holder: str, handed_out: set[tuple[int, int]]) -> None:
        self._arguments, self._holder, self._handed_out = arguments, holder, handed_out
        self._study: Study | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._opened(), name)

    def _opened(self) -> Study:
        if self._study is None:
            from .study import Study

            with alone():
                self._study = Study(**self._arguments)
            hold_as(self._study._replica, self._holder, self._handed_out)
        return self._study


def hold_as(replica: Replica, holder: str, handed_out: set[tuple[int, int]]) -> None:
    """Hold the leases of another process, which started this one to train its trials."""
    replica.adopt(holder)
    replica.handed_out |= handed_out


def take(
    study: Study, replica: Replica, attempt: tuple[int, int], holder: str, leaving: Callable[[], str | None]
) -> Trial:
    """See Study.take; attempt: the trial and its attempt."""
    hold_as(replica, holder, {attempt})
    replica.leaving = leaving
    r = replica.synced(attempt[0])
    if (r.id, r.attempt) != attempt or r.status is not Status.RUNNING:
        raise LeaseLost(
            f"attempt {attempt[1]} at trial {r.id} is over: it is {r.status}, attempt {r.attempt}"
        )
    trial = Trial(study, r)
    replica.trains(*attempt, trial)
    return trial


def refuse() -> NotSupported:
    """The error for pickling a study for any other purpose."""
    return NotSupported(
        "a study is not pickled: its log is its state. Open it again by the URL of its store, "
        "Study(problem, policy, store='sqlite:///search.db')"
    )
