"""Hyperband, successive halving and the ladder: many configurations train a little, the best of them further.

Hyperband (Li et al. 2018: algorithm 1, figures 9 and 10, sections 2.5, 2.6, 6.1 and 6.3) runs brackets that first
compare trials at different epochs. The reason: it is not known from which epoch their order predicts the final order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, ClassVar, Literal

from numpy.random import Generator

from haltune._utils.checks import check_whole
from haltune.errors import InvalidInput
from haltune.log.decisions import Move, Verdict
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord

from .brackets import Bracket, Number, Plan, Rung, Schedule, exact, growing, halving, hyperband, infinite
from .engine import Asynchronous, Halving, Promotion, Synchronous
from .sampler import Design, Sampler

FEWEST_COMPARED, MOST_COMPARED = 8, 40  # limits of the default min_trials_per_rung


class ByEngine(Policy[Halving]):
    """A policy whose state is an engine, made by `start`."""

    def fold(self, state: Halving, event: Event) -> Halving:
        state.take(event)
        return state

    def propose(self, state: Halving, history: History, rng: Generator) -> Move:
        return state.propose(history)

    def judge(self, state: Halving, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        return state.judge(history, trial)

    def alive(self, state: Halving) -> frozenset[int] | None:
        return state.alive()


@dataclass(frozen=True, kw_only=True)
class Bracketed(ByEngine):
    """A policy of brackets, with options eta and min_resource; subclasses list the brackets in `_plan`."""

    resource: str = "epochs"
    resume: bool = True
    sampler: Design | Policy[Any] = "random"
    asynchronous: bool | Literal["promote", "stop"] = False
    plans = True  # the budget limits rounds and new trials
    _ends: ClassVar[bool] = True  # the last rung of each bracket is a full training

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.resource, str) or not self.resource:
            raise InvalidInput(
                f"{name}(resource={self.resource!r}) is not a resource. Give 'epochs', 'seconds', or your own name "
                "such as 'samples', which your training reads from trial.resource."
            )
        if self.asynchronous not in (False, True, "promote", "stop"):
            raise InvalidInput(
                f"{name}(asynchronous={self.asynchronous!r}) is not allowed. Give True, False, 'promote' or 'stop'."
            )
        if self.asynchronous and not (self.resume and self.resource in ("epochs", "seconds")):
            raise InvalidInput(
                f"{name}(asynchronous=...) resumes trials, so it needs resource='epochs' or 'seconds', and resume=True."
            )
        if not isinstance(self.resume, bool):
            raise InvalidInput(
                f"{name}(resume={self.resume!r}) is not allowed. Give True, or False to train winners from the start."
            )
        Sampler(self.sampler)  # raises for another source

    @property
    def several_goals(self) -> bool:
        """See Policy. A synchronous rung promotes a planned number once, so it cannot follow several weights."""
        return bool(self.asynchronous)

    def start(self, problem: Problem) -> Halving:
        options: Any = self
        if self.resource == "epochs" and problem.grid is not None:
            given = {"min_resource": options.min_resource, "max_resource": getattr(self, "max_resource", None)}
            # the default min_resource, 1, is one judged report
            given = {name: problem.points(r) for name, r in given.items() if r not in (None, 1)}
            options = replace(options, **given)
        if self.resource == "epochs" and options.min_resource < problem.min_epochs:  # no rung is below min_epochs
            largest = getattr(options, "max_resource", None)
            if largest is not None and largest < problem.min_epochs:
                raise InvalidInput(
                    f"{type(self).__name__}(max_resource={largest:g}) trains less than the study's "
                    f"min_epochs, {problem.amount(problem.min_epochs)}. Raise max_resource, or lower min_epochs."
                )
            options = replace(options, min_resource=problem.min_epochs)
        plan, sampler = options._plan(problem.max_epochs), Sampler(self.sampler)
        if not self.asynchronous:
            return Synchronous(problem, plan, sampler, self.resource, self._ends, self.resume)
        promotion = Promotion(exact(options.eta), stops_from=0.0 if self.asynchronous == "stop" else math.inf)
        return Asynchronous(problem, plan, sampler, self.resource, promotion, self._ends)

    @property
    def retrains(self) -> bool:
        """True if winners train from the start, as new trials."""
        return not (self.resume and self.resource in ("epochs", "seconds"))

    def _plan(self, horizon: int | None) -> Plan:
        """Return the plan of brackets for a problem with this many epochs."""
        raise NotImplementedError

    def _largest(self, horizon: int | None, given: float | None) -> float:
        """Return the largest resource of a trial: as given, else the problem's epochs."""
        if self.resource != "epochs":
            if given is None:
                raise InvalidInput(
                    f"{type(self).__name__}(resource={self.resource!r}) needs max_resource, in {self.resource}. Set it."
                )
            return given
        if given is None:
            if horizon is None:
                raise InvalidInput(f"{type(self).__name__} needs max_resource. Set it, or give Problem max_epochs.")
            return float(horizon)
        if horizon is not None and given > horizon:
            raise InvalidInput(
                f"max_resource={given:g} is above the problem's max_epochs={horizon}. Lower it to {horizon}."
            )
        return float(given)

    @property
    def _whole(self) -> bool:
        return self.resource != "seconds"


def check_rounds(name: str, rounds: int | None) -> None:
    if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1):
        raise InvalidInput(
            f"{name}(rounds={rounds!r}) is not a number of rounds. Give 1 or more, or None to repeat until the budget "
            "ends."
        )


@dataclass(frozen=True)
class Hyperband(Bracketed):
    """Hyperband: brackets of successive halving, from the most exploratory to full training (Li et al. 2018).

    A trial that reaches its rung pauses until the rung is complete; the best 1 / eta continue from their checkpoints.
    Line 11 of algorithm 1 returns the best value of any trial at any rung; `study.best` is the best among fully trained
    trials. To count their best epochs, use Maximize("val_acc", of="best").

    Args:
        max_resource: R, the largest resource of one configuration, in units of `resource`. Default: None, the
            problem's max_epochs.
        eta: a rung keeps the best 1 / eta. Default: 3.
        min_resource: the unit in which R is counted (section 2.5). Default: 1.
        n_max: largest number of configurations in a bracket: s_max = floor(log_eta n_max) (section 2.5). Default:
            None, no limit.
        n_min: no brackets below s = floor(log_eta n_min) (section 2.6); the last may start with fewer than n_min.
            Default: None.
        schedule: "line2", algorithm 1 as printed; "table1", the sizes of the paper's table 1; "growing", figure 10:
            budgets of 2, 4, 8, ... units for each bracket, until the study's budget ends. Default: "line2".
        brackets: "all"; "most_exploratory", s_max alone (best for networks, by section 3.1); or a number s. Default:
            "all".
        rounds: how often all brackets run. Default: None, until the study's budget ends, and once without a budget.
        resource: "epochs", "seconds" of training, or your own name ("samples", "features"). Your training reads the
            amount from `trial.resource`; each rung then trains from the start, as a new trial. Default: "epochs".
        resume: False trains winners from the start, if your training cannot pause. Default: True.
        sampler: source of configurations: "random", "sobol", "lhs", or a policy such as GPUCB(), fitted at the highest
            rung with enough trials (section 6.3). Default: "random".
        asynchronous: True (or "promote") promotes a paused trial as soon as it is in the top 1 / eta of its rung (ASHA,
            Li et al. 2020). "stop" decides once at the rung, and trials never pause. Default: False, a rung is compared
            when it is complete.

    Raises:
        InvalidInput: for other values, and if the problem's epochs do not fit the schedule.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import Hyperband
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, Hyperband(), seed=0)
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        17
    """

    max_resource: float | None = None
    eta: float = 3
    min_resource: float = 1
    n_max: int | None = field(default=None, kw_only=True)
    n_min: int | None = field(default=None, kw_only=True)
    schedule: Literal["line2", "table1", "growing"] = field(default="line2", kw_only=True)
    brackets: Literal["all", "most_exploratory"] | int = field(default="all", kw_only=True)
    rounds: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule not in ("line2", "table1", "growing"):
            raise InvalidInput(
                f"Hyperband(schedule={self.schedule!r}) is not allowed. Give 'line2', 'table1' or 'growing'."
            )
        check_rounds("Hyperband", self.rounds)
        named = self.brackets in ("all", "most_exploratory")
        if not named and (isinstance(self.brackets, bool) or not isinstance(self.brackets, int)):
            raise InvalidInput(
                f"Hyperband(brackets={self.brackets!r}) is not allowed. Give 'all', 'most_exploratory', or a number s."
            )
        if self.schedule == "growing":
            fixed = {"n_max": None, "n_min": None, "brackets": "all"}
            given = [f"{n}={getattr(self, n)!r}" for n, usual in fixed.items() if getattr(self, n) != usual]
            if self.rounds is not None:
                given.append(f"rounds={self.rounds!r}")
            if given:
                raise InvalidInput(
                    f"Hyperband(schedule='growing') got {', '.join(given)}, but figure 10 sets its brackets itself, "
                    "without end. Leave these options out."
                )
        if self.max_resource is not None:
            self._chosen(self.max_resource)
        else:  # R is not known yet, so only the other numbers are checked
            self._made(10**9 * exact(self.min_resource, "min_resource"))

    @property
    def endless(self) -> bool:
        return self.schedule == "growing"

    def table(self, max_resource: float | None = None) -> Schedule:
        """Return one round of brackets: `.table()` formats it as table 1, `.total()` is the resource that it spends.

        If each rung trains from the start, use `.total(resume=False)`: with your own resource, such as samples.

        Args:
            max_resource: The resource of a full training, in the unit of `resource`. Default: the policy's own.

        Raises:
            InvalidInput: If neither gives max_resource, and for the schedule "growing", which has no end.
        Example:
            >>> Hyperband().table(max_resource=81).total()
            1581.0
        """
        R = self.max_resource if max_resource is None else max_resource
        if R is None:
            raise InvalidInput("This Hyperband takes max_resource from the problem. Give max_resource= to table().")
        if self.schedule == "growing":
            raise InvalidInput("schedule='growing' has no single round: its brackets grow without end.")
        return Schedule(self._chosen(R))

    def _made(self, R: Number) -> tuple[Bracket, ...]:
        sizes: Any = "line2" if self.schedule == "growing" else self.schedule
        return hyperband(
            R, self.eta, min_resource=self.min_resource, n_max=self.n_max, n_min=self.n_min, sizes=sizes,
            whole=self._whole,
        ).brackets  # fmt: skip

    def _chosen(self, R: float) -> tuple[Bracket, ...]:
        made = self._made(R)
        if self.brackets == "all":
            return made
        if self.brackets == "most_exploratory":
            return made[:1]
        chosen = tuple(b for b in made if b.s == self.brackets)
        if not chosen:
            there = ", ".join(str(b.s) for b in made)
            raise InvalidInput(
                f"Hyperband(brackets={self.brackets}) is not among the brackets s = {there}. Give one of these."
            )
        return chosen

    def _plan(self, horizon: int | None) -> Plan:
        R = self._largest(horizon, self.max_resource)
        if self.schedule == "growing":
            return Plan(growing(R, self.eta, min_resource=self.min_resource, whole=self._whole))
        return Plan.repeated(self._chosen(R), self.rounds)


@dataclass(frozen=True)
class SuccessiveHalving(Bracketed):
    """Successive halving: n configurations train a little; the best 1 / eta of each rung continue, the last to the end.

    Args:
        n: number of configurations in the first rung. Default: 27.
        min_resource: resource of the first rung, in units of `resource`. Default: 1.
        max_resource: resource of the last rung, in total. Default: None, the problem's max_epochs.
        eta: a rung keeps the best 1 / eta. Default: 3.
        rounds: how often the bracket runs. Default: None, until the study's budget ends, and once without a budget.
        resource: "epochs", "seconds" or your own name, as for Hyperband. Default: "epochs".
        resume: False trains winners from the start, if your training cannot pause. Default: True.
        sampler: "random", "sobol", "lhs", or a policy such as GPUCB(), as for Hyperband. Default: "random".
        asynchronous: True promotes trials as in ASHA, "stop" stops them at the rung, as for Hyperband. Default: False,
            a rung is compared when it is complete.

    Raises:
        InvalidInput: for other values, and if the problem's epochs do not fit the schedule.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import SuccessiveHalving
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, SuccessiveHalving(n=9), seed=0)
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        9
    """

    n: int = 27
    min_resource: float = 1
    max_resource: float | None = None
    eta: float = 3
    rounds: int | None = field(default=None, kw_only=True)

    endless = False  # without a budget it runs once

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rounds("SuccessiveHalving", self.rounds)
        R = 1000 * exact(self.min_resource, "min_resource") if self.max_resource is None else self.max_resource
        halving(self.n, self.min_resource, R, self.eta)

    def table(self, max_resource: float | None = None) -> Schedule:
        """Return the bracket: `.table()` formats it as table 1, `.total()` is the resource it spends; see Hyperband."""
        R = self.max_resource if max_resource is None else max_resource
        if R is None:
            raise InvalidInput(
                "This SuccessiveHalving takes max_resource from the problem. Give max_resource= to table()."
            )
        return Schedule((halving(self.n, self.min_resource, R, self.eta, whole=self._whole),))

    def _plan(self, horizon: int | None) -> Plan:
        return Plan.repeated(self.table(self._largest(horizon, self.max_resource)).brackets, self.rounds)


@dataclass(frozen=True)
class InfiniteHyperband(Bracketed):
    """Hyperband without a largest resource: budgets double, each with all numbers of configurations (figure 9).

    If the problem has max_epochs, trainings end there and count as trained in full. Runs until the study's budget ends.

    Args:
        eta: a rung keeps the best 1 / eta, a whole number. Default: 2.
        start_budget: budget of the first bracket, in units of min_resource. Default: 2, as printed (section 3.1: 2 R
            with eta = 4).
        min_resource: the unit in which resources are counted. Default: 1.
        resource: "epochs", "seconds" or your own name, as for Hyperband. Default: "epochs".
        resume: False trains winners from the start, if your training cannot pause. Default: True.
        sampler: "random", "sobol", "lhs", or a policy such as GPUCB(), as for Hyperband. Default: "random".
        asynchronous: True promotes trials as in ASHA, "stop" stops them at the rung, as for Hyperband. Default: False,
            a rung is compared when it is complete.

    Raises:
        InvalidInput: for other values.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import InfiniteHyperband
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, InfiniteHyperband(), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    eta: int = 2
    start_budget: float = 2
    min_resource: float = 1

    endless = True
    _ends = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start_budget", "min_resource"):
            if not exact(getattr(self, name), f"InfiniteHyperband: {name}") > 0:
                raise InvalidInput("InfiniteHyperband needs start_budget and min_resource above 0. Raise them.")
        next(infinite(self.eta, self.start_budget))

    def _plan(self, horizon: int | None) -> Plan:
        return Plan(b.scaled(self.min_resource, self._whole) for b in infinite(self.eta, self.start_budget))


@dataclass(frozen=True)
class Ladder(ByEngine):
    """Asynchronous successive halving with one ladder of rungs: the best of each rung resume from their checkpoints.

    A trial continues when it is in the top share of all that ever arrived at its rung. If later trials are worse, a
    trial that lost early may still continue. No trial continues before `min_trials_per_rung` trials were compared at
    the first rung. So first promotions are as reliable as in a bracket of that size. (ASHA, Li et al. 2020, has no
    min_trials_per_rung and the same cut at all rungs.)

    Endless. Every paused trial may still continue, so its checkpoint is kept; `Checkpointing(disk_quota=)` limits them.

    Args:
        eta: 1 / eta of a rung continues. Default: 3.
        first_cut: eta of the first rung, where values predict least about the end but comparisons are cheapest.
            Default: 6.
        step: ratio of the epochs of rungs: min_resource, min_resource step, min_resource step^2, ... and max_epochs.
            Default: 3.
        min_trials_per_rung: trials at the first rung before any continues. Default: None, as many as cost four fifths
            of a full training, from 8 to 40.
        min_resource: epochs of the first rung, at least the study's min_epochs. Default: 1.
        sampler: "random", "sobol", "lhs", or a policy such as GPUCB(), as for Hyperband. Default: "random".

    Raises:
        InvalidInput: for other values, and for a problem without max_epochs.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import Ladder
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, Ladder(min_trials_per_rung=2), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    eta: float = 3
    first_cut: float = 6
    step: int = 3
    min_trials_per_rung: int | None = field(default=None, kw_only=True)
    min_resource: int = field(default=1, kw_only=True)
    sampler: Design | Policy[Any] = field(default="random", kw_only=True)

    plans = True  # the budget limits new trials

    def __post_init__(self) -> None:
        check_cuts("Ladder", eta=self.eta, first_cut=self.first_cut)
        check_whole("Ladder", 2, step=self.step)
        if self.min_trials_per_rung is not None:
            check_whole("Ladder", 1, min_trials_per_rung=self.min_trials_per_rung)
        check_whole("Ladder", 1, min_resource=self.min_resource)
        Sampler(self.sampler)  # raises for another source

    def rungs(self, horizon: int, min_epochs: int = 0) -> list[int]:
        """Return the epochs at which trials are compared, none below min_epochs: 1, 3, 9, 27, 50 for horizon 50."""
        epochs = [max(self.min_resource, min_epochs)]
        while epochs[-1] < horizon:
            epochs.append(epochs[-1] * self.step)
        return [*epochs[:-1], horizon]

    def start(self, problem: Problem) -> Halving:
        """Return an empty ladder. Raises InvalidInput without max_epochs, or if the first rung is beyond it."""
        own = self
        if problem.grid is not None and self.min_resource != 1:
            own = replace(self, min_resource=int(problem.points(self.min_resource)))
        horizon, first = problem.max_epochs, max(own.min_resource, problem.min_epochs)
        if horizon is None:
            raise InvalidInput("Ladder needs max_epochs. Give it to Problem: the epochs of a full training.")
        if own.min_resource > horizon:
            raise InvalidInput(f"Ladder(min_resource={self.min_resource}) is above max_epochs={horizon}. Lower it.")
        n = self.min_trials_per_rung or usual_min_trials(horizon, first)
        # A design has this many points. Equal brackets share their rungs.
        rungs = tuple(Rung(n, float(epochs)) for epochs in own.rungs(horizon, problem.min_epochs))
        promotion = Promotion(exact(self.eta), exact(self.first_cut), min_trials_per_rung=n)
        return Asynchronous(problem, Plan(repeat(Bracket(rungs, 0))), Sampler(self.sampler), "epochs", promotion)


def check_cuts(where: str, **cuts: float) -> None:
    for name, value in cuts.items():
        if not exact(value, f"{where}: {name}") > 1:
            raise InvalidInput(f"{where}({name}={value!r}) is not above 1. Common values are 3 and 6.")


def usual_min_trials(horizon: int, epochs: int) -> int:
    """Return how many trials of so many epochs cost four fifths of a full training, from 8 to 40."""
    return min(MOST_COMPARED, max(FEWEST_COMPARED, 4 * horizon // (5 * epochs)))
