"""Figures of decisions: the rungs, one decision by optimal stopping, and the calibration of its probabilities.

A decision is drawn as in figures 5 to 8 of the BO-BOS paper. Optimal stopping decides by the mean of the errors so far;
the figure shows the mean of the metric instead. Regions, paths and numbers are those of the trial's last decision. It
is computed again from the events that were in the log at that time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.arrays import Array
from haltune.display import clipped, numeral, plural
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.decisions import FULL, Verdict
from haltune.log.events import OVER, Status
from haltune.log.history import History
from haltune.log.policy import Fold
from haltune.log.problem import Problem
from haltune.policies.bobos.optimal_stopping import DecisionTable
from haltune.policies.bobos.policy import Posed, Stopper
from haltune.policies.random import RandomSearch
from haltune.study.explain import Rate
from haltune.study.judging import as_judged
from haltune.study.view import StudyView

from ..digest import MOST_TRIALS, Digest, Row, digest, need_study, story_of
from ..story import Story, gives_p_win

# isort: off
from .drawing import (
    ACCENT, COOL, COOL_SOFT, FAINT, INK, MUTED, PAPER, RULE, Spec, Trace, at_point, axis, drawn, empty, figure,
    first_view, nothing, on, padded, plotly_text,
)  # fmt: skip

if TYPE_CHECKING:
    import plotly.graph_objects as go

# -- rungs ---------------------------------------------------------------------------------

_OUTCOMES = {  # outcome at a rung -> words, mark, colour
    "left": ("not continued", "x-thin-open", FAINT), "waits": ("waits to continue", "square-open", MUTED),
    "on": ("continued", "circle", COOL), "end": ("trained to the last rung", "diamond", INK),
}  # fmt: skip
_WIDTH = 0.76  # of a rung's column


@dataclass(frozen=True)
class RungEntry:
    """A trial at a rung."""

    row: Row
    rung: float  # in the study's unit, such as epochs
    epoch: float  # of the report: at the rung, or the first after it
    value: float  # the value that was compared there
    verdict: Verdict
    outcome: str = "left"  # one of _OUTCOMES


def rungs(study: StudyView) -> go.Figure:
    """Draw the rungs of a search: which trials continued from each rung, which wait, and which did not continue.

    Args:
        study: A Study, or a study opened for reading. It is read up to its newest event.

    Returns:
        A Plotly figure with a column for each rung, the best trial on its left.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import SuccessiveHalving
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=3)
        >>> study = Study(problem, SuccessiveHalving(3), seed=0, budget=Budget(trials=3), verbose=0)
        >>> study.optimize(lambda trial: [trial.report(trial.config["lr"] / e) for e in trial.epochs()])
        >>> rungs(study).layout.xaxis.ticktext
        ('1', '3')
    """
    story = story_of(study)
    return drawn(rungs_spec(story, digest(study, MOST_TRIALS)))


def rungs_spec(story: Story, facts: Digest) -> Spec:
    found, sign = rung_entries(story, facts), facts.problem.goal.sign
    steps = sorted({p.rung for p in found})
    later = len({p.row.record.id for p in found} - {p.row.record.id for p in found if p.rung == steps[0]})
    metric = plotly_text(facts.problem.goal.metric)
    spots: dict[tuple[int, float], float] = {}  # (trial, rung) -> x within the rung's column, the best on the left
    counts: dict[float, str] = {}
    for k, step in enumerate(steps):
        column = sorted((p for p in found if p.rung == step), key=lambda p: (-sign * p.value, p.row.record.id))
        for i, p in enumerate(column):
            spots[p.row.record.id, step] = round(k + _WIDTH * ((i + 0.5) / len(column) - 0.5), 4)
        outcomes = Counter(p.outcome for p in column)
        count = outcomes.total()
        continued, arrived = facts.comparisons.counts(step) or (outcomes["on"], count)  # as an explanation counts
        counts[step] = f"{continued} of {arrived}" if outcomes["end"] < count else f"{count}"
    data = [*_climbs(found, spots), *_marks(found, spots, facts.problem)]
    values = [p.value for p in found]
    shown = first_view(values, sign, values if facts.problem.goal.bounds else ())
    if shown:  # space for the counts above the columns
        shown[1] += 0.1 * (shown[1] - shown[0])
    heads = [
        {"x": k, "y": 1.0, "yref": "paper", "yanchor": "top", "text": counts[step], "showarrow": False,
         "font": {"color": MUTED, "size": 13}}
        for k, step in enumerate(steps)
    ]  # fmt: skip
    none = "No trial has reached a rung yet"
    problem = facts.problem
    sentence = ", ".join(f"after {problem.amount(step)} {counts[step]}" for step in steps)
    return figure(
        data, "Rungs", f"Trials that continued at each rung: {sentence}." if found else f"{none}.",
        order=15, wide=len(steps) > 5,
        note=f"Each column is a rung, a number of {problem.units} at which trials are compared, the best on the "
        "left. The label counts how many continued."
        + f" {plural(later, 'trial was', 'trials were')} first compared at a later rung." * (later > 0),
        annotations=heads if data else [nothing(none)],
        xaxis=axis(problem.units, range=[-0.5, max(0.5, len(steps) - 0.5)], tickvals=list(range(len(steps))),
                   ticktext=[numeral(s) for s in steps]),
        yaxis=axis(metric, range=shown),
    )  # fmt: skip


def rung_entries(story: Story, facts: Digest) -> list[RungEntry]:
    """Return an entry for each shown trial at each rung that it reached with a finite value."""
    levels, goal, grid = np.array(sorted(story.rungs)), facts.problem.goal, facts.problem.in_points().grid
    early = grid.slack * grid.every if grid else 0.0  # a report may come before its rung by this much
    found: dict[tuple[int, float], RungEntry] = {}
    for row in facts.rows:
        counting = row.record.counting(goal)
        for epoch, verdict in story.compared.get(row.record.id, {}).items():
            at = np.flatnonzero(row.record.epochs == epoch)
            if len(at) and math.isfinite(value := float(counting[at[0]])):
                rung = float(levels[levels <= epoch + early].max(initial=levels[0]))
                found[row.record.id, rung] = RungEntry(row, rung, epoch, value, verdict)
    closed, most, over = _closed(list(found.values()), goal.sign), facts.problem.max_epochs, facts.comparisons.over
    return [replace(p, outcome=_outcome(p, most, closed, over)) for p in found.values()]


BracketRung = tuple[Any, float]  # (bracket, rung); trials are compared within a bracket


def _closed(found: list[RungEntry], sign: float) -> dict[BracketRung, set[int]]:
    """Return the promoted trials of each bracket's rungs that all its trials have reached."""
    groups: dict[BracketRung, list[RungEntry]] = {}
    for p in found:
        if all(isinstance(p.verdict.evidence.get(name), int) for name in ("places", "arrived", "promoted")):
            groups.setdefault((p.verdict.evidence["bracket"], p.rung), []).append(p)
    due: dict[BracketRung, set[int]] = {}
    for key, group in groups.items():
        last = max(group, key=lambda p: p.verdict.evidence["arrived"]).verdict.evidence
        if last["arrived"] >= last["places"]:
            ranked = sorted(group, key=lambda p: (-sign * p.value, p.row.record.id))
            due[key] = {p.row.record.id for p in ranked[: last["promoted"]]}
    return due


def _outcome(p: RungEntry, horizon: int | None, closed: dict[BracketRung, set[int]], over: bool) -> str:
    record, evidence = p.row.record, p.verdict.evidence
    if FULL in evidence or ("rung" not in evidence if horizon is None else p.epoch >= horizon):
        return "end"
    if record.epoch > p.epoch or record.status is Status.RUNNING:
        return "on"
    due = closed.get((evidence.get("bracket"), p.rung))
    lost = due is not None and record.id not in due
    return "left" if record.status in OVER or over or lost else "waits"


def _climbs(found: list[RungEntry], spots: dict[tuple[int, float], float]) -> list[Trace]:
    runs: dict[int, list[RungEntry]] = {}
    for p in found:
        runs.setdefault(p.row.record.id, []).append(p)
    climbs = [sorted(run, key=lambda p: p.rung) for run in runs.values() if len(run) > 1]
    return [
        {
            "type": "scatter", "mode": "lines", "uid": f"trial-{run[0].row.record.id}", "showlegend": False,
            "x": [spots[p.row.record.id, p.rung] for p in run], "y": [p.value for p in run], "hoverinfo": "skip",
            "line": {"color": ACCENT, "width": 2} if run[0].row.leads else {"color": FAINT, "width": 1},
        }
        for run in sorted(climbs, key=lambda run: run[0].row.leads)
    ]  # fmt: skip


def _marks(found: list[RungEntry], spots: dict[tuple[int, float], float], problem: Problem) -> list[Trace]:
    traces, metric = [], plotly_text(problem.goal.metric)
    for outcome, (words, symbol, colour) in _OUTCOMES.items():
        mine = sorted((p for p in found if p.outcome == outcome), key=lambda p: p.row.leads)  # the best on top
        said = []
        for p in mine:  # if it did not continue, its present rank comes before the reason at that time
            now = [p.row.now] if outcome in ("left", "waits") and p.row.now else []
            sentence = [*now, f"{'at that time: ' * len(now)}{p.verdict.reason}"]
            reason = "<br>".join(plotly_text(clipped(text, 200)) for text in sentence)
            said.append([f"Trial {p.row.record.id}, {plotly_text(problem.amount(p.epoch))}: {words}", reason])
        line = {"width": 1.4, "color": colour} if symbol.endswith("open") else {"width": 0.6, "color": PAPER}
        traces += [{
            "type": "scatter", "mode": "markers", "name": words, "ids": [f"trial-{p.row.record.id}" for p in mine],
            "x": [spots[p.row.record.id, p.rung] for p in mine], "y": [p.value for p in mine], "meta": [metric],
            "marker": {"symbol": symbol, "size": 7, "color": [ACCENT if p.row.leads else colour for p in mine],
                       "line": line},
            "customdata": said,
            "hovertemplate": "<b>%{customdata[0]}</b><br>%{meta[0]} %{y:.4~g}<br>%{customdata[1]}<extra></extra>",
        }] * bool(mine)  # fmt: skip
    return traces


# -- one decision --------------------------------------------------------------------------

_PATHS = 40  # drawn
_LEVELS = 40  # of the mean
_NO_CHANCES = "No decision by optimal stopping yet"
_SCALE = [(0.0, FAINT), (0.5, RULE), (1.0, COOL_SOFT)]  # stop, continue, wins


@dataclass(frozen=True)
class Decided:
    """A decision on a trial, computed again from the log."""

    event: ev.Reported
    problem: Problem  # in points
    posed: Posed
    table: DecisionTable
    paths: Array  # (remaining steps, _PATHS) drawn errors

    @property
    def means(self) -> Array:
        """Running means of the errors after each step, (n,)."""
        errors = self.posed.errors
        return np.asarray(np.cumsum(errors) / np.arange(1.0, len(errors) + 1.0))

    def value(self, errors: Any) -> Array:
        """Convert errors, or means of errors, to the metric's units."""
        return np.asarray(self.posed.scale.raw(1.0 - np.asarray(errors)))

    def epochs(self, first: int, last: int) -> list[float]:
        """Return the positions of steps in the study's unit."""
        return [self.problem.in_unit(self.posed.epoch(step)) for step in range(first, last + 1)]


def decided(study: StudyView, stopper: Stopper, event: ev.Reported) -> Decided | None:
    """Compute the decision on a report with a probability to win again. None if no decision table was used."""
    fold = Fold(study.history.problem, RandomSearch())
    fold.read(islice(study.events(), event.seen))
    history = fold.judged
    posed = stopper.decision(history, as_judged(fold, event.trial, event))
    if posed is None or posed.decision is None or (table := posed.table(posed.at)).basis != "solved":
        return None
    rng = np.random.default_rng([history.seed, event.trial, posed.at])
    paths = stopper.settings.paths_of(posed.errors[: posed.at], posed.horizon, _PATHS, rng, posed.others)
    return Decided(event, history.problem, posed, table, np.asarray(paths.values, dtype=np.float64))


def decisions(study: StudyView, trial: int | None = None) -> go.Figure:
    """Draw a trial's last decision: possible curves, and the regions in which it stops, continues or wins.

    The study must use `BOBOS()` or `Halting()`. The decision is computed again from the log; this takes less than a
    second.

    Args:
        study: A Study, or a study opened for reading. It is read up to its newest event.
        trial: The trial's number. Default: None, the trial that was stopped last; if none was, the last that was
            judged.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study, if it decides in another way, or if this trial was not judged by its
            probability to win.
    """
    need_study(study).sync()
    stopper = study.policy.part(Stopper)
    if stopper is None:
        raise InvalidInput(
            "This search does not stop trials by their probability to win. Use a study with the policy BOBOS() or "
            "Halting(policy)."
        )
    event = shown_report(study.events(), trial)
    if event is None and trial is not None:
        raise InvalidInput(f"Trial {trial} was never judged by its probability to win. Give another trial, or none.")
    found = None if event is None else decided(study, stopper, event)
    return drawn(decisions_spec(found, study.history.problem))


def shown_report(events: Iterable[ev.Event], trial: int | None = None) -> ev.Reported | None:
    """Return the report to show: the last stop by the probability to win, or the last report judged by it."""
    stopped: ev.Reported | None = None
    last: ev.Reported | None = None
    for event in events:
        if gives_p_win(event) and trial in (None, event.trial):
            last = event
            stopped = event if event.verdict.stops else stopped
    return stopped or last


def decisions_spec(found: Decided | None, problem: Problem) -> Spec:
    """Return `decisions` as plain data: left the curve and its paths, right their means and the regions."""
    if found is None:
        return empty("A decision", _NO_CHANCES, order=12)
    trial, metric, unit = found.event.trial, plotly_text(problem.goal.metric), plotly_text(problem.unit)
    start = found.table.start
    incumbent = float(found.event.verdict.evidence["incumbent"])
    wins = found.paths[-1] < found.table.threshold
    ahead = found.posed.errors[:start].sum() + np.cumsum(found.paths, axis=0)
    ahead /= np.arange(start + 1.0, found.table.horizon + 1.0)[:, None]
    curve = found.value(found.posed.errors).tolist()
    data = [
        *_paths(found, found.paths, found.posed.errors[:start], wins, ""),
        _line(found, curve, metric, ""), _regions(found),
        *_paths(found, ahead, found.means[:start], wins, "2"),
        _line(found, found.value(found.means).tolist(), f"mean {metric}", "2"),
    ]  # fmt: skip
    span, near, shown, means = _views(found, incumbent)
    reason = clipped(found.event.verdict.reason, 300)
    return figure(
        data, f"Why trial {trial} was {'stopped' if found.event.verdict.stops else 'continued'}",
        f"The curve of trial {trial} after {problem.amount(found.event.epoch)}, {_PATHS} possible curves, of "
        f"which {int(wins.sum())} beat the best {problem.goal.metric}, and the means at which it stops.",
        order=12, wide=True, showlegend=False, height=320,
        note=f"{reason[:1].upper()}{reason[1:]}. Left: possible curves, blue if they beat the line at "
        f"{incumbent:.4g}. Right: the mean so far, which decides. In the grey region the trial stops, in the blue "
        "region it wins, between them it continues.",
        shapes=[{"type": "line", "x0": span[0], "x1": span[1], "y0": incumbent, "y1": incumbent,
                 "line": {"color": ACCENT, "width": 1.5}}],
        xaxis=axis(unit, range=span, anchor="y"), yaxis=axis(metric, range=shown, anchor="x"),
        xaxis2=axis(unit, range=near, anchor="y2"),
        yaxis2=axis(f"mean {metric} so far", range=means, anchor="x2"),
    )  # fmt: skip


def _views(found: Decided, incumbent: float) -> tuple[list[float], ...]:
    """Return the ranges of both panels: the whole curve, and the means near the regions."""
    start, half = found.table.start, found.problem.in_unit(0.5)
    end = found.problem.in_unit(found.posed.epoch(found.table.horizon))
    from_ = max(1, start - max(3, (found.table.horizon - start) // 2))
    grids = found.table.grids
    curve = [incumbent, *found.value(found.posed.errors).tolist(), *found.value(found.paths).ravel().tolist()]
    reached = [*grids.least.tolist(), *grids.most.tolist(), *found.means[from_ - 1 :].tolist()]
    near = [found.problem.in_unit(found.posed.epoch(from_)) - half, end + half]
    means = found.value(reached).tolist()
    whole = [padded(min(values), max(values), 0.06, 0.05) for values in (curve, means)]
    return [0.0, end + half], near, *whole


def _paths(found: Decided, paths: Array, before: Array, wins: Any, number: str) -> list[Trace]:
    """Return two lines with gaps: the paths that lose, and the paths that win."""
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
            "line": {"color": colour, "width": 0.8}, **on(number),
        })  # fmt: skip
    return [t for t in traces if t["x"]]


def _line(found: Decided, values: list[float], metric: str, number: str) -> Trace:
    return {
        "type": "scatter", "mode": "lines+markers", "name": f"trial {found.event.trial}",
        "x": found.epochs(1, len(values)), "y": values, "ids": [f"trial-{found.event.trial}"] * len(values),
        "line": {"color": INK, "width": 2.5}, "marker": {"color": INK, "size": 5}, "meta": [metric],
        "hovertemplate": f"{at_point(found.problem)}<extra></extra>",
        **on(number),
    }  # fmt: skip


def _regions(found: Decided) -> Trace:
    """Return a heat map of the decision at each epoch by the mean so far; empty where no path reaches."""
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


# -- calibration -------------------------------------------------------------------------------

_EDGES = (0.0, 0.01, 0.05, 0.2, 0.5, 0.8, 1.0)  # of the groups of probabilities
_NO_AUDIT = "No audited trial has ended yet. Set BOBOS(audit=0.1) or Halting(policy, audit=0.1)."


@dataclass(frozen=True)
class Group:
    """Trials for which about the same probability was stated."""

    stated: float  # mean
    won: Rate  # share of the trials


def calibration(study: StudyView) -> go.Figure:
    """Draw the stated probability to beat the best trial, P(beats), against the share of audited trials that did.

    An audited trial continues where it would be stopped, so that its final value is known. Other trials would bias the
    share, because only those that continued have a final value. In each range of probabilities a trial counts once,
    with the first probability stated for it. The lines are exact 95% intervals.

    Args:
        study: A Study, or a study opened for reading. It is read up to its newest event.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.
    """
    story = story_of(study)
    return drawn(calibration_spec(story, study.history))


def calibration_spec(story: Story, history: History) -> Spec:
    groups = grouped(story, history)
    ideal = {
        "type": "scatter", "mode": "lines", "x": [0.0, 1.0], "y": [0.0, 1.0], "hoverinfo": "skip",
        "line": {"color": MUTED, "width": 1, "dash": "dash"}, "name": "as stated",
    }  # fmt: skip
    dots = {
        "type": "scatter", "mode": "markers", "name": "trials", "x": [g.stated for g in groups],
        "y": [g.won.value for g in groups], "marker": {"size": 9, "color": COOL},
        "customdata": [[plural(g.won.of, "trial"), g.won.count, *g.won.interval] for g in groups],
        "hovertemplate": "<b>Stated P(beats) %{x:.2~g}: %{customdata[0]}</b><br>%{customdata[1]} won: %{y:.0%}, "
        "between %{customdata[2]:.0%} and %{customdata[3]:.0%} with 95% confidence<extra></extra>",
    }  # fmt: skip
    spans = [
        {"type": "line", "x0": g.stated, "x1": g.stated, "y0": g.won.interval[0], "y1": g.won.interval[1],
         "line": {"color": INK, "width": 1.4}}
        for g in groups
    ]  # fmt: skip
    sentence = "; ".join(f"at a stated {g.stated:.2g}, {g.won.count} of {g.won.of} won" for g in groups)
    ticks = {"tickvals": [0, 0.25, 0.5, 0.75, 1], "range": [-0.02, 1.02]}
    return figure(
        [ideal, dots] if groups else [],
        "Calibration", f"Stated probabilities to beat the best trial (audited trials): {sentence or 'none yet'}.",
        order=90, showlegend=False, shapes=spans,
        note="For audited trials: the stated probability to beat the best trial, and the share of trials that did, "
        "with its 95% interval. On the dashed line both are equal.",
        annotations=[] if groups else [nothing(_NO_AUDIT)],
        xaxis=axis("stated P(beats)", **ticks), yaxis=axis("share that won", **ticks),
    )  # fmt: skip


def grouped(story: Story, history: History) -> list[Group]:
    """Return the audited trials with a known final value, grouped by the probability stated for them."""
    goal = history.problem.goal
    found: list[list[tuple[float, bool]]] = [[] for _ in pairwise(_EDGES)]
    for trial, said in story.stated.items():
        record = history.trial(trial)
        if not (record.complete and record.status in (Status.COMPLETED, Status.STOPPED)):
            continue
        came_to, seen = goal.sign * record.result(goal), set[int]()
        for p, incumbent in said:
            k = min(int(np.searchsorted(_EDGES, p, side="right")) - 1, len(found) - 1)
            if k not in seen:
                seen.add(k)
                found[k].append((p, came_to > goal.sign * incumbent))
    return [
        Group(float(np.mean([p for p, _ in group])), Rate(sum(won for _, won in group), len(group)))
        for group in found
        if group
    ]
