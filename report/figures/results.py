"""Figures of results and costs: best so far, final values, Pareto front, other metrics, budget, workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from haltune._utils.process import named
from haltune.display import amount, counted, duration, plural, settings, several_of, short
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.folds import over_folds, places
from haltune.log.outcomes import saved_epochs
from haltune.log.problem import Budget, Problem
from haltune.log.spending import Spent
from haltune.study.view import StudyView

from ..digest import MOST_TRIALS, Digest, Row, Source, digest, evenly, story_of
from ..story import Cost, Story, Stretch

# isort: off
from .drawing import (
    ACCENT, COOL, COOL_SOFT, FAINT, GROUP_STYLES, INK, MUTED, RULE, SHARES, SOFT, GroupStyle, Spec, Trace,
    at_point, axis, drawn, explained, figure, first_view, nothing, on, plotly_text, positions, time_unit, trial_ids,
    valued,
)  # fmt: skip

if TYPE_CHECKING:
    import plotly.graph_objects as go

# -- the best so far -----------------------------------------------------------------------

_MOST_STEPS = 2000  # the most steps drawn


def progress(study: StudyView) -> go.Figure:
    """Draw the best value so far against trained epochs; buttons switch to time or cost.

    A large dot is a trial that became the study's best. The line is the best value of these so far. It
    never falls, except at the first trial that satisfies all constraints.

    Args:
        study: A Study, or a study opened for reading. It is read up to its newest event.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study, or if it has several goals (use `front`).

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             _ = trial.report(trial.config["lr"] / epoch)
        >>> [round(float(y), 3) for y in progress(study).data[0].y]
        [0.891, 0.445, 0.425, 0.425]
    """
    story = story_of(study)
    if study.history.problem.further:
        raise InvalidInput("progress(study) draws one goal, and this study has several. Use front(study).")
    return drawn(progress_spec(story, digest(study, MOST_TRIALS)))


class Measure(NamedTuple):
    """A quantity for the horizontal axis of progress."""

    title: str
    label: str  # of the button
    at: Callable[[Cost], float]  # cost -> x


def measures(units: str | None, seconds: float, costs: bool) -> list[Measure]:
    """Return the quantities that are known. units: what is trained, such as epochs; seconds: of the whole axis."""
    unit, name = time_unit(seconds)
    return [
        *([Measure(f"{units} trained", units, lambda c: c.epochs)] if units else []),
        Measure(f"{name} since the first trial", "time", lambda c: c.seconds / unit),
        *([Measure("cost", "cost", lambda c: c.cost)] if costs else []),
    ]


def switches(views: Sequence[Measure], xs: Sequence[Any]) -> dict[str, Any]:
    """Return the buttons that switch between quantities. xs: the positions of all traces, for each quantity."""
    buttons = [
        {"label": view.label, "method": "update", "args": [{"x": x}, {"xaxis.title.text": view.title}]}
        for view, x in zip(views, xs, strict=True)
    ]
    return {"type": "buttons", "direction": "right", "buttons": buttons}


def progress_spec(story: Story, facts: Digest) -> Spec:
    goal, best, steps, problem = facts.problem.goal, facts.best, story.steps, facts.problem
    metric = plotly_text(goal.final)
    if len(steps) > _MOST_STEPS:  # keep changes of the leader, and evenly spaced others
        led = [i for i in range(1, len(steps)) if steps[i].trial != steps[i - 1].trial]
        spread = evenly(len(steps), _MOST_STEPS // 2).tolist()
        steps = [steps[i] for i in sorted({0, len(steps) - 1, *spread, *led[-(_MOST_STEPS // 2) :]})]
    taken = [s for i, s in enumerate(steps) if i in (0, len(steps) - 1) or s.trial != steps[i - 1].trial]
    now = [Cost(epochs=story.epochs, seconds=story.now - story.begun, cost=story.cost)] if steps else []
    costs: list[Cost] = [*steps, *now]
    views = measures(problem.units, max((c.seconds for c in costs), default=0.0), bool(story.cost))
    came = [row for row in _ended(facts) if row.record.id in story.ends]
    if goal.rank_by is not None:
        ranked = (replace(row, value=row.record.results(problem)[goal.rank_by]) for row in came)
        came = [row for row in ranked if math.isfinite(_value(row))]
    groups = [story.ends[row.record.id] for row in came], costs, taken  # the small dots, the line, the large dots
    xs = [[[view.at(c) for c in group] for group in groups] for view in views]
    small, along, large = xs[0]
    ys: list[float] = []  # the first complete trial may be worse than its leader, but not one within the limits
    for s, before in zip(steps, [None, *steps], strict=False):
        same = before is not None and s.beyond == before.beyond
        ys.append(goal.sign * max(goal.sign * float(s.value), goal.sign * ys[-1]) if same else float(s.value))
    ys += ys[-1:]
    line = {
        "type": "scatter", "mode": "lines", "name": "best so far", "showlegend": False, "x": along, "y": ys,
        "line": {"color": INK, "width": 2, "shape": "hv"}, "hoverinfo": "skip",
    }  # fmt: skip
    leads = [best is not None and s.trial == best.trial for s in taken]
    dots = {
        "type": "scatter", "mode": "markers", "name": "a new leader", "x": large, "y": [s.value for s in taken],
        "ids": [f"trial-{s.trial}" for s in taken], "meta": [metric],
        "marker": {"size": 7, "color": [ACCENT if led else MUTED for led in leads]},
        "customdata": [
            [f"Trial {s.trial}", f"after {problem.amount(s.epochs)} of all trials, {duration(s.seconds)}"]
            for s in taken
        ],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{meta[0]} %{y:.4~g}<br>%{customdata[1]}<extra></extra>",
    }  # fmt: skip
    results = {
        "type": "scatter", "mode": "markers", "name": "a trial", "x": small, "y": [_value(row) for row in came],
        **explained(came, metric),
        "marker": {"size": 5, "color": SOFT,
                   "symbol": ["circle" if row.record.complete else "circle-open" for row in came]},
    }  # fmt: skip
    sentence = "No value yet."
    if steps:
        changes = sum(a.trial != b.trial for a, b in pairwise(steps))
        first = f"; the first was {short(steps[0].value)}, and the leader changed {plural(changes, 'time')}"
        sentence = f"The best {metric} is {short(steps[-1].value)}, found after {problem.amount(steps[-1].epochs)}"
        sentence += f"{first * (changes > 0)}."
    return figure(
        [results, line, dots] if steps else [], "Best so far", sentence, order=20, showlegend=False,
        note="The line is the best value of the leading trials so far. A large dot marks a new leading trial; once "
        "a trial is complete, only complete ones lead. Small dots are final values; open dots stopped or paused.",
        logs=bool(steps) and min(ys) > 0,
        xaxis=axis(views[0].title, rangemode="tozero"),
        yaxis=axis(metric, range=first_view([*ys, *map(_value, came)], goal.sign)),
        annotations=[] if steps else [nothing(f"No trial has reported a finite {metric} yet")],
        updatemenus=[switches(views, xs)] if steps else [],
    )  # fmt: skip


def _ended(facts: Digest) -> list[Row]:
    return [row for row in valued(facts) if row.record.status is not Status.RUNNING]


def _value(row: Row) -> float:
    return math.nan if row.value is None else row.value


# -- final values --------------------------------------------------------------------------


def edf(study: Source) -> go.Figure:
    """Draw the empirical distribution of final values (EDF): the share of trials with at most this value.

    One line shows all trials that ended with a value; stopped trials count with their last value. If there are stopped
    trials, a second line shows the others. If larger is better, the line of the better of two searches is further
    right.

    Args:
        study: A Study, or its history. A study is read up to its newest event. If it has several goals, the first is
            drawn.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=1)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=4))
        >>> for trial in study:
        ...     with trial:
        ...         _ = trial.report(trial.config["lr"])
        >>> list(edf(study).data[0].y)
        [0.25, 0.5, 0.75, 1.0]
    """
    return drawn(edf_spec(digest(study, MOST_TRIALS)))


def edf_spec(facts: Digest) -> Spec:
    goal, metric = facts.problem.goal, plotly_text(facts.problem.goal.metric)
    came = sorted(_ended(facts), key=_value)  # the shown ones: a dot each, at its share of all trials
    ended = [(t.result(goal), t.complete) for t in facts.history.trials if t.status is not Status.RUNNING]
    values = sorted(value for value, _ in ended if math.isfinite(value))
    full = sorted(value for value, complete in ended if complete and math.isfinite(value))
    groups = [(came, values, "all trials", SOFT, "dot")] if len(full) < len(values) else []
    groups += [([row for row in came if row.record.complete], full, "trained in full", INK, "solid")] if full else []
    lines = [
        {
            "type": "scatter", "mode": "lines+markers", "name": name, "x": [_value(row) for row in rows],
            "y": (np.searchsorted(every, [_value(row) for row in rows], side="right") / len(every)).tolist(),
            **explained(rows, metric),
            "line": {"color": colour, "width": 2, "shape": "hv", "dash": dash}, "marker": {"size": 4, "color": colour},
        }
        for rows, every, name, colour, dash in groups
    ]  # fmt: skip
    sentence = "No trial has ended with a finite value yet"
    if values:
        heights = goal.sign * np.array(values)
        half, tenth = (short(float(goal.sign * np.quantile(heights, q, method="lower"))) for q in (0.5, 0.9))
        trials = f"{plural(len(values), 'trial')} have a final {goal.metric} of {half}"
        sentence = f"Half of {trials} or better, the best tenth {tenth} or better" if values[0] < values[-1] else trials
    cut = "; stopped trials count with their last value" * (len(lines) > 1)
    return figure(
        lines, "Final values", f"{sentence}.", order=26, note=f"The share of trials with at most this value{cut}.",
        annotations=[] if values else [nothing(sentence)],
        xaxis=axis(metric, range=first_view(values, goal.sign)),
        yaxis=axis("share of trials", range=[0.0, 1.03], **SHARES),
    )  # fmt: skip


# -- several goals -------------------------------------------------------------------------


def front(study: Source) -> go.Figure:
    """Draw each trial's final value in the first goal against each other goal; the Pareto front is in colour.

    Args:
        study: A Study for several goals, or its history. A study is read up to its newest event.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study, or if it has one goal.

    Example:
        >>> from haltune import Float, Maximize, Minimize, Study
        >>> goals = [Maximize("acc"), Minimize("ms")]
        >>> study = Study({"width": Float(1, 9)}, goals, max_epochs=1, seed=0, budget="4 trials")
        >>> for trial in study:
        ...     width = trial.config["width"]
        ...     verdict = trial.report({"acc": 1 - 1 / width, "ms": 3 * width})
        >>> [trace.name for trace in front(study).data]
        ['other trials', 'the front']
    """
    facts = digest(study, MOST_TRIALS)
    if not facts.problem.further:
        raise InvalidInput(
            f"front(study) draws several goals, and this study has one, {facts.problem.goal.metric}. "
            "Use progress(study)."
        )
    return drawn(front_spec(facts))


def front_spec(facts: Digest) -> Spec:
    first, *others = facts.problem.goals
    names = [goal.metric for goal in facts.problem.goals]
    came = [(row, row.record.results(facts.problem)) for row in facts.rows]
    found = [(row, results) for row, results in came if all(math.isfinite(results[name]) for name in names)]
    data: list[Trace] = []
    axes: dict[str, Any] = {}
    for k, other in enumerate(others):
        number = "" if k == 0 else str(k + 1)
        leading = sorted((p for p in found if p[0].leads), key=lambda p: p[1][other.metric])
        rest = [p for p in found if not p[0].leads]
        for name, kept, colour, size in (
            ("not trained in full", [p for p in rest if not p[0].record.complete], FAINT, 6),
            ("other trials", [p for p in rest if p[0].record.complete], MUTED, 6),
            ("the front", leading, ACCENT, 9),
        ):
            joined = name == "the front" and not others[1:]
            data += [{
                "type": "scatter", "mode": "lines+markers" if joined else "markers", "name": name,
                "showlegend": k == 0, "legendgroup": name, "x": [results[other.metric] for _, results in kept],
                "y": [results[first.metric] for _, results in kept], **on(number),
                "ids": trial_ids([row for row, _ in kept]), "marker": {"size": size, "color": colour},
                **({"line": {"color": ACCENT, "width": 1}} if joined else {}),
                "customdata": [
                    [f"Trial {row.record.id}: {row.outcome}{row.praise}",
                     ", ".join(f"{plotly_text(metric)} {short(value)}" for metric, value in results.items()),
                     plotly_text(settings(row.record.config))]
                    for row, results in kept
                ],
                "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
            }] * bool(kept)  # fmt: skip
        for which, goal, at in (("x", other, "y"), ("y", first, "x")):
            title = f"{plotly_text(goal.metric)} ({'larger' if goal.sign > 0 else 'smaller'} is better)"
            axes[f"{which}axis{number}"] = axis(title, **({"anchor": f"{at}{number}"} if number else {}))
    which = "Trials that were not trained in full, or that violate a constraint, are not on the front."
    if not all(facts.history.complete(run.trial) and not facts.history.beyond(run.trial) for run in facts.front):
        which = "No trial was trained in full within the limits yet. The front has those that came nearest."
    return figure(
        data, "Goals against each other", f"{plural(len(facts.front), 'trial')} on the Pareto front of "
        f"{plotly_text(' against '.join(names))}.", order=5, wide=True,
        note="Each point is a trial at its last report. No trial is better in all goals than a trial on the front. "
        + which,
        annotations=[] if found else [nothing("No trial has a value in every goal yet")],
        **axes,
    )  # fmt: skip


# -- other metrics -------------------------------------------------------------------------

_PANELS = 6  # metrics
_TRIALS = 40  # the best
_POINTS = 100  # of a curve
_NO_METRIC = "No trial has reported another metric"


def metrics(study: Source) -> go.Figure:
    """Draw the curves of the other metrics that trials reported, each on its own axes.

    The figure shows the first six metrics of the best 40 trials and of the running trials.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.
    """
    return drawn(metrics_spec(digest(study, MOST_TRIALS)))


def metrics_spec(facts: Digest) -> Spec:
    rank = {id: n for n, id in enumerate(id for group in facts.history.ranked() for id in group)}
    rows = sorted(facts.rows, key=lambda row: rank.get(row.record.id, len(rank)))
    rows = [row for n, row in enumerate(rows) if n < _TRIALS or row.record.status is Status.RUNNING]
    own = facts.problem.goal.metric  # callbacks record all logged metrics, this one included
    known = list(dict.fromkeys(name for row in rows for name in places(row.record.metrics) if name != own))
    names = [name for name in known if any(len(_points(row, name)) for row in rows)]
    data: list[Trace] = []
    axes: dict[str, Any] = {}
    linear: dict[str, Any] = {}
    logarithmic: dict[str, Any] = {}
    for k, name in enumerate(names[:_PANELS], 2):
        having = [  # in drawing order, the best on top
            (style, row, _points(row, name))
            for group, style in GROUP_STYLES.items()
            for row in rows
            if row.group == group and len(_points(row, name))
        ]
        data += [_metric_curve(facts.problem, row, style, name, at, k) for style, row, at in having]
        values = np.concatenate([row.record.metrics[name][at] for _, row, at in having])
        axes[f"xaxis{k}"] = positions(facts.problem, anchor=f"y{k}")
        axes[f"yaxis{k}"] = axis(plotly_text(name), anchor=f"x{k}", range=first_view(values))
        if (values > 0.0).all():
            linear |= {f"yaxis{k}.type": "linear", f"yaxis{k}.range": first_view(values)}
            logarithmic |= {f"yaxis{k}.type": "log", f"yaxis{k}.range": first_view(np.log10(values))}
    buttons = [
        {"label": label, "method": "update", "args": [{}, change]}
        for label, change in (("linear", linear), ("log", logarithmic))
    ]
    place = {"x": 1, "y": 1.12, "xanchor": "right"}
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, **place}
    some = len(rows) < len(facts.rows)
    of = f"of the best {_TRIALS} trials and of running ones" if some else "of all trials"
    more = len(names) - _PANELS
    left = f"; `haltune export` has {plural(more, 'more metric')}" if more > 0 else ""
    some_over_folds = any(over_folds(row.record.metrics) for row in rows)
    folds = " Metrics named fold_ have the values of each single fold, one fold after the other." * some_over_folds
    shown = f"The curves of {', '.join(names[:_PANELS])} of {plural(len(rows), 'trial')}"
    sentence = f"{shown if names else _NO_METRIC}."
    return figure(
        data, "Other metrics", sentence, order=18, wide=True, height=280, showlegend=False,
        note=f"Other metrics that were reported, {of}{left}. Each line is a trial.{folds}" if names else "",
        annotations=[] if names else [nothing(_NO_METRIC)], updatemenus=[menu] if linear else [], **axes,
    )  # fmt: skip


def _points(row: Row, name: str) -> NDArray[np.int64]:
    column = row.record.metrics.get(name)
    found = np.arange(0) if column is None else np.flatnonzero(np.isfinite(column))
    if len(found) <= _POINTS:
        return found
    return np.unique(np.concatenate([found[:1], found[evenly(len(found), _POINTS)], found[-1:]]))


def _metric_curve(problem: Problem, row: Row, style: GroupStyle, name: str, at: NDArray[np.int64], k: int) -> Trace:
    return {
        "type": "scatter", "mode": "lines" if len(at) > 1 else "markers",
        "uid": f"trial-{row.record.id}", "name": f"trial {row.record.id}",
        "x": row.record.epochs[at].tolist(), "y": row.record.metrics[name][at].tolist(), **on(k), "showlegend": False,
        "line": {"color": style.line, "width": style.width, "dash": style.dash},
        "marker": {"color": style.line, "size": 5},
        "meta": [plotly_text(name), f"Trial {row.record.id}: {row.outcome}"],
        "hovertemplate": f"<b>%{{meta[1]}}</b><br>{at_point(problem)}<extra></extra>",
    }  # fmt: skip


# -- the budget ----------------------------------------------------------------------------

_ROOM = 10  # bars: with fewer, each stays as wide as with this many
_BARS = 150  # the most bars; with more trials, a bar is the mean of several


def budget(study: Source) -> go.Figure:
    """Draw how much of each limit of the budget is spent, and the trained and the saved epochs of each trial.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=4, epochs=6), verbose=0)
        >>> study.optimize(lambda trial: [trial.report(trial.config["lr"]) for _ in trial.epochs()])
        >>> [a.text for a in budget(study).layout.annotations]
        ['6 of 6 epochs', '3 of 4 trials']
    """
    return drawn(budget_spec(digest(study, MOST_TRIALS)))


def budget_spec(facts: Digest) -> Spec:
    problem = facts.problem
    known = limits(facts.history.wishes.extended(facts.history.recorded), facts.history.spent)
    bars = _epoch_bars(facts)
    data: list[Trace] = []
    axes: dict[str, Any] = {}
    if known:
        most = max(1.0, *(share for share, _ in known))
        data.append({
            "type": "bar", "orientation": "h", "name": "spent", "y": [words for _, words in known],
            "x": [share for share, _ in known], "marker": {"color": COOL_SOFT}, "width": 0.8,
            "hovertemplate": "<b>%{y}</b><br>%{x:.0%} spent<extra></extra>",
        })  # fmt: skip
        axes |= {
            "xaxis": axis("", range=[0.0, 1.04 * most], tickvals=[0, 0.5, 1], ticktext=["0", "half", "all"],
                          anchor="y"),
            "yaxis": axis("", type="category", showticklabels=False, tickvals=[], anchor="x"),
        }  # fmt: skip
    if bars:
        n = "2" if known else ""
        data += [{**t, **on(n)} for t in bars]
        across = [0.4, max(len(bars[0]["x"]), _ROOM) + 0.6]
        axes[f"xaxis{n}"] = axis(f"trials, sorted by {problem.units}", anchor=f"y{n}", tickvals=[], range=across)
        axes[f"yaxis{n}"] = axis(problem.units, anchor=f"x{n}", rangemode="tozero")
    texts = [  # on the bars, because they are too long for the axis
        {"x": 0.0, "y": words, "text": words, "showarrow": False, "xanchor": "left", "xshift": 8,
         "font": {"color": INK, "size": 13}}
        for _, words in reversed(known)
    ]  # fmt: skip
    savings, spent = facts.savings, ", ".join(words for _, words in known)
    full = facts.counts.get("completed", 0)
    got = f"{problem.amount(facts.trained)} trained in {plural(facts.trials, 'trial')}, {full} in full"
    saved = f"; {savings.most}{problem.amount(savings.epochs)} saved" * bool(savings.epochs)
    light = f" Light: {problem.units} that stopping saved." * bool(savings.epochs)
    return figure(
        data, "Budget", f"{f'Spent: {spent}. ' if spent else ''}{got}{saved}.", order=25, showlegend=False,
        barmode="overlay", heights={"x": 44 + 36 * len(known)} if known and bars else None,
        note=f"{'How much of each limit is spent, and the' if known else 'The'} {problem.units} of each trial, "
        f"sorted from the longest.{light}",
        annotations=texts if data else [nothing("No trial has started yet")],
        **axes,
    )  # fmt: skip


def limits(budget: Budget, spent: Spent) -> list[tuple[float, str]]:
    """Return (spent share, words) of each given limit, the least spent first."""
    given = (
        (budget.trials, spent.trials, "trials"),
        (budget.epochs, spent.epochs, several_of(spent.unit)),
        (budget.trials_without_gain, spent.trials_without_gain, "trials without gain"),
        (budget.time, spent.time, "time"),
        (budget.worker_time, spent.worker_time, "worker time"),
        (budget.money, spent.money(budget.price), "money"),
        (budget.cost, spent.cost, "cost"),
    )
    found = []
    for limit, so_far, unit in given:
        if limit is not None and math.isfinite(whole := float(limit)):
            said = duration if unit.endswith("time") else lambda number: counted(round(number, 2))
            name = (
                amount(round(whole, 2), unit).split(" ", 1)[1] if unit in ("trials", several_of(spent.unit)) else unit
            )
            words = f"{said(so_far)} of {said(whole)} {name}"
            if unit == "trials" and so_far > whole:  # the budget was larger when they started
                words = f"{plural(so_far, 'trial')} (budget: {said(whole)})"
            found.append((so_far / whole, words))
    return sorted(found)


def _epoch_bars(facts: Digest) -> list[Trace]:
    """Return bars of the trials' epochs, the longest first, and the saved epochs on top of them."""
    problem, over, shown = facts.problem, facts.comparisons.over, {row.record.id: row for row in facts.rows}
    trials = sorted(facts.history.trials, key=lambda t: (-t.epoch, t.id))
    if not any(t.epoch for t in trials):
        return []
    each = math.ceil(len(trials) / _BARS)
    groups = [trials[i : i + each] for i in range(0, len(trials), each)]
    got = [float(np.mean([t.epoch for t in group])) for group in groups]
    saved = [float(np.mean([saved_epochs(t, problem, over) for t in group])) for group in groups]
    labels, colours = [], []
    for group, g, s in zip(groups, got, saved, strict=True):
        first, several = group[0], len(group) > 1
        title = f"Trial {first.id}: {shown[first.id].outcome}" if each == 1 else plural(len(group), "trial")
        saving = f", {problem.amount(s)} saved" if s else ""
        labels.append([title, f"{problem.amount(g)}{' each, on average' * several}{saving}"])
        plain = MUTED if first.complete and each == 1 else COOL
        colours.append(ACCENT if any(t.id in shown and shown[t.id].leads for t in group) else plain)
    bar = {
        "type": "bar", "x": [i + 1 for i in range(len(groups))], "width": 0.86,
        "ids": [f"trial-{group[0].id}" if each == 1 else "" for group in groups], "customdata": labels,
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    }  # fmt: skip
    return [
        {**bar, "name": "trained", "y": got, "marker": {"color": colours}},
        {**bar, "name": "saved", "y": saved, "base": got, "marker": {"color": RULE}},
    ]


# -- workers -------------------------------------------------------------------------------

_MOST_STRETCHES = 3000  # the most bars drawn, the newest
_OUTCOMES = {  # how an attempt ended -> words, colour
    "running": ("running", COOL), "completed": ("completed", MUTED), "stopped": ("stopped early", FAINT),
    "paused": ("paused", COOL_SOFT), "failed": ("failed", ACCENT), "interrupted": ("interrupted", SOFT),
    "lost": ("its worker was lost", ACCENT),
}  # fmt: skip
_PARTS = {  # of the workers' time
    "training": "training", "validation": "validation", "checkpoint": "saving", "deciding": "deciding",
    "other": "start-up and other", "lost": "lost", "idle": "idle",
}  # fmt: skip
_Line = tuple[str, int]  # (holder, index among its simultaneous trials)


def timeline(study: StudyView) -> go.Figure:
    """Draw the workers: a row for each worker, a bar for each stretch of training, and the shares of the time.

    Args:
        study: A Study, or a study opened for reading. It is read up to its newest event.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.
    """
    return drawn(timeline_spec(story_of(study)))


def timeline_spec(story: Story) -> Spec:
    stretches, problem = story.stretches[-_MOST_STRETCHES:], story.problem
    workers = _lines(stretches)
    names = _names(list(workers))
    name_of = {id(s): names[line] for line, mine in workers.items() for s in mine}
    span = (story.now - story.begun) if stretches else 0.0
    unit, word = time_unit(span)
    data = []
    for outcome, (words, colour) in _OUTCOMES.items():
        mine = [s for s in stretches if s.outcome == outcome]
        if mine or outcome == "running":  # always present, so that a live page needs a smaller patch
            data.append({
                "type": "bar", "orientation": "h", "name": words, "y": [name_of[id(s)] for s in mine],
                "base": [(s.start - story.begun) / unit for s in mine], "x": [(s.end - s.start) / unit for s in mine],
                "marker": {"color": colour, "line": {"width": 0}}, "width": 0.7, "showlegend": bool(mine),
                "ids": [f"trial-{s.trial}" for s in mine], "customdata": [_explained(problem, s, words) for s in mine],
                "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
            })  # fmt: skip
    shared = f": {', '.join(percents)}" if (percents := _percent(story)) else ""
    left = len(story.stretches) > _MOST_STRETCHES
    more = f" The newest {_MOST_STRETCHES:,} of {len(story.stretches):,} are shown." if left else ""
    return figure(
        data,
        "Workers", f"{plural(len(workers), 'worker')}{f' in {duration(span)}' * (span >= 0.05)}{shared}.", order=80,
        wide=len(workers) > 3,
        note=f"Each bar is an attempt at a trial{shared and f'. Shares of the time{shared}'}.{more}",
        height=96 + 26 * max(1, len(workers)), tall=True, barmode="overlay", bargap=0.3,
        annotations=[] if stretches else [nothing("No trial has started yet")],
        xaxis=axis(f"{word} since the first trial", range=[0.0, (span or 1.0) / unit * 1.01]),
        yaxis=axis(type="category", autorange="reversed", automargin=True, categoryarray=list(names.values())),
        margin={"l": 140, "r": 24, "t": 46, "b": 56},
    )  # fmt: skip


def _lines(stretches: list[Stretch]) -> dict[_Line, list[Stretch]]:
    """Return the stretches of each worker.

    A launcher holds the trials of all its workers. So a holder has as many lines as it had simultaneous stretches, and
    a stretch takes the line that was free for the shortest time.
    """
    lines: dict[_Line, list[Stretch]] = {}
    free: dict[str, list[float]] = {}  # holder -> the time from which each of its lines is free
    for s in sorted(stretches, key=lambda s: s.start):
        mine = free.setdefault(s.worker, [])
        at = max((i for i, end in enumerate(mine) if end <= s.start), key=lambda i: mine[i], default=len(mine))
        mine[at : at + 1] = [math.inf if s.outcome == "running" else s.end]
        lines.setdefault((s.worker, at), []).append(s)
    return lines


def shares(story: Story) -> dict[str, float]:
    """Return the seconds of the workers' time by use; idle counts from a worker's first start to its last end."""
    found = dict.fromkeys(_PARTS, 0.0)
    for mine in _lines(story.stretches).values():
        end = mine[0].start
        for s in mine:
            found["deciding"] += s.choosing
            found["idle"] += max(0.0, s.start - end - s.choosing)
            end = max(end, s.end)
            if s.outcome == "lost":
                found["lost"] += s.end - s.start
                continue
            found["training"] += s.training
            found["validation"] += s.validation
            found["checkpoint"] += s.checkpoint
            found["deciding"] += s.judging
            found["other"] += s.other
    return found


def _percent(story: Story) -> list[str]:
    """Return the shares in percent, the largest first; they add up to 100."""
    found = shares(story)
    whole = math.fsum(found.values())
    if not whole:
        return []
    exact = {name: 100.0 * seconds / whole for name, seconds in found.items()}
    percent = {name: math.floor(share) for name, share in exact.items()}
    cut = sorted(exact, key=lambda name: percent[name] - exact[name])  # those that rounding reduced most come first
    for name in cut[: 100 - sum(percent.values())]:
        percent[name] += 1
    return [
        f"{_PARTS[name]} {percent[name]}%" for name in sorted(percent, key=lambda name: -exact[name]) if percent[name]
    ]


def _names(lines: list[_Line]) -> dict[_Line, str]:
    """Return a distinct name for each line, with a number if needed."""
    holders = [holder for holder, _ in lines]
    alike = [named(holder) for holder in dict.fromkeys(holders)]
    found = {}
    for number, (holder, at) in enumerate(lines, 1):
        same = alike.count(named(holder)) > 1
        name = f"{plotly_text(named(holder))}{f' ({number})' * same}"
        found[holder, at] = name if same or holders.count(holder) == 1 else f"{name}, {at + 1}"
    return found


def _explained(problem: Problem, s: Stretch, words: str) -> list[str]:
    parts = [
        (s.training, "training"), (s.validation, "validation"), (s.checkpoint, "saving"), (s.judging, "deciding"),
        (s.slept, "asleep"), (s.other, "start-up and other"),
    ]  # fmt: skip
    sentence = ", ".join(f"{duration(seconds)} {word}" for seconds, word in parts if seconds >= 0.05)
    before = f", after {duration(s.choosing)} deciding" if s.choosing >= 0.05 else ""
    took = f"{problem.amount(s.epochs)} in {duration(s.end - s.start)}{before}"
    attempt = f", attempt {s.attempt}" if s.attempt > 1 else ""
    return [f"Trial {s.trial}{attempt}: {words}", f"{took}: {sentence}" if sentence else took]
