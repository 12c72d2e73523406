"""What is searched: a space, a goal and a horizon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from haltune.errors import InvalidInput, InvalidSpace
from haltune.foreign_words import KnowsArguments
from haltune.space import Space

from .goals import Goal, Maximize, Minimize, goal_from_json

ENDLESS = 1_000_000_000  # epochs that no training reaches


@dataclass(frozen=True)
class Problem(KnowsArguments):
    """What is searched, what for, and how long a full training is.

    Args:
        space: What can be configured.
        goal: Maximize(...) or Minimize(...) of a metric.
        max_epochs: Epochs of a full training. Default: None, the infinite horizon, for policies that bring their
            own schedule: their trials have a `trial.max_epochs` of ENDLESS, which frameworks take.
        start: Configurations that are trained first, in their order, whatever the policy: defaults, guesses. More
            can follow by `study.enqueue`, which says how they are begun. Default: none.

    Raises:
        InvalidInput: For a space or a goal that is none, epochs that are no whole number of at least 1, and
            configurations to start with that are not of the space or that are given twice.

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
    # read from a log, of whatever space that is by now
    of_log: bool = field(default=False, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.space, Space):
            raise InvalidInput(
                f"the first argument is a Space, not {type(self.space).__name__}: Space({{...}})"
            )
        if isinstance(self.goal, str):
            raise InvalidInput(f"the goal is Maximize({self.goal!r}) or Minimize({self.goal!r})")
        if not isinstance(self.goal, (Maximize, Minimize)):
            raise InvalidInput(
                "the goal is Maximize('val_acc', bounds=(0, 1)) or Minimize('val_loss'), "
                f"not {self.goal!r}; were space and goal swapped?"
            )
        n = self.max_epochs
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise InvalidInput(f"max_epochs is a whole number of epochs, at least 1, or None; not {n!r}")
        object.__setattr__(self, "start", self._checked_start())

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
            "goal": self.goal.to_json(),
            "max_epochs": self.max_epochs,
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
        goal, start = goal_from_json(data["goal"]), data.get("start", ())
        return cls(space, goal, data["max_epochs"], start).as_of_log()

    def as_of_log(self) -> Problem:
        """This problem, in whatever space the log of its study is by now."""
        found = replace(self)
        object.__setattr__(found, "of_log", True)
        return found
