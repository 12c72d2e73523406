"""A callback of the program's own that lowers LightGBM's learning rate after rounds that improve too little."""

import lightgbm as lgb
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.lightgbm import HaltuneCallback

random = np.random.default_rng(0)
x = random.random((300, 6))
y = x[:, 0] * x[:, 1] + 0.05 * random.normal(size=300)


class Plateau:
    order = 50

    def __init__(self):
        self.best = np.inf

    def __call__(self, env):
        value = env.evaluation_result_list[0][2]
        if value > self.best * 0.9:
            env.model.reset_parameter({"learning_rate": np.float32(env.model.params["learning_rate"] * 0.5)})
        self.best = min(self.best, value)


def search(study):
    for trial in study:
        with trial:
            data, held_out = lgb.Dataset(x[:200], y[:200]), lgb.Dataset(x[200:], y[200:])
            lgb.train({"num_leaves": 5, "verbose": -1, **trial.config}, data, trial.max_epochs - int(trial.epoch),
                      init_model=trial.checkpoint, valid_sets=[held_out],
                      callbacks=[Plateau(), HaltuneCallback(trial)])


def evaluate(path, config):
    return np.mean((lgb.Booster(model_file=path).predict(x[200:]) - y[200:]) ** 2)


zoo = dict(
    needs=["lightgbm"],
    space={"learning_rate": Float(0.01, 1.0, log=True)},
    goal=Minimize("valid_0-l2"),
    max_epochs=8,
    trials=[{"learning_rate": 0.9}, {"learning_rate": 0.3}],
    pauses=[2, 5],
    counts="lightgbm:Booster.update",
)
