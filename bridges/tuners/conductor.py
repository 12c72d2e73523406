"""A study that conducts trials which another tuner trains, each under the name that it has there.

Most other tuners cannot pause a run and go on with it later. There the first that the policy pauses trains on: from
that MultiFidelity, the default search, learns that runs cannot pause, and stops them for good from then on. Under a
policy that goes on pausing, the next are stopped; one that is resumed begins anew, as a further trial of the other's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from threading import RLock
from typing import Any

from haltune._utils.checks import check_whole
from haltune.errors import InvalidInput, warn
from haltune.log.decisions import Action, Finish, Verdict, Wait, go_on
from haltune.log.events import Status
from haltune.log.problem import Budget, Maximize, Minimize, Problem
from haltune.space import Space
from haltune.study import Study, Trial
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
