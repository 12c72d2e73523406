"""How a run stands among the others, said without weights: on the front of what all had come to by its epoch, or by how
many it is dominated there.

A place among runs depends on the weights of the goals, which change from question to question: two lines beside each
other would say 6th and 1st of the same runs. What dominates what does not.
"""

from __future__ import annotations

import math

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.words import plural
from haltune.log.history import History
from haltune.log.problem import Problem
from haltune.log.problem.constraints import latest, violation
from haltune.log.problem.dominance import dominates
from haltune.log.records import TrialRecord


def standing(history: History, trial: TrialRecord) -> tuple[str, bool]:
    """In words, and whether that alone would hold it back, at the last epoch that it reported.

    Others count by what they had come to by that epoch: those that came so far, or ended by themselves before.
    """
    problem, epoch = history.problem, trial.epoch
    own = _vector(trial, epoch, problem)
    if own is None:
        return "beyond a limit" if problem.constraints else "without a finite value in every goal", True
    others = [_vector(t, epoch, problem) for t in history.trials if t.id != trial.id and _came(t, epoch)]
    known = [vector for vector in others if vector is not None]
    if not known:
        return f"the first to come to epoch {epoch:g}", True
    above = int(dominates(-own, -np.array(known)).sum())
    if not above:
        return f"at epoch {epoch:g} on the front of {len(known) + 1} runs", False
    return f"at epoch {epoch:g} dominated by {above} of {plural(len(known), 'other run')}", True


def _came(t: TrialRecord, epoch: float) -> bool:
    return len(t.epochs) > 0 and (t.epoch >= epoch or t.complete)


def _vector(t: TrialRecord, epoch: float, problem: Problem) -> Array | None:
    """(goals,) sign * value by an epoch; None where one is not finite, or a limit is broken."""
    n = int(np.searchsorted(t.epochs, epoch, side="right"))
    if not n or violation(problem.constraints, lambda m: latest(t.column(m, problem.goal)[:n].tolist())):
        return None
    found = [goal.sign * float(t.column(goal.metric, problem.goal)[n - 1]) for goal in problem.goals]
    return np.array(found) if all(map(math.isfinite, found)) else None
