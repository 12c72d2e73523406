"""haltune.tuners: the common part of the bridges to other tuners. A study decides about trials that they train.

A `Conductor` has a study and the names of its trials in the other tuner. Most other tuners cannot pause a trial and
resume it later. Then the first trial that the policy pauses keeps training. MultiFidelity, the default search, learns
from it that trials cannot pause, and stops them from then on. If another policy still pauses trials, they are stopped;
when one is resumed, it starts again as a new trial of the other tuner.

The state is JSON: the log of a study in memory, or, if the study is in a file or a database, only the names of its
trials. A restored conductor has the same trials with the same leases: each continues, and repeated reports are ignored.
Trials that the study started after the state was written are offered again; those that it stopped stop again.

The end of this module converts other tuners' ranges and choices to haltune's domains.
"""

from __future__ import annotations

import logging
import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from threading import RLock
from typing import Any

from haltune._utils.checks import check_whole
from haltune.errors import InvalidInput, InvalidSpace, LeaseLost, warn
from haltune.log.decisions import Action, Finish, Verdict, Wait, continue_
from haltune.log.events import OVER, Status, from_json, to_json
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Maximize, Minimize, Problem
from haltune.space.domains import Choice, Constant, Domain, Float, Int
from haltune.space.space import Constraints
from haltune.store.base import Lease
from haltune.store.memory import MemoryStore
from haltune.study import Study, Trial
from haltune.study.attempt import Failure
from haltune.study.loading import load_study

UNLIMITED = Budget(epochs=math.inf)  # the other tuner ends the search
MOST_VALUES = 1000  # largest range with steps that becomes a list
_log = logging.getLogger("haltune")
_KINDS: dict[Any, type[Maximize] | type[Minimize]] = {"max": Maximize, "min": Minimize}
_VERSION = 1  # of the state's format


def goal_of(
    who: str, metric: Any, mode: Any, bounds: tuple[float, float] | None = None, of: Any = "last"
) -> Maximize | Minimize:
    """Return the goal. Raises InvalidInput for an invalid metric or mode."""
    if not metric or not isinstance(metric, str):
        raise InvalidInput(f"{who} needs the name of one metric, such as metric='val_acc'; got {metric!r}")
    if mode not in _KINDS:
        raise InvalidInput(f"{who} needs mode='max' or mode='min'; got {mode!r}")
    return _KINDS[mode](metric, bounds, of)


def check_epochs(who: str, max_epochs: Any, min_epochs: Any = 0) -> int:
    """Return max_epochs. Raises InvalidInput if a number of epochs is invalid or missing."""
    if max_epochs is None:
        raise InvalidInput(f"{who} needs max_epochs=, the number of epochs of a full training")
    check_whole(who, 1, max_epochs=max_epochs)
    check_whole(who, 0, min_epochs=min_epochs)
    if min_epochs > max_epochs:
        raise InvalidInput(f"{who}: min_epochs={min_epochs} is above max_epochs={max_epochs}. Lower min_epochs.")
    return int(max_epochs)


class Conductor:
    """A study, and its trials that the other tuner is training.

    pauses: True if the other tuner's trials save their state and continue from it.
    """

    def __init__(self, study: Study, pauses: bool = False) -> None:
        self.study, self.pauses = study, pauses
        self.held: dict[str, Trial] = {}  # running trials by the other tuner's names
        self.numbers: dict[str, int] = {}  # names of all started trials -> their numbers in the study
        self.reasons: dict[str, str] = {}  # names of stopped trials -> reasons
        self.declined: int | None = None  # the trial that kept training instead of pausing
        self.succeeds = ""  # the holder whose trials it took over, until its first trial or report
        self._lock = RLock()
        self._other: dict[str, list[str]] = {}  # running trials -> numbers in their last result without the metric
        self._warned: set[str] = set()
        self._renewed = study.session.monotonic()

    def begin(self, name: str) -> Trial | Wait | Finish:
        """Return the trial to train under a name; the same trial at each call."""
        with self._lock:
            self._renew()
            if name not in self.held:
                answer = self.study.ask()
                if isinstance(answer, Wait | Finish):
                    return answer
                self.hold(name, answer)
            return self.held[name]

    def hold(self, name: str, trial: Trial) -> None:
        self.held[name], self.numbers[name] = trial, trial.id
        self.reasons.pop(name, None)  # it continues

    def rename(self, name: str, to: str) -> None:
        trial = self.held.pop(name)
        del self.numbers[name]
        self.hold(to, trial)

    def read(
        self, name: str, result: Mapping[str, Any] | None, epoch: str, is_own: Callable[[str], bool], seconds: str = ""
    ) -> dict[str, Any] | None:
        """Return the arguments of `report`; None if the metric or the epoch is missing or not a number.

        epoch, seconds: names in the result. is_own: returns True for a number that the tuner adds itself.
        """
        given, metric = dict(result or {}), self.study.problem.goal.metric
        value, at, took = given.get(metric), given.get(epoch), given.get(seconds)
        metrics = {
            str(key): float(number)
            for key, number in given.items()
            if isinstance(number, numbers.Real) and not isinstance(number, bool) and key not in (metric, epoch)
            and not is_own(str(key))
        }  # fmt: skip
        if not isinstance(value, numbers.Real):
            if given:
                self._other[name] = list(metrics)
            return None
        if not isinstance(at, numbers.Real):
            self._warn_once(
                f"Results without a number {epoch!r} are ignored, because it counts epochs. This one has "
                f"{_listed([metric, *metrics])}. Report {epoch!r}, or set time_attr= to a number that counts from 1."
            )
            return None
        if not float(at) > 0:
            self._warn_once(f"Results with {epoch}={at} are ignored, because epochs count from 1. Report {epoch} + 1.")
            return None
        took = float(took) if isinstance(took, numbers.Real) and float(took) > 0 else None
        return {"value": float(value), "epoch": float(at), "seconds": took, "metrics": metrics}

    def report(
        self,
        name: str,
        value: float,
        epoch: float,
        seconds: float | None = None,
        metrics: Mapping[str, float] | None = None,
        judge: bool = True,
    ) -> Verdict:
        """Return the verdict on an epoch; for an ended trial or a known epoch, the earlier verdict."""
        with self._lock:
            self._renew()
            trial = self.held.get(name)
            if trial is None:
                return self._after_end(name)
            before = trial.verdict or continue_("no epoch was judged yet")
            if before.stops or epoch <= trial.epoch:
                return before
            if trial.horizon is not None and epoch > trial.horizon:
                self._warn_once(
                    f"A trial reported epoch {epoch:g}, but a full training has {trial.horizon} epochs. Later epochs "
                    f"are ignored. Set max_epochs={epoch:g} or more to include them."
                )
                return before
            verdict = trial.report(value, epoch, seconds, metrics=metrics, judge=judge)
            if "warning" in verdict.evidence:
                self._warn_once(str(verdict.evidence["warning"]))
            if verdict.action is Action.PAUSE and self.pauses:
                trial.checkpointed(f"other-tuner:{name}")  # which saves the state; a restored search has it, too
            elif verdict.action is Action.PAUSE and self.declined in (None, trial.id):
                self.declined = trial.id
                trial.decline_pause()
                return continue_(f"trials cannot pause here: {verdict.reason}")
            if verdict.stops:
                self.reasons[name] = verdict.reason
                _log.info("Trial %s stopped at epoch %g: %s", name, epoch, verdict.reason)
            return verdict

    def end(self, name: str, error: str | None = None, cut: bool = False) -> None:
        """End a trial. error: reason of a failure. cut: another scheduler may have stopped it early."""
        with self._lock:
            trial, other = self.held.pop(name, None), self._other.pop(name, None)
            if trial is None:
                return
            if error is None and not trial.epoch:
                error = "ended without a report of the metric"
                if other is not None:
                    metric = self.study.problem.goal.metric
                    self._warn_once(
                        f"A trial ended, but none of its results has a number {metric!r}. The last one has "
                        f"{_listed(other)}. Trials without {metric!r} fail: report it, or name another metric."
                    )
            if error is not None:
                trial.fail(Failure(error))
                return
            stopped = trial.verdict is not None and trial.verdict.stops
            early = trial.horizon is not None and trial.epoch < trial.horizon
            trial.finish("stopped" if cut and early and not stopped else None)

    def _after_end(self, name: str) -> Verdict:
        """Return the verdict that ended a trial; a tuner that was restored from before its end trains it again."""
        id = self.numbers.get(name)
        r = None if id is None else self.study.history.trial(id)
        if r is None or r.verdict is None or r.status not in (Status.STOPPED, Status.PAUSED):
            return continue_("the trial has ended here")
        self.reasons.setdefault(name, r.verdict.reason)
        return r.verdict

    def warn_of_failed(self, name: str) -> None:
        """Warn if a trial that has failed trains again: a failed trial does not continue in the study."""
        id = None if name in self.held else self.numbers.get(name)
        if id is not None and self.study.history.trial(id).status is Status.FAILED:
            self._warn_once(
                f"Trial {name} has failed, and trains again, so its results do not count from here on. To let Ray Tune "
                "try a trial again within the same run, use FailureConfig(max_failures=2)."
            )

    def restore_verdict(self, name: str) -> None:
        """Set a trial's verdict to that of the log, which may be later than the restored state."""
        trial = self.held[name]
        verdict = trial.verdict = self.study.history.trial(trial.id).verdict  # None after CONTINUE
        if verdict is None:
            return
        if verdict.action is Action.PAUSE and not self.pauses and self.declined in (None, trial.id):
            self.declined = trial.id
            trial.decline_pause()
        else:
            self.reasons[name] = verdict.reason

    def _renew(self) -> None:
        """Renew the leases of trials with long epochs."""
        session = self.study.session
        if self.succeeds:  # not before: a program may only look at a restored search, while the other one runs
            session.succeed(self.succeeds)
            self.succeeds = ""
        if session.monotonic() - self._renewed > session.lease_seconds / 4.0:
            self._renewed = session.monotonic()
            for trial in self.held.values():
                trial.heartbeat()

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn(text)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no other number"


def state_of(conductor: Conductor | None) -> dict[str, Any]:
    """Return the state as strict JSON. None: the search has not started."""
    if conductor is None:
        return {"haltune": _VERSION}
    study = conductor.study
    study.sync()
    log = study.session.log
    in_memory = isinstance(log.store, MemoryStore)
    return {
        "haltune": _VERSION,
        "name": study.name,
        "store": log.store.url,
        "holder": conductor.succeeds or study.session.holder,
        "held": {name: [trial.id, trial.attempt] for name, trial in conductor.held.items()},
        "declined": conductor.declined,
        "pauses": conductor.pauses,
        "numbers": dict(conductor.numbers),
        "reasons": dict(conductor.reasons),
        "budget": study.budget.to_json(),
        **({"events": [to_json(event) for event in log.events()]} if in_memory else {}),
    }


def conductor_of(
    state: Any,
    store: str | os.PathLike[str] | None = None,
    policy: Policy[Any] | None = None,
    constraints: Constraints = (),
) -> Conductor | None:
    """Return the conductor of a state. store: the log's store, unless the state has the log.

    policy, constraints: see load_study. Raises InvalidInput for an invalid state, and load_study's errors.
    """
    if not isinstance(state, Mapping) or state.get("haltune") != _VERSION:
        raise InvalidInput(
            "This is not a state of haltune, or a later version wrote it. Update haltune, or use another file."
        )
    if "name" not in state:
        return None
    name, holder = str(state["name"]), str(state["holder"])
    place: Any = store or str(state["store"])
    if "events" in state:
        place = MemoryStore()
        first, *others = [from_json(event) for event in state["events"]]
        place.create(name, first)
        seen = place.append(name, others, seen=1, about=None) + len(others)
        for id, attempt in state["held"].values():
            now = place.now()
            place.append(name, [], seen=seen, about=id, lease=Lease(id, attempt, holder, now, now))
    budget = Budget(**state["budget"]) if state["budget"] else UNLIMITED
    study = load_study(place, name, policy=policy, constraints=constraints, budget=budget, verbose=0)
    conductor = Conductor(study, bool(state["pauses"]))
    conductor.succeeds = holder
    conductor.numbers.update(state["numbers"])
    known = set(conductor.numbers.values())
    unknown = [t.id for t in study.trials if t.status in OVER and t.id not in known]
    if unknown and budget.trials is not None:  # the other tuner trains others instead
        study.budget = replace(budget, trials=budget.trials + len(unknown))
    conductor.numbers |= {f"unknown {id}": id for id in unknown}  # a state that is read back again counts them once
    for key, (id, attempt) in state["held"].items():
        try:
            conductor.hold(key, study.take(id, attempt, holder, lambda: None))
        except LeaseLost:
            continue  # it ended after the state was written
        _ = conductor.held[key].checkpoint  # the other tuner has loaded the trial's state
    conductor.reasons.update(state["reasons"])
    conductor.declined = state["declined"]
    for key in conductor.held:
        conductor.restore_verdict(key)
    return conductor


class Conducting:
    """Base class of the bridges' searches and schedulers. Their pickles contain JSON of the study.

    A subclass sets `_store`, `_policy`, `_options` (of Study) and, if it has them, `_points`, and `_problem_now()`.
    """

    _conductor: Conductor | None = None
    _saved: dict[str, Any] | None = None  # the state from which a copied or restored object continues
    _store: str | os.PathLike[str] | None = None
    _policy: Policy[Any] | None = None
    _budget = UNLIMITED
    _pauses = False
    _points: Sequence[Mapping[str, Any]] = ()  # configurations to train first
    _options: Mapping[str, Any]

    def _problem_now(self) -> Problem:
        raise NotImplementedError

    def _constraints(self) -> Any:
        return ()

    @property
    def conductor(self) -> Conductor:
        """The study with the other tuner's names of its trials. Raises InvalidInput if a study is not possible yet."""
        if self._conductor is None and self._saved is not None:
            self._conductor = conductor_of(self._saved, self._store, self._policy, self._constraints())
            self._saved = None
        if self._conductor is None:
            problem = self._problem_now()
            study = Study(problem, self._policy, self._store, budget=self._budget, verbose=0, **self._options)
            for point in self._points:
                study.enqueue(point)
            self._conductor = Conductor(study, self._pauses)
        return self._conductor

    @property
    def study(self) -> Study:
        """The study that decides: its trials, its verdicts. Raises InvalidInput if a study is not possible yet."""
        return self.conductor.study

    @property
    def reasons(self) -> dict[str, str]:
        """Why trials were stopped, by the other tuner's names."""
        return {} if self._conductor is None and self._saved is None else dict(self.conductor.reasons)

    def _kept(self) -> dict[str, Any]:
        waits = self._conductor is None and self._saved is not None
        return dict(self._saved or {}) if waits else state_of(self._conductor)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_conductor": None, "_saved": self._kept()}


def grid_values(low: float, high: float, step: float) -> tuple[float, ...] | None:
    """Return low, low + step, ... up to high, as ints if all three are; None if there are too many."""
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
        values = range(low, high + 1, step)
        return tuple(values) if len(values) <= MOST_VALUES else None
    first, pace = Decimal(str(low)), Decimal(str(step))
    count = int((Decimal(str(high)) - first) / pace) + 1
    return tuple(float(first + k * pace) for k in range(count)) if count <= MOST_VALUES else None


def domain_of(domain: Any, words: Any, known: str, open_above: bool) -> Domain:
    """Return the counterpart of another tuner's domain. Raises InvalidSpace if it has none.

    words: the module of its classes, Float, Integer, Categorical, Uniform, LogUniform and Quantized. known: the
    supported domains, for the error. open_above: whole numbers exclude their upper bound, unless they have steps.
    """
    sampler, step = domain.get_sampler(), None
    if isinstance(sampler, words.Quantized):
        sampler, step = sampler.get_sampler(), sampler.q
    plain, log = isinstance(sampler, words.Uniform), isinstance(sampler, words.LogUniform)
    if isinstance(domain, words.Categorical) and plain and step is None:
        return choice_of(domain.categories, words.Domain, known)
    if isinstance(domain, words.Float) and (plain or log):
        if step is None:
            return Float(domain.lower, domain.upper, log=log)
        return _stepped(float(domain.lower), float(domain.upper), float(step), log)
    if isinstance(domain, words.Integer) and (plain or log):
        high = int(domain.upper) - (open_above and step is None)
        if step is None or step == 1:
            return Int(int(domain.lower), high, log=log)
        return _stepped(int(domain.lower), high, int(step), log)
    raise InvalidSpace(known)


def choice_of(options: Any, ranges: type | tuple[()] = (), known: str = "", ordered: bool = False) -> Domain:
    """Return a choice, or the constant if there is one option. Raises InvalidSpace if an option is one of `ranges`."""
    if any(isinstance(option, ranges) for option in options):
        raise InvalidSpace(f"a choice among ranges is not supported; {known}")
    return Choice(options, ordered=ordered) if len(options) > 1 else Constant(options[0])


def _stepped(low: float, high: float, step: float, log: bool) -> Domain:
    values = grid_values(low, high, step)
    if log or values is None:
        why = "steps on a log scale are not supported" if log else f"it has more than {MOST_VALUES} steps"
        raise InvalidSpace(f"{why}. Omit the steps, and round in your training")
    return choice_of(values, ordered=True)
