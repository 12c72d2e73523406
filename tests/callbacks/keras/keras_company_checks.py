"""Other callbacks and trackers with HaltuneCallback. Run by test_callback.py in a process of its own."""

import csv
import math

import keras
import numpy as np
import pytest
from callback_fakes import PAUSE, STOP, FakeTrial

from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import HaltuneWarning
from haltune.log.decisions import stop

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


def fit(trial, *callbacks):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
    callbacks = callbacks or [HaltuneCallback(trial)]
    data = {"x": X, "y": Y, "batch_size": 4, "verbose": 0}
    return model.fit(epochs=trial.max_epochs, callbacks=list(callbacks), **data)


def test_an_early_stopping_that_fires_before_the_first_rung_gives_one_warning():
    trial = FakeTrial("loss", max_epochs=9, verdicts={1.0: STOP})
    trial.until = 3
    impatient = keras.callbacks.EarlyStopping(monitor="loss", patience=1)
    with pytest.warns(HaltuneWarning, match=r"EarlyStopping\(patience=1\).*before epoch 3.*patience=3") as caught:
        fit(trial, HaltuneCallback(trial), impatient)
    assert len([w for w in caught if issubclass(w.category, HaltuneWarning)]) == 1
    for patience, until in ((2, 3), (2, 9)):  # patient enough; or no rung at all
        trial = FakeTrial("loss", max_epochs=9, verdicts={1.0: STOP})
        trial.until = until
        fit(trial, keras.callbacks.EarlyStopping(monitor="loss", patience=patience), HaltuneCallback(trial))


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("behind", [False, True])
def test_a_csv_logger_gets_the_verdict_wherever_it_stands(tmp_path, behind):
    path = tmp_path / "log.csv"
    verdict = stop("hopeless", p_win=0.25)
    trial = FakeTrial("loss", max_epochs=5, verdicts={2.0: verdict})
    pair = [keras.callbacks.CSVLogger(path), HaltuneCallback(trial)]
    history = fit(trial, *(pair[::-1] if behind else pair))
    first, second = rows(path)
    assert [float(row["loss"]) for row in (first, second)] == history.history["loss"]
    assert (first["haltune_verdict"], first["haltune_p_win"]) == ("0.0", "nan")
    assert [float(second[f"haltune_{n}"]) for n in ("verdict", "p_win", "epochs_saved")] == [2, 0.25, 3]


def test_a_pause_is_logged_as_one_and_a_declined_one_as_none(tmp_path):
    trial = FakeTrial("loss", max_epochs=5, verdicts={1.0: PAUSE, 2.0: PAUSE})

    class Full(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            trial.full = OSError("full") if epoch == 0 else None

    path = tmp_path / "log.csv"
    with pytest.warns(HaltuneWarning, match="full"):
        fit(trial, keras.callbacks.CSVLogger(path), HaltuneCallback(trial), Full())
    assert [float(row["haltune_verdict"]) for row in rows(path)] == [0, 1]


def test_without_a_tracker_the_history_stays_as_it_is():
    trial = FakeTrial("loss")
    assert set(fit(trial).history) == {"loss"}


def test_each_callback_is_called_once_and_only_trackers_move(tmp_path):
    calls = []

    def spy(base, name):
        def record(hook):
            return lambda self, *args, **kwargs: calls.append((name, hook))

        hooks = ("on_train_begin", "on_epoch_end", "on_train_end")
        return type(name, (base,), {hook: record(hook) for hook in hooks})

    trial, path = FakeTrial("loss", max_epochs=1), tmp_path / "log.csv"
    plain, logger = keras.callbacks.Callback, keras.callbacks.CSVLogger
    before, tracker = spy(plain, "before")(), spy(logger, "tracker")(path)
    fit(trial, tracker, before, HaltuneCallback(trial), spy(plain, "after")())
    begun = [name for name, hook in calls if hook == "on_train_begin"]
    ended = [name for name, hook in calls if hook == "on_epoch_end"]
    assert begun == ["tracker", "before", "after"]
    assert ended == ["before", "tracker", "after"]
    assert len(calls) == 9


def test_tensorboard_gets_the_verdict_and_the_reason(tmp_path):
    """The real one, where it is installed; it writes with TensorFlow on every backend."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("tensorflow")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trial = FakeTrial("loss", max_epochs=5, verdicts={2.0: stop("hopeless", p_win=0.25)})
    fit(trial, keras.callbacks.TensorBoard(tmp_path, write_graph=False), HaltuneCallback(trial))
    seen = EventAccumulator(str(tmp_path / "train"), size_guidance={"tensors": 0}).Reload()
    import tensorflow as tf

    def values(tag):
        return [float(tf.make_ndarray(e.tensor_proto)) for e in seen.Tensors(tag)]

    assert values("epoch_haltune_verdict") == [0, 2]
    assert values("epoch_haltune_epochs_saved") == [0, 3]
    first, last = values("epoch_haltune_p_win")
    assert (math.isnan(first), last) == (True, 0.25)
    (reason,) = seen.Tensors("haltune_reason")
    assert b"hopeless" in tf.make_ndarray(reason.tensor_proto).item()
