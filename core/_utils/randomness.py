"""The random state of a process, to restore in another process: Python, NumPy, and torch if it is used.

A state has primitives only, so that its checkpoint loads without pickle.
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
    """Return the state of all global generators in use: names -> JSON-able values."""
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
    """Return a state from its JSON. Raises InvalidInput if it is not a state."""
    try:
        return checked(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise damaged(error) from error


def checked(state: Any) -> dict[str, Any]:
    """Return the state. Raises InvalidInput if it is not one."""
    if not (isinstance(state, dict) and {"python", "numpy"} <= state.keys()):
        raise damaged(ValueError("it lacks the states of Python and NumPy"))
    return state


def damaged(error: Exception) -> InvalidInput:
    return InvalidInput(
        f"The random state of the checkpoint is damaged ({one_line(error)}). Restore it from a copy, or fail the "
        "trial, trial.fail(error), so that the search continues without it."
    )


def restore(state: dict[str, Any]) -> None:
    """Restore the generators. Those of devices that this process lacks stay unchanged.

    Raises InvalidInput if it is not a state.
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
    """Return a state of Python's generators with tuples, which JSON turned into lists."""
    return tuple(tupled(v) for v in value) if isinstance(value, list) else value


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def of_tensor(tensor: Any) -> str:
    """Return the state of a torch generator as text."""
    return _text(tensor.cpu().numpy().tobytes())


def tensor_of(text: str) -> Any:
    """The inverse of `of_tensor`."""
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
