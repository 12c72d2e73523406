"""What is searched: a space, what for, within which limits, and how long a full training is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from haltune._utils.checks import pythonic
from haltune.errors import InvalidInput, InvalidSpace
from haltune.errors.foreign_words import KnowsArguments
from haltune.space import Space

from .constraints import Constraint, checked_constraints
from .goals import Goal, checked_goals, goal_from_json

ENDLESS = 1_000_000_000  # epochs that no training reaches


@dataclass(frozen=True)
class Problem(KnowsArguments):
    """What is searched, what for, and how long a full training is.

    Args:
        space: What can be configured.
        goal: Maximize(...) or Minimize(...) of a metric; several in a list, for the runs that nothing betters in all of
            them: `study.pareto_front()`. `problem.goal` is the first of them, `problem.goals` are all.
        max_epochs: Epochs of a full training. Default: None, the infinite horizon, for policies that bring their
            own schedule: their trials have a `trial.max_epochs` of ENDLESS, which frameworks take.
        start: Configurations that are trained first, in their order, whatever the policy: defaults, guesses. More
            can follow by `study.enqueue`, which says how they are begun. Default: none.
        constraints: Metrics that runs must keep within limits, [Constraint("params", at_most=5e6)]. Default: none.
        further: The goals beyond the first, as a list in `goal` sets them. Default: none.
        min_epochs: Epochs that every trial trains before the policy may stop or pause it, for a learning-rate warm-up.
            A budget, a failure and the user's own stop still end it. Default: 0.

    Raises:
        InvalidInput: For a space or a goal that is none, several goals of one metric, epochs that are no whole number
            of at least 1, and configurations to start with that are not of the space or that are given twice.

    Example:
        >>> from haltune import Float, Space
        >>> problem = Problem(Space({"lr": Float(1e-4, 1e-1, log=True)}), Minimize("val_loss"), max_epochs=30)
        >>> problem.goal.metric
        'val_loss'
    """

    space: Space
    goal: Goal
    max_epochs: int | None = None
    start: Sequence[Mapping[str, Any]] = field(default=(), hash=False)
    constraints: Sequence[Constraint] = ()
    further: Sequence[Goal] = ()
    min_epochs: int = 0
    # read from a log, of whatever space that is by now
    of_log: bool = field(default=False, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.space, Space):
            raise InvalidInput(
                f"the first argument is a Space, not {type(self.space).__name__}: Space({{...}})"
            )
        first, *others = checked_goals(self.goal)
        object.__setattr__(self, "goal", first)
        if others or self.further:
            object.__setattr__(self, "further", checked_goals([first, *(others or self.further)])[1:])
        object.__setattr__(self, "constraints", checked_constraints(self.constraints))
        self._check_of_last()
        pythonic(self)
        n = self.max_epochs
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise InvalidInput(f"max_epochs is a whole number of epochs, at least 1, or None; not {n!r}")
        self._check_min_epochs()
        object.__setattr__(self, "start", self._checked_start())

    if TYPE_CHECKING:  # what is handed in may be a list; what is held is the first of it

        def __init__(
            self,
            space: Space,
            goal: Goal | Sequence[Goal],
            max_epochs: int | None = None,
            start: Sequence[Mapping[str, Any]] = (),
            constraints: Sequence[Constraint] = (),
            further: Sequence[Goal] = (),
            min_epochs: int = 0,
        ) -> None: ...

    @property
    def goals(self) -> tuple[Goal, ...]:
        """All of them, the first of which is `goal`."""
        return (self.goal, *self.further)

    @property
    def plain(self) -> bool:
        """True with one goal and without constraints: what runs come to is one number."""
        return not (self.further or self.constraints)

    @property
    def measured(self) -> tuple[str, ...]:
        """The metrics that runs report beside the first goal's, for the other goals and for constraints."""
        names = [g.metric for g in self.further] + [c.metric for c in self.constraints]
        return tuple(dict.fromkeys(name for name in names if name != self.goal.metric))

    def _check_of_last(self) -> None:
        changing = [c for c in self.constraints if c.changes]
        if self.goal.of == "best" and changing:
            raise InvalidInput(
                f"of='best' with {changing[0]}, which training changes: the best epoch may be beyond the limit. Let "
                f"runs count for their last, {type(self.goal).__name__}({self.goal.metric!r}); or say "
                f"Constraint({changing[0].metric!r}, ..., changes=False) where it stays as it is"
            )

    def _check_min_epochs(self) -> None:
        least, full = self.min_epochs, self.max_epochs
        if isinstance(least, bool) or not isinstance(least, int) or least < 0:
            raise InvalidInput(f"min_epochs is a whole number of epochs, 0 or more; not {least!r}")
        if full is not None and least > full:
            raise InvalidInput(
                f"min_epochs={least} is more than max_epochs={full}, the epochs of a full training. Lower min_epochs, "
                "or raise max_epochs."
            )

    def _checked_start(self) -> tuple[dict[str, Any], ...]:
        if isinstance(self.start, (str, Mapping)) or not isinstance(self.start, Sequence):
            raise InvalidInput(f"start is a list of configurations, [{{...}}, {{...}}], not {self.start!r}")
        found = tuple(self.checked(config, f"start[{i}]") for i, config in enumerate(self.start))
        keys = self.space.keys(found)
        for i, key in enumerate(keys):
            if (first := keys.index(key)) < i:
                raise InvalidInput(
                    f"start[{i}] is start[{first}] again: once is enough; study.enqueue(config, again=True) trains a "
                    "configuration once more"
                )
        return found

    def checked(self, config: Mapping[str, Any], what: str) -> dict[str, Any]:
        """A whole configuration in canonical form. Raises InvalidInput that names `what` is none."""
        try:
            canonical = self.space.canonical(config)
            broken = [c.name for c in self.space.constraints if not c.allows(canonical)]
        except InvalidSpace as error:
            raise InvalidInput(f"{what}: {error}") from error
        if broken:
            raise InvalidInput(f"{what}: the constraint {broken[0]!r} does not allow {canonical!r}")
        return canonical

    def to_json(self) -> dict[str, Any]:
        """A JSON form: what a study records and compares when it is reopened."""
        return {
            "space": self.space.to_json(),
            # logs from before there were several, or constraints, stay equal
            "goal": [g.to_json() for g in self.goals] if self.further else self.goal.to_json(),
            "max_epochs": self.max_epochs,
            **({"min_epochs": self.min_epochs} if self.min_epochs else {}),
            **({"constraints": [c.to_json() for c in self.constraints]} if self.constraints else {}),
            **(
                {"start": list(self.start)} if self.start else {}
            ),  # logs from before there was any stay equal
        }

    @classmethod
    def from_json(
        cls,
        data: Mapping[str, Any],
        constraints: Mapping[str, Callable[[dict[str, Any]], bool]] | None = None,
    ) -> Problem:
        """The inverse of `to_json`. Raises InvalidSpace unless the functions of its constraints are supplied."""
        space = Space.from_json(data["space"], constraints)
        told = data["goal"]
        goals = [goal_from_json(goal) for goal in (told if isinstance(told, (list, tuple)) else [told])]
        limits = [Constraint(**limit) for limit in data.get("constraints", ())]
        return cls(
            space,
            goals,
            data["max_epochs"],
            data.get("start", ()),
            limits,
            min_epochs=data.get("min_epochs", 0),
        ).as_of_log()

    def as_of_log(self) -> Problem:
        """This problem, in whatever space the log of its study is by now."""
        found = replace(self)
        object.__setattr__(found, "of_log", True)
        return found
