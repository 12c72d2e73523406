"""A log lived again under another stopping rule: its configurations in its order, and only `judge` is asked anew.

The rule is asked where the log's own policy was, on what that one had seen, as the rule itself left it. A run that it
stops ends there: nobody sees its later epochs. A pause ends a run, too, unless the log paused it at the same report:
then what came of the pause there comes of it here. Where the rule would go on and the log did not, the run stands as
it stood in the log. Beyond that the log knows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from haltune.display import one_line
from haltune.errors import HaltuneError, InvalidInput
from haltune.log import events as ev
from haltune.log.decisions import ASKED, CUT, FULL, Action, Verdict
from haltune.log.events import Reported, Status, trial_of
from haltune.log.history import History
from haltune.log.policy import Fold, Policy
from haltune.log.problem import Problem
from haltune.log.scores import outgrown
from haltune.policies.from_spec import suited

from .judging import judge, with_report


class Lived:
    """What became of a log's runs under a rule; without one, what the log says."""

    def __init__(self, problem: Problem, log: Sequence[ev.Event], policy: Policy[Any] | None = None) -> None:
        self.history = History(problem)
        self.trained: dict[int, float] = {}  # trial -> epochs, those of superseded attempts included
        self.ended: dict[int, Verdict] = {}  # trial -> the rule's last word, where that ended it
        self.incumbents: dict[
            int, float
        ] = {}  # trial -> the best of the others at its last report; NaN: none
        self._fold = None if policy is None else Fold(problem, suited(policy, problem))
        if self._fold is not None:
            self.history = self._fold.history
        self._log, self._taken = log, 0
        self._lasts = {e.trial: n for n, e in enumerate(log) if isinstance(e, Reported)}
        self._verdicts: dict[
            int, Verdict
        ] = {}  # position -> the rule's answer to a report that is not yet folded
        self._paused: set[tuple[int, int]] = set()  # (trial, attempt) that the rule paused where the log did
        self._cut: set[int] = set()  # trials that the rule ended and the log did not
        self._live()

    def _live(self) -> None:
        """All events; before each decision those that it had seen, which other workers may have appended late."""
        if self._fold is not None:
            for seen, position, event in sorted(_decisions(self._log, self.history.problem), key=_order):
                self._take_until(seen)
                if (found := self._judged(self._fold, event)) is not None:
                    self._verdicts[position] = found
        self._take_until(len(self._log))

    def _judged(self, fold: Fold, event: Reported) -> Verdict | None:
        """The rule's answer to a report; None where it is not asked."""
        unasked = event.verdict.action is Action.UNJUDGED and (event.trial, event.attempt) in self._paused
        if unasked or event.trial in self._cut or not self._counts(event):
            return None
        trial = with_report(self.history, self.history.trial(event.trial), event)
        return judge(fold.policy, fold.state, self.history, trial)

    def _counts(self, event: Reported) -> bool:
        """True for a report that enters the curve of its trial."""
        r = self.history.trial(event.trial)
        return r.attempt == event.attempt and r.status is Status.RUNNING and event.epoch > r.epoch

    def _take_until(self, position: int) -> None:
        for n in range(self._taken, position):
            if trial_of(self._log[n]) not in self._cut:
                self._take(n)
        self._taken = max(self._taken, position)

    def _take(self, n: int) -> None:
        event = self._log[n]
        if isinstance(event, Reported):
            self._report(n, event)
            return
        if self._cut and isinstance(event, (ev.Rescaled, ev.Started, ev.Resumed)):
            self._rescale(event.at)  # as a study does before it answers
        if not (self._cut and isinstance(event, ev.Rescaled)):
            self._apply(event)
        if isinstance(event, ev.Resumed):
            self.ended.pop(event.trial, None)

    def _report(self, n: int, event: Reported) -> None:
        found, trial = self._verdicts.pop(n, None), event.trial
        if self._counts(event):
            epochs = event.epoch - self.history.trial(trial).epoch
            self.trained[trial] = self.trained.get(trial, 0.0) + (0.0 if event.copied else epochs)
            self.incumbents[trial] = self.history.incumbent(exclude=trial)
            self.ended.pop(trial, None)
        self._apply(event if found is None else replace(event, verdict=found))
        if found is None:
            if ends(event.verdict) and self._fold is None:
                self.ended[trial] = event.verdict
        elif found.stops:
            self.ended[trial] = found
            if not self._as_logged(n, event, found):
                status = Status.STOPPED if found.action is Action.STOP else Status.PAUSED
                self._apply(ev.Ended(at=event.at, trial=trial, attempt=event.attempt, status=status))
                self._cut.add(trial)

    def _as_logged(self, n: int, event: Reported, found: Verdict) -> bool:
        """True when what the log says next of the trial is what follows from the verdict, too."""
        if found.action is not event.verdict.action:
            return False
        if found.action is Action.PAUSE:
            self._paused.add((event.trial, event.attempt))
            return True
        return n == self._lasts[event.trial]  # else its training went on in spite of the stop

    def _rescale(self, at: float) -> None:
        """The scale that would have been learnt of the curves as the rule left them."""
        new = self.history.learnt_scale()
        if new is not None and outgrown(self.history.scale, new):
            self._apply(ev.Rescaled(at=at, low=new.low, high=new.high))

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
                f"{name} cannot take up this study's {event.kind} trial ({one_line(error)}): a policy that gives each "
                "trial its place as it proposes it, such as Hyperband, judges trials of its own alone"
            ) from error


def ends(verdict: Verdict) -> bool:
    """True for a policy's verdict that cut a run: not the budget's, and not the end of all that it gives any run."""
    return verdict.stops and not {CUT, FULL, ASKED} & verdict.evidence.keys()


JudgedReport = tuple[int, int, Reported]  # log position that was seen, of the report, and the report


def _order(decision: JudgedReport) -> tuple[int, int]:
    return decision[:2]


def _decisions(log: Sequence[ev.Event], problem: Problem) -> Iterator[JudgedReport]:
    """The reports on which a rule is asked.

    Those that the log's policy judged, but for the last of a run that had all it gives any; and those of a training
    that went on in spite of its verdict.
    """
    ended: set[tuple[int, int]] = set()  # (trial, attempt)
    for position, e in enumerate(log):
        if not isinstance(e, Reported) or e.epoch != math.floor(e.epoch):
            continue
        if problem.max_epochs is not None and e.epoch >= problem.max_epochs:
            continue
        if e.verdict.action is Action.UNJUDGED:
            asked = (e.trial, e.attempt) in ended
        else:
            asked = not {CUT, FULL, ASKED} & e.verdict.evidence.keys()
        if ends(e.verdict):
            ended.add((e.trial, e.attempt))
        if asked:
            yield min(e.seen, position), position, e
