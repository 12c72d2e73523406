"""XGBRegressor with an objective that anneals, a method of a class, and callbacks for a rate and for the depth."""

import numpy as np
import xgboost as xgb

from haltune import Float, Minimize
from haltune.callbacks.xgboost import HaltuneCallback

rng = np.random.default_rng(0)
x = rng.random((160, 5))
y = x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=160)


class Huber:
    def __init__(self):
        self.width = 1.0

    def gradients(self, target, prediction):
        self.width *= 0.7
        far = prediction - target
        return np.clip(far, -self.width, self.width), np.ones_like(far)


class Decay(xgb.callback.TrainingCallback):
    def before_training(self, model):
        self.rate = 0.5
        return model

    def before_iteration(self, model, epoch, evals_log):
        model.set_param("eta", self.rate)
        self.rate *= 0.8
        return False


class Shallow(xgb.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        if model.num_boosted_rounds() == 2:
            model.set_param({"max_depth": 2, "lambda": 5.0})
        return False


def search(study):
    for trial in study:
        with trial:
            model = xgb.XGBRegressor(
                n_estimators=trial.max_epochs - trial.epoch,
                objective=Huber().gradients,
                eval_metric="rmse",
                callbacks=[Shallow(), HaltuneCallback(trial)],
                **trial.config,
            )
            model.fit(x[:100], y[:100], eval_set=[(x[100:], y[100:])], verbose=False, xgb_model=trial.checkpoint)


def evaluate(path, config):
    model = xgb.XGBRegressor()
    model.load_model(path)
    return float(np.sqrt(np.mean((model.predict(x[100:]) - y[100:]) ** 2)))


zoo = dict(
    needs=["xgboost", "sklearn"],
    slow=True,
    space={"min_child_weight": Float(0.1, 100.0, log=True)},
    goal=Minimize("validation_0-rmse"),
    max_epochs=8,
    trials=[{"min_child_weight": 1.0}, {"min_child_weight": 3.0}],
    pauses=[1, 4],
    counts="xgboost:Booster.update",
)
