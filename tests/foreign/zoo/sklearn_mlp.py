"""MLPClassifier by partial_fit, behind features that are scaled once; Adam's moments are state."""

import numpy as np
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from haltune import Float, Maximize
from haltune.callbacks.sklearn import fit, load

x = np.random.default_rng(0).normal(size=(160, 4)) * [1, 10, 100, 1]
y = (x[:, 0] * x[:, 3] > 0).astype(int)
scaler = StandardScaler().fit(x[:100])


def search(study):
    for trial in study:
        with trial:
            fit(trial, MLPClassifier((8,), batch_size=20, **trial.config), scaler.transform(x[:100]), y[:100],
                validation=(scaler.transform(x[100:]), y[100:]))


def evaluate(path, config):
    return load(path).score(scaler.transform(x[100:]), y[100:])


zoo = dict(
    needs=["sklearn", "skops"],
    slow=True,
    space={"learning_rate_init": Float(1e-3, 1.0, log=True)},
    goal=Maximize("accuracy"),
    max_epochs=4,
    trials=[{"learning_rate_init": 0.01}, {"learning_rate_init": 0.05}],
    pauses=[1, 3],
    updates=5,
    counts="sklearn.neural_network._stochastic_optimizers:BaseOptimizer.update_params",
)
