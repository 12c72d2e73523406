"""One BLAS thread for decisions: another order of sums would change the last bits, and so the decisions.

numpy and scipy wheels have their own OpenBLAS; both are set. Other BLAS libraries are not changed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import scipy

from .forks import fork_handlers

_STEMS = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_",
          "openblas_{}_num_threads")  # fmt: skip


@cache
def _libraries() -> list[tuple[Callable[[], int], Callable[[int], None]]]:
    """Return (get, set) for the number of threads of each OpenBLAS found."""
    found = []
    for package in (np, scipy):
        root = Path(str(package.__file__)).parent
        for path in (*root.parent.glob(f"{root.name}.libs/*openblas*"), *root.glob(".dylibs/*openblas*")):
            with suppress(OSError):
                library = ctypes.CDLL(str(path))
                stem = next((stem for stem in _STEMS if hasattr(library, stem.format("set"))), None)
                if stem is not None:
                    found.append((getattr(library, stem.format("get")), getattr(library, stem.format("set"))))
    return found


class _OneThread:
    """Counter of decisions in threads: the first one sets the numbers, the last one restores them.

    with undisturbed, one_thread, undisturbed.heard:    whole when it starts and ends; signals can end the decision
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within: list[int] = []  # the threads of current decisions
        self._before: list[tuple[Callable[[int], None], int]] = []
        fork_handlers.add(self)

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                self._before.clear()
                for get, put in _libraries():
                    self._before.append((put, get()))
                    put(1)
            self._within.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within.remove(threading.get_ident())
            if not self._within:
                for put, threads in self._before:
                    put(threads)

    def after_fork(self) -> None:
        """See forks.ForkHandler. The child trains with as many threads as before, even if others were deciding."""
        self._lock, me = threading.Lock(), threading.get_ident()
        if self._within:
            self._within = [me, *(thread for thread in self._within if thread == me)]
            self.__exit__()


one_thread = _OneThread()
