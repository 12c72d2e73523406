"""XGBRanker by query groups, by scikit-learn's interface."""

import numpy as np
import xgboost as xgb

from haltune import Float, Maximize
from haltune.callbacks.xgboost import HaltuneCallback

rng = np.random.default_rng(0)
x, q = rng.random((240, 5)), np.repeat(np.arange(24), 10)
y = (x[:, 0] * 3 + x[:, 1]).astype(int)


def search(study):
    for trial in study:
        with trial:
            model = xgb.XGBRanker(n_estimators=trial.max_epochs - trial.epoch, objective="rank:pairwise",
                                  eval_metric="ndcg", max_depth=3, callbacks=[HaltuneCallback(trial)], **trial.config)
            model.fit(x[:160], y[:160], qid=q[:160], eval_set=[(x[160:], y[160:])], eval_qid=[q[160:]], verbose=False,
                      xgb_model=trial.checkpoint)


def evaluate(path, config):
    data = xgb.DMatrix(x[160:], y[160:], qid=q[160:])
    found = xgb.Booster({"eval_metric": "ndcg"}, model_file=path).eval(data, "v")
    return float(found.rpartition(":")[2])


zoo = dict(
    needs=["xgboost", "sklearn"],
    slow=True,
    space={"learning_rate": Float(0.01, 1.0, log=True)},
    goal=Maximize("validation_0-ndcg"),
    max_epochs=8,
    trials=[{"learning_rate": 0.3}, {"learning_rate": 0.5}],
    pauses=[2, 5],
    counts="xgboost:Booster.update",
)
