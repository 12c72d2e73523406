"""The words that several commands share, and how they are said: nothing else of the command line prints."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from haltune.display.terminal import visible


class Format(StrEnum):
    """How a listing is printed."""

    table = "table"
    json = "json"


Where = Annotated[str, typer.Argument(help="a study file, a database, or its URL", show_default=False)]
Name = Annotated[str | None, typer.Option("--name", help="the study's name, where the store holds several")]
As = Annotated[Format, typer.Option("--format", help="a table to read, or JSON for programs")]


class ExportFormat(StrEnum):
    """What trials and reports are exported as."""

    csv = "csv"
    json = "json"
    parquet = "parquet"
    tensorboard = "tensorboard"


class Of(StrEnum):
    """What is exported, a row each."""

    reports = "reports"
    trials = "trials"


def say(text: object, err: bool = False) -> None:
    """Print for people: lines of which the terminal obeys nothing."""
    typer.echo(visible(text), err=err)


def say_json(told: Any) -> None:
    """Print for programs."""
    typer.echo(as_json(told))


def as_json(told: Any) -> str:
    """Strict JSON in ASCII: it loses nothing, and a terminal obeys nothing of it either."""
    return json.dumps(told, indent=1, allow_nan=False).replace("\x7f", "\\u007f")
