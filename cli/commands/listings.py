"""Looking at a search: each command reads the log, and writes nothing to it."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from haltune._utils.words import duration, settings, short
from haltune.log.events import to_json, trial_of
from haltune.report import summary, write
from haltune.report.page import keep
from haltune.terminal import cell

from ..find import STOPPED, errors, study_of
from ..options import As, Format, Name, Rows, Where, as_json, say, say_json
from . import listing_data


def status(where: Where, name: Name = None, format: As = Format.table) -> None:
    """How a search stands, and which worker trains what."""
    with errors():
        study = study_of(where, name)
        told = listing_data.status(study)
        if format is Format.json:
            say_json(told)
            return
        reason = f" ({told['reason']})" if told["reason"] else ""
        say(f"{study.name} in {study.store.url}: {told['state']}{reason}")
        say(summary(study))
        for worker in told["workers"]:
            say(
                f"trial {worker['trial']} trains, last heard of {duration(worker['silent'])} ago: {worker['worker']}"
            )


def trials(where: Where, name: Name = None, format: As = Format.table) -> None:
    """All trials, a line each."""
    with errors():
        history = study_of(where, name).history
        rows = [listing_data.trial(t, history.problem) for t in history.trials]
        if format is Format.json:
            say_json(rows)
            return
        titles = ("trial", "status", "attempt", "epoch", history.problem.goal.metric, "time", "configuration")
        table = Table(box=None, header_style="dim", pad_edge=False)
        for title in titles:
            table.add_column(cell(title))
        for row in rows:
            text = settings(row["config"]) + (f"  [{row['error']}]" if row["error"] else "")
            value = "" if row["value"] is None else short(row["value"])
            cells = (
                row["trial"],
                row["status"],
                row["attempt"],
                f"{row['epoch']:g}",
                value,
                duration(row["seconds"]),
                text,
            )
            table.add_row(*map(cell, cells))
        Console(width=None if sys.stdout.isatty() else 200).print(table)


def best(where: Where, name: Name = None, format: As = Format.table) -> None:
    """The best configuration so far."""
    with errors():
        study = study_of(where, name)
        history, top = study.history, study.best
        if top is None:
            say("no trial has reported a finite value yet", err=True)
            raise typer.Exit(STOPPED)
        if format is Format.json:
            say_json(listing_data.trial(history.trial(top.trial), history.problem) | listing_data.best(top))
            return
        text = f"{history.problem.goal.metric} = {short(top.value, 6)} at epoch {top.epoch:g} of trial {top.trial}"
        if not (run := history.trial(top.trial)).complete:
            of = f" of {history.problem.max_epochs}" if history.problem.max_epochs else ""
            text += (
                f", so far: no run is complete yet, and this one is {run.status} at epoch {run.epoch:g}{of}"
            )
        say(text)
        for key, value in top.config.items():
            say(f"  {key} = {value}")


def explain(
    where: Where,
    trial: Annotated[int, typer.Argument(help="its number")],
    name: Name = None,
    format: As = Format.table,
) -> None:
    """The receipt of every decision on a trial."""
    with errors():
        study = study_of(where, name)
        if format is Format.json:
            study.history.trial(trial)
            say_json([to_json(e) for e in study.events() if trial_of(e) == trial])
            return
        say(study.explain(trial))


def export(
    where: Where,
    to: Annotated[Rows, typer.Option("--format", help="csv or json")] = Rows.csv,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="a file; else the terminal")] = None,
    name: Name = None,
) -> None:
    """Every report, a row each, with its trial's configuration and further metrics."""
    with errors():
        rows = list(listing_data.reports(study_of(where, name).history))
        text = as_json(rows) + "\n" if to is Rows.json else _csv(rows)
        if out is not None:
            keep(text, out)
        elif to is Rows.csv and sys.stdout.isatty():
            say(text.replace("\r\n", "\n"))
        else:
            sys.stdout.write(text)  # for programs: as it is


def report(
    where: Where,
    out: Annotated[Path, typer.Option("--out", "-o", help="the page")] = Path("haltune.html"),
    name: Name = None,
) -> None:
    """One self-contained page: learning curves, stops with their reasons, what it cost."""
    with errors():
        say(str(write(study_of(where, name), out)))


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
