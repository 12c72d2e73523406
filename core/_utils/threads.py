"""One BLAS thread for decisions: another order of sums would change the last bits, and so the decisions.

numpy and scipy wheels have their own OpenBLAS; both are set. Other BLAS libraries are not changed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
import scipy

from .forks import fork_handlers
from .signals import undisturbed

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
    """Counter of decisions in threads: the first one sets the numbers, the last one restores them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within: dict[object, int] = {}  # current decision -> its thread
        self._before: list[tuple[Callable[[int], None], int]] = []
        fork_handlers.add(self)

    def enter(self, decision: object) -> None:
        with undisturbed, self._lock:
            if not self._within:
                self._before = [(put, get()) for get, put in _libraries()]
                for put, _ in self._before:
                    put(1)
            self._within[decision] = threading.get_ident()

    def leave(self, decision: object) -> None:
        with undisturbed, self._lock:
            if self._within.pop(decision, None) is not None and not self._within:
                self._restore()

    def after_fork(self) -> None:
        """See forks.ForkHandler. The child trains with as many threads as before, even if others were deciding."""
        deciding, me = bool(self._within), threading.get_ident()
        self._lock = threading.Lock()
        self._within = {decision: thread for decision, thread in self._within.items() if thread == me}
        if deciding and not self._within:
            self._restore()

    def _restore(self) -> None:
        for put, threads in self._before:
            put(threads)


_one = _OneThread()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run linear algebra on one thread inside the block; restore the numbers after it."""
    decision = object()
    try:
        _one.enter(decision)
        yield
    finally:
        try:
            _one.leave(decision)
        except BaseException:  # Ctrl-C before it started
            _one.leave(decision)
            raise
