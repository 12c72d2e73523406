"""MLPClassifier with warm_start, an epoch in each call of fit, saved by joblib as in the user guide."""

import warnings

import joblib
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from haltune import Float, Maximize
from haltune.callbacks.loop import TrainingLoop

warnings.simplefilter("ignore", ConvergenceWarning)
x = np.random.default_rng(0).normal(size=(160, 4))
y = (x[:, 0] * x[:, 1] > 0).astype(int)


def search(study):
    for trial in study:
        with trial:
            model = MLPClassifier((8,), batch_size=25, warm_start=True, max_iter=1, solver="sgd", momentum=0.0,
                                  **trial.config)
            if trial.checkpoint:
                model = joblib.load(trial.checkpoint)
            for epoch in (loop := TrainingLoop(trial, save=lambda path: joblib.dump(model, path))):
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(x[:100], y[:100])
                loop.report(model.score(x[100:], y[100:]))


def evaluate(path, config):
    return joblib.load(path).score(x[100:], y[100:])


zoo = dict(
    needs=["sklearn", "joblib"],
    slow=True,
    space={"learning_rate_init": Float(1e-3, 1.0, log=True)},
    goal=Maximize("accuracy"),
    max_epochs=4,
    trials=[{"learning_rate_init": 0.1}, {"learning_rate_init": 0.5}],
    pauses=[1, 3],
    updates=4,
    counts="sklearn.neural_network._stochastic_optimizers:BaseOptimizer.update_params",
)
