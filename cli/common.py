"""Shared by all commands: options, printing, exit codes, and finding a study by study file, database or URL."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from haltune._utils.disk import is_gone
from haltune.display import visible
from haltune.errors import HaltuneError, InvalidInput, StoreError, StudyMismatch, TrainingFailed
from haltune.store.base import Store
from haltune.store.open import only_study, open_store
from haltune.store.sqlite import need_file, path_at
from haltune.study.view import RecordedStudy, read_study

from .study_file import StudyFile, read

DONE, BUG, USAGE, STORE, STOPPED, RUNS, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130  # exit codes


class Format(StrEnum):
    """The format of a listing."""

    table = "table"
    json = "json"


Where = Annotated[str, typer.Argument(help="a study file, a database, or its URL", show_default=False)]
Places = Annotated[
    list[str], typer.Argument(help="study files, databases, folders of them, or URLs", show_default=False)
]
Name = Annotated[str | None, typer.Option("--name", help="the study's name, if the store holds several")]
As = Annotated[Format, typer.Option("--format", help="a table to read, or JSON for programs")]


def say(text: object, err: bool = False) -> None:
    """Print for people, with control characters escaped."""
    typer.echo(visible(text), err=err)


def say_json(data: Any) -> None:
    typer.echo(as_json(data))


def as_json(data: Any) -> str:
    """Return strict JSON in ASCII, so that it has no control characters for a terminal."""
    return json.dumps(data, indent=1, allow_nan=False).replace("\x7f", "\\u007f")


@contextmanager
def errors(
    interrupted: str = "haltune: interrupted. To continue the search, run the same command again.",
) -> Iterator[None]:
    """Print haltune's errors, and `interrupted` after Ctrl-C, as one message; exit with their code."""
    try:
        yield
    except (HaltuneError, ImportError) as error:
        say(f"haltune: {error}", err=True)
        stores = isinstance(error, StoreError | StudyMismatch)
        raise typer.Exit(BUG if isinstance(error, TrainingFailed) else STORE if stores else USAGE) from None
    except KeyboardInterrupt:
        say(interrupted, err=True)
        raise typer.Exit(INTERRUPTED) from None


class NotStarted(StoreError):
    """A study file whose search has not started."""

    def __init__(self, where: str, file: StudyFile) -> None:
        self.file = file
        command = shlex.join(["haltune", "run", where])
        super().__init__(
            f"The search {file.name!r} of {where} has not started: it is not in {file.store} yet. Start it with "
            f"{command} -- python train.py"
        )


def find(where: str, name: str | None = None, *, writing: bool = False) -> tuple[Store, str]:
    """Return the store of a study, for reading unless `writing`, and the study's name.

    Raises StoreError if there is no study, NotStarted if the search of a study file has not started.
    """
    file = read(where) if where.endswith(".toml") else None
    url = where if file is None else file.store
    path = path_at(url) if url.startswith("sqlite:///") else url
    if "://" not in path:
        if file is not None and is_gone(Path(path)):
            raise NotStarted(where, file)
        near = (f"{path}{ending}" for ending in (".db", ".toml"))
        there = next((f"{name}, which exists" for name in near if os.path.exists(name)), None)
        need_file(path, there or "a study file, a database or its URL")
    store = open_store(url, reading=True)  # first, so that a file that is not a store stays unchanged
    if file is not None and name is None:
        name = file.name
        if name not in store.names():
            raise NotStarted(where, file)
    name = only_study(store, name)
    return open_store(url) if writing else store, name


def studies_of(where: Sequence[str], name: str | None = None) -> list[tuple[Store, str, str, str | None]]:
    """Return all studies of these stores, or those named `name`: (store, name, URL for writing, checkpoints' folder).

    A folder stands for its files *.db that are haltune's. Raises as `find` if a store has none.
    """
    found: list[tuple[Store, str, str, str | None]] = []
    for text in chain.from_iterable(map(_unfolded, where)):
        file = read(text) if text.endswith(".toml") else None
        if file or name:
            store, only = find(text, name)
            names = [only]
        else:
            store = open_store(text, reading=True)
            names = store.names()
        found += [(store, known, file.store if file else text, file.folder if file else None) for known in names]
    return found


def _unfolded(where: str) -> list[str]:
    """Return the logs in a folder; otherwise the text itself."""
    if not os.path.isdir(where):
        return [where]
    found = []
    for path in sorted(Path(where).glob("*.db")):
        with suppress(HaltuneError):
            if open_store(str(path), reading=True).names():
                found.append(str(path))
    if not found:
        raise InvalidInput(f"The folder {where} has no search: no file *.db in it is a log of haltune.")
    return found


def study_of(where: str, name: str | None = None, *, writing: bool = False) -> RecordedStudy:
    """Return a study from its log, with a store for reading unless `writing`."""
    store, name = find(where, name, writing=writing)
    folder = read(where).folder if where.endswith(".toml") else None
    return read_study(store, name, folder)
