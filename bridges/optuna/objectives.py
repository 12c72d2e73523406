"""What an Optuna study is after, in haltune's words: its objectives as goals, the constraints of its trials as limits.

A constraint of Optuna's is a number of the trial, which holds where that is at most 0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from haltune._utils.words import plural
from haltune.log.problem import Constraint, Goal, Maximize, Minimize, goal_from_json

from .curves import FrozenTrial, TrialState, alike
from .library import PROBLEM, optuna

Curve = tuple[FrozenTrial, dict[int, float]]  # a trial, and epoch -> value
_KEY = "constraints"  # system attribute: a list, or one attribute for each behind a colon


@dataclass(frozen=True)
class Objectives:
    """The goals and constraints of a study."""

    goals: tuple[Goal, ...]
    constraints: tuple[Constraint, ...]
    written: bool  # by haltune, with the metrics as attributes of the trials
    notes: tuple[str, ...] = ()  # what is not as it was

    def further(self, trial: FrozenTrial) -> dict[str, float]:
        """What a trial came to in the metrics beside the first goal's, as far as it is known."""
        values = dict(zip([g.metric for g in self.goals[1:]], (trial.values or [])[1:], strict=False))
        if not self.written:
            return values | {_metric(key): value for key, value in limits_of(trial).items()}
        names = [g.metric for g in self.goals[1:]] + [c.metric for c in self.constraints]
        told = {n: trial.user_attrs[n] for n in names if n in trial.user_attrs and n != self.goals[0].metric}
        return {n: float(v) for n, v in told.items()} | values


def objectives_of(study: optuna.Study, curves: Sequence[Curve]) -> Objectives:
    """Those that haltune wrote, or else those that the study and its trials show."""
    if (written := study.user_attrs.get(PROBLEM)) is not None:
        told = written["goal"]
        goals = [goal_from_json(goal) for goal in (told if isinstance(told, list) else [told])]
        limits = [Constraint(**limit) for limit in written.get("constraints", ())]
        return Objectives(tuple(goals), tuple(limits), written=True)
    goals, notes = _goals(study, curves)
    keys = dict.fromkeys(key for trial, _ in curves for key in limits_of(trial))
    changes = goals[0].of == "last"  # where the best epoch counts, they are taken to hold for all
    constraints = [Constraint(_metric(key), at_most=0.0, changes=changes) for key in keys]
    return Objectives(tuple(goals), tuple(constraints), written=False, notes=tuple(notes))


def _metric(key: str) -> str:
    return f"constraint_{key}"


def limits_of(trial: FrozenTrial) -> dict[str, float]:
    """The constraints of a trial, of any version of Optuna's: at most 0 where they hold."""
    listed = trial.system_attrs.get(_KEY) or ()
    named = {k.partition(":")[2]: v for k, v in trial.system_attrs.items() if k.startswith(f"{_KEY}:")}
    return {str(i): float(v) for i, v in enumerate(listed)} | {k: float(v) for k, v in named.items()}


def told_limits(constraints: Sequence[Constraint], results: dict[str, float]) -> dict[str, Any]:
    """The inverse, as system attributes: by how much a run is beyond each constraint, in the metric's own units."""
    return {_KEY: [_beyond(c, results[c.metric]) for c in constraints]} if constraints else {}


def _beyond(constraint: Constraint, value: float) -> float:
    over = [] if constraint.at_most is None else [value - constraint.at_most]
    under = [] if constraint.at_least is None else [constraint.at_least - value]
    found = max(over + under)
    return (
        found
        if math.isfinite(found)
        else math.copysign(sys.float_info.max, 1.0 if found != -math.inf else -1.0)
    )


def _goals(study: optuna.Study, curves: Sequence[Curve]) -> tuple[list[Goal], list[str]]:
    """A goal for each objective; of one that counts runs for their best epoch, where the trials show that."""
    largest = [way is optuna.study.StudyDirection.MAXIMIZE for way in study.directions]
    kinds = [Maximize if up else Minimize for up in largest]
    if len(kinds) > 1:
        names = study.metric_names or [f"value_{i}" for i in range(len(kinds))]
        return [kind(name) for kind, name in zip(kinds, names, strict=True)], []
    metric = (study.metric_names or ["value"])[0]
    whole = [(list(c.values()), t.value) for t, c in curves if t.state is TrialState.COMPLETE and c]
    last = [found for found in whole if not alike(found[0][-1], found[1])]
    best = [found for found in whole if not alike((max if largest[0] else min)(found[0]), found[1])]
    if last and not best:
        return [kinds[0](metric, of="best")], []
    odd = f"{plural(len(last), 'trial')} came to another value than at the last step: it stands in the place of that"
    return [kinds[0](metric)], [odd] * bool(last)
