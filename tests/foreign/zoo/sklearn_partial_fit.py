"""SGDClassifier by partial_fit in mini-batches, with averaging of its weights."""

import numpy as np
from sklearn.linear_model import SGDClassifier

from haltune import Float, Maximize
from haltune.callbacks.sklearn import fit, load

x = np.random.default_rng(0).normal(size=(160, 4))
y = np.where(x.sum(1) + 0.5 * np.random.default_rng(1).normal(size=160) > 0, "yes", "no")


def search(study):
    for trial in study:
        fit(trial, SGDClassifier(loss="log_loss", average=20, random_state=0, **trial.config), x[:100], y[:100],
            validation=(x[100:], y[100:]), batch_size=25)


def evaluate(path, config):
    return load(path).score(x[100:], y[100:])


zoo = dict(
    needs=["sklearn", "skops"],
    space={"alpha": Float(1e-6, 0.1, log=True)},
    goal=Maximize("accuracy"),
    max_epochs=4,
    trials=[{"alpha": 0.01}, {"alpha": 0.0001}],
    pauses=[1, 3],
    updates=4,
    counts="sklearn.linear_model:SGDClassifier.partial_fit",
)
