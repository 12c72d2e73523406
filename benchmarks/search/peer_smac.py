"""SMAC3's multi-fidelity facade (2.4): Hyperband whose new configurations a random forest chooses, asked directly.

SMAC trains a configuration anew at every budget; here it goes on from where it was, and pays only its further epochs.
To have it: pip install 'smac>=2.4', which needs no compiler; older ones need pyrfr, and that needs swig.
"""

from __future__ import annotations

import logging
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from recorded import Meter


def run(meter: Meter, seed: int, snapped: bool) -> None:
    """Trials until the meter is full. SMAC models the points that it proposed. Raises ImportError without it."""
    try:
        from smac.runhistory.dataclasses import TrialValue
    except ImportError:
        raise ImportError("SMAC3: pip install 'smac>=2.4'") from None

    rows: dict[Any, int] = {}
    curves: dict[Any, list[float]] = {}  # of each configuration, the scores so far
    with tempfile.TemporaryDirectory() as folder:  # SMAC writes what it did to files
        facade = _facade(meter, seed, folder)
        while not meter.full:
            info = facade.ask()
            config = info.config
            if config not in rows:
                point = np.array([config[f"u{i}"] for i in range(meter.task.points.shape[1])])
                rows[config], curves[config] = meter.take(point), []
            curve, until = curves[config], max(1, round(info.budget))
            while len(curve) < until and not meter.full:
                curve.append(meter.train(rows[config], len(curve) + 1))
            facade.tell(info, TrialValue(cost=1.0 - curve[min(until, len(curve)) - 1]))


def _facade(meter: Meter, seed: int, folder: str) -> Any:
    from ConfigSpace import ConfigurationSpace
    from smac import MultiFidelityFacade, Scenario

    logging.getLogger("smac").setLevel(logging.ERROR)
    space = ConfigurationSpace({f"u{i}": (0.0, 1.0) for i in range(meter.task.points.shape[1])}, seed=seed)
    scenario = Scenario(
        space, output_directory=folder, deterministic=True, n_trials=10_000, seed=seed,
        min_budget=1, max_budget=meter.task.scores.shape[1],
    )  # fmt: skip
    return MultiFidelityFacade(
        scenario, _never, intensifier=MultiFidelityFacade.get_intensifier(scenario, eta=3), overwrite=True
    )


def _never(config: Any, seed: int = 0, budget: float = 0.0) -> float:
    raise NotImplementedError("SMAC is asked and told: it does not train")
