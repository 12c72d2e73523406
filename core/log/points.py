"""Between a study's own unit and the points at which its policy is asked.

A training may count epochs, steps, tokens or something else, and may report at any position. A policy is asked at
points, one every `every` units, and counts them 1, 2, ..., `ceil(horizon / every)`. So a study of 2,000 steps that
reports every 100 steps decides as a study of 20 epochs does.

The log and all that people read are in the unit. A policy gets a problem, a history and events in points. A report is
at a point if it is the first one at or beyond it. Reports between two points have fractions, and are not judged.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from . import events as ev
from .decisions import Finish, Move, Verdict, Wait
from .history import History
from .problem import Grid, Problem


def at_point(grid: Grid, position: float, last: float) -> float:
    """Return where a report at `position` is for the policy, after one at `last`, in points.

    A whole number is a point: the first that it has reached since `last`, or the latest of several.
    """
    exact = grid.points(position)
    whole = math.floor(exact + grid.slack)
    return float(whole) if whole > math.floor(last + 1e-9) else max(exact, math.nextafter(last, math.inf))


def as_seen(
    grid: Grid, history: History, trial: int, position: float, value: float, last: float
) -> tuple[float, float]:
    """Return where a report is for the policy, and the value that the goal sees. last: of its trial, in points."""
    return at_point(grid, position, last), history.seen(trial, position, value)


def in_points(event: ev.Event, grid: Grid, history: History, judged: History) -> ev.Event:
    """Return the event as the policy counts. history, judged: the log before it, in the unit and in points."""
    match event:
        case ev.Reported():
            last = judged.position_of(event.trial, event.attempt)
            epoch, value = as_seen(grid, history, event.trial, event.epoch, event.value, last)
            return replace(event, epoch=epoch, value=value, verdict=_verdict_in_points(event.verdict, grid))
        case ev.Checkpointed() | ev.Kept():
            return replace(
                event, epoch=_saved_at(event.epoch, grid, history.curve(event.trial), judged.curve(event.trial))
            )
        case ev.Started() | ev.Resumed() if event.until is not None:
            return replace(event, until=grid.points(event.until))
        case ev.Budgeted() | ev.Raised() if "epochs" in event.budget:
            return replace(event, budget={**event.budget, "epochs": event.budget["epochs"] / grid.every})
    return event


def log_in_points(problem: Problem, log: Iterable[ev.Event]) -> Iterator[ev.Event]:
    """Yield the events of a log as the policy counts. problem: as the log has it in the end."""
    posed = problem.in_points()
    if (grid := posed.grid) is None:
        yield from log
        return
    history, judged = History(problem), History(posed)
    for event in log:
        counted = in_points(event, grid, history, judged)
        history.apply(event)
        judged.apply(counted)
        yield counted


def _saved_at(position: float, grid: Grid, epochs: Sequence[float], points: Sequence[float]) -> float:
    """Where a checkpoint is among the reports of its trial: at one, or before the next point."""
    n = bisect_right(epochs, position)
    last = points[n - 1] if n else 0.0
    if n and epochs[n - 1] == position:
        return last
    exact = grid.points(position)
    whole = math.floor(exact)
    return math.nextafter(whole, 0.0) if whole > math.floor(last) else max(exact, last)


def _verdict_in_points(verdict: Verdict, grid: Grid) -> Verdict:
    return verdict if verdict.until is None else replace(verdict, until=grid.points(verdict.until))


def verdict_in_unit(verdict: Verdict, grid: Grid) -> Verdict:
    """Return a policy's verdict with its positions in the study's unit."""
    return verdict if verdict.until is None else replace(verdict, until=grid.position(verdict.until))


def move_in_unit(move: Move, grid: Grid) -> Move:
    """Return a policy's move with its positions in the study's unit."""
    if isinstance(move, Wait | Finish) or move.until is None:
        return move
    resource = None if move.resource is None else grid.position(move.resource)
    return replace(move, until=grid.position(move.until), resource=resource)


def spacing(history: History, trial: int, position: float) -> float | None:
    """Return the distance of points that the first reports of a study show; None: it stays as it is.

    The first report of a study shows it, and the second of the same trial if that is nearer to the first than expected.
    A study in epochs has one point an epoch unless a report comes within one.
    """
    problem = history.problem
    if problem.judge_every is not None or history.reports > 1:
        return None
    now = problem.every or 1.0
    if history.reports == 0:
        whole = problem.unit == "epoch" and position == math.floor(position)
        found = now if whole else position
    else:
        curve = history.curve(trial)
        found = position - curve[-1] if curve else now
    found = found if problem.max_epochs is None else min(found, float(problem.max_epochs))
    return found if (history.reports == 0 and found != now) or 0.0 < found < 0.9 * now else None
