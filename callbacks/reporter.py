"""Shared part of all training loops: report validations, keep the verdict, save for a pause, never break a training.

A `Reporter` connects one training loop with one trial.

- The first STOP or PAUSE stays in force: later reports are stored, but not judged again.
- If a PAUSE cannot be saved, it is declined: the training continues, with one warning, and is judged again.
- Positions are in the study's unit and strictly increase. A repeated position is ignored, with one warning.
- If the store does not answer, reports wait. They are sent again with the next report, and stored without a verdict.
- Ctrl-C and SIGTERM wait for the end of an epoch that was reported; its state is saved as for a pause.
- `end` and `fail` are idempotent and never raise. A trial also ends when it reaches max_epochs.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from haltune._utils.checks import no_real_number
from haltune._utils.interruption import Interruption
from haltune._utils.signals import interrupts, lost_rank
from haltune.display import numeral, one_line, plural, several_of, visible
from haltune.errors import HaltuneError, InvalidInput, LeaseLost, NotSupported, StoreError, documented, is_full
from haltune.log.decisions import Action, Verdict
from haltune.log.events import Status
from haltune.log.metric_names import direction
from haltune.log.problem import Measures, length_advice, length_argument, position_argument
from haltune.study import Fold, Trial
from haltune.study.attempt import Attempt, Report
from haltune.study.loops import LoopPort
from haltune.study.port import Port
from haltune.study.session import spawning


class Clock:
    """Stopwatch of a training, in seconds. It restarts after each report, so that time in the study does not count."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.restart()

    def restart(self) -> None:
        self._start, self._validation = self.now(), 0.0
        self._validating: float | None = None

    def leave_out(self, began: float) -> None:
        """Do not count the time since `began`."""
        self._start += self.now() - began

    def validating(self) -> None:
        """Record that a validation starts."""
        self._validating = self.now()

    def validated(self) -> None:
        """Record that a validation ends. Without a start, nothing is counted."""
        if self._validating is not None:
            self._validation += self.now() - self._validating
            self._validating = None

    def lap(self) -> tuple[float, float]:
        """Return (seconds since the last restart, seconds of these in validation)."""
        return self.now() - self._start, self._validation


def _beat(owner: Callable[[], Reporter | None], interval: float, enough: threading.Event) -> None:
    """Renew the lease until the fit or the trial ends, or until the reporter is garbage-collected.

    After an exception most frameworks call no hook.
    """
    while not enough.wait(interval):
        reporter = owner()
        if reporter is None or reporter.trial.ended is not None:
            return
        with suppress(Exception):  # the next report raises the error of the store
            reporter.trial.heartbeat()
        del reporter  # otherwise this thread would keep it alive


class Detached(LoopPort):
    """Port of a pickled callback: its facts can be read, but it cannot report."""

    def __init__(self, trial: Port) -> None:
        Attempt.__init__(
            self, trial.id, trial.attempt, dict(vars(trial)["config"]), trial.pause_at, trial.resource,
            dict(trial.tags), None, float(trial.epoch),
        )  # fmt: skip
        for name in ("unit", "horizon", "goal", "measures", "max_epochs"):
            setattr(self, name, getattr(trial, name))

    def record(self, *args: Any, **kwargs: Any) -> Any:
        """Raise NotSupported."""
        raise NotSupported(
            f"This callback was unpickled and has lost its connection to trial {self.id}. Make a new one where you "
            "train, HaltuneCallback(trial)."
        )

    report = adopt = attaches = before_end = record

    def owner(self, path: Any) -> None:
        """Return None: the checkpoints of the study are not known here."""

    def sign(self, mark: Any) -> None:
        """Do nothing, as `finish`."""

    def signer(self, mark: Any) -> None:
        """Return None, as `owner`."""

    def finish(self, status: Any = None) -> None:
        """Do nothing, because the trial ends in its own process."""

    def fail(self, error: Any) -> None:
        """Do nothing, as `finish`."""

    breaks = fail

    def fits(self, under_way: Any) -> None:
        """Do nothing, as `finish`."""


class Reporter:
    """Connection of one training loop with one trial.

    monitor: the logged name to report; None: the goal's metric.
    verbose: whether to print a line for each report.
    record: "all" stores all scalars of an epoch, "monitor" only the monitored one.
    resume_hint: how to continue this loop at the right epoch, for messages.
    counts: the units that the loop counts; empty: any.
    now: a monotonic clock, seconds.

    Raises InvalidInput if `trial` is not a trial, or if the study has another unit than `counts`.
    """

    def __init__(
        self,
        trial: Trial,
        monitor: str | None = None,
        verbose: bool = False,
        *,
        record: str = "all",
        resume_hint: str = "Start the loop after trial.epoch",
        counts: Sequence[str] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        need_trial(trial, monitor)
        if counts and trial.unit not in counts:
            names = " or ".join(f"{length_argument(unit)}=" for unit in counts)
            raise InvalidInput(
                f"The study counts {several_of(trial.unit)}, and this training loop does not. Make the study with "
                f"{names}, or report in a loop of your own, trial.report(value, {position_argument(trial.unit)})."
            )
        if record not in ("all", "monitor"):
            raise InvalidInput(
                f"Cannot read record={record!r}. Use 'all' to store every scalar of an epoch, or 'monitor' to store "
                "the goal's metric only."
            )
        self.trial: Trial = trial
        self.metric: str = monitor or trial.goal.metric
        # of the goal itself the study has warned
        if monitor not in (None, trial.goal.metric) and direction(self.metric) == -trial.goal.sign:
            other = "Minimize" if trial.goal.sign > 0 else "Maximize"
            trial.hint(
                f"HaltuneCallback(trial, monitor={monitor!r}) reports {monitor} to a study with {trial.goal!r}, but by "
                f"its name the opposite is better. Leave monitor= out to report {trial.goal.metric}, or make the "
                f"study with {other}({monitor!r}).",
                "monitor",
            )
        self.measures: Measures = trial.measures
        self.verbose, self.record, self.clock = verbose, record, Clock(now)
        self.reports = 0  # values received since `begin`, repeats included
        self.trained: float | None = None  # position of the model: reported, or stated by a loop that did not report it
        self.verdict: Verdict | None = None  # the first STOP or PAUSE
        self.resume_hint = resume_hint
        self._warned: set[str] = set()  # topics of this training
        self._waiting: list[Report] = []  # not delivered yet
        self._last = float(trial.epoch)  # the last reported epoch
        self._distance = 0.0  # the largest distance between two reports
        self._attempt = trial.attempt  # the attempt of the last report
        self.ended = trial.ended is not None  # later epochs are not reported
        self._by_itself = False  # the training ended by itself in an epoch with a PAUSE or Ctrl-C
        self._by_other = False  # another callback ended this fit
        self._process: int | None = os.getpid()  # the process that reports; None: unpickled elsewhere
        self._enough: threading.Event | None = None  # ends the heartbeat
        self._interruption: Interruption | None = None  # set while signals can wait
        self._leaves = False  # a signal waited until the end of an epoch
        # returns the name of the present fit's schedule if its learning rate would still decay
        self.schedule: Callable[[], str | None] = no_schedule

    # the state of the training

    @property
    def stopping(self) -> bool:
        """True if the loop should end: by a STOP or PAUSE, or because the trial is lost or reached max_epochs."""
        horizon = self.trial.horizon
        return self.verdict is not None or (not self.ended and horizon is not None and self._last >= horizon)

    @property
    def pausing(self) -> bool:
        """True if the loop should save its state before it ends, because the trial may resume."""
        return self.verdict is not None and self.verdict.resumable and not self.ended

    @property
    def leaving(self) -> bool:
        """True if the loop should save its state and end only because of Ctrl-C or SIGTERM."""
        return self._leaves and not self.ended and not self.stopping

    @property
    def over(self) -> bool:
        """True if the loop should end for any reason."""
        return self.stopping or (self._leaves and not self.ended)

    @property
    def saves(self) -> bool:
        """True if the state after this epoch should be saved, so that the trial can resume."""
        return self.pausing or (self.leaving and self.trial.epoch == self._last)

    @property
    def keeps(self) -> bool:
        """True if the final state should be saved, because the checkpoints of the best trials are kept."""
        kept, last = False, float(self.trial.epoch)
        with suppress(Exception):  # the store does not answer
            kept = not self.ended and self.trial.keeps()
        if kept and self.trained is not None and self.trained != last:
            self.advise(
                f"The model of trial {self.trial.id}, the best so far, is not kept: it has trained to "
                f"{self._at(self.trained)}, but its value is that of {self._at(last)}. Validate at the end of a "
                "training, and the kept model has the value of its trial.",
                "unvalidated",
            )
            return False
        return kept

    @property
    def keeps_epoch(self) -> bool:
        """True if the state after the epoch just reported should be saved: it is the trial's best so far, or its last.

        It seems to be the last if another report, at the largest distance so far, would come after max_epochs. A loop
        over tokens reports there in any case.
        """
        trial, last = self.trial, self._last
        with suppress(Exception):
            reported = not self.ended and trial.epoch == last == self.trained
            seems_last = trial.unit != "token" and last < (trial.horizon or 0) < last + self._distance
            return reported and (trial.keeps(best_epoch=True) or (seems_last and trial.keeps()))
        return False

    @property
    def silent(self) -> bool:
        """True if the trial has no value yet, in this or an earlier fit; then the metric's name may be misspelt."""
        return self.reports == 0 and self._last <= 0 and not self.ended

    def position(self, **counted: float) -> float:
        """Return the loop's position in the study's unit, from its counts by unit: epoch=0.5, step=120."""
        return float(counted[self.trial.unit])

    def _at(self, position: float) -> str:
        return f"{self.trial.unit} {numeral(position)}"

    # a fit, from its start to its end

    def begin(
        self,
        planned: float | None = None,
        model: Any = None,
        position: float | None = None,
        of: int | str | None = None,
    ) -> None:
        """Start a fit. planned: its length in the study's unit, if known. model, position, of: see `Port.starts`.

        Raises NotSupported if this process did not ask for the trial. It is allowed if the asking process forked or
        spawned this one to train, and the study has a store that both can open.
        """
        trial = self.trial
        if os.getpid() != self._process:
            trial.adopt()
            self._process, self._enough = os.getpid(), None
        self.reports = 0
        self._last = max(self._last, float(trial.epoch))
        self.ended = self.ended or trial.ended is not None
        horizon = trial.horizon
        if self.ended and (other := trial.other_open()) is not None:
            needed = "its next attempt" if other == trial.id else f"trial {other}"
            raise NotSupported(
                f"This fit has the callback of trial {trial.id}, which has ended ({trial.ended}), in place of one for "
                f"{needed}. Within the loop, make a trainer and HaltuneCallback(trial) for each trial."
            )
        if self.ended and self.verdict is None:
            if model is not None and trial.trained_another(model):
                raise trains_another(trial)
            if trial.verdict is not None and trial.verdict.stops:
                self.verdict = trial.verdict  # this fit, the next phase of the training, ends at once, too
            else:
                self.warn_ended()
        elif planned is not None and horizon is not None and planned > horizon:
            self.advise(
                f"This fit plans {plural(planned, trial.unit)}, but the search's {length_argument(trial.unit)} is "
                f"{horizon}: haltune ends each fit there, before the end of a learning-rate schedule. "
                f"{length_advice(trial.unit, planned)}.",
                "horizon",
            )
        trial.planned, self._by_other = planned, False
        self.starts(position, model, of)
        if not self.ended and self._enough is None:
            self._enough = threading.Event()
            arguments = weakref.ref(self), trial.heartbeat_seconds, self._enough
            threading.Thread(target=_beat, args=arguments, name="haltune-heartbeat", daemon=True).start()
        self.clock.restart()

    def warn_ended(self) -> None:
        """Warn once that the trial has ended, and another fit starts."""
        self.warn_once(
            "ended",
            f"Trial {self.trial.id} has ended, so the epochs of this fit are not reported. To train a final model, "
            "leave out HaltuneCallback. If the value of a trial is the mean over several trainings, loop over "
            "trial.folds(k).",
        )

    def starts(self, position: float | None, model: Any = None, of: int | str | None = None) -> None:
        """State where the fit starts, for loops that know it after `begin`; see `Port.starts`."""
        if not self.ended:
            self.trial.starts(model, position, of, self.resume_hint)
            if position is not None and position < int(self.trial.epoch):
                self._warned.add("repeat")
        if self.trial.attempt != self._attempt:
            self._restarted()

    def report(
        self,
        value: Any,
        epoch: float,
        metrics: Mapping[str, float] | None = None,
        need: Callable[[], int] | None = None,
        lap: tuple[float, float] | None = None,
        judge: bool = True,
        updates: float | None = None,
    ) -> bool:
        """Report the metric at `epoch`, a position in the study's unit; return whether training should stop.

        value: one number, or several by name, as in `Trial.report`.
        metrics: further scalars of the epoch.
        need: returns the bytes of a checkpoint. It is called at a PAUSE by loops that cannot continue after they have
            stopped. If the disk has no space for it, the pause is declined.
        lap: the clock's lap, if it was taken earlier. judge: False stores the value without a verdict.
        updates: made by this fit so far; see `Port.record`.

        Raises InvalidInput if the value is a vector, or a mapping without the goal.
        """
        trial = self.trial
        seconds, validation = lap or self.clock.lap()
        value, scalars = self.measures.split(value, metrics)
        if self.record != "all":
            scalars = {name: scalars[name] for name in self.measures.others if name in scalars}
        self.reports += 1
        try:
            if trial.unit != "epoch" and trial.horizon is not None:  # a batch's tokens may exceed the horizon
                epoch = min(epoch, trial.horizon)
            report = Report(scalar(value, self.metric), float(epoch), seconds, validation, metrics=scalars)
            if not self._is_new(report.epoch):
                return self.stopping
            self._distance = max(self._distance, report.epoch - self._last)
            self._last = self.trained = report.epoch
            trial.patient = False  # do not delay the training during an outage of the store
            try:
                if self._waiting:
                    self._deliver_waiting()
                verdict = trial.record(report, judge and self.verdict is None, updates)
            except LeaseLost as error:
                self._lost(error)
            except Exception as error:
                self._undelivered(report, error)
            else:
                if self.verdict is None and verdict.stops:
                    self.verdict = verdict
                    with suppress(Exception):  # the user's own schedule may raise
                        self._look_at_schedule(verdict)
                    if need is not None and verdict.action is Action.PAUSE:
                        self.attempt(lambda: trial.room_for(need()))
                if self.verbose:
                    what = f"trial {trial.id}, {self._at(report.epoch)}: {self.metric} = {report.value:.6g}"
                    print(visible(f"{what}, {verdict.action}: {verdict.reason}"), flush=True)
        finally:
            self.clock.restart()
        return self.stopping

    def follow_rank_0(self) -> None:
        """Take the last report from the trial, on another rank that has not reported itself."""
        trial, self.reports = self.trial, self.reports + 1
        self._distance = max(self._distance, float(trial.epoch) - self._last)
        self._last = self.trained = float(trial.epoch)
        if self.verdict is None and trial.verdict is not None and trial.verdict.stops:
            self.verdict = trial.verdict

    def look_ahead(self, first: float) -> None:
        """Warn before the first report, some epochs after the start, that the last epoch will have none.

        For loops whose user chooses how often they validate.
        """
        trial, end = self.trial, self.trial.horizon
        if self.reports or trial.epoch or trial.attempt > 1 or trial.unit != "epoch" or end is None:
            return
        if first == int(first) and 2 <= first < end and end % first:
            self.advise(
                f"Trial {trial.id} reports first at epoch {first:g}. If it continues so, it reports last at epoch "
                f"{end - end % first:g} of {end}: its value and its kept model are those of that epoch, and what it "
                f"trains after that does not count. Validate at the end of a training, or set max_epochs to a multiple "
                f"of {first:g}.",
                "unvalidated",
            )

    def _look_at_schedule(self, verdict: Verdict) -> None:
        """Hint once in a study if the first trial that a comparison is to end has a rate that would still decay."""
        trial = self.trial
        compared = verdict.action is Action.PAUSE or not verdict.resumable
        if not compared or (name := self.schedule()) is None:
            return
        if not trial.history.with_status(Status.PAUSED, Status.STOPPED):
            trial.hint(  # a pause may still be declined
                f"Trial {trial.id} was judged at {self._at(self._last)}, before the end of its learning-rate schedule "
                f"({name}). Values before the end of a schedule rank trials, but predict their final values poorly. "
                f"See {documented('howto/schedules')}",
                "schedule",
            )

    def _restarted(self) -> None:
        """Forget the positions of an attempt that was given up."""
        self._attempt, self._last, self._waiting = self.trial.attempt, float(self.trial.epoch), []
        self.trained = None

    def _is_new(self, epoch: float) -> bool:
        if not self.ended and self.verdict is None and self.trial.goes_back(epoch):
            self.trial.restart(advice=f"To continue it instead: {self.resume_hint}.")
            self._restarted()
        self._last = max(self._last, float(self.trial.epoch))
        horizon = self.trial.horizon
        if self.ended or (horizon is not None and max(epoch, math.nextafter(self._last, math.inf)) > horizon):
            return False
        if epoch <= self._last:
            self.warn_once(
                "repeat",
                f"Trial {self.trial.id} has already reported {self._at(self._last)}, so {self._at(epoch)} is ignored. "
                f"Report once per {self.trial.unit}. If this fit starts again: {self.resume_hint}.",
            )
        return epoch > self._last

    def _deliver_waiting(self) -> None:
        while self._waiting:
            self.trial.record(self._waiting[0], judge=False)
            self._waiting.pop(0)

    def _undelivered(self, report: Report, error: Exception) -> None:
        """Continue the training at an outage of the store or a bug in a policy; raise an error in the report."""
        kind = f"({type(error).__name__}: {error})"
        if is_full(error):  # of the folder where ranks meet: the others do not get the verdict
            raise error
        if float(self.trial.epoch) >= report.epoch:  # it is stored, so the policy failed
            self.warn_once(
                "policy",
                f"The policy failed to judge {self._at(report.epoch)} of trial {self.trial.id} {kind}. The report is "
                "stored, and training continues. If the policy is your own, fix its judge(); otherwise report the bug.",
            )
        elif isinstance(error, HaltuneError) and not isinstance(error, StoreError):
            raise error
        else:
            self._waiting.append(report)
            self.warn_once(
                "outage",
                f"The store cannot take reports now {kind}. Training continues; the reports are delivered later, "
                "without a verdict.",
            )

    def _lost(self, error: LeaseLost) -> None:
        reason = f"This worker no longer holds trial {self.trial.id}, so its training stops: {error}"
        self.verdict, self.ended = Verdict(Action.STOP, reason), True
        self.release()
        self.warn_once("lease", reason)

    def ends_by_itself(self) -> None:
        """Record that another callback ended the training, also where a PAUSE would. Without a STOP: completed."""
        self._by_other = True
        if self.pausing or self.leaving:
            self.forgo()
            self.verdict, self._leaves, self._by_itself = None, False, True

    def end_of_fit(self, write: Callable[[Path], object] | None = None, suffix: str = ".ckpt") -> None:
        """End a fit, and the trial if no other fit can follow; otherwise `with trial` ends it.

        write: saves the final model if it is to be kept and no checkpoint for a pause was saved.
        """
        self.trial.fits(None)
        if self._by_other:
            self.trial.planned = None  # not as planned, also where that is the last epoch of this fit
        if write is not None and not self.saves and self.keeps:
            self.save(write, suffix)
        if self.verdict is None and self._by_itself:
            self.end("completed")
        elif self.stopping:
            self.end()
        elif self.leaving:
            self.end("interrupted")
        else:
            self.settle()

    def settle(self) -> None:
        """Deliver the last reports, with the study's patience, and stop the heartbeat."""
        self.release()
        self.trial.patient = True
        with suppress(Exception):
            self._deliver_waiting()
        if self._waiting:
            with suppress(Exception):  # warnings may be set to raise
                left = plural(len(self._waiting), "report")
                self.warn_once(
                    "late",
                    f"{left} of trial {self.trial.id} could not be delivered, because the store did not answer. The "
                    "log lacks them. Start the program again when it answers.",
                )

    def end(self, status: str | None = None) -> None:
        """End the trial. If status is None, the study decides: stopped, paused or completed."""
        self._close(lambda: self.trial.finish(status))

    def fail(self, error: BaseException) -> None:
        """End the trial by an exception: interrupted for Ctrl-C and SIGTERM (also waiting ones), otherwise failed.

        Within `with trial:` the program may handle the exception and fit again; see `LoopPort.breaks`.
        """
        if interrupts(error) or self.waits:
            # a trial that was to end is not offered again; one that was to pause is
            ends = self.stopping and not self.pausing
            lost = None if self.waits else lost_rank(error)  # a signal that ends all ranks may reach another one first
            if lost is not None and not ends:
                self._close(partial(self.trial.mark_lost, lost))
            else:
                self.end(None if ends else "interrupted")
        elif self.stopping:
            self._close(lambda: self.trial.fail(error))
        elif not self.ended:
            self.settle()
            with suppress(Exception):
                self.trial.breaks(error)
            self.ended = self.trial.ended is not None

    def release(self) -> None:
        """Stop the heartbeat, because no fit is running."""
        enough, self._enough = self._enough, None
        if enough is not None and os.getpid() == self._process:  # a fork lacks the thread; its event may be locked
            enough.set()

    def _close(self, closing: Callable[[], None]) -> None:
        self.release()
        if not self.ended:
            self.ended = True
            self.settle()
            with suppress(Exception):
                closing()

    # Ctrl-C and SIGTERM

    def defer(self, interruption: Interruption) -> None:
        """Defer signals until `heed`, unless the trial has ended. They are raised in `leave`, or after `postpone`."""
        self.postpone()
        self._leaves = False
        if not self.ended:  # otherwise no report follows
            self._interruption = interruption.__enter__()
            if interruption.known:
                self.trial.fits(interruption.trains_now)

    @property
    def waits(self) -> bool:
        """True if a deferred signal waits for the end of the loop."""
        return self._interruption is not None and self._interruption.waits

    def heed(self, epoch: float | None) -> None:
        """End the loop by a deferred signal after `epoch` epochs, if the last one was reported."""
        if self.waits and epoch == self._last:
            self._leaves = True

    def leave(self) -> None:
        """Raise the deferred signal after the loop has ended normally."""
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            interruption.__exit__(None, None, None)

    def postpone(self) -> None:
        """Raise the deferred signal right after the loop has failed."""
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            interruption.postpone()

    # saving

    def save_epoch(
        self, write: Callable[[Path], object], suffix: str, why_not: Callable[[], str | None] | None = None
    ) -> None:
        """Save the state after the epoch just reported, if it is the best or if the trial is to resume from it.

        why_not: returns why a training that resumes from it would differ; then a pause is declined.
        """
        if self.keeps_epoch:
            self.keep(write, suffix)
        self.save_to_resume(write, suffix, why_not)

    def save_to_resume(
        self,
        write: Callable[[Path], object],
        suffix: str,
        why_not: Callable[[], str | None] | None = None,
        resumes_only: bool = False,
    ) -> None:
        """Save the state if the trial is to resume from it. why_not: see `save_epoch`; resumes_only: `Port.save`."""
        if not self.saves:
            return
        if why_not is not None and (why := why_not()):
            self.decline(why, always=True)
        else:
            self.save(write, suffix, resumes_only=resumes_only)

    def save(
        self, write: Callable[[Path], object], suffix: str = ".ckpt", over: bool = False, resumes_only: bool = False
    ) -> bool:
        """Save the state after the last epoch. If this fails, decline the pause (over: see `decline`), return False.

        resumes_only: see `Port.save`.
        """
        saving = partial(self.trial.save, write, suffix, resumes_only=resumes_only)
        return self.attempt(saving, over, keeps=not self.saves)

    def keep(self, write: Callable[[Path], object], suffix: str = ".ckpt", epoch: bool | float = True) -> bool:
        """Save the state after an epoch with `keeps_epoch`, or after an earlier `epoch`; return False if this fails."""
        return self.attempt(partial(self.trial.save, write, suffix, keep=epoch), keeps=True)

    def attempt(
        self, saving: Callable[[], object], over: bool = False, keeps: bool = False, later: bool = False
    ) -> bool:
        """Run `saving`, the loop's own way to save, which raises an error if it fails; return whether it succeeded.

        keeps: the state is only for the user, so no pause depends on it. over: see `decline`. later: the training has
        continued since its report, so the time until now counts.
        """
        began = self.clock.now()
        try:
            with ordinary_errors():
                saving()
        except LeaseLost as error:
            self._lost(error)
        except Exception as error:
            always = isinstance(error, NotSupported)
            why = str(error) if always else f"its state could not be saved ({one_line(error)})"
            if keeps:
                self.advise(f"The model of trial {self.trial.id}, the best so far, is not kept: {why}", "kept")
            else:
                self.decline(why, over, always)
        else:
            self.clock.leave_out(began) if later else self.clock.restart()
            return True
        return False

    def decline(self, why: str, over: bool = False, always: bool = False) -> None:
        """Decline a pause that cannot be saved, so that the trial continues.

        over: the loop has ended already; the trial is offered again, and does not pause then.
        always: the reason holds for every trial of the study, so the warning is given once.
        """
        consequence = "a later attempt starts at an earlier epoch"
        if self.forgo():
            consequence = "it keeps training"
            if over:
                self.trial.decline_pause(why)
                self.end("interrupted")
                consequence = "its training has ended, so it starts again at an earlier epoch, and then does not pause"
        if always:
            what = "fold" if isinstance(self.trial, Fold) else "trial"  # a trial may still pause between its folds
            self.advise(f"A {what} cannot be paused, because {why}; {consequence}")
        else:
            self.warn_once("save", f"Trial {self.trial.id}: {why}; {consequence}")

    def forgo(self) -> bool:
        """Withdraw a PAUSE, if there was one, so that later reports are judged again."""
        paused = self.verdict is not None and self.verdict.action is Action.PAUSE
        if paused:
            self.verdict = None
            self.trial.decline_pause()
        return paused

    # warnings

    def foresee(self, logged: Iterable[str]) -> None:
        """Warn if a check before training logged a similar name instead of the metric.

        Training metrics are exempt, because such a check does not log them.
        """
        near = nearest(self.metric, names := set(logged), 0.7)
        if near is not None and self.metric not in names and not self.metric.lower().startswith("train"):
            self.advise(
                f"The check before training logged {near!r}, but not the metric {self.metric!r}. If you mean {near!r}, "
                f"write HaltuneCallback(trial, monitor={near!r})."
            )

    def advise(self, sentence: str, about: str | None = None) -> None:
        """Warn once a study for each sentence, or for each matter `about`."""
        self.trial.warn(sentence, about, once=True)

    def advise_best(
        self, keeper: str, unit: str = "round", file: bool = False, keeps: str = "keeps the model of",
        of: str = "that of the model that is kept",
    ) -> None:  # fmt: skip
        """Warn if `keeper`, a part of the library, keeps its best model but the study counts the last value.

        file: it only writes that model to a file, which the program may not use; then this is a hint.
        keeps, of: what it keeps, and whose value counts then.
        """
        trial, goal = self.trial, self.trial.goal
        if isinstance(trial, Fold):
            counts_last, what, do = not trial.counts_best, "a fold", f"Write trial.folds({trial.count}, of='best')"
        else:
            best = f"{type(goal).__name__}({goal.metric!r}, of='best')"
            counts_last, what, do = goal.of == "last", "a trial of this study", f"Make the goal {best}"
        if not counts_last or self.measures.others or self.ended:
            return
        if file:
            do = f"If you use that model, {do[0].lower()}{do[1:]}"
        text = (
            f"{keeper} {keeps} its best {unit}, but {what} counts with its last {unit}. {do}, so that the value is "
            f"{of}."
        )
        if file:
            trial.hint(text, "best")
        else:
            self.advise(text)

    def hint_at_lack(self, model: str) -> None:
        """Log once a study that the optimizer trains weights which the kept file of a `model` lacks."""
        self.trial.hint(
            f"The optimizer trains weights outside the {model}, as of a loss, so the kept model lacks them, and trials "
            f"do not pause. Make the loss a part of the {model}.",
            "outside",
        )

    def warn_once(self, topic: str, sentence: str, about: str | None = None) -> None:
        """Warn once in this training for each topic; log once for each matter `about`."""
        if topic not in self._warned:
            self._warned.add(topic)
            self.trial.warn(sentence, about or topic)

    def __getstate__(self) -> dict[str, Any]:
        """Include the trial only for a process that is spawned to train it; elsewhere reports could be lost."""
        tied = {} if spawning() else {"trial": Detached(self.trial), "_process": None}
        return self.__dict__ | {"_enough": None, "_interruption": None, "schedule": no_schedule} | tied


def no_schedule() -> None:
    """Return None: the schedule is not known."""


_VERDICTS = {Action.PAUSE: 1.0, Action.STOP: 2.0}  # every other verdict is 0


def ending_metrics(reporter: Reporter) -> tuple[dict[str, float], str]:
    """Return the metrics and the reason (a sentence) that trackers log when a fit ends."""
    trial = reporter.trial
    verdict = reporter.verdict or trial.verdict
    cut = trial.horizon is not None and reporter.verdict is not None
    metrics = {
        "haltune_verdict": _VERDICTS.get(verdict.action, 0.0) if verdict else 0.0,
        f"haltune_{trial.unit}s_saved": max(0.0, (trial.horizon or 0) - float(trial.epoch)) if cut else 0.0,
    }
    chance = verdict.evidence.get("p_win") if verdict else None
    if isinstance(chance, (int, float)):
        metrics["haltune_p_win"] = float(chance)
    return metrics, f"{verdict.action}: {verdict.reason}" if verdict else "trained without a verdict"


# wrong use


def need_trial(trial: Any, monitor: Any = None) -> None:
    """Raise InvalidInput if `trial` is not a trial or `monitor` is not a name."""
    if isinstance(trial, str):
        raise InvalidInput(
            f"The first argument is the string {trial!r}, not a trial. The arguments may be swapped. Write "
            f"HaltuneCallback(trial, monitor={trial!r})."
        )
    if not isinstance(trial, Port):
        raise InvalidInput(
            f"{_named(trial)} is not a trial. Give it a trial from `for trial in study` or study.ask(), as in "
            "HaltuneCallback(trial) or TrainingLoop(trial)."
        )
    if monitor is not None and not (isinstance(monitor, str) and monitor):
        raise InvalidInput(f"monitor is {_named(monitor)}. Use the name of a logged metric, such as 'val_loss'.")


def scalar(value: Any, name: str) -> float:
    """Return `value` as a float. NaN and infinity are allowed, because the study handles them.

    Raises InvalidInput if it is a vector, with its shape, or if it is not a number.
    """
    if why := no_real_number(value):
        raise InvalidInput(f"The metric {name!r} is {why}, {_named(value)}. Log a real number.")
    shape = tuple(getattr(value, "shape", ()))
    if not shape and isinstance(value, (list, tuple)):
        shape = (len(value),)
    if math.prod(shape) != 1 or isinstance(value, (list, tuple)):
        raise InvalidInput(
            f"The metric {name!r} is not one number but has shape {shape}. Reduce it, for example by its mean, or "
            "monitor a metric that is a scalar."
        )
    try:
        return float(value.item() if shape else value)
    except (TypeError, ValueError):
        raise InvalidInput(f"The metric {name!r} is {_named(value)}, not a number.") from None


def scalars(logged: Mapping[str, Any]) -> dict[str, float]:
    """Return the logged values that are one number. Other logged values are allowed, except for the goals."""
    found = {}
    for name, value in logged.items():
        if not isinstance(value, (str, bytes)):
            with suppress(InvalidInput):
                found[name] = scalar(value, name)
    return found


def missing(name: str, logged: Iterable[str], when: str, how: str, guess: bool = True) -> InvalidInput:
    """Return the error for a metric that was never logged, to raise.

    Args:
        name: The metric, `self.monitor`.
        logged: The names that were logged.
        when: When it was not, such as "in the first epoch".
        how: How to log it, an imperative without a full stop, such as "Log it".
        guess: Whether to suggest a similar logged name. Default: True.
    """
    names = sorted(set(logged))
    listed = f"Logged names: {', '.join(names)}." if names else "Nothing was logged."
    near = nearest(name, names) if guess else None
    monitor = f"HaltuneCallback(trial, monitor={near or 'name'!r})"
    do = _do(near, monitor, how, f"name another one, {monitor}")
    return InvalidInput(f"The metric {name!r} was not logged {when}. {listed} {do}")


def unranked(rank_by: str, logged: Iterable[str], when: str, how: str) -> InvalidInput:
    """Return the error for a metric of rank_by= that was never logged; arguments as in `missing`."""
    names = sorted(set(logged))
    near = nearest(rank_by, names)
    do = _do(near, f"rank_by={near!r}", how, "use one of these names")
    return InvalidInput(f"rank_by={rank_by!r} was not logged {when}. Logged names: {', '.join(names)}. {do}")


def _do(near: str | None, write: str, how: str, other: str) -> str:
    """Return what to do about a name that was not logged. near: a similar one. write: to use that. how: to log it."""
    if near is None:
        return f"{how}, or {other}."
    return f"If you mean {near!r}, write {write}; otherwise {how[0].lower()}{how[1:]}."


def nearest(name: str, names: Iterable[str], likeness: float = 0.5) -> str | None:
    """Return the logged name most similar to `name`, ignoring case, or None.

    It is never a metric with the opposite direction (val_acc for val_loss), nor a training metric for another phase's.
    likeness: the smallest ratio of difflib; 0.9 allows spelling mistakes only.
    """
    lower: dict[str, str] = {}
    for other in names:
        ways = {direction(other), direction(name)}
        of_training = [n.lower().startswith("train") for n in (other, name)]
        if ways == {-1.0, 1.0} or of_training == [True, False]:
            continue
        if other.startswith(f"{name}/dataloader_idx_"):  # Lightning's, with several validation loaders
            return other
        lower[other.lower()] = other
    found = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=likeness)
    return lower[found[0]] if found else None


def trains_another(trial: Port) -> NotSupported:
    """Return the error for a training of another model after a trial has ended."""
    if isinstance(trial, Fold):
        return NotSupported(
            f"Fold {trial.index} of trial {trial.id} has ended ({trial.ended}), and this fit trains another model, "
            "which no fold would count. Give haltune a fold of its own for each fit, or fit without haltune."
        )
    return NotSupported(
        f"Trial {trial.id} has ended ({trial.ended}), and this fit trains another model, which no trial would "
        "count. If the value of a trial is the mean over several trainings, write for fold in trial.folds(k): and "
        "give haltune the fold in place of the trial. Otherwise fit without haltune."
    )


def need_same_configuration(trial: Port, what: str, configuration: str, resume: str) -> None:
    """Raise NotSupported for a state of the trial with the same number in another study.

    what: the state, in words. configuration: that it names, by `Port.configuration`. resume: how this loop resumes.
    """
    if configuration != trial.configuration:
        raise NotSupported(
            f"This fit of trial {trial.id} loaded {what} of trial {trial.id} of another study, with another "
            f"configuration. {resume}, and let each trial save to a folder of its own."
        )


def digest(parts: Iterable[Any]) -> str:
    """Return the mark of a model for `Port.sign`, from its weights.

    Args:
        parts: Arrays, tensors on the CPU, or bytes, always in the same order.

    Returns:
        A text, the same for the same weights.

    Example:
        >>> digest([np.zeros(3), b"more"]) == digest([np.zeros(3), b"more"])
        True
    """
    mark = hashlib.sha256()
    for part in parts:
        mark.update(part if isinstance(part, bytes) else np.asarray(part).tobytes())
    return mark.hexdigest()


def two_callbacks(where: str) -> InvalidInput:
    """Return the error for two HaltuneCallbacks in one fit, to raise.

    Args:
        where: How the program gives callbacks to the fit, such as "callbacks=[...]".
    """
    return InvalidInput(
        f"{where} holds two HaltuneCallbacks, and each would report every epoch. Delete one of them. If each has its "
        f"own trial, make {where} within the loop, for each trial."
    )


def _named(value: Any) -> str:
    text = repr(value)
    kind = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"{text} ({kind})" if len(text) <= 60 else f"an object of type {kind}"


@contextmanager
def ordinary_errors() -> Iterator[None]:
    """Raise an OSError in place of the error of torch.distributed.checkpoint, which is not an Exception.

    A disk that is full on one rank would end the training on all ranks otherwise.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "CheckpointException":
            raise
        rank, (cause, _) = next(iter(error.failures.items()))  # type: ignore[attr-defined]
        raise OSError(f"rank {rank}: {type(cause).__name__}: {cause}") from error
