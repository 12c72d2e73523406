"""Is P(beats) what it says? The chances that were stated for audited runs, and how many of them won."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import plural
from haltune.log.events import Status
from haltune.log.history import History
from haltune.study.results import Results
from haltune.study.telling.rate import Rate

from ...digest import story_of
from ...palette import COOL, INK, MUTED
from ...story import Story
from ..drawing import Spec, axis, drawn, layout, nothing

if TYPE_CHECKING:
    import plotly.graph_objects as go

_EDGES = (0.0, 0.01, 0.05, 0.2, 0.5, 0.8, 1.0)  # of the chances that are told apart
_NO_AUDIT = "No audited run has come to its end: BOBOS(audit=0.1), Halting(policy, audit=0.1)"


@dataclass(frozen=True)
class Group:
    """Runs that were given about the same chance once."""

    stated: float  # on average
    won: Rate  # of the runs


def calibration(study: Results) -> go.Figure:
    """P(beats) as it was stated against the share of the runs that won, where runs were audited.

    An audited run trains on where it would be stopped, so that its end is known; others would tell of those alone that
    were let go on. In each range of chances a run counts once, by the first that was stated of it; the lines are exact
    95% intervals.

    Args:
        study: A Study, or one opened to look at. It is read up to its newest event.

    Returns:
        A figure of Plotly's.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study.

    Example:
        See docs/guide.md::

            calibration(study)
    """
    story = story_of(study)
    return drawn(calibration_spec(story, study.history))


def calibration_spec(story: Story, history: History) -> Spec:
    """The same as plain data."""
    groups = grouped(story, history)
    ideal = {
        "type": "scatter", "mode": "lines", "x": [0.0, 1.0], "y": [0.0, 1.0], "hoverinfo": "skip",
        "line": {"color": MUTED, "width": 1, "dash": "dash"}, "name": "as stated",
    }  # fmt: skip
    dots = {
        "type": "scatter", "mode": "markers", "name": "runs", "x": [g.stated for g in groups],
        "y": [g.won.value for g in groups], "marker": {"size": 9, "color": COOL},
        "customdata": [[plural(g.won.of, "run"), g.won.count, *g.won.interval] for g in groups],
        "hovertemplate": "<b>P(beats) %{x:.2~g} was stated of %{customdata[0]}</b><br>%{customdata[1]} won: %{y:.0%}, "
        "between %{customdata[2]:.0%} and %{customdata[3]:.0%} with 95% confidence<extra></extra>",
    }  # fmt: skip
    spans = [_span(g) for g in groups]
    ticks = {"tickvals": [0, 0.25, 0.5, 0.75, 1], "range": [-0.02, 1.02]}
    return {
        "data": [ideal, dots] if groups else [],
        "layout": layout(
            "Are the chances right?", _told(groups), order=90, showlegend=False, shapes=spans,
            note="Of audited runs: the chance to win that was stated, and the share that won, with its interval. On "
            "the dashed line what was said is what came.",
            annotations=[] if groups else [nothing(_NO_AUDIT)],
            xaxis=axis("P(beats) as stated", **ticks), yaxis=axis("share that won", **ticks),
        ),
    }  # fmt: skip


def grouped(story: Story, history: History) -> list[Group]:
    """The audited runs whose end is known, by the chances that were stated of them."""
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


def _span(group: Group) -> dict[str, Any]:
    low, high = group.won.interval
    return {
        "type": "line", "x0": group.stated, "x1": group.stated, "y0": low, "y1": high,
        "line": {"color": INK, "width": 1.4},
    }  # fmt: skip


def _told(groups: list[Group]) -> str:
    """What the figure shows, in words."""
    told = "; ".join(f"where {g.stated:.2g} was stated, {g.won.count} of {g.won.of} won" for g in groups)
    return f"Chances to win as they were stated of audited runs: {told or 'none yet'}."
