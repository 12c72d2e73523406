"""check_resume distinguishes trainings that resume exactly from those that do not."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from haltune import Maximize
from haltune._utils.randomness import capture, restore
from haltune.callbacks import check_resume
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import InvalidInput


def walk(trial, keep=("x", "v", "random"), report=True, momentum=0.9):
    """Gradient descent with momentum and noise on x^2, which saves what `keep` names."""
    state = {"x": 3.0, "v": 0.0}
    if trial.checkpoint:
        saved = json.loads(Path(trial.checkpoint).read_text())
        state |= {k: v for k, v in saved.items() if k in state and k in keep}
        if "random" in keep:
            restore(saved["random"])
    for epoch in range(int(trial.epoch) + 1, trial.max_epochs + 1):  # trial.epochs() would restore the random state
        state["v"] = momentum * state["v"] - 0.1 * (2 * state["x"] + 0.01 * random.gauss(0, 1))
        state["x"] += state["v"]
        if not report:
            continue
        verdict = trial.report(state["x"] ** 2, epoch, metrics={"speed": state["v"]})
        if verdict.resumable:
            trial.save(lambda path: path.write_text(json.dumps(state | {"random": capture()})))
        if verdict.stops:
            break
    return state


def test_a_loop_that_saves_everything_resumes_exactly():
    found = check_resume(walk)
    assert found
    assert found.ok
    assert "agree to the last digit in metrics, returned, random state" in str(found)


@pytest.mark.parametrize(
    ("keep", "parts"),
    [(("x", "random"), {"metrics", "returned"}), (("x", "v"), {"metrics", "returned", "random state"})],
    ids=["momentum lost", "random state lost"],
)
def test_what_was_not_saved_is_named(keep, parts):
    found = check_resume(lambda trial: walk(trial, keep))
    assert not found.ok
    assert {d.partition(":")[0] for d in found.differences} == parts
    assert "Does NOT resume exactly" in str(found)


def test_a_run_that_saves_nothing_gets_advice():
    def run(trial):
        for _ in trial.epochs():
            trial.report(0.5)

    found = check_resume(run)
    assert "saved nothing" in str(found)
    assert "trial.save(write)" in str(found)


def test_goal_horizon_and_configuration_are_the_callers():
    seen = []

    def run(trial):
        seen.append((trial.config, trial.max_epochs, trial.goal.metric, trial.epoch))
        return walk(trial)

    assert check_resume(run, {"lr": 0.1}, goal=Maximize("acc"), epochs=5, pause_at=1)
    assert seen == [({"lr": 0.1}, 5, "acc", 0), ({"lr": 0.1}, 5, "acc", 0), ({"lr": 0.1}, 5, "acc", 1)]


def test_a_pause_outside_the_training_is_refused():
    with pytest.raises(InvalidInput, match="Use 1 to 3"):
        check_resume(walk, pause_at=4)


X = np.random.default_rng(0).normal(size=(60, 3))


def boosted_by_xgboost(trial, drawn=1.0, slows=False):
    xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    from haltune.callbacks.xgboost import HaltuneCallback

    data, callback = xgb.DMatrix(X, X[:, 0]), HaltuneCallback(trial, "held-rmse")
    settings = {"nthread": 1, "subsample": drawn, "eta": 0.1 if slows and trial.attempt > 1 else 0.3}
    return xgb.train(
        settings, data, trial.max_epochs - trial.epoch, evals=[(data, "held")],
        xgb_model=trial.checkpoint, callbacks=[callback], verbose_eval=False,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("train", [boosted_by_xgboost])
def test_boosters_are_compared_tree_by_tree(train):
    exact = check_resume(train)
    assert exact.ok
    assert "trees" in exact.compared
    found = check_resume(lambda trial: train(trial, slows=True))
    assert {d.partition(":")[0] for d in found.differences} >= {"trees", "metrics"}


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_declined_its_pause_says_why():
    did_not, *why = check_resume(lambda trial: boosted_by_xgboost(trial, 0.5)).differences
    assert "did not pause" in did_not
    assert any("subsample" in reason for reason in why)


def test_estimators_of_scikit_learn_are_compared_by_what_they_learnt():
    pytest.importorskip("skops.io", reason="skops is not installed")  # at once: it imports PyTorch, which has a state
    from sklearn.linear_model import SGDClassifier

    from haltune.callbacks.sklearn import fit

    def train(trial, forgets=False):
        model = fit(
            trial, SGDClassifier(loss="log_loss"), X, X[:, 0] > 0, validation=(X, X[:, 0] > 0), scoring=lambda *_: 0.5
        )
        if forgets and trial.attempt > 1:
            model.coef_ = model.coef_ + 1e-9
        return model

    assert check_resume(train)
    assert [d.partition(":")[0] for d in check_resume(lambda trial: train(trial, True)).differences] == ["learnt"]


def test_what_cannot_be_compared_is_no_proof():
    class Own:
        pass

    def train(trial):
        walk(trial)
        return Own()

    found = check_resume(train)
    assert not found.ok
    assert "an object of type Own, which cannot be compared" in str(found)


class Drawn:
    """Training whose weight and metrics are sums of draws; those of OWN are not repeatable."""

    def __init__(self, weight=random, metric=random):
        self.weight, self.metric = weight, metric

    def __call__(self, trial):
        state = {"x": 0.0}
        if trial.checkpoint:
            state = json.loads(Path(trial.checkpoint).read_text())
        loop = TrainingLoop(trial, save=lambda path: path.write_text(json.dumps(state)), suffix=".json")
        for _ in loop:
            state["x"] += self.weight.random()
            loop.report(0.0, {"speed": self.metric.random()})
        return self.returned(loop, state)

    def returned(self, loop, state):
        return loop


OWN = random.Random(1)


def test_a_metric_that_differs_between_two_unpaused_trainings_is_left_out_and_named():
    found = check_resume(Drawn(metric=OWN))
    assert found.ok
    assert found.left_out == ("speed",)
    assert "Not compared, because two trainings without a pause differ too: speed." in str(found)


def test_a_state_that_differs_between_two_unpaused_trainings_is_no_proof():
    found = check_resume(Drawn(weight=OWN))
    assert [d.partition(":")[0] for d in found.differences] == ["saved"]
    assert "but also between two trainings without a pause. Seed every generator" in str(found)


def test_what_the_save_of_a_loop_writes_is_compared():
    class Forgets(Drawn):
        def returned(self, loop, state):
            state["x"] += loop.trial.attempt
            return loop

    assert "saved" in check_resume(Drawn()).compared
    assert [d.partition(":")[0] for d in check_resume(Forgets()).differences] == ["saved"]


def test_models_within_a_returned_tuple_are_compared():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def train(trial, forgets=False):
        walk(trial)
        net = torch.nn.Linear(1, 1)
        with torch.no_grad():
            net.weight.fill_(trial.attempt if forgets else 1)
            net.bias.fill_(1)
        return net, torch.optim.SGD(net.parameters(), 0.1)

    assert check_resume(train).ok
    assert [d.partition(":")[0] for d in check_resume(lambda trial: train(trial, True)).differences] == ["returned"]
    assert "weights" in str(check_resume(lambda trial: train(trial, True)))


@pytest.mark.parametrize("resumed", [True, False])
def test_an_array_in_place_of_none_differs(resumed):
    def run(trial):
        walk(trial)
        return {"average": np.zeros(3) if bool(trial.checkpoint) is resumed else None, "epochs": 4}

    assert check_resume(run).differences == ("returned: average differs",)
