"""LightGBM with an objective that anneals, and callbacks that are a method and a partial of a function."""

from functools import partial

import lightgbm as lgb
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.lightgbm import HaltuneCallback

rng = np.random.default_rng(0)
x = rng.random((160, 5))
y = x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=160)


class Progress:
    def __init__(self):
        self.rounds = 0

    def after(self, env):
        self.rounds += 1
        if self.rounds == 4:
            env.model.reset_parameter({"learning_rate": 0.05})


def prune(count, env):
    count["rounds"] += 1
    if count["rounds"] == 6:
        env.model.reset_parameter({"num_leaves": 2})


def search(study):
    for trial in study:
        with trial:
            width = 1.0

            def huber(prediction, data):
                nonlocal width
                width *= 0.7
                far = prediction - data.get_label()
                return np.clip(far, -width, width), np.ones_like(far)

            train = lgb.Dataset(x[:100], y[:100])
            params = {"objective": huber, "metric": "l2", "num_leaves": 6, "min_data_in_leaf": 3, "verbose": -1}
            lgb.train(
                params | trial.config,
                train,
                trial.max_epochs - trial.epoch,
                init_model=trial.checkpoint,
                valid_sets=[lgb.Dataset(x[100:], y[100:], reference=train)],
                callbacks=[Progress().after, partial(prune, {"rounds": 0}), HaltuneCallback(trial)],
            )


def evaluate(path, config):
    return float(np.mean((lgb.Booster(model_file=path).predict(x[100:]) - y[100:]) ** 2))


zoo = dict(
    needs=["lightgbm"],
    slow=True,
    space={"learning_rate": Float(0.01, 1.0, log=True)},
    goal=Minimize("valid_0-l2"),
    max_epochs=8,
    trials=[{"learning_rate": 0.5}, {"learning_rate": 0.2}],
    pauses=[2, 5],
    counts="lightgbm:Booster.update",
)
