"""Ask, report, finish: a search over one problem, recorded in one log."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import attempts
from . import events as ev
from .arguments import check_arguments, check_counts, check_seconds
from .asking import ask, outcome
from .checkpoints import Checkpoints, default_folder
from .decisions import Finish, Verdict, Wait
from .errors import InvalidInput
from .events import Status
from .history import Best, History, TrialRecord
from .judging import Report, record
from .ledger import Outcome, Spent
from .policy import Policy
from .problem import Budget, Problem
from .replica import Replica
from .store import Conflict, Store, open_store
from .trial import Trial

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger("haltune")
_PATIENCE = (0.05, 2.0)  # seconds between asks while waiting: from, to


class Study:
    """A search over one problem; any number of workers may share it.

    store: None (memory), a path ending in .db, or a URL ("sqlite:///search.db"). A study of
    this name that the store already holds is reopened and goes on where it was.
    seed: of all randomness; drawn when the study is made, and recorded.
    budget: see Budget; it may change from one opening to the next.
    max_failures: trials that may fail in a row before their exception is raised.
    max_retries: how often a trial whose worker was lost is offered again.
    checkpoints: the folder for the checkpoints of paused trials; beside the store's file if None.
    keep_checkpoints: of how many of the best finished trials the last checkpoint is kept; others are deleted.
    disk_quota: bytes that checkpoints may take, or a text such as "20GB". A trial that finds no room trains on.
    lease: seconds after which a worker that shows no sign of life is taken for lost; at least five times the
        longest epoch.
    monotonic, sleep: the clock that times epochs and decisions, and the wait between asks.

    Raises InvalidInput for arguments that do not fit, StudyMismatch when the log was written
    for another problem, policy or seed, StoreError when the store cannot be opened.
    """

    def __init__(
        self,
        problem: Problem,
        policy: Policy[Any],
        store: str | os.PathLike[str] | Store | None = None,
        name: str = "study",
        seed: int | None = None,
        budget: Budget | None = None,
        max_failures: int = 5,
        max_retries: int = 2,
        *,
        checkpoints: str | os.PathLike[str] | None = None,
        keep_checkpoints: int = 0,
        disk_quota: float | str | None = None,
        lease: float = 600.0,
        monotonic: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        check_arguments(problem, policy, name, budget)
        check_counts(seed=seed, max_failures=max_failures, max_retries=max_retries)
        check_seconds(lease=lease)
        self.problem, self.policy, self.name = problem, policy, name
        self.budget = budget or Budget()
        self.monotonic, self._sleep = monotonic, sleep
        self._max_failures, self._max_retries = max_failures, max_retries
        found = open_store(store)
        folder = default_folder(found, name) if checkpoints is None else checkpoints
        self.checkpoints = Checkpoints(folder, keep_checkpoints, disk_quota)
        self._replica = Replica(problem, policy, found, name, seed, self.checkpoints, float(lease))

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {len(self.history)} trials, {self._replica.store.url})"

    # -- the search ---------------------------------------------------------------------

    def ask(self) -> Trial | Wait | Finish:
        """What this worker does next: a trial to train, wait for others, or the end.

        Raises InvalidInput when neither the policy nor a budget would ever end the search.
        """
        if self.budget.unlimited and self.policy.endless:
            raise InvalidInput(
                f"{type(self.policy).__name__} never ends by itself and the study has no budget: "
                "give one, such as budget=Budget(time='2h') or Budget(trials=50)"
            )
        with self._replica.lock:
            while True:
                self.sync()
                try:
                    if not self._replica.expire(self._max_retries) and not self._replica.rescale():
                        answer = ask(self._replica, self.budget, self.monotonic)
                        return self._hand_out(answer) if isinstance(answer, int) else answer
                except Conflict:
                    continue  # another worker moved first: look again

    def __iter__(self) -> Iterator[Trial]:
        pause, longest = _PATIENCE
        while not isinstance(answer := self.ask(), Finish):
            if isinstance(answer, Wait):
                if pause == _PATIENCE[0]:
                    _log.info("waiting: %s", answer.reason)
                self._sleep(pause)
                pause = min(2 * pause, longest)
                continue
            pause = _PATIENCE[0]
            try:
                yield answer
            except GeneratorExit:  # the loop was left by break
                answer.interrupt()
                raise
            answer.finish()

    def sync(self) -> None:
        """Read what other workers appended since."""
        self._replica.sync()

    # -- what came of it ------------------------------------------------------------------

    @property
    def history(self) -> History:
        """The log as far as this process has read it."""
        return self._replica.history

    @property
    def trials(self) -> Sequence[TrialRecord]:
        """All trials, as far as this process has read the log."""
        return self.history.trials

    @property
    def best(self) -> Best | None:
        """The best finite value at the largest epoch any trial reached; None before there is one."""
        return self.history.best()

    @property
    def spent(self) -> Spent:
        """What the search has cost so far."""
        return self.history.spent

    @property
    def outcome(self) -> Outcome:
        """Whether the search is over, and why."""
        return outcome(self._replica, self.budget)

    def recommend(self) -> Best | None:
        """The tried configuration with the highest posterior mean: for noisy metrics."""
        from .recommend import recommend

        return recommend(self.history)

    def frame(self) -> pd.DataFrame:
        """One row a report. Raises ImportError saying how to get pandas when it is missing."""
        from .frame import frame

        return frame(self.history)

    def explain(self, trial: int | Trial | TrialRecord) -> str:
        """The receipt of each decision on a trial: reason, numbers, what it saved."""
        from .explain import receipt

        return receipt(self.history, trial if isinstance(trial, int) else trial.id, self.events())

    def events(self, start: int = 0) -> Iterator[ev.Event]:
        """The log from position `start` on, in order."""
        return self._replica.store.read(self.name, start)

    # -- what trials call -------------------------------------------------------------------

    def record(self, trial: Trial, report: Report, judge: bool) -> Verdict:
        """Append a report with its verdict; see Trial.report."""
        return record(self._replica, self.budget, trial, report, judge, self.monotonic)

    def record_checkpoint(self, trial: Trial, path: str, seconds: float) -> bool:
        """Append a checkpoint; False when the trial is not this worker's any more. See Trial.checkpointed."""
        return attempts.checkpointed(self._replica, trial, path, seconds)

    @property
    def lease_seconds(self) -> float:
        """How long a silent worker is taken to live."""
        return self._replica.term

    def renew(self, trial: Trial) -> None:
        """Renew a lease; see Trial.heartbeat."""
        self._replica.store.renew(self.name, self._replica.lease(trial.id, trial.attempt))

    def end(
        self, trial: Trial, status: Status | None, error: str | None = None, text: str | None = None
    ) -> None:
        """Append the end of an attempt and give the lease back; see Trial.finish."""
        attempts.end(self._replica, trial, status, error, text, self._max_failures)

    def tolerates(self, trial: Trial, error: BaseException) -> bool:
        """True when the search goes on after `error`, which is in the log already."""
        return attempts.tolerates(self.history, trial, error, self._max_failures)

    def _hand_out(self, id: int) -> Trial:
        trial = Trial(self, id)
        self._replica.handed_out.add((id, trial.attempt))
        return trial
