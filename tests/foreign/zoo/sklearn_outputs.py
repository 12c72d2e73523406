"""MultiOutputRegressor over SGD by partial_fit, in mini-batches, with a scorer by name."""

import numpy as np
from sklearn.linear_model import SGDRegressor
from sklearn.multioutput import MultiOutputRegressor

from haltune import Float, Maximize
from haltune.callbacks.sklearn import fit, load

x = np.random.default_rng(0).normal(size=(160, 4))
y = np.stack([x.sum(1), x.prod(1)], 1)


def search(study):
    for trial in study:
        with trial:
            one = SGDRegressor(random_state=np.random.RandomState(0), **trial.config)
            fit(trial, MultiOutputRegressor(one), x[:100], y[:100], validation=(x[100:], y[100:]), batch_size=25)


def evaluate(path, config):
    return load(path).score(x[100:], y[100:])


zoo = dict(
    needs=["sklearn", "skops"],
    slow=True,
    space={"alpha": Float(1e-6, 0.1, log=True)},
    goal=Maximize("r2"),
    max_epochs=4,
    trials=[{"alpha": 0.01}, {"alpha": 0.0001}],
    pauses=[1, 3],
    updates=8,
    counts="sklearn.linear_model:SGDRegressor.partial_fit",
)
