"""What haltune assumes of Keras and Keras Tuner beyond their documentation; see ../test_framework_assumptions.py.

A row has the assumption, what does not work in haltune without it, and a check.
"""

import importlib.util
import tempfile
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from haltune._utils import learners, own_generators, randomness
from haltune._utils.interruption import caller
from haltune.callbacks.keras import _metrics, companions, data, draws, optimizers, shuffles, surroundings
from haltune.errors import NotSupported

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
BACKEND = keras.backend.backend()
X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


class Watch(keras.callbacks.Callback):
    """Notes what a callback sees; ends the fit after an epoch."""

    def __init__(self, seen, stops=False):
        super().__init__()
        self.seen, self.stops = seen, stops

    def on_train_begin(self, logs=None):
        frame = caller("fit", "keras.")
        self.seen.fit = frame is not None and frame.f_locals["self"] is self.model
        validation = {"validation_data", "validation_split", "validation_freq", "validation_steps"}
        self.seen.arguments = validation <= frame.f_locals.keys() and surroundings.plan_of_fit()[1]
        listed = self.seen.listed = surroundings.calling_list(self)
        listed.remove(self.seen.first)
        listed.insert(listed.index(self) + 1, self.seen.first)

    def on_epoch_end(self, epoch, logs=None):
        self.seen.hooks.append("epoch")
        self.seen.later = surroundings.calling_list(self)
        if self.stops:
            self.model.stop_training |= 2

    def on_train_end(self, logs=None):
        self.seen.hooks.append("end")
        self.seen.left = self.model.stop_training


class First(keras.callbacks.Callback):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def on_epoch_end(self, epoch, logs=None):
        self.seen.hooks.append("first")


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError("failed")


def fitted(fails=False):
    seen = SimpleNamespace(hooks=[])
    seen.first, model = First(seen), net()
    seen.watch = Watch(seen, stops=True)
    others = [Fails()] if fails else []
    try:
        model.fit(X, Y, epochs=3, verbose=0, callbacks=[seen.first, seen.watch, *others])
    except RuntimeError:
        seen.hooks.append("failed")
    return seen


def net():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def names_agree():
    """Whether the names that haltune finds for the metrics of several outputs are those in the logs."""
    x = keras.Input((2,))
    model = keras.Model(x, [keras.layers.Dense(1, name="a")(x), keras.layers.Dense(1, name="b")(x)])
    metrics = [[keras.metrics.MeanSquaredError()], [keras.metrics.AUC()]]
    model.compile("sgd", ["mse", "mse"], metrics=metrics, weighted_metrics=[[keras.metrics.Recall()], []])
    logs = model.fit(X, [Y, Y], epochs=1, verbose=0).history
    return {name for name, _ in _metrics(model)} == set(logs)


class HTTPRate2D(keras.metrics.Mean):
    def __init__(self, name=None):
        keras.metrics.Metric.__init__(self, name=name)


def named_by_keras():
    made = [kind() for kind in (keras.metrics.AUC, keras.metrics.Precision, keras.metrics.Recall, HTTPRate2D)]
    return all(companions.numbered(metric) is not None for metric in made)


def global_generator():
    keras.random.uniform((1,))
    state = randomness.capture()
    first = keras.ops.convert_to_numpy(keras.random.uniform((3,)))
    randomness.restore(state)
    return "keras" in state and np.array_equal(first, keras.ops.convert_to_numpy(keras.random.uniform((3,))))


def schedule():
    made = keras.optimizers.schedules.CosineDecay(0.1, 10)
    inner = keras.optimizers.SGD(made)
    found = surroundings._learning_rate(keras.optimizers.LossScaleOptimizer(inner).inner_optimizer)
    rates = [float(keras.ops.convert_to_numpy(rate(5))) for rate in (made, found)]
    return isinstance(found, keras.optimizers.schedules.LearningRateSchedule) and rates[0] == rates[1]


def data_of_a_fit():
    """Whether a fit has its iterator, which may be put within a pass, and the batches of the epoch."""
    seen = SimpleNamespace(steps=[])

    class Reads(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.data = data.Data(0, reader="the trial")
            iterator = seen.data._iterator
            seen.data.put_back({**seen.data.state(within=False), "seen": 1}, None)
            seen.there = hasattr(iterator, "_get_iterator") and iterator._steps_seen == 1
            seen.there &= iterator._num_batches == len(X)

        def on_epoch_end(self, epoch, logs=None):
            seen.steps.append((data.batches_of_epoch(None), seen.data._iterator._steps_seen))

    net().fit(X, Y, batch_size=1, steps_per_epoch=3, epochs=2, verbose=0, callbacks=[Reads()])
    return seen.there and seen.steps == [(3, 4), (3, 7)]


def sources():
    """Whether the adapters of a PyDataset and of a DataLoader have them, and the workers' batches, by these names."""
    from keras.src.trainers.data_adapters import get_data_adapter

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return X, Y

    found = get_data_adapter(rows := Rows()).py_dataset is rows
    found &= get_data_adapter(Rows(workers=2)).enqueuer.ready_queue.empty()
    if BACKEND == "torch":
        import torch

        found &= get_data_adapter(made := torch.utils.data.DataLoader([(X, Y)]))._dataloader is made
    return found


def structure():
    model = net()
    model.optimizer.build(model.trainable_variables)
    found = optimizers.structure_of(model)
    return found["optimizers"] == {"0/optimizer": [0, 1]} and len(found["trainable"]) >= 3


def backed_up():
    """Whether a model has the epoch with which BackupAndRestore lets its fit start."""
    with tempfile.TemporaryDirectory() as folder:
        for epochs in (1, 2):
            saves = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
            (model := net()).fit(X, Y, epochs=epochs, verbose=0, callbacks=[saves])
    return model._initial_epoch == 1


def settings():
    """Whether a loss and a metric of a function have its settings."""
    measured = keras.metrics.MeanMetricWrapper(keras.losses.huber, delta=0.5)
    return keras.losses.Huber(delta=0.5)._fn_kwargs["delta"] == measured._fn_kwargs["delta"] == 0.5


def excluded():
    """Whether an optimizer has the weights, and the pattern of names, that it excludes from its decay."""
    made, weight = keras.optimizers.SGD(0.1, weight_decay=0.1), keras.Variable([1.0])
    made.exclude_from_weight_decay(var_list=[weight], var_names=["bias"])
    return bool(made._exclude_from_weight_decay) and made._exclude_from_weight_decay_pattern is not None


def unbuilt_metrics():
    model = net()
    given = [[keras.metrics.MeanSquaredError(name)] for name in ("plain", "weighted")]
    model.compile("sgd", "mse", metrics=given[0], weighted_metrics=given[1])
    return {"plain", "weighted"} <= companions.of_metrics(model).keys()


def accumulated():
    """Whether an optimizer counts the batches whose gradients wait for a step."""
    model = net()
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
    model.fit(X, Y, epochs=1, verbose=0)
    return [*optimizers._micro_steps(optimizers.optimizers_of(model)).values()] == [1]


def refused():
    """Whether a layer that another trial has trained is refused wherever a model or an optimizer trains it."""
    model = net()
    weights = model.trainable_variables
    learners.refuse(layer := model.layers[-1], learners.mark(layer), "of another trial")
    for train in (
        lambda: model.fit(X, Y, verbose=0),
        lambda: model.train_on_batch(X, Y),
        lambda: model.optimizer.apply([keras.ops.ones(weight.shape) for weight in weights], weights),
    ):
        with pytest.raises(NotSupported, match="of another trial"):
            train()
    learners.allow(layer)
    return True


def swapped():
    return keras.callbacks.SwapEMAWeights()._ema_weights_in_model is False


KERAS = {
    "fit() of a module of Keras is on the stack in on_train_begin": (
        "Ctrl-C and SIGTERM that wait until the epoch is saved",
        lambda: fitted().fit,
    ),
    "after an exception fit() calls no hook": (
        "a hook could end the trial, and nothing would have to be read from the stack",
        lambda: fitted(fails=True).hooks == ["epoch", "first", "failed"],
    ),
    "the caller of a hook has the list of all callbacks as `callbacks`": (
        "the state of other callbacks in a resumed fit, the warnings about EarlyStopping, and the logs of trackers",
        lambda: (seen := fitted()).first in seen.listed and seen.later is seen.listed,
    ),
    "callbacks that are moved in this list in on_train_begin are called in the new order": (
        "trackers would not log the metrics that haltune adds",
        lambda: fitted().hooks == ["epoch", "first", "end"],
    ),
    "stop_training may be a true number, which fit() keeps": (
        "haltune could not tell its own stop from that of another callback",
        lambda: fitted().left == 2,
    ),
    "the global generator of Keras has this name, and its state can be assigned": (
        "exact resumption with random operations that have no seed",
        global_generator,
    ),
    "the state of a layer's seed generator is a variable with this name": (
        "exact resumption with dropout",
        lambda: len(own_generators.of_model(net())) == 1,
    ),
    "a metric without a name has that of its class in snake case, with a number": (
        "names of metrics that are the same in every trial",
        named_by_keras,
    ),
    "_flat_metrics and _flat_weighted_metrics have the metrics of each output with its name": (
        "names of metrics that are the same in every trial, with several outputs",
        names_agree,
    ),
    "fit has the arguments of its validation, its epochs, and the batches of an epoch in epoch_iterator": (
        "the error for a fit that validates in no epoch, and the plan of one whose callbacks were made before it",
        lambda: fitted().arguments == {"epochs": 3, "steps": 1},
    ),
    "fit has its data as epoch_iterator, with a place and a length that can be set, and end_step": (
        "the place in the data with steps_per_epoch, and steps with several optimizers",
        data_of_a_fit,
    ),
    "the adapters of data have a PyDataset, its workers' batches and a DataLoader under these names": (
        "exact resumption with data that shuffle themselves, and no pause while workers hold batches",
        sources,
    ),
    "an optimizer has its _trainable_variables, and a model _flatten_layers": (
        "models with several optimizers or frozen layers that trial.load_model(make_model) builds",
        structure,
    ),
    "an optimizer counts batches whose gradients wait in _iterations": (
        "pauses of a fit that accumulates gradients over an epoch",
        accumulated,
    ),
    "an optimizer has what it excludes from its decay as _exclude_from_weight_decay, and its _pattern": (
        "a resumed trial would decay other weights",
        excluded,
    ),
    "a loss and a metric of a function have its settings as _fn_kwargs": (
        "a resumed trial would lose a setting that a file of Keras lacks",
        settings,
    ),
    "the metrics of compile() are in _user_metrics and _user_weighted_metrics before they are built": (
        "what a metric keeps over all epochs would start again in a resumed trial",
        unbuilt_metrics,
    ),
    "BackupAndRestore sets the epoch with which a fit starts as _initial_epoch": (
        "a trial would continue the backup of another one",
        backed_up,
    ),
    "a layer has its own weights as _trainable_variables, and what trains them can be replaced in its class": (
        "a trial would train the layers that another one has trained",
        refused,
    ),
    "SwapEMAWeights has _ema_weights_in_model": ("that the kept model has the weights that were evaluated", swapped),
    "an optimizer's config has its schedule, and a LossScaleOptimizer its inner_optimizer": (
        "the hint that a trial ended before its learning-rate schedule",
        schedule,
    ),
}


@pytest.mark.parametrize("assumption", KERAS)
def test_keras(assumption):
    breaks, check = KERAS[assumption]
    assert check(), f"Without it: {breaks}."


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")
def test_tensorflows_context_has_the_seed_and_the_generator_of_seeds():
    import tensorflow as tf

    tf.random.set_seed(3)
    state = randomness.capture()
    first = list(tf.data.Dataset.range(99).shuffle(99).as_numpy_iterator())
    tf.random.set_seed(4)
    randomness.restore(state)
    again = list(tf.data.Dataset.range(99).shuffle(99).as_numpy_iterator())
    assert first == again, "Without it: the order of arrays in a resumed training."


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")
def test_the_variable_of_a_generator_of_tensorflow_has_its_name():
    import tensorflow as tf

    held = own_generators.generators_in({"draws": tf.random.Generator.from_seed(3)})
    assert len(held) == 1, "Without it: the draws of a tf.random.Generator in a resumed plain loop."


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")
def test_the_iterator_of_a_fit_of_tensorflow_has_its_distributed_dataset():
    import tensorflow as tf

    class Reads(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            found.append(data._is_distributed(caller("fit", "keras.").f_locals["epoch_iterator"]))

    found, plain = [], net()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = net()
    for model in (plain, mirrored):
        model.fit(X, Y, epochs=1, verbose=0, callbacks=[Reads()])
    assert found == [False, True], "Without it: a shuffle for several devices would be saved as if for one."


@pytest.mark.slow  # to import TensorFlow takes longer than all checks here
def test_a_dataset_of_tensorflow_has_its_seeds_and_inputs():
    tf = pytest.importorskip("tensorflow")
    made = tf.data.Dataset.range(9)
    shuffled = [made.shuffle(9, seed=1).batch(2), made.shuffle(9, seed=1, reshuffle_each_iteration=False)]
    found = [len(shuffles.in_dataset(one)) for one in shuffled]
    assert found == [1, 0], "Without it: pauses that cannot resume exactly."
    with pytest.raises(NotSupported):  # by the name of its class
        shuffles.states_of(shuffled[0].repeat(2))
    with pytest.raises(NotSupported):
        shuffles.states_of(shuffled[0].cache())


@pytest.mark.slow
def test_the_state_of_an_iterator_of_tensorflow_has_how_much_its_shuffle_has_drawn():
    tf = pytest.importorskip("tensorflow")
    shuffled = tf.data.Dataset.range(9).shuffle(9, seed=1)
    data = shuffled.map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE).batch(2).prefetch(1)

    def order():
        return [int(x) for batch in data for x in batch]

    states, orders = [], []
    for _ in range(3):
        states.append(shuffles.states_of(data))
        orders.append(order())
    again = []
    for state in states[::-1]:
        assert shuffles.put_back(data, state) == []
        assert shuffles.states_of(data) == state
        again.append(order())
    breaks = "Without it: pauses of trials with data of tf.data that shuffle from a seed."
    assert orders[0] != orders[1]
    assert again == orders[::-1], breaks


@pytest.mark.slow
def test_a_full_cache_of_tensorflow_reads_no_more():
    tf = pytest.importorskip("tensorflow")
    first, other = (tf.data.Dataset.range(9).shuffle(9, seed=1).batch(2).cache() for _ in range(2))
    list(first.take(1))  # which does not fill it
    order = [list(map(int, batch)) for batch in first]
    state = shuffles.states_of(first)
    assert shuffles.put_back(other, state) == []
    assert [list(map(int, batch)) for batch in other] == order, (
        "Without it: exact resumption of shuffles that a cache reads."
    )
    assert shuffles.states_of(other) == state
    third = tf.data.Dataset.range(9).shuffle(9, seed=1).batch(2).cache()
    list(third)
    assert shuffles.put_back(third, state) != []  # it has another order


def scaled(x):
    return x * 2.0


@pytest.mark.slow
def test_a_dataset_of_tensorflow_has_the_functions_that_it_reads_by():
    tf = pytest.importorskip("tensorflow")

    def rows():
        yield 1.0

    made = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((), "float32")).map(scaled).batch(2)
    found = set(data._functions_of(made))
    assert {rows, scaled} <= found, "Without it: exact resumption of generators within the functions of a dataset."
    assert not data._functions_of(made.cache()), "Without it: functions that a resumed fit calls again."


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")
def test_a_compiled_step_of_tensorflow_shows_whether_it_draws_by_tf_random():
    import tensorflow as tf

    class Noisy(keras.layers.Layer):
        def call(self, x):
            return x + tf.random.normal((2,))

    drawn = []
    for layers in ([], [Noisy()]):
        model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(X, Y, epochs=1, verbose=0)
        drawn.append(draws.draws_by_tensorflow(model))
    assert drawn == [False, True], "Without it: pauses that cannot resume exactly."


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX")
def test_jax_writes_the_trained_state_into_the_model_by_jax_state_sync():
    class Syncs(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.jax_state_sync()
            weights.append(self.model.get_weights()[0].copy())

    weights = []
    keras.utils.set_random_seed(0)  # where dropout leaves no input of a batch, it changes no weight
    net().fit(X, Y, batch_size=4, epochs=1, verbose=0, callbacks=[Syncs()])
    assert not np.array_equal(*weights), "Without it: checkpoints and steps within an epoch, with every=."


def tuned(kind=None):
    """A tuner of Keras Tuner after a search."""
    import keras_tuner

    def build(hp):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(hp.Int("width", 1, 2))])
        model.compile("sgd", "mse")
        return model

    kind = kind or keras_tuner.RandomSearch
    tuner = kind(build, "val_loss", max_trials=1, directory=tempfile.mkdtemp())
    tuner.search(X, Y, epochs=1, validation_data=(X, Y), verbose=0)
    return tuner


def results_are_read():
    import keras_tuner
    from keras_tuner.src.engine import tuner_utils

    objective = keras_tuner.Objective("val_loss", "min")
    tuner_utils.validate_trial_results(0.5, objective, "run_trial")
    with pytest.raises(keras_tuner.errors.FatalTypeError):
        tuner_utils.validate_trial_results(None, objective, "run_trial")
    return tuner_utils.convert_to_metrics_dict(0.5, objective) == {"val_loss": 0.5}


def overridden():
    """Whether Keras Tuner calls the methods that haltune overrides."""
    import keras_tuner

    called = set()

    class Tuner(keras_tuner.RandomSearch):
        def _run_and_update_trial(self, *arguments, **named):
            called.add("_run_and_update_trial")
            return super()._run_and_update_trial(*arguments, **named)

        def _populate_initial_space(self):
            called.add("_populate_initial_space")
            super()._populate_initial_space()

        def _try_build(self, hp):
            called.add("_try_build")
            return super()._try_build(hp)

        def _get_checkpoint_fname(self, trial_id):
            called.add("_get_checkpoint_fname")
            return super()._get_checkpoint_fname(trial_id)

    tuned(Tuner)
    return len(called) == 4


TUNER = {
    "the tuner calls the methods that haltune.keras_tuner.Tuner overrides": (
        "trials that resume, and the best weights of each",
        overridden,
    ),
    "tuner_utils reads what a custom run_trial returns": ("tuners with their own run_trial", results_are_read),
    "the oracle has its folder, queue, runs and display under these names": (
        "searches that continue, and the table of trials",
        lambda: (
            {"_retry_queue", "_run_times", "_display"} <= vars(oracle := tuned().oracle).keys()
            and oracle._project_dir is not None
            and callable(oracle._save_trial)
            and callable(oracle._display.on_trial_begin)
        ),
    ),
}


@pytest.mark.slow  # Keras Tuner imports TensorFlow
@pytest.mark.skipif(importlib.util.find_spec("keras_tuner") is None, reason="Keras Tuner is not installed")
@pytest.mark.parametrize("assumption", TUNER)
def test_keras_tuner(assumption):
    breaks, check = TUNER[assumption]
    assert check(), f"Without it: {breaks}."
