"""The shape of XGBoost behind scikit-learn's interface: early stopping rounds, an evaluation set, a score."""

import numpy as np
import optuna
from optuna_integration import XGBoostPruningCallback
from sklearn.metrics import accuracy_score
from xgboost import XGBClassifier

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 8))
y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * rng.normal(size=600) > 1).astype(int)
X_train, y_train, X_test, y_test = X[:450], y[:450], X[450:], y[450:]


def main(trial):
    learning_rate = trial.suggest_float("learning_rate", 1e-3, 1.0, log=True)
    max_depth = trial.suggest_int("max_depth", 1, 8)
    model = XGBClassifier(
        n_estimators=40,
        learning_rate=learning_rate,
        max_depth=max_depth,
        eval_metric="logloss",
        early_stopping_rounds=8,
        n_jobs=1,
        callbacks=[XGBoostPruningCallback(trial, "validation_0-logloss")],
    )
    model.fit(X_train, y_train, eval_set=[(X_test, y_test)], verbose=False)
    print("accuracy:", accuracy_score(y_test, model.predict(X_test)))
    return model.best_score


if __name__ == "__main__":
    same = {"storage": "sqlite:///search.db", "study_name": "study", "load_if_exists": True}
    study = optuna.create_study(direction="minimize", **same)
    study.optimize(main, n_trials=12)
    print(study.best_trial)
