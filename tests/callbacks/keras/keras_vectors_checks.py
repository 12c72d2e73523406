"""A Keras fit of several goals and a constraint: stopped, paused, what is missing. Run by test_callback.py."""

import keras
import numpy as np
import pytest
from keras_resume_checks import X, Y, momentum, net, seed_everything
from paused_studies import PausesAt

from haltune import Constraint, Float, Minimize, Study
from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import InvalidInput
from haltune.policies import RandomSearch

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


class Logs(keras.callbacks.Callback):
    """Puts numbers that training does not make beside those that it does, as users do."""

    def __init__(self, said):
        super().__init__()
        self.said = said

    def on_epoch_end(self, epoch, logs=None):
        logs.update({name: number(epoch + 1) for name, number in self.said.items()})


def a_study(policy, trials=1, **options):
    return Study(
        {"lr": Float(1e-3, 1e-1, log=True)}, [Minimize("val_loss"), Minimize("ms")], max_epochs=4, policy=policy,
        constraints=[Constraint("params", at_most=5)], budget=f"{trials} trials", verbose=0, seed=0, **options,
    )  # fmt: skip


def fit(trial, said, **options):
    model = trial.load_model() or net(momentum(trial.config["lr"]))
    callbacks = [Logs(said), HaltuneCallback(trial, **options)]
    model.fit(
        X, Y, verbose=0, batch_size=4, epochs=trial.max_epochs, initial_epoch=trial.epoch, validation_data=(X, Y),
        callbacks=callbacks,
    )  # fmt: skip
    return model


SAID = {"ms": lambda epoch: 2.0 + epoch, "params": lambda epoch: 4.0, "extra": lambda epoch: 1.0}


@pytest.mark.parametrize("record", ["all", "monitor"])
def test_goals_and_constraints_are_taken_from_the_logs(record):
    study = a_study(RandomSearch())
    for trial in study:
        with trial:
            fit(trial, SAID, record=record)
    told = study.trials[0]
    assert told.metrics["ms"].tolist() == [3.0, 4.0, 5.0, 6.0]
    assert told.metrics["params"].tolist() == [4.0] * 4
    assert ("extra" in told.metrics) == (record == "all")
    assert [r.trial for r in study.pareto_front()] == [0]


def test_a_run_beyond_the_constraint_is_stopped_after_its_first_epoch():
    study = a_study(RandomSearch())
    for trial in study:
        with trial:
            fit(trial, SAID | {"params": lambda epoch: 6.0})
    told = study.trials[0]
    assert told.epochs.tolist() == [1.0]
    assert "allowed is params at most 5" in told.verdict.reason


class PausesForSeveral(PausesAt):
    several_goals = True


def test_a_paused_fit_of_several_goals_equals_one_that_was_not():
    models, curves = [], []
    for at in ((), (2,)):
        study = a_study(PausesForSeveral(1, at=at))
        seed_everything(3)
        attempts = 0
        for trial in study:
            with trial:
                model, attempts = fit(trial, SAID), attempts + 1
        models.append([keras.ops.convert_to_numpy(w) for w in model.weights])
        curves.append((study.trials[0].values.tolist(), study.trials[0].metrics["ms"].tolist()))
        assert attempts == 1 + len(at)
        assert study.trials[0].tags["weights"]
    for whole, paused in zip(*models, strict=True):
        np.testing.assert_array_equal(whole, paused)
    assert curves[0] == curves[1]


def test_a_goal_that_is_not_logged_is_told():
    study = a_study(RandomSearch())
    with pytest.raises(InvalidInput, match="a report lacks 'ms'"), study.ask() as trial:
        fit(trial, {"params": lambda epoch: 1.0})
