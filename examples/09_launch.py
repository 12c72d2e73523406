"""Four trials at a time, each in its own process, which may crash without harm: numpy on scikit-learn's digits.

python examples/09_launch.py      Ctrl-C finishes and saves the current epochs; the next call continues.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

from haltune import Budget, Float, Int, Maximize, Problem, Space, Study
from haltune.launch import run
from haltune.policies import Hyperband
from haltune.report import summary, write

TRIALS, EPOCHS, WORKERS = (int(n) for n in sys.argv[1:] or (27, 27, 4))

SPACE = Space(
    {
        "lr": Float(1e-3, 1.0, log=True),
        "l2": Float(1e-6, 1e-1, log=True),
        "width": Int(4, 128, log=True),
        "batch": Int(16, 256, log=True),
    }
)


def train(trial):
    """Train one hidden layer. A checkpoint contains the whole state, so that a trial resumes exactly."""
    x, y = load_digits(return_X_y=True)
    x, config = x / 16 - 0.5, trial.config
    rng = np.random.default_rng(0)
    w = [rng.normal(size=(64, config["width"])) / 8, rng.normal(size=(config["width"], 10)) / 3]
    if trial.checkpoint:
        with np.load(trial.checkpoint) as saved:
            w = [saved["first"], saved["second"]]
    for epoch in trial.epochs():
        for rows in np.array_split(np.random.default_rng(epoch).permutation(1200), 1200 // config["batch"]):
            hidden = np.tanh(x[rows] @ w[0])
            odds = np.exp(hidden @ w[1])
            error = (odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[y[rows]]) / len(rows)
            slopes = [x[rows].T @ (error @ w[1].T * (1 - hidden**2)), hidden.T @ error]
            w = [v - config["lr"] * (slope + config["l2"] * v) for v, slope in zip(w, slopes, strict=True)]
        found = (np.tanh(x[1200:] @ w[0]) @ w[1]).argmax(axis=1)
        verdict = trial.report(np.mean(found == y[1200:]))
        trial.save(lambda path: np.savez(path, first=w[0], second=w[1]), suffix=".npz")  # noqa: B023
        if verdict.stops:
            return


if __name__ == "__main__":  # the workers import this file too
    problem = Problem(SPACE, Maximize("val_acc", bounds=(0, 1)), max_epochs=EPOCHS)
    policy = Hyperband(asynchronous=True)
    study = Study(problem, policy, store="digits_launch.db", budget=Budget(trials=TRIALS))
    print(run(study, train, workers=WORKERS, trial_timeout="10min").reason)
    print(summary(study), f"curves: {write(study, 'digits_launch.html')}", sep="\n")
