"""Which parameters matter, and how the metric is expected to change along them: by the model of the search."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from haltune._utils.checks import LARGEST
from haltune._utils.words import plural, short
from haltune.policies.multifidelity.final_values import FEWEST_TRIALS

from ..digest import Digest, Row, Source, digest
from ..metric_model import Importance, MetricModel, Slice
from ..palette import ACCENT, COOL, COOL_SOFT, INK, MUTED, PAPER
from ..sample import MOST_TRIALS
from .drawing import Spec, axis, drawn, layout, nothing, on_axis, plotly_text, scale_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SLICES = 6  # parameters
TOO_FEW = f"At least {FEWEST_TRIALS} trials with different values tell it"


def importance(study: Source) -> go.Figure:
    """How much of the differences between configurations each parameter has a part in.

    Total effects (Sobol') over the whole space, of full trainings as the Gaussian process of the search predicts them
    from every report; the lines are 80% intervals.

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
        >>> space = Space({"lr": Float(0.01, 1.0), "seed": Float(0.0, 1.0)})
        >>> problem = Problem(space, Minimize("loss"), max_epochs=1)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=8))
        >>> for trial in study:
        ...     with trial:
        ...         _ = trial.report(trial.config["lr"])
        >>> importance(study).data[0].y[-1]
        'lr'
    """
    history = digest(study, 0).history
    return drawn(importance_spec(MetricModel.of(history)))


def slices(study: Source) -> go.Figure:
    """The metric expected along each of the most important parameters, with the others averaged, and its 90% interval.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Returns:
        A figure of Plotly's, a panel a parameter, at most six.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study.

    Example:
        See docs/guide.md::

            slices(study)
    """
    facts = digest(study, MOST_TRIALS)
    model = MetricModel.of(facts.history)
    names = model.importance().names[:_SLICES] if model else ()
    return drawn(slices_spec(facts, model, names))


def importance_spec(model: MetricModel | None, found: Importance | None = None) -> Spec:
    """`importance` as plain data."""
    found = found or (model.importance() if model else None)
    if model is None or found is None:
        return {"data": [], "layout": layout("Importance", TOO_FEW, order=30, annotations=[nothing(TOO_FEW)])}
    names = [plotly_text(n) for n in reversed(found.names)]
    mean, low, high = (v[::-1] for v in (found.mean, found.low, found.high))
    bars = {
        "type": "bar", "orientation": "h", "name": "importance", "y": names, "x": mean.tolist(),
        "marker": {"color": COOL},
        "customdata": [[a, b] for a, b in zip(low.tolist(), high.tolist(), strict=True)],
        "hovertemplate": "<b>%{y}</b><br>%{x:.0%} of the differences"
        "<br>80% interval: %{customdata[0]:.0%} to %{customdata[1]:.0%}<extra></extra>",
    }  # fmt: skip
    spans = [
        {"type": "line", "x0": a, "x1": b, "y0": n, "y1": n, "line": {"color": INK, "width": 2}, "layer": "above"}
        for n, a, b in zip(names, low.tolist(), high.tolist(), strict=True)
    ]  # fmt: skip
    most = found.names[0]
    return {
        "data": [bars],
        "layout": layout(
            "Importance", f"{most} matters most: {found.mean[0]:.0%} of the differences between configurations.",
            order=30,
            note="The share of the differences that a parameter takes part in: total effects in the Gaussian process "
            f"of {plural(model.trials, 'trial')}. The lines are 80% intervals.",
            height=70 + 34 * len(names), tall=True, shapes=spans, showlegend=False,
            xaxis=axis(range=[0.0, 1.0], tickformat=".0%", tickvals=[0, 0.25, 0.5, 0.75, 1.0],
                       ticktext=["0%", "25%", "50%", "75%", "100%"]),
            yaxis=axis(type="category", automargin=True),
        ) | {"margin": {"l": 140, "r": 24, "t": 20, "b": 40}},
    }  # fmt: skip


def slices_spec(facts: Digest, model: MetricModel | None, names: tuple[str, ...]) -> Spec:
    """`slices` as plain data, a pair of axes a parameter."""
    metric = plotly_text(facts.problem.goal.metric)
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for k, name in enumerate(names if model else ()):
        number = "" if k == 0 else str(k + 1)
        assert model is not None
        traces = _slice(facts, model.slice(name), name, metric)
        data += [{**t, "xaxis": f"x{number}", "yaxis": f"y{number}", "showlegend": False} for t in traces]
        axes[f"xaxis{number}"] = axis(
            plotly_text(name), anchor=f"y{number}", **scale_of(facts.problem.space, name)
        )
        axes[f"yaxis{number}"] = axis(
            metric if k == 0 else "", anchor=f"x{number}", range=_metric_range(facts)
        )
    return {
        "data": data,
        "layout": layout(
            "Slices", f"The {facts.problem.goal.metric} expected along {', '.join(names) or 'no parameter yet'}.",
            order=60, wide=True,
            note="The metric expected of a full training along one parameter, with the others averaged, and its 90% "
            "interval. Where the band is wide, the trials do not show the metric. Dots are trials; an open one was "
            f"stopped, and stands at its last value.{floor_of(model)}",
            annotations=[] if data else [nothing(TOO_FEW)], **axes,
        ),
    }  # fmt: skip


def floor_of(model: MetricModel | None) -> str:
    """The sentence about values that are so bad that they count as alike."""
    if model is None or model.floor is None:
        return ""
    return f" Values worse than {short(model.floor, 3)} count as {short(model.floor, 3)}."


def _slice(facts: Digest, found: Slice, name: str, metric: str) -> list[dict[str, Any]]:
    xs = list(found.values)
    low, mean, high = found.low.tolist(), found.mean.tolist(), found.high.tolist()
    said = "expected %{y:.4~g}<extra></extra>"
    if any(isinstance(v, (str, bool)) or v is None for v in xs):
        xs = [plotly_text(v) for v in xs]  # as the dots are
        sd = [abs(h - m) for h, m in zip(high, mean, strict=True)]
        middle = {
            "type": "scatter", "mode": "markers", "x": xs, "y": mean, "hovertemplate": said,
            "marker": {"symbol": "diamond", "size": 10, "color": COOL},
            "error_y": {"array": sd, "color": COOL, "thickness": 2, "width": 0},
        }  # fmt: skip
        return [trial_dots(facts, name, None, metric), middle]
    band = {
        "type": "scatter", "mode": "lines", "x": [*xs, *reversed(xs)], "y": [*high, *reversed(low)], "fill": "toself",
        "fillcolor": COOL_SOFT, "line": {"width": 0, "color": COOL_SOFT}, "opacity": 0.6, "hoverinfo": "skip",
    }  # fmt: skip
    middle = {"type": "scatter", "mode": "lines", "x": xs, "y": mean, "line": {"color": COOL, "width": 2}}
    return [band, trial_dots(facts, name, None, metric), {**middle, "hovertemplate": said}]


def trial_dots(facts: Digest, across: str, along: str | None, metric: str) -> dict[str, Any]:
    """The trials, by one parameter and their value or by two parameters: None where a trial has no value for one."""
    rows = [r for r in facts.rows if r.value is not None and math.isfinite(r.value)]
    if along is None:
        rows = [r for r in rows if r.record.config.get(across) is not None]
    symbols = ["circle" if r.record.complete or along else "circle-open" for r in rows]
    return {
        "type": "scatter", "mode": "markers", "name": "a trial", "ids": [f"trial-{r.record.id}" for r in rows],
        "x": [place_of(r, across) for r in rows],
        "y": [r.value if along is None else place_of(r, along) for r in rows],
        "marker": {
            "symbol": symbols, "size": 6, "color": [ACCENT if r.leads else INK if along else MUTED for r in rows],
            **({"line": {"color": PAPER, "width": 1}} if along else {}),
        },
        "customdata": [[r.record.id, r.outcome, short(r.value)] for r in rows], "meta": [metric],
        "hovertemplate": "<b>Trial %{customdata[0]}</b>: %{customdata[1]}"
        "<br>%{meta[0]} %{customdata[2]}<extra></extra>",
    }  # fmt: skip


def place_of(row: Row, name: str) -> Any:
    """Where a trial stands on the axis of a parameter; None where it has none."""
    value = row.record.config.get(name)
    return None if value is None else on_axis(value)


def _metric_range(facts: Digest) -> list[float] | None:
    """Where the better nine tenths of the values are."""
    values = sorted(r.value for r in facts.rows if r.value is not None and abs(r.value) <= LARGEST)
    if len(values) < 2 or values[0] == values[-1]:
        return None
    cut = len(values) // 10
    low, high = (values[cut], values[-1]) if facts.problem.goal.sign > 0 else (values[0], values[-1 - cut])
    pad = 0.08 * (high - low) or abs(high) * 0.05 or 1.0
    return [low - pad, high + pad]
