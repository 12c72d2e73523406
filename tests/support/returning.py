"""Functions at the top of a module, which worker processes can find."""

from __future__ import annotations

from haltune import Trial


def squared(trial: Trial) -> float:
    """The value of a training, returned."""
    return float(trial.config["x"]) ** 2
