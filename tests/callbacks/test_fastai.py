"""HaltuneCallback in real trainings of fastai's Learner."""

import numpy as np
import pytest
from callback_fakes import STOP, FakeTrial
from fits import Fastai
from paused_studies import pausing_study

pytest.importorskip("fastai", reason="fastai is not installed")


from haltune.callbacks.fastai import HaltuneCallback
from haltune.errors import InvalidInput

lib = Fastai()
learner, weights = lib.learner, lib.scores


def train(*callbacks, epochs=3, **options):
    learn = learner(**options)
    learn.fit(epochs, 0.05, cbs=list(callbacks))
    return learn


def test_a_stop_ends_the_fit_after_its_epoch_and_fits_after_it_train_nothing():
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    callback = HaltuneCallback(trial, "mae")
    learn = train(callback, epochs=9)
    assert (trial.epochs, len(learn.recorder.values), trial.endings) == ([1, 2], 2, [None])
    before = weights(learn)
    learn.fit(2, cbs=callback)
    np.testing.assert_array_equal(weights(learn), before)


def test_epochs_of_several_fits_are_counted_on():
    trial = FakeTrial(max_epochs=9)
    learner().fine_tune(2, 0.05, freeze_epochs=1, cbs=HaltuneCallback(trial, "mae"))
    assert trial.epochs == [1, 2, 3]


def test_validating_predicting_and_looking_for_a_rate_report_nothing():
    trial = FakeTrial(max_epochs=3)
    learn = learner(cbs=HaltuneCallback(trial, "mae"))
    learn.validate()
    learn.get_preds()
    assert trial.reports == []
    learn.fit(2, 0.05)
    learn.validate()
    assert trial.epochs == [1, 2]


# pausing


def test_the_best_model_comes_back_by_load():
    from haltune import Budget, Float, Minimize, Problem, Space, Study

    problem = Problem(Space({"lr": Float(0.3, 0.5)}), Minimize("mae", of="best"), max_epochs=5)
    s = Study(problem, budget=Budget(trials=1), seed=0, verbose=0)
    for trial in s:
        with trial:
            learn = learner()
            learn.fit(trial.max_epochs, trial.config["lr"], cbs=HaltuneCallback(trial))
    assert s.best.checkpoint_epoch == s.best.epoch
    fresh = learner(seed=5)
    fresh.load(f"{s.best.checkpoint}/model")
    fresh.validate()
    assert fresh.final_record[-1] == s.best.value


def test_a_checkpoint_that_is_damaged_says_what_to_do(tmp_path):
    s = pausing_study(tmp_path / "s.db", metric="mae", verbose=0)
    with s.ask() as trial:
        train(HaltuneCallback(trial, "mae"), epochs=4)
    trial = s.ask()
    with open(f"{trial.checkpoint}/progress.json", "w") as file:
        file.write("{}")
    with pytest.raises(InvalidInput, match=r"damaged.*Restore it from a copy"):
        train(HaltuneCallback(trial, "mae"), epochs=4)
