"""A study that conducts trials which another tuner trains, each under its name there, and its state as JSON.

Most other tuners cannot pause a trial and resume it later. There the first trial that the policy pauses trains on: from
it MultiFidelity, the default search, learns that trials cannot pause, and stops them for good from then on. Under a
policy that keeps pausing, the next are stopped; one that is resumed starts again, as a new trial of the other tuner.

Of a study in memory the JSON holds the log, of one in a file or a database only the names of its trials. A restored
conductor holds the trials that it held, under the leases that they had: each continues where it was, and repeated
reports are known already. Trials that the study started after the state was written are offered again.
"""

from __future__ import annotations

import json
import logging
import math
import numbers
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Any

from haltune._utils.checks import check_whole
from haltune.errors import InvalidInput, LeaseLost, warn
from haltune.log.decisions import Action, Finish, Verdict, Wait, go_on
from haltune.log.events import OVER, Status, from_json, to_json, verdict_from_json, verdict_to_json
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Maximize, Minimize, Problem
from haltune.space import Space
from haltune.space.space import Constraints
from haltune.store.base import Lease, Store
from haltune.store.memory import MemoryStore
from haltune.study import Study, Trial
from haltune.study.joining.loading import load_study
from haltune.study.session.session import Failure

UNLIMITED = Budget(epochs=math.inf)  # the other tuner ends the search
_log = logging.getLogger("haltune")
_KINDS: dict[Any, type[Maximize] | type[Minimize]] = {"max": Maximize, "min": Minimize}


def goal_of(
    who: str, metric: Any, mode: Any, bounds: tuple[float, float] | None, of: Any
) -> Maximize | Minimize:
    """A goal by the words of other tuners. Raises InvalidInput for what is none."""
    if not metric or not isinstance(metric, str):
        raise InvalidInput(f"{who} needs the name of one metric: metric='val_acc', not {metric!r}")
    if mode not in _KINDS:
        raise InvalidInput(f"{who} needs mode='max' or mode='min', not {mode!r}")
    return _KINDS[mode](metric, bounds, of)


def anonymous(goal: Maximize | Minimize, max_epochs: int, min_epochs: int = 0) -> Problem:
    """For runs that are compared by their curves alone: whatever they train counts for one configuration."""
    return Problem(Space({"configuration": "any"}), goal, max_epochs, min_epochs=min_epochs)


class Conductor:
    """A study, and the trials of it that the other tuner trains at the moment."""

    def __init__(self, study: Study, pauses: bool = False) -> None:
        self.study = study
        self.pauses = pauses  # the other tuner's trials save their states, and go on from them
        self.held: dict[str, Trial] = {}  # by the other tuner's names
        self.numbers: dict[str, int] = {}  # of all that were begun: their numbers in the study
        self.reasons: dict[str, str] = {}  # of those that were stopped
        self.declined: int | None = None  # the run that trains on where it is to pause
        self._lock = RLock()
        self._said: set[str] = set()
        self._renewed = study.session.monotonic()

    def begin(self, name: str) -> Trial | Wait | Finish:
        """The trial to train under a name, the same when it is asked again; Wait for others; or the end."""
        with self._lock:
            self._renew()
            if name not in self.held:
                answer = self.study.ask()
                if isinstance(answer, Wait | Finish):
                    return answer
                self.hold(name, answer)
            return self.held[name]

    def rename(self, name: str, to: str) -> None:
        """Know a trial that is held by another name."""
        trial = self.held.pop(name)
        del self.numbers[name]
        self.hold(to, trial)

    def hold(self, name: str, trial: Trial) -> None:
        """Know a trial by a name."""
        self.held[name], self.numbers[name] = trial, trial.id
        self.reasons.pop(name, None)  # it goes on

    def report(
        self,
        name: str,
        value: float,
        epoch: float,
        seconds: float | None = None,
        metrics: Mapping[str, float] | None = None,
        judge: bool = True,
    ) -> Verdict:
        """What the study says to the value of an epoch; of what is over or known already, what it said before."""
        with self._lock:
            self._renew()
            trial = self.held.get(name)
            if trial is None:
                return go_on("it is over here")
            said = trial.verdict or go_on("nothing was said yet")
            if said.stops or epoch <= trial.epoch:
                return said
            if trial.horizon is not None and epoch > trial.horizon:
                self._warn_once(
                    f"a trial reported epoch {epoch:g}, and haltune was told that a training has {trial.horizon}: "
                    f"max_epochs={epoch:g} or more lets it decide there, too. What comes later is left out"
                )
                return said
            took = seconds if seconds is not None and seconds > 0 else None
            verdict = trial.report(value, epoch, took, metrics=metrics, judge=judge)
            if "warning" in verdict.evidence:
                self._warn_once(str(verdict.evidence["warning"]))
            if verdict.action is Action.PAUSE and self.pauses:
                trial.save(
                    lambda path: path.write_text(name, encoding="utf-8")
                )  # it lies with the other tuner
            elif verdict.action is Action.PAUSE and self.declined in (None, trial.id):
                self.declined = trial.id
                trial.go_on()
                return go_on(f"runs cannot pause here: {verdict.reason}")
            if verdict.stops:
                self.reasons[name] = verdict.reason
                _log.info("%s is stopped after epoch %g: %s", name, epoch, verdict.reason)
            return verdict

    def end(self, name: str, error: str | None = None, cut: bool = False) -> None:
        """A training is over. error: why it failed. cut: somebody else may have stopped it before its time."""
        with self._lock:
            trial = self.held.pop(name, None)
            if trial is None:
                return
            if error is None and not trial.epoch:
                error = "ended without one report of the metric"
            if error is not None:
                trial.session.end(trial, Status.FAILED, Failure(error))
                return
            stopped = trial.verdict is not None and trial.verdict.stops
            early = trial.horizon is not None and trial.epoch < trial.horizon
            trial.finish("stopped" if cut and early and not stopped else None)

    def _renew(self) -> None:
        """Renew the leases of trials whose epochs are long."""
        session = self.study.session
        if session.monotonic() - self._renewed > session.lease_seconds / 4.0:
            self._renewed = session.monotonic()
            for trial in self.held.values():
                trial.heartbeat()

    def _warn_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warn(text)


def check_epochs(who: str, max_epochs: Any, min_epochs: Any = 0) -> int:
    """Raises InvalidInput for what is no number of epochs, a missing one included."""
    if max_epochs is None:
        raise InvalidInput(f"{who} needs max_epochs=, the epochs of a full training")
    check_whole(who, 1, max_epochs=max_epochs)
    check_whole(who, 0, min_epochs=min_epochs)
    if min_epochs > max_epochs:
        raise InvalidInput(
            f"{who}: min_epochs={min_epochs} is more than max_epochs={max_epochs}. Lower min_epochs."
        )
    return int(max_epochs)


KeptState = dict[str, Any]
StoreLike = str | os.PathLike[str] | Store | None
_VERSION = 1


def state_of(conductor: Conductor | None) -> KeptState:
    """Strict JSON; None: of a search that has not begun."""
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
        "holder": study.session.holder,
        "held": {name: [trial.id, trial.attempt] for name, trial in conductor.held.items()},
        "told": {name: verdict_to_json(t.verdict) for name, t in conductor.held.items() if t.verdict},
        "declined": conductor.declined,
        "pauses": conductor.pauses,
        "numbers": dict(conductor.numbers),
        "reasons": dict(conductor.reasons),
        "budget": study.budget.to_json(),
        **({"events": [to_json(event) for event in log.events()]} if in_memory else {}),
    }


def conductor_of(
    state: Mapping[str, Any],
    store: StoreLike = None,
    policy: Policy[Any] | None = None,
    constraints: Constraints = (),
) -> Conductor | None:
    """The inverse. store: where the log is, unless the state says it all. policy, constraints: see load_study.

    Raises InvalidInput for what is no such state, and what load_study raises.
    """
    if not isinstance(state, Mapping) or state.get("haltune") != _VERSION:
        raise InvalidInput("this is no state of a search by haltune, or one of a later version")
    if "name" not in state:
        return None
    name, holder = str(state["name"]), str(state["holder"])
    if "events" in state:
        store = refilled = MemoryStore()
        first, *others = [from_json(event) for event in state["events"]]
        refilled.create(name, first)
        seen = refilled.append(name, others, seen=1, about=None) + len(others)
        for id, attempt in state["held"].values():
            now = refilled.now()
            refilled.append(name, [], seen=seen, about=id, lease=Lease(id, attempt, holder, now, now))
    budget = Budget(**state["budget"]) if state["budget"] else UNLIMITED
    study = load_study(
        store or str(state["store"]), name, policy=policy, constraints=constraints, budget=budget, verbose=0
    )
    conductor = Conductor(study, bool(state["pauses"]))
    conductor.numbers.update(state["numbers"])
    unheard = sum(t.status in OVER and t.id not in state["numbers"].values() for t in study.trials)
    if unheard and budget.trials is not None:  # the other tuner trains others in their place
        study.budget = replace(budget, trials=budget.trials + unheard)
    for key, (id, attempt) in state["held"].items():
        try:
            conductor.hold(key, study.take(id, attempt, holder, lambda: None))
        except LeaseLost:
            continue  # it ended after the state was written
    for key in conductor.held.keys() & state["told"].keys():
        conductor.held[key].verdict = verdict_from_json(state["told"][key])
    conductor.reasons.update(state["reasons"])
    conductor.declined = state["declined"]
    return conductor


def write_state(state: KeptState, path: str | os.PathLike[str]) -> None:
    """Write a state."""
    Path(path).write_text(json.dumps(state, allow_nan=False), encoding="utf-8")


def read_state(path: str | os.PathLike[str]) -> KeptState:
    """What was written. Raises InvalidInput for another file."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{path} holds no state of a search by haltune: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} holds no state of a search by haltune")
    return found


class Conducting:
    """Base of the bridges' searches and schedulers. A pickle, as other tuners make of them, holds JSON of the study."""

    _conductor: Conductor | None = None
    _saved: KeptState | None = None  # what a copy, or one that was restored, goes on from
    _store: str | os.PathLike[str] | None = None

    def _opened(self) -> Study:
        """The study, made or opened in its store."""
        raise NotImplementedError

    def _begun(self) -> Conductor:
        return Conductor(self._opened())

    def _loading(self) -> dict[str, Any]:
        """Further arguments of `conductor_of`."""
        return {}

    @property
    def conductor(self) -> Conductor:
        """The study with what the other tuner calls its trials. Raises InvalidInput before there can be a study."""
        if self._conductor is None and self._saved is not None:
            self._conductor = conductor_of(self._saved, self._store, **self._loading())
            self._saved = None
        if self._conductor is None:
            self._conductor = self._begun()
        return self._conductor

    @property
    def study(self) -> Study:
        """The study that decides: its trials, its verdicts. Raises InvalidInput before there is one."""
        return self.conductor.study

    @property
    def reasons(self) -> dict[str, str]:
        """Why trials were stopped, by the other tuner's names for them."""
        return {} if self._conductor is None and self._saved is None else dict(self.conductor.reasons)

    def _write(self, path: str | os.PathLike[str]) -> None:
        write_state(self._kept(), path)

    def _read(self, path: str | os.PathLike[str]) -> None:
        self._conductor, self._saved = None, read_state(path)

    def _kept(self) -> KeptState:
        return (
            self._saved if self._conductor is None and self._saved is not None else state_of(self._conductor)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_conductor": None, "_saved": self._kept()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True)
class Words:
    """How a tuner names the parts of a result."""

    metric: str
    epoch: str
    seconds: str  # of this result alone; "" where it is not there
    is_own: Callable[[str], bool]  # whether the tuner adds a number itself

    def read(self, result: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Arguments of `Conductor.report`; None where the metric or the epoch is missing, or is no number."""
        told: Mapping[str, Any] = result or {}
        value, epoch, seconds = (told.get(name) for name in (self.metric, self.epoch, self.seconds))
        if not isinstance(value, numbers.Real) or not isinstance(epoch, numbers.Real) or not float(epoch) > 0:
            return None
        metrics = {
            str(name): float(number)
            for name, number in told.items()
            if isinstance(number, numbers.Real)
            and not isinstance(number, bool)
            and name not in (self.metric, self.epoch)
            and not self.is_own(str(name))
        }
        took = float(seconds) if isinstance(seconds, numbers.Real) else None
        return {"value": float(value), "epoch": float(epoch), "seconds": took, "metrics": metrics}
