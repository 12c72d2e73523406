"""LGBMRegressor without random sampling."""

import lightgbm as lgb
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.lightgbm import HaltuneCallback

x = np.random.default_rng(0).random((300, 5))
y = x[:, 0] * x[:, 1]


def search(study):
    for trial in study:
        with trial:
            model = lgb.LGBMRegressor(n_estimators=trial.max_epochs - int(trial.epoch), num_leaves=5, verbose=-1,
                                      **trial.config)
            model.fit(x[:200], y[:200], eval_set=[(x[200:], y[200:])], eval_metric="l1", init_model=trial.checkpoint,
                      callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    return np.abs(lgb.Booster(model_file=path).predict(x[200:]) - y[200:]).mean()


zoo = dict(
    needs=["lightgbm", "sklearn"],
    slow=True,
    space={"learning_rate": Float(0.01, 1.0, log=True)},
    goal=Minimize("l1"),
    max_epochs=8,
    trials=[{"learning_rate": 0.3}, {"learning_rate": 0.1}],
    pauses=[2, 5],
    counts="lightgbm:Booster.update",
)
