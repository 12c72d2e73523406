"""Looking at a search: each command reads the log, and writes nothing to it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from haltune import report as reports
from haltune._utils.process import named
from haltune._utils.words import duration, settings, short
from haltune.display.terminal import cell
from haltune.errors import InvalidInput
from haltune.log.codec import to_json
from haltune.log.comparison import Comparisons
from haltune.log.events import Status, trial_of
from haltune.log.fate import FATES, fate_of, lead_of
from haltune.log.history import History
from haltune.log.records import Best, TrialRecord
from haltune.report.digest import digest
from haltune.study.reading import Reading

from ..find import RUNS, STOPPED, errors, study_of
from ..options import As, Format, Name, Where, say, say_json
from . import listing_data


def status(where: Where, name: Name = None, format: As = Format.table) -> None:
    """How a search stands, and which worker trains what. Exits with 0: it is over, 4: stopped for now, 5: not over."""
    with errors():
        study = study_of(where, name)
        told = listing_data.status(study)
        if format is Format.json:
            say_json(told)
        else:
            _say_status(study, told)
        if told["state"] != "over":
            raise typer.Exit(STOPPED if told["state"] == "stopped" else RUNS)


def _say_status(study: Reading, told: dict[str, Any]) -> None:
    reason = f" ({told['reason']})" if told["reason"] else ""
    reason = "" if told["state"] in ("idle", "over") else reason  # the summary tells it
    say(f"{study.name} in {study.store.url}: {_STATES[told['state']]}{reason}")
    say(reports.summary(study))
    for worker in told["workers"]:
        who, silent = named(worker["worker"]), duration(worker["silent"])
        lost = f"trial {worker['trial']}: lost, {who} is gone; whoever asks next is offered it again"
        say(lost if worker["lost"] else f"trial {worker['trial']} trains, last heard of {silent} ago: {who}")
    for config in told["queue"]:
        say(f"enqueued: {settings(config)}")


_STATES = {
    "continues": "continues",
    "idle": "nobody trains now",
    "over": "over",
    "stopped": "stopped for now",
}
_WHOLE = 100_000  # characters of a line in a file or a pipe: nothing is cut or folded
_LEAST = (
    24  # characters of a reason that are shown on a terminal, however narrow; haltune explain has it whole
)
Top = Annotated[int | None, typer.Option("--top", min=1, help="only so many", show_default=False)]


def trials(
    where: Where,
    name: Name = None,
    format: As = Format.table,
    top: Top = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="trial, its number; value, the best first as `haltune best` has it: complete runs before those that "
            "paused or were stopped; or a parameter",
            show_default=False,
        ),
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            help="only those of this outcome, or of this status of JSON and CSV", show_default=False
        ),
    ] = None,
) -> None:
    """All trials, a line each; with --top so many of the best, or the first of them as they are sorted."""
    with errors():
        study = study_of(where, name)
        history, listed = study.history, Listed(study)
        found = [t for t in history.trials if status is None or listed.is_so(t, status)]
        found.sort(key=_order(history, sort or ("value" if top else "trial")))
        if status is not None and not found and format is Format.table:
            say(f"no trial is {status!r}; {digest(study).states or 'there is none yet'}", err=True)
            return
        _list(listed, found[:top], format)


def _order(history: History, sort: str) -> Callable[[TrialRecord], Any]:
    """The key of an order. Raises InvalidInput for one that is none."""
    if sort == "trial":
        return lambda t: t.id
    names, metric = history.problem.space.names, history.problem.goal.metric
    if sort == "value" or (sort == metric and sort not in names):
        place = {id: i for i, id in enumerate(chain.from_iterable(history.ranked()))}
        return lambda t: place.get(t.id, math.inf)  # runs without a value last
    if sort not in names:
        raise InvalidInput(f"--sort {sort}: trial, value, or a parameter ({', '.join(names)})")
    return lambda t: _among(t.config.get(sort))


def _among(value: Any) -> tuple[int, Any]:
    """Numbers, then what is none by how it is written; runs that lack the parameter last."""
    if value is None:
        return 2, ""
    return (0, value) if isinstance(value, (int, float)) else (1, str(value))


class Listed:
    """Trials as a study's listings tell them."""

    def __init__(self, study: Reading) -> None:
        self.history = study.history
        self._over, self._lost = study.outcome.over and not study.outcome.held, study.lost
        self._comparisons = Comparisons(self.history, self._over)

    def row(self, t: TrialRecord) -> dict[str, Any]:
        """Plain data."""
        return listing_data.trial(t, self._comparisons, self._lost)

    def said(self, t: TrialRecord) -> str:
        """What became of it, as the page and the summary say it."""
        return FATES[fate_of(t, self.history.problem, self._over, self._lost).kind][0]

    def is_so(self, t: TrialRecord, status: str) -> bool:
        """Whether it is what a user asked for. Raises InvalidInput for what no trial can be."""
        words = {said for said, _ in FATES.values()}
        asked = status.strip().lower()
        if asked not in words | set(Status):
            raise InvalidInput(f"--status {status!r}: one of {', '.join(sorted(words | set(Status)))}")
        return asked in (str(t.status), self.said(t))


def _list(listed: Listed, found: Sequence[TrialRecord], format: Format) -> None:
    rows, history = [listed.row(t) for t in found], listed.history
    if format is Format.json:
        say_json(rows)
        return
    names = history.problem.measured
    titles = (
        "trial", "outcome", "attempt", "epochs", history.problem.goal.metric, *names, "time", "configuration",
    )  # fmt: skip
    narrow = sys.stdout.isatty()
    table = Table(box=None, header_style="dim", pad_edge=False, expand=narrow)
    for title in titles:
        table.add_column(cell(title), no_wrap=title != "configuration")
    table.add_column(
        cell("ended because"), style="dim", no_wrap=True, min_width=_LEAST, ratio=1 if narrow else None
    )
    most = f" of {history.problem.max_epochs}" if history.problem.max_epochs else ""
    for t, row in zip(found, rows, strict=True):
        results = t.results(history.problem) if names else {}
        value = "" if row["value"] is None else short(row["value"])
        cells = (
            row["trial"], listed.said(t), row["attempt"], f"{row['epoch']:g}{most}", value,
            *(short(results[name]) for name in names), duration(row["seconds"]), settings(row["config"]), row["reason"],
        )  # fmt: skip
        table.add_row(*map(cell, cells))
    if narrow:
        Console().print(table)
        return
    whole = Console(width=_WHOLE, color_system=None)
    with whole.capture() as drawn:
        whole.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def best(where: Where, name: Name = None, format: As = Format.table, top: Top = None) -> None:
    """The best configuration so far; with --top so many of the best, a line each; with several goals the front."""
    with errors():
        study = study_of(where, name)
        history = study.history
        if history.problem.further:
            _say_front(study, format, top)
            return
        leads = study.best
        if leads is None:
            say("no trial has reported a finite value yet", err=True)
            raise typer.Exit(STOPPED)
        if top is not None:
            ranked = [history.trial(id) for group in history.ranked() for id in group]
            _list(Listed(study), ranked[:top], format)
        elif format is Format.json:
            run = Listed(study).row(history.trial(leads.trial))
            say_json(run | listing_data.best(leads))
        else:
            _say_best(history, leads)


def _say_front(study: Reading, format: Format, top: int | None) -> None:
    """The runs that nothing betters in all goals, a line each."""
    history, runs = study.history, study.pareto_front()
    if not runs:
        say("no trial has reported a finite value in every goal yet", err=True)
        raise typer.Exit(STOPPED)
    found = [history.trial(run.trial) for run in runs[:top]]
    if format is Format.json:
        listed = Listed(study)
        say_json([listed.row(t) | listing_data.on_front(run) for t, run in zip(found, runs, strict=False)])
        return
    say(str(lead_of(history)))
    _list(Listed(study), found, format)


def _say_best(history: History, leads: Best) -> None:
    text = f"{history.problem.goal.metric} = {short(leads.value, 6)} at epoch {leads.epoch:g} of trial {leads.trial}"
    if not (run := history.trial(leads.trial)).complete:
        of = f" of {history.problem.max_epochs}" if history.problem.max_epochs else ""
        text += f", so far: no run is complete yet, and this one has come to epoch {run.epoch:g}{of}"
    say(text)
    for key, value in leads.config.items():
        say(f"  {key} = {value}")
    if leads.checkpoint is not None:
        at = leads.checkpoint_epoch
        behind = f", saved after epoch {at:g}" if at is not None and at != leads.epoch else ""
        say(f"its model: {leads.checkpoint}{behind}")


def explain(
    where: Where,
    trial: Annotated[str, typer.Argument(help="its number, or best")],
    name: Name = None,
    format: As = Format.table,
    all: Annotated[bool, typer.Option("--all", help="every decision on it, with its numbers")] = False,
) -> None:
    """Why a trial was chosen, and why it ended; with --all every decision between."""
    with errors():
        study = study_of(where, name)
        id = _numbered(study, trial)
        if format is Format.json:
            study.history.trial(id)
            say_json([to_json(e) for e in study.events() if trial_of(e) == id])
            return
        say(study.explain(id, all))


def _numbered(study: Reading, trial: str) -> int:
    if trial.isascii() and trial.isdigit():
        return int(trial)
    if trial != "best":
        raise InvalidInput(f"trial {trial!r}: its number, or best")
    if study.history.problem.further:
        raise InvalidInput(
            "explain best: of several goals none is the best; `haltune best` lists the front by numbers"
        )
    if study.best is None:
        raise InvalidInput("no trial has reported a finite value yet")
    return study.best.trial


def report(
    where: Where,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="the page; else called like the study, or its file")
    ] = None,
    name: Name = None,
) -> None:
    """One self-contained page: learning curves, stops with their reasons, what it cost."""
    with errors():
        study = study_of(where, name)
        say(str(reports.write(study, out)))
