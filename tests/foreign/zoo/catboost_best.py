"""CatBoost as by default: with an eval_set, fit returns the model of its best round."""

import numpy as np
from catboost import CatBoostClassifier, Pool

from haltune import Float, Minimize
from haltune.callbacks.catboost import HaltuneCallback

x = np.random.default_rng(0).random((300, 5))
y = (x[:, 0] * x[:, 1] > 0.25).astype(int)
y[::7] = 1 - y[::7]


def search(study):
    for trial in study:
        with trial:
            callback = HaltuneCallback(trial)
            model = CatBoostClassifier(iterations=trial.max_epochs, verbose=False, random_seed=1, **trial.config)
            model.fit(Pool(x[:200], y[:200]), eval_set=Pool(x[200:], y[200:]), callbacks=[callback],
                      **callback.snapshot)


def evaluate(path, config):
    chance = CatBoostClassifier().load_model(path).predict_proba(x[200:])[:, 1]
    return -np.mean(np.log(np.where(y[200:] == 1, chance, 1 - chance)))


def trained(path):
    return CatBoostClassifier().load_model(path).tree_count_


zoo = dict(
    needs=["catboost"],
    slow=True,
    space={"learning_rate": Float(0.01, 1.0, log=True)},
    goal=Minimize("validation-Logloss"),
    max_epochs=8,
    trials=[{"learning_rate": 0.9}, {"learning_rate": 0.8}],
    pauses=[2, 5],
    counts="catboost:CatBoost._fit",
    hidden=True,
    says=["of='best'"],
    late=["is not kept: CatBoost kept its best round 6, but the trial counts with 8"],
)
