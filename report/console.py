"""Live view of the trials of all workers: a table in a terminal, or the page in a notebook's cell.

A separate thread reads the study's log, as any other process could. It does not access the study object that searches.
In a notebook the page is in a sandboxed frame, so no script in it can access the notebook. A script in the cell's
second output passes changes to the frame; Jupyter, VS Code and Colab run such scripts. There is no server and no
address, so the view works wherever the notebook works. At the end the cell keeps the final page for later readers.
Front ends without HTML show the summary as text.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune.display import cell, escaped, notebook, short, visible
from haltune.errors import StoreError
from haltune.log.events import OVER, Reported, Status
from haltune.log.history import History
from haltune.log.records import TrialRecord
from haltune.study import Study
from haltune.study.messages import lead_of
from haltune.study.view import follow_study

from .digest import Digest, Row, digest
from .figures.drawing import GROUP_STYLES
from .page import script, style
from .summary import spending, summary
from .watch.watched import Watched

if TYPE_CHECKING:
    from rich.console import Console, Group

_REFRESH = 0.5  # seconds between readings
_READING_SHARE = 0.05  # the largest share of the time spent on reading the log
_CURVE = 30  # characters
_BARS = "▁▂▃▄▅▆▇█"
_OTHER_LINES = 7  # lines of the screen without a trial
_HEIGHT = 640  # pixels of a notebook's cell
_WHOLE = 20  # every 20th update sends the whole page: a frame that the notebook created again shows the first page


@contextmanager
def live(study: Study, console: Console | None = None) -> Iterator[None]:
    """Show the trials while they train, and all trials at the end.

    In a file or a pipe, print one line for each trial that has ended. In a notebook, the cell shows the live page of
    the search, and keeps the final page.

    Args:
        study: The study that is searched, by this process or by other workers.
        console: A Rich console. Default: None, the terminal or the notebook's cell.

    Raises:
        ImportError: If Rich is not installed.

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
    shows = notebook() if console is None else None
    screen: Any
    watch: Any
    if shows is not None:
        screen = watch = Cell(shows, study)
    else:
        console = console or _console()
        screen = _Screen(console) if console.is_terminal else _Paper(console)
        watch = _WatchedLog(study)
    over = threading.Event()

    def follow() -> None:
        while not over.wait(max(_REFRESH, watch.cost / _READING_SHARE)):
            with suppress(StoreError):  # the workers report it; the view tries again
                screen.show(watch.look())

    thread = threading.Thread(target=follow, name="haltune-live", daemon=True)
    thread.start()
    with study.session.logger.silenced():  # the table shows the same
        try:
            yield
        finally:
            over.set()
            thread.join()
            screen.close(watch)


class _WatchedLog:
    """A separate history, folded from the study's log."""

    def __init__(self, study: Study) -> None:
        self._study, self._history = study, History(study.problem)
        self._latest: dict[int, str] = {}  # trial -> the reason of its last verdict
        self.cost = 0.0  # seconds that the last reading took

    def look(self) -> tuple[Digest, dict[int, str]]:
        began = time.perf_counter()
        for event in self._study.store.read(self._study.name, self._history.position):  # of all workers
            self._history.apply(event)
            if isinstance(event, Reported):
                self._latest[event.trial] = event.verdict.reason
        facts = digest(self._history)
        self.cost = time.perf_counter() - began
        return facts, self._latest


class _Screen:
    """A terminal: one table that is redrawn."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, seen: tuple[Digest, dict[int, str]]) -> None:
        rows = max(3, self._console.height - _OTHER_LINES)
        self._live.update(_picture(*seen, self._console, rows), refresh=True)

    def close(self, watch: _WatchedLog) -> None:
        self._live.stop()
        self._console.print(_picture(*watch.look(), self._console, None))


class _Paper:
    """A file or a pipe: a line for each trial when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[int] = set()

    def show(self, seen: tuple[Digest, dict[int, str]]) -> None:
        facts, _ = seen
        for row in facts.rows:
            if row.record.status in OVER and row.record.id not in self._told:
                self._told.add(row.record.id)
                self._console.print(cell(_line(facts, row)), soft_wrap=True)

    def close(self, watch: _WatchedLog) -> None:
        self.show(watch.look())


def _line(facts: Digest, row: Row) -> str:
    value = f"{facts.problem.goal.metric} {_value(row)}"
    head = f"trial {row.record.id:>3}  {value}  {facts.problem.at(row.record.epoch)}  {row.outcome}"
    return f"{head}: {row.reason}" if row.reason else head


def _value(row: Row) -> str:
    return "-" if row.value is None else short(row.value)


def _picture(facts: Digest, latest: dict[int, str], console: Console, most: int | None) -> Group:
    """Return a table of the last `most` trials and the search's state; if None, all trials with full reasons."""
    from rich.console import Group
    from rich.table import Table

    clipped = most is not None
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    table.add_column("trial", justify="right")
    table.add_column("curve", no_wrap=True)
    table.add_column(cell(facts.problem.goal.metric), justify="right", no_wrap=True)
    table.add_column(facts.problem.units, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("reason", no_wrap=clipped, overflow="ellipsis" if clipped else "fold", ratio=1)
    records = [row.record for row in facts.rows]
    scores = [r.scores[np.isfinite(r.values) & np.isfinite(r.scores)] for r in records]
    every = np.concatenate([*scores, np.zeros(0)])
    span = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    last = float(facts.problem.max_epochs or max([r.epoch for r in records], default=0.0) or 1.0)
    bars = _BARS if "utf" in console.encoding.lower() else ".:-=+*#@"
    width = _CURVE if console.width >= 100 else _CURVE // 2
    for row in facts.rows[-most:] if most else facts.rows:
        curve = _sparkline(row.record, span, last, width, bars)
        reason = latest.get(row.record.id, "") if row.record.status is Status.RUNNING else row.reason
        texts = (str(row.record.id), curve, _value(row), facts.problem.reached(row.record.epoch), row.outcome, reason)
        table.add_row(*(cell(text, GROUP_STYLES[row.group].rich) for text in texts))
    if most is None:
        return Group(table)
    if facts.problem.further:
        best = f"{lead_of(facts.history) or 'no trial has a value in every goal yet'}; "
    else:
        best = f"best {short(facts.best.value)} by trial {facts.best.trial}; " if facts.best else ""
    return Group(table, cell(f"{best}{spending(facts)}"))


def _sparkline(record: TrialRecord, span: tuple[float, float], last: float, width: int, bars: str) -> str:
    """Return the curve up to the epoch `last` as one line of text; column k holds the last report of its epochs."""
    width = max(1, min(width, round(last)))
    text = [" "] * width
    low, high = span
    drawn = np.isfinite(record.values) & np.isfinite(record.scores)
    for epoch, score in zip(record.epochs[drawn], record.scores[drawn], strict=True):
        height = (score - low) / (high - low) if high > low else 0.5
        column = min(width - 1, int(np.ceil(epoch * width / last)) - 1)
        text[column] = bars[min(len(bars) - 1, max(0, int(height * len(bars))))]
    return "".join(text).rstrip()


def _console() -> Console:
    try:
        from rich.console import Console
    except ImportError:
        raise ImportError("haltune.report.live needs Rich, which is not installed. Run: pip install rich") from None
    return Console()


class Cell:
    """The cell of a notebook. `shows` is IPython.display."""

    def __init__(self, shows: Any, study: Study) -> None:
        self._study, self._watched = study, Watched(follow_study(study.store, study.name, study.checkpoints.folder))
        self._id, self._mark, self._count, self.cost = f"haltune-{secrets.token_hex(6)}", "", 0, 0.0
        self._page = shows.display(self._framed(), raw=True, display_id=True)
        self._news = shows.display({"text/html": "", "text/plain": ""}, raw=True, display_id=True)

    def look(self) -> str:
        began = time.perf_counter()
        self._watched.look()
        self._count += 1
        if self._watched.mark == self._mark:
            return ""
        self._mark, news = self._watched.since("" if self._count % _WHOLE == 0 else self._mark)
        self.cost = time.perf_counter() - began
        return news

    def show(self, news: str) -> None:
        if news:
            text = visible(news).replace("<", "\\u003c")  # a JavaScript literal within a script element
            handed = f'document.getElementById("{self._id}").contentWindow.postMessage({text}, "*")'
            self._news.update({"text/html": f"<script>{handed}</script>", "text/plain": ""}, raw=True)

    def close(self, cell: Cell) -> None:
        self._watched = Watched(follow_study(self._study.store, self._study.name, self._study.checkpoints.folder))
        self._page.update(self._framed(), raw=True)
        self._news.update({"text/html": "", "text/plain": ""}, raw=True)

    def _framed(self) -> dict[str, str]:
        self._mark = self._watched.mark
        head = '<meta name="haltune-cell" content=""><meta name="haltune-mark" content="{mark}">\n'
        head += f"<style>{style()}</style>"
        page = escaped(self._watched.page(head, f"<script>{script()}</script>", bar=""))
        frame = (
            f'<iframe id="{self._id}" title="haltune: {escaped(self._study.name)}" sandbox="allow-scripts" '
            f'style="width:100%;height:{_HEIGHT}px;border:0" srcdoc="{page}"></iframe>'
        )
        return {"text/html": frame, "text/plain": summary(self._watched.study)}
