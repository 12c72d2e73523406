"""The budget: what was planned and what is spent, and how many epochs each trial got of a full training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import amount, counted, duration, plural
from haltune.log.problem import Budget
from haltune.log.spending import Spent

from ..digest import Digest, Row, Source, digest
from ..palette import ACCENT, COOL, COOL_SOFT, INK, MUTED, RULE
from ..sample import MOST_TRIALS
from .drawing import Spec, axis, drawn, layout, nothing

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ROOM = 10  # for bars of epochs: as wide as for so many
_BARS = 150  # of epochs: where there are more trials, one stands for several


def budget(study: Source) -> go.Figure:
    """Each limit of the budget with what is spent of it; and how many epochs each trial got, and was saved.

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
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=4, epochs=6), verbose=0)
        >>> study.optimize(lambda trial: [trial.report(trial.config["lr"]) for _ in trial.epochs()])
        >>> [a.text for a in budget(study).layout.annotations]
        ['6 of 6 epochs', '3 of 4 trials']
    """
    return drawn(budget_spec(digest(study, MOST_TRIALS)))


def budget_spec(facts: Digest) -> Spec:
    """The same as plain data."""
    known = limits(facts.history.wishes.extended(facts.history.recorded), facts.history.spent)
    data = [_spent(known)] if known else []
    bars = _epochs(facts)
    told = ", ".join(words for _, words in known)
    axes: dict[str, Any] = {}
    if known:
        most = max(1.0, *(share for share, _ in known))
        axes |= {
            "xaxis": axis("", range=[0.0, 1.04 * most], tickvals=[0, 0.5, 1], ticktext=["0", "half", "all"],
                          anchor="y"),
            "yaxis": axis("", type="category", showticklabels=False, tickvals=[], anchor="x"),
        }  # fmt: skip
    if bars:
        number = "2" if known else ""
        data += [{**t, "xaxis": f"x{number}", "yaxis": f"y{number}"} for t in bars]
        axes[f"xaxis{number}"] = axis(
            "trials, by their epochs",
            anchor=f"y{number}",
            tickvals=[],
            range=[0.4, max(len(bars[0]["x"]), _ROOM) + 0.6],
        )
        axes[f"yaxis{number}"] = axis("epochs", anchor=f"x{number}", rangemode="tozero")
    return {
        "data": data,
        "layout": layout(
            "Budget", _told(facts, told), order=25, showlegend=False, barmode="overlay",
            heights={"x": 44 + 36 * len(known)} if known and bars else None,
            note=_note(facts, bool(known)), annotations=_texts(known) if data else [nothing("No trial has begun yet")],
            **axes,
        ),
    }  # fmt: skip


def limits(budget: Budget, spent: Spent) -> list[tuple[float, str]]:
    """(share that is spent, in words) of every limit that was given, the last that will be reached first."""
    given = (
        (budget.trials, spent.trials, "trials"),
        (budget.epochs, spent.epochs, "epochs"),
        (budget.time, spent.time, "time"),
        (budget.worker_time, spent.worker_time, "worker time"),
        (budget.money, spent.money(budget.price), "money"),
        (budget.cost, spent.cost, "cost"),
    )
    found = []
    for limit, so_far, unit in given:
        if limit is not None and math.isfinite(whole := float(limit)):
            said = duration if unit.endswith("time") else lambda number: counted(round(number, 2))
            words = f"{said(so_far)} of {said(whole)}"
            name = amount(round(whole, 2), unit).split(" ", 1)[1] if unit in ("trials", "epochs") else unit
            found.append((so_far / whole, f"{words} {name}"))
    return sorted(found)


def _spent(known: list[tuple[float, str]]) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": "spent", "y": [words for _, words in known],
        "x": [share for share, _ in known], "marker": {"color": COOL_SOFT}, "width": 0.8,
        "hovertemplate": "<b>%{y}</b><br>%{x:.0%} spent<extra></extra>",
    }  # fmt: skip


def _texts(known: list[tuple[float, str]]) -> list[dict[str, Any]]:
    """Words on the bars: they are longer than the axis has room for. Those of the first limit to be reached first."""
    return [
        {
            "x": 0.0, "y": words, "text": words, "showarrow": False, "xanchor": "left", "xshift": 8,
            "font": {"color": INK, "size": 13},
        }
        for _, words in reversed(known)
    ]  # fmt: skip


def _epochs(facts: Digest) -> list[dict[str, Any]]:
    """Bars of the epochs of trials, the most first, and on top of them what stopping saved."""
    rows = sorted(facts.rows, key=lambda r: (-r.record.epoch, r.record.id))
    if not any(r.record.epoch for r in rows):
        return []
    each = math.ceil(len(rows) / _BARS)
    groups = [rows[i : i + each] for i in range(0, len(rows), each)]
    got = [float(np.mean([r.record.epoch for r in group])) for group in groups]
    saved = [float(np.mean([r.saved for r in group])) for group in groups]
    told = [[_title(group), _said(g, s, group)] for group, g, s in zip(groups, got, saved, strict=True)]
    ids = [f"trial-{group[0].record.id}" if each == 1 else "" for group in groups]
    bar = {
        "type": "bar", "x": [i + 1 for i in range(len(groups))], "width": 0.86, "ids": ids, "customdata": told,
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    }  # fmt: skip
    colours = [
        ACCENT if any(r.leads for r in group) else COOL if each > 1 else _colour(group[0]) for group in groups
    ]
    trained = {**bar, "name": "trained", "y": got, "marker": {"color": colours}}
    return [trained, {**bar, "name": "saved", "y": saved, "base": got, "marker": {"color": RULE}}]


def _colour(row: Row) -> str:
    return MUTED if row.record.complete else COOL


def _title(group: list[Row]) -> str:
    first = f"Trial {group[0].record.id}: {group[0].outcome}"
    return first if len(group) == 1 else f"{len(group)} trials"


def _said(got: float, saved: float, group: list[Row]) -> str:
    each = " each, on average" if len(group) > 1 else ""
    spared = f", {amount(round(saved, 2), 'epochs')} saved" if saved else ""
    return f"{amount(round(got, 2), 'epochs')}{each}{spared}"


def _note(facts: Digest, limited: bool) -> str:
    saved = " Light is what stopping saved of full trainings." if facts.savings.epochs else ""
    left = "What is spent of each limit; and the" if limited else "The"
    return f"{left} epochs of each trial, those with most first.{saved}"


def _told(facts: Digest, spent: str) -> str:
    """What the figure shows, in words."""
    savings = facts.savings
    full = sum(r.record.complete for r in facts.rows)
    got = f"{plural(round(facts.trained, 2), 'epoch')} trained in {plural(facts.trials, 'trial')}, {full} in full"
    saved = f"{savings.most}{plural(round(savings.epochs, 2), 'epoch')} saved"
    return f"Spent: {spent or 'no limit was given'}. {got}; {saved}."
