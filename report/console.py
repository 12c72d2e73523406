"""The trials while they train, by any worker: a table that renews itself, or the page in a notebook's cell.

It reads the study's log, like any other process could, from a thread of its own; it never
touches the study that is being searched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import short
from haltune.display.notebook import display
from haltune.display.terminal import cell
from haltune.errors import StoreError
from haltune.log.events import OVER, Reported, Status
from haltune.log.fate import lead_of
from haltune.log.history import History
from haltune.study import Study

from .digest import Digest, Row, digest
from .palette import GROUP_STYLES
from .summary import BARS, epochs, sparkline, spending
from .watch.cell import Cell

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

_REFRESH = 0.5  # seconds between looks
_READING_SHARE = 0.05  # of the time may go into reading the log
_CURVE = 30  # characters
_OTHER_LINES = 7  # lines of the screen that are not trials


@contextmanager
def live(study: Study, console: Console | None = None) -> Iterator[None]:
    """Show the trials as they train, and all of them at the end; in a file or a pipe, a line a trial that is over.

    In a notebook the cell shows the search's page, which follows it, and keeps the page as it was at the end.

    Args:
        study: What is searched, here or by other workers.
        console: Rich's, to draw on. Default: None, the terminal, or the cell of a notebook.

    Raises:
        ImportError: When Rich is missing, saying how to get it.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=3))
        >>> with live(study):
        ...     for trial in study:
        ...         with trial:
        ...             for epoch in trial.epochs():
        ...                 _ = trial.report(trial.config["lr"] / epoch)
        trial   0  loss 0.4454  epoch 2  trained in full
        trial   1  loss 0.4251  epoch 2  trained in full
        trial   2  loss 0.4414  epoch 2  trained in full
    """
    shows = display() if console is None else None
    screen: Any
    watch: Any
    if shows is not None:
        screen = watch = Cell(shows, study)
    else:
        screen, watch = _screen(console or _console()), _WatchedLog(study)
    over = threading.Event()
    thread = threading.Thread(target=_repeat, args=(watch, screen, over), name="haltune-live", daemon=True)
    thread.start()
    with study.session.voice.hushed():  # all that it would say is in the table
        try:
            yield
        finally:
            over.set()
            thread.join()
            screen.close(watch)


class _WatchedLog:
    """A history of its own, folded from the study's log."""

    def __init__(self, study: Study) -> None:
        self._read = partial(study.store.read, study.name)  # what other workers appended, too
        self._history = History(study.problem)
        self._latest: dict[int, str] = {}  # trial -> the reason of its last verdict
        self.cost = 0.0  # seconds the last look took

    def look(self) -> tuple[Digest, dict[int, str]]:
        """The facts as of now, and the last reason of each trial."""
        began = time.perf_counter()
        for event in self._read(self._history.position):
            self._history.apply(event)
            if isinstance(event, Reported):
                self._latest[event.trial] = event.verdict.reason
        facts = digest(self._history)
        self.cost = time.perf_counter() - began
        return facts, self._latest


def _repeat(watch: Any, screen: Any, over: threading.Event) -> None:
    while not over.wait(max(_REFRESH, watch.cost / _READING_SHARE)):
        try:
            screen.show(watch.look())
        except StoreError:  # busy or gone: whoever trains is told; a picture can wait
            continue


class _Screen:
    """A terminal: one table, drawn again and again."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, seen: tuple[Digest, dict[int, str]]) -> None:
        """The newest trials that fit the screen."""
        rows = max(3, self._console.height - _OTHER_LINES)
        self._live.update(_picture(*seen, self._console, rows), refresh=True)

    def close(self, watch: _WatchedLog) -> None:
        """All trials, to stay. The terminal is given back first, should the log be out of reach."""
        self._live.stop()
        self._console.print(_picture(*watch.look(), self._console, None))


class _Paper:
    """A file or a pipe: a line for each trial, once it is over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[int] = set()

    def show(self, seen: tuple[Digest, dict[int, str]]) -> None:
        """The trials that are over and were not told of yet."""
        facts, _ = seen
        for row in facts.rows:
            if row.record.status in OVER and row.record.id not in self._told:
                self._told.add(row.record.id)
                self._console.print(cell(_line(facts, row)), soft_wrap=True)

    def close(self, watch: _WatchedLog) -> None:
        """The rest."""
        self.show(watch.look())


def _line(facts: Digest, row: Row) -> str:
    value = f"{facts.problem.goal.metric} {_value(row)}"
    head = f"trial {row.record.id:>3}  {value}  epoch {row.record.epoch:g}  {row.outcome}"
    return f"{head}: {row.reason}" if row.reason else head


def _picture(facts: Digest, latest: dict[int, str], console: Console, most: int | None) -> Group:
    """The last `most` trials, a line each, and where the search stands; or all, with their reasons in full."""
    from rich.console import Group

    table = _headed(facts.problem.goal.metric, clipped=most is not None)
    span, last, bars = _span(facts), _last(facts), BARS if "utf" in console.encoding.lower() else ".:-=+*#@"
    width = _CURVE if console.width >= 100 else _CURVE // 2
    for row in facts.rows[-most:] if most else facts.rows:
        curve = sparkline(row.record, span, last, width, bars)
        reason = latest.get(row.record.id, "") if row.record.status is Status.RUNNING else row.reason
        texts = (str(row.record.id), curve, _value(row), epochs(facts, row), row.outcome, reason)
        table.add_row(*(cell(text, GROUP_STYLES[row.group].rich) for text in texts))
    return Group(table, *([] if most is None else [cell(_standing(facts))]))


def _standing(facts: Digest) -> str:
    if facts.problem.further:
        return f"{lead_of(facts.history) or 'no run has a value in every goal yet'}; {spending(facts)}"
    best = f"best {short(facts.best.value)} by trial {facts.best.trial}; " if facts.best else ""
    return f"{best}{spending(facts)}"


def _headed(metric: str, clipped: bool) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    table.add_column("trial", justify="right")
    table.add_column("curve", no_wrap=True)
    table.add_column(cell(metric), justify="right", no_wrap=True)
    table.add_column("epochs", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("reason", no_wrap=clipped, overflow="ellipsis" if clipped else "fold", ratio=1)
    return table


def _value(row: Row) -> str:
    return "-" if row.value is None else short(row.value)


def _span(facts: Digest) -> tuple[float, float]:
    scores = [
        r.record.scores[np.isfinite(r.record.values) & np.isfinite(r.record.scores)] for r in facts.rows
    ]
    every = np.concatenate([*scores, np.zeros(0)])
    return (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)


def _last(facts: Digest) -> float:
    return float(facts.problem.max_epochs or max([r.record.epoch for r in facts.rows], default=0.0) or 1.0)


def _console() -> Console:
    try:
        from rich.console import Console
    except ImportError:
        raise ImportError("haltune.report.live draws with Rich: pip install rich") from None
    return Console()


def _screen(console: Console) -> _Screen | _Paper:
    return _Screen(console) if console.is_terminal else _Paper(console)
