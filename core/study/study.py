"""Ask, report, finish: a search over one problem, recorded in one log."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from haltune import policies
from haltune._utils.checks import check_counts, check_seconds
from haltune._utils.words import plural
from haltune.errors import InvalidInput
from haltune.log.decisions import Finish, Wait
from haltune.log.policy import Policy, check_policy
from haltune.log.problem import Budget, Problem
from haltune.ranks.agreement import follows
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpoints

from .results import Results
from .session.follower import FollowerSession
from .session.local import LocalSession
from .session.session import Log, Session, Settings
from .trial import Trial

_PAUSES = (0.05, 2.0)  # seconds between asks while waiting: from, to


class Study(Results):
    """A search over one problem; any number of workers may share it.

    Args:
        problem: What is searched: a Problem of space, goal and epochs.
        policy: What decides: BOBOS(), Hyperband(), ... Default: None, MultiFidelity(), one search for every kind of
            training.
        store: Where the log is kept: a path ending in .db, or a URL ("sqlite:///search.db", "postgresql://..."). A
            study of this name that is there already is reopened and goes on where it was. Default: None, memory.
        name: Of the study, in a store of several. Default: "study".
        seed: Of all randomness. Default: None, drawn when the study is made, and recorded.
        budget: When the search ends at the latest; it may change from one opening to the next. Default: None, when
            the policy ends it.
        max_failures: How many trials may fail in a row before their exception is raised. Default: 5.
        max_retries: How often a trial whose worker was lost is offered again. Default: 2.
        checkpoints: The folder for the checkpoints of paused trials, of which several studies may share one.
            Default: None, beside the store's file.
        keep_checkpoints: Of how many of the best finished trials the last checkpoint is kept. Default: 0.
        disk_quota: Bytes that checkpoints may take, or a text such as "20GB"; a trial that finds no room trains on.
            Default: None, what the disk has.
        lease: Seconds after which a worker that shows no sign of life is taken for lost, at least five times the
            longest epoch. Default: 600.
        patience: Seconds to wait for a database server that is away, when asking and reporting. Default: 600.
        monotonic: The clock that times epochs and decisions, seconds. Default: time.perf_counter.
        sleep: Waits between asks, seconds. Default: time.sleep.

    Raises:
        InvalidInput: for arguments that do not fit.
        StudyMismatch: when the log was written for another problem, policy or seed.
        StoreError: when the store cannot be opened.

    Example:
        >>> from haltune.policies import BOBOS
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, BOBOS(), "search.db", seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials), study.best.epoch
        (3, 9.0)
    """

    def __init__(
        self,
        problem: Problem,
        policy: Policy[Any] | None = None,
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
        settings = Settings(
            problem, policy, store, name, budget or Budget(), max_failures, max_retries, checkpoints, keep_checkpoints,
            disk_quota, float(lease), patience,
        )  # fmt: skip
        kind = FollowerSession if follows() else LocalSession
        self.session: Session = kind(settings, seed, monotonic, sleep)  # what this process does for the study
        self.problem, self.policy, self.name = problem, policy, name

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {plural(len(self.history), 'trial')}, {self.store.url})"

    @property
    def _log(self) -> Log:
        return self.session.log

    @property
    def budget(self) -> Budget:
        """When the search ends at the latest; another takes effect at the next ask."""
        return self.session.budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self.session.budget = budget

    @property
    def store(self) -> Store:
        """Where the log is kept."""
        return self._log.store

    @property
    def checkpoints(self) -> Checkpoints:
        """Where the checkpoints of paused trials are kept."""
        return self.session.checkpoints

    @property
    def settings(self) -> Settings:
        """What opens this study again in another process: Study(**vars(study.settings))."""
        return self.session.settings

    def __iter__(self) -> Iterator[Trial]:
        pause, longest = _PAUSES
        self.session.pass_over()
        while not isinstance(answer := self.ask(), Finish):
            if isinstance(answer, Wait):
                self.session.wait(pause, answer.reason if pause == _PAUSES[0] else None)
                pause = min(2 * pause, longest)
                continue
            pause = _PAUSES[0]
            try:
                yield answer
            except GeneratorExit:  # the loop was left by break
                answer.interrupt()
                raise
            answer.finish()
            self.session.pass_over()

    def ask(self) -> Trial | Wait | Finish:
        """What this worker does next: a trial to train, wait for others, or the end.

        Raises InvalidInput when neither the policy nor a budget would ever end the search.
        """
        if self.budget.unlimited and self.policy.endless:
            raise InvalidInput(
                f"{type(self.policy).__name__} never ends by itself and the study has no budget: "
                "give one, such as budget=Budget(time='2h') or Budget(trials=50)"
            )
        return self.session.ask(partial(Trial, self.session))

    def enqueue(self, config: Mapping[str, Any], again: bool = False) -> bool:
        """Have a configuration of yours trained before any that the policy proposes; those enqueued first come first.

        Where the policy would next begin a configuration of its own, this one takes its place: when, how far and on
        what resource it trains, and when it is stopped, the policy decides as of any other. Runs that go on come
        before it, and so does the end of the search. It counts for the budget. TruVaR and LevelSetSearch over a grid
        learn from a configuration beside the grid, but will never choose it.

        Args:
            config: The whole configuration, a value for every parameter that is active in it.
            again: Whether to train it once more where it was begun already, or waits. Default: False.

        Returns:
            True when it waits now; False when it was begun already or waited, so that nothing was done: a program
            that enqueues its defaults may be run again.

        Raises:
            InvalidInput: For what is not a whole configuration of the space, and when the policy has ended the
                search.

        Example:
            >>> from haltune.policies import GPUCB
            >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
            >>> study = Study(problem, GPUCB(), seed=0, budget=Budget(trials=3))
            >>> study.enqueue({"lr": 0.003}), study.enqueue({"lr": 0.003})
            (True, False)
            >>> study.ask().config
            {'lr': 0.003}
        """
        return self.session.enqueue(self.problem.checked(config, "enqueue(config)"), again)

    def take(self, id: int, attempt: int, holder: str, leaving: Callable[[], str | None]) -> Trial:
        """A trial that a launcher holds and has this process train; `leaving` says why it should let go, or None.

        Raises LeaseLost when that attempt is over.
        """
        return self.session.take(id, attempt, holder, leaving, partial(Trial, self.session))

    def sync(self) -> None:
        """Read what other workers appended since."""
        self.session.sync()


def check_arguments(problem: Any, policy: Any, name: Any, budget: Any) -> Policy[Any]:
    """The policy. Raises InvalidInput for what is not a problem, a policy, a name or a budget."""
    if not isinstance(problem, Problem):
        raise InvalidInput(f"the first argument is a Problem(space, goal, max_epochs), not {problem!r}")
    asked = policies.MultiFidelity() if policy is None else policy
    decides = check_policy("the second argument is a policy such as BOBOS()", asked)
    if not isinstance(name, str) or not name or _UNHELD.search(name):
        raise InvalidInput(
            f"name={name!r}: a study's name is a text that is not empty, which a file can be called: without the "
            "character 0 and half surrogate pairs"
        )
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidInput(f"budget={budget!r}: write Budget(time='2h') or Budget(trials=50)")
    return decides


_UNHELD = re.compile("[\x00\ud800-\udfff]")  # in a text that is no Unicode, such as a path of arbitrary bytes
