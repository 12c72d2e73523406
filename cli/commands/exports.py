"""Taking a search elsewhere: its trials and reports as tables, to TensorBoard, and its figures as files."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from haltune import report as figures
from haltune._utils.disk import keep
from haltune.errors import InvalidInput
from haltune.log.comparison import Comparisons
from haltune.study.reading import Reading
from haltune.trackers.hparams import write_runs

from ..find import errors, study_of
from ..options import ExportFormat, Name, Of, Where, as_json, say
from . import listing_data


def export(
    where: Where,
    to: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            help="csv (what begins like a formula after a '), json, parquet, tensorboard (HParams); into a file or a "
            "pipe a text goes as it was recorded, control characters too, which JSON escapes",
        ),
    ] = ExportFormat.csv,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="a file, of tensorboard a folder; else the terminal")
    ] = None,
    name: Name = None,
    of: Annotated[Of, typer.Option(help="a row for each report, or for each trial")] = Of.reports,
) -> None:
    """Every report, a row each, with its trial's configuration and further metrics; or every trial."""
    with errors():
        study = study_of(where, name)
        if to is ExportFormat.tensorboard:
            say(f"tensorboard --logdir {write_runs(study, _needed(out, 'a folder'))}")
            return
        rows = _rows(study, of)
        if to is ExportFormat.parquet:
            _parquet(rows, _needed(out, "a file"))
            return
        text = as_json(rows) + "\n" if to is ExportFormat.json else _csv(rows)
        if out is not None:
            keep(text, out)
        elif to is ExportFormat.csv and sys.stdout.isatty():
            say(text.replace("\r\n", "\n"))
        else:
            sys.stdout.write(text)  # for programs: as it is


def _needed(out: Path | None, what: str) -> Path:
    if out is None:
        raise InvalidInput(f"say where to: --out names {what}")
    return out


def _rows(study: Reading, of: Of) -> list[dict[str, Any]]:
    if of is Of.reports:
        return list(listing_data.reports(study.history))
    comparisons = Comparisons(study.history, study.outcome.over and not study.outcome.held)
    found = []
    for t in study.trials:
        row = listing_data.trial(t, comparisons)
        config, tags = row.pop("config"), row.pop("tags")
        row |= {f"config.{n}": v for n, v in config.items()} | {f"tag.{n}": v for n, v in tags.items()}
        last = ((n, listing_data.number(column[-1])) for n, column in t.metrics.items() if len(column))
        found.append(row | {f"metric.{n}": value for n, value in last})
    return found


def _parquet(rows: list[dict[str, Any]], out: Path) -> None:
    try:
        import pandas as pd
        import pyarrow  # noqa: F401 - what pandas writes it with
    except ImportError:
        raise ImportError("parquet is written with pandas: pip install pandas pyarrow") from None
    names = dict.fromkeys(name for row in rows for name in row)
    table = pd.DataFrame({name: _column([_cell(row.get(name)) for row in rows]) for name in names})
    try:
        table.to_parquet(out, index=False)
    except OSError as error:
        raise InvalidInput(f"cannot write {out}: {error.strerror or error}") from error


def _cell(value: Any) -> Any:
    """Numbers that JSON lacks as numbers, and lists as text."""
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return str(value) if isinstance(value, (list, dict)) else value


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: those of mixed types as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} or kinds <= {int} or kinds <= {str}:
        return values
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(map(_guarded, columns))
    writer.writerows([_guarded(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def _guarded(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: text that begins like one has an apostrophe before it."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)  # a number as text is one
    except ValueError:
        return f"'{value}"
    return value


_HEIGHT = 620  # of an image that has none of its own, pixels


class FigureName(StrEnum):
    """The figures that need nothing but a study, some of them one of a kind."""

    learning_curves = "learning_curves"
    metrics = "metrics"
    rungs = "rungs"
    progress = "progress"
    edf = "edf"
    front = "front"
    budget = "budget"
    importance = "importance"
    parallel = "parallel"
    slices = "slices"
    contour = "contour"
    decisions = "decisions"
    calibration = "calibration"
    posterior = "posterior"
    region = "region"
    timeline = "timeline"


def figure(
    where: Where,
    what: Annotated[FigureName, typer.Argument(help="which of them", show_default=False)],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="its file: .html, .json, .png, .svg or .pdf", show_default=False),
    ],
    name: Name = None,
    width: Annotated[int, typer.Option(help="of an image, pixels", min=100, max=10_000)] = 1100,
    height: Annotated[
        int | None,
        typer.Option(help="likewise; else its own, or 620", min=100, max=10_000, show_default=False),
    ] = None,
) -> None:
    """One figure of a search as a file: a page that can be zoomed, or an image."""
    with errors():
        study = study_of(where, name)
        make: Callable[[Any], Any] = getattr(figures, what.value)
        drawn = make(study)
        if out.suffix == ".html":
            keep(drawn.to_html(include_plotlyjs=True), out)
        elif out.suffix == ".json":
            keep(drawn.to_json(), out)
        elif out.suffix in (".png", ".svg", ".pdf"):
            _image(drawn, out, width, height or drawn.layout.height or _HEIGHT)
        else:
            raise InvalidInput(f"--out {out}: a file that ends in .html, .json, .png, .svg or .pdf")
        say(str(out))


def _image(drawn: Any, out: Path, width: int, height: int) -> None:
    try:
        import kaleido  # noqa: F401 - what Plotly draws images with
    except ImportError:
        raise ImportError(
            "images are drawn with Kaleido and a Chrome or Chromium: pip install kaleido; .html and .json need neither"
        ) from None
    try:
        drawn.layout.updatemenus = ()  # nobody presses a button of an image
        drawn.write_image(out, width=width, height=height, scale=2)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInput(f"cannot draw {out}: {error}") from error
