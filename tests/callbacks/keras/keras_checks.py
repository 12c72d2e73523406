"""HaltuneCallback in real Keras fits. Run by test_callback.py in a process for each backend."""

import gc
import pickle

import keras
import numpy as np
import pytest
from callback_fakes import STOP, FakeTrial
from callback_studies import study

from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import InvalidInput, NotSupported

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
BACKEND = keras.backend.backend()
once = pytest.mark.skipif(BACKEND != "torch", reason="the same on every backend, and fastest on torch")

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


def net(dropout=0.0, compiled=False, **layer):
    """A tiny model; compiling its steps costs TensorFlow a second or two, so most checks do without."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(dropout), keras.layers.Dense(1, **layer)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", metrics=["mae"], run_eagerly=not compiled)
    return model


def fit(trial, *others, monitor=None, epochs=3, model=None, validation=True, before=(), **options):
    callback = HaltuneCallback(trial, monitor)
    model = model or net()
    if validation:
        options["validation_data"] = (X, Y)
    callbacks = [*before, callback, *others]
    history = model.fit(X, Y, epochs=epochs, callbacks=callbacks, verbose=0, batch_size=8, **options)
    return model, callback, history


def test_every_epoch_is_reported_counted_from_one():
    trial = FakeTrial()
    _, _, history = fit(trial)
    assert trial.epochs == [1, 2, 3]
    assert trial.values == history.history["val_loss"]
    assert trial.endings == [None]
    assert all(0 < r["validation"] < r["seconds"] for r in trial.reports)
    assert type(trial.values[0]) is float


def test_a_training_metric_can_be_the_goal():
    trial = FakeTrial("mae")
    _, _, history = fit(trial, validation=False)
    assert trial.values == history.history["mae"]


def test_a_stop_ends_the_fit_by_the_flag():
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    _, _, history = fit(trial, epochs=9)
    assert trial.epochs == [1, 2]
    assert len(history.epoch) == 2
    assert trial.endings == [None]


def test_a_stop_that_another_callback_takes_back_is_given_again():
    class TakesBack(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch < 3:
                self.model.stop_training = False

    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    fit(trial, TakesBack(), epochs=9)
    assert trial.epochs == [1, 2, 3, 4]
    assert [r["judge"] for r in trial.reports] == [True, True, False, False]


@once
def test_a_stop_of_another_callback_is_kept():
    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    trial = FakeTrial()
    fit(trial, before=[Stops()])
    assert trial.epochs == [1]
    assert trial.endings == []  # another fit may follow; `with trial` ends it


def test_epochs_without_validation_are_not_reported():
    trial = FakeTrial(max_epochs=4)
    _, _, history = fit(trial, epochs=4, validation_freq=2)
    assert (trial.epochs, trial.values) == ([2, 4], history.history["val_loss"])


@once
def test_initial_epoch_counts_on():
    trial = FakeTrial(max_epochs=4, epoch=2.0)
    fit(trial, epochs=4, initial_epoch=2)
    assert trial.epochs == [3, 4]


@once
def test_backup_and_restore_leaves_the_epoch_in_the_hook(tmp_path):
    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise ValueError("killed")

    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    model, trial = net(), FakeTrial(max_epochs=4)
    with pytest.raises(ValueError, match="killed"):
        fit(trial, Dies(), before=[backup], model=model, epochs=4)
    assert trial.epochs == [1, 2]
    again = FakeTrial(max_epochs=4, epoch=trial.epoch)
    fit(again, before=[keras.callbacks.BackupAndRestore(tmp_path / "backup")], model=model, epochs=4)
    assert again.epochs == [3, 4]


@once
def test_a_trial_that_backup_and_restore_continues_keeps_what_it_reported_before(tmp_path):
    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise ValueError("killed")

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    search = study(trials=1)
    trial = search.ask()
    with pytest.raises(ValueError, match="killed"):
        fit(trial, Dies(), before=[backup()], epochs=4)
    before = search.trials[0].values.tolist()
    trial.interrupt()
    again = search.ask()
    _, _, history = fit(again, before=[backup()], epochs=4)
    assert again.attempt == 2
    assert search.trials[0].epochs.tolist() == [1, 2, 3, 4]
    assert search.trials[0].values.tolist() == [*before, *history.history["val_loss"]]


@once
def test_evaluate_alone_says_nothing():
    trial = FakeTrial()
    model, callback, _ = fit(trial)
    model.evaluate(X, Y, callbacks=[callback], verbose=0)
    model.predict(X, callbacks=[callback], verbose=0)
    assert trial.epochs == [1, 2, 3]


class Raises(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise ValueError("a bug")


def test_after_an_exception_the_callback_keeps_no_model_alive():
    model, callback = net(compiled=True), HaltuneCallback(FakeTrial())
    with pytest.raises(ValueError, match="a bug"):
        model.fit(X, Y, validation_data=(X, Y), epochs=3, callbacks=[Raises(), callback], verbose=0)
    assert not any(isinstance(v, keras.Model) for v in vars(callback).values())
    assert b"Sequential" not in pickle.dumps(callback)
    del model
    gc.collect()
    if BACKEND == "torch":  # TensorFlow's compiled functions keep it themselves
        assert callback.model is None


@once
def test_a_nan_is_forwarded():
    trial = FakeTrial("val_loss", max_epochs=1)
    fit(trial, epochs=1, model=net(kernel_initializer=keras.initializers.Constant(float("nan"))))
    assert np.isnan(trial.values[0])


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's processes")
def test_jaxs_processes_are_refused_with_a_sentence(monkeypatch):
    import jax

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(NotSupported, match=r"jax\.distributed with 2 processes"):
        fit(FakeTrial())


def test_no_hook_works_on_batches_so_asynchronous_dispatch_stays_on():
    from keras.src import utils

    callback = HaltuneCallback(FakeTrial())
    for phase in ("", "train_", "test_", "predict_"):
        for moment in ("begin", "end"):
            assert utils.is_default(getattr(callback, f"on_{phase}batch_{moment}"))
    listed = keras.callbacks.CallbackList([callback], model=net())
    dispatch = (listed._async_train, listed._async_test, listed._async_predict)
    assert dispatch == (keras.src.backend.IS_THREAD_SAFE,) * 3


def test_every_scalar_of_an_epoch_is_recorded_and_nothing_else():
    class Adds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs |= {"f1": np.float32(0.5), "one": np.ones((1,)), "flag": True}
            logs |= {"confusion": np.eye(2), "note": "3", "nothing": None}

    trial = FakeTrial()
    _, _, history = fit(trial, before=[Adds()])
    first, second = trial.reports[0]["metrics"], trial.reports[1]["metrics"]
    assert set(first) == set(second) == {"loss", "mae", "val_loss", "val_mae", "f1", "one", "flag"}
    assert [r["metrics"]["mae"] for r in trial.reports] == history.history["mae"]
    assert (first["f1"], first["one"], first["flag"]) == (0.5, 1.0, 1.0)


def test_steps_per_epoch_and_endless_generators_train_as_they_are():
    def endless():
        while True:
            yield X[:8], Y[:8]

    trial, model = FakeTrial("loss"), net()
    model.fit(endless(), steps_per_epoch=2, epochs=3, callbacks=[HaltuneCallback(trial)], verbose=0)
    assert trial.epochs == [1, 2, 3]
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    fit(trial, epochs=9, steps_per_epoch=1)
    assert trial.epochs == [1, 2]


def test_how_steps_are_compiled_is_left_to_keras():
    def compiled(*callbacks):
        model = net(compiled=True)
        model.fit(X, Y, validation_data=(X, Y), epochs=1, callbacks=[*callbacks], verbose=0)
        return model.jit_compile

    assert compiled(HaltuneCallback(FakeTrial(max_epochs=1))) == compiled()


# What is said when HaltuneCallback is used wrongly in Keras. Run by test_callback.py, on torch


@once
def test_a_misspelt_metric_lists_what_was_logged_and_the_nearest_name():
    with pytest.raises(
        InvalidInput, match=r"'val_lss' was not logged.*loss, mae, val_loss, val_mae\..*mean 'val_loss'"
    ):
        fit(FakeTrial(), monitor="val_lss")
    with pytest.raises(InvalidInput, match=r"mean 'mae'"):
        fit(FakeTrial(), monitor="mea", validation_freq=2)


@once
def test_a_fit_without_validation_data_says_so_at_its_end():
    with pytest.raises(InvalidInput, match=r"in this fit\. Logged names: loss, mae\. Give model\.fit validation data"):
        fit(FakeTrial(), validation=False)


@once
def test_a_vector_prints_its_shape():
    class Vector(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_loss"] = np.zeros(10)

    with pytest.raises(InvalidInput, match=r"'val_loss'.*\(10,\)"):
        fit(FakeTrial(), before=[Vector()])


@once
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
