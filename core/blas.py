"""One BLAS thread while deciding: sums in another order would give other last bits, and other decisions.

numpy and scipy wheels each bring an OpenBLAS of their own; both are set. Other BLAS
libraries are left as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import scipy

_STEMS = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_",
          "openblas_{}_num_threads")  # fmt: skip


@cache
def _libraries() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """(get, set) of the number of threads, for each OpenBLAS found."""
    found = []
    for package in (np, scipy):
        root = Path(str(package.__file__)).parent
        for path in (*root.parent.glob(f"{root.name}.libs/*openblas*"), *root.glob(".dylibs/*openblas*")):
            pair = _functions(path)
            if pair:
                found.append(pair)
    return found


def _functions(path: Path) -> tuple[Callable[[], int], Callable[[int], None]] | None:
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    for stem in _STEMS:
        if hasattr(library, stem.format("set")):
            return getattr(library, stem.format("get")), getattr(library, stem.format("set"))
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Linear algebra on one thread inside the block; the former numbers come back after it."""
    before = [(put, get()) for get, put in _libraries()]
    for put, _ in before:
        put(1)
    try:
        yield
    finally:
        for put, threads in before:
            put(threads)
