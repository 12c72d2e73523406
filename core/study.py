"""Ask, report, finish: a search over one problem, recorded in one log."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import events as ev
from .asking import ask, outcome
from .decisions import Action, Finish, Verdict, Wait
from .errors import InvalidInput
from .events import Status
from .history import Best, History, TrialRecord
from .judging import Report, record
from .ledger import Outcome, Spent
from .policy import Policy
from .problem import Budget, Problem
from .replica import Replica
from .store import Conflict, Release, Store, open_store
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
        monotonic: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        _check_arguments(problem, policy, name, budget)
        _check_counts(seed=seed, max_failures=max_failures, max_retries=max_retries)
        self.problem, self.policy, self.name = problem, policy, name
        self.budget = budget or Budget()
        self.monotonic, self._sleep = monotonic, sleep
        self._max_failures, self._max_retries = max_failures, max_retries
        self._replica = Replica(problem, policy, open_store(store), name, seed)

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

    def record_checkpoint(self, trial: Trial, path: str, seconds: float) -> None:
        """Append a checkpoint; see Trial.checkpointed."""
        event = ev.Checkpointed(
            at=self._now(),
            trial=trial.id,
            attempt=trial.attempt,
            epoch=trial.epoch,
            path=path,
            seconds=seconds,
        )
        self._replica.append_if_held(
            event, trial.id, trial.attempt, self._replica.lease(trial.id, trial.attempt)
        )
        trial.checkpoint = path

    def renew(self, trial: Trial) -> None:
        """Renew a lease; see Trial.heartbeat."""
        self._replica.store.renew(self.name, self._replica.lease(trial.id, trial.attempt))

    def end(
        self, trial: Trial, status: Status | None, error: str | None = None, text: str | None = None
    ) -> None:
        """Append the end of an attempt and give the lease back; see Trial.finish."""
        with self._replica.lock:
            if trial.ended is not None:
                return
            silent = status is None and not len(self._replica.synced(trial.id).epochs)
            if silent:
                status, error = Status.FAILED, "ended without one report"
            event = ev.Ended(
                at=self._now(), trial=trial.id, attempt=trial.attempt,
                status=status or _derived(trial.verdict), error=error, traceback=text,
            )  # fmt: skip
            held = self._replica.append_if_held(event, trial.id, trial.attempt, Release(trial.id))
            trial.ended = event.status if held else Status.INTERRUPTED
        if status is Status.INTERRUPTED and held:
            _log.warning("trial %d was interrupted: the same program goes on where it was", trial.id)
        if silent and held:
            self._complain_of_silence(trial)

    def tolerates(self, trial: Trial, error: BaseException) -> bool:
        """True when the search goes on after `error`, which is in the log already."""
        if not self.history.any_success:
            error.add_note(
                f"haltune: trial {trial.id} failed and none has succeeded yet: a bug in the training code?"
            )
            return False
        if self.history.failures_in_a_row >= self._max_failures:
            error.add_note(f"haltune: {self.history.failures_in_a_row} trials failed in a row (max_failures)")
            return False
        _log.warning("trial %d failed and the search goes on: %s: %s", trial.id, type(error).__name__, error)
        return True

    def _hand_out(self, id: int) -> Trial:
        trial = Trial(self, id)
        self._replica.handed_out.add((id, trial.attempt))
        return trial

    def _now(self) -> float:
        return self._replica.store.now()

    def _complain_of_silence(self, trial: Trial) -> None:
        text = (
            f"trial {trial.id} ended without one report: call trial.report(value) after every epoch, "
            "or pass HaltuneCallback(trial), made for this trial, to the trainer; fast_dev_run reports nothing"
        )
        if not self.history.any_success or self.history.failures_in_a_row >= self._max_failures:
            raise InvalidInput(text)
        _log.warning(text)


def _derived(verdict: Verdict | None) -> Status:
    if verdict is None or not verdict.stops:
        return Status.COMPLETED
    if (
        "policy" in verdict.evidence
    ):  # the budget cut it short, not the policy: a larger one takes it up again
        return Status.INTERRUPTED
    return Status.PAUSED if verdict.action is Action.PAUSE else Status.STOPPED


def _check_arguments(problem: Any, policy: Any, name: Any, budget: Any) -> None:
    if not isinstance(problem, Problem):
        raise InvalidInput(f"the first argument is a Problem(space, goal, max_epochs), not {problem!r}")
    missing = [m for m in ("start", "fold", "propose", "judge", "spec", "endless") if not hasattr(policy, m)]
    if missing or isinstance(policy, type):
        hint = (
            f"; write {policy.__name__}()" if isinstance(policy, type) else f": it lacks {', '.join(missing)}"
        )
        raise InvalidInput(f"the second argument is a policy such as BOBOS(), not {policy!r}{hint}")
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"name={name!r}: a study's name is a text that is not empty")
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidInput(f"budget={budget!r}: write Budget(time='2h') or Budget(trials=50)")


def _check_counts(**counts: Any) -> None:
    for what, count in counts.items():
        if what == "seed" and count is None:
            continue
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidInput(f"{what}={count!r}: a whole number, 0 or more")
