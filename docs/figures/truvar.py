"""A level set that is narrowed down: what is settled, and what is open, after 6 and after 16 observations.

python docs/figures/truvar.py
"""

import math

import numpy as np
from drawing import Sheet

from haltune import Float, Maximize, Problem, Space, Study
from haltune.policies import TruVaR

THRESHOLD = 0.8


def value(config):
    """Two hills, of which one is good enough at its top and one around it."""
    x = config["x"]
    return 0.5 + 0.4 * math.exp(-(((x - 0.3) / 0.15) ** 2)) + 0.32 * math.exp(-(((x - 0.8) / 0.1) ** 2))


sheet = Sheet(
    "truvar", "The prediction, the threshold, and what is settled above and below it, after 6 and 16 observations."
)
for count, left in ((6, 56), (16, 430)):
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("val_acc", bounds=(0, 1)), max_epochs=1)
    study = Study(problem, TruVaR(threshold=THRESHOLD, grid=101), seed=0, budget=f"{count} trials", verbose=0)
    study.optimize(lambda trial: value(trial.config))
    found = study.level_set()
    print(str(found).splitlines()[0])
    xs = np.array([config["x"] for config in found.configs])
    order = np.argsort(xs)
    panel = sheet.panel(left, 310, (0, 1), (0.3, 1.05))
    panel.axes(f"After {len(study.trials)} observations", "x", "val_acc", (0, 0.5, 1), (0.4, 0.6, 0.8, 1))
    low, high = (np.clip(found.mean + k * found.sd, 0.3, 1.05)[order] for k in (-2, 2))
    panel.band(xs[order], low, high, "one")
    panel.line(xs[order], np.clip(found.mean, 0.3, 1.05)[order], "one", 2)
    panel.line(xs[order], [value({"x": x}) for x in xs[order]], "quiet", 1.5, "4 3")
    panel.line((0, 1), (THRESHOLD, THRESHOLD), "ink", 1, "2 3")
    for i in order:
        name = "faint" if found.open[i] else "three" if found.reaches[i] else "two"
        panel.cell((max(xs[i] - 0.005, 0), min(xs[i] + 0.005, 1)), (0.31, 0.34), name, 1.0)
    panel.dots([t.config["x"] for t in study.trials], [t.values[-1] for t in study.trials], "ink", 3)
sheet.write()
