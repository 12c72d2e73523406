"""A callback of the program's own that lowers XGBoost's learning rate on a plateau."""

import numpy as np
import xgboost as xgb

from haltune import Float, Minimize
from haltune.callbacks.xgboost import HaltuneCallback

random = np.random.default_rng(0)
x = random.random((300, 6))
y = x[:, 0] * x[:, 1] + 0.05 * random.normal(size=300)
train, held_out = xgb.DMatrix(x[:200], y[:200]), xgb.DMatrix(x[200:], y[200:])


class Plateau(xgb.callback.TrainingCallback):
    def __init__(self, rate):
        self.rate, self.best, self.values, self.plateaus = rate, np.inf, [], 0

    def after_iteration(self, model, epoch, evals_log):
        self.values.append(evals_log["validation"]["rmse"][-1])
        if self.values[-1] < self.best - 0.01:
            self.best = self.values[-1]
            return False
        self.rate, self.plateaus = self.rate / 2, self.plateaus + 1
        model.set_param({"learning_rate": self.rate})
        return self.plateaus == 6


def search(study):
    for trial in study:
        with trial:
            xgb.train({"max_depth": 3, **trial.config}, train, trial.max_epochs - trial.epoch,
                      xgb_model=trial.checkpoint, evals=[(held_out, "validation")], verbose_eval=False,
                      callbacks=[HaltuneCallback(trial), Plateau(trial.config["eta"])])


def evaluate(path, config):
    return float(xgb.Booster(model_file=path).eval(held_out).rpartition(":")[2])


zoo = dict(
    needs=["xgboost"],
    space={"eta": Float(0.01, 1.0, log=True)},
    goal=Minimize("validation-rmse"),
    max_epochs=9,
    trials=[{"eta": 0.9}, {"eta": 0.3}],
    pauses=[1, 4],
    counts="xgboost:Booster.update",
)
