"""One SGDClassifier for all trials, made at the top of a script, in a loop over partial_fit: the second trial is refused."""

import numpy as np
from sklearn.linear_model import SGDClassifier

from haltune import Float, Maximize

x = np.random.default_rng(0).normal(size=(160, 4))
y = (x.sum(1) + 0.5 * np.random.default_rng(1).normal(size=160) > 0).astype(int)
model = SGDClassifier(random_state=0)


def search(study):
    model.__init__(random_state=0)
    vars(model).pop("coef_", None)  # a script that runs once starts with an untrained one
    for trial in study:
        with trial:
            model.set_params(alpha=trial.config["alpha"])
            for _ in trial.epochs():
                model.partial_fit(x[:100], y[:100], classes=[0, 1])
                trial.report(model.score(x[100:], y[100:]))


def evaluate(path, config):
    raise NotImplementedError


zoo = dict(
    needs=["sklearn"],
    space={"alpha": Float(1e-6, 0.1, log=True)},
    goal=Maximize("accuracy"),
    max_epochs=4,
    trials=[{"alpha": 0.01}, {"alpha": 0.0001}],
    pauses=[],
    counts="sklearn.linear_model:SGDClassifier.partial_fit",
    refuses="Trial 1 would continue to train the SGDClassifier object that trial 0 has trained",
)
