"""Plain values: what a choice, a constant or a condition may hold, and the one text that identifies each.

Plain are None, bool, int, finite float, str, and lists and tuples of these. `True` and `1` are
different values; `1` and `1.0` are the same one, since JSON does not keep them apart everywhere.
"""

import json
import math
from typing import Any

import numpy as np

from haltune.errors import InvalidSpace


def plain_value(value: Any, where: str) -> Any:
    """The value as plain Python, copied; `where` opens the error. Raises InvalidSpace for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value) + 0.0  # -0.0 becomes 0.0: they are equal but print differently
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list | tuple):
        items = (plain_value(item, where) for item in value)
        return list(items) if isinstance(value, list) else tuple(items)
    raise InvalidSpace(
        f"{where} holds {value!r}, which JSON cannot keep. Allowed are None, bool, finite numbers, str, and "
        f"lists or tuples of these: give objects a name and look them up in your own code."
    )


def token(value: Any) -> str:
    """One JSON text per plain value; equal for `1` and `1.0`, for a tuple and the list it becomes in JSON."""
    return json.dumps(_levelled(value), separators=(",", ":"), allow_nan=False)


def as_float(number: Any) -> float:
    """The number as a double; ints too large for one become infinite, to be refused like infinity."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def pack(value: Any) -> Any:
    """JSON that keeps tuples apart from lists."""
    if isinstance(value, tuple):
        return {"tuple": [pack(item) for item in value]}
    return [pack(item) for item in value] if isinstance(value, list) else value


def unpack(data: Any) -> Any:
    """The inverse of `pack`."""
    if isinstance(data, dict):
        return tuple(unpack(item) for item in data["tuple"])
    return [unpack(item) for item in data] if isinstance(data, list) else data


def is_mutable(value: Any) -> bool:
    """Whether a value must be copied before it is handed out."""
    return isinstance(value, list) or (isinstance(value, tuple) and any(map(is_mutable, value)))


def _levelled(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return [_levelled(item) for item in value] if isinstance(value, list | tuple) else value
