"""LightGBM with dart, and a metric of one's own.

With an objective of one's own, too, about one training in a hundred has other digits, without haltune.
"""

import lightgbm as lgb
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.lightgbm import HaltuneCallback

x = np.random.default_rng(0).random((300, 5))
y = (x[:, 0] * x[:, 1] > 0.25).astype(float)


def logloss(chances, data):
    labels = data.get_label()
    return "logloss", float(-np.mean(np.log(np.where(labels > 0.5, chances, 1 - chances)))), False


def search(study):
    for trial in study:
        with trial:
            train, valid = lgb.Dataset(x[:200], y[:200]), lgb.Dataset(x[200:], y[200:])
            params = {"boosting": "dart", "drop_rate": 0.5, "objective": "binary", "verbose": -1, "num_leaves": 4,
                      "seed": 1, **trial.config}
            lgb.train(params, train, trial.max_epochs - trial.epoch, init_model=trial.checkpoint, valid_sets=[valid],
                      feval=logloss, callbacks=[HaltuneCallback(trial), lgb.log_evaluation(0)])


def evaluate(path, config):
    return logloss(lgb.Booster(model_file=path).predict(x[200:]), lgb.Dataset(x[200:], y[200:]))[1]


zoo = dict(
    needs=["lightgbm"],
    space={"learning_rate": Float(0.01, 1.0, log=True)},
    goal=Minimize("valid_0-logloss"),
    max_epochs=8,
    trials=[{"learning_rate": 0.3}, {"learning_rate": 0.5}],
    pauses=[2, 5],
    counts="lightgbm:Booster.update",
    declines="dart",
)
