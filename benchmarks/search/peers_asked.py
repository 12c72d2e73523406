"""Peers with an ask-and-tell interface for a configuration and its epochs: SMAC3, DEHB and NePS' PriorBand.

SMAC3's multi-fidelity facade (2.4) is Hyperband whose new configurations a random forest chooses; DEHB (Awad et al.
2021) is Hyperband with differential evolution; PriorBand (Mallik et al. 2023) samples around the incumbent, here
without a user's prior. They train a configuration from the beginning at every budget; here it resumes, and pays only
its further epochs. `pip install 'smac>=2.4' dehb neural-pipeline-search` needs no compiler; best in an environment of
their own, because DEHB asks for an old numpy.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from recorded import Meter

Asked = tuple[Any, np.ndarray, float]  # what the peer wants back, a point of the unit cube, the epochs to train to


def _train(meter: Meter, ask: Callable[[], Asked], tell: Callable[[Any, float], object]) -> None:
    """Trials until the meter is full; tell gets the loss. A peer models the points that it proposed."""
    rows: dict[bytes, int] = {}
    curves: dict[bytes, list[float]] = {}  # of each point, the scores so far
    while not meter.full:
        asked, point, epochs = ask()
        key = point.tobytes()
        if key not in rows:
            rows[key], curves[key] = meter.take(point), []
        curve, until = curves[key], max(1, round(epochs))
        while len(curve) < until and not meter.full:
            curve.append(meter.train(rows[key], len(curve) + 1))
        tell(asked, 1.0 - curve[min(until, len(curve)) - 1])


def smac(meter: Meter, seed: int, snapped: bool) -> None:
    """SMAC3. Raises ImportError without it."""
    from ConfigSpace import ConfigurationSpace
    from smac import MultiFidelityFacade, Scenario
    from smac.runhistory.dataclasses import TrialValue

    logging.getLogger("smac").setLevel(logging.ERROR)
    names = [f"u{i}" for i in range(meter.task.points.shape[1])]
    space = ConfigurationSpace(dict.fromkeys(names, (0.0, 1.0)), seed=seed)
    with tempfile.TemporaryDirectory() as folder:  # SMAC writes what it did to files
        scenario = Scenario(
            space, output_directory=folder, deterministic=True, n_trials=10_000, seed=seed,
            min_budget=1, max_budget=meter.task.scores.shape[1],
        )  # fmt: skip
        facade = MultiFidelityFacade(
            scenario, _never, intensifier=MultiFidelityFacade.get_intensifier(scenario, eta=3), overwrite=True
        )

        def ask() -> Asked:
            info = facade.ask()
            return info, np.array([info.config[name] for name in names]), info.budget

        _train(meter, ask, lambda info, loss: facade.tell(info, TrialValue(cost=loss)))


def dehb(meter: Meter, seed: int, snapped: bool) -> None:
    """DEHB. Raises ImportError without it."""
    from dehb import DEHB

    with tempfile.TemporaryDirectory() as folder:
        search = DEHB(
            f=None, dimensions=meter.task.points.shape[1], min_fidelity=1, max_fidelity=meter.task.scores.shape[1],
            eta=3, n_workers=1, output_path=folder, seed=seed, save_freq="end", log_level="ERROR",
        )  # fmt: skip

        def ask() -> Asked:
            job = search.ask()
            return job, np.array(job["config"]), job["fidelity"]

        _train(meter, ask, lambda job, loss: search.tell(job, {"fitness": loss, "cost": 1.0}))


def priorband(meter: Meter, seed: int, snapped: bool) -> None:
    """PriorBand without a user's prior. Raises ImportError without NePS."""
    import random

    import neps
    import torch
    from neps import AskAndTell, algorithms

    for seeded in (random.seed, np.random.seed, torch.manual_seed):  # NePS draws from all three
        seeded(seed)
    names = [f"u{i}" for i in range(meter.task.points.shape[1])]
    fields = {name: neps.Float(0.0, 1.0) for name in names}
    fields["epochs"] = neps.IntegerFidelity(1, meter.task.scores.shape[1])
    search = AskAndTell(algorithms.neps_priorband(type("Cube", (neps.PipelineSpace,), fields)(), eta=3))

    def ask() -> Asked:
        trial = search.ask()
        given = {name.split("::")[0].rpartition(".")[2]: value for name, value in trial.config.items()}
        return trial, np.array([given[name] for name in names]), trial.config["ENVIRONMENT__epochs"]

    _train(meter, ask, search.tell)


def _never(config: Any, seed: int = 0, budget: float = 0.0) -> float:
    raise NotImplementedError("SMAC is asked and told: it does not train")
