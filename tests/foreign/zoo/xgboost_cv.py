"""xgb.cv, three folds in a trial."""

import numpy as np
import xgboost as xgb

from haltune import Float, Minimize
from haltune.callbacks.xgboost import HaltuneCallback

x = np.random.default_rng(0).random((150, 5))
data = xgb.DMatrix(x, (x[:, 0] * x[:, 1] > 0.25).astype(float))


def search(study):
    for trial in study:
        with trial:
            xgb.cv({"objective": "binary:logistic", "max_depth": 3, **trial.config}, data, trial.max_epochs, nfold=3,
                   metrics="logloss", seed=0, callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    raise FileNotFoundError("there is a booster for each fold, none of which is the model")


zoo = dict(
    needs=["xgboost", "pandas"],
    slow=True,
    space={"eta": Float(0.01, 1.0, log=True)},
    goal=Minimize("test-logloss"),
    max_epochs=6,
    trials=[{"eta": 0.5}, {"eta": 0.3}],
    pauses=[2, 4],
    updates=3,
    counts="xgboost:Booster.update",
    declines="xgb.cv",
    keeps=False,
)
