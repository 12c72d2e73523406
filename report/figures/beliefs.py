"""Predictions for configurations: AutoBCT's posterior of score and cost, TruVaR's regions.

The AutoBCT panels are figures 3, 5 and 7 of its paper, in the metric's units and in time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.display import plural, settings, short
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.history import History
from haltune.log.policy import Fold, in_words
from haltune.policies.autobct.policy import TAG, Assessment, AutoBCT, Training
from haltune.policies.truvar.answers import LevelSet, Maximisers
from haltune.policies.truvar.choice import MemberSet
from haltune.study.view import StudyView

from ..digest import need_study
from ..metric_model import line_through

# isort: off
from .drawing import (
    ACCENT, COOL, COOL_SOFT, FAINT, INK, MUTED, PAPER, RULE, Spec, Trace, axis, band, diamonds, drawn, empty, figure,
    middle, on, on_axis, plotly_text, scale_of, time_unit,
)  # fmt: skip

if TYPE_CHECKING:
    import plotly.graph_objects as go

# -- score against cost --------------------------------------------------------------------

_TOO_EARLY = "The first trainings measure the spread of scores and costs. No decision was made yet"
_LINE, _SURFACE = 41, 21  # values of a parameter
_LABELLED = 16  # the most points that are labelled with their numbers
_SCALE = [(0.0, FAINT), (0.5, COOL_SOFT), (1.0, COOL)]  # from the worst to the best, or by probability
_EXPENSIVE = [(0.0, RULE), (1.0, MUTED)]


def posterior(study: StudyView, across: str | None = None) -> go.Figure:
    """Draw AutoBCT's predictions: metric, time of a training, value of another training, and the path of the search.

    The study must use `AutoBCT()`. The first trainings measure the spread of scores and costs; before they end, the
    figure is empty. A space of one parameter is drawn along it, a space of two over both. In larger spaces the figure
    varies the parameter along which the expected metric changes most. The others stay as in the configuration trained
    last, which is the one to keep. The search ends when no training has a higher value than the expected metric of that
    configuration.

    Args:
        study: A Study, or a study opened for reading. It is read up to its newest event.
        across: The parameter on the horizontal axis. Default: None, chosen as above.

    Returns:
        A Plotly figure with four panels.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study, if it uses another policy, or if `across` is not a parameter.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import AutoBCT
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=1)
        >>> study = Study(problem, AutoBCT(max_trainings=3), seed=0, verbose=0)
        >>> study.optimize(lambda trial: trial.report(0.9 / (1 + trial.config["lr"]), seconds=5.0))
        >>> [axis.title.text for axis in posterior(study).select_yaxes()][:2]
        ['acc expected', 'seconds of a training']
    """
    need_study(study).sync()
    if study.policy.part(AutoBCT) is None:
        raise InvalidInput("This search does not compare scores with costs. Use a study with the policy AutoBCT().")
    names = list(study.history.problem.space.columns)
    if across is not None and across not in names:
        raise InvalidInput(
            f"posterior(across={across!r}): no such parameter. Use one of the parameters {', '.join(names)}."
        )
    return drawn(posterior_spec(beliefs_of(study), across))


@dataclass(frozen=True)
class Weighing:
    """The comparison that AutoBCT makes before a training. In scores."""

    going: float  # value of another training
    last: float | None  # expected score of the last configuration; None before the first training

    @property
    def stops(self) -> bool:
        return self.last is not None and self.last >= self.going


@dataclass(frozen=True, eq=False)
class Beliefs:
    """AutoBCT's posterior after the trainings that have ended."""

    history: History
    assessment: Assessment
    worth: Array  # (g,) value of training each control next, in scores; -inf if not computed
    weighed: Mapping[int, Weighing]  # by the number of trainings that had ended, ascending

    @property
    def now(self) -> Weighing:
        return self.weighed[len(self.assessment.done)]

    @property
    def last(self) -> Array:
        done = self.assessment.done
        if not done:
            return np.full(self.history.problem.space.dim, 0.5)
        return np.asarray(self.history.points[done[-1].trials[0]])

    def score(self, points: Array) -> tuple[Array, Array, Array]:
        """Return the metric at points of the cube, (n,) each: expected, and one standard deviation below and above."""
        beliefs = self.assessment.beliefs
        mean, cov = beliefs.score.at(beliefs.on(points))
        sd = np.sqrt(np.maximum(np.diag(cov), 0.0))
        return self.raw(mean), self.raw(mean - sd), self.raw(mean + sd)

    def cost(self, points: Array) -> tuple[Array, Array]:
        """Return a training's expected seconds (or cost) at points of the cube, and their deviation, (n,) each."""
        beliefs, ruler = self.assessment.beliefs, self.assessment.ruler
        mean, cov = beliefs.cost.at(beliefs.on(points))
        return ruler.zero + ruler.unit * mean, ruler.unit * np.sqrt(np.maximum(np.diag(cov), 0.0))

    def raw(self, scores: Any) -> Array:
        return np.array([self.assessment.ruler.raw(float(h)) for h in np.atleast_1d(scores)])


def beliefs_of(study: StudyView) -> Beliefs | None:
    policy = study.policy.part(AutoBCT)
    if policy is None:
        return None
    fold, weighed = Fold(study.history.problem, policy), dict[int, Weighing]()
    for event in study.events():
        fold.take(event)
        if isinstance(event, ev.Started) and "value" in event.evidence and TAG in event.tags:
            weighed[event.tags[TAG]] = Weighing(event.evidence["value"], event.evidence.get("last"))
    with undisturbed, one_thread, undisturbed.heard:  # the same bits as in the search
        history = fold.judged
        assessment = policy.assess(history, fold.state)
        if assessment is None:
            return None
        worth = policy.worth(history.problem, assessment)
    heights = assessment.heights
    weighed[len(heights)] = Weighing(float(worth.max()), heights[-1] if heights else None)
    return Beliefs(history, assessment, worth, weighed)


def posterior_spec(found: Beliefs | None, across: str | None = None) -> Spec:
    names = list(found.history.problem.space.columns) if found else []
    if found is None or not names:
        return empty("Score against cost", _TOO_EARLY, order=11)
    metric, space = found.history.problem.goal.metric, found.history.problem.space
    if across is None and len(names) > 2:  # the one along which the expected metric changes most
        lines = [found.score(line_through(space, name, _SURFACE, found.last)[1])[0] for name in names]
        across = names[int(np.argmax([np.ptp(line) if len(line) else 0.0 for line in lines]))]
    across = across or names[0]
    along = next(n for n in names if n != across) if len(names) == 2 else None
    view, now = _Landscape(found, across, along), found.now
    worth = f"the value of another training is {short(float(found.raw(now.going)[0]))} of {metric}"
    text = f"Before the first training, {worth}."
    if now.last is not None:
        pays = "no better than the" if now.stops else "better than the"
        last = f"expected {short(float(found.raw(now.last)[0]))} of the last configuration"
        text = f"After {plural(len(found.assessment.done), 'training')}, {worth}, {pays} {last}."
    along_one = f"Along {across}, with the other parameters as in the last configuration"
    where = along_one if len(names) > 2 else "For each configuration"
    takes = "cost of a training" if view.unit[1] == "cost" else f"{view.unit[1]} of a training"
    axes: dict[str, Any] = {}
    titles = (f"expected {view.metric}", takes, f"{view.metric} minus the price of a training")
    for n, title in zip(("", "2", "3"), titles, strict=True):
        over = {} if along is None else scale_of(space, along)
        title += "" if along is None else f", over {plotly_text(along)}"
        axes[f"xaxis{n}"] = axis(plotly_text(across), anchor=f"y{n}", **scale_of(space, across))
        axes[f"yaxis{n}"] = axis(title, anchor=f"x{n}", **over)
    first, most = min(found.weighed), max(found.weighed)
    whole = {"dtick": 1} if most <= 12 else {}
    axes["xaxis4"] = axis("trainings", anchor="y4", range=[min(first, 1) - 0.5, most + 0.5], **whole)
    axes["yaxis4"] = axis(f"{view.metric}, observed and predicted", anchor="x4")
    return figure(
        [*view.traces(), *view.path()], "Score against cost", text, order=11, wide=True, height=300,
        note=f"{text} {where}: the expected {view.metric} ± one standard deviation; the {takes}; the value of the "
        "next training after its price. An open circle is a training that costs more than it gains. If all circles "
        "are open, the search ends. Trainings are numbered in their order.",
        **axes,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Landscape:
    """The posterior along one parameter, or over two."""

    found: Beliefs
    across: str
    along: str | None  # None: along one

    @cached_property
    def metric(self) -> str:
        return plotly_text(self.found.history.problem.goal.metric)

    @cached_property
    def numbered(self) -> list[tuple[int, Training]]:
        """The trainings with a value and with the drawn parameters, each with its number."""
        done = enumerate(self.found.assessment.done, 1)
        return [(k, t) for k, t in done if math.isfinite(t.value) and self.there(self.config(t))]

    @cached_property
    def unit(self) -> tuple[float, str]:
        if self.found.assessment.own:
            return 1.0, "cost"
        return time_unit(max((t.seconds for _, t in self.numbered), default=0.0))

    def config(self, training: Training) -> Mapping[str, Any]:
        return self.found.history.trial(training.trials[0]).config

    def there(self, config: Mapping[str, Any]) -> bool:
        return {self.across, self.along} <= {*config, None}

    def traces(self) -> list[Trace]:
        return [*(self._lines() if self.along is None else self._surfaces(self.along)), self._worth()]

    def _lines(self) -> list[Trace]:
        names, points = line_through(self.found.history.problem.space, self.across, _LINE, self.found.last)
        unit, xs = self.unit[0], [on_axis(x) for x in names]
        cost, sd = (v / unit for v in self.found.cost(points))
        traces = []
        for n, (mean, low, high), ys in (
            ("", self.found.score(points), [t.value for _, t in self.numbered]),
            ("2", (cost, cost - sd, cost + sd), [t.seconds / unit for _, t in self.numbered]),
        ):
            if any(isinstance(x, str) for x in xs):
                lines = [diamonds(xs, mean.tolist(), (np.abs(high - low) / 2).tolist())]
            else:
                lines = [band(xs, low.tolist(), high.tolist()), middle(xs, mean.tolist())]
            traces += [{**line, "name": "expected", "showlegend": False, **on(n)} for line in lines]
            traces.append(self._trainings(ys, n))
        if self.found.now.last is not None and xs:  # a training must have a higher value than this
            y = float(self.found.raw(self.found.now.last)[0])
            traces.append({
                "type": "scatter", "mode": "lines", "name": "last configuration", "showlegend": False,
                "hoverinfo": "skip", "x": [xs[0], xs[-1]], "y": [y, y], "line": {"color": INK, "width": 1.5}, **on("3"),
            })  # fmt: skip
        return traces

    def _surfaces(self, along: str) -> list[Trace]:
        space, (unit, word) = self.found.history.problem.space, self.unit
        (xs, right), (ys, up) = (line_through(space, n, _SURFACE, self.found.last) for n in (self.across, along))
        points = np.repeat(right[None], len(up), axis=0)
        points[:, :, space.columns[along]] = up[:, None, space.columns[along]]
        flat = points.reshape(-1, space.dim)
        mean, low, high = self.found.score(flat)
        cost, sd = self.found.cost(flat)
        larger = self.found.history.problem.goal.sign > 0
        better = _SCALE if larger else [(1.0 - at, colour) for at, colour in reversed(_SCALE)]
        places = [on_axis(self.config(t)[along]) for _, t in self.numbered]
        traces: list[Trace] = []
        for n, z, spread, scale, said in (
            ("", mean, np.abs(high - low) / 2, better, f"expected {self.metric} %{{z:.4~g}}"),
            ("2", cost / unit, sd / unit, _EXPENSIVE, f"expected %{{z:.3~g}} {word}"),
        ):
            spreads = spread.reshape(len(ys), -1).tolist()
            traces.append({
                "type": "heatmap", "x": [on_axis(x) for x in xs], "y": [on_axis(y) for y in ys],
                "z": z.reshape(len(ys), -1).tolist(), "colorscale": scale, "showscale": False, "showlegend": False,
                "text": [[f"± {short(s, 2)}" for s in row] for row in spreads],
                "hovertemplate": f"{said}<br>%{{text}}<extra></extra>", **on(n),
            })  # fmt: skip
            traces.append(self._trainings(places, n))
        return traces

    def _trainings(self, ys: Sequence[Any], n: str) -> Trace:
        """Return the trainings at these heights, each with its number; over two parameters also the path between them.

        If several trainings share a point, one label lists their numbers.
        """
        places = [(on_axis(self.config(t)[self.across]), y) for (_, t), y in zip(self.numbered, ys, strict=True)]
        at: dict[tuple[Any, Any], list[int]] = {}
        for (k, _), place in zip(self.numbered, places, strict=True):
            at.setdefault(place, []).append(k)
        texts = [
            ", ".join(map(str, at[place])) if at[place][-1] == k else ""
            for (k, _), place in zip(self.numbered, places, strict=True)
        ]
        walk = {"mode": "lines+markers+text", "line": {"color": INK, "width": 0.8, "dash": "dot"}}
        return {
            **self._seen(), "mode": "markers+text", "cliponaxis": False, **(walk if self.along else {}),
            "x": [x for x, _ in places], "y": [y for _, y in places], "text": texts, "textposition": "top right",
            "showlegend": False, **on(n),
        }  # fmt: skip

    def _seen(self) -> Trace:
        """Return the trainings' marks without positions: the best in colour, and the hover text of each."""
        best = self.found.history.best()
        leads = [best is not None and best.trial in t.trials for _, t in self.numbered]
        return {
            "type": "scatter", "name": "observed", "ids": [f"trial-{t.trials[0]}" for _, t in self.numbered],
            "marker": {"size": 8, "color": [ACCENT if led else INK for led in leads],
                       "line": {"color": PAPER, "width": 1}},
            "customdata": [
                [f"Training {k}, trial {t.trials[0]}", short(t.value), self.found.assessment.span(t.seconds),
                 plotly_text(settings(self.config(t)))]
                for k, t in self.numbered
            ],
            "meta": [self.metric],
            "hovertemplate": "<b>%{customdata[0]}</b><br>%{meta[0]} %{customdata[1]} in %{customdata[2]}"
            "<br>%{customdata[3]}<extra></extra>",
        }  # fmt: skip

    def _worth(self) -> Trace:
        """Return the value of training each control next; if it is no gain, the mark is an open circle."""
        worth, configs = self.found.worth, self.found.assessment.controls.configs
        kept = [i for i in np.flatnonzero(np.isfinite(worth)).tolist() if self.there(configs[i])]
        last = -math.inf if self.found.now.last is None else self.found.now.last
        raw = self.found.raw(worth[kept]).tolist()
        labels = {"mode": "markers+text", "cliponaxis": False, "text": [short(v) for v in raw],
                  "textposition": "top right"}  # fmt: skip
        few = labels if self.along and len(kept) <= _LABELLED else {"mode": "markers"}
        coloured = {"color": worth[kept].tolist(), "colorscale": _SCALE} if self.along else {"color": COOL}
        return {
            "type": "scatter", **few, "name": "value", "x": [on_axis(configs[i][self.across]) for i in kept],
            "y": raw if self.along is None else [on_axis(configs[i][self.along]) for i in kept], "showlegend": False,
            "marker": {"size": 11 if self.along else 6, **coloured,
                       "symbol": ["circle" if worth[i] > last else "circle-open" for i in kept]},
            "customdata": [[short(v), plotly_text(settings(configs[i]))] for i, v in zip(kept, raw, strict=True)],
            "meta": [self.metric],
            "hovertemplate": "value %{customdata[0]} of %{meta[0]}<br>%{customdata[1]}<extra></extra>", **on("3"),
        }  # fmt: skip

    def path(self) -> list[Trace]:
        """Return, by training: the observed value, the value of another training, the last one's expected value."""
        weighed = self.found.weighed
        when = sorted(weighed)
        known = [n for n in when if weighed[n].last is not None]
        going = self.found.raw([weighed[n].going for n in when]).tolist()
        last = self.found.raw([weighed[n].last for n in known]).tolist()
        lines = (
            ("another training", when, going, COOL, "value"),
            ("last configuration", known, last, INK, "expected value"),
        )
        return [
            *(
                {
                    "type": "scatter", "mode": "lines+markers", "name": name, "x": xs, "y": ys, "meta": [self.metric],
                    "line": {"color": colour, "width": 2}, "marker": {"size": 5, "color": colour},
                    "hovertemplate": f"<b>{name}</b>, after %{{x}}<br>{said}: %{{meta[0]}} %{{y:.4~g}}<extra></extra>",
                    **on("4"),
                }
                for name, xs, ys, colour, said in lines
            ),
            {
                **self._seen(), "mode": "markers", "x": [k for k, _ in self.numbered],
                "y": [t.value for _, t in self.numbered], **on("4"),
            },
        ]  # fmt: skip


# -- regions -------------------------------------------------------------------------------

_KINDS = ((False, "settled", "circle"), (True, "undecided", "circle-open"))
_CANDIDATES = [[0.0, COOL_SOFT], [1.0, COOL]]  # probability; drawn over faint points, so not FAINT


def region(found: LevelSet | Maximisers | StudyView, across: str | None = None, along: str | None = None) -> go.Figure:
    """Draw configurations by two parameters (by default the first two), coloured by their probability.

    For a level set this is the probability to reach the threshold. Undecided configurations are open circles; on a
    mesh, a line marks the boundary (probability 0.5). For `maximisers()` it is the probability to be the best;
    configurations that cannot be the best are faint. If configurations differ only in other parameters, the most
    probable one is shown. If the space has one parameter, the figure shows the expected value of each configuration
    ± one standard deviation.

    Args:
        found: The result of `study.level_set()`, `study.level_set(threshold)` or `study.maximisers()`; or a study
            with the policy TruVaR, which is asked for the one that it searches.
        across: The parameter on the horizontal axis. Default: None, the first.
        along: The parameter on the vertical axis. Default: None, the second if there are two.

    Returns:
        A Plotly figure.

    Raises:
        InvalidInput: If the names are not two of the parameters, or if the study uses another policy.
        ImportError: If Plotly is not installed.

    Example:
        See examples/08_levelset_lightning.py::

            region(study.level_set(), "width", "dropout").write_html("region.html")
    """
    spec = region_spec(answer_of(found) if isinstance(found, StudyView) else found, across, along)
    drawing = drawn(spec)
    drawing.update_layout(title={"text": spec["layout"]["meta"]["title"]}, width=760, height=560)
    return drawing


def answer_of(study: StudyView) -> LevelSet | Maximisers:
    """Return the set that the study's policy searches. Raises InvalidInput if there is none, or not enough data yet."""
    searches = study.policy.part(MemberSet)
    if searches is None:
        raise InvalidInput(
            f"region(study) needs the policy TruVaR; this study uses {in_words(study.policy)}. Use "
            "region(study.level_set(0.9)) for the configurations that reach 0.9, or region(study.maximisers()) for "
            "those that may be the best."
        )
    return study.level_set() if searches.sets else study.maximisers()


def region_spec(found: LevelSet | Maximisers, across: str | None = None, along: str | None = None) -> Spec:
    """Return `region` as plain data. Raises InvalidInput if the names are not two of the parameters."""
    names = [name for name in found.space.parameters if name in found.space.columns]
    if not {across, along} <= {*names, None} or (across is not None and across == along):
        raise InvalidInput(
            f"region({across!r}, {along!r}): these are not two parameters. "
            f"Use two of the parameters {', '.join(names)}."
        )
    if not names:
        raise InvalidInput("The space has no parameter that varies, so there is no region to draw.")
    across = across or next((name for name in names if name != along), names[0])
    along = next((name for name in ([along, *names] if along else names) if name != across), None)
    best: dict[tuple[Any, Any], int] = {}  # the most probable configuration at each point
    for i in np.argsort(found.probability, kind="stable").tolist():
        config = found.configs[i]
        if {across, along} <= {*config, None}:
            best[(config[across], config[along] if along else None)] = i
    shown = sorted(best.values())
    axes: dict[str, Any] = {
        f"{name}axis": axis(plotly_text(of or found.metric), **{"exponentformat": "power", **_scale_of(found, of)})
        for name, of in (("x", across), ("y", along))
    }
    axes["legend"] = {"orientation": "h", "y": -0.18, "font": {"color": MUTED}}
    if isinstance(found, Maximisers):
        count = plural(len(found.configs), "configuration")
        text = f"{count} of {len(found.configs) + len(found.others)} may be the best"
        close = f"the first is within {found.epsilon_at(0.95):.2g} of the best"
        note = f"{text}; the others are faint. With probability 0.95, {close}. Blue: higher probability to be the best."
        alt = f"{text}; with probability 0.95, {close}."
        data = _candidates(found, across, along, shown)
        return figure(data, "What may be the best", alt, order=5, wide=True, note=note, **axes)
    traces = [] if along is None else _boundary(found, across, along)
    bounded, every = bool(traces), range(len(found.configs)) if along is None else shown
    for open_, name, symbol in _KINDS:
        traces.append(_points(found, across, along, [i for i in every if found.open[i] == open_], name, symbol))
    others = len(set(found.space.columns) - {across, along})
    more = f", at the most probable {'value' if others == 1 else 'values'} of {plural(others, 'other parameter')}"
    line = {"type": "line", "xref": "x domain", "x0": 0.0, "x1": 1.0, "y0": found.threshold, "y1": found.threshold,
            "line": {"color": INK, "width": 2}}  # fmt: skip
    counts = f"{len(found.high)} configurations reach it, {len(found.low)} do not, {len(found.undecided)} are undecided"
    note = f"{counts} (open circles)."
    note += " Blue: higher probability to reach it." if along else " The line is the threshold."
    note += " On the line the probability is 0.5." * bounded
    side = "at least" if found.larger else "at most"
    return figure(
        traces, f"Where {plotly_text(found.metric)} is {side} {found.threshold:.4g}{more * bool(others)}", f"{counts}.",
        order=5, wide=True, note=note, shapes=[] if along else [line], **axes,
    )  # fmt: skip


def _boundary(found: LevelSet, across: str, along: str) -> list[Trace]:
    places = (on_axis(config[name]) for config in found.configs for name in (across, along) if name in config)
    if any(isinstance(place, str) for place in places):
        return []  # no line lies between options, which have no order
    xs, ys, field = found.boundary(across, along)
    if not field.size or np.isnan(field).any() or min(field.shape) < 2:
        return []
    return [{
        "type": "contour", "x": xs.tolist(), "y": ys.tolist(), "z": np.round(field, 4).tolist(), "showscale": False,
        "contours": {"start": 0.5, "end": 0.5, "size": 1, "coloring": "none"}, "name": "boundary",
        "showlegend": False, "line": {"color": INK, "width": 2}, "hoverinfo": "skip",
    }]  # fmt: skip


def _candidates(found: Maximisers, across: str, along: str | None, shown: list[int]) -> list[Trace]:
    everyone = zip(found.others, found.others_mean, strict=True)
    there = [(config, mean) for config, mean in everyone if {across, along} <= {*config, None}]
    cannot = {
        "type": "scatter", "mode": "markers", "name": "not the best", "showlegend": bool(there), "hoverinfo": "skip",
        "x": [on_axis(config[across]) for config, _ in there],
        "y": [on_axis(config[along]) if along else float(mean) for config, mean in there],
        "marker": {"size": 4, "color": MUTED, "opacity": 0.5},
    }  # fmt: skip
    return [cannot, _points(found, across, along, shown, "may be the best", "circle")]


def _points(
    found: LevelSet | Maximisers, across: str, along: str | None, chosen: list[int], name: str, symbol: str
) -> Trace:
    hollow, best = symbol.endswith("open"), isinstance(found, Maximisers)
    bars = {"array": found.sd[chosen].tolist(), "color": MUTED, "thickness": 1, "width": 0}
    return {
        "type": "scatter", "x": [on_axis(found.configs[i][across]) for i in chosen],
        "y": [on_axis(found.configs[i][along]) if along else float(found.mean[i]) for i in chosen],
        "mode": "markers", "name": name, "showlegend": bool(chosen),
        "marker": {
            "color": found.probability[chosen].tolist(), "cmin": 0.0,
            "cmax": float(found.probability.max(initial=1e-9)) if best else 1.0,
            "colorscale": _CANDIDATES if best else _SCALE, "symbol": symbol, "size": 8,
            "line": {"width": 2.0 if hollow else 0.5, **({} if hollow else {"color": MUTED})},
            "colorbar": {"title": "P(is the best)" if best else "P(reaches it)", "thickness": 12},
            "showscale": not hollow,
        },
        "customdata": np.stack([found.probability, found.mean, found.sd], axis=1)[chosen].tolist(),
        "hovertemplate": "P = %{customdata[0]:.2f}, %{customdata[1]:.4g} ± %{customdata[2]:.2g}<extra></extra>",
        **({} if along else {"error_y": bars}),
    }  # fmt: skip


def _scale_of(found: LevelSet | Maximisers, name: str | None) -> dict[str, Any]:
    """Return `scale_of`, but with plain numbers if a logarithmic axis spans less than two decades."""
    usual = {} if name is None else scale_of(found.space, name)
    if name is None or usual.get("type") != "log":
        return usual
    others = found.others if isinstance(found, Maximisers) else ()
    values = [config[name] for config in (*found.configs, *others) if name in config]
    low, high = min(values), max(values)
    if high >= 100 * low:
        return usual
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**k for k in decades for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
