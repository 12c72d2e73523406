"""Ask, report, finish: a search over one problem, recorded in one log."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from haltune._utils.checks import check_counts, check_seconds
from haltune._utils.retry import patiently
from haltune.errors import InvalidInput, warn
from haltune.log import events as ev
from haltune.log.decisions import Finish, Verdict, Wait
from haltune.log.events import Status
from haltune.log.policy import Policy, check_policy
from haltune.log.problem import Budget, Problem
from haltune.ranks.agreement import Following, join, same, state
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpoints
from haltune.store.folders import own_folder
from haltune.store.open import open_store

from . import spawned as carried
from .results import Findings
from .session import ending as attempts
from .session import follower as followers
from .session.asking import answer
from .session.claims import in_turn
from .session.judging import Report, record
from .session.replica import Replica
from .trial import Trial
from .turns import turns

T = TypeVar("T")


class Study(Findings):
    """A search over one problem; any number of workers may share it.

    store: None (memory), a path ending in .db, or a URL ("sqlite:///search.db"). A study of
    this name that the store already holds is reopened and goes on where it was.
    seed: of all randomness; drawn when the study is made, and recorded.
    budget: see Budget; it may change from one opening to the next.
    max_failures: trials that may fail in a row before their exception is raised.
    max_retries: how often a trial whose worker was lost is offered again.
    checkpoints: the folder for the checkpoints of paused trials; beside the store's file if None. Studies may share
        it: each has a folder of its own there.
    keep_checkpoints: of how many of the best finished trials the last checkpoint is kept; others are deleted.
    disk_quota: bytes that checkpoints may take, or a text such as "20GB". A trial that finds no room trains on.
    patience: seconds to wait for a database server that is away, when asking and reporting.
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
        checkpoints: str | os.PathLike[str] | Checkpoints | None = None,
        keep_checkpoints: int = 0,
        disk_quota: float | str | None = None,
        lease: float = 600.0,
        patience: float = 600.0,
        monotonic: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        policy = check_arguments(problem, policy, name, budget)
        check_counts(seed=seed, max_failures=max_failures, max_retries=max_retries)
        check_seconds(lease=lease)
        self.patience, self.waits = patience, True  # a launcher does not wait: it has others to look after
        self.problem, self.policy, self.name = problem, policy, name
        self.budget = budget or Budget()
        self.monotonic, self._sleep = monotonic, sleep
        self._max_failures, self._max_retries = max_failures, max_retries

        def opened() -> Replica:
            found = open_store(store)
            limits = Checkpoints("", keep_checkpoints, disk_quota)

            def kept(created: ev.Created) -> Checkpoints:
                if isinstance(checkpoints, Checkpoints):
                    return checkpoints
                return limits.within(own_folder(found, name, created, checkpoints))

            replica = Replica(problem, policy, found, name, seed, kept, float(lease), monotonic)
            self._accord.attach(replica)
            return replica

        self._accord = join(name, store)
        shadow = partial(followers.shadow, problem, policy, store, name, self._accord)
        opening = partial(patiently, opened, patience, sleep, warn)
        self._replica = self._accord.agree("opens", opening, followers.opened_to_json, shadow)
        self.checkpoints = self._replica.checkpoints

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
        from_json = partial(followers.answer_from_json, self)
        return self._accord.agree("ask", self._ask, followers.answer_to_json, from_json)

    def _ask(self) -> Trial | Wait | Finish:
        return self._patiently(lambda: in_turn(self._answer, self._sleep))

    def _answer(self) -> Trial | Wait | Finish:
        with self._replica.lock:
            found = answer(self._replica, self.budget, self._max_retries, self.monotonic)
            if isinstance(found, Wait | Finish):
                return found
            trial = Trial(self, found)
            self._replica.trains(trial.id, trial.attempt, trial)
            return trial

    def _patiently(self, work: Callable[[], T], wait: bool = True) -> T:
        tell = partial(self._replica.warn_once, about="away")
        return patiently(work, self.patience if wait and self.waits else 0.0, self._sleep, tell)

    def __iter__(self) -> Iterator[Trial]:
        return turns(self, self._accord, self._sleep)

    def sync(self) -> None:
        """Read what other workers appended since."""
        self._patiently(self._replica.sync)

    # -- what trials call -------------------------------------------------------------------

    def agree(
        self,
        trial: Trial,
        about: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
    ) -> T:
        """What `work` does on rank 0 and comes to on all ranks of a distributed training; see ranks.agreement."""
        return self._accord.agree(f"{trial.label} {about}", work, to_json, from_json, trial)

    def record(self, trial: Trial, report: Report, judge: bool) -> Verdict:
        """Append a report with its verdict; see Trial.report."""

        def work() -> Verdict:
            once = partial(record, self._replica, self.budget, trial, report, judge, self.monotonic)
            return self._patiently(once, trial.patient)

        about = f"reports epoch {report['epoch']:g}"
        return self.agree(trial, about, work, ev.verdict_to_json, ev.verdict_from_json)

    def record_checkpoint(self, trial: Trial, path: str, seconds: float) -> bool:
        """Append a checkpoint; False when the trial is not this worker's any more. See Trial.checkpointed."""
        if isinstance(self._accord, Following):
            trial.checkpoint = path
            return True
        work = partial(attempts.checkpointed, self._replica, trial, path, seconds)
        return self._patiently(work, trial.patient)

    @property
    def holder(self) -> str:
        """This process, as its leases name it."""
        return self._replica.holder()

    @property
    def lease_seconds(self) -> float:
        """How long a silent worker is taken to live."""
        return self._replica.term

    def wake(self, trial: Trial) -> None:
        """Log what this machine slept since it was handed the trial."""
        self._replica.wake(trial.id, trial.attempt)

    def renew(self, trial: Trial) -> None:
        """Renew a lease; see Trial.heartbeat."""
        if not isinstance(self._accord, Following):
            self.wake(trial)
            self._replica.store.renew(self.name, self._replica.lease(trial.id, trial.attempt))

    def end(
        self, trial: Trial, status: Status | None, error: str | None = None, text: str | None = None
    ) -> None:
        """Append the end of an attempt and give the lease back; see Trial.finish."""
        if trial.ended is not None:
            return
        if isinstance(self._accord, Following):
            followers.hear_end(self._accord, trial, status)
            return

        once = partial(attempts.end, self._replica, trial, status, error, text, self._max_failures)
        leaves = status is Status.INTERRUPTED  # and does not wait
        self.agree(trial, "ends", lambda: self._patiently(once, not leaves) or error)

    def lose(self, trial: Trial, reason: str) -> None:
        """Append that the training of a trial was lost: it is offered again, up to max_retries times."""
        once = partial(attempts.lose, self._replica, trial, reason, self._max_retries)
        self.agree(trial, "is lost", partial(self._patiently, once))

    def tolerates(self, trial: Trial, error: BaseException) -> bool:
        """True when the search goes on after `error`, which is in the log already."""
        if isinstance(self._accord, Following):
            return followers.hear_tolerance(self._accord, trial)

        def work() -> bool:
            return attempts.tolerates(self.history, trial, error, self._max_failures)

        return self.agree(trial, "is forgiven", work)

    # -- other processes --------------------------------------------------------------------

    def adopt(self, trial: Trial) -> None:
        """Go on with a trial in a forked or spawned process, under the lease of the process that asked for it.

        Raises NotSupported for a store in memory.
        """
        self._replica.adopt()
        self.renew(trial)

    def take(self, id: int, attempt: int, holder: str, leaving: Callable[[], str | None]) -> Trial:
        """A trial that a launcher holds and has this process train; `leaving` says why it should let go, or None.

        Raises LeaseLost when that attempt is over.
        """
        once = partial(carried.take, self, self._replica, (id, attempt), holder, leaving)
        work = partial(self._patiently, once)
        return self._accord.agree("takes a trial", work, state, partial(followers.trial_from_json, self))

    def __reduce__(self) -> tuple[Any, ...]:
        if not carried.spawning():
            raise carried.refuse()
        return carried.Carried, (self.arguments, self.holder, set(self._replica.handed_out))

    @property
    def arguments(self) -> dict[str, Any]:
        """What opens this study again in another process."""
        kept = self.checkpoints
        return {
            "problem": self.problem, "policy": self.policy, "store": self._replica.store, "name": self.name,
            "budget": self.budget, "max_failures": self._max_failures, "max_retries": self._max_retries,
            "checkpoints": str(kept.folder), "keep_checkpoints": kept.keep, "disk_quota": kept.quota,
            "lease": self._replica.term, "patience": self.patience,
        }  # fmt: skip


def check_arguments(problem: Any, policy: Any, name: Any, budget: Any) -> Policy[Any]:
    """The policy. Raises InvalidInput for what is not a problem, a policy, a name or a budget."""
    if not isinstance(problem, Problem):
        raise InvalidInput(f"the first argument is a Problem(space, goal, max_epochs), not {problem!r}")
    decides = check_policy("the second argument is a policy such as BOBOS()", policy)
    if not isinstance(name, str) or not name or _UNHELD.search(name):
        raise InvalidInput(
            f"name={name!r}: a study's name is a text that is not empty, which a file can be called: without the "
            "character 0 and half surrogate pairs"
        )
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidInput(f"budget={budget!r}: write Budget(time='2h') or Budget(trials=50)")
    return decides


_UNHELD = re.compile("[\x00\ud800-\udfff]")  # in a text that is no Unicode, such as a path of arbitrary bytes
