"""What one report says: the first goal's value, and the other metrics by their names."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from haltune.errors import InvalidInput

from .problem import Problem


@dataclass(frozen=True)
class Measures:
    """The metrics that reports have to name."""

    first: str  # of the first goal
    goals: tuple[str, ...] = ()  # of the others: in every report
    limited: tuple[str, ...] = ()  # of constraints: in the first report; later the last one stands

    @classmethod
    def of(cls, problem: Problem) -> Measures:
        """Those of a problem."""
        goals = tuple(g.metric for g in problem.further)
        return cls(problem.goal.metric, goals, tuple(n for n in problem.measured if n not in goals))

    @property
    def others(self) -> tuple[str, ...]:
        """All but the first goal's."""
        return (*self.goals, *self.limited)

    def told(self, value: Any, metrics: Any) -> tuple[Any, dict[Any, Any]]:
        """The first goal's value, and the further metrics, of a report of one number or of a mapping.

        Raises InvalidInput for a mapping without the first goal.
        """
        if not isinstance(metrics or {}, Mapping):
            raise InvalidInput(f"metrics={metrics!r}: a mapping of names to numbers, such as {{'loss': 0.3}}")
        further = dict(metrics or {})
        if not isinstance(value, Mapping):
            return value, further
        if self.first not in value:
            raise self._lacks(self.first, value)
        further |= {name: one for name, one in value.items() if name != self.first}
        return value[self.first], further

    def check(self, metrics: Mapping[str, Any], known: Container[str]) -> None:
        """Raises InvalidInput where a metric is missing; known: those that the trial has reported before."""
        for name in self.others:
            if name not in metrics and (name in self.goals or name not in known):
                raise self._lacks(name, {self.first: None, **metrics})

    def _lacks(self, name: str, given: Mapping[Any, Any]) -> InvalidInput:
        names = ", ".join(map(repr, (self.first, *self.others)))
        near = get_close_matches(name, [str(n) for n in given], n=1)
        meant = f" Is {near[0]!r} meant to be it?" if near else ""
        what = (
            "every report has all goals"
            if name in (self.first, *self.goals)
            else "a constraint is on it, which the first report must have"
        )
        shown = ", ".join(f"{n!r}: ..." for n in (self.first, *self.others))
        return InvalidInput(
            f"a report lacks {name!r}, and {what}: this study measures {names}. It has "
            f"{', '.join(map(repr, given)) or 'nothing'}.{meant} Write trial.report({{{shown}}}); a callback takes "
            "what the training logs by these names"
        )
