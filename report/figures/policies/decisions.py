"""How a run was decided: what it might still become, and the regions of stopping and of going on ahead of it.

The figures 5 to 8 of the BO-BOS paper. The statistic by which optimal stopping decides is the mean of the errors so
far; here it is the mean of the metric. Regions, paths and numbers are those of the run's last decision, made again
from the log as far as that decision had seen it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.words import amount, clipped
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.history import History
from haltune.log.problem import Goal
from haltune.policies.bobos.halting import Posed, Stopper
from haltune.policies.bobos.optimal_stopping import DecisionTable
from haltune.study.results import Results
from haltune.study.session.judging import with_report

from ...digest import need_study
from ...palette import ACCENT, COOL, COOL_SOFT, FAINT, INK, MUTED, RULE
from ...story import tells
from ..drawing import Spec, axis, drawn, layout, nothing, plotly_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PATHS = 40  # drawn
_LEVELS = 40  # of the mean
_NO_CHANCES = "Nothing was decided by the chance to win yet"
_SCALE = [(0.0, FAINT), (0.5, RULE), (1.0, COOL_SOFT)]  # stop, go on, a winner


@dataclass(frozen=True)
class Decided:
    """The last decision on a run, made again."""

    event: ev.Reported
    posed: Posed
    table: DecisionTable
    paths: Array  # (steps to come, _PATHS) errors that are drawn

    @property
    def means(self) -> Array:
        """(n,) running means of the errors after each step."""
        return _running(self.posed.errors)

    def value(self, errors: Any) -> Array:
        """Errors, or means of them, in the metric's units."""
        return self.posed.scale.raw(1.0 - np.asarray(errors))

    def epochs(self, first: int, last: int) -> list[int]:
        """Those at which the steps `first` to `last` end."""
        return [self.posed.epoch(step) for step in range(first, last + 1)]


@dataclass
class Decisions:
    """Decisions of a search by its optimal stopping, made again as they are asked for; the last is kept."""

    study: Results
    stopper: Stopper
    _history: History | None = None
    _last: tuple[ev.Reported, Decided | None] | None = field(default=None)

    def of(self, event: ev.Reported) -> Decided | None:
        """The one that a report tells, which had its chance to win; None where no table decided it."""
        if self._last is None or self._last[0] != event:
            self._last = event, self._made(event)
        return self._last[1]

    def _made(self, event: ev.Reported) -> Decided | None:
        if self._history is None or self._history.position > event.seen:
            self._history = History(self.study.history.problem)
        history = self._history
        for following in self.study.events(history.position):
            if history.position >= event.seen:
                break
            history.apply(following)
        posed = self.stopper.posed(history, with_report(history, history.trial(event.trial), event))
        if posed is None:
            return None
        settings = self.stopper.settings
        decision, at = settings.decide(posed.errors, posed.horizon, posed.table, posed.others)
        table = posed.table(at) if decision is not None else None
        if table is None or table.basis != "solved":
            return None
        rng = np.random.default_rng([history.seed, event.trial, at])
        paths = settings.paths_of(posed.errors[:at], posed.horizon, _PATHS, rng, posed.others)
        return Decided(event, posed, table, np.asarray(paths.values, dtype=np.float64))


def decisions(study: Results, trial: int | None = None) -> go.Figure:
    """A run's last decision: what it might still become, and the regions of stopping and going on ahead of it.

    Of a study that decides by `BOBOS()` or `Halting()`. It is made again from the log, some tenths of a second.

    Args:
        study: A Study, or one opened to look at. It is read up to its newest event.
        trial: Its number. Default: None, the one that was stopped last; before there is one, the last that was judged.

    Returns:
        A figure of Plotly's.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study, one that decides otherwise, and for a trial that was not judged so.

    Example:
        See docs/guide.md::

            decisions(study, 8)
    """
    need_study(study).sync()
    stopper = study.policy.part(Stopper)
    if stopper is None:
        raise InvalidInput("this search stops no run by its chance to win: BOBOS() does, and Halting(policy)")
    event = telling(study.events(), trial)
    if event is None and trial is not None:
        raise InvalidInput(f"trial {trial} was never judged by its chance to win")
    found = None if event is None else Decisions(study, stopper).of(event)
    return drawn(decisions_spec(found, study.history.problem.goal))


def telling(events: Iterable[ev.Event], trial: int | None = None) -> ev.Reported | None:
    """The report whose decision is shown: the last stop by the chance to win, or else the last that has one."""
    stopped: ev.Reported | None = None
    last: ev.Reported | None = None
    for event in events:
        if tells(event) and trial in (None, event.trial):
            last = event
            stopped = event if event.verdict.stops else stopped
    return stopped or last


def decisions_spec(found: Decided | None, goal: Goal) -> Spec:
    """The same as plain data: on the left the curve and its paths, on the right their means and the regions."""
    if found is None:
        return {
            "data": [],
            "layout": layout("A decision", _NO_CHANCES, order=12, annotations=[nothing(_NO_CHANCES)]),
        }
    trial, metric = found.event.trial, plotly_text(goal.metric)
    start = found.table.start
    incumbent = float(found.event.verdict.evidence["incumbent"])
    wins = found.paths[-1] < found.table.threshold
    curve = found.value(found.posed.errors).tolist()
    data = [
        *_paths(found, found.paths, found.posed.errors[:start], wins, ""),
        _line(found, curve, metric, ""), _regions(found),
        *_paths(found, _means_ahead(found), found.means[:start], wins, "2"),
        _line(found, found.value(found.means).tolist(), f"mean {metric}", "2"),
    ]  # fmt: skip
    span, near, shown, means = _views(found, incumbent)
    reason = clipped(found.event.verdict.reason, 300)
    return {
        "data": data,
        "layout": layout(
            f"Why trial {trial} was {'stopped' if found.event.verdict.stops else 'let go on'}", _told(found, goal),
            order=12, wide=True, showlegend=False, height=320,
            note=f"{reason[:1].upper()}{reason[1:]}. Left: what it might become, blue where it beats the "
            f"{incumbent:.4g} of the line. Right: the mean so far, by which it is decided: grey is to stop, blue a "
            "winner, between them one more epoch.",
            shapes=[{"type": "line", "x0": span[0], "x1": span[1], "y0": incumbent, "y1": incumbent,
                     "line": {"color": ACCENT, "width": 1.5}}],
            xaxis=axis("epoch", range=span, anchor="y"), yaxis=axis(metric, range=shown, anchor="x"),
            xaxis2=axis("epoch", range=near, anchor="y2"),
            yaxis2=axis(f"mean {metric} so far", range=means, anchor="x2"),
        ),
    }  # fmt: skip


def _views(found: Decided, incumbent: float) -> tuple[list[float], ...]:
    """What is seen of both panels: all of the curve, and of the means what lies near the regions."""
    start, end = found.table.start, found.posed.epoch(found.table.horizon)
    from_ = max(1, start - max(3, (found.table.horizon - start) // 2))
    grids = found.table.grids
    curve = [incumbent, *found.value(found.posed.errors).tolist(), *found.value(found.paths).ravel().tolist()]
    reached = [*grids.least.tolist(), *grids.most.tolist(), *found.means[from_ - 1 :].tolist()]
    near = [found.posed.epoch(from_) - 0.5, end + 0.5]
    return [0.0, end + 0.5], near, _padded(curve), _padded(found.value(reached).tolist())


def _padded(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.05
    return [low - pad, high + pad]


def _paths(found: Decided, paths: Array, before: Array, wins: Any, number: str) -> list[dict[str, Any]]:
    """Two lines with gaps, one of those that lose and one of those that win."""
    epochs = found.epochs(found.table.start, found.table.horizon)
    traces = []
    for name, chosen, colour in (("loses", ~wins, MUTED), ("wins", wins, COOL)):
        xs: list[float | None] = []
        ys: list[float | None] = []
        for path in paths[:, chosen].T:
            xs += [*epochs, None]
            ys += [*found.value([before[-1], *path]).tolist(), None]
        traces.append({
            "type": "scatter", "mode": "lines", "name": name, "x": xs, "y": ys, "hoverinfo": "skip", "opacity": 0.5,
            "line": {"color": colour, "width": 0.8}, "xaxis": f"x{number}", "yaxis": f"y{number}",
        })  # fmt: skip
    return [t for t in traces if t["x"]]


def _line(found: Decided, values: list[float], metric: str, number: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers", "name": f"trial {found.event.trial}",
        "x": found.epochs(1, len(values)), "y": values, "ids": [f"trial-{found.event.trial}"] * len(values),
        "line": {"color": INK, "width": 2.5}, "marker": {"color": INK, "size": 5}, "meta": [metric],
        "hovertemplate": "%{meta[0]} %{y:.4~g} at epoch %{x}<extra></extra>",
        "xaxis": f"x{number}", "yaxis": f"y{number}",
    }  # fmt: skip


def _regions(found: Decided) -> dict[str, Any]:
    """A heat map of what is decided at each epoch by the mean so far; nothing where no path comes."""
    table, decided = found.table, found.table.decided
    cells = decided.shape[1] // table.slopes
    weight = np.maximum(table.visits, 1e-9).reshape(-1, cells, table.slopes)
    z = (decided.reshape(weight.shape) * weight).sum(axis=2) / weight.sum(axis=2)
    p = (table.p_win.reshape(weight.shape) * weight).sum(axis=2) / weight.sum(axis=2)
    levels = np.linspace(table.grids.least.min(), table.grids.most.max(), _LEVELS)
    grids = table.grids
    at = np.clip(((levels - grids.low[:, None]) * grids.scale[:, None]).astype(int), 0, cells - 1)
    half = 0.5 * (levels[1] - levels[0])
    there = (levels >= grids.least[:, None] - half) & (levels <= grids.most[:, None] + half)
    rows = np.arange(len(z))[:, None]
    heat, chance = np.where(there, z[rows, at], np.nan).T, p[rows, at].T
    order = np.argsort(found.value(levels))
    return {
        "type": "heatmap", "x": found.epochs(table.start, table.horizon), "y": found.value(levels)[order].tolist(),
        "z": [[None if np.isnan(v) else round(v, 2) for v in row] for row in heat[order].tolist()],
        "zmin": -1.0, "zmax": 1.0, "colorscale": _SCALE, "showscale": False, "xaxis": "x2", "yaxis": "y2",
        "text": [[f"P(beats) {v:.2g}" for v in row] for row in chance[order].tolist()], "name": "decision",
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _means_ahead(found: Decided) -> Array:
    """(steps to come, _PATHS) running means of the paths."""
    start = found.table.start
    total = found.posed.errors[:start].sum() + np.cumsum(found.paths, axis=0)
    means: Array = total / np.arange(start + 1.0, found.table.horizon + 1.0)[:, None]
    return means


def _running(errors: Array) -> Array:
    means: Array = np.cumsum(errors) / np.arange(1.0, len(errors) + 1.0)
    return means


def _told(found: Decided, goal: Goal) -> str:
    """What the figure shows, in words."""
    after = amount(found.event.epoch, "epochs")
    share = float((found.paths[-1] < found.table.threshold).mean())
    return (
        f"The curve of trial {found.event.trial} after {after}, {_PATHS} curves that it may follow, {share:.0%} of "
        f"which beat the best {goal.metric}, and where the mean so far decides to stop."
    )
