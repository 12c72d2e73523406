"""Replay a log's decisions: with its own policy, to compare them, or with another policy, to see the difference.

The log is the only state, so its own policy must decide everything as it was recorded. A difference shows a changed
policy, a changed library, or a defect.

With another policy (`Replayed`) the configurations and their order are those of the log, and only `judge` is called:
at the same reports, and on the data that the log's policy had seen, minus what the new policy ended. A trial that it
stops ends there; its later epochs are not seen. A pause also ends a trial, unless the log paused it at the same report:
then the trial continues as in the log. A trial that the log ended and the new policy would continue stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from haltune.display import one_line
from haltune.errors import HaltuneError, InvalidInput
from haltune.log import events as ev
from haltune.log.decisions import ASKED, CUT, FULL, Action, Resume, Start, Verdict
from haltune.log.events import Reported, Status, plain, trial_of, verdict_to_json
from haltune.log.history import History
from haltune.log.policy import Fold, Policy
from haltune.log.problem import Problem
from haltune.log.scores import outgrown
from haltune.policies.from_spec import suited

from .asking import propose
from .judging import judge


def replay(problem: Problem, policy: Policy[Any], log: Iterable[ev.Event]) -> Iterator[tuple[int, Any, Any]]:
    """Yield (position, recorded, found) for each decision of the policy, both in comparable JSON.

    They come in the order of the log positions that the decisions had seen: workers that decide at the same time append
    in another order.
    """
    events = list(log)
    prefix = Fold(problem, suited(policy, problem))
    decisions = [(n, made) for n, e in enumerate(events) if (made := _recorded(e, problem)) is not None]
    for position, recorded in sorted(decisions, key=lambda d: (events[d[0]].seen, d[0])):  # type: ignore[attr-defined]
        for event in events[prefix.history.position : events[position].seen]:  # type: ignore[attr-defined]
            prefix.take(event)
        yield position, recorded, _asked(prefix, events[position])


def decided(answer: Any) -> Any:
    """Return a decision and its numbers without the reason, whose wording may differ between versions."""
    if isinstance(answer, Mapping):
        return {name: value for name, value in answer.items() if name != "reason"}
    return answer[:-1]


def _recorded(event: ev.Event, problem: Problem) -> Any:
    """Return the policy's answer that an event records; None if the policy did not decide it."""
    if isinstance(event, ev.Started):
        return ["start", event.config, event.pause_at, event.resource, event.tags, event.reason]
    if isinstance(event, ev.Resumed) and event.by_policy:
        return ["resume", event.trial, event.pause_at, event.resource, event.tags, event.reason]
    if isinstance(event, ev.Finished):
        return ["finish", event.reason]
    if isinstance(event, Reported):
        verdict = event.verdict
        judged = verdict.action is not Action.UNJUDGED and not {CUT, ASKED} & verdict.evidence.keys()
        full = problem.max_epochs is not None and event.epoch >= problem.max_epochs
        return verdict_to_json(verdict) if judged and not full else None
    return None


def _asked(prefix: Fold, event: ev.Event) -> Any:
    """Return the policy's answer after the events of `prefix`, in the form of `_recorded`."""
    history = prefix.history
    if isinstance(event, Reported):
        return verdict_to_json(judge(prefix, event.trial, event))
    move = propose(prefix)
    if not isinstance(move, Start | Resume):
        return [type(move).__name__.lower(), move.reason]
    pause_at = history.problem.max_epochs if move.pause_at is None else move.pause_at
    rest = [pause_at, move.resource, plain(move.tags), move.reason]
    if isinstance(move, Start):
        return ["start", plain(history.problem.space.canonical(move.config)), *rest]
    return ["resume", move.trial, *rest]


class Replayed:
    """A log's trials under another policy; without one, as in the log."""

    def __init__(self, problem: Problem, log: Sequence[ev.Event], policy: Policy[Any] | None = None) -> None:
        self._fold = None if policy is None else Fold(problem, suited(policy, problem))
        self.history = History(problem) if self._fold is None else self._fold.history
        self.trained: dict[int, float] = {}  # trial -> epochs, those of superseded attempts included
        self.ended: dict[int, Verdict] = {}  # trial -> the policy's verdict that ended it
        self.incumbents: dict[int, float] = {}  # trial -> the best of the others at its last report; NaN: none
        self._log, self._taken = log, 0
        self._last_reports = {e.trial: n for n, e in enumerate(log) if isinstance(e, Reported)}
        self._verdicts: dict[int, Verdict] = {}  # position -> the policy's verdict on a report not yet folded
        self._paused: set[tuple[int, int]] = set()  # (trial, attempt) that both the policy and the log paused
        self._cut: set[int] = set()  # trials that the policy ended and the log did not
        if self._fold is not None:
            for seen, position, event in sorted(_judged_reports(log, problem), key=lambda found: found[:2]):
                self._take_until(seen)
                if (verdict := self._judge(self._fold, event)) is not None:
                    self._verdicts[position] = verdict
        self._take_until(len(log))

    def _judge(self, fold: Fold, event: Reported) -> Verdict | None:
        """Return the policy's verdict on a report; None if it is not asked."""
        unasked = event.verdict.action is Action.UNJUDGED and (event.trial, event.attempt) in self._paused
        if unasked or event.trial in self._cut or not self._counts(event):
            return None
        return judge(fold, event.trial, event)

    def _counts(self, event: Reported) -> bool:
        """Return whether a report enters the curve of its trial."""
        t = self.history.trial(event.trial)
        return t.attempt == event.attempt and t.status is Status.RUNNING and event.epoch > t.epoch

    def _take_until(self, position: int) -> None:
        for n in range(self._taken, position):
            event = self._log[n]
            if trial_of(event) in self._cut:
                continue
            if isinstance(event, Reported):
                self._report(n, event)
                continue
            if self._cut and isinstance(event, ev.Rescaled | ev.Started | ev.Resumed):
                # the scale that a study would have learnt before its next answer, from the curves as they are here
                new = self.history.learnt_scale()
                if new is not None and outgrown(self.history.scale, new):
                    self._apply(ev.Rescaled(at=event.at, low=new.low, high=new.high))
            if not (self._cut and isinstance(event, ev.Rescaled)):
                self._apply(event)
            if isinstance(event, ev.Resumed):
                self.ended.pop(event.trial, None)
        self._taken = max(self._taken, position)

    def _report(self, n: int, event: Reported) -> None:
        verdict, trial = self._verdicts.pop(n, None), event.trial
        if self._counts(event):
            epochs = event.epoch - self.history.trial(trial).epoch
            self.trained[trial] = self.trained.get(trial, 0.0) + (0.0 if event.copied else epochs)
            self.incumbents[trial] = self.history.incumbent(exclude=trial)
            self.ended.pop(trial, None)
        self._apply(event if verdict is None else replace(event, verdict=verdict))
        if verdict is None:
            if self._fold is None and _ends(event.verdict):
                self.ended[trial] = event.verdict
            return
        if not verdict.stops:
            return
        self.ended[trial] = verdict
        same = verdict.action is event.verdict.action
        if same and verdict.action is Action.PAUSE:
            self._paused.add((trial, event.attempt))
        elif not same or n != self._last_reports[trial]:  # or it continued in spite of the stop
            status = Status.STOPPED if verdict.action is Action.STOP else Status.PAUSED
            self._apply(ev.Ended(at=event.at, trial=trial, attempt=event.attempt, status=status))
            self._cut.add(trial)

    def _apply(self, event: ev.Event) -> None:
        if self._fold is None:
            self.history.apply(event)
            return
        try:
            self._fold.take(event)
        except HaltuneError:
            raise
        except Exception as error:
            name = type(self._fold.policy).__name__
            raise InvalidInput(
                f"{name} cannot judge the trials of this study ({one_line(error)}). Policies that assign a trial to a "
                "bracket as they start it, such as Hyperband, only judge their own trials."
            ) from error


def _ends(verdict: Verdict) -> bool:
    """Return whether the policy ended a trial early, not the budget, a user or the end of a training."""
    return verdict.stops and not {CUT, FULL, ASKED} & verdict.evidence.keys()


def _judged_reports(log: Sequence[ev.Event], problem: Problem) -> Iterator[tuple[int, int, Reported]]:
    """Yield (position seen, position, report) of the reports on which a policy is asked.

    These are the ones that the log's policy judged, except for the last report of a trial that got all that any trial
    gets, and those of a training that continued in spite of its verdict.
    """
    ended: set[tuple[int, int]] = set()  # (trial, attempt)
    for position, e in enumerate(log):
        if not isinstance(e, Reported):
            continue
        if problem.max_epochs is not None and e.epoch >= problem.max_epochs:
            continue
        if e.verdict.action is Action.UNJUDGED:
            asked = (e.trial, e.attempt) in ended
        else:
            asked = not {CUT, FULL, ASKED} & e.verdict.evidence.keys()
        if _ends(e.verdict):
            ended.add((e.trial, e.attempt))
        if asked:
            yield min(e.seen, position), position, e
