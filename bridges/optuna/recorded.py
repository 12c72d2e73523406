"""The events that a study of haltune would have recorded, had it seen what Optuna saw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any

from haltune._utils.words import one_line
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.codec import plain
from haltune.log.decisions import ASKED, ENQUEUED, Action, Verdict, stop
from haltune.log.events import Event, Status
from haltune.log.fold import Fold
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.log.scores import outgrown

from .curves import ENDS, FrozenTrial, TrialState, alike
from .library import PREFIX

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
        return _stamp(start) if start is not None else self.ends

    @property
    def ends(self) -> float:
        """Likewise; of one that runs, where it began."""
        end = self.trial.datetime_complete
        return _stamp(end or self.trial.datetime_start)


def _stamp(moment: datetime | None) -> float:
    return 0.0 if moment is None else moment.timestamp()


class Recorder:
    """Writes the log of one study, and folds it as it grows: what cannot follow is found here."""

    def __init__(self, problem: Problem, policy: Policy[Any], whose: str) -> None:
        self._problem, self._whose = problem, whose
        self._fold = Fold(problem, policy, f"the study {whose!r} of Optuna")
        self._policy = policy
        self._written: list[Event] = []

    def events(self, runs: Sequence[RecordedTrial]) -> list[Event]:
        """All of them, in the order of their times."""
        begun = [run for run in runs if run.trial.state is not TrialState.WAITING]
        now = min((run.begins for run in begun), default=0.0)
        problem, policy = plain(self._problem.to_json()), plain(self._policy.spec)
        id = sha256(repr([self._whose, now, problem]).encode()).hexdigest()[:12]
        self._write(ev.Created(at=now, problem=problem, policy=policy, seed=0, id=id))
        facts = [fact for run in begun for fact in self._facts(run)]
        numbers: dict[int, int] = {}
        for at, _, _, run, report in sorted(facts, key=lambda fact: fact[:3]):
            if run.trial.number not in numbers:
                numbers[run.trial.number] = len(numbers)
                self._begin(run, numbers[run.trial.number], at)
            elif report is None:
                self._end(run, numbers[run.trial.number], at)
            else:
                self._report(run, numbers[run.trial.number], at, *report)
        last = max((run.ends for run in begun), default=now)
        for run in runs:
            if run.trial.state is TrialState.WAITING:
                self._write(ev.Enqueued(at=last, config=plain(run.config)))
        return self._written

    def _facts(self, run: RecordedTrial) -> Iterator[tuple[float, int, int, RecordedTrial, Any]]:
        """(time, trial, which of it, run, what it reports or None): its beginning, its reports and its end."""
        reports = self._reports(run)
        seconds = (run.ends - run.begins) / max(1, len(reports))
        yield run.begins, run.trial.number, 0, run, None
        for i, (epoch, value) in enumerate(reports, 1):
            told = (epoch, value, max(0.0, seconds), run.further if i == len(reports) else {})
            yield run.begins + i * seconds, run.trial.number, i, run, told
        yield max(run.ends, run.begins), run.trial.number, len(reports) + 1, run, None

    def _reports(self, run: RecordedTrial) -> list[tuple[int, float]]:
        """Its curve, whose last value is what Optuna says that it came to."""
        curve, final = dict(run.curve), (run.trial.values or [None])[0]
        if run.trial.state is TrialState.COMPLETE and final is not None:
            counts = self._problem.goal.of == "last" or not curve
            last = max(curve, default=self._problem.max_epochs or 1)
            if counts and not alike(curve.get(last, math.nan), final):
                curve[last] = final
        return sorted(curve.items())

    def _begin(self, run: RecordedTrial, trial: int, at: float) -> None:
        new = self._fold.history.learnt_scale()
        if new is not None and outgrown(self._fold.history.scale, new):
            self._write(ev.Rescaled(at=at, low=new.low, high=new.high))
        config = plain(run.config)
        self._write(ev.Enqueued(at=at, config=config))
        self._write(
            ev.Started(
                at=at,
                trial=trial,
                config=config,
                until=self._problem.max_epochs,
                resource=None,
                tags={},
                reason=_REASON,
                evidence=_evidence(run),
                seen=self._fold.history.position,
                deciding=0.0,
                worker=_WORKER,
            )
        )

    def _report(
        self,
        run: RecordedTrial,
        trial: int,
        at: float,
        epoch: int,
        value: float,
        seconds: float,
        further: Mapping[str, float],
    ) -> None:
        verdict = Verdict(Action.UNJUDGED, "reported to Optuna")
        if run.trial.state is TrialState.PRUNED and epoch == max(run.curve):
            verdict = stop("pruned in Optuna", **{ASKED: "not asked"})
        self._write(
            ev.Reported(
                at=at,
                trial=trial,
                attempt=1,
                epoch=float(epoch),
                value=float(value),
                seconds=seconds,
                verdict=verdict,
                seen=self._fold.history.position,
                metrics=dict(further),
            )
        )

    def _end(self, run: RecordedTrial, trial: int, at: float) -> None:
        error = run.trial.system_attrs.get("fail_reason") if run.trial.state is TrialState.FAIL else None
        status = _STATUS[run.trial.state]
        self._write(ev.Ended(at=at, trial=trial, attempt=1, status=status, error=error and str(error)))

    def _write(self, event: Event) -> None:
        self._fold.take(event)
        self._written.append(event)


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
