"""The names that options of policies had in earlier versions: programs and logs may still have them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any, TypeVar

from haltune.errors import InvalidInput, warn

T = TypeVar("T")

# class of a policy -> old name of an option -> the name that it has now
_RENAMED = {
    "Ladder": {"patience": "min_trials_per_rung", "min_epochs": "min_resource"},
    "MultiFidelity": {"patience": "min_trials_per_rung"},
}


def renamed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's spec from a log with the names that its options have now, those of inner policies included."""
    names = _RENAMED.get(str(spec.get("policy")), {})
    values = {k: renamed(v) if isinstance(v, Mapping) and "policy" in v else v for k, v in spec.items()}
    return {names.get(k, k): v for k, v in values.items()}


def takes_old_names(cls: type[T]) -> type[T]:
    """Make a policy's class accept the old names of its options, with a warning that names the new ones."""
    name, made, names = cls.__name__, vars(cls)["__init__"], _RENAMED[cls.__name__]

    @wraps(made)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        for old in names.keys() & options.keys():
            if (new := names[old]) in options:
                raise InvalidInput(f"{name}({old}=..., {new}=...) are one option. Give {new}= alone.")
            every = (
                " Study(..., min_epochs=) sets the minimum of every policy." if old == "min_epochs" else ""
            )
            warn(f"{name}({old}=) is called {new}= now. Write {name}({new}={options[old]!r}).{every}")
            options[new] = options.pop(old)
        made(self, *args, **options)

    __init__.old_names = names  # type: ignore[attr-defined]
    setattr(cls, "__init__", __init__)  # noqa: B010
    return cls
