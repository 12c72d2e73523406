"""Booster.update by hand with subsample, saved by the program: a booster's file has no random numbers, so none pauses."""

import numpy as np
import xgboost as xgb

from haltune import Float, Minimize

random = np.random.default_rng(0)
x = random.random((160, 5))
y = x[:, 0] * x[:, 1] + 0.3 * random.normal(size=160)
data, held_out = xgb.DMatrix(x[:100], y[:100]), xgb.DMatrix(x[100:], y[100:])


def loss(booster):
    return float(np.mean((booster.predict(held_out) - y[100:]) ** 2))


def search(study):
    for trial in study:
        with trial:
            given = {"subsample": 0.5, "seed": 3, **trial.config}
            booster = xgb.Booster(given, [data])
            if trial.checkpoint:
                booster.load_model(trial.checkpoint)
                booster.set_param(given)
            for epoch in trial.epochs():
                booster.update(data, epoch)
                trial.report(loss(booster))
                trial.save(booster.save_model, ".ubj")


def evaluate(path, config):
    return loss(xgb.Booster(model_file=path))


zoo = dict(
    needs=["xgboost"],
    space={"eta": Float(0.01, 1.0, log=True)},
    goal=Minimize("mse"),
    max_epochs=6,
    trials=[{"eta": 0.5}, {"eta": 0.2}],
    pauses=[1, 3],
    counts="xgboost:Booster.update",
    declines="XGBoost does not save the random numbers of subsample",
)
