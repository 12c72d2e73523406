"""State outside of a model's file, in trainings that pause: other callbacks, optimizers, flags, the place in the data.

Run by test_callback.py in a process for each backend. A paused training must equal one that never paused.
"""

import contextlib
import datetime
import os
import random
import re
import warnings
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
from callback_fakes import FakeTrial
from keras_resume_checks import BACKEND, X, Y, deep, momentum, net, once, seed_everything, state
from paused_studies import pausing_study

from haltune import Minimize
from haltune.callbacks.keras import HaltuneCallback
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
LENGTH = 9


def trained(train, at, **options):
    """Train a study of one trial by train(trial), which builds all its objects again in each attempt."""
    study = pausing_study(at=at, epochs=options.pop("epochs", LENGTH), verbose=0, **options)
    for trial in study:
        with trial:
            seed_everything(3 if trial.checkpoint is None else 77)
            left = state(train(trial))
    (found,) = study.trials
    return left, found


def assert_equal(train, at=(2, 5), **options):
    straight, alone = trained(train, (), **options)
    paused, found = trained(train, at, **options)
    assert found.attempt == len(at) + 1
    assert (found.epochs.tolist(), found.values.tolist()) == (alone.epochs.tolist(), alone.values.tolist())
    for one, other in zip(straight, paused, strict=True):
        np.testing.assert_array_equal(one, other)
    return found


def fit(trial, model, *callbacks, data=(X, Y), **options):
    x, y = data if isinstance(data, tuple) else (data, None)
    plan = {"epochs": LENGTH, "initial_epoch": int(trial.epoch), "validation_data": (X, Y), "verbose": 0}
    model.fit(
        x,
        y,
        callbacks=[*callbacks, HaltuneCallback(trial)],
        **plan | {"batch_size": 4 if y is not None else None} | options,
    )
    return model


# callbacks


def early(trial):
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=1e3, restore_best_weights=True)
    return fit(trial, trial.load_model() or net(momentum(0.01)), stopping)


def test_early_stopping_ends_a_resumed_training_where_it_would_have_ended():
    found = assert_equal(early, at=(3,), metric=Minimize("val_loss", of="best"))
    assert (found.status, found.epochs.tolist()) == ("completed", [1, 2, 3, 4])


@pytest.mark.parametrize("behind", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_rate_that_falls_on_a_plateau_falls_in_the_same_epoch_wherever_the_callback_stands(behind):
    rates = []

    def train(trial):
        model = trial.load_model() or net(momentum(0.01))
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=2, min_delta=1e3, cooldown=1)
        company = [plateau, HaltuneCallback(trial)]
        model.fit(
            X, Y, epochs=LENGTH, initial_epoch=int(trial.epoch), validation_data=(X, Y), batch_size=4, verbose=0,
            callbacks=company[::-1] if behind else company,
        )  # fmt: skip
        rates.append(float(model.optimizer.learning_rate))
        return model

    assert_equal(train, at=(2, 3))
    assert rates[0] == rates[-1] < 1e-4


class Anneals(keras.callbacks.Callback):
    """A callback of the user's with numbers, a history, a generator and an attribute of its model."""

    def __init__(self):
        super().__init__()
        self.factor, self.seen, self.random = 1.0, [], np.random.default_rng(1)

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(logs["val_loss"])
        self.factor *= 0.9 + 0.1 * self.random.random()
        self.last = self.factor  # new in the first epoch
        optimizer = self.model.optimizer
        optimizer.learning_rate = 0.01 * self.factor / len(self.seen) + 1e-4 * self.last


def test_what_a_callback_of_the_users_remembers_continues():
    assert_equal(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Anneals()))


def test_what_cannot_be_put_back_is_said_when_the_trial_resumes():
    class Order:  # of no module, so a resumed trial cannot make it
        taken = 0

    class Counting(keras.callbacks.Callback):
        order = None

        def on_epoch_end(self, epoch, logs=None):
            self.order = self.order or Order()
            self.order.taken += 1

    with pytest.warns(HaltuneWarning, match=r"has resumed, but Counting\.order could not be restored"):
        trained(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Counting()), (2,))


@pytest.mark.slow
def test_a_schedule_that_counts_its_calls_is_called_once_an_epoch_and_continues():
    calls = []

    def train(trial):
        count = 0

        def schedule(epoch, rate):
            nonlocal count
            count += 1
            calls.append((trial.attempt, epoch))
            return 0.01 / count

        scheduler = keras.callbacks.LearningRateScheduler(schedule)
        return fit(trial, trial.load_model() or net(momentum(0.01)), scheduler)

    assert_equal(train)
    assert [epoch for _, epoch in calls] == [*range(LENGTH)] * 2


class Penalizes(keras.callbacks.Callback):
    """Raises the weight of a penalty, which is a variable in the loss, and no part of the model."""

    def __init__(self, penalty):
        super().__init__()
        self.penalty = penalty

    def on_epoch_begin(self, epoch, logs=None):
        self.penalty.assign(self.penalty + 0.1)


@pytest.mark.slow
def test_a_variable_that_a_callback_changes_continues():
    def train(trial):
        penalty = keras.Variable(0.0, trainable=False)

        def make(lr):
            model = net(momentum(lr))
            model.compile(momentum(lr), lambda y, p: keras.ops.mean((y - p) ** 2) + penalty * keras.ops.mean(p**2))
            return model

        return fit(trial, trial.load_model(make), Penalizes(penalty))

    assert_equal(train)


BETA = keras.Variable(0.0, trainable=False)


class Warms(keras.callbacks.Callback):
    """Changes a variable of its module, which the loss reads."""

    def on_epoch_begin(self, epoch, logs=None):
        BETA.assign(BETA + 0.1)


def warmed(y, p):
    return keras.ops.mean((y - p) ** 2) + BETA * keras.ops.mean(p**2)


@pytest.mark.slow
def test_a_variable_of_a_module_that_a_callback_changes_continues():
    def train(trial):
        BETA.assign(0.0)  # as in another process

        def make(lr):
            model = net(momentum(lr))
            model.compile(momentum(lr), warmed)
            return model

        return fit(trial, trial.load_model(make), Warms())

    if BACKEND == "jax":  # the compiled step has the variable as a constant
        with pytest.warns(HaltuneWarning, match="global BETA changes in training"):
            assert trained(train, (2,))[1].attempt == 1
    else:
        assert_equal(train)


class Noise:
    def __init__(self):
        self.rng = np.random.default_rng(5)


SCALES, NOISE, SEEDS = [keras.Variable(0.01, trainable=False)], Noise(), keras.random.SeedGenerator(7)


class Wanders(keras.callbacks.Callback):
    """Changes a variable in a list of its module, by generators of its module."""

    def on_epoch_end(self, epoch, logs=None):
        drawn = NOISE.rng.random() + float(keras.random.uniform((), seed=SEEDS))
        SCALES[0].assign(SCALES[0] * (0.5 + 0.5 * drawn))
        self.model.optimizer.learning_rate = float(keras.ops.convert_to_numpy(SCALES[0]))


def test_what_lists_and_objects_of_a_module_hold_continues():
    def train(trial):
        SCALES[0].assign(0.01)  # as in another process
        NOISE.rng = np.random.default_rng(5)
        SEEDS.state.assign(np.array([7, 0], "uint32"))
        return fit(trial, trial.load_model() or net(momentum(0.01)), Wanders())

    if BACKEND == "jax":  # a compiled step might have the variable as a constant
        with pytest.warns(HaltuneWarning, match=r"global SCALES\.0 changes in training"):
            assert trained(train, (2,))[1].attempt == 1
    else:
        assert_equal(train)


class Tides:
    """Holds, by name, a variable and a generator."""

    level = keras.Variable(0.01, trainable=False)
    rng = np.random.default_rng(5)


class Ebbs(keras.callbacks.Callback):
    """Changes a variable of another class by generators of this one and of itself."""

    rng = np.random.default_rng(6)

    def on_epoch_end(self, epoch, logs=None):
        Tides.level.assign(Tides.level * (0.5 + 0.25 * (Tides.rng.random() + self.rng.random())))
        self.model.optimizer.learning_rate = float(keras.ops.convert_to_numpy(Tides.level))


@once
def test_what_classes_of_the_program_hold_continues():
    def train(trial):
        Tides.level.assign(0.01)  # as in another process
        Tides.rng, Ebbs.rng = np.random.default_rng(5), np.random.default_rng(6)
        return fit(trial, trial.load_model() or net(momentum(0.01)), Ebbs())

    assert_equal(train)


NOTES = ModuleType("notes")  # a module of the program that this one imports
exec("import numpy as np\nSHARED = np.random.default_rng(9)\ndef noted(): return SHARED.random()", vars(NOTES))
SHARED = np.random.default_rng(8)


def test_generators_with_one_name_in_two_modules_continue():
    class Joins(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.01 * (SHARED.random() + NOTES.noted())

    def train(trial):
        for rng in (SHARED, NOTES.SHARED):  # as in another process
            rng.bit_generator.state = np.random.default_rng(8).bit_generator.state
        return fit(trial, trial.load_model() or net(momentum(0.01)), Joins())

    assert_equal(train)


class Records(keras.callbacks.Callback):
    """Draws from a generator of its module, and records the numbers."""

    def __init__(self, drawn):
        super().__init__()
        self.drawn = drawn

    def on_epoch_end(self, epoch, logs=None):
        self.drawn.append(SHARED.random())


@once
def test_a_generator_of_a_module_continues_in_a_resumed_trial_and_then_where_others_have_left_it():
    fresh, drawn = np.random.default_rng(8), {0: [], 1: []}
    SHARED.bit_generator.state = fresh.bit_generator.state
    for trial in pausing_study(at=(2,), epochs=4, trials=2, verbose=0):
        if trial.attempt == 2:
            SHARED.random()  # as another trial does in between
        with trial:
            fit(trial, trial.load_model() or net(momentum(0.01)), Records(drawn[trial.id]), epochs=4)
    expected = fresh.random(7).tolist()
    assert drawn == {0: expected[:4], 1: expected[3:]}


class Later(keras.callbacks.Callback):
    """Changes a variable from its third epoch on."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= 2:
            self.weight.assign(self.weight + 0.1)
        self.model.optimizer.learning_rate = 0.01 / (1 + float(keras.ops.convert_to_numpy(self.weight)))


class ByEpoch(Later):
    def on_epoch_begin(self, epoch, logs=None):
        self.weight.assign(0.1 * epoch)


class Sets(keras.callbacks.Callback):
    """Sets a variable in each epoch to the same value."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def on_epoch_begin(self, epoch, logs=None):
        self.weight.assign(0.3)


def test_a_variable_that_another_trial_changes_in_between_is_as_at_the_pause():
    weight = keras.Variable(0.0, trainable=False)

    def train(trial):
        weight.assign(0.7 if trial.checkpoint else 0.0)
        return fit(trial, trial.load_model() or net(momentum(0.01)), Later(weight), epochs=4)

    assert_equal(train, at=(2,), epochs=4)


@once
def test_a_variable_that_starts_as_another_trial_has_left_it_is_named():
    weight, study = keras.Variable(0.0, trainable=False), pausing_study(at=(), trials=5, verbose=0)
    for callback in (Sets, Sets, Later, ByEpoch, Later):
        trial = study.ask()
        named = pytest.warns(HaltuneWarning, match=r"has changed Later\.weight")
        with trial, named if trial.id == 4 else contextlib.nullcontext():
            fit(trial, net(momentum(0.01)), callback(weight), epochs=4)


class Weighted(keras.losses.Loss):
    def __init__(self, weight=1.0, name="weighted"):
        super().__init__(name)
        self.weight = weight

    def call(self, y, p):
        return self.weight * (y - p) ** 2

    def get_config(self):
        return {"weight": self.weight, "name": self.name}


class Weighs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.loss.weight = self.model.loss.weight * 0.7


def test_a_number_that_a_callback_changes_in_a_loss_continues():
    def make(lr):
        model = net(momentum(lr))
        model.compile(momentum(lr), Weighted(), metrics=["mse"], run_eagerly=True)
        return model

    assert_equal(lambda trial: fit(trial, trial.load_model(make), Weighs()), metric=Minimize("val_mse"))


class Held(keras.Model):
    """Calls a loss of its own, which compile does not get."""

    def __init__(self):
        super().__init__()
        self.dense, self.pull = keras.layers.Dense(1), Weighted()
        self.dense.build((None, 3))
        self.built = True

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight) + self.pull(keras.ops.zeros_like(y_pred), y_pred)


class Loosens(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.pull.weight *= 0.7


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "jax", reason="it is compiled")
def test_a_number_that_a_callback_changes_in_a_loss_of_the_model_continues():
    def make(lr):
        model = Held()
        model.compile(momentum(lr), "mse", run_eagerly=True)
        return model

    assert_equal(lambda trial: fit(trial, trial.load_model(make), Loosens()))


@pytest.mark.skipif(BACKEND == "jax", reason="the compiled step has the variable as a constant")
@pytest.mark.parametrize("metric", ["val_loss", "val_mse"])
def test_a_model_whose_loss_reads_a_variable_that_changes_is_kept_for_another_metric_only(metric):
    penalty, study = keras.Variable(0.0, trainable=False), pausing_study(at=(), metric=metric, keep=1, verbose=0)
    not_kept = pytest.warns(HaltuneWarning, match=r"is not kept: The loss\.penalty changes in training")

    def penalized(y, p):
        return keras.ops.mean((y - p) ** 2) + penalty * keras.ops.mean(p**2)

    def make(lr):
        model = net(momentum(lr))
        model.compile(momentum(lr), penalized, metrics=["mse"])
        return model

    trial = study.ask()
    with not_kept if metric == "val_loss" else contextlib.nullcontext():
        fit(trial, trial.load_model(make), Penalizes(penalty), epochs=4)
    assert (study.best.checkpoint is None) == (metric == "val_loss")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="its own variables")
def test_variables_of_tensorflow_in_lists_and_generators_continue():
    import tensorflow as tf

    class Noisy(keras.Model):
        """Adds a draw to its input, and uses the mean of its last two gradients."""

        def __init__(self):
            super().__init__()
            self.dense, self.draws = keras.layers.Dense(1), tf.random.Generator.from_seed(1)
            self.dense.build((None, 3))
            self.last = [tf.Variable(tf.zeros(w.shape)) for w in self.dense.trainable_variables]
            self.built = True

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x + self.draws.normal(tf.shape(x))) - y) ** 2)
            found = tape.gradient(loss, self.dense.trainable_variables)
            means = [(one + last) / 2 for one, last in zip(found, self.last, strict=True)]
            self.optimizer.apply_gradients(zip(means, self.dense.trainable_variables, strict=True))
            for last, one in zip(self.last, found, strict=True):
                last.assign(one)
            return {"loss": loss}

    def make(lr):
        model = Noisy()
        model.compile(momentum(lr), "mse", jit_compile=False)
        return model

    assert_equal(lambda trial: fit(trial, trial.load_model(make)), at=(2,))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="its own generators")
def test_a_compiled_step_that_draws_by_tf_random_declines_the_pause():
    import tensorflow as tf

    class Noise(keras.layers.Layer):
        def call(self, x, training=False):
            return x + tf.random.normal(tf.shape(x)) if training else x

    def make(lr):
        model = keras.Sequential([keras.Input((3,)), Noise(), keras.layers.Dense(1)])
        model.compile(momentum(lr), "mse", jit_compile=False)
        return model

    with pytest.warns(HaltuneWarning, match=r"its compiled step draws by tf\.random"):
        assert trained(lambda trial: fit(trial, trial.load_model(make)), (2,))[1].attempt == 1


NOISES = []  # layers in a variable of the program's module


def noisy(x):
    for layer in NOISES:
        x = layer(x, training=True)
    return x


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends cannot run the layer there")
@pytest.mark.parametrize("of_module", [False, True])
def test_the_layers_of_a_map_of_tensorflow_continue(of_module):
    import tensorflow as tf

    def train(trial):
        noise = keras.layers.GaussianNoise(0.3, seed=4)
        NOISES[:] = [keras.layers.GaussianNoise(0.3, seed=4)]
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
        data = data.map((lambda x, y: (noisy(x), y)) if of_module else lambda x, y: (noise(x, training=True), y))
        data = data.prefetch(1)
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=data)

    assert_equal(train, at=(2,))


def test_a_model_that_its_first_batch_builds_continues_and_is_warned_of_nothing():
    def make(lr):
        model = keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(1)])
        model.compile(momentum(lr), "mse")
        return model

    assert_equal(lambda trial: fit(trial, trial.load_model(make)), at=(2,))


@pytest.mark.skipif(BACKEND == "torch", reason="Keras cannot train stateful layers there")
def test_what_a_stateful_layer_carries_continues():
    steps = np.random.default_rng(0).normal(size=(16, 3, 2)).astype("float32")

    def train(trial):
        model = trial.load_model()
        if model is None:
            layers = [
                keras.Input((3, 2), batch_size=4),
                keras.layers.SimpleRNN(2, stateful=True),
                keras.layers.Dense(1),
            ]
            model = keras.Sequential(layers)
            model.compile(momentum(0.01), "mse")
        data = {"data": (steps, steps[:, 0, :1]), "validation_data": (steps[:8], steps[:8, 0, :1])}
        return fit(trial, model, shuffle=False, batch_size=4, validation_batch_size=4, **data)

    assert_equal(train)


@pytest.mark.slow
def test_a_list_of_the_programs_own_keeps_what_it_collects():
    seen = []

    class Collects(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = seen

        def on_epoch_end(self, epoch, logs=None):
            self.seen.append(epoch)

    trained(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Collects()), (2, 5))
    assert seen == [*range(LENGTH)]


def test_what_cannot_be_read_is_said_once():
    class Holds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.graph = object()

    with pytest.warns(HaltuneWarning, match=r"Holds\.graph changes in training and is not plain data") as said:
        trained(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Holds()), (2, 5))
    assert len([w for w in said if issubclass(w.category, HaltuneWarning)]) == 1


@pytest.mark.slow
@once
def test_an_iterator_under_way_declines_a_pause_and_one_that_has_ended_does_not():
    class Reads(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.rows = (row for row in range(3))
            next(self.rows)

    class Ends(Reads):
        def on_epoch_end(self, epoch, logs=None):
            self.rows = None

    with pytest.warns(HaltuneWarning, match=r"Reads\.rows is an iterator, whose place cannot be saved"):
        trained(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Reads()), (2,))
    with warnings.catch_warnings():
        warnings.simplefilter("error", HaltuneWarning)
        trained(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Ends()), (2,))


class Dates(keras.callbacks.Callback):
    """Notes times and the path of its last file; lowers the rate by a time that is not that of its clock."""

    def __init__(self):
        super().__init__()
        self.length, self.last = datetime.timedelta(seconds=1), None

    def on_train_begin(self, logs=None):
        self.started = datetime.datetime.now()

    def on_epoch_begin(self, epoch, logs=None):
        self.began = datetime.datetime.now()

    def on_epoch_end(self, epoch, logs=None):
        self.took = datetime.datetime.now() - self.began
        self.length, self.last = 2 * self.length, Path("models", f"{epoch}.keras")
        self.model.optimizer.learning_rate = 0.01 / self.length.total_seconds()


@pytest.mark.slow
@once
def test_times_and_paths_in_a_callback_continue_and_the_start_is_that_of_the_fit():
    made, starts = [], []

    def train(trial):
        starts.append(datetime.datetime.now())
        made.append(Dates())
        return fit(trial, trial.load_model() or net(momentum(0.01)), made[-1])

    assert_equal(train, at=(2,))
    assert made[-1].started >= starts[-1]


@pytest.mark.slow
@once
def test_bars_of_tqdm_decline_no_pause():
    TqdmCallback = pytest.importorskip("tqdm.keras").TqdmCallback
    with open(os.devnull, "w") as file:
        bars = [TqdmCallback(verbose=2, file=file) for _ in range(3)]
        assert_equal(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), bars.pop()), at=(2,))


class Doubts(keras.callbacks.Callback):
    """Changes the weights of samples where they are."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def on_epoch_end(self, epoch, logs=None):
        self.weights *= 0.5 + np.arange(len(X), dtype="float32") / len(X)


class Weights(keras.utils.PyDataset):
    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(4 * index, 4 * index + 4)
        return X[rows], Y[rows], self.weights[rows]


@pytest.mark.slow
@pytest.mark.parametrize("by_dataset", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_array_that_a_callback_changes_is_still_that_of_the_data(by_dataset):
    def train(trial):
        weights = np.ones(len(X), "float32")
        data = {"data": Weights(weights)} if by_dataset else {"sample_weight": weights}
        return fit(trial, trial.load_model() or net(momentum(0.01)), Doubts(weights), **data)

    assert_equal(train)


class Frees(keras.callbacks.Callback):
    """Holds an array within an epoch, and frees it."""

    def __init__(self):
        super().__init__()
        self.held = np.zeros(len(X))

    def on_epoch_begin(self, epoch, logs=None):
        self.held = np.zeros(len(X))

    def on_epoch_end(self, epoch, logs=None):
        self.held = None


@pytest.mark.slow
@once
def test_an_array_that_a_callback_frees_prevents_no_pause():
    assert_equal(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Frees()))


@once
def test_a_backup_of_another_training_is_refused(tmp_path):
    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise ValueError("killed")

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    with pytest.raises(ValueError, match="killed"):
        net(momentum(0.01)).fit(X, Y, epochs=3, callbacks=[backup(), Dies()], verbose=0)
    with pytest.raises(NotSupported, match=r"backup of another training \(2 epochs\)"):
        fit(FakeTrial(max_epochs=LENGTH), net(momentum(0.01)), backup())


# optimizers, flags, metrics


def applied(optimizer, layer):
    import torch

    with torch.no_grad():
        optimizer.apply([v.value.grad for v in layer.trainable_variables], layer.trainable_variables)


class Pair(keras.Model):
    """Two nets, each with an optimizer: one as an attribute, one in a dict."""

    def __init__(self, rate, hidden=None):
        super().__init__()
        self.one, self.two = keras.layers.Dense(3, name="one"), keras.layers.Dense(1, name="two")
        self.built = True
        self.one.build((None, 3))
        self.two.build((None, 3))
        super().compile()
        self.optimizers = {"one": keras.optimizers.Adam(rate)}
        self.second = [hidden] if hidden else keras.optimizers.Adam(rate)

    def call(self, x):
        return self.two(self.one(x))

    def train_step(self, data):
        x, y = data
        second = self.second[0]() if isinstance(self.second, list) else self.second
        for layer, optimizer in ((self.one, self.optimizers["one"]), (self.two, second)):
            self.zero_grad()
            loss = keras.ops.mean((self(x) - y) ** 2)
            loss.backward()
            applied(optimizer, layer)
        return {"loss": loss.detach()}

    def test_step(self, data):
        (metric,) = self.metrics  # which Keras logs in place of what a step returns
        metric.update_state(keras.ops.mean((self(data[0]) - data[1]) ** 2))
        return {"loss": metric.result()}


@once
def test_two_optimizers_continue_and_batches_are_the_steps():
    assert_equal(lambda trial: fit(trial, trial.load_model(lambda lr: Pair(0.01))))

    def by_steps(trial):
        done = int(trial.epoch) // 3
        return fit(trial, trial.load_model(lambda lr: Pair(0.01)), epochs=4, initial_epoch=done)

    found = assert_equal(by_steps, at=(3, 9), epochs=12, unit="step")
    assert found.epochs.tolist() == [3, 6, 9, 12]


@once
def test_an_optimizer_that_is_not_part_of_the_model_declines_the_pause():
    def train(trial):
        outside = keras.optimizers.Adam(0.01)
        return fit(trial, trial.load_model(lambda lr: Pair(0.01, lambda: outside)))

    with pytest.warns(HaltuneWarning, match=r"two/.* is trained by an optimizer that is not part of the model.*self\."):
        _, found = trained(train, (2, 5))
    assert (found.status, found.attempt, found.epoch) == ("completed", 1, LENGTH)


class Follows(keras.Model):
    """A net, and another one of its shapes that follows it as an average."""

    def __init__(self, rate, trainable):
        super().__init__()
        self.net, self.teacher = keras.layers.Dense(1), keras.layers.Dense(1, trainable=trainable)
        self.net.build((None, 3))
        self.teacher.build((None, 3))
        self.built = True
        self.compile(keras.optimizers.Adam(rate))
        self.optimizer.build(self.net.trainable_variables)  # as TensorFlow does in the first step

    def call(self, x):
        return self.teacher(x)

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        loss = keras.ops.mean((self.net(x) - y) ** 2) + keras.ops.mean((self.teacher(x) - y) ** 2)
        loss.backward()
        applied(self.optimizer, self.net)
        for one, w in zip(self.teacher.weights, self.net.weights, strict=True):
            one.assign(0.9 * one + 0.1 * w)
        return {"error": loss.detach()}

    def test_step(self, data):
        return {"error": keras.ops.mean((self(data[0]) - data[1]) ** 2)}


@pytest.mark.slow
@once
def test_an_average_within_the_model_that_its_step_updates_continues_if_it_is_not_trainable():
    def train(trial, trainable=False):
        return fit(trial, trial.load_model(lambda lr: Follows(0.01, trainable)))

    assert_equal(train, metric="val_error")
    with pytest.warns(
        HaltuneWarning, match=r"is trained by an .* if your train_step assigns .* trainable = False before"
    ):
        _, found = trained(lambda trial: train(trial, trainable=True), (2,), metric="val_error")
    assert (found.attempt, found.epoch) == (1, LENGTH)


def frozen():
    layers = [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


class Freezes(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.layers[0].trainable = False
            self.model.layers[1].trainable = False


@once  # a compiled step of other backends does not look at the flags again
@pytest.mark.parametrize("by_function", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_layers_that_a_callback_freezes_stay_frozen(by_function):
    def train(trial):
        model = trial.load_model(lambda lr: frozen()) if by_function else trial.load_model() or frozen()
        return fit(trial, model, Freezes())

    assert_equal(train)


@once
def test_a_file_of_keras_cannot_continue_the_momentum_of_layers_that_a_callback_freezes():
    def train(trial):
        model = trial.load_model()
        if model is None:
            model = frozen()
            model.compile(momentum(0.01), "mse")
        return fit(trial, model, Freezes())

    with pytest.warns(HaltuneWarning, match="cannot be paused, because layers were frozen or thawed after"):
        _, found = trained(train, (2,))
    assert (found.attempt, found.epoch) == (1, LENGTH)


@once
def test_a_model_compiled_again_between_two_fits_does_not_pause_in_the_second():
    def train(trial):
        model = trial.load_model() or net(momentum(0.01))
        fit(trial, model, epochs=4, validation_data=(X, Y))
        model.compile(momentum(0.001), "mse")
        return fit(trial, model)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _, found = trained(train, (2, 5))
    assert len([w for w in said if "compiles the model again" in str(w.message)]) == 1
    assert (found.status, found.attempt, found.epochs.tolist()) == ("completed", 2, [*range(1, LENGTH + 1)])


@keras.saving.register_keras_serializable()
class Running(keras.metrics.Mean):
    def reset_state(self):
        """Keep it over all epochs."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(keras.ops.abs(y_true - y_pred))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "reports"), [(Running, "val_metric"), (keras.metrics.MeanAbsoluteError, "metric")])
def test_a_metric_continues_that_is_never_reset_and_another_one_starts_each_epoch_again(make, reports):
    def train(trial):
        model = trial.load_model()
        if model is None:
            model, metrics = net(momentum(0.01)), [make(name="metric")]
            model.compile(momentum(0.01), "mse", metrics=metrics, run_eagerly=BACKEND != "jax")
        return fit(trial, model)

    assert_equal(train, metric=reports)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "tensorflow", reason="compiles for seconds")
def test_a_scaled_loss_continues():
    def scaled(lr):
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(lr), dynamic_growth_steps=4)

    assert_equal(lambda trial: fit(trial, trial.load_model() or net(scaled(0.01))))


@once
def test_batches_whose_scaled_gradients_overflow_are_steps_of_the_study():
    made = []

    def train(trial):
        optimizer = keras.optimizers.LossScaleOptimizer(momentum(0.01), initial_scale=2.0**127)
        done = int(trial.epoch) // 3
        made.append(fit(trial, trial.load_model() or net(optimizer), epochs=4, initial_epoch=done))
        return made[-1]

    found = assert_equal(train, at=(3, 9), epochs=12, unit="step")
    assert found.epochs.tolist() == [3, 6, 9, 12]
    assert int(made[0].optimizer.iterations) < 12


@pytest.mark.slow
@once
@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="newer than this Keras")
def test_the_rates_of_several_optimizers_in_one_continue():
    def make(lr):
        both = [keras.optimizers.SGD(lr), momentum(lr)]
        model = net(keras.optimizers.MultiOptimizer(lambda v: both["bias" in v.path]))
        model.optimizer.build(model.trainable_variables)
        return model

    def train(trial):
        scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.01 * 0.9**epoch)
        return fit(trial, trial.load_model(make), scheduler)

    assert_equal(train, at=(2,))


# the place in the data


class Shuffled(keras.utils.PyDataset):
    """Shuffles its rows at the end of each epoch, by a generator of its own."""

    def __init__(self):
        super().__init__()
        self.rows, self.random = np.arange(len(X)), np.random.default_rng(5)
        self.order = [*range(5)]

    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = self.rows[2 * self.order[index] : 2 * self.order[index] + 2]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        self.random.shuffle(self.rows)
        random.Random(int(self.rows[0])).shuffle(self.order)


def loader():
    import torch

    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))


def batches():
    draws = np.random.default_rng(3)
    while True:
        rows = draws.integers(0, len(X), 4)
        yield X[rows], Y[rows]


class Endless(Shuffled):
    def __getitem__(self, index):
        return super().__getitem__(index * 7 % 5)

    @property
    def num_batches(self):
        return None

    def on_epoch_end(self):
        """Keep the order: TensorFlow reads ahead."""


class Scaled(Shuffled):
    """Has its parameters where callbacks of Keras have those of the fit."""

    def __init__(self):
        super().__init__()
        self.params = {"scale": 1.0}

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return self.params["scale"] * x, y

    def on_epoch_end(self):
        self.params["scale"] *= 0.9


class Files(Shuffled):
    """Shuffles paths by the global generator."""

    def __init__(self):
        super().__init__()
        self.files = [(Path("images", f"{row}.png"), row) for row in self.rows]

    def __getitem__(self, index):
        rows = [row for _, row in self.files[2 * index : 2 * index + 2]]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        random.shuffle(self.files)


class Around(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.inner = Shuffled()

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return self.inner[index]

    def on_epoch_end(self):
        self.inner.on_epoch_end()


class Settings(dict):
    __getattr__ = dict.get


SETTINGS = Settings(scale=2.0)


class Augmented(Shuffled):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return keras.ops.convert_to_numpy(noisy(SETTINGS.scale * x)), y


def augmented():
    NOISES[:] = [keras.layers.GaussianNoise(0.3, seed=4)]
    return Augmented()


def turned():
    from keras.src.legacy.preprocessing.image import ImageDataGenerator  # which Keras does not export for torch

    return ImageDataGenerator(width_shift_range=0.1).flow(X[:, None, :, None], Y, batch_size=4)


def arrays():
    return X, Y


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Shuffled, {}),
        pytest.param(Scaled, {}, marks=pytest.mark.slow),
        pytest.param(Files, {}, marks=pytest.mark.slow),
        pytest.param(Around, {}, marks=(once, pytest.mark.slow)),
        pytest.param(augmented, {}, marks=(once, pytest.mark.slow)),
        pytest.param(loader, {}, marks=(once, pytest.mark.slow)),
        pytest.param(loader, {"steps_per_epoch": 2}, marks=once),
        (batches, {"steps_per_epoch": 2}),
        pytest.param(Endless, {"steps_per_epoch": 3}, marks=pytest.mark.slow),
        pytest.param(arrays, {"steps_per_epoch": 2}, marks=pytest.mark.slow),
        pytest.param(arrays, {"steps_per_epoch": 3}, marks=pytest.mark.slow),
    ],
)
def test_the_place_in_the_data_continues(make, options):
    assert_equal(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), data=make(), **options))


@once
@pytest.mark.parametrize("by_function", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_program_that_splits_its_rows_behind_load_model_splits_them_as_before(by_function):
    left, splits = [], []
    for at in ((), (2, 5)):
        seed_everything(3)
        for trial in pausing_study(at=at, epochs=LENGTH, verbose=0):
            with trial:
                model = trial.load_model(lambda lr: net(momentum(lr))) if by_function else trial.load_model()
                model = model or net(momentum(**trial.config))
                rows = np.random.permutation(len(X))  # noqa: NPY002 - as sklearn's train_test_split does
                splits.append(rows.tolist())
                held = X[rows[7:]], Y[rows[7:]]
                reached = state(fit(trial, model, data=(X[rows[:7]], Y[rows[:7]]), validation_data=held))
        left.append(reached)
    assert splits == splits[:1] * 4
    for one, other in zip(*left, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@once
def test_a_table_that_a_dataset_replaces_by_its_rows_declines_the_pause():
    pandas = pytest.importorskip("pandas")

    class Table(Shuffled):
        file = last = None

        def __init__(self):
            super().__init__()
            self.table = pandas.DataFrame({"row": self.rows})

        def __getitem__(self, index):
            self.last = self.table.iloc[2 * index : 2 * index + 2]
            return X[self.last["row"]], Y[self.last["row"]]

        def on_epoch_end(self):
            self.last = None
            if shuffles:
                self.table = self.table.sample(frac=1).reset_index(drop=True)

    def train(trial):
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=Table())

    shuffles = True
    with pytest.warns(HaltuneWarning, match=r"data\.table changes in training and is not plain data"):
        assert trained(train, (2,))[1].attempt == 1
    shuffles = False
    assert_equal(train, at=(2,))


@pytest.mark.slow
@once
def test_images_that_a_generator_of_keras_turns_continue():
    def train(trial):
        model = trial.load_model()
        if model is None:
            model = keras.Sequential([keras.Input((1, 3, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
            model.compile(momentum(0.01), "mse")
        flow, images = turned(), X[:, None, :, None]
        return fit(trial, model, data=flow, validation_data=(images, Y))

    assert_equal(train, at=(2,))


def rows():
    tf = pytest.importorskip("tensorflow")
    tf.random.set_seed(5)  # as keras.utils.set_random_seed does
    return tf.data.Dataset.from_tensor_slices((X, Y))


def by_functions():
    import tensorflow as tf

    data = rows().shuffle(10, seed=3).map(lambda x, y: (x + 1, y), num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(lambda a: a - 1, [x], tf.float32), (3,)), y))
    return data.batch(4).prefetch(tf.data.AUTOTUNE)


SHUFFLES = {
    "from a seed": lambda: rows().shuffle(10, seed=3).batch(4).prefetch(1),
    "from that of the program": lambda: rows().shuffle(10).batch(4),
    "before functions": by_functions,
    "before a cache": lambda: rows().shuffle(10, seed=3).batch(4).cache(),
    "behind a cache": lambda: rows().cache().shuffle(10, seed=3).batch(4),
    "before and behind a cache": lambda: rows().shuffle(9, seed=3).batch(2).cache().shuffle(3, seed=4),
    "twice": lambda: rows().shuffle(10, seed=3).shuffle(5, seed=4).batch(4),
    "of unknown length": lambda: rows().filter(lambda x, y: True).shuffle(10, seed=3).batch(4),
}


@pytest.mark.slow  # to import TensorFlow takes longer than all checks here
@pytest.mark.parametrize("kind", SHUFFLES)
def test_a_dataset_of_tensorflow_that_shuffles_from_a_seed_continues(kind):
    """Also if a resumed attempt has read some of it before, as an example or for another trial."""

    def train(trial):
        data, validation = SHUFFLES[kind](), SHUFFLES[kind]()
        for _ in range(3 if trial.checkpoint else 0):
            list(data.take(1))
        plan = {"validation_data": validation, "epochs": 5}
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=data, **plan)

    assert_equal(train, at=(1, 3), epochs=5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["from a seed", "before and behind a cache"])
def test_a_dataset_of_tensorflow_that_trials_share_continues(kind):
    def train(trial):
        data = made[-1]
        for _ in range(3 if trial.checkpoint else 0):
            assert list(data)
        plan = {"validation_data": data, "epochs": 4}
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=data, **plan)

    made = [SHUFFLES[kind]()]
    straight, _ = trained(train, (), epochs=4)
    made.append(SHUFFLES[kind]())
    paused, found = trained(train, (2,), epochs=4)
    assert found.attempt == 2
    for one, other in zip(straight, paused, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_images_of_a_directory_that_keras_shuffles_continue(tmp_path):
    pytest.importorskip("tensorflow")
    for i in range(12):
        path = tmp_path / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        keras.utils.save_img(path, np.full((2, 2, 3), 20 * i, "uint8"), scale=False)

    def make(lr):
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((2, 2, 3)), *layers])
        model.compile(momentum(0.01), "mse", run_eagerly=BACKEND != "jax")
        return model

    def train(trial):
        options = {"image_size": (2, 2), "batch_size": 5, "verbose": False}
        data, validation = (keras.utils.image_dataset_from_directory(tmp_path, **options) for _ in range(2))
        return fit(trial, trial.load_model(make), data=data.cache(), validation_data=validation, epochs=4)

    left = []
    for at in ((), (2,)):
        seed_everything(3)
        for trial in pausing_study(at=at, epochs=4, verbose=0):  # the data have the same seeds in each attempt
            with trial:
                reached = state(train(trial))  # a loader of torch draws a number for each epoch
        left.append(reached)
    for one, other in zip(*left, strict=True):
        np.testing.assert_array_equal(one, other)


def parts_apart():
    import tensorflow as tf

    shuffled = rows().shuffle(10, seed=3)
    return tf.data.Dataset.zip((shuffled.map(lambda x, y: x), shuffled.map(lambda x, y: y))).batch(4)


def sampled_anew():
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.sample_from_datasets([rows(), rows()], seed=3, rerandomize_each_iteration=True).batch(4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: rows().shuffle(10, seed=3).repeat(2).batch(4), {}),
        (lambda: rows().shuffle(10, seed=3).batch(4).repeat(), {"steps_per_epoch": 2}),
        (lambda: rows().shuffle(100_001, seed=3).batch(4), {}),
        (parts_apart, {}),
        (sampled_anew, {}),
        (lambda: rows().shuffle(10, seed=3).batch(2).cache().take(2), {}),
    ],
    ids=["repeated", "within a pass", "many elements", "read twice", "sampled anew", "a cache that stays empty"],
)
def test_a_dataset_of_tensorflow_that_shuffles_from_a_seed_irregularly_declines_the_pause(make, options):
    def train(trial):
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=make(), epochs=2, **options)

    with pytest.warns(HaltuneWarning, match=r"tf\.data dataset shuffles from a seed.*reshuffle_each_iteration=False"):
        assert trained(train, (1,), epochs=2)[1].attempt == 1


SPLITS = {
    "without a cache": lambda data: (data.take(8).batch(4), data.skip(8).batch(4)),
    "two caches": lambda data: (data.take(8).batch(4).cache(), data.skip(8).batch(4).cache()),
    "one cache": lambda data: (data.take(8).batch(4).cache(), data.skip(8).batch(4)),
    "of a cache": lambda data: ((kept := data.cache()).take(8).batch(4), kept.skip(8).batch(4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPLITS)
def test_a_shuffle_of_tensorflow_that_is_split_declines_the_pause_if_a_cache_keeps_a_part(kind):
    def train(trial):
        data, validation = SPLITS[kind](rows().shuffle(12, seed=3))
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=data, validation_data=validation, epochs=4)

    if kind == "without a cache":
        assert_equal(train, at=(1,), epochs=4)
        return
    with pytest.warns(HaltuneWarning, match=r"a shuffle that two datasets read, of which one has a cache"):
        assert trained(train, (1,), epochs=4)[1].attempt == 1


@pytest.mark.slow
def test_a_shuffle_without_a_seed_pauses_and_with_another_seed_warns_when_it_resumes():
    tf = pytest.importorskip("tensorflow")

    def train(trial, seed=None):
        before = rows().shuffle(10, seed=3).repeat(2)
        tf.random.set_seed(None)
        data = (before.shuffle(10) if seed is None else rows().shuffle(10, seed=seed + trial.attempt)).batch(4)
        tf.random.set_seed(1)
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=data, epochs=3)

    with warnings.catch_warnings():
        warnings.simplefilter("error", HaltuneWarning)
        assert trained(train, (1,), epochs=3)[1].attempt == 2
    with pytest.warns(HaltuneWarning, match=r"the order of a tf\.data dataset, which now shuffles .* within the loop"):
        assert trained(lambda trial: train(trial, seed=1), (1,), epochs=3)[1].attempt == 2


@pytest.mark.slow  # to import TensorFlow takes longer than all checks here
def test_a_generator_behind_a_dataset_of_tensorflow_continues_unless_it_is_read_ahead():
    tf = pytest.importorskip("tensorflow")

    def train(trial, repeats=False, **options):
        order = np.random.default_rng(5)

        def rows():
            for i in order.permutation(len(X)):
                yield X[i], Y[i]

        signature = tf.TensorSpec(X.shape[1:]), tf.TensorSpec(Y.shape[1:])
        data = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(4)
        data = data.repeat() if repeats else data.prefetch(1)
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=data, **options)

    assert_equal(train)
    with pytest.warns(HaltuneWarning, match="reads its data ahead by a function with a state"):
        assert trained(lambda trial: train(trial, repeats=True, steps_per_epoch=2), (2,))[1].attempt == 1


def drawn_batches():
    while True:
        rows = np.random.randint(0, len(X), 4)  # noqa: NPY002 - by the global generator
        yield X[rows], Y[rows]


def test_a_generator_that_draws_global_random_numbers_continues_unless_it_is_read_ahead():
    def train(trial, steps=2):
        model = trial.load_model() or net(momentum(0.01))
        return fit(trial, model, data=drawn_batches(), steps_per_epoch=steps)

    if BACKEND == "tensorflow":
        with pytest.warns(HaltuneWarning, match=r"reads its data ahead by .* global random numbers"):
            assert trained(train, (2,))[1].attempt == 1
    else:
        assert_equal(train)
        with pytest.warns(HaltuneWarning, match="two batches of its generator before the training"):
            assert trained(lambda trial: train(trial, steps=1), (1,))[1].attempt == 1


DRAWS = np.random.default_rng(5)  # in a variable of the program's module


def scattered(x):
    return x + DRAWS.normal(size=x.shape)


class Scattered(Shuffled):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return scattered(x), y


def scattered_batches():
    while True:
        rows = DRAWS.integers(0, len(X), 4)
        yield X[rows], Y[rows]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "options"), [(Scattered, {}), (scattered_batches, {"steps_per_epoch": 2})])
def test_a_generator_that_the_code_of_the_data_names_in_its_module_continues_unless_it_is_read_ahead(make, options):
    def train(trial):
        first = np.random.default_rng(5 if trial.checkpoint is None else 6)  # another trial has drawn since
        DRAWS.bit_generator.state = first.bit_generator.state
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=make(), **options)

    if options and BACKEND == "tensorflow":
        with pytest.warns(HaltuneWarning, match=r"reads its data ahead by .* global random numbers"):
            assert trained(train, (2,))[1].attempt == 1
    else:
        assert_equal(train)


@once
def test_a_generator_that_several_trials_read_prevents_a_pause_and_a_resumed_trial():
    study, data = pausing_study(at=(2,), epochs=4, trials=2, verbose=0), batches()

    def train(trial, data):
        fit(trial, trial.load_model() or net(momentum(0.01)), data=data, epochs=4, steps_per_epoch=2)

    with study.ask() as first:
        train(first, data)
    with (
        (resumed := study.ask()),
        pytest.raises(NotSupported, match=r"resumes, .* an earlier attempt.* within the loop"),
    ):
        train(resumed, data)
    with (second := study.ask()), pytest.warns(HaltuneWarning, match=r"another training has read .* within the loop"):
        train(second, data)
    assert (resumed.id, resumed.attempt, second.id, second.epoch) == (0, 2, 1, 4)
    with pausing_study(at=(2,), epochs=4, verbose=0).ask() as other:
        train(other, batches())
    assert other.epoch == 2


def shifted(x, y):
    return x + NOISES[0].normal(x.shape), y


@pytest.mark.slow  # to import TensorFlow takes longer than all checks here
@pytest.mark.parametrize("of_module", [False, True])
def test_a_generator_of_tensorflow_in_a_map_continues(of_module):
    tf = pytest.importorskip("tensorflow")

    def train(trial):
        noise = tf.random.Generator.from_seed(3)
        NOISES[:] = [tf.random.Generator.from_seed(3)]
        data = tf.data.Dataset.from_tensor_slices((X, Y))
        data = data.map(shifted if of_module else lambda x, y: (x + noise.normal(x.shape), y)).batch(4)
        alone = tf.data.Options()
        alone.experimental_optimization.apply_default_optimizations = False  # a thread would read on, behind the batch
        alone.experimental_optimization.inject_prefetch = alone.autotune.enabled = False  # that Keras reads for shapes
        data = data.with_options(alone)
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=data)

    assert_equal(train, at=(2,))


def test_workers_that_hold_batches_of_a_later_epoch_decline_the_pause():
    class Work(keras.utils.PyDataset):
        def __init__(self):
            super().__init__(workers=2)

        def __len__(self):
            return 5

        def __getitem__(self, index):
            return X[2 * index : 2 * index + 2], Y[2 * index : 2 * index + 2]

    def train(trial):
        return fit(trial, trial.load_model() or net(momentum(0.01)), data=Work(), epochs=4)

    if BACKEND == "tensorflow":  # where no batch is read for its shape
        assert_equal(train, (2,), epochs=4)
        return
    with pytest.warns(HaltuneWarning, match="the workers of its PyDataset hold batches for its next epoch"):
        assert trained(train, (2,), epochs=4)[1].attempt == 1


# the data of validations


class Validated(keras.utils.PyDataset):
    """Data of validations with a state: rows that are shuffled, or noise."""

    def __init__(self, shuffle=None, noise=None):
        super().__init__()
        self.rows, self.shuffle, self.noise = np.arange(len(X)), shuffle, noise

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = self.rows[4 * index : 4 * index + 4]
        return X[rows] + (0 if self.noise is None else self.noise.normal(size=(1, 3))), Y[rows]

    def on_epoch_end(self):
        if self.shuffle is not None:
            self.shuffle(self.rows)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(lambda: Validated(np.random.shuffle), {}, marks=pytest.mark.slow),
        (lambda: Validated(np.random.default_rng(1).shuffle), {}),
        pytest.param(lambda: Validated(noise=np.random.default_rng(1)), {}, marks=(once, pytest.mark.slow)),
        pytest.param(
            lambda: Validated(np.random.default_rng(1).shuffle), {"validation_steps": 2}, marks=(once, pytest.mark.slow)
        ),
        pytest.param(loader, {}, marks=once),
    ],
    ids=["shuffled globally", "shuffled", "with noise", "in part", "of a loader"],
)
def test_what_the_data_of_validations_change_continues(make, options):
    def train(trial):
        return fit(trial, trial.load_model() or net(momentum(0.01)), epochs=4, validation_data=make(), **options)

    assert_equal(train, at=(2,), epochs=4)


def test_validations_that_read_on_in_a_generator_or_ahead_decline_the_pause():
    def train(trial, data, steps=3):
        model = trial.load_model() or net(momentum(0.01))
        return fit(trial, model, epochs=3, validation_data=data, validation_steps=steps)

    with pytest.warns(HaltuneWarning, match="its validation_data is a generator"):
        assert trained(lambda trial: train(trial, batches()), (1,), epochs=3)[1].attempt == 1
    if BACKEND == "tensorflow":
        noise = {"noise": np.random.default_rng(1)}
        with pytest.warns(HaltuneWarning, match="reading its validation data changes them"):
            assert trained(lambda trial: train(trial, Validated(**noise), None), (1,), epochs=3)[1].attempt == 1
        with pytest.warns(HaltuneWarning, match="TensorFlow reads its validation data ahead"):
            assert trained(lambda trial: train(trial, Validated(**noise), 2), (1,), epochs=3)[1].attempt == 1


# copies that a callback makes when the fit starts


class Pulls(keras.callbacks.Callback):
    """Pulls the weights to those at the start, and these slowly to the weights."""

    def __init__(self, copy):
        super().__init__()
        self.copy = copy

    def on_train_begin(self, logs=None):
        self.start = self.copy(self.model)

    def on_epoch_end(self, epoch, logs=None):
        weights = [keras.ops.convert_to_tensor(w) for w in self.model.trainable_weights]
        start = self.start.trainable_weights if hasattr(self.start, "layers") else self.start
        if isinstance(start, np.ndarray):
            start = [part.reshape(tuple(w.shape)) for part, w in zip(np.split(start, [3]), weights, strict=True)]
        elif start is self.start:
            self.start = start = [0.9 * one + 0.1 * w for one, w in zip(start, weights, strict=True)]
        for one, at, w in zip(start, weights, self.model.trainable_weights, strict=True):
            w.assign(0.9 * at + 0.1 * keras.ops.convert_to_tensor(one))


def clone(model):
    other = keras.models.clone_model(model)
    other.set_weights(model.get_weights())
    return other


def tensors(model):
    return [keras.ops.convert_to_tensor(w) * 1.0 for w in model.trainable_weights]


def flat(model):
    return np.concatenate([keras.ops.convert_to_numpy(w).ravel() for w in model.trainable_weights])


@pytest.mark.parametrize(
    "copy", [clone, pytest.param(tensors, marks=pytest.mark.slow), pytest.param(flat, marks=pytest.mark.slow)]
)
def test_a_copy_of_the_model_that_a_hook_makes_when_the_fit_starts_continues(copy):
    assert_equal(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Pulls(copy)))


def large():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2100), keras.layers.Dense(2100)])  # 18 MB
    model.compile("sgd", "mse")
    return model


@pytest.mark.slow
@once
@pytest.mark.parametrize(
    "copy", [*(pytest.param(copy, marks=pytest.mark.slow) for copy in (clone, flat)), tensors, None]
)
def test_large_copies_of_the_model_continue(copy):
    class Keeps(Pulls):
        def on_epoch_end(self, epoch, logs=None):
            first = self.start[: 3 * 2100].reshape(3, 2100) if copy is flat else None
            first = self.start.trainable_weights[0] if copy is clone else self.start[0] if first is None else first
            self.model.trainable_weights[0].assign(first * 0.5)

    def train(trial):
        early = keras.callbacks.EarlyStopping("val_loss", mode="max", patience=9, restore_best_weights=True)
        return fit(trial, trial.load_model() or large(), Keeps(copy) if copy else early, epochs=3)

    assert_equal(train, (1,), epochs=3, metric=Minimize("val_loss", of="best"))


@once
def test_arrays_that_are_larger_than_copies_of_the_model_decline_the_pause():
    class Counts(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = np.zeros(5_000_000, "float32")

        def on_epoch_end(self, epoch, logs=None):
            self.seen += 1

    def train(trial):
        return fit(trial, trial.load_model() or net(momentum(0.01)), Counts(), epochs=3)

    with pytest.warns(HaltuneWarning, match=r"Counts\.seen changes in training, or at its start, and is too large"):
        assert trained(train, (1,), epochs=3)[1].attempt == 1


# what callbacks hold, and what they change in an optimizer


class Draws(keras.callbacks.Callback):
    """Draws a rate from a generator of Keras, and keeps a mean that nothing resets."""

    def __init__(self):
        super().__init__()
        self.seeds, self.mean = keras.random.SeedGenerator(5), keras.metrics.Mean()

    def on_epoch_end(self, epoch, logs=None):
        self.mean.update_state(logs["loss"])
        drawn = float(keras.random.uniform((), seed=self.seeds))
        self.model.optimizer.learning_rate = 0.01 * (1 + drawn) / (1 + float(self.mean.result()))


@pytest.mark.slow
def test_generators_and_metrics_of_keras_in_a_callback_continue():
    assert_equal(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Draws()))


class Steers(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.optimizer.momentum = 0.3


@pytest.mark.skipif(BACKEND == "jax", reason="it is compiled")
@pytest.mark.parametrize("by_function", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_setting_that_a_callback_changes_in_an_optimizer_continues(by_function):
    def train(trial):
        model = trial.load_model(lambda lr: net(momentum(0.01))) if by_function else trial.load_model()
        return fit(trial, model or net(momentum(0.01)), Steers())

    assert_equal(train)


@pytest.mark.skipif(BACKEND == "torch", reason="it compiles no step")
def test_a_setting_of_an_optimizer_that_a_compiled_step_does_not_read_again_has_no_effect_in_a_resumed_fit_either():
    def train(trial):
        return fit(trial, trial.load_model() or deep(0.01), Steers(), epochs=4)

    with pytest.warns(HaltuneWarning, match=r"SGD\.momentum changes between epochs, but the compiled step"):
        assert_equal(train, at=(2,), epochs=4)


@pytest.mark.slow
@once
def test_a_backup_of_keras_that_a_killed_attempt_has_left_does_not_skip_epochs(tmp_path):
    """It is ahead of the checkpoint from which the trial resumes."""
    trained_epochs, deaths = [], [4]

    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if deaths == [epoch]:
                deaths.clear()
                raise KeyboardInterrupt
            trained_epochs.append(epoch)

    def train(trial):
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        return fit(trial, trial.load_model() or net(momentum(0.01)), backup, Dies(), epochs=6)

    straight, alone = trained(lambda t: fit(t, t.load_model() or net(momentum(0.01)), epochs=6), (), epochs=6)
    study = pausing_study(at=(2,), epochs=6, verbose=0)
    for _ in range(2):
        with contextlib.suppress(KeyboardInterrupt):
            for trial in study:
                with trial:
                    seed_everything(3 if trial.checkpoint is None else 77)
                    left = state(train(trial))
    assert trained_epochs == [0, 1, 2, 3, 2, 3, 4, 5]
    assert study.trials[0].values.tolist() == alone.values.tolist()
    for one, other in zip(straight, left, strict=True):
        np.testing.assert_array_equal(one, other)


@once
def test_a_backup_of_keras_from_which_a_trial_starts_again_is_advised_against(tmp_path):
    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2 and not died:
                died.append(epoch)
                raise KeyboardInterrupt

    died, study = [], pausing_study(at=(), epochs=3, verbose=0)
    for _ in range(2):
        said = pytest.warns(HaltuneWarning, match="BackupAndRestore continues this trial without its random numbers")
        with contextlib.suppress(KeyboardInterrupt), said if died else contextlib.nullcontext():
            for trial in study:
                with trial:
                    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
                    fit(trial, trial.load_model() or net(momentum(0.01)), backup, Dies(), epochs=3)
    assert study.trials[0].status == "completed"


class Shadow:
    """Averages of the weights, in variables and in a model, with their number."""

    def __init__(self, model, form):
        self.count, self.model = 0, model
        weights = model.trainable_weights
        self.kept = (
            {"teacher": clone(model), "power": 0.5}
            if form
            else [keras.Variable(keras.ops.convert_to_numpy(w)) for w in weights]
        )

    def update(self):
        self.count += 1
        kept = self.kept["teacher"].trainable_weights if isinstance(self.kept, dict) else self.kept
        power = 0.5
        if isinstance(self.kept, dict):
            power = self.kept["power"] = 0.9 * self.kept["power"]
        for one, w in zip(kept, self.model.trainable_weights, strict=True):
            one.assign(one + power * (w - one) / self.count)
            w.assign(0.9 * keras.ops.convert_to_tensor(w) + 0.1 * keras.ops.convert_to_tensor(one))


class Averages(keras.callbacks.Callback):
    def __init__(self, form, late=False):
        super().__init__()
        self.form, self.late, self.shadow = form, late, None

    def on_train_begin(self, logs=None):
        self.shadow = None if self.late else Shadow(self.model, self.form)

    def on_epoch_end(self, epoch, logs=None):
        self.shadow = self.shadow or Shadow(self.model, self.form)
        self.shadow.update()


@pytest.mark.parametrize("form", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_averages_in_an_object_of_the_programs_continue(form):
    def train(trial):
        return fit(trial, trial.load_model() or net(momentum(0.01)), Averages(form))

    if BACKEND == "jax" and not form:  # a compiled step might have a variable as a constant
        with pytest.warns(HaltuneWarning, match=r"Averages\.shadow\.kept\.0 changes in training"):
            assert trained(train, (2,))[1].attempt == 1
    else:
        assert_equal(train)


@pytest.mark.slow
@once
@pytest.mark.parametrize("form", [True, False])
def test_averages_that_are_made_later_decline_the_pause(form):
    with pytest.warns(HaltuneWarning, match=r"Averages\.shadow.* changes in training and is not plain data"):
        made = trained(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Averages(form, True)), (2,))
    assert made[1].attempt == 1


@pytest.mark.slow
@once
def test_a_model_that_a_callback_makes_in_place_of_none_declines_the_pause_unless_the_start_of_a_fit_makes_it():
    class Best(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.found = None

        def on_epoch_end(self, epoch, logs=None):
            self.found = clone(self.model)

    with pytest.warns(HaltuneWarning, match=r"Best\.found changes in training and is not plain data"):
        made = trained(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Best()), (2,))
    assert made[1].attempt == 1

    class Starts(Pulls):
        def __init__(self, copy):
            super().__init__(copy)
            self.start = None

    assert_equal(lambda trial: fit(trial, trial.load_model() or net(momentum(0.01)), Starts(clone)))


# several fits


class Slows(keras.callbacks.Callback):
    """Counts fits and epochs, and lowers the rate by both."""

    def __init__(self):
        super().__init__()
        self.fits = self.epochs = 0

    def on_train_begin(self, logs=None):
        self.fits += 1

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        self.model.optimizer.learning_rate = 0.01 / self.fits + 0.001 / self.epochs


def plateau():
    return keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=1e3, cooldown=1)


def fits(make=list, length=3, between=lambda model, epoch: None, data=lambda: (X, Y), inline=False, **options):
    """A training in fits of so many epochs."""

    def train(trial):
        model, callbacks, rows = trial.load_model() or net(momentum(0.01)), make(), data()
        for start in range(0, LENGTH, length):
            if start + length > trial.epoch and trial.ended is None:
                plan = {"epochs": start + length, "initial_epoch": max(start, int(trial.epoch))}
                fit(trial, model, *(make() if inline else callbacks), data=rows, **plan | options)
                between(model, start)
        return model

    return train


@once
@pytest.mark.parametrize(
    "program",
    [
        pytest.param({"make": lambda: [Slows(), plateau()], "length": 1}, marks=pytest.mark.slow),
        {"make": lambda: [Slows(), plateau()]},
        pytest.param({"make": lambda: [Slows(), plateau()], "inline": True}, marks=pytest.mark.slow),
        pytest.param({"length": 1, "steps_per_epoch": 2}, marks=pytest.mark.slow),
    ],
    ids=["of one epoch", "of three epochs", "with other callbacks", "within a pass"],
)
def test_a_training_of_several_fits_continues_within_a_fit_and_between_two(program, monkeypatch):
    monkeypatch.setattr("haltune.callbacks.keras._REPEATED", {})
    found = assert_equal(fits(**program), at=(3, 5, 6))  # the straight training has shown what the program does between
    assert found.attempt == 4


@once
@pytest.mark.parametrize(
    ("optimizer", "make", "options", "named"),
    [
        (momentum, plateau, {}, "ReduceLROnPlateau"),
        (lambda lr: keras.optimizers.SGD(lr, use_ema=True), keras.callbacks.TerminateOnNaN, {}, "use_ema"),
        (momentum, keras.callbacks.TerminateOnNaN, {"steps_per_epoch": 2}, "steps_per_epoch"),
        pytest.param(momentum, keras.callbacks.TerminateOnNaN, {}, None, marks=pytest.mark.slow),
    ],
    ids=["a callback", "averages", "the data", "nothing"],
)
def test_a_resumed_fit_that_ends_elsewhere_is_refused_if_something_happens_at_its_ends(optimizer, make, options, named):
    def train(trial):
        model = trial.load_model() or net(optimizer(0.01))
        for start in range(int(trial.epoch), LENGTH, 3):
            fit(trial, model, make(), initial_epoch=start, epochs=min(start + 3, LENGTH), **options)
            if model.stop_training:
                break
        return model

    if named is None:
        assert_equal(train, at=(2, 7))
        return
    with pytest.raises(NotSupported, match=rf"fit that ends at epoch 3, and this one ends at epoch 5.*{named}"):
        trained(train, (2,))


def slower(model, epoch):
    model.optimizer.learning_rate = 0.01 * 0.9**epoch


class EndsSlower(Slows):
    def on_train_end(self, logs=None):
        self.epochs += 3


@once
@pytest.mark.parametrize(
    ("program", "attempts"),
    [
        ({"between": slower}, 2),
        pytest.param({"between": lambda model, epoch: np.random.random()}, 2, marks=pytest.mark.slow),  # noqa: NPY002
        pytest.param({"make": lambda: [EndsSlower()]}, 2, marks=pytest.mark.slow),
        pytest.param({"data": batches, "steps_per_epoch": 2}, 1, marks=pytest.mark.slow),  # as the second fit reads on
    ],
    ids=["a rate", "a random number", "a callback", "the data"],
)
def test_a_pause_between_two_fits_is_declined_if_the_program_changes_something_there(program, attempts, monkeypatch):
    monkeypatch.setattr("haltune.callbacks.keras._REPEATED", {})
    train = fits(**program)
    straight, _ = trained(train, ())
    with pytest.warns(HaltuneWarning, match="cannot be paused"):
        paused, found = trained(train, (3, 5) if attempts == 2 else (3, 4))
    assert found.attempt == attempts
    for one, other in zip(straight, paused, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@once
def test_a_pause_between_two_fits_is_declined_if_the_program_draws_by_a_generator_of_its_own_there(monkeypatch):
    monkeypatch.setattr("haltune.callbacks.keras._REPEATED", {})

    def train(trial):
        model, draws = trial.load_model() or net(momentum(0.01)), np.random.default_rng(7)
        for start in range(int(trial.epoch), LENGTH):
            if trial.ended is None:
                rows = X + draws.normal(size=X.shape), Y
                fit(trial, model, data=rows, initial_epoch=start, epochs=start + 1)
        return model

    straight, _ = trained(train, ())
    with pytest.warns(HaltuneWarning, match="random numbers before another fit"):
        paused, found = trained(train, (4,))
    assert found.attempt == 1
    for one, other in zip(straight, paused, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@once
def test_a_generator_that_an_earlier_fit_than_the_last_has_read_is_not_paused(monkeypatch):
    monkeypatch.setattr("haltune.callbacks.keras._REPEATED", {})

    def train(trial):
        model, first, second = trial.load_model() or net(momentum(0.01)), batches(), batches()
        for start, rows in (0, first), (3, second), (6, first):
            if start + 3 > trial.epoch and trial.ended is None:
                plan = {"epochs": start + 3, "initial_epoch": max(start, int(trial.epoch)), "steps_per_epoch": 2}
                fit(trial, model, data=rows, **plan)
        return model

    straight, _ = trained(train, ())
    with pytest.warns(HaltuneWarning, match="several fits read from the same generator"):
        paused, found = trained(train, (8,))
    assert found.attempt == 1
    for one, other in zip(straight, paused, strict=True):
        np.testing.assert_array_equal(one, other)


# what is kept


def value_of(path):
    return keras.saving.load_model(path).evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)["loss"]


def averaged():
    return net(keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.9))


@pytest.mark.parametrize("of", [pytest.param("last", marks=pytest.mark.slow), "best"])
@pytest.mark.parametrize(
    ("make", "callbacks"),
    [
        pytest.param(averaged, list, marks=pytest.mark.slow),
        (averaged, lambda: [keras.callbacks.SwapEMAWeights()]),
        pytest.param(averaged, lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)], marks=pytest.mark.slow),
        (
            lambda: net(momentum(0.3)),
            lambda: [keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)],
        ),
    ],
    ids=["an average at the end", "averages are evaluated", "and swapped", "the best restored"],
)
def test_the_kept_model_has_the_value_of_its_trial(make, callbacks, of):
    study = pausing_study(at=(2,), epochs=LENGTH, keep=1, metric=Minimize("val_loss", of=of), verbose=0)
    for trial in study:
        with trial, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "EarlyStopping")  # advises of="best"
            seed_everything(3)
            fit(trial, trial.load_model() or make(), *callbacks())
    assert value_of(study.best.checkpoint) == pytest.approx(study.best.value, rel=1e-5)


@once
@pytest.mark.parametrize("swaps", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_best_model_within_an_epoch_is_kept(swaps):
    study = pausing_study(at=(), epochs=2, keep=1, metric=Minimize("val_loss", of="best"), verbose=0)
    with study.ask() as trial:
        model = averaged() if swaps else net(momentum(1.0))  # which diverges
        model.optimizer.learning_rate = 1.0
        others = [keras.callbacks.SwapEMAWeights()] if swaps else []
        callback = HaltuneCallback(trial, every=1, validation=(X, Y))
        model.fit(X, Y, batch_size=4, epochs=2, validation_data=(X, Y), callbacks=[*others, callback], verbose=0)
    assert study.best.epoch % 1
    assert value_of(study.best.checkpoint) == pytest.approx(study.best.value, rel=1e-5)


class Means(keras.callbacks.Callback):
    """Puts means of the weights into the model for its validation, and the trained ones back in the next epoch."""

    means, own = None, None

    def on_epoch_begin(self, epoch, logs=None):
        if self.own is not None:
            self.model.set_weights(self.own)

    def on_test_begin(self, logs=None):
        self.own = self.model.get_weights()
        self.means = [0.9 * mean + 0.1 * own for mean, own in zip(self.means or self.own, self.own, strict=True)]
        self.model.set_weights(self.means)


@once
def test_means_that_a_callback_puts_into_the_model_for_its_validation_are_kept():
    study = pausing_study(at=(), epochs=3, keep=1, verbose=0)
    with study.ask() as trial:
        fit(trial, net(momentum(0.01)), Means(), epochs=3)
    assert value_of(study.best.checkpoint) == pytest.approx(study.best.value, rel=1e-5)


class Jitters(keras.layers.Layer):
    """Adds noise in training, by a generator of its module."""

    def call(self, x, training=False):
        return x + float(SHARED.normal()) if training else x


def jittered(lr):
    model = keras.Sequential([keras.Input((3,)), Jitters(), keras.layers.Dense(1)])
    model.compile(momentum(lr), "mse")
    return model


@once
def test_a_model_whose_layer_draws_from_a_generator_of_its_module_is_kept():
    study = pausing_study(at=(), epochs=2, keep=1, verbose=0)
    with study.ask() as trial:
        fit(trial, trial.load_model(jittered), epochs=2)
    value = study.best.load_model(jittered).evaluate(X, Y, batch_size=4, verbose=0)
    assert value == pytest.approx(study.best.value, rel=1e-5)


class Scales(keras.layers.Layer):
    """Reads a variable of its class."""

    level = keras.Variable(1.0, trainable=False)

    def call(self, x):
        return x * Scales.level


class Lowers(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        Scales.level.assign(0.9 * Scales.level)


@once
def test_a_model_that_evaluates_by_a_variable_of_a_class_that_changes_is_not_kept():
    model = keras.Sequential([keras.Input((3,)), Scales(), keras.layers.Dense(1)])
    model.compile(momentum(0.01), "mse")
    study = pausing_study(at=(), epochs=2, keep=1, verbose=0)
    with pytest.warns(HaltuneWarning, match=r"is not kept: Scales\.global Scales\.level changes in training"):
        fit(study.ask(), model, Lowers(), epochs=2)
    assert study.best.checkpoint is None


@pytest.mark.slow
@pytest.mark.parametrize("swaps", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_training_whose_averages_are_evaluated_continues(swaps):
    assert_equal(
        lambda trial: fit(trial, trial.load_model() or averaged(), keras.callbacks.SwapEMAWeights(swap_on_epoch=swaps))
    )


def test_a_goal_of_the_best_epoch_is_advised_where_keras_restores_it():
    stopping = keras.callbacks.EarlyStopping("val_loss", restore_best_weights=True, patience=9)
    with pytest.warns(HaltuneWarning, match=r"Make the goal Minimize\('val_loss', of='best'\)"):
        fit(pausing_study(at=(), verbose=0).ask(), net(momentum(0.01)), stopping, epochs=4)


@once
def test_a_goal_of_the_best_epoch_is_advised_where_keras_saves_its_model(tmp_path):
    advice = "If you use that model, make the goal Minimize('val_loss', of='best')"
    for monitor in ("loss", "val_loss"):
        trial, saves = FakeTrial(), keras.callbacks.ModelCheckpoint(tmp_path / "a.keras", monitor, save_best_only=True)
        fit(trial, net(momentum(0.01)), saves, epochs=1)
        assert any(advice in hint for hint in trial.hints) == (monitor == "val_loss")


# loops that drive callbacks by hand


@once
def test_a_list_of_callbacks_that_a_loop_drives_by_hand_reports_pauses_and_stops():
    def train(trial):
        model = trial.load_model() or net(momentum(0.01))
        callbacks = keras.callbacks.CallbackList([HaltuneCallback(trial), Anneals()], model=model)
        callbacks.on_train_begin()
        for epoch in range(int(trial.epoch), LENGTH):
            callbacks.on_epoch_begin(epoch)
            model.train_on_batch(X, Y)
            loss = model.test_on_batch(X, Y)
            callbacks.on_epoch_end(epoch, {"val_loss": float(loss)})
            if model.stop_training:
                break
        callbacks.on_train_end()
        return model

    assert_equal(train)


@once
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
def test_a_loop_that_calls_no_hook_before_its_first_epoch_is_refused(hook):
    callback = HaltuneCallback(FakeTrial())
    callback.set_model(model := net(momentum(0.01)))
    model.train_on_batch(X, Y)
    with pytest.raises(InvalidInput, match=r"does not call on_train_begin.* keras\.callbacks\.CallbackList"):
        getattr(callback, hook)(0, {"val_loss": 1.0})


@pytest.mark.slow
@pytest.mark.parametrize("again", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_list_of_callbacks_that_the_program_makes_for_a_fit_continues_in_the_data(again):
    """again: in two fits, of which the second starts where the trial does not pause."""

    def train(trial):
        model = trial.load_model() or net(momentum(0.01))
        listed = keras.callbacks.CallbackList([HaltuneCallback(trial)], model=model, add_history=True)
        plan = {"steps_per_epoch": 2, "validation_data": (X, Y), "batch_size": 4, "verbose": 0}
        for end in (4, LENGTH) if again else (LENGTH,):
            if trial.epoch < end and trial.ended is None:
                model.fit(X, Y, epochs=end, initial_epoch=int(trial.epoch), callbacks=listed, **plan)
        return model

    assert_equal(train, at=(3, 5))


@pytest.mark.parametrize("method", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_plain_loop_that_saves_a_model_of_keras_continues_its_dropout(method):
    def train(trial):
        model = keras.models.load_model(trial.checkpoint) if trial.checkpoint else net(momentum(0.01))
        save = model.save if method else lambda path: model.save(path)
        loop = TrainingLoop(trial, save=save, suffix=".keras")
        for _ in loop:
            model.train_on_batch(X, Y)
            loop.report(float(model.evaluate(X, Y, verbose=0)))
        return model

    assert_equal(train)


@pytest.mark.slow
def test_a_loop_over_the_epochs_of_a_trial_that_saves_a_model_of_keras_continues_its_dropout():
    def train(trial):
        model = keras.models.load_model(trial.checkpoint) if trial.checkpoint else net(momentum(0.01))
        for _ in trial.epochs():
            model.train_on_batch(X, Y)
            trial.report(float(model.evaluate(X, Y, verbose=0)))
            trial.save(model.save, ".keras")
        return model

    assert_equal(train)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="its own generators")
def test_a_generator_of_tensorflow_in_a_plain_loop_continues():
    import tensorflow as tf

    def train(trial):
        model = keras.models.load_model(trial.checkpoint) if trial.checkpoint else net(momentum(0.01))
        draws = tf.random.Generator.from_seed(1)
        loop = TrainingLoop(trial, save=model.save, suffix=".keras")
        for _ in loop:
            model.train_on_batch(X + draws.normal(X.shape).numpy(), Y)
            loop.report(float(model.evaluate(X, Y, verbose=0)))
        return model

    assert_equal(train)


def test_reports_within_an_epoch_come_at_the_first_step_after_each_multiple():
    trial = FakeTrial("loss", max_epochs=2)
    callback = HaltuneCallback(trial, every=10)
    model = net(momentum(0.01))
    callback.set_model(model)
    callback.set_params({"epochs": 2, "steps": 40})
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    for batch in range(7, 40, 8):  # as with steps_per_execution=8
        callback.on_train_batch_end(batch, {"loss": 1.0})
    assert trial.epochs == [16 / 40, 24 / 40, 32 / 40]


# layers


class Fades(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.get_layer("dropout").rate = 0.1 + 0.1 * (epoch % 4)


def dropped(lr, eager=True):
    layers = [keras.layers.Dense(8), keras.layers.Dropout(0.1, name="dropout"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(momentum(lr), "mse", run_eagerly=eager)
    return model


def frozen_part(lr):
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])
    inner.trainable = False
    model = keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(1)])
    model.compile(momentum(lr), "mse")
    return model


@pytest.mark.parametrize("by_function", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_setting_that_a_callback_changes_in_a_layer_of_keras_continues(by_function):
    def train(trial):
        model = trial.load_model(lambda **_: dropped(0.01)) if by_function else trial.load_model() or dropped(0.01)
        return fit(trial, model, Fades())

    assert_equal(train)


@pytest.mark.skipif(BACKEND == "torch", reason="it compiles nothing")
def test_a_setting_that_a_compiled_step_does_not_read_again_has_no_effect_in_a_resumed_fit_either():
    with pytest.warns(HaltuneWarning, match=r"Dropout\.rate changes between epochs, .* has no effect"):
        assert_equal(lambda trial: fit(trial, trial.load_model() or dropped(0.01, eager=False), Fades()))


class Fills(keras.layers.Layer):
    """Has a number that is not equal to itself."""

    def __init__(self, empty=float("nan"), **named):
        super().__init__(**named)
        self.empty = empty

    def call(self, x):
        return x if self.empty != self.empty else x + self.empty

    def get_config(self):
        return super().get_config() | {"empty": self.empty}


@pytest.mark.slow
def test_a_setting_that_is_nan_is_not_said_to_change():
    def make(lr):
        model = keras.Sequential([keras.Input((3,)), Fills(), keras.layers.Dense(1)])
        model.compile(momentum(lr), "mse")
        return model

    assert_equal(lambda trial: fit(trial, trial.load_model(make)), at=(2,))


class Remembers(keras.callbacks.Callback):
    """Keeps a record in the model, or changes a number that its code reads, and sets the rate by it."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def on_epoch_end(self, epoch, logs=None):
        owner = self.model if self.name == "lowest" else self.model.get_layer("dropout")
        setattr(owner, self.name, getattr(owner, self.name, 1.0) * 0.9)
        self.model.optimizer.learning_rate = 0.1 * getattr(owner, self.name)


@pytest.mark.slow
def test_a_record_that_a_callback_keeps_in_a_model_of_keras_continues_without_a_warning():
    assert_equal(lambda trial: fit(trial, trial.load_model() or dropped(0.01, eager=False), Remembers("lowest")))


@pytest.mark.skipif(BACKEND == "torch", reason="it compiles nothing")
def test_a_callback_reads_what_it_has_set_in_a_compiled_layer_in_a_resumed_fit():
    with pytest.warns(HaltuneWarning, match=r"Dropout\.rate changes between epochs, .* has no effect"):
        assert_equal(lambda trial: fit(trial, trial.load_model() or dropped(0.01, eager=False), Remembers("rate")))


@pytest.mark.skipif(BACKEND == "torch", reason="it compiles nothing")
def test_a_compiled_step_keeps_its_numbers_in_a_further_fit_and_such_fits_do_not_pause():
    def train(trial):
        model = trial.load_model() or dropped(0.01, eager=False)
        for epoch in range(int(trial.epoch), LENGTH):
            model.get_layer("dropout").rate = 0.1 + 0.1 * (epoch % 4)
            fit(trial, model, initial_epoch=epoch, epochs=epoch + 1)
            if model.stop_training:
                break
        return model

    with pytest.warns(HaltuneWarning) as warned:
        _, found = trained(train, (2, 5))
    said = " ".join(str(one.message) for one in warned)
    assert re.search(r"Dropout\.rate changes between epochs, .* has no effect", said)
    assert "the program may change the model" in said
    assert (found.attempt, found.epoch) == (1, LENGTH)  # it does not pause: the program changes the model between fits


class Relaxes(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.layers[-1].kernel_regularizer.l2 *= 0.5


@pytest.mark.slow
def test_the_number_of_a_regularizer_that_a_callback_changes_continues():
    def train(trial):
        model = trial.load_model()
        if model is None:
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_regularizer="l2")])
            model.compile(momentum(0.01), "mse")
        return fit(trial, model, Relaxes())

    said = pytest.warns(HaltuneWarning, match=r"L2\.l2 changes between epochs, but the compiled step")
    with contextlib.nullcontext() if BACKEND == "torch" else said:
        assert_equal(train, at=(2,))


@pytest.mark.slow
def test_a_model_with_a_frozen_part_pauses():
    assert_equal(lambda trial: fit(trial, trial.load_model() or frozen_part(0.01)))


class Centres(keras.layers.Layer):
    """Subtracts a running mean, in a buffer of torch."""

    def __init__(self, **named):
        import torch

        super().__init__(**named)
        self.register_buffer("mean", torch.zeros(3))

    def call(self, x, training=False):
        if training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


def centred(lr):
    model = keras.Sequential([keras.Input((3,)), Centres(), keras.layers.Dense(1)])
    model.compile(momentum(lr), "mse")
    return model


@pytest.mark.skipif(BACKEND != "torch", reason="of torch")
def test_a_buffer_of_torch_in_a_layer_continues():
    assert_equal(lambda trial: fit(trial, trial.load_model(centred)))


@pytest.mark.skipif(BACKEND != "torch", reason="of torch")
@pytest.mark.parametrize("by_function", [True, False])
def test_a_model_that_evaluates_by_a_buffer_of_torch_that_changes_is_not_kept(by_function):
    study = pausing_study(at=(), epochs=2, keep=1, verbose=0)
    not_kept = pytest.warns(HaltuneWarning, match=r"is not kept: Centres\.mean changes in training")
    with study.ask() as trial, not_kept:
        fit(trial, trial.load_model(centred) if by_function else centred(0.01), epochs=2)
    assert study.best.checkpoint is None


def drifting(lr):
    import torch

    class Drifts(torch.nn.Module):
        """Scales by the number of its steps, in a buffer that its state_dict lacks."""

        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(()), persistent=False)

        def forward(self, x):
            self.steps += self.training
            return x / (1 + 0.1 * self.steps)

    layers = [keras.layers.TorchModuleWrapper(Drifts(), output_shape=(None, 3)), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(momentum(lr), "mse")
    return model


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "torch", reason="of torch")
def test_a_buffer_that_a_wrapped_module_of_torch_does_not_save_continues():
    assert_equal(lambda trial: fit(trial, trial.load_model(drifting)), at=(2,))
