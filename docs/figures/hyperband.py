"""The brackets of Hyperband, and one of them at work on curves that cross.

python docs/figures/hyperband.py
"""

import math

from drawing import Sheet

from haltune import Float, Study
from haltune.callbacks.loop import TrainingLoop
from haltune.policies import Hyperband

EPOCHS = 81


def train(trial):
    """Some curves rise late: what leads at first does not always win."""
    assert trial.checkpoint is None or trial.epoch > 0  # there is no state to load
    loop = TrainingLoop(trial, save=lambda path: path.write_text(""))
    for epoch in loop:
        best, slow = 0.9 - 0.25 * (trial.config["a"] - 0.7) ** 2 / 0.49, 1 + 9 * trial.config["a"]
        loop.report(best * (1 - math.exp(-epoch / slow)) ** 0.5)


sheet = Sheet(
    "hyperband", "Left: the numbers of trials in the five brackets of Hyperband. Right: curves of one bracket."
)
left = sheet.panel(56, 290, (1, EPOCHS), (1, 100), log_x=True, log_y=True)
left.axes(
    "Five brackets of about the same cost", "epochs", "trials that train so far", (1, 3, 9, 27, 81), (1, 3, 10, 30, 100)
)
for bracket, name in zip(Hyperband().table(EPOCHS).brackets, ("one", "two", "three", "four", "ink"), strict=True):
    epochs, runs = [rung.resource for rung in bracket.rungs], [rung.n for rung in bracket.rungs]
    left.steps([1, *epochs], [*runs, runs[-1]], name, 2)
    left.dots(epochs, runs, name)
    left.note(epochs[0], runs[0], f"s = {bracket.s}", name, "end" if bracket.s == 0 else "start", dy=-8)

study = Study(
    {"a": Float(0.0, 1.0)}, "val_acc", policy=Hyperband(brackets=3, rounds=1), max_epochs=EPOCHS, seed=3, verbose=0
)
study.optimize(train)
right = sheet.panel(430, 310, (1, EPOCHS), (0, 0.9), log_x=True)
right.axes("Curves of the bracket s = 3", "epochs", "value", (1, 3, 9, 27, 81), (0, 0.3, 0.6, 0.9))
for trial in study.trials:
    full = trial.epoch == EPOCHS
    right.line(trial.epochs, trial.values, "two" if full else "quiet", 2 if full else 1, opacity=1 if full else 0.6)
    if not full:
        right.cross(trial.epoch, trial.values[-1])
sheet.write()
