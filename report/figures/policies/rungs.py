"""The ladder: at each rung what the runs came to there, who went on, who waits and who was left."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import amount, clipped, plural
from haltune.log.decisions import FULL, Verdict
from haltune.log.events import OVER, Status
from haltune.study.results import Results

from ...digest import Digest, Row, digest, story_of
from ...palette import ACCENT, COOL, FAINT, INK, MUTED, PAPER
from ...sample import MOST_TRIALS
from ...story import Story
from ..drawing import Spec, axis, drawn, layout, nothing, plotly_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

_FATES = {  # at a rung -> what is said, mark, colour
    "left": ("not continued", "x-thin-open", FAINT), "waits": ("waits to continue", "square-open", MUTED),
    "on": ("continued", "circle", COOL), "end": ("trained to the last rung", "diamond", INK),
}  # fmt: skip
_WIDTH = 0.76  # of a rung's column


@dataclass(frozen=True)
class Arrival:
    """A run at a rung."""

    row: Row
    rung: float  # epochs
    epoch: float  # reported: at the rung, or the first beyond
    value: float  # that it counted for there
    verdict: Verdict
    fate: str = "left"  # one of _FATES


def rungs(study: Results) -> go.Figure:
    """The ladder of a search that compares runs at rungs: who went on from each, who waits there, who was left.

    Args:
        study: A Study, or one opened to look at. It is read up to its newest event.

    Returns:
        A figure of Plotly's: a column a rung, the best of each on its left.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study.

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
    """The same as plain data."""
    found = places(story, facts)
    steps = sorted({p.rung for p in found})
    told = _told(found, steps)
    later = len({p.row.record.id for p in found} - {p.row.record.id for p in found if p.rung == steps[0]})
    metric = plotly_text(facts.problem.goal.metric)
    spots = _spots(found, steps, facts.problem.goal.sign)
    data = [*_climbs(found, spots), *_marks(found, spots, metric)]
    return {
        "data": data,
        "layout": layout(
            "Rungs", told, order=15, wide=True,
            note="A column is a rung, where runs are compared, the best on its left; above it stands how many of those "
            "that came to it continued. A line is a run that did."
            + f" {plural(later, 'run was', 'runs were')} compared first at a later rung than the others." * (later > 0),
            annotations=_heads(found, steps) if data else [nothing("No run has come to a rung yet")],
            xaxis=axis("epochs", range=[-0.5, max(0.5, len(steps) - 0.5)], tickvals=list(range(len(steps))),
                       ticktext=[f"{s:g}" for s in steps]),
            yaxis=axis(metric, range=_range(found, facts)),
        ),
    }  # fmt: skip


def places(story: Story, facts: Digest) -> list[Arrival]:
    """Every run at every rung that it came to, of those that are shown and had a finite value there."""
    levels, goal = np.array(sorted(story.rungs)), facts.problem.goal
    found: dict[tuple[int, float], Arrival] = {}
    for row in facts.rows:
        counting = row.record.counting(goal)
        for epoch, verdict in story.compared.get(row.record.id, {}).items():
            at = np.flatnonzero(row.record.epochs == epoch)
            if len(at) and math.isfinite(value := float(counting[at[0]])):
                rung = float(levels[levels <= epoch].max())
                found[row.record.id, rung] = Arrival(row, rung, epoch, value, verdict)
    closed = _closed(found.values(), goal.sign)
    return [replace(p, fate=_fate(p, facts.problem.max_epochs, closed, facts.over)) for p in found.values()]


BracketRung = tuple[Any, float]  # a bracket, where runs are compared within one, and a rung of it


def _closed(found: Any, sign: float) -> dict[BracketRung, set[int]]:
    """Of the rungs of brackets that all have come to who are due to go on."""
    groups: dict[BracketRung, list[Arrival]] = {}
    for p in found:
        if all(isinstance(p.verdict.evidence.get(name), int) for name in ("places", "arrived", "go_on")):
            groups.setdefault((p.verdict.evidence["bracket"], p.rung), []).append(p)
    due: dict[BracketRung, set[int]] = {}
    for key, group in groups.items():
        last = max(group, key=lambda p: p.verdict.evidence["arrived"]).verdict.evidence
        if last["arrived"] >= last["places"]:
            ranked = sorted(group, key=lambda p: (-sign * p.value, p.row.record.id))
            due[key] = {p.row.record.id for p in ranked[: last["go_on"]]}
    return due


def _fate(p: Arrival, horizon: int | None, closed: dict[BracketRung, set[int]], over: bool) -> str:
    record, evidence = p.row.record, p.verdict.evidence
    if FULL in evidence or ("rung" not in evidence if horizon is None else p.epoch >= horizon):
        return "end"
    if record.epoch > p.epoch or record.status is Status.RUNNING:
        return "on"
    due = closed.get((evidence.get("bracket"), p.rung))
    lost = due is not None and record.id not in due
    return "left" if record.status in OVER or over or lost else "waits"


def _spots(found: list[Arrival], steps: list[float], sign: float) -> dict[tuple[int, float], float]:
    """Where each stands from left to right: in its rung's column, the best first."""
    spots = {}
    for k, step in enumerate(steps):
        column = sorted(
            (p for p in found if p.rung == step), key=lambda p: (-sign * p.value, p.row.record.id)
        )
        for i, p in enumerate(column):
            spots[p.row.record.id, step] = round(k + _WIDTH * ((i + 0.5) / len(column) - 0.5), 4)
    return spots


def _climbs(found: list[Arrival], spots: dict[tuple[int, float], float]) -> list[dict[str, Any]]:
    """A line for each run that came to more than one rung, the best on top."""
    runs: dict[int, list[Arrival]] = {}
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


def _marks(found: list[Arrival], spots: dict[tuple[int, float], float], metric: str) -> list[dict[str, Any]]:
    """A trace for each of what became of runs at rungs."""
    traces = []
    for fate, (words, symbol, colour) in _FATES.items():
        mine = sorted((p for p in found if p.fate == fate), key=lambda p: p.row.leads)  # the best on top
        colours = [ACCENT if p.row.leads else colour for p in mine]
        line = {"width": 1.4, "color": colour} if symbol.endswith("open") else {"width": 0.6, "color": PAPER}
        traces.append({
            "type": "scatter", "mode": "markers", "name": words, "ids": [f"trial-{p.row.record.id}" for p in mine],
            "x": [spots[p.row.record.id, p.rung] for p in mine], "y": [p.value for p in mine], "meta": [metric],
            "marker": {"symbol": symbol, "size": 7, "color": colours, "line": line},
            "customdata": [[_title(p, words), _reason(p)] for p in mine],
            "hovertemplate": "<b>%{customdata[0]}</b><br>%{meta[0]} %{y:.4~g}<br>%{customdata[1]}<extra></extra>",
        })  # fmt: skip
    return [t for t in traces if t["ids"]]


def _reason(p: Arrival) -> str:
    """Where a trial did not continue, its rank as of now comes before the reason of that moment."""
    now = [p.row.now] if p.fate in ("left", "waits") and p.row.now else []
    told = [*now, f"{'when it came: ' * len(now)}{p.verdict.reason}"]
    return "<br>".join(plotly_text(clipped(words, 200)) for words in told)


def _title(p: Arrival, words: str) -> str:
    return f"Trial {p.row.record.id}, {amount(p.epoch, 'epochs')}: {words}"


def _heads(found: list[Arrival], steps: list[float]) -> list[dict[str, Any]]:
    """Above each column how many came there and how many of them went on."""
    return [
        {
            "x": k, "y": 1.0, "yref": "paper", "yanchor": "top", "text": text, "showarrow": False,
            "font": {"color": MUTED, "size": 12},
        }
        for k, text in enumerate(_counts(found, step) for step in steps)
    ]  # fmt: skip


def _counts(found: list[Arrival], step: float) -> str:
    fates = Counter(p.fate for p in found if p.rung == step)
    return f"{fates['on']} of {fates.total()}" if fates["end"] < fates.total() else f"{fates['end']}"


def _told(found: list[Arrival], steps: list[float]) -> str:
    """What the figure shows, in words."""
    if not found:
        return "No run has come to a rung yet."
    told = ", ".join(f"after {amount(step, 'epochs')} {_counts(found, step)}" for step in steps)
    return f"Of the runs that came to each rung so many continued: {told}."


def _range(found: list[Arrival], facts: Digest) -> list[float] | None:
    """All values, but without bounds not the worst tenth of each rung, which may have diverged."""
    if not found:
        return None
    sign = facts.problem.goal.sign
    heights: dict[float, list[float]] = {}
    for p in found:
        heights.setdefault(p.rung, []).append(sign * p.value)
    share = 0.0 if facts.problem.goal.bounds else 0.1
    low = min(float(np.quantile(column, share, method="lower")) for column in heights.values())
    high = max(max(column) for column in heights.values())
    pad = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return sorted([sign * (low - pad), sign * (high + 2 * pad)])
