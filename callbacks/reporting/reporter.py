"""What every callback does: report after a validation, keep the verdict, never break a training.

A `Reporter` stands between one training loop and one trial.
- The first STOP or PAUSE is latched: later reports are stored, not judged again.
- A PAUSE that cannot be saved is declined: the training goes on, with one warning, and
  later reports are judged again.
- Epochs strictly increase; a repeat is ignored with one warning.
- `end` and `fail` are idempotent and never raise.
- A trial past its horizon stops too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from haltune._utils.signals import interrupts
from haltune._utils.words import plural
from haltune.errors import LeaseLost
from haltune.log.decisions import Action, Verdict
from haltune.log.problem.measures import Measures
from haltune.study import Trial
from haltune.study.session.session import Report
from haltune.study.session.spawned import spawning

from .advice import nearest, need_record, need_trial, once, scalar, trained_by, twice
from .clock import Clock
from .delivery import Delivery, Warnings, line
from .detached import Detached
from .heartbeat import Heartbeat
from .saving import Saving


class Reporter(Saving):
    """The reports of one training loop to one trial.

    `monitor`: the logged name to report, the goal's metric if None.
    `verbose`: print a line for every report.
    `record`: "all" scalars of an epoch are stored, or the "monitor" alone.
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
        record: str = "all",
        resume_hint: str = "start the loop after trial.epoch",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        need_trial(trial, monitor)
        need_record(record)
        self.trial = trial
        self.metric: str = monitor or trial.goal.metric
        self.measures: Measures = trial.measures
        self.verbose, self.record = verbose, record
        self.clock = Clock(now)
        self.reports = 0  # values taken since `begin`, repeats among them
        self.verdict: Verdict | None = None  # the first STOP or PAUSE
        self._resume_hint = resume_hint
        self._warnings = Warnings()
        self._delivery = Delivery(self._warnings)
        self._heartbeat = Heartbeat(self)
        self._last = float(trial.epoch)
        self._ended = trial.ended is not None
        self._repeats = False  # it trains epochs again
        self._by_itself = False  # the training ended in an epoch after which it was to be cut
        self._process: int | None = (
            os.getpid()
        )  # that it reports from; None: it was carried off, and is tied to none
        self._interruption, self._leaves = None, False

    @property
    def stopping(self) -> bool:
        """True when the loop should end: a STOP or PAUSE came, the trial is lost, or it reached its horizon."""
        horizon = self.trial.horizon
        return self.verdict is not None or (not self._ended and horizon is not None and self._last >= horizon)

    @property
    def ended(self) -> bool:
        """True when the trial has ended: what is trained after that is not reported."""
        return self._ended

    @property
    def silent(self) -> bool:
        """True while the trial has no value, of this fit or of one before it: is the metric's name misspelt?"""
        return self.reports == 0 and self._last <= 0 and not self._ended

    def begin(self, planned: float | None = None, model: Any = None) -> None:
        """A fit starts training now. `planned`: its number of epochs, if it is known. `model`: what it trains.

        Raises NotSupported in another process than the one that asked for the trial, unless that one forked or
        spawned it to train and the study has a store that both can reach.
        """
        self._need_home()
        self.reports = 0
        self._last = max(self._last, float(self.trial.epoch))
        self._ended = self._ended or self.trial.ended is not None
        if self._ended and self.verdict is None:
            self.warn_once("ended", f"trial {self.trial.id} has ended: what this fit trains is not reported")
        elif planned is not None and self.trial.horizon is not None and planned < self.trial.horizon:
            self.advise(
                f"this fit plans {plural(planned, 'epoch')} but trials are compared at {self.trial.horizon}: "
                f"give the loop trial.max_epochs, haltune stops it earlier where that pays; or make {planned:g} the "
                "max_epochs of the search",
                "horizon",
            )
        elif planned is not None and self.trial.horizon is not None and planned > self.trial.horizon:
            self.advise(
                f"this fit plans {plural(planned, 'epoch')} and the search's max_epochs is {self.trial.horizon}, which "
                "counts: haltune ends each fit there, and a schedule of the learning rate made for more is cut short. "
                f"Give the loop trial.max_epochs, or make {planned:g} the max_epochs of the search",
                "horizon",
            )
        if (
            not self._ended
            and model is not None
            and (first := trained_by(self.trial.session, model, self.trial.id)) is not None
        ):
            self.advise(
                f"trial {self.trial.id} trains the very model that trial {first} has trained, with its weights and the "
                "configuration it was built with: build a model for each trial, within the loop, from trial.config",
                "model",
            )
        if not self._ended:
            self._heartbeat.start(self.trial)
        self.clock.restart()

    def report(
        self,
        value: Any,
        epoch: float,
        metrics: Mapping[str, float] | None = None,
        need: Callable[[], int] | None = None,
        lap: tuple[float, float] | None = None,
        judge: bool = True,
    ) -> bool:
        """Report the metric after `epoch` epochs (from 1); True when training should stop.

        `value`: or several by their names, as `Trial.report` takes them.
        `metrics`: further scalars of the epoch. `need`: the bytes that a checkpoint takes, asked for on
        a PAUSE by loops that cannot go on once they have stopped: without room for it the pause is declined.
        `lap`: the clock's, when it was taken before. `judge`: False stores the value without a verdict.

        Raises InvalidInput for a vector, and for a mapping without the goal.
        """
        seconds, validation = lap or self.clock.lap()
        value, scalars = self.measures.told(value, metrics)
        if self.record != "all":
            scalars = {name: scalars[name] for name in self.measures.others if name in scalars}
        self.reports += 1
        try:
            report = Report(scalar(value, self.metric), float(epoch), seconds, validation, metrics=scalars)
            if self._is_new(report.epoch):
                self._submit(report, need, judge)
        finally:
            self.clock.restart()  # the study's time is not training time
        return self.stopping

    def ends_by_itself(self) -> None:
        """Somebody else ended the training where a PAUSE, the budget or Ctrl-C would: completed, if no STOP comes."""
        if self.pausing or self.leaving:
            self.forgo()
            self.verdict, self._leaves, self._by_itself = None, False, True

    def end_of_fit(self) -> None:
        """A fit is over: end the trial if nothing may follow; else `with trial` ends it."""
        if self.verdict is None and self._by_itself:
            self.end("completed")
        elif self.stopping:
            self.end()
        elif self.leaving:
            self.end("interrupted")
        else:
            self.settle()

    def settle(self) -> None:
        """Nothing more is reported: what waits is delivered, and there are no more signs of life."""
        self._delivery.close(self.trial)
        self.release()

    def end(self, status: str | None = None) -> None:
        """End the trial; status None lets the study say stopped, paused or completed."""
        self._close(lambda: self.trial.finish(status))

    def fail(self, error: BaseException) -> None:
        """End the trial by what was raised: interrupted for Ctrl-C and SIGTERM, that wait maybe, else failed."""
        if interrupts(error) or (self._interruption is not None and self._interruption.waits):
            # what was to end anyway is not offered again; a pause that was to be saved is
            self.end(None if self.stopping and not self.pausing else "interrupted")
        else:
            self._close(lambda: self.trial.fail(error))

    def release(self) -> None:
        """No fit is under way: no more signs of life."""
        self._heartbeat.stop()

    def __getstate__(self) -> dict[str, Any]:
        """With the trial only into a process that is spawned to train it: elsewhere reports could be lost."""
        tied = {} if spawning() else {"trial": Detached.of(self.trial), "_process": None}
        return self.__dict__ | {"_heartbeat": None, "_interruption": None} | tied

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._heartbeat = Heartbeat(self)

    def _need_home(self) -> None:
        if (
            os.getpid() != self._process
        ):  # a strategy that forks or spawns; who is unpickled elsewhere is refused
            self.trial.adopt()
            self._process, self._heartbeat = os.getpid(), Heartbeat(self)

    def _is_new(self, epoch: float) -> bool:
        self._last = max(self._last, float(self.trial.epoch))
        horizon = self.trial.horizon
        if self._ended or (horizon is not None and epoch > horizon):
            return False
        if epoch > self._last:
            return True
        self.repeats(
            f"trial {self.trial.id} has reported epoch {self._last:g} already; epoch {epoch:g} is ignored. "
            f"Does this fit begin again? {self._resume_hint}"
        )
        return False

    def _submit(self, report: Report, need: Callable[[], int] | None, judge: bool) -> None:
        self._last = report.epoch
        try:
            verdict = self._delivery.send(self.trial, report, judge=judge and self.verdict is None)
        except LeaseLost as error:
            self._let_go(error)
            return
        if verdict is not None:
            self._obey(verdict, need)
            if self.verbose:
                print(line(self.trial.id, self.metric, report, verdict), flush=True)

    def _obey(self, verdict: Verdict, need: Callable[[], int] | None) -> None:
        if self.verdict is not None or not verdict.stops:
            return
        self.verdict = verdict
        if need is not None and verdict.action is Action.PAUSE:
            self.attempt(lambda: self.trial.room_for(need()))

    def _let_go(self, error: LeaseLost) -> None:
        reason = f"trial {self.trial.id} is no longer this worker's, so its training stops: {error}"
        self.verdict = Verdict(Action.STOP, reason)
        self._ended = True
        self.release()
        self.warn_once("lease", reason)

    def _close(self, closing: Callable[[], None]) -> None:
        self.release()
        if self._ended:
            return
        self._ended = True
        self._delivery.close(self.trial)
        with suppress(Exception):
            closing()

    def repeats(self, sentence: str) -> None:
        """This fit trains epochs again that were reported: said of the first trial, and counted from the second on."""
        if self._repeats:
            return
        self._repeats = True
        trials, epochs = twice(self.trial.session, self._last)
        if trials == 1:
            self.warn_once("repeat", sentence)
        else:
            self._warnings.once(
                self.trial,
                "repeat",
                f"{trials} fits have begun again though their trials had been trained: "
                f"{plural(epochs, 'epoch')} were paid for twice. {self._resume_hint}; "
                "or choose BOBOS(), a policy that never pauses",
                about="repeats",
            )

    def foresee(self, logged: Iterable[str]) -> None:
        """Say of what a check before training logged that the metric was not among it, where a name is much like it.

        Not of one of training, which no such check logs.
        """
        near = nearest(self.metric, names := set(logged), 0.7)
        if near is not None and self.metric not in names and not self.metric.lower().startswith("train"):
            self.advise(
                f"the metric {self.metric!r} was not logged in the check before training, {near!r} was: if it is "
                f"meant, HaltuneCallback(trial, monitor={near!r})"
            )

    def advise(self, sentence: str, about: str | None = None) -> None:
        """A HaltuneWarning, once a study: what is true of every trial's training, or the first `about` a matter."""
        once(self.trial.session, sentence, about)

    def warn_once(self, topic: str, sentence: str) -> None:
        """A HaltuneWarning, once for each topic."""
        self._warnings.once(self.trial, topic, sentence)
