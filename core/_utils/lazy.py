"""Lazy imports of a package's names, so that one policy does not import the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from haltune.hints import missing_attribute


def shows(
    package: str, modules: Mapping[str, Sequence[str]], packages: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    modules: module in the package -> its public names. packages: subpackages that are imported at first use.
    """
    where = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in where:
            whose, here = f"module {package!r}", vars(sys.modules[package])
            message = missing_attribute(whose, name, [package], [*here, *where])
            for part in () if "from haltune" in message else here.values():
                if isinstance(part, ModuleType) and name in getattr(part, "__all__", ()):
                    message = f"{whose} has no attribute {name!r}: from {part.__name__} import {name}"
            imports = sys._getframe(1).f_code.co_name == "_handle_fromlist"  # `from package import name`
            if imports and not message.endswith(repr(name)) and find_spec(f"{package}.{name}") is None:
                raise ImportError(message, name=package)  # the statement hides the text of an AttributeError
            raise AttributeError(message)
        found = getattr(import_module(f"{package}.{where[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted({*vars(sys.modules[package]), *where, *packages})
