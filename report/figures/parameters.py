"""Figures of parameters: importance, the expected metric along one or two parameters, and parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune.display import plural, settings, short
from haltune.errors import InvalidInput
from haltune.models.final_values import FEWEST_TRIALS
from haltune.space.domains import Choice, Constant, Int

from ..digest import MOST_TRIALS, Digest, Row, Source, digest, shown_trials
from ..metric_model import Importance, Map, MetricModel, Slice

# isort: off
from .drawing import (
    ACCENT, COOL, COOL_SOFT, FAINT, INK, MUTED, PAPER, RULE, SHARES, Spec, Trace, axis, band, diamonds, drawn, empty,
    explained, figure, first_view, middle, nothing, on, on_axis, padded, plotly_text, scale_of, trial_ids, valued,
)  # fmt: skip

if TYPE_CHECKING:
    import plotly.graph_objects as go

SLICES = 6  # parameters
_TOO_FEW = f"This needs at least {FEWEST_TRIALS} trials with different values"
_PARAMETERS = 5  # each two of them are a pair: ten pairs
_LEVELS = 12  # values of each parameter; ten pairs must take at most half a second
_DOTS = 200  # the most trials shown if there are several pairs
_HEAT: list[tuple[float, str]] = [(0.0, RULE), (0.5, COOL_SOFT), (1.0, COOL)]  # the worst, between, the best
_AXES = 12  # the most parameters with an axis
_NAMED = 5  # the most trials named whose value is beyond its axis
_TICKS = 20  # the most options named on an axis: more would overlap
_LINES = [[0.0, FAINT], [0.6, MUTED], [1.0, ACCENT]]  # the worst, most, the best
_ABSENT = object()  # in place of a value, where a trial lacks the parameter


def importance(study: Source) -> go.Figure:
    """Draw the importance of each parameter: its share in the differences of the metric between configurations.

    Importance is the total effect (Sobol') over the whole space. It is computed from the final values of full
    trainings, predicted by the Gaussian process of the search from all reports. The lines are 80% intervals.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.

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
    return drawn(importance_spec(MetricModel.of(digest(study, 0).judged)))


def importance_spec(model: MetricModel | None, found: Importance | None = None) -> Spec:
    if model is None:
        return empty("Importance", _TOO_FEW, order=30)
    found = found or model.importance()
    names = [plotly_text(n) for n in reversed(found.names)]
    mean, low, high = (v[::-1].tolist() for v in (found.mean, found.low, found.high))
    bars = {
        "type": "bar", "orientation": "h", "name": "importance", "y": names, "x": mean, "marker": {"color": COOL},
        "customdata": [[a, b] for a, b in zip(low, high, strict=True)],
        "hovertemplate": "<b>%{y}</b><br>%{x:.0%} of the differences"
        "<br>80% interval: %{customdata[0]:.0%} to %{customdata[1]:.0%}<extra></extra>",
    }  # fmt: skip
    spans = [
        {"type": "line", "x0": a, "x1": b, "y0": n, "y1": n, "line": {"color": INK, "width": 2}, "layer": "above"}
        for n, a, b in zip(names, low, high, strict=True)
    ]  # fmt: skip
    return figure(
        [bars], "Importance",
        f"{found.names[0]} matters most: {found.mean[0]:.0%} of the differences in {model.metric}.",
        order=30,
        note=f"The share of the differences in {model.metric} between configurations that involves this parameter "
        f"(total effects, {plural(model.trials, 'trial')}). Lines are 80% intervals.",
        height=70 + 34 * len(names), tall=True, shapes=spans, showlegend=False,
        xaxis=axis(range=[0.0, 1.0], **SHARES), yaxis=axis(type="category", automargin=True),
        margin={"l": 140, "r": 24, "t": 20, "b": 40},
    )  # fmt: skip


def slices(study: Source) -> go.Figure:
    """Draw the expected metric along each of the six most important parameters, averaged over the others.

    Bands are 90% intervals. The page leaves out a parameter if a constant fits within its band.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.
    """
    facts = digest(study, MOST_TRIALS)
    model = MetricModel.of(facts.judged)
    return drawn(slices_spec(facts, model, model.importance().names[:SLICES] if model else ()))


def slices_spec(facts: Digest, model: MetricModel | None, names: tuple[str, ...], known: bool = False) -> Spec:
    """Return `slices` as plain data. known: whether to leave out parameters whose effect is not known."""
    metric = plotly_text(facts.problem.goal.metric)
    shown = first_view([row.value for row in valued(facts)], facts.problem.goal.sign)
    data: list[Trace] = []
    axes: dict[str, Any] = {}
    found = {name: model.slice(name) for name in names} if model else {}
    names = tuple(name for name in found if not (known and _is_flat(found[name])))
    for k, name in enumerate(names):
        n = "" if k == 0 else str(k + 1)
        data += [{**t, **on(n), "showlegend": False} for t in _slice(facts, found[name], name, metric)]
        axes[f"xaxis{n}"] = axis(plotly_text(name), anchor=f"y{n}", **scale_of(facts.problem.space, name))
        axes[f"yaxis{n}"] = axis(metric if k == 0 else "", anchor=f"x{n}", range=shown)
    return figure(
        data, "Slices", f"The expected {facts.problem.goal.metric} along {', '.join(names) or 'no parameter yet'}.",
        order=60, wide=len(names) > 2,
        note="The expected value of a full training along one parameter, averaged over the others, with its 90% "
        f"interval.{' A parameter is left out if a constant fits within its band.' * known} Where the band is "
        f"wide, the estimate is uncertain. Open dots are trials that stopped or paused.{_floor(model)}",
        annotations=[] if data else [nothing(_TOO_FEW)], **axes,
    )  # fmt: skip


def _floor(model: MetricModel | None) -> str:
    """Return the sentence about very bad values, which all count as the same value."""
    if model is None or model.floor is None:
        return ""
    return f" Values worse than {short(model.floor, 3)} count as {short(model.floor, 3)}."


def _is_flat(found: Slice) -> bool:
    """Return whether a constant fits within the whole band, so that the effect of the parameter is not known."""
    return bool(np.nanmax(found.low) <= np.nanmin(found.high))


def _slice(facts: Digest, found: Slice, name: str, metric: str) -> list[Trace]:
    xs, low, mean, high = list(found.values), found.low.tolist(), found.mean.tolist(), found.high.tolist()
    dots = trial_dots(facts, name, None, metric)
    if any(isinstance(on_axis(v), str) for v in xs):
        reach = [abs(h - m) for h, m in zip(high, mean, strict=True)]
        return [dots, diamonds([plotly_text(v) for v in xs], mean, reach)]
    return [band(xs, low, high), dots, middle(xs, mean)]


def trial_dots(facts: Digest, across: str, along: str | None, metric: str) -> Trace:
    """Return the trials by one parameter and their value, or by two parameters; None if a trial lacks one."""
    rows = valued(facts)
    if along is None:
        rows = [r for r in rows if across in r.record.config]
    return {
        "type": "scatter", "mode": "markers", "name": "a trial",
        "x": [_place(r, across) for r in rows],
        "y": [r.value if along is None else _place(r, along) for r in rows],
        "marker": {
            "symbol": ["circle" if r.record.complete or along else "circle-open" for r in rows], "size": 6,
            "color": [ACCENT if r.leads else INK if along else MUTED for r in rows],
            **({"line": {"color": PAPER, "width": 1}} if along else {}),
        },
        **explained(rows, metric),
    }  # fmt: skip


def _place(row: Row, name: str) -> Any:
    """Return a trial's coordinate on the axis of a parameter; None if it lacks the parameter."""
    return on_axis(row.record.config[name]) if name in row.record.config else None


# -- two parameters ------------------------------------------------------------------------


def contour(study: Source, across: str | None = None, along: str | None = None) -> go.Figure:
    """Draw the expected metric over two parameters, averaged over the others, and the trials.

    If you give no names, a menu offers every pair of the five most important parameters.

    Args:
        study: A Study, or its history. A study is read up to its newest event.
        across: The parameter on the horizontal axis. Default: None, chosen by importance.
        along: The parameter on the vertical axis. Default: None, chosen by importance.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study, or if the names are not two of its parameters.
    """
    facts = digest(study, MOST_TRIALS)
    known = list(facts.problem.space.columns)
    given = [name for name in (across, along) if name is not None]
    if not set(given) <= set(known) or len(set(given)) < len(given):
        raise InvalidInput(
            f"contour({across!r}, {along!r}): these are not two parameters. "
            f"Use two of the parameters {', '.join(known)}."
        )
    model = MetricModel.of(facts.judged)
    ranked = model.importance().names if model else tuple(known)
    if not given:
        return drawn(contour_spec(facts, model, ranked))
    other = next((name for name in ranked if name not in given), None)
    return drawn(contour_spec(facts, model, [across or other, along or other]))


def contour_spec(facts: Digest, model: MetricModel | None, names: Sequence[str | None], least: float = 0.0) -> Spec:
    """Return `contour` as plain data: the pairs of the first few of these parameters, in their order.

    least: the share of a map's cells that must be known, below which the pair is left out.
    """
    title, known = "Two parameters", [name for name in names[:_PARAMETERS] if name is not None]
    pairs = list(combinations(known, 2))
    if len(pairs) > 1 and len(facts.rows) > _DOTS:  # each pair repeats all dots
        shown = set(shown_trials(facts.history, _DOTS))
        facts = replace(facts, rows=tuple(row for row in facts.rows if row.record.id in shown))
    if model is None or not pairs:
        alone = model is not None and len(known) < 2
        return empty(title, "The space has only one parameter" if alone else _TOO_FEW, order=35)
    maps = {pair: model.contour(*pair, _LEVELS) for pair in _pairs(facts, known)}
    maps = {pair: found for pair, found in maps.items() if found.known.mean() >= least}
    buttons = [_pair(facts, found, *pair) for pair, found in maps.items()]
    if not buttons:
        none = f"No trial with a value has both {' and '.join(pairs[0])}"
        return empty(title, plotly_text(none), order=35)
    first = buttons[0]["args"][0]
    goal, metric = facts.problem.goal, plotly_text(facts.problem.goal.metric)
    heat = {
        "type": "heatmap", "x": first["x"][0], "y": first["y"][0], "z": first["z"][0], "text": first["text"][0],
        "colorscale": _HEAT if goal.sign > 0 else [(1 - at, colour) for at, colour in reversed(_HEAT)],
        "showscale": False, "name": "expected", "meta": [metric],
        "hovertemplate": "expected %{meta[0]} %{z:.4~g}<br>90% interval: %{text}<extra></extra>",
    }  # fmt: skip
    across, along = next(iter(maps))
    return _over_two(
        facts, [heat, trial_dots(facts, across, along, metric)], title, 35, across, along, buttons,
        f"The expected {goal.metric} of a full training, averaged over the other parameters; blue is better."
        f"{' The most important pair is first.' * (len(buttons) > 1)} An empty cell is not known, or has no "
        f"value.{_floor(model)}",
    )  # fmt: skip


def _pairs(facts: Digest, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of these parameters of which a trial with a value has both."""
    having = [{name for name in names if _place(row, name) is not None} for row in valued(facts)]
    return [pair for pair in combinations(names, 2) if any(has >= {*pair} for has in having)]


def _over_two(
    facts: Digest, data: list[Trace], title: str, order: int, across: str, along: str, buttons: list[dict[str, Any]],
    note: str,
) -> Spec:  # fmt: skip
    """Return a figure over two parameters, with a menu of pairs. buttons: the pair shown is first."""
    menu = {"type": "dropdown", "name": "two parameters", "buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02,
            "yanchor": "bottom"}  # fmt: skip
    return figure(
        data, title, buttons[0]["args"][1]["meta.alt"], order=order, showlegend=False, note=note,
        xaxis=axis(plotly_text(across), **scale_of(facts.problem.space, across)),
        yaxis=axis(plotly_text(along), **scale_of(facts.problem.space, along)),
        updatemenus=[menu] if len(buttons) > 1 else [],
    )  # fmt: skip


def _axis_of(facts: Digest, which: str, name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return what a button changes of the x or y axis for a parameter with these values."""
    kind = "category" if any(isinstance(value, str) for value in values) else "linear"
    found = {"type": kind, "categoryarray": None, "dtick": None, **scale_of(facts.problem.space, name)}
    return {f"{which}axis.{key}": value for key, value in {**found, "title.text": plotly_text(name)}.items()}


def _pair(facts: Digest, found: Map, across: str, along: str) -> dict[str, Any]:
    """Return the button that shows a pair of parameters: its map, its dots and its axes."""
    rows = valued(facts)
    shown = np.where(found.known, found.mean, np.nan).tolist()
    ends = zip(found.low.tolist(), found.high.tolist(), strict=True)
    changed: dict[str, Any] = {}
    laid: dict[str, Any] = {"meta.alt": f"The expected {facts.problem.goal.metric} over {across} and {along}."}
    for which, name, values in (("x", across, found.across), ("y", along, found.along)):
        cells = [on_axis(value) for value in values]
        changed[which] = cells, [_place(r, name) for r in rows]
        laid |= _axis_of(facts, which, name, cells) | {f"{which}axis.autorange": True}
    changed["z"] = [[[float(f"{z:.4g}") if math.isfinite(z) else None for z in row] for row in shown]]
    changed["text"] = [[[f"{short(a, 3)} to {short(b, 3)}" for a, b in zip(*row, strict=True)] for row in ends]]
    return {"label": plotly_text(f"{across} and {along}"), "method": "update", "args": [changed, laid]}


# -- ranks -----------------------------------------------------------------------------------


def rank(study: Source) -> go.Figure:
    """Draw the trials over two parameters, in colours from the worst to the best. It needs no model.

    A menu offers every pair of the five most important parameters.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> space = Space({"lr": Float(0.01, 1.0), "decay": Float(0.0, 1.0)})
        >>> study = Study(Problem(space, Minimize("loss"), max_epochs=1), RandomSearch(), seed=0, budget="3 trials")
        >>> for trial in study:
        ...     with trial:
        ...         _ = trial.report(trial.config["lr"])
        >>> list(rank(study).data[0].marker.color)
        [0.0, 0.5, 1.0]
    """
    facts = digest(study, MOST_TRIALS)
    model = MetricModel.of(facts.judged)
    return drawn(rank_spec(facts, model.importance().names if model else ()))


def rank_spec(facts: Digest, names: Sequence[str] = ()) -> Spec:
    """Return `rank` as plain data. names: parameters, the most important first; by default those of the space."""
    goal, metric = facts.problem.goal, plotly_text(facts.problem.goal.metric)
    rows = sorted(valued(facts), key=lambda row: goal.sign * float(row.value or 0.0))  # the best is drawn last
    pairs = _pairs(facts, [*(names or facts.problem.space.columns)][:_PARAMETERS])
    if not pairs or len(rows) < 2:
        return empty("Ranks", "This needs two parameters, and two trials with a value", order=37)
    places = {name: [_place(row, name) for row in rows] for pair in pairs for name in pair}
    buttons: list[dict[str, Any]] = []
    for across, along in pairs:
        laid: dict[str, Any] = {"meta.alt": f"The trials over {across} and {along}, in colours of their rank."}
        for which, name in (("x", across), ("y", along)):
            laid |= _axis_of(facts, which, name, places[name])
        ordered = {"x": [places[across]], "y": [places[along]]}
        buttons.append({"label": plotly_text(f"{across} and {along}"), "method": "update", "args": [ordered, laid]})
    across, along = pairs[0]
    dots = {
        "type": "scatter", "mode": "markers", "name": "a trial", "x": places[across], "y": places[along],
        "marker": {"size": 9, "color": np.linspace(0.0, 1.0, len(rows)).tolist(), "cmin": 0.0, "cmax": 1.0,
                   "symbol": ["circle" if r.record.complete else "circle-open" for r in rows],
                   "colorscale": _LINES},
        **explained(rows, metric),
    }  # fmt: skip
    return _over_two(
        facts, [dots], "Ranks", 37, across, along, buttons,
        f"Colour is the rank by {goal.metric}: the best trial orange, the worst pale. Open dots stopped or paused.",
    )  # fmt: skip


# -- parallel coordinates ------------------------------------------------------------------


def parallel(study: Source) -> go.Figure:
    """Draw every trial with a value as a line through its parameters. Drag along an axis to select trials.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.

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
    rows, domains, goal = valued(facts), facts.problem.space.whole.parameters, facts.problem.goal
    varying = [n for n, d in domains.items() if not isinstance(d, Constant)]
    names, metric = varying[:_AXES], plotly_text(goal.metric)
    values = [float(r.value or 0.0) for r in rows]
    rank = [1.0] * len(rows)  # from 0 (worst) to 1 (best): ranks, so that diverged trials do not take all colours
    for k, i in enumerate(sorted(range(len(rows)), key=lambda i: goal.sign * values[i])):
        rank[i] = k / (len(rows) - 1) if len(rows) > 1 else 1.0
    low, high = first_view(values, goal.sign) or [0.0, 1.0]
    held = [min(max(v, low), high) for v in values]  # diverged values are drawn at the end of the axis
    away = [f"trial {r.record.id}" for r, v, h in zip(rows, values, held, strict=True) if v != h]
    more = f" and {plural(len(away) - _NAMED, 'other')}" if len(away) > _NAMED else ""
    worse = f" Worse than the axis of {goal.metric} reaches: {', '.join(away[:_NAMED])}{more}."
    ends = {"label": metric, "values": held, "range": [low, high]}
    columns = [_dimension(n, domains[n], [r.record.config.get(n, _ABSENT) for r in rows]) for n in names]
    trace = {
        "type": "parcoords", "ids": trial_ids(rows), "dimensions": [*columns, ends],
        "line": {"color": rank, "cmin": 0.0, "cmax": 1.0, "colorscale": _LINES},
        "customdata": [
            [f"Trial {r.record.id}: {r.outcome}{r.praise}", f"{metric} {short(r.value)}",
             plotly_text(settings(r.record.config))]
            for r in rows
        ],
        "meta": {"hover": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br><span>%{customdata[2]}</span>"},
    }  # fmt: skip
    return figure(
        [trace] if rows and names else [], "Parameters",
        f"Parallel coordinates of {plural(len(rows), 'trial')}: {', '.join(names)} and {goal.metric}.",
        order=40, wide=len(names) > 4,
        note="Each line is a trial, the best in colour. To filter the page, drag along an axis or press arrow keys "
        f"on it.{f' The first {_AXES} parameters are shown.' * (len(varying) > len(names))}{worse * bool(away)}",
        annotations=[] if rows and names else [nothing("No trial has a value yet" if names else "No parameter")],
        margin={"l": 68, "r": 68, "t": 80, "b": 30},
    )  # fmt: skip


def _dimension(name: str, domain: Any, values: list[Any]) -> dict[str, Any]:
    """Return an axis. Trials that lack the parameter are drawn below it."""
    given: dict[str, Any] = {}
    if isinstance(domain, Choice):
        options = [str(o) for o in domain.options]
        ticks = {o: k for k, o in enumerate(options)}
        held: list[float] = [float(ticks.get(str(v), -1)) for v in values]
        low, high = 0.0, float(max(1, len(options) - 1))
        named = range(0, len(options), -(-len(options) // _TICKS))
        given = {"tickvals": [*named], "ticktext": [plotly_text(options[k]) for k in named]}
    else:  # a bound depends on another parameter: use the range of the trials' values
        known = [float(v) for v in values if v is not _ABSENT] or [1.0]
        low = min(known) if isinstance(domain.low, str) else float(domain.low)
        high = max(known) if isinstance(domain.high, str) else float(domain.high)
        if log := domain.log:
            low, high = math.log10(low), math.log10(high)
            marks = _decades(low, high)
            texts = [short(m).replace("e-0", "e-").replace("e+0", "e") for m in marks]  # 1e-5, as on other axes
            given = {"tickvals": [math.log10(m) for m in marks], "ticktext": texts}
        elif isinstance(domain, Int):
            whole = sorted({round(m) for m in np.linspace(low, high, 5)})
            given = {"tickvals": whole, "ticktext": [str(m) for m in whole]}
        held = [low if v is _ABSENT else math.log10(v) if log else float(v) for v in values]
    if _ABSENT in values:
        below = low - 0.15 * (high - low or 1.0)
        held = [below if v is _ABSENT else h for v, h in zip(values, held, strict=True)]
        marks = np.linspace(low, high, 5).tolist()
        given = given or {"tickvals": marks, "ticktext": [short(m, 3) for m in marks]}
        given = {"tickvals": [below, *given["tickvals"]], "ticktext": ["none", *given["ticktext"]]}
        low = below
    return {"label": plotly_text(name), "values": held, "range": padded(low, high, 0.02, 0.5), **given}


def _decades(low: float, high: float) -> list[float]:
    """Return round numbers between two powers of ten, both ends included."""
    inner = [10.0**k for k in range(math.ceil(low), math.floor(high) + 1)]
    apart = 0.08 * (high - low)
    kept = [v for v in inner if abs(math.log10(v) - low) > apart and abs(math.log10(v) - high) > apart]
    return [10.0**low, *kept[:: -(-len(kept) // 6) or 1], 10.0**high]
