"""A session carried into a process that a training spawned: opened again there, under the same leases.

Only what multiprocessing pickles to start a process crosses, and only with a store that both processes can
reach. A study is never pickled otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any

from haltune.errors import NotSupported, warn
from haltune.log.policy import Wrapper

from .session import Session

Attempts = set[tuple[int, int]]  # trials with their attempts


def spawning() -> bool:
    """True while multiprocessing pickles what a new process begins with."""
    return get_spawning_popen() is not None


class SpawnedSession:
    """Stands for a session; opens it when something is first asked of it, which only one rank does."""

    def __init__(self, opens: Callable[[], Session]) -> None:
        self._opens = opens
        self._session: Session | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._opened(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is set is the session's, but for how it is opened."""
        if name in ("_opens", "_session"):
            super().__setattr__(name, value)
        else:
            setattr(self._opened(), name, value)

    def warn(self, text: str, about: str | None = None) -> None:
        """See Session. Opens nothing."""
        if self._session is None:
            warn(text)
        else:
            self._session.warn(text, about)

    def _opened(self) -> Session:
        if self._session is None:
            self._session = self._opens()
        return self._session


def carried(opens: Callable[..., Session], *arguments: Any) -> tuple[Any, ...]:
    """How a session is pickled. opens: makes one of `arguments` in another process.

    Raises NotSupported for any purpose but to start a process, and for a policy whose class is made in a function.
    """
    if not spawning():
        raise NotSupported(
            "a study is not pickled: its log is its state. Open it again by the URL of its store, "
            "Study(problem, policy, store='sqlite:///search.db')"
        )
    for given in arguments:
        policy = getattr(given, "policy", None)
        decides = type(policy.policy if isinstance(policy, Wrapper) else policy)
        if "<locals>" in decides.__qualname__:
            raise NotSupported(
                f"a spawned process cannot import {decides.__qualname__}, the class of this study's policy, which a "
                "function defines: define it at the top of a module"
            )
    return SpawnedSession, (partial(opens, *arguments),)
