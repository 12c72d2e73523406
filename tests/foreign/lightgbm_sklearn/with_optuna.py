"""The shape of LightGBM behind scikit-learn's interface: early stopping, an evaluation set, a score."""

import lightgbm as lgb
import numpy as np
import optuna
from optuna_integration import LightGBMPruningCallback
from sklearn.metrics import accuracy_score

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 8))
y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * rng.normal(size=600) > 1).astype(int)
X_train, y_train, X_test, y_test = X[:450], y[:450], X[450:], y[450:]


def main(trial):
    learning_rate = trial.suggest_float("learning_rate", 1e-3, 1.0, log=True)
    num_leaves = trial.suggest_int("num_leaves", 2, 64, log=True)
    model = lgb.LGBMClassifier(
        n_estimators=40,
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
        callbacks=[lgb.early_stopping(8, verbose=False), LightGBMPruningCallback(trial, "binary_logloss")],
    )
    print("accuracy:", accuracy_score(y_test, model.predict(X_test)))
    return model.best_score_["valid_0"]["binary_logloss"]


if __name__ == "__main__":
    same = {"storage": "sqlite:///search.db", "study_name": "study", "load_if_exists": True}
    study = optuna.create_study(direction="minimize", **same)
    study.optimize(main, n_trials=12)
    print(study.best_trial)
