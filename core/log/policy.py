"""Interface between a study and its policy, and the fold of a log into a policy's state.

The laws, which `tests/laws` checks for every policy:

1. The same log prefix and seed give the same move and the same verdict, in any process.
2. `propose` and `judge` change nothing; `fold` changes only the state. Only a study appends.
3. If the process is killed after any append and started again, the search continues to the same end.
4. A report and its verdict are one atomic append.
5. After a policy's `Finish`, `ask` always returns `Finish` with the same reason.
6. The history contains pending trials of other workers; a policy takes them into account or waits.
7. A budget is checked at `propose` and at `judge`.
8. NaN and infinity are stored, but never promoted, never an incumbent, never in a Cholesky factor.
9. Equal bounds, a single trial, one epoch, a constant metric and a duplicate all work.
10. No trial is stopped, paused or compared before the problem's min_epochs.
11. A trial whose training ends by itself is complete: it counts as if it had continued to the end of a full training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import wraps
from itertools import takewhile
from typing import Any, Generic, TypeVar

from numpy.random import Generator

from haltune._utils.checks import check_kinds, pythonic
from haltune.display import one_line
from haltune.errors import HaltuneError, InvalidInput, StoreError
from haltune.hints import KnowsArguments

from .decisions import Move, Verdict, continue_
from .events import ADVICE, OVER, Created, Ended, Event, Expired, JudgedEvery, Status, Widened
from .history import History
from .points import in_points
from .problem import Grid, Problem
from .records import TrialRecord

S = TypeVar("S")
T = TypeVar("T")


class Policy(KnowsArguments, ABC, Generic[S]):
    """Base class of policies. Its state is a pure fold over the log; its decisions are pure functions of that state.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import Start
        >>> from haltune.policies import Policy
        >>> class Coin(Policy[int]):  # its state: how many trials were started
        ...     def start(self, problem):
        ...         return 0
        ...     def fold(self, state, event):
        ...         return state + (event.kind == "started")
        ...     def propose(self, state, history, rng):
        ...         return Start({"lr": float(rng.choice([0.1, 1.0]))}, reason=f"toss {state + 1}")
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, Coin(), seed=0, budget=Budget(trials=1))
        >>> study.ask().config["lr"] in (0.1, 1.0)
        True
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls).get("__post_init__")
        if own is not None and cls.__module__.startswith("haltune."):  # users' policies check themselves

            @wraps(own)
            def checked(self: Any) -> None:
                pythonic(self)
                _check_wraps(self)
                try:
                    own(self)
                except (TypeError, ValueError, AttributeError) as error:
                    if not isinstance(error, HaltuneError):
                        check_kinds(self, cls)  # the error names an option that is not a number
                    raise
                check_kinds(self, cls)

            cls.__post_init__ = checked  # type: ignore[attr-defined]

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy: {"policy": class name, option: value, ...}; options are a dataclass's fields.

        A policy inside is its own spec. A function is its name; you must supply it again.
        """
        options: list[str] = [f.name for f in fields(self) if f.init] if is_dataclass(self) else []
        return {"policy": type(self).__name__, **{name: _recorded(getattr(self, name)) for name in options}}

    def completed(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return a recorded spec with the defaults of the options that are newer than it."""
        if spec.get("policy") != type(self).__name__ or not is_dataclass(self):
            return dict(spec)
        newer = {name: value for name, value in defaults(self).items() if name not in spec}
        found = {name: v for name, v in replace(self, **newer).spec.items() if name not in spec} | dict(spec)
        for name, part in ((f.name, getattr(self, f.name)) for f in fields(self)):
            recorded = found.get(place := "inner" if name == "policy" else name)
            if isinstance(part, Policy) and isinstance(recorded, Mapping):
                found[place] = part.completed(recorded)
        return found

    @abstractmethod
    def start(self, problem: Problem) -> S:
        """Return the state before any event. Raises InvalidInput if the problem does not suit the policy."""

    @abstractmethod
    def fold(self, state: S, event: Event) -> S:
        """Return the state after `event`: `state` changed in place, or a new one. O(1) or O(n) per event."""

    @abstractmethod
    def propose(self, state: S, history: History, rng: Generator) -> Move:
        """Return the next move for a free worker: Start, Resume, Wait or Finish.

        Args:
            state: The fold of the log.
            history: The same log as trials, including those that other workers are training.
            rng: The only randomness; it is the same in a replay.
        """

    def judge(self, state: S, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """Return whether `trial` continues after its last report.

        Called only before the end of a full training, at points, which the policy counts as epochs 1, 2, ...

        Args:
            state: The state before that report.
            history: The trials before that report.
            trial: The trial; its last entry is the report.
            rng: As for `propose`.
        """
        return continue_(f"{type(self).__name__} trains every configuration in full")

    def alive(self, state: S) -> frozenset[int] | None:
        """Return the paused trials that may still resume; None: all. Other checkpoints are deleted."""
        return None

    def with_prior_studies(self, studies: Sequence[Any]) -> Policy[S] | None:
        """Return the same policy with prior studies; None if it does not use any."""
        return None

    def as_recorded(self, spec: Mapping[str, Any]) -> Policy[S]:
        """Return the policy with the options that the log fixes, which a reopened study cannot change."""
        return self

    def remarks(self, problem: Problem) -> list[str]:
        """Return the messages to log when a study is created."""
        return []

    @property
    def endless(self) -> bool:
        """True if the policy never returns Finish, so that the study needs a budget."""
        return True

    @property
    def predicts(self) -> bool | None:
        """True if a model of the values chooses new configurations; None: `study.outlook` was not measured for it."""
        return None

    @property
    def plans(self) -> bool:
        """True if it plans by the budget. Then the study records each new budget, as `history.budget`."""
        return False

    @property
    def retrains(self) -> bool:
        """True if a promoted trial trains again as a new trial, with the tag `of`, even after no trial may start."""
        return False

    @property
    def gives_up_pauses(self) -> bool:
        """True if late trials stop instead of pausing, after a pause was not saved."""
        return False

    @property
    def several_goals(self) -> bool:
        """True if it can search for several goals: each decision uses another scalarization of the whole log.

        False if its state keeps the values of earlier decisions.
        """
        return True

    def part(self, kind: type[T]) -> T | None:
        """Return the part of this class that makes decisions: the policy itself or its stopping rule; None: no part."""
        return self if isinstance(self, kind) else None


def _of_inner(name: str) -> Any:
    return property(lambda wrapper: getattr(wrapper.policy, name))


class Wrapper(Policy[Any]):
    """A policy around another policy, which makes all decisions that this one does not change."""

    policy: Policy[Any]  # the one inside

    def inside(self, state: Any) -> Any:
        return state

    @property
    def spec(self) -> dict[str, Any]:
        return self.policy.spec

    def completed(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        return super().completed(spec) if is_dataclass(self) else self.policy.completed(spec)

    def with_prior_studies(self, studies: Sequence[Any]) -> Policy[Any] | None:
        wrapped = self.policy.with_prior_studies(studies)
        return None if wrapped is None else self._around(wrapped)

    def as_recorded(self, spec: Mapping[str, Any]) -> Policy[Any]:
        return self._around(self.policy.as_recorded(spec.get("inner", spec)))

    def remarks(self, problem: Problem) -> list[str]:
        return self.policy.remarks(problem)

    def _around(self, policy: Policy[Any]) -> Policy[Any]:
        if policy is self.policy:
            return self
        found = copy(self)
        object.__setattr__(found, "policy", policy)
        return found

    def start(self, problem: Problem) -> Any:
        return self.policy.start(problem)

    def fold(self, state: Any, event: Event) -> Any:
        return self.policy.fold(state, event)

    def propose(self, state: Any, history: History, rng: Generator) -> Move:
        return self.policy.propose(self.inside(state), history, rng)

    def judge(self, state: Any, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        return self.policy.judge(self.inside(state), history, trial, rng)

    def alive(self, state: Any) -> frozenset[int] | None:
        return self.policy.alive(self.inside(state))

    endless, plans, retrains, predicts = map(_of_inner, ("endless", "plans", "retrains", "predicts"))
    gives_up_pauses, several_goals = _of_inner("gives_up_pauses"), _of_inner("several_goals")

    def part(self, kind: type[T]) -> T | None:
        own = super().part(kind)
        return self.policy.part(kind) if own is None else own


def _check_wraps(policy: Policy[Any]) -> None:
    """Raise InvalidInput for a policy as an option that takes none."""
    if isinstance(policy, Wrapper) or not is_dataclass(policy):
        return
    options = [f for f in fields(policy) if f.init]
    takes = [f.name for f in options if "Policy" in str(f.type)]
    for inner in (getattr(policy, f.name, None) for f in options if f.name not in takes):
        if isinstance(inner, Policy):
            own, other = type(policy).__name__, f"{type(inner).__name__}(...)"
            ways = [f"{own}({name}={other})" for name in takes] + [f"Halting({other}), which stops its trials early"]
            raise InvalidInput(
                f"{own}({other}): {own} chooses configurations itself. Pass one of the two policies to the study, or "
                f"write {' or '.join(ways)}."
            )


def check_policy(allowed: str, policy: Any) -> Policy[Any]:
    """Return the policy. Raises InvalidInput, which starts with `allowed`, if it is not a policy."""
    if isinstance(policy, Policy):
        return policy
    hint = ". Your own policy must derive from haltune.policies.Policy"
    if isinstance(policy, type):
        hint = f". Use {policy.__name__}()"
    raise InvalidInput(f"{allowed}; got {policy!r}{hint}")


# -- in words and in JSON --------------------------------------------------------------------------


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function in JSON. The user must supply the function again under this name."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def defaults(kind: Any) -> dict[str, Any]:
    """Return the options of a dataclass that have a default, and their defaults."""
    made = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(kind) if f.init}
    return {name: value for name, value in made.items() if value is not MISSING}


def _recorded(value: Any) -> Any:
    if isinstance(value, Policy):
        return value.spec
    return {"function": name_of(value)} if callable(value) else value


def called(policy: Policy[Any]) -> str:
    """Return the policy's class name; for a wrapper without options, the inner policy's."""
    while isinstance(policy, Wrapper) and not is_dataclass(policy) and isinstance(policy.policy, Policy):
        policy = policy.policy
    return type(policy).__name__


def in_words(value: Any) -> str:
    """Return a policy as a user writes it, without default options; functions by their names."""
    if isinstance(value, type) or not is_dataclass(value):
        if isinstance(value, Wrapper):
            return in_words(value.policy)
        if isinstance(value, Policy) and type(value).__repr__ is object.__repr__:
            return f"{type(value).__name__}()"
        return name_of(value) if callable(value) else repr(value)
    made: Any = type(value)
    given = [f for f in fields(value) if f.init]
    options = {f.name: v for f in given if repr(v := getattr(value, f.name)) != repr(f.default)}
    for name in list(options):
        rest = {k: v for k, v in options.items() if k != name}
        with suppress(Exception):  # this option has no default
            options = rest if made(**rest) == value else options
    leading = list(takewhile(lambda name: is_dataclass(options.get(name)), (f.name for f in given)))
    parts = [("" if name in leading else f"{name}=") + in_words(v) for name, v in options.items()]
    return f"{made.__name__}({', '.join(parts)})"


# -- the fold --------------------------------------------------------------------------------------

FinishedTrials = tuple[int, ...]  # ids of ended trials, in log order


def fold_finished(finished: FinishedTrials, event: Event) -> FinishedTrials:
    trained = isinstance(event, Ended) and event.status in (Status.COMPLETED, Status.STOPPED)
    return (*finished, event.trial) if trained else finished  # type: ignore[attr-defined]


def fold_over(finished: FinishedTrials, event: Event) -> FinishedTrials:
    """Append the trial of an event that ends it, also if it failed or was lost too often."""
    over = isinstance(event, Ended | Expired) and event.status in OVER
    return (*finished, event.trial) if over else finished  # type: ignore[attr-defined]


class OverTrials(Policy[FinishedTrials]):
    """A policy whose state is the trials that are over."""

    def fold(self, state: FinishedTrials, event: Event) -> FinishedTrials:
        return fold_over(state, event)


class Fold:
    """A history and a policy's state, updated event by event.

    A policy has one space and one distance between judged points. If the log widens the space or sets the distance, the
    policy folds all earlier events again, from a start in the new problem. Decisions stay as recorded, and the state is
    as if the problem had always been the new one.

    history: in the study's unit. judged: in points (see haltune.log.points); usually the same object.
    whose: the study's name in errors. before: returns the events up to a position; without it they are kept.
    """

    def __init__(
        self,
        problem: Problem,
        policy: Policy[Any],
        whose: str = "the study",
        before: Callable[[int], Iterable[Event]] | None = None,
    ) -> None:
        self.policy = policy
        self.history = History(problem)
        self.history.whose = whose
        self.state, self.judged = self._start(problem, self.history)
        self.last: Event | None = None  # the last folded event
        self.torn = False  # True after an exception in the middle of an event
        self._kept: list[Event] | None = [] if before is None else None
        self._before = before or (lambda _: self._kept or ())

    def _start(self, problem: Problem, history: History) -> tuple[Any, History]:
        posed = problem.in_points()
        judged = history
        if posed is not problem:  # SeveralGoals folds a log that is in points already
            judged = History(posed)
            judged.whose, judged.locate = history.whose, history.locate
        return self.policy.start(posed), judged

    def _grid(self, judged: History) -> Grid | None:
        """Return how to convert events to points; None if they need no conversion."""
        return None if judged is self.history else judged.problem.grid

    def take(self, event: Event, checked: bool = False) -> None:
        """Fold the next event. Raises StoreError if it cannot follow, and the policy's own errors. checked: it can."""
        if not checked:
            self.history.check(event)  # a policy allocates memory up to the trial's number
        try:
            if isinstance(event, Created | Widened | JudgedEvery):
                problem = self.history.problem_from(event)
                if problem is not self.history.problem:
                    self.state, self.judged = self.under(problem)
            grid = self._grid(self.judged)
            counted = event if grid is None else in_points(event, grid, self.history, self.judged)
            state = self.policy.fold(self.state, counted)
            self.torn = True
            self.history.apply(event, checked=True)
            if grid is not None:
                self.judged.apply(counted)
        except BaseException:
            self.torn = True  # the policy's state may be half changed
            raise
        self.state = state
        self.last = event
        if self._kept is not None:
            self._kept.append(event)
        self.torn = False

    def under(self, problem: Problem) -> tuple[Any, History]:
        """Return the policy's state and history as if this had been the problem from the start."""
        state, judged = self._start(problem, self.history)
        grid, history = self._grid(judged), History(problem)
        for event in self._before(self.history.position):
            counted = event if grid is None else in_points(event, grid, history, judged)
            state = self.policy.fold(state, counted)
            if grid is not None:
                history.apply(event)
                judged.apply(counted)
        return state, judged

    def read(self, events: Iterable[Event]) -> None:
        """Fold the events of a store. Raises StoreError with the position of an event that cannot be folded."""
        for event in events:
            try:
                self.take(event)
            except HaltuneError:
                raise
            except Exception as error:
                self.history.check(event)  # report a damaged log first
                raise StoreError(
                    f"event {self.history.position} of {self.history.whose}: {type(self.policy).__name__} cannot fold "
                    f"it, {one_line(error)}. Unless this is a bug in the policy: {ADVICE}"
                ) from error
