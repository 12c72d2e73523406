"""The searches, each a generator: it yields which trial trains to its next evaluation, and is sent what that shows.

A turn names a trial and the evaluations that it had; 0 starts it. `keeps` says that the trial of the turn before may be
resumed from where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from haltune import Budget, Problem, Study, Trial, policies
from haltune.log.decisions import Finish
from haltune.policies import BOBOS, GPUCB, Hyperband, RandomSearch, SuccessiveHalving
from haltune.ranks import alone

from .instances import Config, Instance


@dataclass(frozen=True)
class Turn:
    """What trains to its next evaluation."""

    trial: int
    config: Config
    evaluations: int  # that the trial had
    keeps: bool = False


@dataclass(frozen=True)
class Limits:
    """What a search may spend."""

    trainings: int
    by_cost: bool
    seed: int

    def price(self, instance: Instance, config: Config) -> float:
        """Of one evaluation."""
        return instance.cost(config) if self.by_cost else 1.0

    def budget(self, instance: Instance) -> float:
        """In evaluations, or in cost."""
        return float(self.trainings * instance.horizon)


Search = Generator[Turn, float, None]
Method = Callable[[Instance, Limits], Search]


def study(policy: Callable[[], Any], saves: bool, instance: Instance, limits: Limits) -> Search:
    """A study of haltune in memory; without saves a trial that resumes trains again from its start."""
    spent = limits.budget(instance)
    problem = Problem(instance.space, instance.goal, instance.horizon)
    budget = Budget(cost=spent) if limits.by_cost else Budget(epochs=spent)
    with alone():  # no other rank listens
        study = Study(problem, policy(), seed=limits.seed, budget=budget, verbose=0)
    keeps = False
    while isinstance(trial := study.ask(), Trial):
        for epoch in range(int(trial.epoch) + 1, instance.horizon + 1):
            price = limits.price(instance, trial.config)
            value = yield Turn(trial.id, dict(trial.config), epoch - 1, keeps)
            verdict = trial.report(value, epoch, seconds=price, cost=price)
            keeps = verdict.resumable and saves
            if keeps:
                trial.checkpointed(f"{trial.id}-{epoch}")
            if verdict.stops:
                break
        trial.finish()
    assert isinstance(trial, Finish), trial


def of(policy: Callable[[], Any], saves: bool = True) -> Method:
    """A policy of haltune."""
    return partial(study, policy, saves)


def expression(text: str) -> Method:
    """A policy that is written as a call of what haltune.policies offers."""
    names = {name: getattr(policies, name) for name in policies.__all__}
    return of(lambda: eval(text, {"__builtins__": {}}, names))


OWN: dict[str, Method] = {
    "random": of(RandomSearch),
    "default": of(lambda: None),
    "no_checkpoints": of(lambda: None, saves=False),
    "bobos": of(BOBOS),
    "asha": of(lambda: SuccessiveHalving(n=10**6, rounds=None, asynchronous=True)),
    "hyperband": of(lambda: Hyperband(rounds=None)),
    "gpucb": of(GPUCB),
}
