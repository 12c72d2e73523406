"""LightGBM with dart, and an objective and a metric of one's own."""

import lightgbm as lgb
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.lightgbm import HaltuneCallback

x = np.random.default_rng(0).random((300, 5))
y = (x[:, 0] * x[:, 1] > 0.25).astype(float)


def objective(scores, data):
    chance = 1 / (1 + np.exp(-scores))
    return chance - data.get_label(), chance * (1 - chance)


def logloss(scores, data):
    labels = data.get_label()
    return "logloss", float(np.mean(np.log1p(np.exp(-np.where(labels > 0.5, scores, -scores))))), False


def search(study):
    for trial in study:
        with trial:
            train, valid = lgb.Dataset(x[:200], y[:200]), lgb.Dataset(x[200:], y[200:])
            params = {"boosting": "dart", "drop_rate": 0.5, "objective": objective, "verbose": -1, "num_leaves": 4,
                      "seed": 1, "num_threads": 1, **trial.config}
            lgb.train(params, train, trial.max_epochs - trial.epoch, init_model=trial.checkpoint, valid_sets=[valid],
                      feval=logloss, callbacks=[HaltuneCallback(trial), lgb.log_evaluation(0)])


def evaluate(path, config):
    scores = lgb.Booster(model_file=path).predict(x[200:], raw_score=True)
    return float(np.mean(np.log1p(np.exp(-np.where(y[200:] > 0.5, scores, -scores)))))


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
