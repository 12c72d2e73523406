"""A real study whose trials report scripted values; for tests of kept models."""

from __future__ import annotations

from typing import Any

from paused_studies import PausesAt

from haltune import Float, Minimize, Problem, Space, Study

CURVES = ([0.5, 0.2, 0.4], [0.6, 0.5, 0.7], [0.3, 0.1, 0.05])  # of three trials; the last is the best by any count
ENDS = ([0.5, 0.2, 0.4], [0.3, 0.1, 0.6], [0.9, 0.8, 0.7])  # by their best epochs trial 1, by their last trial 0


def scripted_study(of: str, at: tuple[float, ...] = (), metric: str = "val_loss", **options: Any) -> Study:
    """Three trials of three epochs that pause after the epochs `at`."""
    problem = Problem(Space({"lr": Float(1e-3, 1e-1, log=True)}), Minimize(metric, of=of), max_epochs=3)
    return Study(problem, PausesAt(3, at=at), seed=0, **options)
