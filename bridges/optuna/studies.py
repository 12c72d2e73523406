"""Copy studies to Optuna (`to_study`) and from Optuna (`from_study`).

In Optuna:
state       COMPLETE if haltune did not end the trial early; PRUNED if it stopped or paused it, or if it trained in
            part; FAIL if it failed or ended without a finite value; RUNNING if it runs or waits to be offered again
value       the value that counts for the trial, in each goal; intermediate values: the first goal's, by epoch from 1
constraints how much a trial exceeds each limit, in the metric's unit
attributes  why it was chosen and why it ended, with P(beats) if there is one; the last value of its other metrics

From Optuna: configurations are recorded as enqueued by the user, and pruned trials as stopped by the user. Optuna has
no times within a trial, so its reports are spread evenly between its start and its end. An Optuna constraint is a
number of the trial; the constraint holds if the number is at most 0.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy.exc import ArgumentError

from haltune.display import one_line, plural
from haltune.errors import InvalidInput, InvalidSpace
from haltune.log import events as ev
from haltune.log.decisions import ASKED, ENQUEUED, Action, Verdict, stop
from haltune.log.events import Created, Ended, Event, Expired, Status, plain
from haltune.log.history import History
from haltune.log.policy import Fold
from haltune.log.problem import Constraint, Goal, Maximize, Minimize, Problem, goal_from_json
from haltune.log.records import TrialRecord
from haltune.log.scores import outgrown
from haltune.policies import RandomSearch
from haltune.space import Space
from haltune.space.domains import bounding
from haltune.store.base import Store, check_new, check_next
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store
from haltune.study import Study
from haltune.study.loading import load_study
from haltune.study.view import StudyView, read_study

from .spaces import (
    ENDS,
    LIMITS,
    PREFIX,
    PROBLEM,
    WHOLE,
    FrozenTrial,
    Translated,
    TrialState,
    alike,
    curve_of,
    limits_of,
    optuna,
    space_of,
)  # fmt: skip

_log = logging.getLogger("haltune")
_ID = f"{PREFIX}id"
_DIRECTION = optuna.study.StudyDirection


def to_study(
    study: StudyView | Store | str | os.PathLike[str], storage: Any = None, name: str | None = None
) -> optuna.Study:
    """Copy a study to an Optuna storage, so that optuna-dashboard and other tools can open it.

    A second call replaces the copy, unless Optuna has trained its own trials in it.

    Args:
        study: The study, or the path or URL of its log.
        storage: A URL such as "sqlite:///optuna.db", or an Optuna storage. Default: None, memory.
        name: Name of the copy. Default: None, the study's name.

    Returns:
        The Optuna study. Its attribute "haltune:left_out" lists everything without a counterpart; it is also logged.

    Raises:
        InvalidInput: If the storage has another study with this name, or is not a URL.
        StoreError: If the log does not exist.

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
    try:
        storage = optuna.storages.get_storage(storage)
    except ArgumentError as error:
        raise InvalidInput(f"storage={storage!r} is not a URL. Use one such as 'sqlite:///optuna.db'.") from error
    made = _empty(study, storage, name or study.name)
    translated = Translated.of_space(study.history.problem.space)
    ends = {e.trial: e.at for e in study.events() if isinstance(e, Ended | Expired)}
    for t in study.trials:
        made.add_trial(_trial(t, study, translated, ends.get(t.id)))
    problem, outcome, left_out = study.history.problem, study.outcome, _left_out(study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        made.set_metric_names([goal.metric for goal in problem.goals])
    attributes = {
        "study": study.name, "problem": plain(problem.to_json()), "policy": type(study.policy).__name__,
        "budget": study.budget.to_json(), "over": outcome.over, "outcome": outcome.reason, "left_out": left_out,
    }  # fmt: skip
    for key, value in attributes.items():
        made.set_user_attr(PREFIX + key, value)
    for sentence in left_out:
        _log.info("%r in Optuna: %s", made.study_name, sentence)
    return made


def _empty(study: StudyView, storage: Any, name: str) -> optuna.Study:
    goals = study.history.problem.goals
    directions = [_DIRECTION.MAXIMIZE if goal.sign > 0 else _DIRECTION.MINIMIZE for goal in goals]
    first = next(iter(study.events()))
    mine = (first.id if isinstance(first, Created) else "") or f"{study.name} {first.at!r}"
    if name in optuna.get_all_study_names(storage):
        there = optuna.load_study(study_name=name, storage=storage)
        attributes = there.user_attrs
        copied = all(f"{PREFIX}status" in t.user_attrs for t in there.get_trials(deepcopy=False))
        if attributes.get(_ID) != mine or not copied:
            whose = "it is another study" if attributes.get(_ID) != mine else "Optuna has trained its own trials in it"
            raise InvalidInput(f"Cannot replace the study {name!r} in the storage: {whose}. Use another name=.")
        optuna.delete_study(study_name=name, storage=storage)
    made = optuna.create_study(storage=storage, study_name=name, directions=directions)
    made.set_user_attr(_ID, mine)  # first: an interrupted copy is replaced
    return made


def _trial(t: TrialRecord, study: StudyView, translated: Translated, ended: float | None) -> optuna.trial.FrozenTrial:
    problem, steps = study.history.problem, _in_steps(study).trial(t.id)
    results = t.results(problem)
    values = [results[goal.metric] for goal in problem.goals]
    valued = not any(map(math.isnan, values))
    if t.status in (Status.RUNNING, Status.INTERRUPTED):
        state = TrialState.RUNNING
    elif t.status is Status.FAILED or (t.complete and not valued):
        state = TrialState.FAIL
    else:
        state = TrialState.COMPLETE if t.complete else TrialState.PRUNED
    found = optuna.trial.create_trial(
        state=state,
        values=values if valued and state not in (TrialState.FAIL, TrialState.RUNNING) else None,
        params=translated.outward(dict(t.config)),
        distributions={n: c.distribution for n, c in translated.counterparts.items() if n in t.config},
        intermediate_values={
            int(n): float(v) for n, v, is_step in zip(steps.epochs, t.values, steps.whole, strict=True) if is_step
        },
        user_attrs=_attributes(t, {name: results[name] for name in problem.measured}),
        system_attrs={LIMITS: [_excess(c, results[c.metric]) for c in problem.constraints]}
        if problem.constraints
        else {},
    )
    found.datetime_start = datetime.fromtimestamp(t.started)
    if state.is_finished():
        found.datetime_complete = datetime.fromtimestamp(t.started if ended is None else ended)
    return found


def _in_steps(study: StudyView) -> History:
    """Return the history with whole positions: in points if there are several reports per epoch."""
    return study.judged if (study.history.problem.every or 1.0) < 1.0 else study.history


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
    ours = {PREFIX + n: v for n, v in found.items() if v not in (None, "")}
    return {name: plain(value) for name, value in (metrics | measured | ours).items()}


def _left_out(study: StudyView) -> list[str]:
    """Return one sentence for each part of this study that Optuna cannot store."""
    parts = sum(int((~t.whole).sum()) for t in _in_steps(study).trials)
    again = sum(t.attempt > 1 for t in study.trials)
    paused = sum(t.status is Status.PAUSED for t in study.trials)
    lines = []
    if parts:
        lines.append(f"{plural(parts, 'report')} between two judged ones, because steps are whole numbers")
    if any(t.metrics for t in study.trials):
        lines.append("curves of other metrics: the last value of each is an attribute")
    if again:
        lines.append(f"earlier attempts of {plural(again, 'trial')} that resumed or started again")
    if paused:
        lines.append(f"{plural(paused, 'paused trial')} may resume; the state in Optuna is PRUNED")
    space = study.history.problem.space
    domains = space.parameters.items()
    if conditions := [n for n, d in domains if d.when]:
        lines.append(f"the conditions of {', '.join(conditions)}: inactive parameters are absent")
    if bounds := [n for n, d in domains if bounding(d)]:
        lines.append(f"bounds of {', '.join(bounds)} that name parameters: replaced by the outermost value")
    if space.constraints:
        lines.append(f"the constraints {', '.join(c.name for c in space.constraints)}")
    return lines


Curve = tuple[FrozenTrial, dict[int, float]]  # a trial, and epoch -> value


@dataclass(frozen=True)
class Objectives:
    goals: tuple[Goal, ...]
    constraints: tuple[Constraint, ...]
    written: bool  # by haltune, with the metrics as trial attributes
    notes: tuple[str, ...] = ()  # differences from Optuna's study

    def further(self, trial: FrozenTrial) -> dict[str, float]:
        """Return a trial's known final values in metrics other than the first goal's."""
        values = dict(zip([g.metric for g in self.goals[1:]], (trial.values or [])[1:], strict=False))
        if not self.written:
            held = {c.metric: 0.0 for c in self.constraints if trial.state in WHOLE}  # as in Optuna
            return values | held | {f"constraint_{key}": value for key, value in limits_of(trial).items()}
        names = [g.metric for g in self.goals[1:]] + [c.metric for c in self.constraints]
        given = {n: trial.user_attrs[n] for n in names if n in trial.user_attrs and n != self.goals[0].metric}
        return {n: float(v) for n, v in given.items()} | values


def objectives_of(study: optuna.Study, curves: Sequence[Curve]) -> Objectives:
    """Return the objectives that haltune wrote, or those inferred from the study and its trials."""
    if (written := study.user_attrs.get(PROBLEM)) is not None:
        goal = written["goal"]
        goals = [goal_from_json(one) for one in (goal if isinstance(goal, list) else [goal])]
        limits = [Constraint(**limit) for limit in written.get("constraints", ())]
        return Objectives(tuple(goals), tuple(limits), written=True)
    goals, notes = _goals(study, curves)
    keys = dict.fromkeys(key for trial, _ in curves for key in limits_of(trial))
    changes = goals[0].of == "last"  # if the best epoch counts, constraints hold for all epochs
    constraints = [Constraint(f"constraint_{key}", at_most=0.0, changes=changes) for key in keys]
    lacking = sum(t.state in WHOLE and not keys.keys() <= limits_of(t).keys() for t, _ in curves)
    if lacking:
        notes.append(f"counted as satisfied, as in Optuna: constraints without a value, in {plural(lacking, 'trial')}")
    return Objectives(tuple(goals), tuple(constraints), written=False, notes=tuple(notes))


def _excess(constraint: Constraint, value: float) -> float:
    over = [] if constraint.at_most is None else [value - constraint.at_most]
    under = [] if constraint.at_least is None else [constraint.at_least - value]
    found = max(over + under)
    if math.isfinite(found):
        return found
    return -sys.float_info.max if found == -math.inf else sys.float_info.max


def _goals(study: optuna.Study, curves: Sequence[Curve]) -> tuple[list[Goal], list[str]]:
    """Return a goal per objective; a single one counts the best epoch if the trials' values show that."""
    largest = [way is _DIRECTION.MAXIMIZE for way in study.directions]
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
    odd = f"{plural(len(last), 'trial')} returned another value than the one at the last step; the returned one counts"
    return [kinds[0](metric)], [odd] * bool(last)


_REASON = "enqueued by you, in place of one drawn at random"  # the reason that a study or a replay would write
_STATUS = {**ENDS, TrialState.FAIL: Status.FAILED, TrialState.RUNNING: Status.INTERRUPTED}


@dataclass(frozen=True)
class RecordedTrial:
    trial: FrozenTrial
    config: dict[str, Any]  # in haltune's space
    curve: dict[int, float]  # epoch -> value of the first objective
    further: Mapping[str, float] = field(default_factory=dict)  # final values of other goals and constrained metrics

    @property
    def starts(self) -> float:
        """Start in seconds since the epoch; Optuna's datetimes are local."""
        start = self.trial.datetime_start
        return self.ends if start is None else start.timestamp()

    @property
    def ends(self) -> float:
        """End in seconds since the epoch; the start for a running trial."""
        moment = self.trial.datetime_complete or self.trial.datetime_start
        return 0.0 if moment is None else moment.timestamp()


def _recorded(problem: Problem, whose: str, runs: Sequence[RecordedTrial]) -> list[Event]:
    """Return the log of one study, in order of time. Raises InvalidInput if it could not be read again."""
    policy = RandomSearch()
    fold, written = Fold(problem, policy, f"the study {whose!r} of Optuna"), list[Event]()

    def write(event: Event) -> None:
        check_new([event])
        check_next(fold.history, [event])
        fold.take(event)
        written.append(event)

    started = [run for run in runs if run.trial.state is not TrialState.WAITING]
    now = min((run.starts for run in started), default=0.0)
    recorded, spec = plain(problem.to_json()), plain(policy.spec)
    id = sha256(repr([whose, now, recorded]).encode()).hexdigest()[:12]
    write(ev.Created(at=now, problem=recorded, policy=spec, seed=0, id=id))
    facts = [fact for run in started for fact in _facts(run, problem)]
    numbers: dict[int, int] = {}
    for at, _, _, run, report in sorted(facts, key=lambda fact: fact[:3]):
        state = run.trial.state
        if run.trial.number not in numbers:
            trial = numbers[run.trial.number] = len(numbers)
            new, config = fold.history.learnt_scale(), plain(run.config)
            if new is not None and outgrown(fold.history.scale, new):
                write(ev.Rescaled(at=at, low=new.low, high=new.high))
            write(ev.Enqueued(at=at, config=config))
            write(ev.Started(
                at=at, trial=trial, config=config, pause_at=problem.max_epochs, resource=None, tags={}, reason=_REASON,
                evidence=_evidence(run), seen=fold.history.position, deciding=0.0, worker="optuna",
            ))  # fmt: skip
            continue
        trial = numbers[run.trial.number]
        if report is None:
            error = run.trial.system_attrs.get("fail_reason") if state is TrialState.FAIL else None
            write(ev.Ended(at=at, trial=trial, attempt=1, status=_STATUS[state], error=error and str(error)))
            continue
        epoch, value, seconds, further = report
        verdict = Verdict(Action.UNJUDGED, "reported to Optuna")
        if state is TrialState.PRUNED and epoch == max(run.curve):
            verdict = stop("pruned in Optuna", **{ASKED: "not asked"})
        write(ev.Reported(
            at=at, trial=trial, attempt=1, epoch=float(epoch), value=float(value), seconds=seconds, verdict=verdict,
            seen=fold.history.position, metrics=dict(further),
        ))  # fmt: skip
    last = max((run.ends for run in started), default=now)
    for run in runs:
        if run.trial.state is TrialState.WAITING:
            write(ev.Enqueued(at=last, config=plain(run.config)))
    return written


def _facts(run: RecordedTrial, problem: Problem) -> Iterator[tuple[float, int, int, RecordedTrial, Any]]:
    """Yield (time, trial, number of the fact, run, report or None) for a trial's start, reports and end.

    The last value of the curve is the trial's value in Optuna.
    """
    curve, final = dict(run.curve), (run.trial.values or [None])[0]
    if run.trial.state is TrialState.COMPLETE and final is not None:
        counts = problem.goal.of == "last" or not curve
        last = max(curve, default=problem.max_epochs or 1)
        if counts and not alike(curve.get(last, math.nan), final):
            curve[last] = final
    reports = sorted(curve.items())
    seconds = max(0.0, run.ends - run.starts) / max(1, len(reports))  # the clock may be set back, as each autumn
    yield run.starts, run.trial.number, 0, run, None
    for i, (epoch, value) in enumerate(reports, 1):
        fact = (epoch, value, seconds, run.further if i == len(reports) else {})
        yield run.starts + i * seconds, run.trial.number, i, run, fact
    yield max(run.ends, run.starts), run.trial.number, len(reports) + 1, run, None


def _evidence(run: RecordedTrial) -> dict[str, Any]:
    """Return the user attributes of a trial that a log can store."""
    found: dict[str, Any] = {"number": run.trial.number}
    for name, value in run.trial.user_attrs.items():
        if not name.startswith(PREFIX):
            try:
                found[name] = plain(value)
            except InvalidInput as error:
                found[name] = one_line(error)
    return {ENQUEUED: True, "optuna": found}


def from_study(
    study: optuna.Study,
    store: str | os.PathLike[str] | Store | None = None,
    name: str | None = None,
    *,
    max_epochs: int | None = None,
    space: Space | None = None,
) -> Study:
    """Copy an Optuna study to a haltune study, for example for `Study(..., learn_from=[from_study(study)])`.

    A step is an epoch; if Optuna's steps count from 0, epochs count from 1. Without steps a training has one epoch.

    Args:
        study: The Optuna study. Several objectives become several goals; `learn_from=` uses the first. Constraints
            become "constraint_0", ..., at most 0.
        store: The store of the log, as for Study. Default: None, memory.
        name: Name of the copy. Default: None, its name in Optuna.
        max_epochs: Epochs of a full training. Default: None, the epochs of the longest trial.
        space: The space. Default: None, inferred from the trials: a parameter that some lack gets a condition.

    Returns:
        The study, for `learn_from=`; `problem.space` is its space. Everything without a counterpart is logged.

    Raises:
        InvalidInput: If `study` is not an Optuna study, the store has a study with this name, or a trial has more
            epochs than max_epochs.
        InvalidSpace: If the trials have no parameters, or a distribution has no counterpart.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> there = optuna.create_study(direction="maximize")
        >>> there.optimize(lambda trial: 1 / (1 + trial.suggest_float("lr", 1e-4, 1e-1, log=True)), n_trials=5)
        >>> past = from_study(there)
        >>> past.problem.space, past.best_value == there.best_value
        (Space({
            'lr': Float(0.0001, 0.1, log=True),
        }), True)
    """
    if not isinstance(study, optuna.Study):
        raise InvalidInput(
            f"from_study needs an Optuna study; got {study!r}. Use optuna.load_study(study_name=..., storage=...)."
        )
    trials = study.get_trials(deepcopy=False)
    written = study.user_attrs.get(PROBLEM)
    if space is None and written is not None:
        space = Space.from_json({**written["space"], "constraints": []})
    whole = [t for t in trials if t.state in WHOLE]
    translated = space_of(whole) if space is None else Translated.of_space(space)
    from_zero = any(0 in t.intermediate_values for t in trials)
    runs, outside = [], 0
    for trial in trials:
        waits = trial.state is TrialState.WAITING
        try:
            config = translated.inward(trial.system_attrs.get("fixed_params", {}) if waits else trial.params)
        except InvalidSpace:
            outside += 1
        else:
            runs.append(RecordedTrial(trial, config, curve_of(trial, from_zero)))
    lacking = f"{plural(outside, 'trial')} left out: they lack a parameter or are outside the space"
    objectives = objectives_of(study, [(run.trial, run.curve) for run in runs])
    runs = [replace(run, further=objectives.further(run.trial)) for run in runs]
    longest = max([1, *(max(run.curve) for run in runs if run.curve)])
    horizon = max_epochs or max((written or {}).get("max_epochs") or 1, longest)
    if horizon < longest:
        raise InvalidInput(
            f"A trial of {study.study_name!r} has {longest} epochs, but max_epochs={horizon}. Use max_epochs={longest}."
        )
    problem = Problem(translated.space, objectives.goals, horizon, constraints=objectives.constraints)
    store = MemoryStore() if store is None else open_store(store)
    name = name or study.study_name
    events = _recorded(problem, study.study_name, runs)
    created = events[0]
    assert isinstance(created, Created)
    # length 1: an earlier call was interrupted
    if not store.create(name, created) and not store.replace(name, created, 1):
        raise InvalidInput(f"{store.url} already has a study {name!r}. Open it with load_study, or use another name=.")
    store.append(name, events[1:], seen=1, about=None)
    for sentence in [*translated.notes, *[lacking] * bool(outside), *objectives.notes]:
        _log.info("%r from Optuna: %s", name, sentence)
    return load_study(store, name, verbose=0)
