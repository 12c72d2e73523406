"""lgb.cv with stratified folds and its early stopping."""

import lightgbm as lgb
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.lightgbm import HaltuneCallback

x = np.random.default_rng(0).random((150, 5))
y = (x[:, 0] * x[:, 1] > 0.25).astype(float)


def search(study):
    for trial in study:
        with trial:
            params = {"objective": "binary", "verbose": -1, "num_leaves": 4, **trial.config}
            lgb.cv(params, lgb.Dataset(x, y), trial.max_epochs, nfold=3, seed=0,
                   callbacks=[HaltuneCallback(trial), lgb.early_stopping(20, verbose=False)])


def evaluate(path, config):
    raise FileNotFoundError("there is a booster for each fold, none of which is the model")


zoo = dict(
    needs=["lightgbm", "sklearn"],
    space={"learning_rate": Float(0.01, 1.0, log=True)},
    goal=Minimize("valid-binary_logloss"),
    max_epochs=6,
    trials=[{"learning_rate": 0.5}, {"learning_rate": 0.3}],
    pauses=[2, 4],
    updates=3,
    counts="lightgbm:Booster.update",
    declines="lgb.cv",
    keeps=False,
)
