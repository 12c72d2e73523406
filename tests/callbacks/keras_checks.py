"""HaltuneCallback in real Keras fits. Run by test_keras.py in a process for each backend."""

import copy
import gc
import pickle
import random
import weakref

import keras
import numpy as np
import pytest
from callback_fakes import OUTAGE, PAUSE, STOP, FakeTrial
from callback_studies import study

from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    two = [tf.config.LogicalDeviceConfiguration()] * 2  # before TensorFlow's first operation
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


def net(dropout=0.0, compiled=False, **layer):
    """A tiny model; compiling its steps costs TensorFlow a second or two, so most checks do without."""
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dropout(dropout), keras.layers.Dense(1, **layer)]
    )
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


def test_a_fit_planned_too_long_ends_at_the_trials_horizon():
    trial = FakeTrial(max_epochs=2)
    fit(trial, epochs=5)
    assert trial.epochs == [1, 2]


def test_a_stop_that_another_callback_takes_back_is_given_again():
    class TakesBack(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch < 3:
                self.model.stop_training = False

    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    fit(trial, TakesBack(), epochs=9)
    assert trial.epochs == [1, 2, 3, 4]
    assert [r["judge"] for r in trial.reports] == [True, True, False, False]


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


def test_initial_epoch_counts_on():
    trial = FakeTrial(max_epochs=4, epoch=2.0)
    fit(trial, epochs=4, initial_epoch=2)
    assert trial.epochs == [3, 4]


def test_a_fit_begun_again_is_ignored_with_a_warning_that_names_initial_epoch():
    trial = FakeTrial(max_epochs=3, epoch=2.0)
    with pytest.warns(HaltuneWarning, match="initial_epoch=int"):
        fit(trial)
    assert trial.epochs == [3]


def test_a_fit_in_two_parts_is_one_trial():
    trial = FakeTrial(max_epochs=4)
    callback, model = HaltuneCallback(trial), net()
    with pytest.warns(HaltuneWarning, match="plans 2 epochs"):
        model.fit(X, Y, validation_data=(X, Y), epochs=2, callbacks=[callback], verbose=0)
    model.fit(X, Y, validation_data=(X, Y), epochs=4, initial_epoch=2, callbacks=[callback], verbose=0)
    assert (trial.epochs, trial.endings) == ([1, 2, 3, 4], [None])


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


def test_evaluate_alone_says_nothing():
    trial = FakeTrial()
    model, callback, _ = fit(trial)
    model.evaluate(X, Y, callbacks=[callback], verbose=0)
    model.predict(X, callbacks=[callback], verbose=0)
    assert trial.epochs == [1, 2, 3]


def seed_everything(seed):
    if keras.backend.backend() == "torch":  # keras.utils.set_random_seed would import TensorFlow
        import torch

        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - Keras draws from it
        random.seed(seed)
    else:
        keras.utils.set_random_seed(seed)


@pytest.mark.parametrize("stops", [False, True])
def test_the_same_seed_gives_bit_equal_weights_with_and_without(stops):
    def weights(epochs, *callbacks):
        seed_everything(3)
        model = net(dropout=0.4, compiled=True)
        options = {"validation_data": (X, Y), "verbose": 0, "batch_size": 4}
        model.fit(X, Y, epochs=epochs, callbacks=list(callbacks), **options)
        return np.concatenate([w.ravel() for w in model.get_weights()])

    trial = FakeTrial(verdicts={2.0: STOP} if stops else {})
    told = weights(3, HaltuneCallback(trial))
    np.testing.assert_array_equal(told, weights(2 if stops else 3))
    assert len(trial.reports) == (2 if stops else 3)


def test_the_callback_holds_no_model_and_copies_and_pickles():
    trial = FakeTrial()
    model, callback, _ = fit(trial)
    assert not any(isinstance(v, (keras.Model, weakref.ref)) for v in vars(callback).values())
    for twin in (copy.copy(callback), copy.deepcopy(callback)):
        assert isinstance(twin, keras.callbacks.Callback)
        assert isinstance(twin, HaltuneCallback)
        assert twin.trial is trial
    packed = pickle.loads(pickle.dumps(callback))
    assert isinstance(packed, keras.callbacks.Callback)
    with pytest.raises(NotSupported, match="unpickled"):
        model.fit(X, Y, validation_data=(X, Y), epochs=1, callbacks=[packed], verbose=0)


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
    if keras.backend.backend() == "torch":  # TensorFlow's compiled functions keep it themselves
        assert callback.model is None


def test_an_outage_does_not_end_the_training():
    trial = FakeTrial()

    class Breaks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            trial.broken = OUTAGE if epoch < 2 else None

    with pytest.warns(HaltuneWarning, match="training goes on") as caught:
        fit(trial, Breaks())
    assert len([w for w in caught if issubclass(w.category, HaltuneWarning)]) == 1
    assert trial.epochs == [1, 2, 3]
    assert [r["judge"] for r in trial.reports] == [False, False, True]


def test_a_misspelt_metric_lists_what_was_logged_and_the_nearest_name():
    with pytest.raises(
        InvalidInput, match=r"'val_lss' was not logged.*loss, mae, val_loss, val_mae\..*mean 'val_loss'\?"
    ):
        fit(FakeTrial(), monitor="val_lss")
    with pytest.raises(InvalidInput, match=r"mean 'mae'\?"):
        fit(FakeTrial(), monitor="mea", validation_freq=2)


def test_a_fit_without_validation_data_says_so_at_its_end():
    with pytest.raises(
        InvalidInput, match=r"in this fit\. What was logged: loss, mae\..*Give model\.fit validation data"
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


def test_a_verdict_to_pause_says_not_yet():
    with pytest.raises(NotSupported, match="pause and resume a training yet"):
        fit(FakeTrial(verdicts={1.0: PAUSE}))


def test_a_nan_is_forwarded():
    trial = FakeTrial("val_loss", max_epochs=1)
    fit(trial, epochs=1, model=net(kernel_initializer=keras.initializers.Constant(float("nan"))))
    assert np.isnan(trial.values[0])


def test_several_workers_say_not_yet(monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    )
    with pytest.raises(NotSupported, match=r"TF_CONFIG with 2 workers.*yet"):
        fit(FakeTrial())
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}}')
    trial = FakeTrial()
    fit(trial)
    assert trial.epochs == [1, 2, 3]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's")
def test_a_strategy_of_several_replicas_says_not_yet():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = net()
    with pytest.raises(NotSupported, match=r"MirroredStrategy.*yet"):
        fit(FakeTrial(), model=model)


def test_no_hook_works_on_batches():
    from keras.src import utils

    callback = HaltuneCallback(FakeTrial())
    for phase in ("", "train_", "test_", "predict_"):
        for moment in ("begin", "end"):
            assert utils.is_default(getattr(callback, f"on_{phase}batch_{moment}"))


def test_a_real_study_stops_fits_and_goes_on_after_a_failure(tmp_path):
    s = study(f"sqlite:///{tmp_path}/search.db")
    for trial in s:
        with trial:
            fit(trial, *([Raises()] if trial.id == 1 else []), epochs=trial.max_epochs)
    assert [t.status for t in s.trials] == ["completed", "failed", "stopped"]
    assert [t.epochs.tolist() for t in s.trials] == [[1, 2, 3, 4], [1], [1, 2]]
