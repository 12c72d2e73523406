"""Earlier studies that are named by their stores: they are read as the study that learns from them is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from haltune._utils.disk import StrPath
from haltune.errors import HaltuneError, InvalidInput, StoreError
from haltune.log.events import Reported
from haltune.log.policy import Policy, in_words
from haltune.ranks.agreement import follows
from haltune.store.base import Store
from haltune.store.open import open_store

from ..reading import Reading, read_study
from ..results import Results

Earlier = Results | StrPath | tuple[StrPath, str]


def earlier_studies(given: Sequence[Earlier], store: StrPath | Store | None, name: str) -> Sequence[Any]:
    """The same, with studies in the place of stores; store, name: of the one that learns.

    One to which something was reported keeps what it took when it was made: those in stores are left out then, and need
    not be there any more. Raises StoreError, or InvalidInput, for what cannot be read.
    """
    named = [e for e in given if _named(e)] if isinstance(given, list | tuple) else []
    if not named:
        return given
    if follows() or _under_way(store, name):
        return [e for e in given if not _named(e)]
    return [_read(e) if _named(e) else e for e in given]


def taught(policy: Policy[Any], studies: Sequence[Any]) -> Policy[Any]:
    """The policy, having learnt from earlier studies. Raises InvalidInput for one that cannot."""
    learnt = policy.taught_by(studies)
    if learnt is None:
        raise InvalidInput(
            f"learn_from=: {in_words(policy)} learns from its own study alone; MultiFidelity(), the default, learns "
            "from earlier ones, within Halting(MultiFidelity()) too"
        )
    return learnt


def _named(given: Any) -> bool:
    pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str)
    return isinstance(given[0] if pair else given, str | os.PathLike)


def _read(given: Any) -> Reading:
    where, name = given if isinstance(given, tuple) else (given, None)
    try:
        store = open_store(where, reading=True)
        names = store.names()
        if name is None and len(names) > 1:
            listing = ", ".join(map(repr, names))
            raise StoreError(
                f"it holds {len(names)} studies: {listing}. Say which: ({os.fspath(where)!r}, {names[0]!r})"
            )
        return read_study(store, name)
    except HaltuneError as error:
        kind = InvalidInput if isinstance(error, InvalidInput) else StoreError
        raise kind(f"learn_from={os.fspath(where)!r}: {error}") from error


def _under_way(store: StrPath | Store | None, name: str) -> bool:
    """Whether there is such a study, and something was reported to it."""
    if store is None:
        return False
    try:
        found = open_store(store, reading=True)
        return name in found.names() and any(isinstance(e, Reported) for e in found.read(name))
    except HaltuneError:
        return False  # not made yet; or who opens it says what is wrong
