"""A loop over partial_fit that shuffles its rows by a generator of its own, and saves the estimator by joblib."""

import joblib
import numpy as np
from sklearn.linear_model import SGDClassifier

from haltune import Float, Minimize

x = np.random.default_rng(0).normal(size=(160, 4))
y = (x.sum(1) + 0.5 * np.random.default_rng(1).normal(size=160) > 0).astype(int)


def loss(model):
    return float(np.mean(np.log1p(np.exp(-(2 * y[100:] - 1) * model.decision_function(x[100:])))))


def search(study):
    for trial in study:
        with trial:
            rng = np.random.default_rng(7)
            model = SGDClassifier(loss="log_loss", random_state=0, **trial.config)
            if trial.checkpoint:
                model = joblib.load(trial.checkpoint)
            for _ in trial.epochs():
                for rows in np.array_split(rng.permutation(100), 4):
                    model.partial_fit(x[rows], y[rows], classes=[0, 1])
                trial.report(loss(model))
                trial.save(lambda path, model=model: joblib.dump(model, path), ".joblib")


def evaluate(path, config):
    return loss(joblib.load(path))


zoo = dict(
    needs=["sklearn"],
    slow=True,
    space={"alpha": Float(1e-6, 0.1, log=True)},
    goal=Minimize("log_loss"),
    max_epochs=5,
    trials=[{"alpha": 0.01}, {"alpha": 0.0001}],
    pauses=[1, 3],
    updates=4,
    counts="sklearn.linear_model:SGDClassifier.partial_fit",
)
