"""Other programs on live trainings. Each raises ImportError when it is made, if its package is not installed.

Where a training diverged they are told the worst value of the instance, because most of them take numbers only.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from haltune import Choice, Float, Int

from .instances import Config, Instance
from .searches import Limits, Method, Search, Turn


def finite(instance: Instance, value: float) -> float:
    """What a program is told: the worst for what is worse or not a number."""
    sign, worst = instance.goal.sign, 0.0 if instance.goal.sign > 0 else instance.worst
    return value if math.isfinite(value) and sign * value > sign * worst else worst


def is_active(domain: Any, config: Mapping[str, Any]) -> bool:
    """Whether the condition of a domain holds."""
    return all(config.get(parent) in values for parent, values in (domain.when or {}).items())


def kept(instance: Instance, config: Mapping[str, Any]) -> Config:
    """A configuration without the parameters that are not active."""
    return {name: config[name] for name, domain in instance.domains.items() if is_active(domain, config)}


# -- Optuna --------------------------------------------------------------------------------------------


def optuna(sampler: str, pruner: str, instance: Instance, limits: Limits) -> Search:
    """Optuna as its documentation uses it: a pruned trial is over."""
    import optuna as peer

    peer.logging.set_verbosity(peer.logging.ERROR)
    made: Any = (
        peer.samplers.GPSampler(seed=limits.seed) if sampler == "gp" else peer.samplers.TPESampler(seed=limits.seed)
    )
    prunes: Any = {
        "median": peer.pruners.MedianPruner(),
        "hyperband": peer.pruners.HyperbandPruner(1, instance.horizon, 3),
        "none": peer.pruners.NopPruner(),
    }[pruner]
    study = peer.create_study(
        sampler=made, pruner=prunes, direction="maximize" if instance.goal.sign > 0 else "minimize",
        study_name=f"{instance.family} {instance.number} {limits.seed}",  # by which HyperbandPruner chooses brackets
    )  # fmt: skip
    return _optuna(study, peer.trial.TrialState.PRUNED, instance)


def _optuna(study: Any, pruned: Any, instance: Instance) -> Search:
    sign = instance.goal.sign
    while True:
        trial = study.ask()
        config, values = suggested(trial, instance), []
        for epoch in range(instance.horizon):
            value = yield Turn(trial.number, config, epoch)
            values.append(finite(instance, value))
            trial.report(values[-1], epoch + 1)
            if trial.should_prune():
                study.tell(trial, state=pruned)
                break
        else:
            study.tell(trial, sign * max(sign * v for v in values) if instance.of == "best" else values[-1])


def suggested(trial: Any, instance: Instance) -> Config:
    config: dict[str, Any] = {}
    for name, domain in instance.domains.items():
        if not is_active(domain, config):
            continue
        if isinstance(domain, Choice):
            config[name] = trial.suggest_categorical(name, list(domain.options))
        else:
            suggest = trial.suggest_float if isinstance(domain, Float) else trial.suggest_int
            config[name] = suggest(name, domain.low, domain.high, log=domain.log)
    return config


# -- SMAC3 and DEHB, which name a configuration and up to which epoch it trains ----------------------------

Asked = tuple[Any, Config, float]  # what it is called when it is told, the configuration, up to which epoch


def _until_told(
    instance: Instance, folder: Any, ask: Callable[[], Asked], tell: Callable[[Any, float], object]
) -> Search:
    """Train each configuration asked for, from where it was, and tell its loss there. The folder ends with it."""
    with folder:
        yield from _told(instance, ask, tell)


def _told(instance: Instance, ask: Callable[[], Asked], tell: Callable[[Any, float], object]) -> Search:
    curves: list[list[float]] = []
    numbers: dict[str, int] = {}
    while True:
        asked, config, epochs = ask()
        number = numbers.setdefault(instance.space.key(config), len(curves))
        if number == len(curves):
            curves.append([])
        curve, until = curves[number], max(1, round(epochs))
        while len(curve) < until:
            curve.append(finite(instance, (yield Turn(number, config, len(curve), keeps=True))))
        tell(asked, -instance.goal.sign * curve[until - 1])


def smac(instance: Instance, limits: Limits) -> Search:
    """SMAC3, multi-fidelity."""
    import ConfigSpace
    from smac import MultiFidelityFacade, Scenario
    from smac.runhistory.dataclasses import TrialValue

    logging.getLogger("smac").setLevel(logging.ERROR)
    space = ConfigSpace.ConfigurationSpace(seed=limits.seed)
    made: dict[str, Any] = {}
    for name, domain in instance.domains.items():
        if isinstance(domain, Choice):
            made[name] = ConfigSpace.CategoricalHyperparameter(name, list(domain.options))
        else:
            kind = "UniformFloatHyperparameter" if isinstance(domain, Float) else "UniformIntegerHyperparameter"
            made[name] = getattr(ConfigSpace, kind)(name, domain.low, domain.high, log=domain.log)
        space.add(made[name])
    for name, domain in instance.domains.items():
        for parent, values in (domain.when or {}).items():
            space.add(ConfigSpace.InCondition(made[name], made[parent], list(values)))
    folder = tempfile.TemporaryDirectory()  # SMAC writes what it did to files, and so does DEHB
    scenario = Scenario(
        space, output_directory=folder.name, deterministic=True, n_trials=10_000, seed=limits.seed,
        min_budget=1, max_budget=instance.horizon,
    )  # fmt: skip
    facade = MultiFidelityFacade(
        scenario, _never, intensifier=MultiFidelityFacade.get_intensifier(scenario, eta=3), overwrite=True
    )

    def ask() -> Asked:
        info = facade.ask()
        return info, kept(instance, {name: plain(value) for name, value in dict(info.config).items()}), info.budget

    return _until_told(instance, folder, ask, lambda info, loss: facade.tell(info, TrialValue(cost=loss)))


def dehb(instance: Instance, limits: Limits) -> Search:
    """DEHB, on the unit cube of the space."""
    from dehb import DEHB

    folder = tempfile.TemporaryDirectory()
    search = DEHB(
        f=None, dimensions=instance.space.dim, min_fidelity=1, max_fidelity=instance.horizon, eta=3, n_workers=1,
        output_path=folder.name, seed=limits.seed, save_freq="end", log_level="ERROR",
    )  # fmt: skip

    def ask() -> Asked:
        job = search.ask()
        return job, instance.space.decode(np.asarray(job["config"])), job["fidelity"]

    return _until_told(instance, folder, ask, lambda job, loss: search.tell(job, {"fitness": loss, "cost": 1.0}))


def plain(value: Any) -> Any:
    """A Python value of a NumPy one."""
    return value.item() if isinstance(value, np.generic) else value


def _never(config: Any, seed: int = 0, budget: float = 0.0) -> float:
    raise NotImplementedError("SMAC is asked and told: it does not train")


# -- Syne Tune -----------------------------------------------------------------------------------------


def syne_tune(name: str, instance: Instance, limits: Limits) -> Search:
    """A scheduler of Syne Tune 0.16, asked without its tuner; a trial that it stops is over."""
    from syne_tune import config_space
    from syne_tune.optimizer import baselines

    if name == "BOHB":
        import statsmodels  # noqa: F401  which Syne Tune misses without a word
    logging.getLogger("syne_tune").setLevel(logging.ERROR)
    space: dict[str, Any] = {}
    for key, domain in instance.domains.items():
        if isinstance(domain, Choice):
            space[key] = config_space.choice(list(domain.options))
        elif isinstance(domain, Int):
            space[key] = (config_space.lograndint if domain.log else config_space.randint)(domain.low, domain.high)
        else:
            space[key] = (config_space.loguniform if domain.log else config_space.uniform)(domain.low, domain.high)
    scheduler = getattr(baselines, name)(
        space, metric="value", do_minimize=instance.goal.sign < 0, time_attr="epoch", max_t=instance.horizon,
        random_seed=limits.seed,
    )  # fmt: skip
    return _syne_tune(scheduler, instance)


def _syne_tune(scheduler: Any, instance: Instance) -> Search:
    from syne_tune.backend.trial_status import Trial
    from syne_tune.optimizer.scheduler import SchedulerDecision

    number = 0
    while (suggestion := scheduler.suggest()) is not None:
        trial = Trial(number, suggestion.config, datetime.now())
        scheduler.on_trial_add(trial)
        config = kept(instance, {name: plain(value) for name, value in suggestion.config.items()})
        for epoch in range(instance.horizon):
            value = yield Turn(number, config, epoch)
            result = {"value": finite(instance, value), "epoch": epoch + 1}
            if scheduler.on_trial_result(trial, result) != SchedulerDecision.CONTINUE:
                break
        else:
            scheduler.on_trial_complete(trial, result)
        number += 1


PEERS: dict[str, Method] = {
    "optuna_tpe_median": partial(optuna, "tpe", "median"),
    "optuna_tpe_hyperband": partial(optuna, "tpe", "hyperband"),
    "optuna_gp": partial(optuna, "gp", "none"),
    "smac": smac,
    "dehb": dehb,
    "syne_tune_asha": partial(syne_tune, "ASHA"),
    "syne_tune_bohb": partial(syne_tune, "BOHB"),
}
