"""Who trained what and when, and where the time of the workers went."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from haltune._utils.process import named
from haltune._utils.words import duration, plural
from haltune.study.results import Results

from ..digest import story_of
from ..palette import ACCENT, COOL, COOL_SOFT, FAINT, INK, MUTED, RULE, SOFT
from ..story import Story, Stretch
from .drawing import Spec, axis, drawn, layout, nothing, plotly_text, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

_Line = tuple[str, int]  # a holder, and which of those that it holds trials on at a time
_MOST_STRETCHES = 3000  # stretches that are drawn, the newest
_FATES = {  # how an attempt ended -> what is said, and its colour
    "running": ("runs", COOL), "completed": ("trained to its end", MUTED), "stopped": ("stopped early", FAINT),
    "paused": ("paused", COOL_SOFT), "failed": ("failed", ACCENT), "interrupted": ("interrupted", SOFT),
    "lost": ("its worker was lost", ACCENT),
}  # fmt: skip
_PARTS = {  # of the time of workers
    "training": ("training", MUTED), "validation": ("validation", COOL), "checkpoint": ("saving", COOL_SOFT),
    "deciding": ("deciding", ACCENT), "other": ("starting up and the rest", FAINT), "lost": ("lost", INK),
    "idle": ("idle", RULE),
}  # fmt: skip


def timeline(study: Results) -> go.Figure:
    """A bar for each stretch of training, a line for each worker; and the shares of the workers' time.

    Args:
        study: A Study, or one opened to look at. It is read up to its newest event.

    Returns:
        A figure of Plotly's.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study.

    Example:
        See docs/guide.md::

            timeline(study).write_html("timeline.html")
    """
    return drawn(timeline_spec(story_of(study)))


def timeline_spec(story: Story) -> Spec:
    """The same as plain data."""
    stretches = story.stretches[-_MOST_STRETCHES:]
    lines = _lines(stretches)
    named_lines = _names(list(lines))
    names = {id(s): named_lines[line] for line, mine in lines.items() for s in mine}
    span = (story.now - story.begun) if stretches else 0.0
    unit, word = time_unit(span)
    data = [
        _bars([s for s in stretches if s.fate == fate], names, story.begun, unit, words, colour)
        for fate, (words, colour) in _FATES.items()
        if any(s.fate == fate for s in stretches)
    ]
    spoken = ", ".join(_spoken(story))
    more = (
        f" The newest {_MOST_STRETCHES:,} of {len(story.stretches):,} stretches."
        if len(story.stretches) > _MOST_STRETCHES
        else ""
    )
    return {
        "data": data,
        "layout": layout(
            "Workers", f"{plural(len(lines), 'worker')} in {duration(span)}: {spoken}.", order=80, wide=True,
            note=f"A bar is a stretch of training. Of the workers' time: {spoken or 'nothing yet'}.{more}",
            height=96 + 26 * max(1, len(lines)), tall=True, barmode="overlay", bargap=0.3,
            annotations=[] if data else [nothing("No trial has begun yet")],
            xaxis=axis(f"{word} since the first trial", range=[0.0, (span or 1.0) / unit * 1.01]),
            yaxis=axis(
                type="category", autorange="reversed", automargin=True, categoryarray=list(named_lines.values())
            ),
        ) | {"margin": {"l": 140, "r": 24, "t": 46, "b": 56}},
    }  # fmt: skip


def _lines(stretches: list[Stretch]) -> dict[_Line, list[Stretch]]:
    """Who trained what: a holder's stretches, in as many lines as it had at a time, for a launcher holds its workers'.

    A stretch goes on the line that was free for the shortest time.
    """
    lines: dict[_Line, list[Stretch]] = {}
    free: dict[str, list[float]] = {}  # holder -> from when on each of its lines is free
    for s in sorted(stretches, key=lambda s: s.start):
        mine = free.setdefault(s.worker, [])
        at = max(
            (i for i, end in enumerate(mine) if end <= s.start), key=lambda i: mine[i], default=len(mine)
        )
        end = math.inf if s.fate == "running" else s.end
        mine[at : at + 1] = [end]
        lines.setdefault((s.worker, at), []).append(s)
    return lines


def shares(story: Story) -> dict[str, float]:
    """Seconds of the workers' time, by what they were spent on; idle is from a worker's first start to its last end."""
    found = dict.fromkeys(_PARTS, 0.0)
    for mine in _lines(story.stretches).values():
        end = mine[0].start
        for s in mine:
            found["deciding"] += s.choosing
            found["idle"] += max(0.0, s.start - end - s.choosing)
            end = max(end, s.end)
            if s.fate == "lost":
                found["lost"] += s.end - s.start
                continue
            found["training"] += s.training
            found["validation"] += s.validation
            found["checkpoint"] += s.checkpoint
            found["deciding"] += s.judging
            found["other"] += s.other
    return found


def _spoken(story: Story) -> list[str]:
    """The shares, the largest first: in percent, a hundred in all."""
    found = shares(story)
    whole = math.fsum(found.values())
    if not whole:
        return []
    exact = {name: 100.0 * seconds / whole for name, seconds in found.items()}
    told = {name: math.floor(percent) for name, percent in exact.items()}
    cut = sorted(exact, key=lambda name: told[name] - exact[name])  # those that lost most of a percent first
    for name in cut[: 100 - sum(told.values())]:
        told[name] += 1
    ordered = sorted(told, key=lambda name: -exact[name])
    return [f"{_PARTS[name][0]} {told[name]}%" for name in ordered if told[name]]


def _names(lines: list[_Line]) -> dict[_Line, str]:
    """What each is called: apart from others, if need be by a number."""
    holders = [holder for holder, _ in lines]
    alike = [named(holder) for holder in dict.fromkeys(holders)]
    found = {}
    for number, (holder, at) in enumerate(lines, 1):
        same = alike.count(named(holder)) > 1
        told = f"{plotly_text(named(holder))}{f' ({number})' * same}"
        found[holder, at] = told if same or holders.count(holder) == 1 else f"{told}, {at + 1}"
    return found


def _bars(
    stretches: list[Stretch], names: dict[int, str], begun: float, unit: float, words: str, colour: str
) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": words, "y": [names[id(s)] for s in stretches],
        "base": [(s.start - begun) / unit for s in stretches], "x": [(s.end - s.start) / unit for s in stretches],
        "marker": {"color": colour, "line": {"width": 0}}, "width": 0.7, "ids": [f"trial-{s.trial}" for s in stretches],
        "customdata": [[_title(s, words), _parts(s)] for s in stretches],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    }  # fmt: skip


def _title(s: Stretch, words: str) -> str:
    return f"Trial {s.trial}{f', attempt {s.attempt}' if s.attempt > 1 else ''}: {words}"


def _parts(s: Stretch) -> str:
    parts = [
        (s.training, "training"), (s.validation, "validation"), (s.checkpoint, "saving"), (s.judging, "deciding"),
        (s.slept, "asleep"), (s.other, "starting up and the rest"),
    ]  # fmt: skip
    told = ", ".join(f"{duration(seconds)} {word}" for seconds, word in parts if seconds >= 0.05)
    before = f", after {duration(s.choosing)} deciding" if s.choosing >= 0.05 else ""
    return f"{plural(round(s.epochs, 2), 'epoch')} in {duration(s.end - s.start)}{before}" + (
        f": {told}" if told else ""
    )
