"""Decisions of one solution of BO-BOS's stopping problem, over epochs and mean errors, and two trials.

python docs/figures/bobos.py
"""

import numpy as np
from drawing import Sheet

from haltune.models.curves import conditional_paths
from haltune.policies import OptimalStopping

HORIZON, FIRST, INCUMBENT = 50, 8, 0.15  # epochs; the error to beat
CELLS = 40
epochs = np.arange(1, HORIZON + 1)
settings = OptimalStopping("faithful", slopes=1, cells=CELLS)
noise = 0.01 * np.random.default_rng(0).standard_normal(HORIZON)
seen = (0.2 + 0.4 * np.exp(-epochs / 20) + noise)[:FIRST]
table = settings.solve_at(seen, HORIZON, INCUMBENT, settings.losses(), np.random.default_rng(0))
paths = conditional_paths(seen, HORIZON, 60, np.random.default_rng(1)).values
curves = [np.concatenate([seen, path]) for path in paths.T]


def stopped(curve):
    """The epoch at which the table stops it."""
    return next((n for n in range(FIRST + 1, HORIZON) if table.decide(curve[:n]).d == "stop"), HORIZON)


sheet = Sheet(
    "bobos", "Left: simulated curves after epoch 8. Right: the mean errors at which a trial stops, continues or wins."
)
left = sheet.panel(56, 310, (0, HORIZON), (0, 0.6))
left.axes("Simulated curves", "epochs", "error", (0, 10, 20, 30, 40, 50), (0, 0.2, 0.4, 0.6))
for curve in curves[:30]:
    left.line(epochs[FIRST - 1 :], curve[FIRST - 1 :], "one", 1, opacity=0.45)
left.line(epochs[:FIRST], seen, "ink", 2.5)
left.line((0, HORIZON), (INCUMBENT, INCUMBENT), "two", 1.5, "5 4")
left.note(1, INCUMBENT, "to beat", "two", dy=15)

LOW, HIGH = 0.2, 0.55
right = sheet.panel(430, 310, (0, HORIZON), (LOW, HIGH))
right.axes("Decisions", "epochs", "mean error of epochs 1 to n", (0, 10, 20, 30, 40, 50), (0.2, 0.3, 0.4, 0.5))
for row in range(1, len(table.decided)):
    n, width = FIRST + row, 1 / float(table.grids.scale[row])
    decided = np.where(table.visits[row] > table.min_visits, table.decided[row], 0)
    for sign, name in ((-1, "two"), (1, "three")):
        cells = np.flatnonzero(decided == sign)
        if cells.size:  # they lie side by side
            low = float(table.grids.low[row])
            right.cell((n - 0.5, n + 0.5), (low + cells[0] * width, low + (cells[-1] + 1) * width), name, 0.45)
loser = max(curves, key=lambda curve: stopped(curve) % HORIZON)  # the one that is stopped last
for curve in (min(curves, key=lambda curve: curve[-1]), loser):
    last = stopped(curve)
    means = np.cumsum(curve) / epochs
    right.line(epochs[FIRST - 1 : last], means[FIRST - 1 : last], "ink", 2)
    if last < HORIZON:
        right.cross(last, means[last - 1])
    print(f"a curve that would end at {curve[-1]:.3f}: until epoch {last}")
right.note(36, 0.44, "stop", "two")
right.note(22, 0.27, "wins", "three")
print(f"P(beats) after {FIRST} epochs: {table.p_win[0].max():.2f}")
sheet.write()
