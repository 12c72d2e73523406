"""The random state of a process, to restore in another: Python, NumPy, and torch if it is in use.

A state is made of primitives only, so that a checkpoint which holds it loads without pickle.
"""

from __future__ import annotations

import base64
import json
import random
import sys
from typing import Any

import numpy as np

from haltune.display import one_line
from haltune.errors import InvalidInput


def capture() -> dict[str, Any]:
    """The state of every global generator in use: names -> JSON-able values."""
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (users' code draws from it)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [str(kind), _text(np.asarray(keys).tobytes()), int(position), int(has_gauss), float(cached)],
    }
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = of_tensor(torch.random.get_rng_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = [of_tensor(s) for s in torch.cuda.get_rng_state_all()]
    return state


def state_from_json(text: str | bytes) -> dict[str, Any]:
    """A state from the JSON in which it was kept. Raises InvalidInput for what is none."""
    try:
        return checked(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise damaged(error) from error


def checked(state: Any) -> dict[str, Any]:
    """The state. Raises InvalidInput for what is none."""
    if not (isinstance(state, dict) and {"python", "numpy"} <= state.keys()):
        raise damaged(ValueError("it lacks the states of Python and NumPy"))
    return state


def damaged(error: Exception) -> InvalidInput:
    return InvalidInput(
        f"the random state kept with the checkpoint is damaged ({one_line(error)}): bring back a copy of it, or fail "
        "the trial, trial.fail(error), so that the search continues without it"
    )


def restore(state: dict[str, Any]) -> None:
    """Set the generators as they were; those of devices that are not here stay as they are.

    Raises InvalidInput for what is no state.
    """
    torch = sys.modules.get("torch")
    try:
        random.setstate(tupled(state["python"]))
        kind, keys, position, has_gauss, cached = state["numpy"]
        words = np.frombuffer(base64.b64decode(keys), dtype=np.uint32)
        np.random.set_state((kind, words, position, has_gauss, cached))  # noqa: NPY002
        if torch is not None and "torch" in state:
            torch.random.set_rng_state(tensor_of(state["torch"]))
            devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
            for device, text in enumerate(state.get("cuda", ())[:devices]):
                torch.cuda.set_rng_state(tensor_of(text), device)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RuntimeError) as error:
        raise damaged(error) from error


def tupled(value: Any) -> Any:
    """A state of Python's generators as it was before JSON made lists of its tuples."""
    return tuple(tupled(v) for v in value) if isinstance(value, list) else value


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def of_tensor(tensor: Any) -> str:
    """The state of a torch generator as text."""
    return _text(tensor.cpu().numpy().tobytes())


def tensor_of(text: str) -> Any:
    """The inverse of `of_tensor`."""
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
