"""A pipeline that has no partial_fit, trained whole: a trial is one report of its cross-validated score."""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from haltune import Float, Maximize

x = np.random.default_rng(0).normal(size=(150, 4)) * [1, 10, 100, 1]
y = (x[:, 0] + x[:, 3] > 0).astype(int)


def search(study):
    def train(trial):
        model = make_pipeline(StandardScaler(), LogisticRegression(**trial.config))
        return cross_val_score(model, x, y, cv=3).mean()

    study.optimize(train)


def evaluate(path, config):
    raise FileNotFoundError("no model is saved")


zoo = dict(
    needs=["sklearn"],
    space={"C": Float(1e-3, 10.0, log=True)},
    goal=Maximize("accuracy"),
    max_epochs=1,
    trials=[{"C": 0.001}, {"C": 1.0}],
    pauses=[],
    updates=3,
    counts="sklearn.linear_model:LogisticRegression.fit",
    keeps=False,
)
