"""What the policies of brackets share: options, the problem's horizon, and who answers their questions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

from numpy.random import Generator

from haltune._utils.memo import Memo
from haltune.errors import InvalidInput
from haltune.log.decisions import Move, Verdict
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord

from .asynchronous import Climber
from .brackets import exact
from .climb import Climb
from .plan import Plan
from .sampler import Design, Sampler
from .synchronous import Halver, Halves

Async = bool | Literal["promote", "stop"]


class Scheduler(Protocol):
    """Who folds and answers, by a plan: its state is Halves or a Climb."""

    def fold(self, state: Any, event: Event) -> Any: ...
    def propose(self, state: Any, history: History) -> Move: ...
    def judge(self, state: Any, history: History, trial: TrialRecord) -> Verdict: ...
    def alive(self, state: Any) -> frozenset[int] | None: ...


@dataclass(frozen=True, kw_only=True)
class Bracketed(Policy[Any]):
    """A policy of brackets; each says in `_brackets` which there are."""

    resource: str = "epochs"
    resume: bool = True
    sampler: Design | Policy[Any] = "random"
    asynchronous: Async = False
    plans = True  # by the budget: rounds, and what may begin
    _schedulers: Memo[Scheduler] = field(
        default_factory=lambda: Memo(4), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.resource, str) or not self.resource:
            raise InvalidInput(
                f"{name}(resource={self.resource!r}): 'epochs', 'seconds', or a name of your own such as 'samples', "
                "which your training reads from trial.resource"
            )
        if self.asynchronous not in (False, True, "promote", "stop"):
            raise InvalidInput(
                f"{name}(asynchronous={self.asynchronous!r}): True, False, 'promote' or 'stop'"
            )
        if self.asynchronous and not (self.resume and self.resource in ("epochs", "seconds")):
            raise InvalidInput(
                f"{name}(asynchronous=...) continues with trials: it needs epochs or seconds, and resume"
            )
        if not isinstance(self.resume, bool):
            raise InvalidInput(f"{name}(resume={self.resume!r}): True, or False to train winners anew")
        object.__setattr__(self, "sampler", Sampler(self.sampler).source)

    @property
    def several_goals(self) -> bool:
        """See Policy: a rung that is compared when it is complete sends on as many as it was planned to, once."""
        return bool(self.asynchronous)

    def start(self, problem: Problem) -> Any:
        """No bracket yet. Raises InvalidInput when the problem's epochs do not suit the schedule."""
        begin = Climb if self.asynchronous else Halves
        state = begin(problem.goal.sign, problem.goal.of == "best", problem.max_epochs, problem.min_epochs)
        self._scheduler(state)
        Sampler(self.sampler).check(problem)
        return state

    def fold(self, state: Any, event: Event) -> Any:
        """The brackets after `event`."""
        return self._scheduler(state).fold(state, event)

    def propose(self, state: Any, history: History, rng: Generator) -> Move:
        """A winner, a new configuration, the next bracket, or a wait; Finish after the last bracket."""
        return self._scheduler(state).propose(state, history)

    def judge(self, state: Any, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """On to the rung; there PAUSE until it is complete; then on as a winner, or STOP."""
        return self._scheduler(state).judge(state, history, trial)

    def alive(self, state: Any) -> frozenset[int] | None:
        """The paused trials that may still go on; None: all of them."""
        return self._scheduler(state).alive(state)

    @property
    def retrains(self) -> bool:
        """True when winners train again from the beginning, as trials of their own."""
        return not self.asynchronous and not (self.resume and self.resource in ("epochs", "seconds"))

    def _plan(self, horizon: int | None) -> Plan:
        """The brackets of a problem with so many epochs."""
        raise NotImplementedError

    def _from(self, min_epochs: int) -> Bracketed:
        """Return the same policy, with no rung below so many epochs."""
        if self.resource != "epochs" or self.min_resource >= min_epochs:
            return self
        largest = getattr(self, "max_resource", None)
        if largest is not None and largest < min_epochs:
            raise InvalidInput(
                f"{type(self).__name__}(max_resource={largest:g}) trains fewer epochs than the study's "
                f"min_epochs={min_epochs}. Raise max_resource, or lower min_epochs."
            )
        return replace(self, min_resource=min_epochs)  # type: ignore[call-arg]

    def _largest(self, horizon: int | None, given: float | None) -> float:
        """The largest resource of a trial: as given, else the problem's epochs."""
        if self.resource != "epochs":
            if given is None:
                raise InvalidInput(
                    f"{type(self).__name__}(resource={self.resource!r}) needs max_resource, in {self.resource}"
                )
            return given
        if given is None and horizon is None:
            raise InvalidInput(f"{type(self).__name__} needs max_resource, or a problem with max_epochs")
        if given is not None and horizon is not None and given > horizon:
            raise InvalidInput(
                f"max_resource={given:g} is beyond the problem's max_epochs={horizon}: lower it to {horizon}"
            )
        return float(horizon if given is None else given)  # type: ignore[arg-type]

    @property
    def eta(self) -> float:
        """A rung keeps the best 1 / eta: an option of each."""
        raise NotImplementedError

    @property
    def min_resource(self) -> float:
        """The smallest resource at which trials are compared: an option of each."""
        raise NotImplementedError

    @property
    def _ends(self) -> bool:
        """True when the last rung of every bracket is a full training."""
        return True

    @property
    def _whole(self) -> bool:
        """True when resources are counted in whole units."""
        return self.resource != "seconds"

    def _scheduler(self, state: Climb | Halves) -> Scheduler:
        """Return what folds and answers for problems with these epochs."""
        key = (state.horizon, state.min_epochs)
        return self._schedulers(key, partial(self._scheduled, *key))

    def _scheduled(self, horizon: int | None, min_epochs: int) -> Scheduler:
        plan, sampler = self._from(min_epochs)._plan(horizon), Sampler(self.sampler)
        if not self.asynchronous:
            return Halver(plan, sampler, self.resource, self.resume, self._ends)
        stops = self.asynchronous == "stop"
        return Climber(plan, sampler, self.resource, exact(self.eta), stops, ends=self._ends)


def check_rounds(name: str, rounds: int | None) -> None:
    """Raises InvalidInput for what is no number of rounds."""
    if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1):
        raise InvalidInput(f"{name}(rounds={rounds!r}): at least 1, or None to repeat until the budget ends")
