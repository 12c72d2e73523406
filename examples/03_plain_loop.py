"""Your own training loop, without a framework: numpy on scikit-learn's digits.

python examples/03_plain_loop.py     You can interrupt it at any time; the next call continues.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

from haltune import Budget, Float, Int, Maximize, Problem, Space, Study
from haltune.policies import BOBOS
from haltune.report import live, summary, write

TRIALS, EPOCHS = (int(n) for n in sys.argv[1:] or (20, 30))  # or: python examples/03_plain_loop.py 5 10

SPACE = Space(
    {
        "lr": Float(1e-3, 1.0, log=True),
        "momentum": Float(0.0, 0.99),
        "l2": Float(1e-6, 1e-1, log=True),
        "width": Int(4, 128, log=True),
        "batch": Int(16, 256, log=True),
    }
)
x, y = load_digits(return_X_y=True)
x = x / 16 - 0.5


def training(x, y, lr, momentum, l2, width, batch):
    """Train one hidden layer; yield a function that predicts, after each epoch."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(64, width)) / 8, rng.normal(size=(width, 10)) / width**0.5]
    speeds = [np.zeros_like(w) for w in weights]
    while True:
        for rows in np.array_split(rng.permutation(len(x)), max(1, len(x) // batch)):
            hidden = np.tanh(x[rows] @ weights[0])
            odds = np.exp(hidden @ weights[1])
            error = (odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[y[rows]]) / len(rows)
            slopes = [x[rows].T @ (error @ weights[1].T * (1 - hidden**2)), hidden.T @ error]
            for w, speed, slope in zip(weights, speeds, slopes, strict=True):
                speed[:] = momentum * speed - lr * (slope + l2 * w)
                w += speed
        yield lambda x: (np.tanh(x @ weights[0]) @ weights[1]).argmax(axis=1)


problem = Problem(SPACE, Maximize("val_acc", bounds=(0, 1)), max_epochs=EPOCHS)
study = Study(problem, BOBOS(), store="digits_plain_loop.db", budget=Budget(trials=TRIALS))
with live(study):
    for trial in study:
        with trial:
            for _, predict in zip(trial.epochs(), training(x[:1200], y[:1200], **trial.config), strict=False):
                if trial.report(np.mean(predict(x[1200:]) == y[1200:])).stops:
                    break
print(summary(study), "curves: " + str(write(study, "digits_plain_loop.html")), sep="\n")
