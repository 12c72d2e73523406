"""XGBoost with early_stopping_rounds, whose best round the author predicts with, and a rate that decays."""

import numpy as np
import xgboost as xgb

from haltune import Float, Minimize
from haltune.callbacks.xgboost import HaltuneCallback

rng = np.random.default_rng(0)
x = rng.random((160, 5))
y = x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=160)
train, valid = xgb.DMatrix(x[:100], y[:100]), xgb.DMatrix(x[100:], y[100:])


def search(study):
    for trial in study:
        with trial:
            xgb.train({"max_depth": 6, **trial.config}, train, trial.max_epochs - trial.epoch,
                      xgb_model=trial.checkpoint, evals=[(valid, "valid")], early_stopping_rounds=3,
                      verbose_eval=False, callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    booster = xgb.Booster(model_file=path)
    return float(np.sqrt(np.mean((booster.predict(valid) - y[100:]) ** 2)))


zoo = dict(
    needs=["xgboost"],
    slow=True,
    space={"eta": Float(0.01, 1.0, log=True)},
    goal=Minimize("valid-rmse"),
    max_epochs=20,
    trials=[{"eta": 0.5}, {"eta": 0.2}],
    pauses=[1, 4],
    counts="xgboost:Booster.update",
    says=["early stopping keeps the model of its best round"],
)
