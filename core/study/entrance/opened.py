"""A study that is open: what it is made with, and the session that does a process's work for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, Unpack, overload

from haltune._utils.checks import check_counts, check_seconds, number, python_number
from haltune._utils.disk import StrPath
from haltune.display import heard, plural, preformatted
from haltune.errors import InvalidInput, warn
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Constraint, Goal, Problem
from haltune.policies.from_spec import suited
from haltune.ranks.agreement import follows
from haltune.space import Space
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpoints

from ..results import Results
from ..session.follower import FollowerSession
from ..session.local import LocalSession
from ..session.session import Log, Session, Settings
from .arguments import budget_of, check_name, one_epoch, problem_of, waits, wrong_way
from .earlier import Earlier, earlier_studies, taught

_log = logging.getLogger("haltune")


class Rarer(TypedDict, total=False):
    """Arguments of Study that few need, as type checkers are told them."""

    checkpoints: StrPath | Checkpoints | None
    keep_checkpoints: int
    disk_quota: float | str | None
    lease: float
    patience: float
    verbose: int
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


class Opened(Results):
    """A study as it is opened: what it is made of, and its sessions. What is asked of it is Study's."""

    _speaks = False

    @overload
    def __init__(
        self,
        problem: Problem,
        goal: Policy[Any] | None = None,
        store: StrPath | Store | None = None,
        name: str = "study",
        seed: int | None = None,
        budget: Budget | str | None = None,
        max_failures: int = 5,
        max_retries: int = 2,
        *,
        policy: Policy[Any] | None = None,
        learn_from: Sequence[Earlier] = (),
        **rarer: Unpack[Rarer],
    ) -> None: ...

    @overload
    def __init__(
        self,
        problem: Space | Mapping[str, Any],
        goal: str | Goal | Sequence[str | Goal],
        store: StrPath | Store | None = None,
        name: str = "study",
        seed: int | None = None,
        budget: Budget | str | None = None,
        max_failures: int = 5,
        max_retries: int = 2,
        *,
        policy: Policy[Any] | None = None,
        max_epochs: int | None = None,
        min_epochs: int = 0,
        start: Sequence[Mapping[str, Any]] = (),
        constraints: Sequence[Constraint] = (),
        learn_from: Sequence[Earlier] = (),
        **rarer: Unpack[Rarer],
    ) -> None: ...

    def __init__(
        self,
        problem: Problem | Space | Mapping[str, Any] | None = None,
        goal: str | Goal | Sequence[str | Goal] | Policy[Any] | None = None,
        store: StrPath | Store | None = None,
        name: str = "study",
        seed: int | None = None,
        budget: Budget | str | None = None,
        max_failures: int = 5,
        max_retries: int = 2,
        *,
        policy: Policy[Any] | None = None,
        max_epochs: int | None = None,
        min_epochs: int = 0,
        start: Sequence[Mapping[str, Any]] = (),
        constraints: Sequence[Constraint] = (),
        learn_from: Sequence[Earlier] = (),
        checkpoints: StrPath | Checkpoints | None = None,
        keep_checkpoints: int = 1,
        disk_quota: float | str | None = None,
        lease: float = 600.0,
        patience: float = 600.0,
        verbose: int = 1,
        monotonic: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        seed, verbose, keep_checkpoints = map(python_number, (seed, verbose, keep_checkpoints))
        max_failures, max_retries = map(python_number, (max_failures, max_retries))
        check_counts(seed=seed, max_failures=max_failures, max_retries=max_retries, verbose=verbose)
        self._speaks = verbose > 0
        if verbose:
            heard()  # what is guessed of the arguments is said, too
        self._asked, self.policy = problem_of(
            problem, goal, policy, max_epochs, min_epochs, start, constraints, verbose > 0
        )
        check_name(name)
        if learn_from != ():
            found = earlier_studies(learn_from, store, name)
            self.policy = taught(suited(self.policy, self._asked), found)
        self.policy = suited(self.policy, self._asked)
        self.name = name
        check_seconds(lease=lease)
        patience = number("patience", patience)
        if not patience >= 0.0:
            raise InvalidInput(f"patience={patience!r}: seconds, 0 or more, to wait for a store that is away")
        settings = Settings(
            self._asked, self.policy, store, name, budget_of(budget), max_failures, max_retries, checkpoints,
            keep_checkpoints, disk_quota, float(lease), patience, verbose,
        )  # fmt: skip
        kind = FollowerSession if follows() else LocalSession
        opens = partial(kind, seed=seed, monotonic=monotonic, sleep=sleep)
        self._session: Session | None = None
        self._in_one_epoch: Callable[[], Session] | None = None  # until it is known how long a training is
        if not isinstance(problem, Problem) and waits(self.policy, self._asked):
            self._in_one_epoch = partial(opens, replace(settings, problem=one_epoch(self._asked)))
        else:
            self._begin(opens(settings))

    def _begin(self, session: Session) -> None:
        self._session, self._in_one_epoch = session, None
        given, self.policy = self.policy, session.log.policy
        if follows():
            return
        if self.history.position == 1:
            for doubt in filter(None, map(wrong_way, self.problem.goals)) if self._speaks else ():
                warn(doubt, aloud=True)
            for said in self.policy.remarks(self.problem) if self._speaks else ():
                _log.info("%s", said)
        elif self.policy is not given and self._speaks:
            _log.info("what %r has from earlier studies it was told when it was made", self.name)

    @property
    def problem(self) -> Problem:
        """What is searched, in the space that the log says."""
        return self._asked if self._session is None else self._log.problem

    @property
    def session(self) -> Session:
        """What this process does for the study. Raises InvalidInput while nobody has said how long a training is."""
        if self._session is None:
            raise InvalidInput(
                "how many epochs has a full training? Study(space, 'val_acc', max_epochs=30); for a function that "
                "returns one value study.optimize(train), or max_epochs=1"
            )
        return self._session

    def __repr__(self) -> str:
        if self._session is None:
            return f"Study({self.name!r}, not begun: it lacks max_epochs)"
        return f"Study({self.name!r}, {plural(len(self.history), 'trial')}, {self.store.url})"

    def _repr_html_(self) -> str:
        return preformatted(repr(self)) if self._session is None else super()._repr_html_()

    @property
    def _log(self) -> Log:
        return self.session.log

    @property
    def budget(self) -> Budget:
        """When the search ends at the latest; another takes effect at the next ask."""
        return self.session.budget

    @budget.setter
    def budget(self, budget: Budget | str | None) -> None:
        self.session.budget = budget_of(budget)

    @property
    def settings(self) -> Settings:
        """What opens this study again in another process: Study(**vars(study.settings))."""
        return self.session.settings
