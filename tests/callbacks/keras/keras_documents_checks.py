"""The blocks in Keras on the pages of documentation, as a reader would paste them. Run by test_callback.py."""

import keras
import numpy as np
import pytest
from documents import blocks

from haltune.callbacks.keras import HaltuneCallback

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def make_model(lr, width):
    model = keras.Sequential([keras.layers.Dense(width), keras.layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_the_blocks_train_and_give_the_best_model_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).random((32, 3), "float32"), np.arange(32) % 2
    names = {
        "make_model": make_model,
        "x": x,
        "y": y,
        "x_val": x,
        "y_val": y,
        "HaltuneCallback": HaltuneCallback,
    }
    (beside,) = blocks("docs/coming_from.md", lambda text: "best.load_model()" in text)
    beside.run(names, {"max_epochs=30": "max_epochs=2", '"20 trials"': '"2 trials"'})
    assert names["study"].outcome.over
    assert names["model"].count_params()  # study.best.load_model()
