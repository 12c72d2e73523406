"""What running and paused curves may still become: bands drawn from simulated paths, as optimal stopping sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.records import TrialRecord
from haltune.log.scores import Scale, measured
from haltune.policies.bobos.halting import errors_of, reference_curves, reference_trials
from haltune.policies.bobos.optimal_stopping import OptimalStopping

from ..digest import Digest
from ..palette import COOL, COOL_SOFT
from .drawing import plotly_text

_MOST_CURVES = 8  # curves
_PATHS = 400
_FINEST = 60  # epochs that a forecast tells apart
_BAND = (0.1, 0.5, 0.9)
_ROOM = 0.1  # below a curve that is worse than all others: at the worst error it would be taken for one that sleeps


@dataclass(frozen=True)
class Forecast:
    """What a curve may come to, in the metric's units; the first of each is the last that was seen."""

    trial: int
    epochs: tuple[float, ...]
    low: tuple[float, ...]  # one path in ten is below
    middle: tuple[float, ...]
    high: tuple[float, ...]


@dataclass
class Forecasts:
    """Forecasts of a search, each kept until its trial reports again."""

    _made: dict[int, tuple[object, Forecast | None]] = field(default_factory=dict)

    def of(self, facts: Digest) -> list[Forecast]:
        """Of the best eight that run or are paused, the best first; none without a horizon."""
        if facts.over or facts.problem.max_epochs is None:
            return []
        sign = facts.problem.goal.sign
        going = [r for r in facts.rows if r.record.status in (Status.RUNNING, Status.PAUSED) and r.ending]
        going.sort(key=lambda r: -sign * (r.ending or (0.0, 0.0))[1])
        found = [self._of(facts.history, row.record) for row in going[:_MOST_CURVES]]
        return [f for f in found if f is not None]

    def _of(self, history: History, record: TrialRecord) -> Forecast | None:
        said = (record.attempt, record.epoch)
        if record.id not in self._made or self._made[record.id][0] != said:
            self._made[record.id] = (said, forecast(history, record))
        return self._made[record.id][1]


def forecast(history: History, record: TrialRecord) -> Forecast | None:
    """What the rest of a curve may be, by its own beginning and the runs beside it; None where nothing tells."""
    end, scale = history.problem.max_epochs or 0, _scale(history, record)
    stride = math.ceil(end / _FINEST)
    horizon, before = divmod(end, stride) if end else (0, 0)
    steps = slice(before + stride - 1, None, stride)
    if scale is None or scale.high == scale.low:
        return None
    peaks = history.problem.goal.of == "best"
    errors = errors_of(record, peaks, scale)[0][steps]
    if not 1 <= len(errors) < horizon:
        return None
    others = reference_curves(reference_trials(history, record), peaks, scale, horizon, steps)
    if history.problem.goal.bounds is None and not others.beyond(len(errors)):
        return None  # how high curves go is not known
    rng = np.random.default_rng([history.seed, record.id, len(errors)])
    paths = OptimalStopping().paths_of(errors, horizon, _PATHS, rng, others)
    ends = np.quantile(paths.values, _BAND, axis=1)
    last = float(scale.raw(1.0 - errors[-1]))
    bands = np.column_stack([np.full(3, last), np.sort(scale.raw(1.0 - ends), axis=0)])
    epochs = before + stride * np.arange(len(errors), horizon + 1.0)
    low, middle, high = (tuple(band) for band in bands.tolist())
    return Forecast(record.id, tuple(epochs.tolist()), low, middle, high)


def _scale(history: History, record: TrialRecord) -> Scale | None:
    """By what is known now, and wide enough for the curve; None where its last value is no number.

    The one that its run is judged on is older: what rose since would be cut off at its top.
    """
    scale = history.learnt_scale() or history.scale_of(record.id)
    seen = history.problem.goal.sign * measured(record.values[record.whole])
    if scale is None or not len(seen) or math.isnan(last := float(seen[-1])):
        return None
    return scale if last >= scale.low else replace(scale, low=last - _ROOM * (scale.high - last))


def bands(forecasts: list[Forecast], metric: str) -> list[dict[str, Any]]:
    """A band and its middle for each, the best on top, below all curves."""
    traces: list[dict[str, Any]] = []
    for f in reversed(forecasts):
        ids = [f"trial-{f.trial}"] * len(f.epochs)
        shared = {
            "type": "scatter",
            "mode": "lines",
            "name": "forecast",
            "legendgroup": "forecast",
            "zorder": -1,
        }
        traces.append({
            **shared, "x": [*f.epochs, *reversed(f.epochs)], "y": [*f.high, *reversed(f.low)], "fill": "toself",
            "fillcolor": COOL_SOFT, "line": {"width": 0, "color": COOL_SOFT}, "opacity": 0.5, "hoverinfo": "skip",
            "ids": [*ids, *ids], "showlegend": f is forecasts[0],
        })  # fmt: skip
        traces.append({
            **shared, "x": list(f.epochs), "y": list(f.middle), "ids": ids, "showlegend": False,
            "line": {"color": COOL, "width": 1.4, "dash": "dot"}, "meta": [plotly_text(metric)],
            "customdata": [[f.trial, low, high] for low, high in zip(f.low, f.high, strict=True)],
            "hovertemplate": "<b>Trial %{customdata[0]}</b>, forecast<br>%{meta[0]} %{y:.4~g} at epoch %{x}"
            "<br>%{customdata[1]:.4~g} to %{customdata[2]:.4~g} in eight cases of ten<extra></extra>",
        })  # fmt: skip
    return traces
