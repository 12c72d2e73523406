"""The searches, each a generator: it yields which trial trains to its next evaluation, and is sent what came.

A search names a trial and the evaluations that it had; 0 starts it. `keeps` says that the trial which it yielded before
may be resumed from where it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from haltune import Budget, Choice, Float, Int, Problem, Study, Trial
from haltune import policies as haltune_policies
from haltune.log.decisions import Finish
from haltune.ranks import alone

from .instances import Config, Instance


@dataclass(frozen=True)
class Turn:
    """What trains to its next evaluation."""

    trial: int
    config: Config
    evaluations: int  # that the trial had
    keeps: bool = False  # the state of the trial of the turn before


Search = Generator[Turn, float, None]  # is sent the value that the evaluation shows


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


Method = Callable[[Instance, Limits], Search]


def by_haltune(policy: Callable[[], Any], instance: Instance, limits: Limits, saves: bool = True) -> Search:
    """A real study in memory."""
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


def by_optuna(sampler: str, pruner: str, instance: Instance, limits: Limits) -> Search:
    """Optuna, asked and told, as its documentation trains: a pruned trial is over. Raises ImportError without it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    horizon, sign = instance.horizon, 1.0 if instance.goal.sign > 0 else -1.0
    made: Any = (
        optuna.samplers.GPSampler(seed=limits.seed, deterministic_objective=False)
        if sampler == "gp"
        else optuna.samplers.TPESampler(seed=limits.seed)
    )
    prunes: Any = {
        "median": lambda: optuna.pruners.MedianPruner(),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(1, horizon, 3),
        "none": lambda: optuna.pruners.NopPruner(),
    }[pruner]()
    study = optuna.create_study(
        sampler=made, pruner=prunes, direction="maximize" if sign > 0 else "minimize",
        study_name=f"{instance.family} {instance.number} {limits.seed}",  # by which HyperbandPruner chooses brackets
    )  # fmt: skip
    while True:
        trial = study.ask()
        config = _suggested(trial, instance)
        values: list[float] = []
        pruned = False
        for epoch in range(1, horizon + 1):
            value = yield Turn(trial.number, config, epoch - 1)
            values.append(finite(instance, value))
            trial.report(values[-1], epoch)
            if pruned := trial.should_prune():
                break
        counted = sign * max(sign * v for v in values) if instance.of == "best" else values[-1]
        study.tell(trial, None if pruned else counted, optuna.trial.TrialState.PRUNED if pruned else None)


def _suggested(trial: Any, instance: Instance) -> dict[str, Any]:
    """What Optuna's trial suggests for a space, in its order; a parameter that is not active is left out."""
    config: dict[str, Any] = {}
    for name, domain in instance.domains.items():
        if domain.when and any(config.get(parent) not in values for parent, values in domain.when.items()):
            continue
        if isinstance(domain, Float):
            config[name] = trial.suggest_float(name, domain.low, domain.high, log=domain.log)
        elif isinstance(domain, Int):
            config[name] = trial.suggest_int(name, domain.low, domain.high, log=domain.log)
        elif isinstance(domain, Choice):
            config[name] = trial.suggest_categorical(name, list(domain.options))
    return config


def finite(instance: Instance, value: float) -> float:
    """What a program is told that expects numbers: the worst where a training diverged."""
    sign, worst = instance.goal.sign, 0.0 if instance.goal.sign > 0 else instance.worst
    return value if math.isfinite(value) and sign * value > sign * worst else worst


def haltune_method(policy: Callable[[], Any], saves: bool = True) -> Method:
    return partial(_haltune, policy, saves)


def _haltune(policy: Callable[[], Any], saves: bool, instance: Instance, limits: Limits) -> Search:
    return by_haltune(policy, instance, limits, saves)


def expression(text: str) -> Callable[[], Any]:
    """A policy from an expression over haltune.policies."""
    names = {name: getattr(haltune_policies, name) for name in haltune_policies.__all__}
    return lambda: eval(text, {"__builtins__": {}}, names)


METHODS: dict[str, Method] = {
    "random": haltune_method(haltune_policies.RandomSearch),
    "default": haltune_method(lambda: None),
    "no_checkpoints": haltune_method(lambda: None, saves=False),
    "bobos": haltune_method(haltune_policies.BOBOS),
    "asha": haltune_method(lambda: haltune_policies.SuccessiveHalving(n=10**6, rounds=None, asynchronous=True)),
    "hyperband": haltune_method(lambda: haltune_policies.Hyperband(rounds=None)),
    "gpucb": haltune_method(haltune_policies.GPUCB),
    "optuna_tpe_median": partial(by_optuna, "tpe", "median"),
    "optuna_tpe_hyperband": partial(by_optuna, "tpe", "hyperband"),
    "optuna_gp": partial(by_optuna, "gp", "none"),
}
