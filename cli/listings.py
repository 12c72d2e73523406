"""Commands that show or export a search. They read the log and write nothing to it."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Container, Sequence
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from haltune import report as reports
from haltune._utils.disk import write_text
from haltune._utils.process import named
from haltune.display import cell, clipped, duration, settings, short
from haltune.errors import InvalidInput
from haltune.log.events import Status, plain, to_json, trial_of
from haltune.log.folds import plus_minus, spread
from haltune.log.history import History
from haltune.log.outcomes import OUTCOMES, Comparisons, Savings, outcome_of, trained_again
from haltune.log.records import Best, OnFront, TrialRecord
from haltune.report.digest import digest
from haltune.store.base import holder_is_gone
from haltune.study.messages import BEYOND, lead_of
from haltune.study.view import RecordedStudy, read_study
from haltune.trackers.tensorboard import write_runs

from .common import RUNS, STOPPED, As, Format, Name, Places, Where, as_json, say, say_json, studies_of, study_of


def status_data(study: RecordedStudy) -> dict[str, Any]:
    """Return the state of a search and of its workers, as JSON data."""
    history, store, name, outcome = study.history, study.store, study.name, study.outcome
    spent, problem = history.spent, history.problem
    top = None if problem.further else study.best
    counts = {str(s): len(history.with_status(s)) for s in Status}
    audit = study.audit() if problem.plain else None
    savings = Savings.of(history, outcome.final)
    state = "stopped" if outcome.held else "over" if outcome.over else "idle" if study.idle else "continues"
    return {
        "study": name, "store": store.url, "state": state, "reason": outcome.reason,
        "goal": problem.to_json()["goal"], "trials": {s: n for s, n in counts.items() if n},
        "unit": problem.unit, "epochs": spent.epochs, "trained_again": trained_again(history),
        "saved": savings.epochs, "ended_sooner": savings.itself,
        "time": spent.time, "worker_time": spent.worker_time,
        "money": spent.money(history.wishes.extended(history.recorded).price), "deciding": spent.deciding,
        "complete": sum(t.complete for t in history.trials), "best": None if top is None else best_data(top),
        "workers": [
            {"trial": w.trial, "attempt": w.attempt, "worker": w.holder, "silent": store.now() - w.renewed,
             "lost": holder_is_gone(store, w.holder)}
            for w in store.leases(name)
        ],
        "queue": [plain(dict(config)) for config in history.queue],
        **({"front": [front_data(run) for run in study.pareto_front()]} if problem.further else {}),
        **({"constraints": problem.to_json()["constraints"]} if problem.constraints else {}),
        **({"audit": {
            "share": audit.share, "audited": audit.audited, "stops": audit.stops, "wrong": audit.wrong,
            "unknown": audit.unknown, "interval": list(audit.of_stops.interval), "cost": audit.cost,
            "saved": audit.saved, "K1": audit.K1, "advice": audit.advice,
        }} if audit and audit.share else {}),
    }  # fmt: skip


def best_data(b: Best) -> dict[str, Any]:
    return {"trial": b.trial, "metric": b.metric, "value": plain(b.value), "epoch": b.epoch,
            "checkpoint": b.checkpoint, "checkpoint_epoch": b.checkpoint_epoch, **folds_data(b.folds)}  # fmt: skip


def folds_data(values: Sequence[float]) -> dict[str, Any]:
    """Return the values of a trial's folds, and their standard deviation; nothing without folds."""
    if not values:
        return {}
    return {"folds": plain(list(values)), "std": plain(spread(values))}


def front_data(run: OnFront) -> dict[str, Any]:
    return best_data(run) | {"values": plain(run.values)}


def trial_data(t: TrialRecord, comparisons: Comparisons, lost: Container[int] = ()) -> dict[str, Any]:
    """Return the data of one trial; its value is the one with which it counts."""
    problem, over = comparisons.history.problem, comparisons.over
    values = t.counting(problem.goal)
    return {
        "trial": t.id, "status": str(t.status), "outcome": outcome_of(t, problem, over, lost).words,
        "complete": t.complete, "attempt": t.attempt, "epoch": t.epoch,
        "value": plain(values[-1]) if len(values) else None,
        **({"values": plain(t.results(problem))} if problem.measured else {}),
        **folds_data(t.folds(problem)),
        "seconds": float(t.seconds.sum()),
        "reason": comparisons.reason(t), "error": t.error, "config": plain(dict(t.config)), "tags": plain(dict(t.tags)),
    }  # fmt: skip


# Listings for people.


def status(where: Where, name: Name = None, format: As = Format.table) -> None:
    """Show the state of a search and of its workers. Exits with 0: over, 4: stopped for now, 5: not over."""
    study = study_of(where, name)
    data = status_data(study)
    if format is Format.json:
        say_json(data)
    else:
        _say_status(study, data)
    if data["state"] != "over":
        raise typer.Exit(STOPPED if data["state"] == "stopped" else RUNS)


def _say_status(study: RecordedStudy, data: dict[str, Any]) -> None:
    in_summary = data["state"] in ("idle", "over")
    reason = f" ({data['reason']})" if data["reason"] and not in_summary else ""
    say(f"{study.name} in {study.store.url}: {_STATES[data['state']]}{reason}")
    say(reports.summary(study))
    for worker in data["workers"]:
        who, silent = named(worker["worker"]), duration(worker["silent"])
        lost = f"trial {worker['trial']}: lost, {who} is gone; the next worker that asks gets it"
        say(lost if worker["lost"] else f"trial {worker['trial']} trains, last sign of life {silent} ago: {who}")
    for config in data["queue"]:
        say(f"enqueued: {settings(config)}")


_STATES = {"continues": "continues", "idle": "no worker trains now", "over": "over", "stopped": "stopped for now"}
_WHOLE = 100_000  # characters of a line in a file or a pipe: nothing is cut or folded
_REASON = 80  # characters of a reason in a table; `haltune explain` and -f json have the whole
_LEAST = 16  # characters of a reason that are shown at least, on a terminal that is wide enough
_ROOM = 100  # columns of such a terminal, and 10 more for each further metric; a narrower one shows no reasons
Top = Annotated[int | None, typer.Option("--top", min=1, help="show only this many", show_default=False)]


def trials(
    where: Where,
    name: Name = None,
    format: As = Format.table,
    top: Top = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="trial, by number; value, the best first and complete trials before paused or stopped ones; or a "
            "parameter",
            show_default=False,
        ),
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(help="only trials with this outcome, or this status of JSON and CSV", show_default=False),
    ] = None,
) -> None:
    """List all trials, one on each line; with --top the best, or the first in the order of --sort."""
    study = study_of(where, name)
    history, listed = study.history, Listed(study)
    found, words = list(history.trials), {word for word, _ in OUTCOMES.values()} | set(Status)
    if status is not None:
        asked = status.strip().lower()
        if asked not in words:
            raise InvalidInput(f"--status {status!r} is not a status. Use one of {', '.join(sorted(words))}.")
        found = [t for t in found if asked in (str(t.status), listed.outcome(t))]
    found.sort(key=_order(history, sort or ("value" if top else "trial")))
    if status is not None and not found and format is Format.table:
        say(f"No trial is {status!r}: {digest(study).states or 'there are no trials yet'}", err=True)
        return
    _list(listed, found[:top], format)


def _order(history: History, sort: str) -> Callable[[TrialRecord], Any]:
    """Return the sort key of an order. Raises InvalidInput for an unknown order."""
    if sort == "trial":
        return lambda t: t.id
    names, metric = history.problem.space.names, history.problem.goal.metric
    if sort == "value" or (sort == metric and sort not in names):
        place = {id: i for i, id in enumerate(chain.from_iterable(history.ranked()))}
        return lambda t: place.get(t.id, math.inf)  # trials without a value last
    if sort not in names:
        raise InvalidInput(f"--sort {sort}: use trial, value, or a parameter ({', '.join(names)}).")

    def among(t: TrialRecord) -> tuple[int, Any]:
        """Numbers first, then other values by their text, then trials without the parameter."""
        value = t.config.get(sort)
        return (2, "") if value is None else (0, value) if isinstance(value, int | float) else (1, str(value))

    return among


class Listed:
    """Trials in the form of listings."""

    def __init__(self, study: RecordedStudy) -> None:
        self.history = study.history
        self._over, self._lost = study.outcome.final, study.lost
        self._comparisons = Comparisons(self.history, self._over)

    def row(self, t: TrialRecord) -> dict[str, Any]:
        return trial_data(t, self._comparisons, self._lost)

    def outcome(self, t: TrialRecord) -> str:
        return OUTCOMES[outcome_of(t, self.history.problem, self._over, self._lost).kind][0]


def _list(listed: Listed, found: Sequence[TrialRecord], format: Format) -> None:
    rows, history = [listed.row(t) for t in found], listed.history
    if format is Format.json:
        say_json(rows)
        return
    names = history.problem.measured
    titles = (
        "trial", "outcome", "attempt", history.problem.units, history.problem.goal.metric, *names, "time",
        "configuration",
    )  # fmt: skip
    console, narrow = Console(), sys.stdout.isatty()
    table = Table(box=None, header_style="dim", pad_edge=False, expand=narrow)
    for title in titles:
        table.add_column(cell(title), no_wrap=title != "configuration")
    reasons = not narrow or console.width >= _ROOM + 10 * len(names)
    if reasons:  # for a column with a ratio, Rich keeps its width, but not its min_width
        least = _LEAST if narrow else None
        table.add_column(cell("ended because"), style="dim", no_wrap=True, width=least, ratio=1 if narrow else None)
    for t, row in zip(found, rows, strict=True):
        results = t.results(history.problem) if names else {}
        value = "" if row["value"] is None else short(row["value"])
        value += plus_minus(t.folds(history.problem))
        cells = (
            row["trial"], listed.outcome(t), row["attempt"], history.problem.reached(row["epoch"]), value,
            *(short(results[name]) for name in names), duration(row["seconds"]), settings(row["config"]),
            *[clipped((row["reason"] or "").partition("; ")[0], _REASON)] * reasons,
        )  # fmt: skip
        table.add_row(*map(cell, cells))
    if narrow:
        console.print(table)
        return
    whole = Console(width=_WHOLE, color_system=None)
    with whole.capture() as drawn:
        whole.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def best(where: Where, name: Name = None, format: As = Format.table, top: Top = None) -> None:
    """Show the best configuration so far; with --top a list of the best; with several goals the Pareto front."""
    study = study_of(where, name)
    history = study.history
    if history.problem.further:
        _say_front(study, format, top)
        return
    leads = study.best
    if leads is None:
        say("No trial has reported a finite value yet.", err=True)
        raise typer.Exit(STOPPED)
    if top is not None:
        ranked = [history.trial(id) for group in history.ranked() for id in group]
        _list(Listed(study), ranked[:top], format)
    elif format is Format.json:
        run = Listed(study).row(history.trial(leads.trial))
        say_json(run | best_data(leads))
    else:
        _say_best(history, leads)


def _say_front(study: RecordedStudy, format: Format, top: int | None) -> None:
    """Print the trials on the Pareto front, one on each line."""
    history, runs = study.history, study.pareto_front()
    if not runs:
        say("No trial has reported a finite value in every goal yet.", err=True)
        raise typer.Exit(STOPPED)
    listed, found = Listed(study), [history.trial(run.trial) for run in runs[:top]]
    if format is Format.json:
        say_json([listed.row(t) | front_data(run) for t, run in zip(found, runs, strict=False)])
        return
    say(str(lead_of(history)))
    _list(listed, found, format)


def _say_best(history: History, leads: Best) -> None:
    problem = history.problem
    value = f"{short(leads.value, 6)}{plus_minus(leads.folds)}"
    text = f"{leads.metric} = {value} at {problem.at(leads.epoch)} of trial {leads.trial}"
    text += BEYOND * history.beyond(leads.trial)
    if not history.complete(leads.trial):
        reached = f"{problem.unit} {problem.reached(history.trial(leads.trial).epoch)}"
        text += f" so far: no trial is complete yet; this one is at {reached}"
    say(text)
    for key, value in leads.config.items():
        say(f"  {key} = {value}")
    if leads.checkpoint is not None:
        say(f"its model: {leads.checkpoint}")


def explain(
    where: Where,
    trial: Annotated[str, typer.Argument(help="its number, or best")],
    name: Name = None,
    format: As = Format.table,
    all: Annotated[bool, typer.Option("--all", help="every decision on it, with its numbers")] = False,
) -> None:
    """Explain why a trial was chosen and why it ended; with --all every decision."""
    study = study_of(where, name)
    if trial.isascii() and trial.isdigit():
        id = int(trial)
    elif trial != "best":
        raise InvalidInput(f"trial {trial!r} is not a trial. Give its number, or best.")
    elif study.history.problem.further:
        raise InvalidInput(
            "With several goals no trial is the best in all. Give a number; `haltune best` lists the Pareto front."
        )
    elif study.best is None:
        raise InvalidInput("No trial has reported a finite value yet.")
    else:
        id = study.best.trial
    if format is Format.json:
        study.history.trial(id)
        say_json([to_json(e) for e in study.events() if trial_of(e) == id])
        return
    say(study.explain(id, all))


def report(
    where: Where,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="the page; by default named like the study or its file")
    ] = None,
    name: Name = None,
) -> None:
    """Write one self-contained page: learning curves, stops with their reasons, and costs."""
    study = study_of(where, name)
    say(str(reports.write(study, out)))


def compare(
    where: Places,
    out: Annotated[Path, typer.Option("--out", "-o", help="the page")] = Path("comparison.html"),
    name: Name = None,
) -> None:
    """Write a page that compares searches: best value against epochs and time, totals, and best configurations."""
    places = studies_of(where, name)
    say(str(reports.compare([read_study(store, known, folder) for store, known, _, folder in places], out)))


# Exports: a search's trials and reports as tables, to TensorBoard, and its figures as files.


class ExportFormat(StrEnum):
    """The format of an export."""

    csv = "csv"
    json = "json"
    parquet = "parquet"
    tensorboard = "tensorboard"


class Of(StrEnum):
    """The rows of an export."""

    reports = "reports"
    trials = "trials"


def export(
    where: Where,
    to: Annotated[
        ExportFormat | None,
        typer.Option(
            "--format",
            help="by default the ending of --out, or csv (texts that look like formulas get a leading ', and a file or "
            "a pipe keeps control characters); json, parquet, tensorboard (HParams)",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="a file, or a folder for tensorboard; by default the terminal")
    ] = None,
    name: Name = None,
    of: Annotated[Of, typer.Option(help="a row for each report, or for each trial")] = Of.reports,
) -> None:
    """Export every report, or every trial, as a row with its configuration and further metrics."""
    study = study_of(where, name)
    to = to or _format_of(out)
    if out is None and to in (ExportFormat.tensorboard, ExportFormat.parquet):
        what = "a folder" if to is ExportFormat.tensorboard else "a file"
        raise InvalidInput(f"--out is missing. Name {what}: --out PATH.")
    if out is not None and to is ExportFormat.tensorboard:
        say(f"tensorboard --logdir {write_runs(study, out)}")
        return
    found = _report_rows(study.history) if of is Of.reports else _trial_rows(study)
    columns = list(dict.fromkeys(name for row in found for name in row)) or _columns(study.history, of)
    rows = [{name: row.get(name) for name in columns} for row in found]
    if out is not None and to is ExportFormat.parquet:
        _parquet(rows, columns, out)
        return
    text = as_json(rows) + "\n" if to is ExportFormat.json else _csv(rows, columns)
    if out is not None:
        write_text(text, out)
    elif to is ExportFormat.csv and sys.stdout.isatty():
        say(text.replace("\r\n", "\n"))
    else:
        sys.stdout.write(text)  # unchanged, for programs


def _format_of(out: Path | None) -> ExportFormat:
    """Return the format that the ending of a file names."""
    ending = out.suffix.lower()[1:] if out else ""
    if ending in ("", "csv"):
        return ExportFormat.csv
    if ending in ("json", "parquet"):
        return ExportFormat(ending)
    raise InvalidInput(f"--out {out}: .{ending} names no format. Write .csv, .json or .parquet, or add --format csv.")


def _report_rows(history: History) -> list[dict[str, Any]]:
    found = []
    for t in history.trials:
        config = {f"config.{name}": value for name, value in plain(dict(t.config)).items()}
        for i, epoch in enumerate(t.epochs):
            row = {
                "trial": t.id, "attempt": t.attempt, "status": str(t.status), t.unit: float(epoch),
                "value": plain(t.values[i]), "score": plain(t.scores[i]), "seconds": float(t.seconds[i]),
                **config,
            }  # fmt: skip
            metrics = {f"metric.{name}": plain(column[i]) for name, column in t.metrics.items()}
            found.append(row | metrics)
    return found


def _trial_rows(study: RecordedStudy) -> list[dict[str, Any]]:
    listed, found = Listed(study), []
    for t in study.trials:
        row = listed.row(t)
        config, tags = row.pop("config"), row.pop("tags")
        row |= {f"fold.{i}": value for i, value in enumerate(row.pop("folds", ()))}
        row |= {f"value.{n}": value for n, value in row.pop("values", {}).items()}
        row |= {f"config.{n}": v for n, v in config.items()} | {f"tag.{n}": v for n, v in tags.items()}
        last = ((n, plain(column[-1])) for n, column in t.metrics.items() if len(column))
        found.append(row | {f"metric.{n}": value for n, value in last})
    return found


def _parquet(rows: list[dict[str, Any]], columns: list[str], out: Path) -> None:
    try:
        import pandas as pd
        import pyarrow  # noqa: F401 - pandas needs it
    except ImportError:
        raise ImportError("The format parquet needs pandas: pip install pandas pyarrow") from None
    table = pd.DataFrame({name: _column([row[name] for row in rows]) for name in columns})
    try:
        table.to_parquet(out, index=False)
    except OSError as error:
        raise InvalidInput(f"Cannot write {out}: {error.strerror or error}") from error


def _column(values: list[Any]) -> list[Any]:
    """Return values of one type: non-finite numbers as numbers, lists and mixed types as text."""
    values = [float(v) if v in ("nan", "inf", "-inf") else str(v) if isinstance(v, list | dict) else v for v in values]
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} or kinds <= {int} or kinds <= {str}:
        return values
    kind = float if kinds <= {int, float} else str
    return [None if value is None else kind(value) for value in values]


def _columns(history: History, of: Of) -> list[str]:
    """Return the columns of an export without rows."""
    config = [f"config.{name}" for name in history.problem.space.parameters]
    if of is Of.reports:
        return ["trial", "attempt", "status", history.problem.unit, "value", "score", "seconds", *config]
    results = ["outcome", "complete", "attempt", "epoch", "value", "seconds", "reason", "error"]
    return ["trial", "status", *results, *config]


def _csv(rows: list[dict[str, Any]], columns: list[str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(map(_guarded, columns))
    writer.writerows(map(_guarded, row.values()) for row in rows)
    return out.getvalue()


def _guarded(value: Any) -> Any:
    """Return a cell that no spreadsheet reads as a formula: such a text gets a leading apostrophe."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)  # a number as text is not a formula
    except ValueError:
        return f"'{value}"
    return value


_HEIGHT = 620  # default height of an image, pixels


# figures that need only a study; some need a certain policy
FigureName = StrEnum(
    "FigureName",
    "learning_curves metrics rungs progress edf front budget importance parallel rank slices contour decisions "
    "calibration posterior region timeline",
)


def figure(
    where: Where,
    what: Annotated[FigureName, typer.Argument(help="name of the figure", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="its file: .html, .json, .png, .svg or .pdf", show_default=False)
    ],
    name: Name = None,
    width: Annotated[int, typer.Option(help="width of an image, pixels", min=100, max=10_000)] = 1100,
    height: Annotated[
        int | None,
        typer.Option(
            help="height of an image, pixels; by default the figure's, or 620", min=100, max=10_000, show_default=False
        ),
    ] = None,
) -> None:
    """Write one figure of a search to a file: an interactive page, or an image."""
    study = study_of(where, name)
    drawn: Any = getattr(reports, what.value)(study)
    if out.suffix == ".html":
        write_text(drawn.to_html(include_plotlyjs=True), out)
    elif out.suffix == ".json":
        write_text(drawn.to_json(), out)
    elif out.suffix in (".png", ".svg", ".pdf"):
        _image(drawn, out, width, height or drawn.layout.height or _HEIGHT)
    else:
        raise InvalidInput(f"--out {out}: use a file that ends in .html, .json, .png, .svg or .pdf.")
    say(str(out))


def _image(drawn: Any, out: Path, width: int, height: int) -> None:
    try:
        import kaleido  # noqa: F401 - Plotly needs it
    except ImportError:
        raise ImportError(
            "Images need Kaleido and a Chrome or Chromium: pip install kaleido. Or write .html or .json."
        ) from None
    try:
        drawn.layout.updatemenus = ()  # buttons do not work in an image
        drawn.write_image(out, width=width, height=height, scale=2)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInput(f"Cannot draw {out}: {error}") from error
