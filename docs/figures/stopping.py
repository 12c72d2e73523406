"""Simulated curves of a trial, from its own curve and from reference curves: a plateau that other trials left.

python docs/figures/stopping.py
"""

import numpy as np
from drawing import Sheet

from haltune.models.curves import ReferenceCurves
from haltune.policies import OptimalStopping

HORIZON, NOW, INCUMBENT = 50, 12, 0.08  # epochs; the error to beat
epochs = np.arange(1, HORIZON + 1)
rng = np.random.default_rng(1)


def error(level, drop, jitter=0.004):
    """A plateau of 0.3 until the learning rate is lowered, at epoch `drop`; then a level."""
    plateau = 0.3 + 0.25 / epochs
    after = level + (0.3 - level) * np.exp(-np.maximum(epochs - drop, 0) / 2.0)
    return np.clip(np.where(epochs < drop, plateau, after) + jitter * rng.standard_normal(HORIZON), 0, 1)


others = [error(level, 30) for level in (0.06, 0.08, 0.1, 0.11, 0.13, 0.16, 0.2, 0.25)]
run = error(0.07, 30)[:NOW]
settings = OptimalStopping()
sheet = Sheet("stopping", "Simulated curves of a trial, without and with reference curves.")
for beside, left, title in (
    (None, 56, "From its own 12 epochs"),
    (ReferenceCurves.of(others, HORIZON), 430, "With 8 reference curves"),
):
    panel = sheet.panel(left, 310, (0, HORIZON), (0, 0.6))
    panel.axes(title, "epochs", "error", (0, 10, 20, 30, 40, 50), (0, 0.2, 0.4, 0.6))
    ahead = settings.paths_of(run, HORIZON, 4000, np.random.default_rng(0), beside).values
    if beside is not None:
        for other in others:
            panel.line(epochs, other, "quiet", 1, opacity=0.5)
    after = np.arange(NOW + 1, HORIZON + 1)
    for low, high in ((0.05, 0.95), (0.25, 0.75)):
        panel.band(after, np.quantile(ahead, low, axis=1), np.quantile(ahead, high, axis=1), "one", 0.22)
    panel.line(after, np.median(ahead, axis=1), "one", 2)
    panel.line((0, HORIZON), (INCUMBENT, INCUMBENT), "two", 1.5, "5 4")
    panel.line(epochs[:NOW], run, "ink", 2.5)
    decision = settings.judge(run, HORIZON, INCUMBENT, rng=0, reference=beside)
    print(title, decision)
    panel.note(HORIZON, INCUMBENT, "to beat", "two", "end", dy=15)
    panel.note(HORIZON, 0.6, f"P(beats) = {decision.p_win:.2f}: {decision.d}", anchor="end", dy=12)
sheet.write()
