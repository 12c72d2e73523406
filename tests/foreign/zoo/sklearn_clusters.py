"""MiniBatchKMeans, which learns without targets, judged by its inertia on held-out rows."""

import numpy as np
from sklearn.cluster import MiniBatchKMeans

from haltune import Int, Maximize
from haltune.callbacks.sklearn import fit, load

x = np.random.default_rng(0).normal(size=(160, 3))


def search(study):
    for trial in study:
        with trial:
            fit(trial, MiniBatchKMeans(**trial.config), x[:100], validation=(x[100:], None), batch_size=25,
                scoring=lambda model, x, y: model.score(x))


def evaluate(path, config):
    return load(path).score(x[100:])


zoo = dict(
    needs=["sklearn", "skops"],
    slow=True,
    space={"n_clusters": Int(2, 9)},
    goal=Maximize("score"),
    max_epochs=4,
    trials=[{"n_clusters": 3}, {"n_clusters": 5}],
    pauses=[1, 3],
    updates=4,
    counts="sklearn.cluster:MiniBatchKMeans.partial_fit",
)
