"""The shape of LightGBM behind scikit-learn's interface: early stopping, an evaluation set, a score."""

import lightgbm as lgb
import numpy as np
from sklearn.metrics import accuracy_score

from haltune import Float, Int, Minimize, Study
from haltune.callbacks.lightgbm import HaltuneCallback

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 8))
y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * rng.normal(size=600) > 1).astype(int)
X_train, y_train, X_test, y_test = X[:450], y[:450], X[450:], y[450:]


def main(trial, learning_rate=0.1, num_leaves=31):
    model = lgb.LGBMClassifier(
        n_estimators=40 - trial.epoch,
        learning_rate=learning_rate,
        num_leaves=num_leaves,
        n_jobs=1,
        verbose=-1,
    )
    model.fit(
        X_train,
        y_train,
        eval_set=[(X_test, y_test)],
        eval_metric="logloss",
        callbacks=[lgb.early_stopping(8, verbose=False), HaltuneCallback(trial, "binary_logloss")],
        init_model=trial.checkpoint,
    )
    print("accuracy:", accuracy_score(y_test, model.predict(X_test)))


if __name__ == "__main__":
    space = {"learning_rate": Float(1e-3, 1.0, log=True), "num_leaves": Int(2, 64, log=True)}
    study = Study(space, Minimize("logloss", of="best"), "search.db", max_epochs=40, budget="12 trials")
    study.optimize(lambda trial: main(trial, **trial.config))
    print(study.best)
