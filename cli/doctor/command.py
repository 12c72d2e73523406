"""`haltune doctor`: is everything well, and if not, what to do."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from haltune._utils.scratch import lasting, remove
from haltune.errors import StoreError
from haltune.log.events import Created
from haltune.log.history import History
from haltune.log.problem import Problem
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpoints
from haltune.store.folders import own_folder

from ..find import DONE, UNWELL, NotBegun, errors, find
from ..options import As, Format, Name, Where, say, say_json
from ..study_file.reader import StudyFile, read
from . import checks
from .checks import Finding
from .frameworks import frameworks
from .rehearsal import rehearse

_MARKS = {True: "ok  ", False: "BAD ", None: "--  "}


def doctor(
    where: Where,
    command: Annotated[
        list[str] | None, typer.Argument(help="after --: a program to rehearse a pause with")
    ] = None,
    name: Name = None,
    epochs: Annotated[int, typer.Option(min=2, help="how far the program trains in the rehearsal")] = 3,
    format: As = Format.table,
) -> None:
    """Check store, permissions, frameworks; with a program after --, whether it goes on exactly where it was.

    Each line says what was found and what to do. Exits with 0 when all is well, with 1 when something is BAD.
    """
    with errors():
        file = read(where) if where.endswith(".toml") else None
        found = _tell(_findings(where, name, file, command or [], epochs), format)
        raise typer.Exit(UNWELL if any(finding.well is False for finding in found) else DONE)


def _tell(findings: Iterator[Finding], format: Format) -> list[Finding]:
    """Print them as they come; JSON all at once."""
    found = []
    for finding in findings:
        found.append(finding)
        if format is Format.table:
            advice = f"\n{'':18}-> {finding.advice}" if finding.advice else ""
            say(f"{_MARKS[finding.well]} {finding.about:<12} {finding.told}{advice}")
    if format is Format.json:
        say_json([asdict(finding) for finding in found])
    return found


def _findings(
    where: str, name: str | None, file: StudyFile | None, command: list[str], epochs: int
) -> Iterator[Finding]:
    if file is not None:
        yield Finding("study file", True, f"{file.path} is well formed")
    history, problem = None, None if file is None else file.problem
    try:
        history = yield from _search(*find(where, name), file)
    except NotBegun as error:
        yield Finding("store", None, str(error))
        yield from checks.checkpoints(Checkpoints(_planned(error.file)), None)
    except StoreError as error:
        yield Finding("store", False, str(error))
    yield from frameworks()
    problem = history.problem if problem is None and history is not None else problem
    if command and problem is not None:
        yield from _rehearsed(problem, command, epochs)


def _search(store: Store, name: str, file: StudyFile | None) -> Generator[Finding, None, History | None]:
    """Findings on a search that has begun; returns its history."""
    yield from checks.store(store, name)
    history = yield from checks.log(store, name)
    yield from checks.leases(store, name)
    given = file.options.get("checkpoints") if file else None
    created = next(store.read(name, stop=1), None) if history is not None else None
    if isinstance(created, Created):
        folder = own_folder(store, name, created, given, mark=False)
        yield from checks.checkpoints(Checkpoints(folder), history)
    return history


def _planned(file: StudyFile) -> Path:
    """Where checkpoints will lie."""
    scheme, _, path = file.store.partition(":///")
    beside = Path(path).parent if scheme == "sqlite" else Path.cwd()
    return Path(file.options.get("checkpoints") or beside)


def _rehearsed(problem: Problem, command: list[str], epochs: int) -> Iterator[Finding]:
    if problem.space.constraints:
        told = "the program cannot be rehearsed: the space has constraints, which a log does not keep"
        yield Finding("resume", None, told)
        return
    folder, found = lasting(), list[Finding]()
    try:
        found += rehearse(problem, command, folder, epochs)
    finally:
        if all(finding.well is not False for finding in found):
            remove(folder)  # else its logs may say more
    yield from found
