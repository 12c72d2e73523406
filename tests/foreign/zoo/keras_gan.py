"""A GAN in Keras with two optimizers, which no model file of Keras holds both."""

import keras
import numpy as np
from keras import layers, ops

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

real = 1 + 0.1 * np.random.default_rng(0).normal(size=(64, 2)).astype("float32")


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((2,)), layers.Dense(2)])
        self.built = True
        self.discriminator = keras.Sequential([keras.Input((2,)), layers.Dense(8, "relu"), layers.Dense(1)])

    def compile(self, g, d):
        super().compile()
        self.g, self.d = g, d

    def step(self, loss, part, optimizer):
        self.zero_grad()
        loss.backward()
        optimizer.apply([w.value.grad for w in part.trainable_weights], part.trainable_weights)

    def train_step(self, data):
        fake = self.generator(keras.random.normal(data.shape))
        truth = ops.softplus(-self.discriminator(data)).mean() + ops.softplus(self.discriminator(fake.detach())).mean()
        self.step(truth, self.discriminator, self.d)
        self.step(ops.softplus(-self.discriminator(fake)).mean(), self.generator, self.g)
        return {"loss": truth}

    def test_step(self, data):
        distance = ops.norm(ops.mean(self.generator(ops.zeros_like(data)) - data, 0))
        return {"distance": distance}


def build(lr):
    gan = GAN()
    gan.compile(keras.optimizers.Adam(lr), keras.optimizers.Adam(lr))
    return gan


def search(study):
    for trial in study:
        with trial:
            gan = trial.load_model(build) or build(**trial.config)
            gan.fit(real, batch_size=16, epochs=trial.max_epochs, initial_epoch=int(trial.epoch), verbose=0,
                    validation_data=(real,), validation_batch_size=64, callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    gan = build(**config)
    gan.generator.build((None, 2))
    gan.load_weights(path)
    return float(np.linalg.norm((gan.generator.predict(np.zeros((1, 2)), verbose=0) - real).mean(0)))


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_distance"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=8,
    counts="keras",
)
