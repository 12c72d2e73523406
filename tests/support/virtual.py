"""Searches in virtual time: trainings that move an injected clock, so that hours of budget pass at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worlds import Clock

from haltune import Budget, Float, Maximize, Problem, Space, Study, Trial
from haltune.store.memory import MemoryStore
from haltune.study.session import clocked

SQUARE = Space({"a": Float(0.0, 1.0), "b": Float(0.0, 1.0)})


def hill(config: dict[str, Any]) -> float:
    """A score on [0, 1], best at a = 0.8, b = 0.3."""
    return 1.0 - ((config["a"] - 0.8) ** 2 + (config["b"] - 0.3) ** 2) / 1.2


def slope(config: dict[str, Any]) -> float:
    """Seconds of a training: 4 to 28, growing with a."""
    return 4.0 * 7.0 ** config["a"]


def study(policy: Any, budget: Budget, epochs: int = 1, seed: int = 0, space: Space = SQUARE, **options: Any) -> Study:
    """A study whose clock only trainings move."""
    clock = Clock()
    problem = Problem(space, options.pop("goal", Maximize("acc", (0, 1))), epochs)
    store = options.pop("store", None) or MemoryStore(clock)
    with clocked(store.now):
        return Study(problem, policy, store, seed=seed, budget=budget, **options)


def train(
    trial: Trial,
    clock: Clock,
    value: Callable[[dict[str, Any]], float] = hill,
    seconds: Callable[[dict[str, Any]], float] = slope,
    start_up: float = 0.0,
    cost: Callable[[dict[str, Any]], float] | None = None,
) -> None:
    """One trial; its seconds are spread over its epochs, after some of start-up."""
    with trial:
        clock.now += start_up
        trial._lap = clock.now
        for epoch in trial.epochs():
            share = 1.0 / (trial.max_epochs or 1)
            clock.now += share * seconds(trial.config)
            reported = None if cost is None else share * cost(trial.config)
            trial.report(value(trial.config) * epoch * share, cost=reported)


def search(found: Study, **world: Any) -> Study:
    """Train until the search is over."""
    clock = found.session.replica.store.now  # type: ignore[attr-defined]
    for trial in found:
        train(trial, clock, **world)
    return found
