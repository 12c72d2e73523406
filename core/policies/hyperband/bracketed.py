"""What the policies of brackets share: options, the problem's horizon, and who answers their questions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from numpy.random import Generator

from haltune.errors import InvalidInput
from haltune.log.decisions import Move, Verdict
from haltune.log.events import Event
from haltune.log.history import History, TrialRecord
from haltune.log.policy import Policy
from haltune.log.problem import Problem

from .asynchronous import Climber
from .brackets import exact
from .climb import Climb
from .plan import Plan
from .sampler import Design, Sampler
from .synchronous import Halver, Halves

Async = bool | Literal["promote", "stop"]


@dataclass(frozen=True, kw_only=True)
class Bracketed(Policy[Any]):
    """A policy of brackets; each says in `_brackets` which there are."""

    resource: str = "epochs"
    resume: bool = True
    sampler: Design | Policy[Any] = "random"
    asynchronous: Async = False
    plans = True  # by the budget: rounds, and what may begin

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
                f"{name}(asynchronous=...) goes on with trials: it needs epochs or seconds, and resume"
            )
        if not isinstance(self.resume, bool):
            raise InvalidInput(f"{name}(resume={self.resume!r}): True, or False to train winners anew")
        Sampler(self.sampler)

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy."""
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return {"policy": type(self).__name__, **options, "sampler": Sampler(self.sampler).spec}

    def start(self, problem: Problem) -> Any:
        """No bracket yet. Raises InvalidInput when the problem's epochs do not suit the schedule."""
        return self._scheduler(problem)

    def fold(self, state: Any, event: Event) -> Any:
        """The brackets after `event`."""
        scheduler, brackets = state
        return scheduler, scheduler.fold(brackets, event)

    def propose(self, state: Any, history: History, rng: Generator) -> Move:
        """A winner, a new configuration, the next bracket, or a wait; Finish after the last bracket."""
        return state[0].propose(state[1], history)  # type: ignore[no-any-return]

    def judge(self, state: Any, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """On to the rung; there PAUSE until it is complete; then on as a winner, or STOP."""
        return state[0].judge(state[1], history, trial)  # type: ignore[no-any-return]

    def alive(self, state: Any) -> frozenset[int] | None:
        """The paused trials that may still go on; None: all of them."""
        return state[0].alive(state[1])  # type: ignore[no-any-return]

    @property
    def retrains(self) -> bool:
        """True when winners train again from the beginning, as trials of their own."""
        return not self.asynchronous and not (self.resume and self.resource in ("epochs", "seconds"))

    def _plan(self, problem: Problem) -> Plan:
        raise NotImplementedError

    def _horizon(self, problem: Problem, given: float | None) -> float:
        """The largest resource of a trial: as given, else the problem's epochs."""
        if self.resource != "epochs":
            if given is None:
                raise InvalidInput(
                    f"{type(self).__name__}(resource={self.resource!r}) needs max_resource, in {self.resource}"
                )
            return given
        horizon = problem.max_epochs
        if given is None and horizon is None:
            raise InvalidInput(f"{type(self).__name__} needs max_resource, or a problem with max_epochs")
        if given is not None and horizon is not None and given > horizon:
            raise InvalidInput(
                f"max_resource={given:g} is beyond the problem's max_epochs={horizon}: lower it to {horizon}"
            )
        return float(horizon if given is None else given)  # type: ignore[arg-type]

    @property
    def _ends(self) -> bool:
        """True when the last rung of every bracket is a full training."""
        return True

    @property
    def _whole(self) -> bool:
        """True when resources are counted in whole units."""
        return self.resource != "seconds"

    def _scheduler(self, problem: Problem) -> tuple[Any, Any]:
        plan, sampler = self._plan(problem), Sampler(self.sampler)
        sampler.check(problem)
        peaks = problem.goal.of == "best"
        if self.asynchronous:
            stops, eta = self.asynchronous == "stop", exact(getattr(self, "eta", 3))
            climber = Climber(plan, sampler, self.resource, eta, stops, ends=self._ends)
            return climber, Climb(problem.goal.sign, peaks)
        return Halver(plan, sampler, self.resource, self.resume, self._ends), Halves(problem.goal.sign, peaks)


def check_rounds(name: str, rounds: int | None) -> None:
    """Raises InvalidInput for what is no number of rounds."""
    if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1):
        raise InvalidInput(f"{name}(rounds={rounds!r}): at least 1, or None to repeat until the budget ends")
