"""XGBoost with dart boosters, which drop trees at random, and rows drawn at random."""

import numpy as np
import xgboost as xgb

from haltune import Float, Minimize
from haltune.callbacks.xgboost import HaltuneCallback

x = np.random.default_rng(0).random((200, 5))
y = (x[:, 0] * x[:, 1] > 0.25).astype(float)
train, valid = xgb.DMatrix(x[:150], y[:150]), xgb.DMatrix(x[150:], y[150:])


def search(study):
    for trial in study:
        with trial:
            params = {"booster": "dart", "rate_drop": 0.3, "subsample": 0.7, "objective": "binary:logistic", "seed": 1,
                      "max_depth": 3, **trial.config}
            xgb.train(params, train, trial.max_epochs - trial.epoch, xgb_model=trial.checkpoint,
                      evals=[(train, "train"), (valid, "valid")], verbose_eval=False,
                      callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    chance = xgb.Booster(model_file=path).predict(valid)
    return -np.mean(np.log(np.where(y[150:] == 1, chance, 1 - chance)))


zoo = dict(
    needs=["xgboost"],
    space={"eta": Float(0.01, 1.0, log=True)},
    goal=Minimize("valid-logloss"),
    max_epochs=8,
    trials=[{"eta": 0.5}, {"eta": 0.3}],
    pauses=[2, 5],
    counts="xgboost:Booster.update",
    declines="random numbers of rate_drop and subsample",
)
