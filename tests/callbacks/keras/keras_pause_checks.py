"""Saving and resuming a paused Keras training, and the messages if it cannot pause. Run by test_callback.py."""

import keras
import numpy as np
import pytest
from callback_fakes import FakeTrial
from keras_resume_checks import BACKEND, X, Y, momentum, net, seed_everything
from paused_studies import pausing_study

from haltune import Budget
from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def fit(trial, model=None, *others, **options):
    model = model or net(momentum(0.01))
    options = {"epochs": 4, "validation_data": (X, Y), "callbacks": [HaltuneCallback(trial), *others]} | options
    return model.fit(X, Y, verbose=0, batch_size=4, **options)


def test_an_average_of_the_weights_is_not_taken_for_the_weights():
    """Keras puts the average in place before on_train_end: a state saved then cannot resume."""
    study = pausing_study()
    with study.ask() as trial:
        model = net(keras.optimizers.SGD(0.1, use_ema=True))
        fit(trial, model)
    saved = keras.saving.load_model(trial.checkpoint)
    weights, average = (saved.trainable_variables[0].numpy(), saved.optimizer._model_variables_moving_average[0])
    assert not np.array_equal(weights, keras.ops.convert_to_numpy(average))
    np.testing.assert_array_equal(model.trainable_variables[0].numpy(), keras.ops.convert_to_numpy(average))


def test_the_last_weights_are_saved_and_not_those_that_early_stopping_restores():
    trial = pausing_study().ask()
    best_first = {"monitor": "val_loss", "mode": "max", "restore_best_weights": True}
    seed_everything(1)  # of which the loss falls
    model = net(momentum(0.01))
    with pytest.warns(HaltuneWarning, match=r"Make the goal Minimize\('val_loss', of='best'\)"):
        fit(trial, model, keras.callbacks.EarlyStopping(patience=9, **best_first))
    saved = keras.saving.load_model(trial.checkpoint)
    assert not np.array_equal(saved.get_weights()[0], model.get_weights()[0])


def test_the_file_is_a_model_that_keras_itself_loads():
    trial = pausing_study().ask()
    model = net(momentum(0.1))
    fit(trial, model)
    assert trial.checkpoint.endswith(".keras")
    loaded = keras.saving.load_model(trial.checkpoint)
    for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not trial.load_model(compile=False).compiled


class Halved(keras.layers.Layer):
    def call(self, x):
        return x / 2


def test_a_class_of_the_users_is_handed_over_and_missed_with_advice():
    study = pausing_study()
    for trial in study:
        with trial:
            if trial.checkpoint:
                with pytest.raises(NotSupported, match=r"Could not locate.*load_model\(custom_objects="):
                    trial.load_model()
            model = trial.load_model(custom_objects={"Halved": Halved}) or keras.Sequential(
                [keras.Input((3,)), Halved(), keras.layers.Dense(1)]
            )
            if trial.checkpoint is None:
                model.compile("sgd", "mse")
            options = {"epochs": 4, "initial_epoch": trial.epoch, "callbacks": [HaltuneCallback(trial)]}
            model.fit(X, Y, validation_data=(X, Y), verbose=0, **options)
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4]


def resumed():
    """A trial that paused after two of its four epochs and is offered again."""
    study = pausing_study()
    with study.ask() as trial:
        fit(trial)
    return study.ask()


def test_a_fresh_model_for_a_resumed_trial_is_an_error():
    with pytest.raises(NotSupported, match=r"continues after epoch 2.*trial\.load_model\(\) or make_model"):
        fit(resumed(), initial_epoch=2)


@pytest.mark.parametrize("changes", ["weights", "rate"])
def test_what_a_program_sets_in_each_attempt_does_not_replace_what_the_trial_has_trained(changes):
    start, curves = net(momentum(0.01)).get_weights(), []
    for at in ((), (2,)):
        study = pausing_study(at=at, verbose=0)
        for trial in study:
            with trial:
                seed_everything(3)
                model = trial.load_model() or net(momentum(0.01))
                if changes == "weights":
                    model.set_weights(start)  # of a pretraining
                else:
                    model.optimizer.learning_rate = 0.02
                plateau = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=1e3)
                fit(trial, model, plateau, initial_epoch=trial.epoch)
        curves.append(study.trials[0].values.tolist())
    assert curves[0] == curves[1]


def test_a_model_compiled_again_is_an_error_as_its_optimizer_is_lost():
    trial = resumed()
    model = trial.load_model()
    model.compile("sgd", "mse")
    with pytest.raises(NotSupported, match="do not compile the loaded model again"):
        fit(trial, model, initial_epoch=2)


def test_a_loaded_model_that_counts_from_its_start_is_an_error():
    trial = resumed()
    with pytest.raises(NotSupported, match=r"has been trained, but counts from epoch 0.*initial_epoch=trial\.epoch"):
        fit(trial, trial.load_model())


def test_an_optimizer_whose_state_keras_would_leave_out_is_refused_with_the_cause():
    trial = pausing_study().ask()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        fit(trial, net(momentum(0.01)))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    with pytest.raises(InvalidInput, match=r"without the state of its optimizer.*set_global_policy"):
        trial.load_model()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda lr: scaled(lr, 0.3), "Scaled.factor would have another value"),
        (lambda lr: losing(lr, Weighted(0.2)), "Weighted.weight would have another value"),
        (lambda lr: hiding(lr, 0.3), "Hiding._factor would have another value"),
        (lambda lr: frozen_kernel(lr), "a weight 'kernel' has a trainable flag"),
        (lambda lr: undecayed(lr), "excludes from the decay"),
    ],
)
def test_what_no_file_of_keras_has_declines_the_pause(make, why):
    study = pausing_study(keep=1)
    trial = study.ask()
    model = trial.load_model() or make(**trial.config)
    with pytest.warns(HaltuneWarning, match=why):
        fit(trial, model)
    assert len(study.trials[0].epochs) == 4
    if study.best.checkpoint.endswith(".weights.h5"):  # a whole model would have another value
        best = study.best.load_model(make)
        np.testing.assert_allclose(best.evaluate(X, Y, verbose=0), study.best.value, rtol=1e-5)


@keras.saving.register_keras_serializable()
class Scaled(keras.layers.Layer):
    def __init__(self, factor=1.0, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, x):
        return x * self.factor

    def get_config(self):
        return super().get_config()


@keras.saving.register_keras_serializable()
class Weighted(keras.losses.Loss):
    def __init__(self, weight=1.0, **options):
        super().__init__(**options)
        self.weight = weight

    def call(self, y, p):
        return self.weight * keras.ops.mean((y - p) ** 2, -1)


def losing(lr, loss):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(momentum(lr), loss)
    return model


def scaled(lr, factor):
    model = keras.Sequential([keras.Input((3,)), Scaled(factor), keras.layers.Dense(1)])
    model.compile(momentum(lr), "mse")
    return model


@keras.saving.register_keras_serializable()
class Hiding(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self._factor = 1.0

    def call(self, x):
        return x * self._factor


def hiding(lr, factor):
    model = keras.Sequential([keras.Input((3,)), Hiding(), keras.layers.Dense(1)])
    model.layers[0]._factor = factor
    model.compile(momentum(lr), "mse")
    return model


def frozen_kernel(lr, freeze=True):
    model = losing(lr, "mse")
    model.layers[0].kernel.trainable = not freeze
    return model


def test_the_file_of_each_trial_is_compared_with_its_model():
    study = pausing_study(at=(1,), trials=2)
    first, second = study.ask(), study.ask()
    with first:
        fit(first, first.load_model() or frozen_kernel(**first.config, freeze=False))
    with second, pytest.warns(HaltuneWarning, match="kernel' has a trainable flag"):
        fit(second, second.load_model() or frozen_kernel(**second.config))
    assert [len(t.epochs) for t in study.trials] == [1, 4]


def test_files_of_models_of_keras_own_classes_are_tested_once_if_only_numbers_differ(monkeypatch):
    def build(lr, units=4, activation="tanh"):
        layers = [keras.layers.Dense(units, activation), keras.layers.Dense(1, kernel_regularizer="l2")]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile(momentum(lr), "mse")
        return model

    loaded, load = [], keras.saving.load_model
    monkeypatch.setattr(
        keras.saving, "load_model", lambda path, **options: loaded.append(path) or load(path, **options)
    )
    study = pausing_study(at=(1,), trials=3)
    trials = [study.ask() for _ in range(3)]
    for trial, changed in zip(trials, ({}, {"units": 5}, {"activation": "silu"}), strict=True):
        with trial:
            fit(trial, trial.load_model() or build(**trial.config, **changed))
    assert [len(t.epochs) for t in study.trials] == [1, 1, 1]
    assert len(loaded) == 2


@keras.saving.register_keras_serializable()
class Annealed(keras.Model):
    """A number that changes is in its file, another one is not."""

    def __init__(self, weight=1.0, **options):
        super().__init__(**options)
        self.weight, self.factor, self.dense = weight, 1.0, keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x) * self.weight * self.factor

    def get_config(self):
        return super().get_config() | {"weight": self.weight}


class Anneals(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.weight = 1 / (1 + epoch)


def annealed(lr, factor=0.5):
    model = Annealed()
    model.factor = factor
    model.compile(momentum(lr), "mse", run_eagerly=True)  # a compiled step would not read the weight again
    model.build((None, 3))
    return model


@pytest.mark.parametrize("by_function", [False, True])
def test_a_model_of_which_only_weights_can_be_saved_is_not_kept_if_a_number_that_it_evaluates_by_changes(by_function):
    study = pausing_study(at=(), keep=1)
    trial = study.ask()
    model = trial.load_model(annealed) if by_function else trial.load_model() or annealed(**trial.config)
    with pytest.warns(HaltuneWarning, match=r"is not kept: Annealed\.weight changes in training"):
        fit(trial, model, Anneals())
    assert study.best.checkpoint is None


def test_a_number_that_a_model_evaluates_by_and_its_file_has_is_kept():
    study = pausing_study(at=(), keep=1)
    trial = study.ask()
    fit(trial, trial.load_model() or annealed(**trial.config, factor=1.0), Anneals())
    np.testing.assert_allclose(study.best.load_model().evaluate(X, Y, verbose=0), study.best.value, rtol=1e-5)


@pytest.mark.skipif(BACKEND == "jax", reason="there a test_step takes the state of the model")
@pytest.mark.parametrize("does", ["collects", "reads what it resets", "reads"])
def test_a_model_is_kept_whose_evaluation_collects_or_resets_what_it_reads(does):
    class Collects(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.seen, self.by_name, self.count = keras.layers.Dense(1), [], {"y": []}, 0
            self.dense.build((None, 3))
            self.built = True

        def call(self, x):
            return self.dense(x)

        def test_step(self, data):
            self.seen.append(float(keras.ops.mean(data[1])))
            self.by_name["y"].append(1.0)
            self.count += 1
            return self.logged(keras.ops.mean((self(data[0]) - data[1]) ** 2))

        def logged(self, loss):
            (metric,) = self.metrics
            metric.update_state(loss)
            return {"loss": metric.result()}

    class Reads(Collects):
        def logged(self, loss):
            return super().logged(loss * len(self.seen))

    class Resets(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            self.model.seen = []

    def make(lr):
        model = Collects() if does == "collects" else Reads()
        model.compile(momentum(lr), "mse", run_eagerly=True)
        return model

    study = pausing_study(at=(), keep=1)
    trial = study.ask()
    model, others = trial.load_model(make), [Resets()] * (does == "reads what it resets")
    if does != "reads":
        fit(trial, model, *others)
        value = study.best.load_model(make).evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)["loss"]
        np.testing.assert_allclose(value, study.best.value, rtol=1e-5)
        return
    with pytest.warns(HaltuneWarning, match=r"is not kept: Reads\.seen changes in training"):
        fit(trial, model)
    assert study.best.checkpoint is None


class Noisy(keras.layers.Layer):
    rate = 1.0

    def call(self, x, training=False):
        if training and self.rate:
            x = x * self.rate
        return x


class Returns(Noisy):
    def call(self, x, training=False):
        if not training:
            return x
        return x * self.rate


class Chooses(Noisy):
    def call(self, x, training=None):
        return x * (self.rate if training else 1.0)


class Otherwise(Noisy):
    def call(self, x, training=False):
        if not training:
            x = x * self.rate
        return x


class Samples(keras.Model):
    """Its evaluation has noise, too, as with Monte Carlo dropout."""

    def __init__(self, layer):
        super().__init__()
        self.noise, self.dense = layer, keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.dense(self.noise(x, training=True))


@pytest.mark.parametrize(
    ("layer", "samples", "kept"),
    [(Noisy, 0, True), (Returns, 0, True), (Chooses, 0, True), (Otherwise, 0, False), (Noisy, 1, False)],
)
def test_a_model_is_kept_with_a_number_that_a_layer_reads_in_training_alone(layer, samples, kept):
    class Anneals(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            noise.rate = 1 / (1 + epoch)

    def make(lr):
        model = Samples(layer()) if samples else keras.Sequential([keras.Input((3,)), layer(), keras.layers.Dense(1)])
        model.build((None, 3))
        model.compile(momentum(lr), "mse", run_eagerly=True)
        return model

    study = pausing_study(at=(), keep=1)
    trial = study.ask()
    model = trial.load_model(make)
    noise = model.noise if samples else model.layers[0]
    if kept:
        fit(trial, model, Anneals())
        value = study.best.load_model(make).evaluate(X, Y, batch_size=4, verbose=0)
        np.testing.assert_allclose(value, study.best.value, rtol=1e-5)
        return
    with pytest.warns(HaltuneWarning, match=rf"is not kept: {layer.__name__}\.rate changes in training"):
        fit(trial, model, Anneals())
    assert study.best.checkpoint is None


def undecayed(lr):
    model = losing(lr, "mse")
    model.optimizer.weight_decay = 0.5
    model.optimizer.exclude_from_weight_decay(var_names=["bias"])
    return model


def adapted(lr):
    model = losing(lr, "mse")
    model.layers[0].enable_lora(2)
    model.compile(momentum(lr), "mse")
    return model


def test_weights_that_keras_merges_in_their_file_decline_the_pause():
    trial = pausing_study().ask()
    model = trial.load_model(adapted)
    with pytest.warns(HaltuneWarning, match="would not be the same: it would have other weights"):
        fit(trial, model)
    assert trial.ended == "completed"


class Halving(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([w / 2 for w in self.model.get_weights()])


def test_a_model_that_a_callback_changes_after_its_evaluation_is_not_kept():
    study = pausing_study(at=(), keep=1)
    trial = study.ask()
    with pytest.warns(HaltuneWarning, match="not the one that was evaluated, so no model is kept"):
        fit(trial, None, Halving())
    assert study.best.checkpoint is None


def test_two_phases_with_two_optimizers_are_one_trial():
    """Fine-tuning compiles again in the middle: that is no model forgotten."""
    trial, model = FakeTrial(max_epochs=4), net(momentum(0.1))
    callback = HaltuneCallback(trial)
    model.fit(X, Y, validation_data=(X, Y), epochs=2, callbacks=[callback], verbose=0)
    model.compile("sgd", "mse")
    model.fit(X, Y, validation_data=(X, Y), epochs=4, initial_epoch=2, callbacks=[callback], verbose=0)
    assert trial.epochs == [1, 2, 3, 4]


def test_a_model_that_cannot_be_saved_trains_on_and_leaves_nothing_behind(tmp_path):
    class Stubborn(keras.layers.Layer):
        def call(self, x):
            return x

        def save_own_variables(self, store):
            raise OSError("no space left")

    study = pausing_study(folder=tmp_path)
    model = keras.Sequential([keras.Input((3,)), Stubborn(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for trial in study:
        with trial, pytest.warns(HaltuneWarning, match="no space left"):
            fit(trial, model)
    assert study.trials[0].status == "completed"
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.parametrize(("behind", "options"), [(False, {}), (True, {"at": (), "budget": Budget(epochs=2)})])
def test_early_stopping_in_the_epoch_of_a_pause_completes_the_trial_wherever_it_stands(behind, options):
    study = pausing_study(**options)
    trial = study.ask()
    company = [keras.callbacks.EarlyStopping("val_loss", min_delta=1e9, patience=1), HaltuneCallback(trial)]
    model = net(momentum(0.01))
    with trial:
        fit(trial, model, callbacks=company[::-1] if behind else company)
    assert study.trials[0].epochs.tolist() == [1, 2]
    assert study.trials[0].status == "completed"
    assert model.stop_training is True


def test_a_loss_whose_file_lacks_a_setting_declines_the_pause_and_keeps_weights():
    def make(lr=0.1):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", keras.losses.Huber(0.01))
        return model

    study = pausing_study(at=(1,), epochs=2, keep=1, verbose=0)
    for trial in study:
        with trial, pytest.warns(HaltuneWarning, match=r"loses \{'delta': 0\.01\} of Huber"):
            model = trial.load_model() or make()
            model.fit(X, Y, epochs=2, validation_data=(X, Y), verbose=0, callbacks=[HaltuneCallback(trial)])
    assert study.trials[0].attempt == 1
    kept = study.best.load_model(make).evaluate(X, Y, verbose=0)
    assert kept == pytest.approx(study.best.value, rel=1e-5)


@keras.saving.register_keras_serializable()
class Plain(keras.optimizers.SGD):
    """An optimizer of the program's own."""


def test_an_own_class_of_optimizer_pauses():
    study = pausing_study(at=(1,), epochs=2, verbose=0)
    for trial in study:
        with trial:
            model = trial.load_model() or net(Plain(0.01, momentum=0.9))
            plan = {"epochs": 2, "initial_epoch": trial.epoch, "callbacks": [HaltuneCallback(trial)]}
            model.fit(X, Y, validation_data=(X, Y), verbose=0, **plan)
    assert study.trials[0].attempt == 2
