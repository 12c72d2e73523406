"""Conversion between a study's unit and the points at which its policy decides.

A training may count epochs, steps, tokens or another unit, and may report at any position. The study asks the policy at
points, one per `every` units, numbered 1, 2, ..., `ceil(horizon / every)`. A study of 2,000 steps that reports every
100 steps therefore decides like a study of 20 epochs.

The log and all output are in the study's unit. A policy gets a problem, a history and events in points. A report is at
a point if it is the first one at or beyond the point. Reports between two points have fractions and are not judged.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from . import events as ev
from .decisions import COMPARED_AT, Finish, Move, Verdict, Wait
from .history import History
from .problem import MOST_EPOCHS, Grid, Problem
from .records import TrialRecord


def at_point(grid: Grid, position: float, last: float) -> float:
    """Return the position of a report in points, after one at `last` (in points).

    A whole number is a point: the latest that the report has reached since `last`. Only the end of a full training is
    at the last point, also if it is reported again.
    """
    exact, end = grid.points(position), math.inf if grid.last is None else float(grid.last)
    whole = min(math.floor(exact + grid.slack), end if exact >= end else end - 1.0)
    return float(whole) if whole > math.floor(last + 1e-9) else min(max(exact, math.nextafter(last, math.inf)), end)


def as_seen(
    grid: Grid, history: History, trial: int, position: float, value: float, last: float
) -> tuple[float, float]:
    """Return a report's position in points, and the goal's value. last: the trial's last position, in points."""
    return at_point(grid, position, last), history.seen(trial, position, value)


def in_points(event: ev.Event, grid: Grid, history: History, judged: History) -> ev.Event:
    """Return the event in points. history, judged: the log before the event, in the study's unit and in points."""
    match event:
        case ev.Reported():
            last = judged.position_of(event.trial, event.attempt)
            epoch, value = as_seen(grid, history, event.trial, event.epoch, event.value, last)
            return replace(event, epoch=epoch, value=value, verdict=_verdict_in_points(event.verdict, grid))
        case ev.Checkpointed() | ev.Kept():
            return replace(
                event, epoch=_saved_at(event.epoch, grid, history.epochs(event.trial), judged.epochs(event.trial))
            )
        case ev.Started() | ev.Resumed() if event.pause_at is not None:
            return replace(event, pause_at=grid.points(event.pause_at))
        case ev.Budgeted() | ev.Raised() if "epochs" in event.budget:
            return replace(event, budget={**event.budget, "epochs": event.budget["epochs"] / grid.mean})
    return event


def log_in_points(problem: Problem, log: Iterable[ev.Event]) -> Iterator[ev.Event]:
    """Yield the events of a log in points. problem: the problem at the end of the log."""
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
    """Return a checkpoint's position in points: at a report of its trial, or before the next point."""
    n = bisect_right(epochs, position)
    last = points[n - 1] if n else 0.0
    if n and epochs[n - 1] == position:
        return last
    exact = grid.points(position)
    whole = math.floor(exact)
    return math.nextafter(whole, 0.0) if whole > math.floor(last) else max(exact, last)


def _verdict_in_points(verdict: Verdict, grid: Grid) -> Verdict:
    return verdict if verdict.pause_at is None else replace(verdict, pause_at=grid.points(verdict.pause_at))


def verdict_in_unit(verdict: Verdict, grid: Grid) -> Verdict:
    if (level := verdict.evidence.get(COMPARED_AT)) is not None:
        verdict = replace(verdict, evidence={**verdict.evidence, COMPARED_AT: grid.position(level)})
    return verdict if verdict.pause_at is None else replace(verdict, pause_at=grid.position(verdict.pause_at))


def move_in_unit(move: Move, grid: Grid) -> Move:
    if isinstance(move, Wait | Finish) or move.pause_at is None:
        return move
    resource = None if move.resource is None else grid.position(move.resource)
    return replace(move, pause_at=grid.position(move.pause_at), resource=resource)


def spacing(history: History, trial: TrialRecord, position: float) -> float | None:
    """Return the distance of points measured from the first reports of a study; None if it does not change.

    The first report of a study gives the distance, and the first trial with a second report corrects it if that comes
    earlier, or much later: loops often log their first step. Two reports within the slack of one point give none: their
    positions differ by a rounding error. A study in epochs has one point per epoch unless a report comes within an
    epoch. Without a measured distance only reports at whole epochs are judged, so the first report that passes the end
    of an epoch, as evaluations every 500 steps do, sets it to 1.
    """
    problem, count = history.problem, len(trial.epochs)
    if problem.judge_every is not None:
        return None
    passes = problem.unit == "epoch" and problem.spacing is None and position % 1 and position // 1 > trial.epoch // 1
    if count > 1 or (count and any(len(history.epochs(id)) > 1 for id in range(len(history)))):
        return 1.0 if passes else None
    now, reports = problem.spacing or 1.0, history.reports
    if reports == 0:
        whole = problem.unit == "epoch" and position == math.floor(position)
        found = now if whole else position
    else:
        found = position - trial.epoch if count else now
    if problem.unit == "epoch":
        found = min(found, 1.0)
    found = found if problem.max_epochs is None else min(found, float(problem.max_epochs))
    if (problem.max_epochs or 1) / MOST_EPOCHS > found:
        return None
    if passes and found == 1.0:
        return found
    if reports == 0:
        return found if found != now else None
    slack = Grid(now, None).slack * now
    return found if slack < found < 0.9 * now or found >= 2.0 * now else None
