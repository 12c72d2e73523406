"""Parallel coordinates: every trial a line through its parameters and its value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import settings, short
from haltune.space.domains import Choice, Constant, Float, Int

from ..digest import Digest, Row, Source, digest
from ..palette import ACCENT, FAINT, MUTED
from ..sample import MOST_TRIALS
from .drawing import Spec, drawn, layout, nothing, plotly_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

_AXES = 12  # parameters that have one
_LACKS = "none"  # a value
_SCALE = [[0.0, FAINT], [0.6, MUTED], [1.0, ACCENT]]  # the worst, most, the best


def parallel(study: Source) -> go.Figure:
    """Every trial with a value as a line through its parameters; drag along an axis to choose some.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Returns:
        A figure of Plotly's.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0, log=True)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             _ = trial.report(trial.config["lr"] / epoch)
        >>> [axis.label for axis in parallel(study).data[0].dimensions]
        ['lr', 'loss']
    """
    return drawn(parallel_spec(digest(study, MOST_TRIALS)))


def parallel_spec(facts: Digest) -> Spec:
    """The same as plain data; no trace while no trial has a value."""
    rows = [r for r in facts.rows if r.value is not None and math.isfinite(r.value)]
    domains = facts.problem.space.parameters
    names = [n for n, d in domains.items() if not isinstance(d, Constant)][:_AXES]
    goal = facts.problem.goal
    metric = plotly_text(goal.metric)
    columns = [_dimension(n, domains[n], [r.record.config.get(n) for r in rows]) for n in names]
    worth = _ranks([goal.sign * (r.value or 0.0) for r in rows])
    trace = {
        "type": "parcoords", "ids": [f"trial-{r.record.id}" for r in rows],
        "dimensions": [*columns, _values(metric, [float(r.value or 0.0) for r in rows])],
        "line": {"color": worth, "cmin": 0.0, "cmax": 1.0, "colorscale": _SCALE},
        "customdata": [_said(r, metric) for r in rows],
        "meta": {"hover": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br><span>%{customdata[2]}</span>"},
    }  # fmt: skip
    left = len([n for n, d in domains.items() if not isinstance(d, Constant)]) - len(names)
    more = f" The first {_AXES} parameters." if left else ""
    return {
        "data": [trace] if rows and names else [],
        "layout": layout(
            "Parameters", f"Parallel coordinates of {len(rows)} trials over {', '.join(names)} and {goal.metric}.",
            order=40, wide=True,
            note="A line is a trial, the best in colour. Drag along an axis, or press arrow keys on it, to see only "
            f"the trials there.{more}",
            annotations=[] if rows and names else [nothing("No trial has a value yet" if names else "No parameter")],
        ) | {"margin": {"l": 68, "r": 68, "t": 80, "b": 30}},
    }  # fmt: skip


def _said(row: Row, metric: str) -> list[str]:
    title = f"Trial {row.record.id}: {row.outcome}{row.praise}"
    return [title, f"{metric} {short(row.value)}", plotly_text(settings(row.record.config))]


def _ranks(heights: list[float]) -> list[float]:
    """From 0, the worst, to 1, the best: what diverged must not take all the colours."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    found = [1.0] * len(heights)
    for rank, i in enumerate(order):
        found[i] = rank / (len(heights) - 1) if len(heights) > 1 else 1.0
    return found


def _values(metric: str, values: list[float]) -> dict[str, Any]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    known = sorted(values)
    if len(known) > 9 and low < high:  # what diverged stands at the end of the axis
        near = known[len(known) // 10], known[-1 - len(known) // 10]
        reach = 5.0 * (near[1] - near[0])
        if reach > 0:
            low, high = max(low, near[0] - reach), min(high, near[1] + reach)
    pad = 0.02 * (high - low) or 0.5
    held = [min(max(v, low), high) for v in values]
    return {"label": metric, "values": held, "range": [low - pad, high + pad]}


def _mark(value: float) -> str:
    """As other axes write it: 1e-5."""
    return short(value).replace("e-0", "e-").replace("e+0", "e")


def _dimension(name: str, domain: Any, values: list[Any]) -> dict[str, Any]:
    """An axis; a trial that lacks the parameter stands below it."""
    if isinstance(domain, Choice):
        options = [str(o) for o in domain.options]
        ticks = {str(o): k for k, o in enumerate(options)}
        held: list[float] = [float(ticks.get(str(v), -1)) for v in values]
        low, high = 0.0, float(max(1, len(options) - 1))
        given: dict[str, Any] = {
            "tickvals": [*range(len(options))],
            "ticktext": [plotly_text(o) for o in options],
        }
    elif isinstance(domain, (Float, Int)) and domain.log:
        low, high = (math.log10(v) for v in _ends(domain, values))
        held = [math.log10(v) if v else low - 1 for v in values]
        marks = _decades(low, high)
        given = {"tickvals": [math.log10(m) for m in marks], "ticktext": [_mark(m) for m in marks]}
    else:
        low, high = _ends(domain, values)
        held, given = [float(v) if v is not None else low for v in values], {}
        if isinstance(domain, Int):
            whole = sorted({round(m) for m in np.linspace(low, high, 5)})
            given = {"tickvals": whole, "ticktext": [str(m) for m in whole]}
    if any(v is None for v in values):
        below = low - 0.15 * (high - low or 1.0)
        held = [below if v is None else h for v, h in zip(values, held, strict=True)]
        marks = np.linspace(low, high, 5).tolist()
        told = given or {"tickvals": marks, "ticktext": [short(m, 3) for m in marks]}
        given = {"tickvals": [below, *told["tickvals"]], "ticktext": [_LACKS, *told["ticktext"]]}
        low = below
    pad = 0.02 * (high - low) or 0.5
    return {"label": plotly_text(name), "values": held, "range": [low - pad, high + pad], **given}


def _ends(domain: Any, values: list[Any]) -> tuple[float, float]:
    """Of its range; of the trials' values where a bound depends on another parameter."""
    known = [float(v) for v in values if v is not None] or [1.0]
    low = min(known) if isinstance(domain.low, str) else float(domain.low)
    return low, max(known) if isinstance(domain.high, str) else float(domain.high)


def _decades(low: float, high: float) -> list[float]:
    """Round numbers between two powers of ten, both ends among them."""
    ends = [10.0**low, 10.0**high]
    inner = [10.0**k for k in range(math.ceil(low), math.floor(high) + 1)]
    apart = 0.08 * (high - low)
    kept = [v for v in inner if abs(math.log10(v) - low) > apart and abs(math.log10(v) - high) > apart]
    step = -(-len(kept) // 6) or 1
    return [ends[0], *kept[::step], ends[1]]
