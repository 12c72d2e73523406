"""The torch models of a loop of the program's own, which names none; found without importing torch."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from types import FrameType
from typing import Any

_SAMPLED = 8  # elements of each parameter


def trained_around(frame: FrameType | None) -> list[Any]:
    """Return the models that an optimizer of the functions around a loop trains.

    Models and optimizers are found as local variables, as globals of the functions, and as attributes of `self`.
    """
    held: dict[int, Any] = {}
    while frame is not None:
        names = {name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}
        for holder in (frame.f_locals, names, getattr(frame.f_locals.get("self"), "__dict__", {})):
            held |= {id(one): one for one in list(holder.values()) if _has(one, "state_dict")}
        frame = frame.f_back
    groups = [group for one in held.values() if _has(one, "zero_grad") for group in getattr(one, "param_groups", ())]
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    models = [one for one in held.values() if _has(one, "named_parameters")]
    return [model for model in models if any(id(parameter) in trained for parameter in model.parameters())]


def mark_of(model: Any) -> str:
    """Return a digest of a sample of each parameter, with their names; "" if they cannot be read."""
    mark = hashlib.sha256()
    with suppress(Exception):  # parameters without data, or of a kind that has no list
        for name, parameter in model.named_parameters():
            here = parameter.detach()
            here = here.to_local() if hasattr(here, "to_local") else here
            mark.update(f"{name} {here.reshape(-1)[:_SAMPLED].tolist()}".encode())
        return mark.hexdigest()
    return ""


def _has(value: Any, method: str) -> bool:
    return callable(getattr(type(value), method, None))
