"""A haltune study as one of Optuna's, in a storage that optuna-dashboard opens.

state       COMPLETE what haltune did not cut, PRUNED what it stopped or paused, and runs in part; FAIL what failed or
            ended without a finite value; RUNNING what runs or waits to be offered again
value       what the run counts for, in each goal; intermediate values, the first goal's, by epoch, which counts from 1
constraints by how much a run is beyond each limit, in the metric's own units
attributes  why it was chosen and ended, with P(beats) where there is one; its other metrics, the last of each
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from datetime import datetime
from typing import Any

from haltune.display import plural
from haltune.errors import InvalidInput
from haltune.log.codec import plain
from haltune.log.events import Created, Ended, Expired, Status
from haltune.log.records import TrialRecord
from haltune.space.domains import bounding
from haltune.store.base import Store
from haltune.study.view import StudyView, read_study

from .imported import told_limits
from .library import PREFIX, optuna
from .spaces import Translated, TrialState

_log = logging.getLogger("haltune")
_ID = f"{PREFIX}id"


def to_study(
    study: StudyView | Store | str | os.PathLike[str],
    storage: Any = None,
    name: str | None = None,
) -> optuna.Study:
    """A haltune study as one of Optuna's, so that its dashboard and its tools open it.

    It is a copy, of the moment. Called again it is written anew in the place of the one before, unless Optuna has
    trained trials of its own in that.

    Args:
        study: The study, or where its log is: a path or a URL.
        storage: Where Optuna keeps it: a URL such as "sqlite:///optuna.db", or a storage of Optuna's. Default: None,
            memory.
        name: What it is called there. Default: None, its own name.

    Returns:
        Optuna's study. What has no counterpart there is listed in its attribute "haltune:left_out", and logged.

    Raises:
        InvalidInput: When the storage holds another study of that name.
        StoreError: When there is no such log.

    Example:
        >>> space = {"lr": Float(1e-4, 1e-1, log=True), "width": Int(8, 64)}
        >>> study = Study(space, "val_acc", max_epochs=9, seed=0, budget="3 trials", verbose=0)
        >>> for trial in study:
        ...     for epoch in trial.epochs():
        ...         verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> there = to_study(study)
        >>> len(there.trials), there.best_value == study.best_value
        (3, True)
    """
    if not isinstance(study, StudyView):
        study = read_study(study)
    study.sync()
    made = _made(study, optuna.storages.get_storage(storage), name or study.name)
    translated = Translated.of_space(study.history.problem.space)
    ends = {e.trial: e.at for e in study.events() if isinstance(e, Ended | Expired)}
    for t in study.trials:
        made.add_trial(_trial(t, study, translated, ends.get(t.id)))
    left_out = _left_out(study)
    _describe(made, study, left_out)
    for said in left_out:
        _log.info("%r in Optuna: %s", made.study_name, said)
    return made


def _made(study: StudyView, storage: Any, name: str) -> optuna.Study:
    """An empty study of Optuna's, in the place of an earlier copy."""
    way = optuna.study.StudyDirection
    directions = [way.MAXIMIZE if goal.sign > 0 else way.MINIMIZE for goal in study.history.problem.goals]
    first = next(iter(study.events()))
    mine = (first.id if isinstance(first, Created) else "") or f"{study.name} {first.at!r}"
    if name in optuna.get_all_study_names(storage):
        there = optuna.load_study(study_name=name, storage=storage)
        attributes = there.user_attrs
        copied = all(f"{PREFIX}status" in t.user_attrs for t in there.get_trials(deepcopy=False))
        if attributes.get(_ID) != mine or not copied:
            whose = "is another" if attributes.get(_ID) != mine else "has trials of Optuna's own by now"
            raise InvalidInput(
                f"the storage holds a study {name!r} already, and it {whose}: give this one another name="
            )
        optuna.delete_study(study_name=name, storage=storage)
    made = optuna.create_study(storage=storage, study_name=name, directions=directions)
    made.set_user_attr(_ID, mine)  # first: a copy that was broken off is written anew
    return made


def _trial(
    t: TrialRecord, study: StudyView, translated: Translated, ended: float | None
) -> optuna.trial.FrozenTrial:
    problem = study.history.problem
    results = t.results(problem)
    values = [results[goal.metric] for goal in problem.goals]
    whole = not any(map(math.isnan, values))
    if t.status in (Status.RUNNING, Status.INTERRUPTED):
        state = TrialState.RUNNING
    elif t.status is Status.FAILED or (t.complete and not whole):
        state = TrialState.FAIL
    else:
        state = TrialState.COMPLETE if t.complete else TrialState.PRUNED
    kept = {n: c.distribution for n, c in translated.counterparts.items() if n in t.config}
    found = optuna.trial.create_trial(
        state=state,
        values=values if whole and state not in (TrialState.FAIL, TrialState.RUNNING) else None,
        params=translated.outward(dict(t.config)),
        distributions=kept,
        intermediate_values={
            int(n): float(v) for n, v, whole in zip(t.epochs, t.values, t.whole, strict=True) if whole
        },
        user_attrs=_attributes(t, {name: results[name] for name in problem.measured}),
        system_attrs=told_limits(problem.constraints, results),
    )
    found.datetime_start = datetime.fromtimestamp(t.started)
    if state.is_finished():
        found.datetime_complete = datetime.fromtimestamp(t.started if ended is None else ended)
    return found


def _attributes(t: TrialRecord, measured: dict[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {"status": str(t.status), "epochs": t.epoch, "chosen": t.proposed}
    if t.verdict is not None:
        found["reason"] = t.verdict.reason
        found["p_beats"] = t.verdict.evidence.get("p_win")
    if t.error is not None:
        found["reason"] = t.error
    if t.resource is not None:
        found["resource"] = t.resource
    if t.checkpoint is not None:
        found["checkpoint"] = t.checkpoint
    metrics = {name: float(column[-1]) for name, column in t.metrics.items() if len(column)}
    told = {PREFIX + n: v for n, v in found.items() if v not in (None, "")}
    return {name: plain(value) for name, value in (metrics | measured | told).items()}


def _describe(made: optuna.Study, study: StudyView, left_out: list[str]) -> None:
    """The attributes of the study itself."""
    problem, outcome = study.history.problem, study.outcome
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        made.set_metric_names([goal.metric for goal in problem.goals])
    told = {
        "study": study.name, "problem": plain(problem.to_json()), "policy": type(study.policy).__name__,
        "budget": study.budget.to_json(), "over": outcome.over, "outcome": outcome.reason, "left_out": left_out,
    }  # fmt: skip
    for key, value in told.items():
        made.set_user_attr(PREFIX + key, value)


def _left_out(study: StudyView) -> list[str]:
    """What Optuna cannot keep of this study, a sentence for each."""
    parts = sum(int((~t.whole).sum()) for t in study.trials)
    again = sum(t.attempt > 1 for t in study.trials)
    paused = sum(t.status is Status.PAUSED for t in study.trials)
    said = []
    if parts:
        said.append(f"{plural(parts, 'report')} within an epoch: steps are whole")
    if any(t.metrics for t in study.trials):
        said.append("curves of other metrics: the last value of each is an attribute")
    if again:
        said.append(
            f"earlier attempts of {plural(again, 'trial')} that went on from a checkpoint, or began again"
        )
    if paused:
        said.append(f"that {plural(paused, 'paused trial')} may go on: PRUNED is what comes nearest")
    space = study.history.problem.space
    domains = space.parameters.items()
    if conditions := [n for n, d in domains if d.when]:
        said.append(f"the conditions of {', '.join(conditions)}: absent where they do not hold")
    if bounds := [n for n, d in domains if bounding(d)]:
        said.append(f"bounds of {', '.join(bounds)} that name parameters: the outermost stand for them")
    if space.constraints:
        said.append(f"the constraints {', '.join(c.name for c in space.constraints)}")
    return said
