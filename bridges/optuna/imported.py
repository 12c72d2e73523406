"""An Optuna study as a haltune study (`from_study`), to look at and to learn from.

Its configurations are recorded as enqueued by the user, and what was pruned as stopped by the user. Optuna keeps no
times within a trial: its reports lie evenly between its start and its end. A constraint of Optuna is a number of the
trial, which holds if that is at most 0.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from haltune._utils.words import one_line, plural
from haltune.errors import InvalidInput, InvalidSpace
from haltune.log import events as ev
from haltune.log.decisions import ASKED, ENQUEUED, Action, Verdict, stop
from haltune.log.events import Created, Event, Status, plain
from haltune.log.policy import Fold, Policy
from haltune.log.problem import Constraint, Goal, Maximize, Minimize, Problem, goal_from_json
from haltune.log.scores import outgrown
from haltune.policies import RandomSearch
from haltune.space import Space
from haltune.store.base import Store
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store
from haltune.study import Study
from haltune.study.joining.loading import load_study

from .library import PREFIX, PROBLEM, optuna
from .spaces import ENDS, WHOLE, FrozenTrial, Translated, TrialState, alike, curve_of, space_of

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


_WORKER = "optuna"
_REASON = "enqueued by you, in the place of: drawn at random"  # what a study of the policy would say, and a replay does
_STATUS = {**ENDS, TrialState.FAIL: Status.FAILED, TrialState.RUNNING: Status.INTERRUPTED}


@dataclass(frozen=True)
class RecordedTrial:
    """A trial of Optuna's."""

    trial: FrozenTrial
    config: dict[str, Any]  # of the space here
    curve: dict[int, float]  # epoch -> value, of the first objective
    further: Mapping[str, float] = field(default_factory=dict)  # other goals and what is limited, at its end

    @property
    def begins(self) -> float:
        """Seconds since the epoch; Optuna's datetimes are local."""
        start = self.trial.datetime_start
        return self.ends if start is None else start.timestamp()

    @property
    def ends(self) -> float:
        """Likewise; of one that runs, where it began."""
        moment = self.trial.datetime_complete or self.trial.datetime_start
        return 0.0 if moment is None else moment.timestamp()


def _recorded(
    problem: Problem, policy: Policy[Any], whose: str, runs: Sequence[RecordedTrial]
) -> list[Event]:
    """The log of one study, in the order of its times; folded as it grows, so that what cannot follow is found here."""
    fold, written = Fold(problem, policy, f"the study {whose!r} of Optuna"), list[Event]()

    def write(event: Event) -> None:
        fold.take(event)
        written.append(event)

    started = [run for run in runs if run.trial.state is not TrialState.WAITING]
    now = min((run.begins for run in started), default=0.0)
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
                at=at, trial=trial, config=config, until=problem.max_epochs, resource=None, tags={}, reason=_REASON,
                evidence=_evidence(run), seen=fold.history.position, deciding=0.0, worker=_WORKER,
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
    """(time, trial, which of it, run, what it reports or None): its start, its reports and its end.

    The last value of its curve is the value that Optuna has for the trial.
    """
    curve, final = dict(run.curve), (run.trial.values or [None])[0]
    if run.trial.state is TrialState.COMPLETE and final is not None:
        counts = problem.goal.of == "last" or not curve
        last = max(curve, default=problem.max_epochs or 1)
        if counts and not alike(curve.get(last, math.nan), final):
            curve[last] = final
    reports = sorted(curve.items())
    seconds = (run.ends - run.begins) / max(1, len(reports))
    yield run.begins, run.trial.number, 0, run, None
    for i, (epoch, value) in enumerate(reports, 1):
        told = (epoch, value, max(0.0, seconds), run.further if i == len(reports) else {})
        yield run.begins + i * seconds, run.trial.number, i, run, told
    yield max(run.ends, run.begins), run.trial.number, len(reports) + 1, run, None


def _evidence(run: RecordedTrial) -> dict[str, Any]:
    """What Optuna knows of a trial besides, as far as a log keeps it."""
    told: dict[str, Any] = {"number": run.trial.number}
    for name, value in run.trial.user_attrs.items():
        if not name.startswith(PREFIX):
            try:
                told[name] = plain(value)
            except InvalidInput as error:
                told[name] = one_line(error)
    return {ENQUEUED: True, "optuna": told}


_log = logging.getLogger("haltune")


def from_study(
    study: optuna.Study,
    store: str | os.PathLike[str] | Store | None = None,
    name: str | None = None,
    *,
    max_epochs: int | None = None,
    space: Space | None = None,
) -> Study:
    """What an Optuna study has found, as a study of haltune: `Study(..., learn_from=[from_study(study)])`.

    Steps are taken for epochs, from 1 where Optuna's count from 0; a study that has none trains one epoch.

    Args:
        study: Optuna's study. Several objectives are several goals, of which `learn_from=` takes the first; its trials'
            constraints are constraints "constraint_0", ..., at most 0.
        store: Where the log is kept, as Study takes it. Default: None, memory.
        name: Of the study there. Default: None, its name in Optuna.
        max_epochs: Epochs of a full training. Default: None, those of the longest trial.
        space: What was searched. Default: None, as the trials show it: a parameter that some lack has the condition
            that tells these from the others.

    Returns:
        The study: `learn_from=` takes it, `problem.space` is its space. What has no counterpart here is logged.

    Raises:
        InvalidInput: For what is no study of Optuna's, when the store holds a study of that name, and for epochs that
            trials exceed.
        InvalidSpace: When no trial shows a space, or a distribution has no counterpart.

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
            f"from_study takes a study of Optuna's, optuna.load_study(study_name=..., storage=...), not {study!r}"
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
    lacking = f"{plural(outside, 'trial')} left out, which lack a parameter or lie outside the space"
    objectives = objectives_of(study, [(run.trial, run.curve) for run in runs])
    runs = [replace(run, further=objectives.further(run.trial)) for run in runs]
    longest = max([1, *(max(run.curve) for run in runs if run.curve)])
    horizon = max_epochs or max(study.user_attrs.get(PROBLEM, {}).get("max_epochs") or 1, longest)
    if horizon < longest:
        raise InvalidInput(f"max_epochs={horizon}: a trial of {study.study_name!r} has {longest}")
    problem = Problem(translated.space, objectives.goals, horizon, constraints=objectives.constraints)
    store = MemoryStore() if store is None else open_store(store)
    name = name or study.study_name
    events = _recorded(problem, RandomSearch(), study.study_name, runs)
    created = events[0]
    assert isinstance(created, Created)
    if not store.create(name, created) and not store.replace(
        name, created, 1
    ):  # 1: this was broken off before
        raise InvalidInput(
            f"{store.url} holds a study {name!r} already: load_study opens it, or give another name="
        )
    store.append(name, events[1:], seen=1, about=None)
    for said in [*translated.notes, *[lacking] * bool(outside), *objectives.notes]:
        _log.info("%r from Optuna: %s", name, said)
    return load_study(store, name, verbose=0)
