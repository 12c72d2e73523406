"""What is said when HaltuneCallback is used wrongly in Keras. Run by test_callback.py, on torch."""

import warnings

import keras
import numpy as np
import pytest
from callback_fakes import FakeTrial
from keras_checks import X, Y, fit, net

from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def test_a_misspelt_metric_lists_what_was_logged_and_the_nearest_name():
    with pytest.raises(
        InvalidInput, match=r"'val_lss' was not logged.*loss, mae, val_loss, val_mae\..*mean 'val_loss'"
    ):
        fit(FakeTrial(), monitor="val_lss")
    with pytest.raises(InvalidInput, match=r"mean 'mae'"):
        fit(FakeTrial(), monitor="mea", validation_freq=2)


def test_a_fit_without_validation_data_says_so_at_its_end():
    with pytest.raises(
        InvalidInput, match=r"in this fit\. Logged names: loss, mae\. Give model\.fit validation data"
    ):
        fit(FakeTrial(), validation=False)


def test_a_vector_prints_its_shape():
    class Vector(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_loss"] = np.zeros(10)

    with pytest.raises(InvalidInput, match=r"'val_loss'.*\(10,\)"):
        fit(FakeTrial(), before=[Vector()])


def test_swapped_arguments_are_noticed():
    with pytest.raises(InvalidInput, match="swapped"):
        HaltuneCallback("val_loss", FakeTrial())


def test_several_processes_are_refused_with_a_sentence(monkeypatch):
    import torch.distributed

    workers = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", workers)
    with pytest.raises(NotSupported, match=r"several processes \(TF_CONFIG with 2 workers\).*train in one"):
        fit(FakeTrial())
    for one in ('{"cluster": {"worker": ["a:1"]}}', "nonsense"):
        monkeypatch.setenv("TF_CONFIG", one)
        trial = FakeTrial()
        fit(trial)
        assert trial.epochs == [1, 2, 3]
    for name, answer in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 0)):
        monkeypatch.setattr(torch.distributed, name, lambda answer=answer: answer)
    with pytest.raises(NotSupported, match=r"torch\.distributed with 2 processes"):
        fit(FakeTrial())


def test_of_a_trial_that_has_ended_it_is_said_that_this_fit_is_not_reported_and_nothing_else():
    trial = FakeTrial(epoch=3.0)
    trial.ended, trial.checkpoint = "completed", "kept.keras"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(trial, epochs=2)
        fit(trial, monitor="val_lss")
    ours = [str(w.message) for w in told if w.category is HaltuneWarning]
    assert ours == ["Trial 7 has ended: the epochs of this fit are not reported."] * 2
    assert (trial.epochs, trial.endings) == ([], [])


def test_only_the_monitored_metric_is_recorded_on_request():
    trial, model = FakeTrial(), net()
    callback = HaltuneCallback(trial, record="monitor")
    model.fit(X, Y, validation_data=(X, Y), epochs=3, callbacks=[callback], verbose=0)
    assert [set(r["metrics"]) for r in trial.reports] == [set(), set(), set()]
    with pytest.raises(InvalidInput, match=r"record='monitr'.*'all'.*'monitor'"):
        HaltuneCallback(trial, record="monitr")


def test_two_callbacks_in_one_fit_say_which_line_to_delete():
    trial = FakeTrial()
    with pytest.raises(InvalidInput, match=r"model\.fit\(callbacks=\[\.\.\.\]\) holds two HaltuneCallbacks"):
        fit(trial, before=[HaltuneCallback(trial)])
    assert trial.reports == []
