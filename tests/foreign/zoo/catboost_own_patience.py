"""CatBoost with a metric and an annealing loss of the author's classes, a callback that counts, one that records."""

import numpy as np
from catboost import CatBoostRegressor

from haltune import Float, Minimize
from haltune.callbacks.catboost import HaltuneCallback

rng = np.random.default_rng(0)
x = rng.random((160, 5))
y = x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=160)


class Huber:
    def calc_ders_range(self, approxes, targets, weights):
        self.width = getattr(self, "width", 1.0) * 0.7  # CatBoost calls a copy of the object
        far = np.clip(np.asarray(targets) - np.asarray(approxes), -self.width, self.width)
        return [(one, -1.0) for one in far]


class MeanError:
    def is_max_optimal(self):
        return False

    def evaluate(self, approxes, target, weight):
        return float(np.abs(np.asarray(approxes[0]) - np.asarray(target)).mean()), 1.0

    def get_final_error(self, error, weight):
        return error


class Patience:
    def __init__(self):
        self.best, self.waited = np.inf, 0

    def after_iteration(self, info):
        now = info.metrics["validation"]["MeanError"][-1]
        self.best, self.waited = min(now, self.best), 0 if now < self.best else self.waited + 1
        return self.waited < 4


class Record:
    def __init__(self):
        self.rounds = []

    def after_iteration(self, info):
        self.rounds.append(info.iteration)
        return True


def search(study):
    for trial in study:
        with trial:
            callback = HaltuneCallback(trial)
            model = CatBoostRegressor(
                iterations=trial.max_epochs,
                loss_function=Huber(),
                eval_metric=MeanError(),
                verbose=False,
                random_seed=1,
                use_best_model=True,
                **trial.config,
            )
            model.fit(
                x[:100], y[:100], eval_set=(x[100:], y[100:]), callbacks=[Record(), Patience(), callback], **callback.snapshot
            )


def evaluate(path, config):
    return float(np.abs(CatBoostRegressor().load_model(path).predict(x[100:]) - y[100:]).mean())


def trained(path):
    return CatBoostRegressor().load_model(path).tree_count_


zoo = dict(
    needs=["catboost"],
    space={"learning_rate": Float(0.01, 1.0, log=True)},
    goal=Minimize("validation-MeanError", of="best"),
    max_epochs=8,
    trials=[{"learning_rate": 0.8}, {"learning_rate": 0.5}],
    pauses=[2, 5],
    counts="catboost:CatBoost._fit",
    hidden=True,
)
