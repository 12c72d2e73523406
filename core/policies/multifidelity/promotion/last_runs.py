"""What goes on as the budget ends: what begins or goes on by then can still be trained in full.

Where what the ladder would do cannot, a paused run that can is trained in full, of several the one that promises most
of what it takes: by its expected improvement, over the best that was trained in full, for its share of what is left.
Where none can, the search is over once one run was trained in full; before that the ladder does what it would, unless
one under way can still be. A run that leads goes on by the same rule: not on what another needs for its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from haltune._utils.words import plural
from haltune.log.decisions import Action, Finish, Move, Resume, Start, Verdict, Wait
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.records import TrialRecord
from haltune.policies.acquisition import expected_improvement
from haltune.policies.guided.curve_rows import CurveTable
from haltune.policies.hyperband.climb import Climb
from haltune.policies.hyperband.rungs import OUT

from ..log_regret import LogRegret
from ..model import Model
from ..receipts import expected
from ..stage_kernel import StageKernel
from ..stage_process import StageProcess
from .remaining import Remaining

CLOSING = "closing"  # tag of a run that is trained in full, for the budget ends


def instead(
    move: Move, climb: Climb, model: Model, kernel: StageKernel | None, history: History, rows: CurveTable
) -> Move | None:
    """What goes on in place of a move that would not end within the budget; None: the move does."""
    remaining = Remaining.of(history, float(climb.horizon or 1))
    if not too_late(move, remaining, history):
        return None
    shares = in_time(climb, remaining, history)
    if not shares and not _one_in_full(climb, history):  # one that may end too late is better than none
        shares = in_time(climb, remaining, history, spare=False)
    if not shares:
        return over(climb, history)
    scale = model.scale(history, rows)
    if kernel is None or scale is None:
        return trained_in_full(furthest(climb, [*shares]), climb, history, shares)
    id, promise = most_promising(shares, model.process(kernel, history, rows, scale), scale, history)
    return trained_in_full(id, climb, history, shares, promise)


def too_late(move: Move, remaining: Remaining, history: History) -> bool:
    """Whether what a move begins or goes on with cannot be trained in full; not so of what the user enqueued."""
    if isinstance(move, Resume):
        return remaining.share(history.trial(move.trial)) > 1.0
    return isinstance(move, Start) and not history.queue and remaining.share(None) > 1.0


def unless_late(verdict: Verdict, climb: Climb, history: History, trial: TrialRecord, stops: bool) -> Verdict:
    """The verdict, but that a run does not go on from a rung which what others leave of the budget cannot end.

    stops: it is stopped where it would pause.
    """
    if verdict.action is not Action.CONTINUE or "rung" not in verdict.evidence:
        return verdict
    horizon = float(climb.horizon or 1)
    ends = Remaining.of(history, horizon, trial).share(trial) <= 1.0
    if ends or not _one_in_full(climb, history, trial.id):
        return verdict
    reason = f"{verdict.reason}, but what is left of the budget does not train it in full"
    return Verdict(Action.STOP if stops else Action.PAUSE, reason, verdict.evidence)


def in_time(climb: Climb, remaining: Remaining, history: History, spare: bool = True) -> dict[int, float]:
    """The paused runs that can still be trained in full, and what each takes of what is left. spare: see Remaining."""
    found = {}
    for trial in history.with_status(Status.PAUSED):
        on = climb.trials.get(trial.id)
        waits = on is not None and not on.last and on.member.result not in (None, OUT)
        if waits and (share := remaining.share(trial, spare)) <= 1.0:
            found[trial.id] = share
    return found


def over(climb: Climb, history: History) -> Move | None:
    """What to do when none can: nothing more, if one was trained in full or still can be."""
    if not _one_in_full(climb, history):
        return None
    if history.running:
        return Wait("what is left of the budget trains no other run in full, and some are still trained")
    return Finish("what is left of the budget trains no other run in full")


def _one_in_full(climb: Climb, history: History, besides: int | None = None) -> bool:
    """Whether one run was trained in full, or one besides this is under way and can still be."""
    if any(steps[-1].arrived.size for steps in climb.ladders.values()):
        return True
    horizon = float(climb.horizon or 1)
    under_way = (t for t in history.with_status(Status.RUNNING) if t.id != besides)
    return any(Remaining.of(history, horizon, t).share(t) <= 1.0 for t in under_way)


def furthest(climb: Climb, ids: list[int]) -> int:
    """Of some, the one that leads at the highest rung."""

    def place(id: int) -> tuple[float, float, int]:
        on = climb.trials.get(id)
        assert on is not None
        assert on.member.result is not None
        return -on.rung, -on.member.result, id

    return min(ids, key=place)


def most_promising(
    shares: dict[int, float], process: StageProcess, scale: LogRegret, history: History
) -> tuple[int, dict[str, Any]]:
    """The run of the largest expected improvement for its share, and what is expected of it."""
    ids = list(shares)
    mean, deviation = process.ends(history.points[ids], seen=True)
    best = process.best_end
    worth = mean
    if best is not None:
        worth = expected_improvement(mean, deviation**2, best) / np.array(list(shares.values()))
    found = int(worth.argmax())
    return ids[found], expected(scale, float(mean[found]), float(deviation[found]))


def trained_in_full(
    id: int,
    climb: Climb,
    history: History,
    shares: dict[int, float],
    promise: dict[str, Any] | None = None,
) -> Resume:
    """On to the end."""
    on, trial = climb.trials.get(id), history.trial(id)
    assert on is not None
    horizon = float(history.problem.max_epochs or on.bracket.rungs[-1].resource)
    name, others = history.problem.goal.metric, len(shares) - 1
    reason = "what is left of the budget trains no new run in full, but this one"
    if others:
        reason += f" or one of {plural(others, 'other')}"
    if promise:
        which = "chosen by the model: " if others else ""
        reason += f"; {which}predicts {name} {promise['mean']:.4g} ± {promise['sd']:.2g}"
    tags = {**trial.tags, "rung": on.rung + 1, CLOSING: True}
    evidence = {**(promise or {}), "share": round(shares[id], 4), "in_time": len(shares)}
    return Resume(id, horizon, horizon, tags, reason, evidence)


def is_last(trial: TrialRecord) -> bool:
    """Whether it goes on for the budget ends."""
    return bool(trial.tags.get(CLOSING))
