"""Random search, and random configurations for all policies."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from numpy.random import Generator

from haltune.errors import InvalidInput
from haltune.log.decisions import Finish, Move, Start
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.space import Space
from haltune.space.cube import MOST_ROWS


@dataclass(frozen=True)
class RandomSearch(Policy[None]):
    """Random search: every configuration trains in full. A baseline for other policies.

    A configuration is drawn twice only if all others were tried.

    Args:
        trials: number of trials to start before the search finishes. Default: None, the budget ends the search.

    Raises:
        InvalidInput: if `trials` is below 1.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, RandomSearch(trials=2), seed=0)
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> study.outcome.reason
        'all 2 random configurations were started'
    """

    trials: int | None = None

    predicts = False

    def __post_init__(self) -> None:
        if self.trials is not None and (isinstance(self.trials, bool) or self.trials < 1):
            raise InvalidInput(
                f"RandomSearch(trials={self.trials!r}) is not a number of trials. Give 1 or more, or None to let the "
                "budget end the search."
            )

    @property
    def endless(self) -> bool:
        return self.trials is None

    def start(self, problem: Problem) -> None:
        return

    def fold(self, state: None, event: Event) -> None:
        """Keep no state."""

    def propose(self, state: None, history: History, rng: Generator) -> Move:
        if self.trials is not None and len(history) >= self.trials:
            return Finish(f"all {self.trials} random configurations were started")
        return Start(fresh(history, rng), reason="drawn at random")


def fresh(history: History, rng: Generator) -> dict[str, Any]:
    """Return a random configuration that was not tried; a repeat if there is none.

    In a space of more than 100,000 configurations, also if none is found in 64 draws.
    """
    space, tried = history.problem.space, history.tried
    configs = space.sample(1, rng, design="uniform")
    if space.key_of_canonical(configs[0]) in tried:
        configs += _untried(space.sample_up_to(64, rng), tried)
        if len(configs) == 1 and space.size is not None and space.size <= MOST_ROWS:
            left = _untried(space.enumerate(), tried)
            configs += left and [left[rng.integers(len(left))]]
    return dict(configs[-1])


def _untried(configs: Sequence[dict[str, Any]], tried: Set[str]) -> list[dict[str, Any]]:
    return [c for c in configs if Space.key_of_canonical(c) not in tried]
