"""HaltuneCallback in real Keras fits. Run by test_callback.py in a process for each backend."""

import csv
import gc
import pickle

import keras
import numpy as np
import pytest
from callback_fakes import STOP, FakeTrial
from callback_studies import study
from paused_studies import pausing_study

from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported
from haltune.log.decisions import stop

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


def test_a_stop_holds_although_another_callback_takes_back_every_stop():
    class TakesBack(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = False

    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    fit(trial, TakesBack(), epochs=9)
    assert trial.epochs == [1, 2]


@pytest.mark.slow
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
    with pytest.warns(HaltuneWarning, match="BackupAndRestore continues this trial without its random numbers"):
        _, _, history = fit(again, before=[backup()], epochs=4)
    assert again.attempt == 2
    assert search.trials[0].epochs.tolist() == [1, 2, 3, 4]
    assert search.trials[0].values.tolist() == [*before, *history.history["val_loss"]]


@once
def test_a_subclass_may_keep_its_own_locals():
    class Own(HaltuneCallback):
        def on_train_begin(self, logs=None):
            kept = locals()
            super().on_train_begin(logs)
            found.extend(kept)

    found = []
    net().fit(X, Y, epochs=1, callbacks=[Own(FakeTrial(max_epochs=1), "loss")], verbose=0)
    assert {"self", "logs"} <= {*found}


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


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's processes")
def test_jaxs_processes_are_refused_with_a_sentence(monkeypatch):
    import jax

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(NotSupported, match=r"jax\.distributed with 2 processes"):
        fit(FakeTrial())


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


@once
def test_an_early_stopping_that_fires_before_the_first_rung_gives_one_warning():
    trial = FakeTrial("loss", max_epochs=9, verdicts={1.0: STOP})
    trial.pause_at = 3
    impatient = keras.callbacks.EarlyStopping(monitor="loss", patience=1)
    with pytest.warns(HaltuneWarning, match=r"EarlyStopping\(patience=1\).*before epoch 3.*patience=3") as caught:
        fit(trial, impatient, epochs=9, validation=False)
    assert len([w for w in caught if issubclass(w.category, HaltuneWarning)]) == 1
    for patience, until in ((2, 3), (2, 9)):  # patient enough; or no rung at all
        trial = FakeTrial("loss", max_epochs=9, verdicts={1.0: STOP})
        trial.pause_at = until
        fit(
            trial, epochs=9, validation=False, before=[keras.callbacks.EarlyStopping(monitor="loss", patience=patience)]
        )


@once
@pytest.mark.parametrize("behind", [False, True])
def test_a_csv_logger_gets_the_verdict_wherever_it_stands(tmp_path, behind):
    trial = FakeTrial("loss", max_epochs=5, verdicts={2.0: stop("hopeless", p_win=0.25)})
    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    company = {"before": [logger]} if behind else {}
    _, _, history = fit(trial, *([] if behind else [logger]), epochs=5, validation=False, **company)
    with (tmp_path / "log.csv").open() as file:
        first, second = csv.DictReader(file)
    assert [float(row["loss"]) for row in (first, second)] == history.history["loss"]
    assert (first["haltune_verdict"], first["haltune_p_win"]) == ("0.0", "nan")
    assert [float(second[f"haltune_{n}"]) for n in ("verdict", "p_win", "epochs_saved")] == [2, 0.25, 3]


@once
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"validation": False}, r"validation_data=\(x, y\) or validation_split=0\.2"),
        ({"validation_freq": 4}, "validation_freq=4 is above epochs=3"),
    ],
)
def test_a_fit_that_validates_in_no_epoch_says_so_before_it_trains(given, said):
    model = net()
    with pytest.raises(
        InvalidInput, match=f"'val_loss' is one of validations, but this fit validates in no epoch.*{said}"
    ):
        fit(FakeTrial(max_epochs=3), model=model, **given)
    assert model.optimizer.iterations == 0


@once
def test_a_fit_whose_validations_never_come_is_named_by_its_cause_where_a_callback_could_log_them():
    with pytest.raises(InvalidInput, match=r"validation_freq=4 is above epochs=3: lower it"):
        own = type("Own", (keras.callbacks.Callback,), {})()
        fit(FakeTrial(max_epochs=3), keras.callbacks.LambdaCallback(), before=[own], validation_freq=4)


@once
def test_a_validation_metric_may_come_from_a_callback_of_the_users_own():
    class Scores(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_f1"] = epoch / 4

    trial = FakeTrial("val_f1")
    fit(trial, Scores(), validation=False)
    assert trial.values == [0, 0.25, 0.5]


@once
def test_a_fit_without_a_validation_metric_says_so_at_its_end():
    class Scores(keras.callbacks.Callback):
        pass

    with pytest.raises(InvalidInput, match=r"in this fit\. Logged names: loss, mae\. Give model\.fit validation_data="):
        fit(FakeTrial(), Scores(), validation=False)


@once
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_model_that_a_checkpoint_of_another_trial_holds_is_not_trained(tmp_path, whole):
    path = tmp_path / ("shared.keras" if whole else "shared.weights.h5")
    s = study(trials=2, epochs=3)
    with pytest.raises(NotSupported, match="loaded a state of trial 0"):
        for trial in s:
            with trial:
                model = keras.models.load_model(path) if whole and path.exists() else net()
                if not whole and path.exists():
                    model.load_weights(path)
                fit(trial, keras.callbacks.ModelCheckpoint(path, save_weights_only=not whole), model=model)
    assert [t.status for t in s.trials] == ["completed", "interrupted"]


@once
def test_a_model_object_that_another_trial_has_trained_is_refused():
    s, model = study(trials=2, epochs=3), net()
    with pytest.raises(NotSupported, match="trains the model object that trial 0 has trained"):
        for trial in s:
            with trial:
                fit(trial, model=model)
    assert [t.status for t in s.trials] == ["completed", "interrupted"]


def by_fit(model):
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)


def by_batch(model):
    model.train_on_batch(X, Y)


def by_hand(model):
    """One step of the program's own: in compiled code with TensorFlow, without a gradient with JAX."""
    x, y, weights = *map(keras.ops.convert_to_tensor, (X, Y)), model.trainable_variables
    if BACKEND == "tensorflow":
        import tensorflow as tf

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((model(x) - y) ** 2)
            model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        step()
    elif BACKEND == "torch":
        import torch

        model.zero_grad()
        keras.ops.mean((model(x) - y) ** 2).backward()
        with torch.no_grad():
            model.optimizer.apply([w.value.grad for w in weights], weights)
    else:
        model.optimizer.apply([keras.ops.ones(w.shape) for w in weights], weights)


WAYS = pytest.mark.parametrize("steps", [by_fit, by_batch, by_hand])


@WAYS
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_model_that_another_trial_has_trained_is_refused_in_a_loop_of_the_programs_own(steps, epochs):
    s = pausing_study(at=(), trials=2, epochs=epochs, verbose=0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    def train(trial):
        model.compile(keras.optimizers.SGD(trial.config["lr"]), "mse", run_eagerly=True)
        for _ in trial.epochs():
            steps(model)
            left.append(model.get_weights())
            trial.report(model.evaluate(X, Y, verbose=0))

    left = []
    with pytest.raises(NotSupported, match=r"Trial 1 would .* the layer 'dense\w*' that trial 0 has trained. Build "):
        for trial in s:
            with trial:
                train(trial)
    assert len(left) == epochs
    assert all((now == last).all() for now, last in zip(model.get_weights(), left[-1], strict=True))


@WAYS
def test_a_model_that_each_trial_sets_to_its_first_weights_is_no_fault_in_a_loop_of_the_programs_own(steps, tmp_path):
    s = pausing_study(at=(1, 2), trials=2, epochs=3, verbose=0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.save_weights(path := tmp_path / "first.weights.h5")
    for trial in s:
        with trial:
            model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
            model.load_weights(trial.checkpoint or path)
            for _ in trial.epochs():
                steps(model)
                if trial.report(model.evaluate(X, Y, verbose=0)).stops:
                    trial.save(model.save_weights, ".weights.h5")
    assert s.trials[0].values.tolist() == s.trials[1].values.tolist()
    assert [t.attempt for t in s.trials] == [3, 3]


@WAYS
@pytest.mark.parametrize("frozen", [True, False])
def test_a_base_in_a_loop_of_the_programs_own_is_refused_only_if_it_is_trained_in_both_trials(steps, frozen):
    base = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh", name="hidden")])
    s = pausing_study(at=(), trials=3, epochs=2, verbose=0)

    def search():
        for trial in s:
            with trial:
                base.trainable = trial.id == 0 or (trial.id == 2 and not frozen)
                model = keras.Sequential([keras.Input((3,)), base, keras.layers.Dense(1)])
                model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
                for _ in trial.epochs():
                    steps(model)
                    trial.report(model.evaluate(X, Y, verbose=0))

    if frozen:
        search()
    else:
        with pytest.raises(NotSupported, match=r"Trial 2 would .* the layer 'hidden' that trial 0 has trained"):
            search()
    assert [t.epoch for t in s.trials] == [2, 2, 2 * frozen]


@pytest.mark.parametrize("calls_back", [False, True])
def test_a_base_that_each_trial_sets_back_may_be_trained_after_trials_that_did_not(calls_back):
    base = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh")])
    first = base.get_weights()
    s = pausing_study(at=(), trials=4, epochs=2, verbose=0)
    for trial in s:
        with trial:
            base.set_weights(first)
            if trial.id == 1:
                raise MemoryError
            base.trainable = trial.id != 2
            model = keras.Sequential([keras.Input((3,)), base, keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=BACKEND != "jax")
            if calls_back:
                data = {"validation_data": (X, Y), "epochs": 2, "verbose": 0}
                model.fit(X, Y, callbacks=[HaltuneCallback(trial, "val_loss")], **data)
            else:
                for _ in trial.epochs():
                    model.fit(X, Y, verbose=0)
                    trial.report(model.evaluate(X, Y, verbose=0))
    assert [t.status.value for t in s.trials] == ["completed", "failed", "completed", "completed"]


def test_a_model_that_a_program_keeps_may_be_trained_after_the_search():
    s, kept = pausing_study(at=(), trials=3, epochs=1, verbose=0), []
    for trial in s:
        with trial:
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=BACKEND != "jax")
            for _ in trial.epochs():
                model.fit(X, Y, verbose=0)
                trial.report(model.evaluate(X, Y, verbose=0))
            kept.append({"model": model})
    del model
    for one in kept:
        one["model"].fit(X, Y, verbose=0)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.data")
def test_a_dataset_that_shuffles_from_a_seed_is_named_where_a_loop_of_the_programs_own_resumes(caplog):
    from tensorflow.data import Dataset

    orders = {}

    def search(at):
        for trial in pausing_study(at=at, trials=1, epochs=3):
            with trial:
                data = Dataset.range(16).shuffle(16, seed=1).batch(4)
                fixed = Dataset.range(16).shuffle(16, seed=1, reshuffle_each_iteration=False)
                assert trial.checkpoint is None or trial.epoch
                for _ in trial.epochs():
                    orders.setdefault(at, []).append([batch.tolist() for batch in data.as_numpy_iterator()])
                    if trial.report(len(fixed)).stops:
                        trial.save(lambda path: path.write_text("state"))

    with caplog.at_level("INFO", "haltune"):
        search(())
        assert "reorders" not in caplog.text
        search((2,))
    assert orders[()][:2] == orders[(2,)][:2]
    assert orders[()][2] != orders[(2,)][2] == orders[()][0]
    assert "Trial 0 has resumed after epoch 2, and its program reorders data. haltune does not restore" in caplog.text


@once
@pytest.mark.parametrize("thaws", [False, True])
def test_a_base_that_another_trial_has_trained_is_refused_unless_its_weights_are_set_again(thaws):
    base = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh", name="hidden")])
    start, resets, s = base.get_weights(), True, pausing_study(at=(), trials=3, epochs=3, verbose=0)

    def train(trial):
        if resets:
            base.set_weights(start)
        base.trainable = not thaws
        model = keras.Sequential([keras.Input((3,)), base, keras.layers.Dense(1)])
        for end in (1, 3):
            model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
            if trial.ended is None:
                fit(trial, model=model, epochs=end, initial_epoch=int(trial.epoch))
            base.trainable = True

    for _ in range(2):
        with s.ask() as trial:
            train(trial)
    resets = False
    with s.ask() as trial, pytest.raises(NotSupported, match="the layer 'hidden' as trial 1 has left it"):
        train(trial)
    assert [len(t.values) for t in s.trials] == [3, 3, 0]


@once
def test_weights_of_no_trial_are_trained_by_each():
    weights = net().get_weights()
    s = study(trials=2, epochs=3)
    for trial in s:
        with trial:
            model = net()
            model.set_weights(weights)
            fit(trial, model=model)
    assert [t.status for t in s.trials] == ["completed", "stopped"]


def runs_out_of_memory(epoch):
    class RunsOut(keras.callbacks.Callback):
        def on_epoch_begin(self, at, logs=None):
            if at == epoch:
                raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    return RunsOut()


@once
def test_a_new_model_after_out_of_memory_does_not_count_the_epochs_of_the_first():
    s = study(trials=1, epochs=3)
    trial = s.ask()
    with pytest.raises(NotSupported, match=r"has trained another model to epoch 2.*initial_epoch=0"), trial:
        try:
            fit(trial, runs_out_of_memory(2))
        except RuntimeError:
            fit(trial, initial_epoch=trial.epoch)
    (record,) = s.trials
    assert (record.status, record.epoch) == ("interrupted", 2)


@once
def test_fits_that_share_a_trained_layer_or_weights_are_one_training():
    for share in ("layer", "weights"):
        s = study(trials=1, epochs=3)
        trial = s.ask()
        with trial:
            first = net()
            with pytest.raises(RuntimeError):
                fit(trial, runs_out_of_memory(2), model=first)
            second = keras.Sequential([first, keras.layers.Dense(1)]) if share == "layer" else net()
            if share == "weights":
                second.set_weights(first.get_weights())
            second.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
            fit(trial, model=second, initial_epoch=trial.epoch)
        assert [(t.status, t.epoch) for t in s.trials] == [("completed", 3)]


@once
def test_several_processes_are_refused_with_a_sentence(monkeypatch):
    import torch.distributed

    workers = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", workers)
    with pytest.raises(NotSupported, match=r"several processes \(TF_CONFIG with 2 workers\).*Train in one"):
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
