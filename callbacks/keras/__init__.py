"""The callback for Keras 3, on any of its backends.

    from haltune.callbacks.keras import HaltuneCallback

    with trial:
        model = trial.load_model() or make_model(**trial.config)
        model.fit(..., epochs=trial.max_epochs, initial_epoch=trial.epoch, callbacks=[HaltuneCallback(trial)])

It reports after every epoch in which the metric was measured. To pause, it saves the whole
model and the random state at the end of the epoch; a fit that goes on from there, in any
process, equals one that was never paused, digit for digit. Under a strategy of TensorFlow
call trial.load_model() within its scope.

Before the first pause of a kind of model the file is loaded once, on the CPU, to try it: a trial
whose file Keras could not load (a loss of your own, a lambda) is not paused, with one warning. For it:

    model = trial.load_model(make_model)     # make_model(**trial.config), with the state it had

What Keras keeps outside the model begins anew in such a fit: the state of other callbacks
(ReduceLROnPlateau, EarlyStopping), the order of data that shuffles itself (tf.data's shuffle,
your own generators, several workers of a PyDataset), the place in the data with
steps_per_epoch, and what TensorFlow's own tf.random draws inside layers. With TensorFlow,
seed with keras.utils.set_random_seed: else it shuffles arrays differently in every process.

After an exception Keras calls no callback, so keep the fit inside `with trial:`, which
records it. No hook works on batches: one would switch JAX's asynchronous dispatch off.
Importing this module imports no framework, so KERAS_BACKEND may be set later.
"""

from .callback import HaltuneCallback
from .saving import load_best, load_model

__all__ = ["HaltuneCallback", "load_best", "load_model"]
