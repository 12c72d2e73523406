"""HaltuneCallback in real trainings of fastai's Learner."""

import random

import numpy as np
import pytest
from callback_fakes import STOP, FakeTrial
from fits import Fastai
from paused_studies import pausing_study

pytest.importorskip("fastai", reason="fastai is not installed")

import torch
from fastai.callback.tracker import SaveModelCallback

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


def searched(s, fit, **options):
    """Train the trial of a study by `fit(learn, epochs, callbacks)`, from another seed in each attempt."""
    for trial in s:
        with trial:
            learn = learner(seed=trial.attempt - 1, **options)
            fit(learn, trial.max_epochs, [HaltuneCallback(trial, "mae")])
    (record,) = s.trials
    told = {name: column.tolist() for name, column in record.metrics.items()}
    return learn, record.attempt, [record.epochs.tolist(), record.values.tolist(), told]


FITS = {
    "one cycle": lambda learn, n, cbs: learn.fit_one_cycle(n, 0.05, cbs=cbs),
    "fine-tuning": lambda learn, n, cbs: learn.fine_tune(n - 2, 0.05, freeze_epochs=2, cbs=cbs),
    "the best weights": lambda learn, n, cbs: learn.fit(n, 0.5, cbs=[*cbs, SaveModelCallback("mae")]),
}


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_a_resumed_training_equals_an_uninterrupted_one_digit_for_digit(fit, tmp_path):
    straight, once, told = searched(pausing_study(at=(), epochs=6, metric="mae", verbose=0), fit, path=tmp_path / "a")
    state = random.random(), torch.rand(1).item()
    s = pausing_study(tmp_path / "s.db", at=(2, 3), epochs=6, metric="mae", verbose=0)
    resumed, attempts, again = searched(s, fit, path=tmp_path / "b")
    assert (once, attempts) == (1, 3)
    assert told == again
    assert state == (random.random(), torch.rand(1).item())
    np.testing.assert_array_equal(weights(resumed), weights(straight))


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
