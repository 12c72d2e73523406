"""Where a study is: a study file, the path of its database, or a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

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
from haltune.study.reading import Reading, read_study

from .options import say
from .study_file.reader import read

OVER, BUG, USAGE, STORE, STOPPED, LEFT = 0, 1, 2, 3, 4, 130  # exit codes
UNWELL = BUG  # of the doctor
_CODES: dict[type[Exception], int] = {
    TrainingFailed: BUG, StoreError: STORE, StudyMismatch: STORE, InvalidInput: USAGE, InvalidSpace: USAGE,
    NotSupported: USAGE,
}  # fmt: skip

__all__ = ["BUG", "LEFT", "OVER", "STOPPED", "STORE", "UNWELL", "USAGE", "errors", "find", "study_of"]


@contextmanager
def errors() -> Iterator[None]:
    """Errors of haltune's own as one message, and the exit code of their kind."""
    try:
        yield
    except (HaltuneError, ImportError) as error:
        say(f"haltune: {error}", err=True)
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), USAGE)
        raise typer.Exit(code) from None
    except KeyboardInterrupt:
        say("haltune: left at once; the same command goes on where it was", err=True)
        raise typer.Exit(LEFT) from None


def find(where: str, name: str | None = None, *, writing: bool = False) -> tuple[Store, str]:
    """The store of a study, to be read unless `writing`, and its name in it. Raises StoreError where there is none."""
    if where.endswith(".toml"):
        file = read(where)
        where, name = file.store, name or file.name
    scheme, found, path = where.partition("sqlite:///")
    path = path if found and not scheme else where
    if "://" not in path and not Path(path).exists():
        raise StoreError(f"there is no file {path}: give a study file, a database or its URL")
    store = open_store(where, reading=True)  # first: what is no store of haltune's is left as it is
    name = only_study(store, name)
    return open_store(where) if writing else store, name


def study_of(where: str, name: str | None = None, *, writing: bool = False) -> Reading:
    """A study as its log has it now; with a store to be read, unless `writing`."""
    store, name = find(where, name, writing=writing)
    folder = read(where).options.get("checkpoints") if where.endswith(".toml") else None
    return read_study(store, name, folder)
