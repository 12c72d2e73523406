"""Where a study is: a study file, the path of its database, or a URL."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from haltune._utils.disk import is_gone
from haltune.errors import (
    HaltuneError,
    InvalidInput,
    InvalidSpace,
    NotSupported,
    StoreError,
    StudyMismatch,
    TrainingFailed,
)
from haltune.store.base import Store
from haltune.store.open import only_study, open_store
from haltune.store.sql.sqlite.file import need_file, path_at
from haltune.study.reading import Reading, read_study

from .options import say
from .study_file.reader import StudyFile, read

DONE, BUG, USAGE, STORE, STOPPED, RUNS, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130  # exit codes
UNWELL = BUG  # of the doctor
_CODES: dict[type[Exception], int] = {
    TrainingFailed: BUG, StoreError: STORE, StudyMismatch: STORE, InvalidInput: USAGE, InvalidSpace: USAGE,
    NotSupported: USAGE,
}  # fmt: skip

__all__ = [
    "BUG",
    "DONE",
    "INTERRUPTED",
    "RUNS",
    "STOPPED",
    "STORE",
    "UNWELL",
    "USAGE",
    "errors",
    "find",
    "study_of",
]


@contextmanager
def errors(
    interrupted: str = "haltune: left at once; the same command continues where it was",
) -> Iterator[None]:
    """Print errors of haltune's own, and `interrupted` after Ctrl-C, as one message; exit with their code."""
    try:
        yield
    except (HaltuneError, ImportError) as error:
        say(f"haltune: {error}", err=True)
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), USAGE)
        raise typer.Exit(code) from None
    except KeyboardInterrupt:
        say(interrupted, err=True)
        raise typer.Exit(INTERRUPTED) from None


class NotBegun(StoreError):
    """A study file whose search has not begun."""

    def __init__(self, where: str, file: StudyFile) -> None:
        self.file = file
        command = shlex.join(["haltune", "run", "--study", where])
        super().__init__(
            f"the search {file.name!r} of {where} has not begun: there is nothing of it in {file.store} yet. "
            f"Begin it: {command} -- python train.py"
        )


def find(where: str, name: str | None = None, *, writing: bool = False) -> tuple[Store, str]:
    """The store of a study, to be read unless `writing`, and its name in it.

    Raises StoreError where there is none, NotBegun where there is none yet.
    """
    file = read(where) if where.endswith(".toml") else None
    url = where if file is None else file.store
    path = path_at(url) if url.startswith("sqlite:///") else url
    if "://" not in path:
        if file is not None and is_gone(Path(path)):
            raise NotBegun(where, file)
        near = (f"{path}{ending}" for ending in (".db", ".toml"))
        there = next((f"{name}, which is there" for name in near if os.path.exists(name)), None)
        need_file(path, there or "a study file, a database or its URL")
    store = open_store(url, reading=True)  # first: what is no store of haltune's is left as it is
    if file is not None and name is None:
        name = file.name
        if name not in store.names():
            raise NotBegun(where, file)
    name = only_study(store, name)
    return open_store(url) if writing else store, name


def study_of(where: str, name: str | None = None, *, writing: bool = False) -> Reading:
    """A study as its log has it now; with a store to be read, unless `writing`."""
    store, name = find(where, name, writing=writing)
    folder = read(where).options.get("checkpoints") if where.endswith(".toml") else None
    return read_study(store, name, folder)
