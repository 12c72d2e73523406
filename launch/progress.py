"""What trains now, on the terminal."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from haltune.display.terminal import cell
from haltune.errors import HaltuneError, installing
from haltune.log.fate import lead_of
from haltune.study import Study, Trial
from haltune.study.session.voice import spending_line

if TYPE_CHECKING:
    from rich.console import Group

_REFRESH = 0.5  # seconds
Busy = Sequence[tuple[int, Trial | None]]  # worker, what it trains


class Progress(Protocol):
    """Shows; decides nothing."""

    def show(self, busy: Busy, over: str | None) -> None:
        """What the workers train, and why no more trials begin."""
        ...


@contextmanager
def progress_of(study: Study, wanted: bool | None) -> Iterator[Progress]:
    """A table on a terminal; elsewhere nothing, for the study itself says what begins and ends."""
    rich = importlib.util.find_spec("rich") is not None
    if wanted and not rich:
        raise ImportError(f"progress=True needs Rich: {installing('cli')}")
    if wanted or (wanted is None and rich and sys.stderr.isatty()):
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            yield _LiveTable(study, live)
    else:
        yield _Nothing()


class _Nothing:
    def show(self, busy: Busy, over: str | None) -> None:
        """Nothing."""


class _LiveTable:
    """Trials, epochs, what is spent, the incumbent, and a row for each worker."""

    def __init__(self, study: Study, live: Any) -> None:
        self._study, self._live, self._next = study, live, 0.0

    def show(self, busy: Busy, over: str | None) -> None:
        """Twice a second at most."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REFRESH
        try:
            self._study.sync()
        except HaltuneError:
            return  # the store is away: the picture stays as it was
        self._live.update(self._picture(busy, over), refresh=True)

    def _picture(self, busy: Busy, over: str | None) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        study = self._study
        several = bool(study.problem.further)
        best = None if several else study.best
        head = Text.assemble(
            cell(study.name, "bold"), cell(f"  {spending_line(study.history, study.budget)}")
        )
        top = (
            lead_of(study.history) or "no value yet"
            if several
            else "no value yet"
            if best is None
            else f"{best.value:.5g} at epoch {best.epoch:g} of trial {best.trial}"
        )
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("worker", "trial", "epoch", study.problem.goal.metric, "configuration"):
            table.add_column(cell(title), no_wrap=True, overflow="ellipsis")
        for number, trial in busy:
            table.add_row(str(number), *map(cell, _row(study, trial)))
        return Group(
            head, cell(top if several else f"best: {top}"), table, *([cell(over, "yellow")] if over else [])
        )


def _row(study: Study, trial: Trial | None) -> list[str]:
    if trial is None:
        return ["", "", "", "idle"]
    r = study.history.trial(trial.id)
    end = r.until or study.problem.max_epochs
    value = f"{r.values[-1]:.5g}" if len(r.values) else ""
    return [str(r.id), f"{r.epoch:g}" + (f" of {end:g}" if end else ""), value, str(dict(r.config))]
