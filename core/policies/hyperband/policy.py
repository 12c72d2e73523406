"""Hyperband and successive halving: many configurations a little, the best of them further (Li et al. 2018).

A trial that reaches its rung pauses until the rung is complete; the best 1 / eta of the rung go on from
their checkpoints. Hyperband runs brackets that differ in how early they compare, for it is not known when
early values tell. Algorithm 1, figures 9 and 10, sections 2.5, 2.6, 6.1 and 6.3 of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Literal

from haltune.errors import InvalidInput

from .bracketed import Bracketed, check_rounds
from .brackets import Bracket, Number, Schedule, exact, growing, halving, hyperband, infinite
from .plan import Plan


@dataclass(frozen=True)
class Hyperband(Bracketed):
    """Brackets of successive halving, from the boldest to full training (Li et al. 2018, algorithm 1).

    A trial that reaches its rung pauses until the rung is complete; the best 1 / eta go on from their checkpoints.
    Line 11 returns the best value seen at any epoch; `study.best` is the best of those that were trained in full,
    of their best epochs where the goal says so: Maximize("val_acc", of="best").

    Args:
        max_resource: R, what one configuration trains at most, in units of `resource`. Default: None, the problem's
            max_epochs.
        eta: a rung keeps the best 1 / eta. Default: 3.
        min_resource: the unit in which R is counted (section 2.5). Default: 1.
        n_max: at most so many configurations in a bracket: s_max = floor(log_eta n_max) (section 2.5). Default:
            None, no limit.
        n_min: no brackets below s = floor(log_eta n_min) (section 2.6); the last may begin with fewer than n_min.
            Default: None.
        schedule: "line2", algorithm 1 as printed; "table1", the sizes of the paper's table 1; "growing", figure 10:
            budgets of 2, 4, 8, ... units for each bracket, until the study's budget ends. Default: "line2".
        brackets: "all"; "most_exploratory", s_max alone (section 3.1 finds it best for networks); or a number s.
            Default: "all".
        rounds: how often all brackets run. Default: None, until the study's budget ends, and once without a budget.
        resource: "epochs", "seconds" of training, or a name of yours ("samples", "features") for what your training
            reads from `trial.resource`; then each rung trains anew, as a trial of its own. Default: "epochs".
        resume: False trains winners again from the beginning, for trainings that cannot be paused. Default: True.
        sampler: where configurations come from: "random", "sobol", "lhs", or a policy such as GPUCB(), fitted at
            the highest rung with enough trials (section 6.3). Default: "random".
        asynchronous: True promotes a paused trial as soon as it is in the top 1 / eta of its rung (ASHA, Li et al.
            2020), "promote" is the same; "stop" decides at the rung for good, without pausing. Default: False, a
            rung is compared when it is complete.

    Raises:
        InvalidInput: for other options, and when the problem's epochs do not suit the schedule.

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
            raise InvalidInput(f"Hyperband(schedule={self.schedule!r}): 'line2', 'table1' or 'growing'")
        check_rounds("Hyperband", self.rounds)
        named = self.brackets in ("all", "most_exploratory")
        if not named and (isinstance(self.brackets, bool) or not isinstance(self.brackets, int)):
            raise InvalidInput(
                f"Hyperband(brackets={self.brackets!r}): 'all', 'most_exploratory', or a number s"
            )
        if self.schedule == "growing":
            self._check_growing()
        if self.max_resource is not None:
            self._chosen(self.max_resource)
        else:  # R is not known yet; the other numbers are
            self._made(10**9 * exact(self.min_resource, "min_resource"))

    def _check_growing(self) -> None:
        fixed = {"n_max": None, "n_min": None, "brackets": "all"}
        given = [
            f"{name}={getattr(self, name)!r}" for name, usual in fixed.items() if getattr(self, name) != usual
        ]
        if self.rounds not in (None, 1):  # 1 is what earlier versions recorded where nothing was given
            given.append(f"rounds={self.rounds!r}")
        if given:
            raise InvalidInput(
                f"Hyperband(schedule='growing', {', '.join(given)}): figure 10 sets its brackets itself, for ever"
            )

    @property
    def endless(self) -> bool:
        """True when nothing but the budget ends the search."""
        return self.schedule == "growing"

    def table(self, max_resource: float | None = None) -> Schedule:
        """One round: `.table()` prints it as table 1 does, `.total()` is what it spends.

        `.total(resume=False)` is where each rung trains anew: with a resource of yours, such as samples.

        Args:
            max_resource: The resource of a full training, epochs unless `resource` says otherwise. Default: the
                policy's own.

        Raises:
            InvalidInput: Where neither says it, and for the schedule "growing", which has no end.

        Example:
            >>> Hyperband().table(max_resource=81).total()
            1581.0
        """
        R = self.max_resource if max_resource is None else max_resource
        if R is None:
            raise InvalidInput("give max_resource here: this Hyperband takes it from the problem")
        if self.schedule == "growing":
            raise InvalidInput(
                "schedule='growing' has no round that could be printed: its brackets grow for ever"
            )
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
            raise InvalidInput(f"Hyperband(brackets={self.brackets}): there are the brackets s = {there}")
        return chosen

    def _plan(self, horizon: int | None) -> Plan:
        R = self._largest(horizon, self.max_resource)
        if self.schedule == "growing":
            return Plan(growing(R, self.eta, min_resource=self.min_resource, whole=self._whole))
        return repeated(self._chosen(R), self.rounds)


@dataclass(frozen=True)
class SuccessiveHalving(Bracketed):
    """One bracket: n configurations train a little, the best 1 / eta of each rung go on, the last to the end.

    Args:
        n: configurations in the first rung. Default: 27.
        min_resource: what each of them trains at first, in units of `resource`. Default: 1.
        max_resource: what the last trains in all. Default: None, the problem's max_epochs.
        eta: a rung keeps the best 1 / eta. Default: 3.
        rounds: how often the bracket runs. Default: None, until the study's budget ends, and once without a budget.
        resource: "epochs", "seconds" of training, or a name of yours ("samples", "features") for what your training
            reads from `trial.resource`; then each rung trains anew, as a trial of its own. Default: "epochs".
        resume: False trains winners again from the beginning, for trainings that cannot be paused. Default: True.
        sampler: where configurations come from: "random", "sobol", "lhs", or a policy such as GPUCB(), fitted at
            the highest rung with enough trials (section 6.3). Default: "random".
        asynchronous: True promotes a paused trial as soon as it is in the top 1 / eta of its rung (ASHA, Li et al.
            2020), "promote" is the same; "stop" decides at the rung for good, without pausing. Default: False, a
            rung is compared when it is complete.

    Raises:
        InvalidInput: for other options, and when the problem's epochs do not suit the schedule.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rounds("SuccessiveHalving", self.rounds)
        R = (
            1000 * exact(self.min_resource, "min_resource")
            if self.max_resource is None
            else self.max_resource
        )
        halving(self.n, self.min_resource, R, self.eta)

    endless = False  # without a budget it runs once

    def table(self, max_resource: float | None = None) -> Schedule:
        """The bracket: `.table()` prints it as table 1 does, `.total()` is what it spends; see Hyperband."""
        R = self.max_resource if max_resource is None else max_resource
        if R is None:
            raise InvalidInput("give max_resource here: this SuccessiveHalving takes it from the problem")
        return Schedule((halving(self.n, self.min_resource, R, self.eta, whole=self._whole),))

    def _plan(self, horizon: int | None) -> Plan:
        return repeated(self.table(self._largest(horizon, self.max_resource)).brackets, self.rounds)


@dataclass(frozen=True)
class InfiniteHyperband(Bracketed):
    """Hyperband without a largest resource: budgets that double, for each all numbers of configurations (figure 9).

    A problem with max_epochs ends trainings there: they count as trained in full. Runs until the study's budget
    ends.

    Args:
        eta: a rung keeps the best 1 / eta, a whole number. Default: 2.
        start_budget: of the first bracket, in units of min_resource. Default: 2, as printed (section 3.1: with eta
            = 4, from 2 R).
        min_resource: the unit in which resources are counted. Default: 1.
        resource: "epochs", "seconds" of training, or a name of yours ("samples", "features") for what your training
            reads from `trial.resource`; then each rung trains anew, as a trial of its own. Default: "epochs".
        resume: False trains winners again from the beginning, for trainings that cannot be paused. Default: True.
        sampler: where configurations come from: "random", "sobol", "lhs", or a policy such as GPUCB(), fitted at
            the highest rung with enough trials (section 6.3). Default: "random".
        asynchronous: True promotes a paused trial as soon as it is in the top 1 / eta of its rung (ASHA, Li et al.
            2020), "promote" is the same; "stop" decides at the rung for good, without pausing. Default: False, a
            rung is compared when it is complete.

    Raises:
        InvalidInput: for other options.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start_budget", "min_resource"):
            if not exact(getattr(self, name), f"InfiniteHyperband: {name}") > 0:
                raise InvalidInput("InfiniteHyperband: start_budget and min_resource are above 0")
        next(infinite(self.eta, self.start_budget))

    @property
    def _ends(self) -> bool:
        return False

    def _plan(self, horizon: int | None) -> Plan:
        return Plan(b.scaled(self.min_resource, self._whole) for b in infinite(self.eta, self.start_budget))


def repeated(made: tuple[Bracket, ...], rounds: int | None) -> Plan:
    """All brackets again and again, so many times if given."""
    return Plan(cycle(made), None if rounds is None else rounds * len(made), len(made))
