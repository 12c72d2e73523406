"""Random generators of Python, NumPy, torch, TensorFlow and Keras, and their states as primitives.

So a checkpoint with them loads without pickle.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from haltune.display import one_line
from haltune.errors import InvalidInput


def is_generator(value: Any) -> bool:
    """Return whether it is a generator of Python, NumPy or torch that has a state."""
    torch = sys.modules.get("torch")
    kinds = (random.Random, np.random.Generator, np.random.RandomState, *([] if torch is None else [torch.Generator]))
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def is_of_keras(value: Any) -> bool:
    """Return whether it is the variable of a Keras seed generator, which Keras gives this name."""
    return getattr(value, "name", None) == "seed_generator_state"


def is_of_tensorflow(value: Any) -> bool:
    """Return whether it is the variable of a tf.random.Generator, which TensorFlow gives this name.

    Without this name, a plain loop would resume with the first draws of the generator.
    """
    return type(value).__module__.startswith("tensorflow.python.ops.") and (
        str(getattr(value, "name", None)).rpartition("/")[2] == "StateVar:0"
    )


def kind_of(generator: Any) -> str:
    """Return its class, or that of its bit generator: the states of others do not fit."""
    return type(generator.bit_generator if isinstance(generator, np.random.Generator) else generator).__name__


def new_generator(kind: str) -> Any:
    if kind == "Generator":
        import torch

        return torch.Generator()
    made: Any = {"Random": random, "RandomState": np.random}.get(kind)
    return np.random.Generator(getattr(np.random, kind)()) if made is None else getattr(made, kind)()


def of_generator(generator: Any) -> Any:
    """Return a generator's state as a JSON-able value."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return lists(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return lists(generator.get_state(legacy=False))
    if is_of_tensorflow(generator):
        return [int(n) for n in generator.numpy()]
    if is_of_keras(generator):
        return [int(n) for n in sys.modules["keras"].ops.convert_to_numpy(generator)]
    return of_tensor(generator.get_state())


def set_generator(generator: Any, state: Any) -> None:
    """Restore a generator. Raises InvalidInput if it is not a state of such a generator."""
    try:
        if isinstance(generator, random.Random):
            generator.setstate(tupled(list(state)))
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = arrays(state)
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(arrays(state))
        elif is_of_keras(generator) or is_of_tensorflow(generator):
            generator.assign(state)
        else:
            generator.set_state(tensor_of(state))
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise damaged(error) from error


def states_of(generators: dict[str, Any]) -> dict[str, Any]:
    """Return the states of generators: path -> a JSON-able value."""
    return {path: of_generator(generator) for path, generator in generators.items()}


def set_states(generators: dict[str, Any], states: dict[str, Any]) -> None:
    """Restore the generators that `states` names.

    Raises InvalidInput if a state is not one of its generator.
    """
    for path in generators.keys() & states.keys():
        set_generator(generators[path], states[path])


def to_put_back(generators: dict[str, Any], before: dict[str, Any]) -> Callable[[], object]:
    """Return what sets generators that differ from their earlier states to these again: all trials may share one."""
    changed = {path: state for path, state in before.items() if of_generator(generators[path]) != state}
    return partial(set_states, generators, changed)


def damaged(error: Exception) -> InvalidInput:
    return InvalidInput(
        f"The random state of the checkpoint is damaged ({one_line(error)}). Restore it from a copy, or fail the "
        "trial, trial.fail(error), so that the search continues without it."
    )


# states as primitives


def lists(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: lists(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: arrays(value) for name, value in state.items()}
    return np.asarray(state, np.uint64) if isinstance(state, list) else state


def tupled(value: Any) -> Any:
    """Return a state of Python's generators with tuples, which JSON turned into lists."""
    return tuple(tupled(v) for v in value) if isinstance(value, list) else value


def of_tensor(tensor: Any) -> str:
    """Return the state of a torch generator as text."""
    return base64.b64encode(tensor.cpu().numpy().tobytes()).decode("ascii")


def tensor_of(text: str) -> Any:
    """The inverse of `of_tensor`."""
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
