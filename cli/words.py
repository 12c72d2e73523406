"""The words that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    """How a listing is printed."""

    table = "table"
    json = "json"


Where = Annotated[str, typer.Argument(help="a study file, a database, or its URL", show_default=False)]
Name = Annotated[str | None, typer.Option("--name", help="the study's name, where the store holds several")]
As = Annotated[Format, typer.Option("--format", help="a table to read, or JSON for programs")]


class Rows(StrEnum):
    """What reports are exported as."""

    csv = "csv"
    json = "json"
