"""What changes in a training besides the weights: prints of objects, to compare them before and after.

A plain value can be saved as JSON. Of any other value, a `Print` tells whether it has changed since an earlier print.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from haltune._utils.randomness import generators_in, states_of

_LIBRARIES = ("transformers", "trl", "accelerate", "datasets", "haltune", "torch", "fastai", "fastcore")
_OF_TORCH = ("training", "call_super_init", "_is_full_backward_hook")


class Print:
    """What tells whether an object has changed: the versions of its tensors, the numbers in it.

    known: ids of the objects that the checkpoint has: the trained parameters, their optimizer and its schedule.
    """

    def __init__(self, value: Any, known: set[int]) -> None:
        self._print = _printed(value, known, 3)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Print) and self._print == other._print

    __hash__ = None  # type: ignore[assignment]


def _printed(value: Any, known: set[int], depth: int) -> Any:
    if is_plain(value):
        return repr(value)
    if id(value) in known:
        return None
    if hasattr(value, "untyped_storage"):
        return tuple(value.shape), value.data_ptr(), version(value)
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if hasattr(value, "named_parameters"):
        tensors = [*value.parameters(), *value.buffers()]
        if any(id(t) in known for t in tensors):
            return None
        return [_printed(t, known, depth) for t in tensors]
    if not depth or callable(value):
        return None
    if isinstance(value, dict):
        return {repr(key): _printed(inner, known, depth - 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        return [_printed(inner, known, depth - 1) for inner in value]
    if callable(getattr(value, "zero_grad", None)) and callable(getattr(value, "state_dict", None)):  # an optimizer
        return _printed(value.state_dict(), known, 5)
    if type(value).__module__.split(".")[0] in _LIBRARIES:
        return None
    generators = repr(states_of(generators_in(value)))
    return generators, {k: _printed(v, known, depth - 1) for k, v in getattr(value, "__dict__", {}).items()}


def version(tensor: Any) -> int:
    """Return how often a tensor was changed in place.

    torch has no public name for it. Without it, the weights that a callback holds would be copied to see a change.
    """
    return int(tensor._version)


def is_plain(value: Any) -> bool:
    """Return whether JSON returns the same value."""
    if value is None or type(value) in (bool, int, float, str):
        return True
    if type(value) is list:
        return all(map(is_plain, value))
    return type(value) is dict and all(type(key) is str and is_plain(inner) for key, inner in value.items())


def numbers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers that the modules of a torch model hold, by name: "module.attribute"."""
    for module, holder in model.named_modules():
        for name, value in vars(holder).items():
            if type(value) in (bool, int, float) and name not in _OF_TORCH:
                yield f"{module}.{name}", value


def set_numbers(model: Any, found: Mapping[str, Any]) -> None:
    """Set what `numbers` yielded in an earlier attempt."""
    modules = dict(model.named_modules())
    for name, value in found.items():
        module, _, attribute = name.rpartition(".")
        if module in modules:
            setattr(modules[module], attribute, value)


def local(tensor: Any) -> Any:
    """Return the part of a tensor that this process holds: all of it, unless it is spread over several."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def fingerprint(*models: Any) -> int:
    """Return a number that differs between torch models with other weights, from the parts that this process holds."""
    import torch

    weights = [local(p) for model in models for p in model.parameters() if p.is_floating_point()]
    sums = [p.sum(dtype=torch.float64).cpu() for p in weights if p.device.type != "meta"]
    return hash(tuple(torch.stack(sums).tolist())) if sums else 0
