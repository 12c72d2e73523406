"""XGBClassifier, as in the tutorials for scikit-learn."""

import numpy as np
from xgboost import XGBClassifier

from haltune import Float, Maximize
from haltune.callbacks.xgboost import HaltuneCallback

x = np.random.default_rng(0).random((200, 5))
y = (x[:, 0] * x[:, 1] > 0.25).astype(int)


def search(study):
    for trial in study:
        with trial:
            model = XGBClassifier(n_estimators=trial.max_epochs - int(trial.epoch), max_depth=3, eval_metric=["auc"],
                                  callbacks=[HaltuneCallback(trial)], **trial.config)
            model.fit(x[:150], y[:150], eval_set=[(x[150:], y[150:])], xgb_model=trial.checkpoint, verbose=False)


def evaluate(path, config):
    from sklearn.metrics import roc_auc_score

    model = XGBClassifier()
    model.load_model(path)
    return roc_auc_score(y[150:], model.predict_proba(x[150:])[:, 1])


zoo = dict(
    needs=["xgboost", "sklearn"],
    slow=True,
    space={"learning_rate": Float(0.01, 1.0, log=True)},
    goal=Maximize("validation_0-auc"),
    max_epochs=8,
    trials=[{"learning_rate": 0.5}, {"learning_rate": 0.3}],
    pauses=[2, 5],
    counts="xgboost:Booster.update",
)
