"""A Keras model with a custom train_step, test_step and metrics of its own, after the guide on them."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


@keras.saving.register_keras_serializable("zoo")
class Noisy(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense, self.noise = keras.layers.Dense(1), keras.random.SeedGenerator(3)
        self.seen = keras.metrics.Mean("loss")

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        inputs, targets = data
        self.zero_grad()
        inputs = inputs + 0.1 * keras.random.normal(inputs.shape, seed=self.noise)
        loss = keras.ops.mean((self(inputs, training=True) - targets) ** 2)
        loss.backward()
        weights = self.trainable_weights
        self.optimizer.apply([w.value.grad for w in weights], weights)
        self.seen.update_state(loss)
        return {"loss": self.seen.result()}

    @property
    def metrics(self):
        return [self.seen]

    def test_step(self, data):
        inputs, targets = data
        self.seen.update_state(keras.ops.mean((self(inputs) - targets) ** 2))
        return {"loss": self.seen.result()}


def build(lr):
    model = Noisy()
    model.compile(keras.optimizers.SGD(lr, momentum=0.9), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            model.fit(x[:64], y[:64], 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch),
                      validation_data=(x[64:], y[64:]), callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    predicted = keras.models.load_model(path).predict(x[64:], verbose=0)
    return float(np.mean((predicted - y[64:]) ** 2))


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    counts="keras",
)
