"""What every callback does: report after a validation, keep the verdict, never break a training.

A `Reporter` stands between one training loop and one trial.
- The first STOP is latched: later reports are stored, not judged again.
- Epochs strictly increase; a repeat is ignored with one warning.
- A study that cannot be reached breaks nothing: reports wait, are tried again with
  the next one, and are then delivered without asking for a verdict. One warning.
- `end` and `fail` are idempotent and never raise.
- A trial past its `max_epochs` stops too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from haltune.decisions import Action, Verdict
from haltune.errors import HaltuneError, LeaseLost, NotSupported, StoreError, warn
from haltune.failures import interrupts

from .advice import need_trial, scalar
from .clock import Clock
from .handle import Detached, Trial

FIRST_EPOCH = "haltune_first_epoch"  # metric, 1.0 at a fit's first report: its seconds hold compilation


@dataclass(frozen=True)
class _Report:
    """One validation, waiting to be delivered."""

    value: float  # the goal's metric, own units
    epoch: float  # from 1; fractional within an epoch
    seconds: float  # since the report before, validation included
    validation: float  # seconds of these spent validating
    metrics: Mapping[str, float] = field(default_factory=dict)


class Reporter:
    """The reports of one training loop to one trial.

    `monitor`: the logged name to report, the goal's metric if None.
    `verbose`: print a line for every report.
    `resume_hint`: how a user of this loop makes it go on at the right epoch.
    `now`: a monotonic clock, seconds.

    Raises InvalidInput, with advice, when `trial` is not a trial.
    """

    def __init__(
        self,
        trial: Trial,
        monitor: str | None = None,
        verbose: bool = False,
        *,
        resume_hint: str = "start the loop after trial.epoch",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        need_trial(trial, monitor)
        self.trial = trial
        self.metric: str = monitor or trial.goal.metric
        self.verbose = verbose
        self.clock = Clock(now)
        self.reports = 0  # values taken since `begin`, repeats among them
        self.verdict: Verdict | None = None  # the first STOP
        self._resume_hint = resume_hint
        self._waiting: list[_Report] = []
        self._last = float(trial.epoch)
        self._ended = False
        self._warned: set[str] = set()
        self._process = os.getpid()

    @property
    def stopping(self) -> bool:
        """True when the loop should end: a STOP came, the trial is lost, or it reached its horizon."""
        horizon = self.trial.max_epochs
        return self.verdict is not None or (not self._ended and horizon is not None and self._last >= horizon)

    def begin(self, planned: float | None = None) -> None:
        """A fit starts training now. `planned`: its number of epochs, if it is known.

        Raises NotSupported in another process than the one that made the trial.
        """
        self._need_home()
        self.reports = 0
        self._last = max(self._last, float(self.trial.epoch))
        if self._ended and self.verdict is None:
            self.warn_once("ended", f"trial {self.trial.id} has ended: what this fit trains is not reported")
        elif planned is not None and self.trial.max_epochs is not None and planned < self.trial.max_epochs:
            self.warn_once(
                "horizon",
                f"this fit plans {planned:g} epochs but trials are compared at {self.trial.max_epochs}: "
                "give the loop trial.max_epochs, haltune stops it earlier where that pays",
            )
        self.clock.restart()

    def report(self, value: Any, epoch: float) -> bool:
        """Report the metric after `epoch` epochs (from 1); True when training should stop.

        Raises InvalidInput for a vector, NotSupported for a verdict to pause.
        """
        seconds, validation = self.clock.lap()
        first = {FIRST_EPOCH: 1.0} if self.reports == 0 else {}
        self.reports += 1
        try:
            report = _Report(scalar(value, self.metric), float(epoch), seconds, validation, first)
            if self._is_new(report.epoch):
                self._submit(report)
        finally:
            self.clock.restart()  # the study's time is not training time
        return self.stopping

    def end_of_fit(self) -> None:
        """A fit is over: end the trial if nothing may follow; else `with trial` ends it."""
        if self.stopping:
            self.end()
        else:
            self._deliver_at_last()

    def end(self, status: str | None = None) -> None:
        """End the trial; status None lets the study say stopped, paused or completed."""
        self._close(lambda: self.trial.finish(status))

    def fail(self, error: BaseException) -> None:
        """End the trial by what was raised: interrupted for Ctrl-C and SIGTERM, else failed."""
        if interrupts(error):
            self.end(None if self.stopping else "interrupted")  # what was to end anyway is not offered again
        else:
            self._close(lambda: self.trial.fail(error))

    def __getstate__(self) -> dict[str, Any]:
        """Without the trial: a report made in another process could be lost in silence."""
        return self.__dict__ | {"trial": Detached.of(self.trial)}

    def _need_home(self) -> None:
        if isinstance(self.trial, Detached):
            self.trial.refuse()
        if os.getpid() != self._process:
            raise NotSupported(
                f"trial {self.trial.id} was asked for in another process than the one that trains it "
                "(a forked or spawned strategy): that is not supported yet. Train in the process that asks"
            )

    def _is_new(self, epoch: float) -> bool:
        self._last = max(self._last, float(self.trial.epoch))
        horizon = self.trial.max_epochs
        if self._ended or (horizon is not None and epoch > horizon):
            return False
        if epoch > self._last:
            return True
        self.warn_once(
            "repeat",
            f"trial {self.trial.id} has reported epoch {self._last:g} already; epoch {epoch:g} is ignored. "
            f"Does this fit begin again? {self._resume_hint}",
        )
        return False

    def _submit(self, report: _Report) -> None:
        self._last = report.epoch
        try:
            self._deliver_waiting()
            verdict = self._deliver(report, judge=self.verdict is None)
        except LeaseLost as error:
            self._let_go(error)
        except Exception as error:
            # a store out of reach, or a bug in a policy: neither is the training's fault
            if isinstance(error, HaltuneError) and not isinstance(error, StoreError):
                raise
            self._waiting.append(report)
            self.warn_once(
                "outage",
                f"the study cannot take reports now ({type(error).__name__}: {error}); training goes on, "
                "they are kept and delivered later, unjudged",
            )
        else:
            self._obey(verdict)
            self._tell(report, verdict)

    def _deliver_waiting(self) -> None:
        while self._waiting:
            self._deliver(self._waiting[0], judge=False)
            self._waiting.pop(0)

    def _deliver(self, report: _Report, judge: bool) -> Verdict:
        return self.trial.report(
            report.value,
            report.epoch,
            report.seconds,
            validation=report.validation,
            metrics=report.metrics or None,
            judge=judge,
        )

    def _obey(self, verdict: Verdict) -> None:
        if self.verdict is not None or not verdict.stops:
            return
        self.verdict = verdict
        if verdict.action is Action.PAUSE:
            raise NotSupported(
                f"the policy wants trial {self.trial.id} paused ({verdict.reason}), and callbacks cannot "
                "pause and resume a training yet: use a policy that only stops runs, such as BOBOS"
            )

    def _let_go(self, error: LeaseLost) -> None:
        reason = f"trial {self.trial.id} is no longer this worker's, so its training stops: {error}"
        self.verdict = Verdict(Action.STOP, reason)
        self._ended = True
        self.warn_once("lease", reason)

    def _close(self, closing: Callable[[], None]) -> None:
        if self._ended:
            return
        self._ended = True
        self._deliver_at_last()
        with suppress(Exception):
            closing()

    def _deliver_at_last(self) -> None:
        with suppress(Exception):
            self._deliver_waiting()
        if self._waiting:
            with suppress(Exception):  # warnings may be errors
                self.warn_once(
                    "late", f"{len(self._waiting)} reports of trial {self.trial.id} are not delivered"
                )

    def _tell(self, report: _Report, verdict: Verdict) -> None:
        if self.verbose:
            print(
                f"trial {self.trial.id}, epoch {report.epoch:g}: {self.metric} = {report.value:.6g}, "
                f"{verdict.action}: {verdict.reason}",
                flush=True,
            )

    def warn_once(self, topic: str, sentence: str) -> None:
        """A HaltuneWarning, once for each topic."""
        if topic not in self._warned:
            self._warned.add(topic)
            warn(sentence)
