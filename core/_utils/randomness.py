"""The random state of a process, to restore in another: Python, NumPy, and torch, TensorFlow or Keras if it is used.

Generators that a program's data or models hold are found and saved apart, see `own_generators`.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from haltune.errors import InvalidInput

from .generators import arrays, damaged, lists, of_generator, of_tensor, set_generator, tensor_of, tupled
from .updates import Flags


def capture() -> dict[str, Any]:
    """Return the state of all global generators in use: of Python, NumPy, torch and its devices, TensorFlow and Keras.

    Returns:
        The states by name, which `json.dumps` takes. Generators that a program or a framework holds are not among them.
    """
    numpy = lists(np.random.get_state(legacy=False))  # noqa: NPY002 (users' code draws from it)
    state: dict[str, Any] = {"python": random.getstate(), "numpy": numpy}
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = of_tensor(torch.random.get_rng_state())
        state |= of_devices()
    if (context := _tensorflow_context()) is not None and context._seed is not None:
        state["tensorflow"] = [int(context._seed), context._rng.getstate()]
    if (keras := _keras_globals()) is not None and (generator := keras.get_global_attribute(_OF_KERAS)) is not None:
        state["keras"] = of_generator(generator.state)
    return state


def of_devices() -> dict[str, Any]:
    """Return the state of torch's generators of devices: kind of device -> one of each."""
    if (torch := sys.modules.get("torch")) is None:
        return {}
    found = {}
    for kind in ("cuda", "xpu"):
        of = getattr(torch, kind, None)
        if of is not None and of.is_initialized():  # asking breaks a later fork
            found[kind] = [of_tensor(state) for state in of.get_rng_state_all()]
    if torch.backends.mps.is_available():
        found["mps"] = [of_tensor(torch.mps.get_rng_state())]
    return found


def restore_devices(state: dict[str, Any]) -> None:
    """Restore what `of_devices` returned. Those of devices that this process lacks stay unchanged."""
    torch: Any = sys.modules.get("torch")
    for kind in ("cuda", "xpu", "mps"):
        if state.get(kind) and hasattr(torch, kind):
            of = getattr(torch, kind)
            count = int(torch.backends.mps.is_available()) if kind == "mps" else of.device_count()
            for device, text in enumerate(state[kind][:count]):
                of.set_rng_state(tensor_of(text), device)


def _tensorflow_context() -> Any:
    """Return TensorFlow's context with its seed; None if TensorFlow is not imported.

    `_seed` is that of tf.random.set_seed, and `_rng` draws the seeds of operations without one. TensorFlow has no
    public way to read them. Without them, a resumed training would shuffle its data in another order.
    """
    module = sys.modules.get("tensorflow.python.eager.context")
    return None if module is None else module.context()


_OF_KERAS = "global_seed_generator"  # Keras' name of its global generator


def _keras_globals() -> Any:
    """Return the module with the global state of Keras; None if Keras is not imported.

    It has the generator that seeds random operations without a seed of their own. Keras exports no access to it.
    Without it, such operations would draw other numbers in a resumed training.
    """
    return sys.modules.get("keras.src.backend.common.global_state")


def state_from_json(text: str | bytes) -> dict[str, Any]:
    """Return a state from its JSON. Raises InvalidInput if it is not a state."""
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(error) from error
    return checked(state)


def checked(state: Any) -> dict[str, Any]:
    """Return the state. Raises InvalidInput if it is not one."""
    if not (isinstance(state, dict) and {"python", "numpy"} <= state.keys()):
        raise damaged(ValueError("it lacks the states of Python and NumPy"))
    return state


def restore(state: dict[str, Any]) -> None:
    """Restore the generators. Those of devices that this process lacks stay unchanged.

    Args:
        state: What `capture` returned, also after JSON.

    Raises:
        InvalidInput: If it is not such a state.
    """
    torch = sys.modules.get("torch")
    try:
        if (keras := _keras_globals()) is not None:
            keras.set_global_attribute(_OF_KERAS, _generator_of_keras(keras, state.get("keras")))
        random.setstate(tupled(state["python"]))
        kind = state["numpy"]["bit_generator"]
        if kind != np.random.get_state(legacy=False)["bit_generator"]:  # noqa: NPY002
            np.random.set_bit_generator(getattr(np.random, kind)())  # type: ignore[attr-defined]
        np.random.set_state(arrays(state["numpy"]))  # noqa: NPY002
        if torch is not None and "torch" in state:
            torch.random.set_rng_state(tensor_of(state["torch"]))
            restore_devices(state)
        if "tensorflow" in state and (context := _tensorflow_context()) is not None:
            seed, drawing = state["tensorflow"]
            sys.modules["tensorflow"].random.set_seed(seed)
            context._rng.setstate(tupled(drawing))
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise damaged(error) from error


def _generator_of_keras(keras: Any, state: Any) -> Any:
    """Return Keras' global generator with a state, a new one if there is none; None without a state."""
    if state is None:
        return None
    generator = keras.get_global_attribute(_OF_KERAS) or sys.modules["keras"].random.SeedGenerator()
    set_generator(generator.state, state)
    return generator


def put(path: Path, state: dict[str, Any] | None = None) -> None:
    """Write a state to a file. Default: None, the present one."""
    path.write_text(json.dumps(capture() if state is None else state), encoding="utf-8")


def with_torch(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state from before PyTorch was imported with the one that its generator had then."""
    if (torch := sys.modules.get("torch")) is None or "torch" in state:
        return state
    return state | {"torch": of_tensor(torch.Generator().manual_seed(torch.initial_seed()).get_state())}


def imports(path: Path) -> None:
    """Import PyTorch if the state in a file has that of its generator: a program may import it later."""
    if "torch" not in sys.modules and path.is_file():
        with suppress(Exception):  # `put_back` raises what is wrong with the file
            if "torch" in state_from_json(path.read_bytes()):
                import_module("torch")


def put_back(path: Path) -> None:
    """Restore the state of a file, if there is one. Raises InvalidInput if it is damaged."""
    if path.is_file():
        try:
            restore(state_from_json(path.read_bytes()))
        except InvalidInput as error:
            error.add_note(f"It is in {path}.")
            raise


def flags_in(path: Path) -> list[Flags]:
    """Return which weights trained where the random state in a file was captured; none if that is not known."""
    with suppress(OSError, ValueError):
        return [(of, trains) for of, trains in json.loads(path.read_bytes()).get("trainable", [])]
    return []
