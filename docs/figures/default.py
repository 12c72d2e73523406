"""The default search on two tasks: in one the first epochs predict the final order, in the other the order changes.

python docs/figures/default.py
"""

import math

from drawing import Sheet

from haltune import Float, Study
from haltune.callbacks.loop import TrainingLoop

EPOCHS = 81


def early(config, epoch):
    """A curve whose rank after one epoch is its final rank."""
    return 0.9 - 0.3 * abs(config["a"] - 0.6) - 0.1 * abs(config["b"] - 0.4) - 0.4 / (epoch + 1)


def late(config, epoch):
    """A curve that rises fast and ends low if a is small."""
    best = 0.9 - 0.3 * abs(config["a"] - 0.7) - 0.1 * abs(config["b"] - 0.4)
    return best * (1 - math.exp(-epoch / (0.5 + 25 * config["a"] ** 2)))


def search(curve):
    """Run a search; return it and the final state of its policy."""

    def train(trial):
        assert trial.checkpoint is None or trial.epoch > 0  # there is no state to load
        loop = TrainingLoop(trial, save=lambda path: path.write_text(""))
        for epoch in loop:
            loop.report(curve(trial.config, epoch))

    space = {"a": Float(0.0, 1.0), "b": Float(0.0, 1.0)}
    study = Study(space, "val_acc", max_epochs=EPOCHS, budget="700 epochs", seed=0, verbose=0)
    study.optimize(train)
    policy = study.policy
    state = policy.start(study.problem)
    for event in study.events():
        state = policy.fold(state, event)
    return study, state.model.kernel(study.history, state.rows.table)


sheet = Sheet(
    "default", "Left and middle: curves of two searches. Right: rank correlation of each rung with the final value."
)
found = []
for curve, place, title, name in ((early, 46, "Early epochs predict", "one"), (late, 292, "The order changes", "two")):
    study, kernel = search(curve)
    found.append((kernel, name, title))
    panel = sheet.panel(place, 190, (1, EPOCHS), (0, 0.9), log_x=True)
    panel.axes(title, "epochs", "value", (1, 3, 9, 27, 81), (0, 0.3, 0.6, 0.9))
    for trial in study.trials:
        full = trial.epoch == EPOCHS
        panel.line(
            trial.epochs, trial.values, name if full else "quiet", 1.5 if full else 1, opacity=0.9 if full else 0.5
        )
    print(
        title,
        len(study.trials),
        "trials,",
        sum(t.epoch == EPOCHS for t in study.trials),
        "in full",
        kernel.correlations.round(2),
    )
right = sheet.panel(546, 200, (1, EPOCHS), (0, 1), log_x=True)
right.axes("Correlation with the end", "rung, epochs", "correlation", (1, 3, 9, 27, 81), (0, 0.5, 1))
for kernel, name, _ in found:
    right.line(kernel.stages.epochs, kernel.correlations, name, 2)
    right.dots(kernel.stages.epochs, kernel.correlations, name)
sheet.write()
