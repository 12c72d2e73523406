"""The contract between a study and the policy that decides for it, and the fold of a log into a policy's state.

The laws, which `tests/laws` runs over every policy:

1. The same log prefix and seed give the same move and the same verdict, in any process.
2. `propose` and `judge` change nothing; `fold` changes the state alone. Only a study appends.
3. Kill the process after any append and reopen: the search goes on to the same end.
4. A report and its verdict are one atomic append.
5. After a policy's `Finish`, `ask` keeps answering `Finish`, with the same reason.
6. Pending trials of other workers are in the history; a policy takes them into account or waits.
7. A budget is checked at `propose` and at `judge`.
8. NaN and infinity are stored, never promoted, never an incumbent, never in a Cholesky factor.
9. Coinciding bounds, a single trial, one epoch, a constant metric, a duplicate: each works.
10. No trial is stopped or paused before the problem's min_epochs, and none is compared before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass
from functools import wraps
from itertools import takewhile
from typing import Any, Generic, TypeVar

from numpy.random import Generator

from haltune._utils.checks import check_kinds, pythonic
from haltune.display import one_line
from haltune.errors import HaltuneError, InvalidInput, StoreError
from haltune.hints import KnowsArguments

from .decisions import Move, Verdict, go_on
from .events import ADVICE, OVER, Created, Ended, Event, Expired, JudgedEvery, Started, Status, Widened
from .history import History
from .points import in_points
from .problem import Problem
from .records import TrialRecord

S = TypeVar("S")
T = TypeVar("T")


class Policy(KnowsArguments, ABC, Generic[S]):
    """Decides. Its state is a pure fold over the log; its questions are pure functions of that state.

    Every policy derives from this class and has its defaults from here.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Start, Study
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
        if own is not None and cls.__module__.startswith("haltune."):  # users' policies check their own

            @wraps(own)
            def checked(self: Any) -> None:
                pythonic(self)
                _check_wraps(self)
                try:
                    own(self)
                except (TypeError, ValueError, AttributeError) as error:
                    if not isinstance(error, HaltuneError):
                        check_kinds(self, cls)  # says which option is no number
                    raise
                check_kinds(self, cls)

            cls.__post_init__ = checked  # type: ignore[attr-defined]

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy: {"policy": class name, option: value, ...}, of a dataclass its fields.

        A policy inside stands as its own spec, a function as its name: it must be supplied again.
        """
        options: list[str] = [f.name for f in fields(self) if f.init] if is_dataclass(self) else []
        return {"policy": type(self).__name__, **{name: _recorded(getattr(self, name)) for name in options}}

    @abstractmethod
    def start(self, problem: Problem) -> S:
        """The state before any event. Raises InvalidInput when the problem does not suit the policy."""

    @abstractmethod
    def fold(self, state: S, event: Event) -> S:
        """Return the state after `event`: `state` itself, changed in place, or a new one. O(1) or O(n) an event."""

    @abstractmethod
    def propose(self, state: S, history: History, rng: Generator) -> Move:
        """Return the next move of a free worker: Start, Resume, Wait or Finish.

        Args:
            state: The fold of the log.
            history: The same log as trials, those included that other workers train now.
            rng: All randomness: it is the same when the search is replayed.
        """

    def judge(self, state: S, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """Return whether `trial` continues, after the report that ends its arrays.

        Asked before the end of a full training only, at points, which the policy counts as epochs 1, 2, ...

        Args:
            state: As of before that report, and so is `history`.
            history: The trials.
            trial: Its last entry is the report.
            rng: As in `propose`.
        """
        return go_on(f"{type(self).__name__} trains every configuration in full")

    def alive(self, state: S) -> frozenset[int] | None:
        """The paused trials that it may still resume, None for all: the checkpoints of the others are deleted."""
        return None

    def taught_by(self, studies: Sequence[Any]) -> Policy[S] | None:
        """The same policy with prior studies; None if it does not use any."""
        return None

    def as_recorded(self, spec: Mapping[str, Any]) -> Policy[S]:
        """The same policy with the options that a study's log fixes, whatever is given when it is reopened."""
        return self

    def remarks(self, problem: Problem) -> list[str]:
        """Return the messages to log when a study is created."""
        return []

    @property
    def endless(self) -> bool:
        """True when the policy never answers Finish, so that the study needs a budget."""
        return True

    @property
    def predicts(self) -> bool | None:
        """Whether a model of the values chooses new configurations; None: `study.outlook` was not measured for it."""
        return None

    @property
    def plans(self) -> bool:
        """True when it plans by the budget: the study records it, and again when it changes, as `history.budget`."""
        return False

    @property
    def retrains(self) -> bool:
        """True when a promoted trial trains again as a new one, tagged `of` the old; also once no trial may start."""
        return False

    @property
    def gives_up_pauses(self) -> bool:
        """True when it stops trials for good instead of pausing them, once a pause could not be saved."""
        return False

    @property
    def several_goals(self) -> bool:
        """True when it can search for several goals: each answer is by another scalarization of the whole log.

        False if it remembers, from one answer to the next, the values that it gave it by.
        """
        return True

    def part(self, kind: type[T]) -> T | None:
        """The part of this kind by which it decides: itself, or its rule of stopping; None: there is none."""
        return self if isinstance(self, kind) else None


def _of_inner(name: str) -> Any:
    return property(lambda wrapper: getattr(wrapper.policy, name))


class Wrapper(Policy[Any]):
    """A policy around a policy: all that it does not change is that policy's."""

    policy: Policy[Any]  # the one inside

    def inside(self, state: Any) -> Any:
        """The inner policy's state within this one's."""
        return state

    @property
    def spec(self) -> dict[str, Any]:
        """As the inner policy's, for a wrapper without options of its own."""
        return self.policy.spec

    def taught_by(self, studies: Sequence[Any]) -> Policy[Any] | None:
        """Around the inner policy that has learnt."""
        taught = self.policy.taught_by(studies)
        return None if taught is None else self._around(taught)

    def as_recorded(self, spec: Mapping[str, Any]) -> Policy[Any]:
        """Around the inner policy as recorded."""
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
        """Its own, or the inner policy's."""
        own = super().part(kind)
        return self.policy.part(kind) if own is None else own


def _check_wraps(policy: Policy[Any]) -> None:
    """Raises InvalidInput for a policy as an option that takes none."""
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
    """The policy. Raises InvalidInput for what is none, in the words of what is `allowed`."""
    if isinstance(policy, Policy):
        return policy
    hint = "; one of your own derives from haltune.policies.Policy"
    if isinstance(policy, type):
        hint = f"; write {policy.__name__}()"
    raise InvalidInput(f"{allowed}, not {policy!r}{hint}")


# -- in words and in JSON --------------------------------------------------------------------------


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function in JSON: it must be supplied again under this name."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _recorded(value: Any) -> Any:
    if isinstance(value, Policy):
        return value.spec
    return {"function": name_of(value)} if callable(value) else value


def called(policy: Policy[Any]) -> str:
    """The name of its class; of a wrapper without options of its own the one inside."""
    while isinstance(policy, Wrapper) and not is_dataclass(policy) and isinstance(policy.policy, Policy):
        policy = policy.policy
    return type(policy).__name__


def in_words(value: Any) -> str:
    """A policy as a user writes it, without options that are the defaults; functions by their names."""
    if isinstance(value, type) or not is_dataclass(value):
        if isinstance(value, Wrapper):
            return in_words(value.policy)
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

FinishedTrials = tuple[int, ...]  # ids of the trials that ended with something learnt, in log order


def fold_finished(finished: FinishedTrials, event: Event) -> FinishedTrials:
    """Append the trial of an `Ended` event that completed or was stopped."""
    trained = isinstance(event, Ended) and event.status in (Status.COMPLETED, Status.STOPPED)
    return (*finished, event.trial) if trained else finished  # type: ignore[attr-defined]


def fold_over(finished: FinishedTrials, event: Event) -> FinishedTrials:
    """Append the trial of an event after which it is over, one that failed or was lost too often among them."""
    over = isinstance(event, Ended | Expired) and event.status in OVER
    return (*finished, event.trial) if over else finished  # type: ignore[attr-defined]


class Fold:
    """A history and a policy's state, which take up one event after the other.

    A policy knows one space from its start on, and one distance of the points at which it judges. So if the log widens
    the space, or says that distance, the policy takes up again all that came before, from a start in the new problem:
    the decisions are recorded, and its state is as if it had always been so.

    history: in the study's unit. judged: as the policy counts (see haltune.log.points); mostly the same object.
    whose: the study, in words, for errors. before: the events up to a position; without it they are kept.
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
        self.last: Event | None = None  # that was taken up
        self.torn = False  # an exception came while one was taken up
        self._kept: list[Event] | None = [] if before is None else None
        self._before = before or (lambda _: self._kept or ())

    def _start(self, problem: Problem, history: History) -> tuple[Any, History]:
        posed = problem.in_points()
        judged = history
        if posed.grid is not None:
            judged = History(posed)
            judged.whose, judged.locate = history.whose, history.locate
        return self.policy.start(posed), judged

    def take(self, event: Event) -> None:
        """Take up the next event. Raises StoreError for one that cannot follow, and what the policy raises."""
        grid = self.judged.problem.grid
        if isinstance(event, Started) or grid is not None:
            self.history.check(event)  # a policy makes room up to the trial's number
        try:
            if isinstance(event, Created | Widened | JudgedEvery):
                problem = self.history.problem_from(event)
                if problem is not self.history.problem:
                    self.state, self.judged = self.under(problem)
                    grid = self.judged.problem.grid
            counted = event if grid is None else in_points(event, grid, self.history, self.judged)
            state = self.policy.fold(self.state, counted)
            self.torn = True
            self.history.apply(event)
            if grid is not None:
                self.judged.apply(counted)
        except BaseException:
            self.torn = True  # the policy's state may have changed
            raise
        self.state = state
        self.last = event
        if self._kept is not None:
            self._kept.append(event)
        self.torn = False

    def under(self, problem: Problem) -> tuple[Any, History]:
        """The policy's state and the history that it sees, had the problem been this one from the start."""
        state, judged = self._start(problem, self.history)
        grid, history = judged.problem.grid, History(problem)
        for event in self._before(self.history.position):
            counted = event if grid is None else in_points(event, grid, history, judged)
            state = self.policy.fold(state, counted)
            if grid is not None:
                history.apply(event)
                judged.apply(counted)
        return state, judged

    def read(self, events: Iterable[Event]) -> None:
        """Take up what a store has. Raises StoreError that names the event which cannot be taken up."""
        for event in events:
            try:
                self.take(event)
            except HaltuneError:
                raise
            except Exception as error:
                self.history.check(event)  # a damaged log comes first
                raise StoreError(
                    f"event {self.history.position} of {self.history.whose}: {type(self.policy).__name__} cannot fold "
                    f"it, {one_line(error)}. Unless that is a mistake of the policy's: {ADVICE}"
                ) from error
