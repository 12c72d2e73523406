"""Who trained what and when, and where the time of the workers went."""

from __future__ import annotations

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
    workers = list(dict.fromkeys(s.worker for s in stretches))
    names = {worker: _name(worker, i, workers) for i, worker in enumerate(workers)}
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
            "Workers", f"{plural(len(workers), 'worker')} in {duration(span)}: {spoken}.", order=80, wide=True,
            note=f"A bar is a stretch of training. Of the workers' time: {spoken or 'nothing yet'}.{more}",
            height=96 + 26 * max(1, len(workers)), tall=True, barmode="overlay", bargap=0.3,
            annotations=[] if data else [nothing("No trial has begun yet")],
            xaxis=axis(f"{word} since the first trial", range=[0.0, (span or 1.0) / unit * 1.01]),
            yaxis=axis(type="category", autorange="reversed", categoryarray=[names[w] for w in workers]),
        ) | {"margin": {"l": 140, "r": 24, "t": 46, "b": 56}},
    }  # fmt: skip


def shares(story: Story) -> dict[str, float]:
    """Seconds of the workers' time, by what they were spent on; idle is from a worker's first start to its last end."""
    found = dict.fromkeys(_PARTS, 0.0)
    workers: dict[str, list[Stretch]] = {}
    for s in story.stretches:
        workers.setdefault(s.worker, []).append(s)
        if s.fate == "lost":
            found["lost"] += s.end - s.start
            continue
        found["training"] += s.training
        found["validation"] += s.validation
        found["checkpoint"] += s.checkpoint
        found["deciding"] += s.deciding
        found["other"] += s.other
    for mine in workers.values():
        held, end = 0.0, mine[0].start
        for s in sorted(mine, key=lambda s: s.start):
            held += max(0.0, s.start - end)
            end = max(end, s.end)
        found["idle"] += held
    found["idle"] = max(0.0, found["idle"] - found["deciding"])
    return found


def _spoken(story: Story) -> list[str]:
    found = shares(story)
    whole = sum(found.values())
    ordered = sorted(found.items(), key=lambda pair: -pair[1])
    return [
        f"{_PARTS[name][0]} {seconds / whole:.0%}"
        for name, seconds in ordered
        if whole and seconds / whole >= 0.005
    ]


def _name(worker: str, number: int, workers: list[str]) -> str:
    told = plotly_text(named(worker))
    return told if [named(w) for w in workers].count(named(worker)) == 1 else f"{told} ({number + 1})"


def _bars(
    stretches: list[Stretch], names: dict[str, str], begun: float, unit: float, words: str, colour: str
) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": words, "y": [names[s.worker] for s in stretches],
        "base": [(s.start - begun) / unit for s in stretches], "x": [(s.end - s.start) / unit for s in stretches],
        "marker": {"color": colour, "line": {"width": 0}}, "width": 0.7, "ids": [f"trial-{s.trial}" for s in stretches],
        "customdata": [[_title(s, words), _parts(s)] for s in stretches],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    }  # fmt: skip


def _title(s: Stretch, words: str) -> str:
    return f"Trial {s.trial}{f', attempt {s.attempt}' if s.attempt > 1 else ''}: {words}"


def _parts(s: Stretch) -> str:
    parts = [
        (s.training, "training"), (s.validation, "validation"), (s.checkpoint, "saving"), (s.deciding, "deciding"),
        (s.slept, "asleep"), (s.other, "starting up and the rest"),
    ]  # fmt: skip
    told = ", ".join(f"{duration(seconds)} {word}" for seconds, word in parts if seconds >= 0.05)
    return f"{plural(round(s.epochs, 2), 'epoch')} in {duration(s.end - s.start)}" + (
        f": {told}" if told else ""
    )
