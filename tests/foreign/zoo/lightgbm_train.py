"""LightGBM with bagging, early stopping and a rate that is reset each round."""

import lightgbm as lgb
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.lightgbm import HaltuneCallback

x = np.random.default_rng(0).random((300, 5))
y = (x[:, 0] * x[:, 1] > 0.25).astype(int)


def search(study):
    for trial in study:
        with trial:
            train = lgb.Dataset(x[:200], y[:200])
            valid = lgb.Dataset(x[200:], y[200:], reference=train)
            lgb.train({"objective": "binary", "verbose": -1, "num_leaves": 5, "bagging_fraction": 0.7,
                       "bagging_freq": 1, "seed": 3, **trial.config},
                      train, trial.max_epochs - int(trial.epoch), valid_sets=[valid], init_model=trial.checkpoint,
                      callbacks=[lgb.early_stopping(10, verbose=False), HaltuneCallback(trial)])


def evaluate(path, config):
    chance = lgb.Booster(model_file=path).predict(x[200:])
    return -np.mean(np.log(np.where(y[200:] == 1, chance, 1 - chance)))


zoo = dict(
    needs=["lightgbm"],
    space={"learning_rate": Float(0.01, 1.0, log=True)},
    goal=Minimize("binary_logloss"),
    max_epochs=8,
    trials=[{"learning_rate": 0.3}, {"learning_rate": 0.1}],
    pauses=[2, 5],
    counts="lightgbm:Booster.update",
    declines="random numbers of bagging_fraction",
    says=["early stopping keeps the model of its best round"],
)
