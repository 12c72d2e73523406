"""The random state of a Keras training: what dropout and shuffling draw from next.

Beyond Python, NumPy and torch (`frameworks.randomness`): the seed generators of the model's layers,
which Keras leaves out of its files, its global one, and TensorFlow's seed. JAX has no
state of its own: Keras hands it keys from these generators.

On TensorFlow arrays are shuffled by a seed that is fixed when the fit is set up: in the
same order in every epoch after keras.utils.set_random_seed, and else differently in every
process, which nothing can resume.
"""

from __future__ import annotations

import sys
from typing import Any

from haltune.errors import warn

from ..frameworks import randomness


def capture(model: Any) -> dict[str, Any]:
    """The state of all generators that a fit of `model` draws from, as JSON."""
    state = randomness.capture() | {"layers": [_numbers(v) for v in _seeds(model)]}
    if (generator := _global_generator()) is not None:
        state["keras"] = _numbers(generator.state)
    if (context := _tensorflow_context()) is not None and context._seed is not None:
        state["tensorflow"] = [int(context._seed), context._rng.getstate()]
    return state


def restore(model: Any, state: dict[str, Any]) -> None:
    """Set all of them; the generators of other frameworks than these stay as they are."""
    variables = _seeds(model)
    if len(variables) == len(state["layers"]):
        for variable, numbers in zip(variables, state["layers"], strict=True):
            variable.assign(numbers)
    else:
        warn(
            f"the saved model had {len(state['layers'])} random generators in its layers and this one has "
            f"{len(variables)}: its dropout will not continue as it would have"
        )
    if "keras" in state:
        _global_generator(make=True).state.assign(state["keras"])
    if "tensorflow" in state and (context := _tensorflow_context()) is not None:
        seed, (version, words, gauss) = state["tensorflow"]
        sys.modules["tensorflow"].random.set_seed(seed)
        context._rng.setstate((version, tuple(words), gauss))
    randomness.restore(state)  # last: making a generator of Keras draws from Python's


def _seeds(model: Any) -> list[Any]:
    """The variables of the seed generators of a model's layers, in the order of the layers."""
    return [v for v in model.variables if v.name == "seed_generator_state"]


def _numbers(variable: Any) -> list[int]:
    from keras import ops

    return [int(n) for n in ops.convert_to_numpy(variable)]


def _global_generator(make: bool = False) -> Any:
    """Keras' own seed generator, that of every random operation without one; None before its first use."""
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    if make:
        return seed_generator.global_seed_generator()
    return global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)


def forget_global_generator() -> None:
    """Let the next random operation without a generator make Keras' own anew."""
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)


def _tensorflow_context() -> Any:
    """Where TensorFlow keeps its seed and draws those of its operations; None when it is not imported."""
    module = sys.modules.get("tensorflow.python.eager.context")
    return None if module is None else module.context()
