"""What every training loop needs: report a validation, keep the verdict, save for a pause, never break a training.

A `Reporter` connects one training loop with one trial.

- The first STOP or PAUSE is latched: later reports are stored and not judged again.
- A PAUSE that cannot be saved is declined: the training continues, with one warning, and is judged again.
- Positions are in the study's unit, and strictly increase; a repeat is ignored with one warning.
- If the study cannot be reached, reports wait, are sent again with the next one, and are then stored without a verdict.
- Ctrl-C and SIGTERM wait for the end of an epoch that was reported; its state is saved as for a pause.
- `end` and `fail` are idempotent and never raise. A trial that reached its horizon also ends.
"""

from __future__ import annotations

import difflib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from haltune._utils.interruption import Interruption
from haltune._utils.signals import interrupts
from haltune.display import numeral, one_line, plural, several_of, visible
from haltune.errors import HaltuneError, InvalidInput, LeaseLost, NotSupported, StoreError
from haltune.log.decisions import Action, Verdict
from haltune.log.events import Status
from haltune.log.metric_names import direction
from haltune.log.problem import Measures, length_argument, position_argument
from haltune.study import Trial
from haltune.study.attempt import Report
from haltune.study.session import spawning


class Clock:
    """Stopwatch of a training, in seconds, restarted after each report: the study's time is no training time."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.restart()

    def restart(self) -> None:
        self._start, self._validation = self._now(), 0.0
        self._validating: float | None = None

    def validating(self) -> None:
        """A validation starts."""
        self._validating = self._now()

    def validated(self) -> None:
        """A validation ends; without a start it counts nothing."""
        if self._validating is not None:
            self._validation += self._now() - self._validating
            self._validating = None

    def lap(self) -> tuple[float, float]:
        """Return (seconds since the last restart, seconds of these in validation)."""
        return self._now() - self._start, self._validation


def _beat(owner: Callable[[], Reporter | None], interval: float, enough: threading.Event) -> None:
    """Renew the lease until the fit or the trial has ended, or until no one holds the reporter.

    After an exception most frameworks call no hook.
    """
    while not enough.wait(interval):
        reporter = owner()
        if reporter is None or reporter.trial.ended is not None:
            return
        with suppress(Exception):  # the next report raises what is wrong with the store
            reporter.trial.heartbeat()
        del reporter  # else it would live on through this thread


class Detached:
    """The trial of a pickled callback: its data can be read, but it takes no reports."""

    attempt, checkpoint, verdict, ended = 0, None, None, None

    def __init__(self, trial: Trial) -> None:
        self.id, self.config, self._goal = trial.id, dict(trial.config), trial._goal
        self.epoch, self.max_epochs, self._horizon = float(trial.epoch), trial.max_epochs, trial._horizon
        self.unit = trial.unit

    def report(self, *args: Any, **kwargs: Any) -> Any:
        raise NotSupported(
            f"This callback was unpickled and has lost its connection to trial {self.id}. Make a new one where you "
            "train, HaltuneCallback(trial)."
        )

    _adopt = _before_end = _record = report

    def finish(self, *args: Any) -> None:
        """Do nothing: the trial ends in its own process."""

    fail = finish


class Reporter:
    """The reports of one training loop to one trial.

    monitor: the logged name to report; None: the goal's metric.
    verbose: print a line for each report.
    record: "all" scalars of an epoch are stored, or the "monitor" alone.
    resume_hint: how a user of this loop continues at the right epoch.
    counts: the units that the loop counts; empty for any.
    now: a monotonic clock, seconds.

    Raises InvalidInput, with advice, when `trial` is not a trial, and for a study in another unit than `counts`.
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
                f"Cannot read record={record!r}. 'all' stores every scalar of an epoch, 'monitor' the goal's metric."
            )
        self.trial: Trial = trial
        self.metric: str = monitor or trial._goal.metric
        self.measures: Measures = trial._measures
        self.verbose, self.record, self.clock = verbose, record, Clock(now)
        self.reports = 0  # values taken since `begin`, repeats included
        self.verdict: Verdict | None = None  # the first STOP or PAUSE
        self._resume_hint = resume_hint
        self._warned: set[str] = set()  # topics of this training
        self._waiting: list[Report] = []  # not delivered yet
        self._last = float(trial.epoch)  # the epoch reported last
        self.ended = trial.ended is not None  # later epochs are not reported
        self._by_itself = False  # the training ended in an epoch after which it would have been cut
        self._process: int | None = os.getpid()  # that reports; None: unpickled elsewhere
        self._enough: threading.Event | None = None  # ends the heartbeat
        self._interruption: Interruption | None = None  # while signals may wait
        self._leaves = False  # a signal waited until the end of an epoch
        # of the fit under way: the name of its schedule, if the learning rate is still to fall
        self.schedule: Callable[[], str | None] = no_schedule

    # where the training stands

    @property
    def stopping(self) -> bool:
        """True when the loop should end: a STOP or PAUSE came, the trial is lost, or it reached its horizon."""
        horizon = self.trial._horizon
        return self.verdict is not None or (not self.ended and horizon is not None and self._last >= horizon)

    @property
    def pausing(self) -> bool:
        """True when the loop should save its state before it ends: the trial may be resumed."""
        return self.verdict is not None and self.verdict.resumable and not self.ended

    @property
    def leaving(self) -> bool:
        """True when the loop should save its state and end because of Ctrl-C or SIGTERM alone."""
        return self._leaves and not self.ended and not self.stopping

    @property
    def over(self) -> bool:
        """True when the loop should end."""
        return self.stopping or self.leaving

    @property
    def saves(self) -> bool:
        """True when the state after this epoch should be saved to resume from."""
        return self.pausing or (self.leaving and self.trial.epoch == self._last)

    @property
    def keeps(self) -> bool:
        """True when the final state should be saved, too: the trial is among the best, whose checkpoints are kept."""
        with suppress(Exception):  # a study out of reach
            return not self.ended and self.trial._keeps_checkpoint
        return False

    @property
    def keeps_epoch(self) -> bool:
        """True when the state after the epoch just reported should be saved: it is the trial's best so far."""
        with suppress(Exception):
            return not self.ended and self.trial._keeps_epoch
        return False

    @property
    def silent(self) -> bool:
        """True while the trial has no value, of this fit or an earlier one: the metric's name may be misspelt."""
        return self.reports == 0 and self._last <= 0 and not self.ended

    def position(self, **counted: float) -> float:
        """Return where the loop is in the study's unit, from all that it counts, by unit: epoch=0.5, step=120."""
        return float(counted[self.trial.unit])

    def _at(self, position: float) -> str:
        return f"{self.trial.unit} {numeral(position)}"

    # a fit, from its start to its end

    def begin(self, planned: float | None = None, model: Any = None) -> None:
        """A fit starts. planned: its length in the study's unit, if known. model: what it trains.

        Raises NotSupported in another process than the one that asked for the trial, unless that one forked or
        spawned it to train and the study has a store that both can reach.
        """
        trial = self.trial
        if os.getpid() != self._process:
            trial._adopt()
            self._process, self._enough = os.getpid(), None
        self.reports = 0
        self._last = max(self._last, float(trial.epoch))
        self.ended = self.ended or trial.ended is not None
        horizon = trial._horizon
        if self.ended and self.verdict is None:
            self.warn_once("ended", f"Trial {trial.id} has ended: the epochs of this fit are not reported.")
        elif planned is not None and horizon is not None and planned != horizon:
            full = length_argument(trial.unit)
            why = (
                f"trials are compared at {self._at(horizon)}, and haltune stops them earlier"
                if planned < horizon
                else f"the search's {full} is {horizon}, where haltune ends each fit and cuts a learning-rate "
                "schedule short"
            )
            self.advise(
                f"This fit plans {plural(planned, trial.unit)}, but {why}. Give the loop trial.{full}, or set "
                f"{full}={planned:g} in the search.",
                "horizon",
            )
        known = self.ended or model is None
        if not known and (first := trained_by(trial._session, model, trial.id)) is not None:
            self.advise(
                f"Trial {trial.id} trains the model that trial {first} has trained, with its weights and the "
                "configuration it was built with. Build a model for each trial, within the loop, from trial.config.",
                "model",
            )
        if not self.ended and self._enough is None:
            self._enough = threading.Event()
            arguments = weakref.ref(self), trial._heartbeat_seconds, self._enough
            threading.Thread(target=_beat, args=arguments, name="haltune-heartbeat", daemon=True).start()
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
        """Report the metric at a position in the study's unit, `epoch`; True when training should stop.

        value: one number, or several by their names, as in `Trial.report`.
        metrics: further scalars of the epoch.
        need: returns the bytes of a checkpoint; called on a PAUSE by loops that cannot continue once they have stopped.
            Without room for it the pause is declined.
        lap: the clock's, when it was taken before. judge: False stores the value without a verdict.

        Raises InvalidInput for a vector, and for a mapping without the goal.
        """
        trial = self.trial
        seconds, validation = lap or self.clock.lap()
        value, scalars = self.measures.split(value, metrics)
        if self.record != "all":
            scalars = {name: scalars[name] for name in self.measures.others if name in scalars}
        self.reports += 1
        try:
            if trial.unit != "epoch" and trial._horizon is not None:  # tokens come by batches, which may go beyond
                epoch = min(epoch, trial._horizon)
            report = Report(scalar(value, self.metric), float(epoch), seconds, validation, metrics=scalars)
            if not self._is_new(report.epoch):
                return self.stopping
            self._last = report.epoch
            trial._patient = False  # an outage of the store does not hold up the training
            try:
                if self._waiting:
                    self._deliver_waiting()
                verdict = trial._record(report, judge and self.verdict is None)
            except LeaseLost as error:
                self._lost(error)
            except Exception as error:
                self._undelivered(report, error)
            else:
                if self.verdict is None and verdict.stops:
                    self.verdict = verdict
                    with suppress(Exception):  # a schedule of the user's
                        self._look_at_schedule(verdict)
                    if need is not None and verdict.action is Action.PAUSE:
                        self.attempt(lambda: trial.room_for(need()))
                if self.verbose:
                    what = f"trial {trial.id}, {self._at(report.epoch)}: {self.metric} = {report.value:.6g}"
                    print(visible(f"{what}, {verdict.action}: {verdict.reason}"), flush=True)
        finally:
            self.clock.restart()
        return self.stopping

    def _look_at_schedule(self, verdict: Verdict) -> None:
        """Say once a study, at the first trial that is cut by comparison, that the learning rate was still to fall."""
        trial, log = self.trial, self.trial._session.log
        compared = verdict.action is Action.PAUSE or not verdict.resumable
        earlier = any(log.history.with_status(status) for status in (Status.PAUSED, Status.STOPPED))
        if compared and not earlier and (name := self.schedule()) is not None:
            trial._session.hint(
                f"At {self._at(self._last)} the learning rate of trial {trial.id} is still to fall ({name}). Values "
                "before the end of a schedule rank trials against each other, but say little about their final values. "
                "Read on in docs/howto/schedules.md",
                "schedule",
            )

    def _is_new(self, epoch: float) -> bool:
        self._last = max(self._last, float(self.trial.epoch))
        horizon = self.trial._horizon
        if self.ended or (horizon is not None and max(epoch, math.nextafter(self._last, math.inf)) > horizon):
            return False
        if epoch <= self._last:
            self.warn_once(
                "repeat",
                f"Trial {self.trial.id} has already reported {self._at(self._last)}, so {self._at(epoch)} is ignored. "
                f"If this fit starts again: {self._resume_hint}.",
            )
        return epoch > self._last

    def _deliver_waiting(self) -> None:
        while self._waiting:
            self.trial._record(self._waiting[0], judge=False)
            self._waiting.pop(0)

    def _undelivered(self, report: Report, error: Exception) -> None:
        """An outage of the store, or a bug in a policy, does not end the training; an error in the report does."""
        kind = f"({type(error).__name__}: {error})"
        if float(self.trial.epoch) >= report.epoch:  # stored: only then is a policy asked
            self.warn_once(
                "policy",
                f"The policy failed to judge {self._at(report.epoch)} of trial {self.trial.id} {kind}. The report is "
                "stored, and training continues.",
            )
        elif isinstance(error, HaltuneError) and not isinstance(error, StoreError):
            raise error
        else:
            self._waiting.append(report)
            self.warn_once(
                "outage",
                f"The study cannot take reports now {kind}. Training continues; the reports are delivered later, "
                "without a verdict.",
            )

    def _lost(self, error: LeaseLost) -> None:
        reason = f"Trial {self.trial.id} is no longer held by this worker, so its training stops: {error}"
        self.verdict, self.ended = Verdict(Action.STOP, reason), True
        self.release()
        self.warn_once("lease", reason)

    def ends_by_itself(self) -> None:
        """Another callback ended the training where a PAUSE or Ctrl-C would: completed, if no STOP comes."""
        if self.pausing or self.leaving:
            self.forgo()
            self.verdict, self._leaves, self._by_itself = None, False, True

    def end_of_fit(self, write: Callable[[Path], object] | None = None, suffix: str = ".ckpt") -> None:
        """A fit is over: end the trial if nothing may follow; otherwise `with trial` ends it.

        write: saves the final model, if it is to be kept and no state to resume from was saved.
        """
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
        self.trial._patient = True
        with suppress(Exception):
            self._deliver_waiting()
        if self._waiting:
            with suppress(Exception):  # warnings may be errors
                left = plural(len(self._waiting), "report")
                self.warn_once("late", f"{left} of trial {self.trial.id} could not be delivered.")

    def end(self, status: str | None = None) -> None:
        """End the trial; status None lets the study decide: stopped, paused or completed."""
        self._close(lambda: self.trial.finish(status))

    def fail(self, error: BaseException) -> None:
        """End the trial by an exception: interrupted for Ctrl-C and SIGTERM, waiting ones too, else failed."""
        if interrupts(error) or (self._interruption is not None and self._interruption.waits):
            # a trial that was to end anyway is not offered again; one that was to pause is
            self.end(None if self.stopping and not self.pausing else "interrupted")
        else:
            self._close(lambda: self.trial.fail(error))

    def release(self) -> None:
        """No fit is under way: stop the heartbeat."""
        enough, self._enough = self._enough, None
        if enough is not None and os.getpid() == self._process:  # a fork has no such thread, perhaps a locked event
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
        """From now on signals wait until `heed`, and are raised in `leave`, or after `postpone`."""
        self.postpone()
        self._leaves, self._interruption = False, interruption.__enter__()

    def heed(self, epoch: float | None) -> None:
        """`epoch` epochs are trained: a signal ends the loop here, if the last was reported."""
        if self._interruption is not None and self._interruption.waits and epoch == self._last:
            self._leaves = True

    def leave(self) -> None:
        """The loop has ended in order. Raises the signal that waited."""
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            interruption.__exit__(None, None, None)

    def postpone(self) -> None:
        """The loop has failed: the signal that waited is raised right after."""
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            interruption.postpone()

    # saving

    def save_epoch(self, write: Callable[[Path], object], suffix: str = ".ckpt") -> None:
        """Save the state after the epoch just reported: if it is the best, and if the trial is to resume from it."""
        if self.keeps_epoch:
            self.keep(write, suffix)
        if self.saves:
            self.save(write, suffix)

    def save(self, write: Callable[[Path], object], suffix: str = ".ckpt", over: bool = False) -> bool:
        """Save the state after the last epoch. If that fails, decline the pause (over: as there); return False."""
        return self.attempt(lambda: self.trial.save(write, suffix), over, keeps=not self.saves)

    def keep(self, write: Callable[[Path], object], suffix: str = ".ckpt") -> bool:
        """Save the state after an epoch that `keeps_epoch`; False when that fails."""
        return self.attempt(lambda: self.trial.save(write, suffix, keep=True), keeps=True)

    def attempt(self, saving: Callable[[], object], over: bool = False, keeps: bool = False) -> bool:
        """`save` for loops that write by themselves: `saving` raises what went wrong.

        keeps: the state is for the user alone, and no pause depends on it. over: see `decline`.
        """
        try:
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
            self.clock.restart()
            return True
        return False

    def decline(self, why: str, over: bool = False, always: bool = False) -> None:
        """A pause cannot be saved: the trial continues.

        over: the loop has ended already, so the trial is offered again and is not paused then.
        always: that holds for every trial of the study, and is warned about once.
        """
        consequence = "a later attempt starts further back"
        if self.forgo():
            consequence = "it keeps training"
            if over:
                self.trial._cannot_save(why)
                self.end("interrupted")
                consequence = "its training had ended: it starts again further back, and does not pause then"
        if always:
            self.advise(f"A trial cannot be paused, as {why}; {consequence}")
        else:
            self.warn_once("save", f"Trial {self.trial.id}: {why}; {consequence}")

    def forgo(self) -> bool:
        """Take a PAUSE back, if there was one: later reports are judged again."""
        paused = self.verdict is not None and self.verdict.action is Action.PAUSE
        if paused:
            self.verdict = None
            self.trial._go_on()
        return paused

    # warnings

    def foresee(self, logged: Iterable[str]) -> None:
        """Warn if a check before training logged not the metric but a similar name.

        Not for a metric of training, which no such check logs.
        """
        near = nearest(self.metric, names := set(logged), 0.7)
        if near is not None and self.metric not in names and not self.metric.lower().startswith("train"):
            self.advise(
                f"The check before training logged {near!r}, but not the metric {self.metric!r}. If you mean {near!r}, "
                f"write HaltuneCallback(trial, monitor={near!r})."
            )

    def advise(self, sentence: str, about: str | None = None) -> None:
        """Warn once a study about the same sentence, or of the first sentence `about` a matter."""
        once(self.trial._session, sentence, about)

    def warn_once(self, topic: str, sentence: str, about: str | None = None) -> None:
        """Warn once in this training for each topic; in the log once for each matter it is `about`."""
        if topic not in self._warned:
            self._warned.add(topic)
            self.trial._session.warn(sentence, about or topic)

    def __getstate__(self) -> dict[str, Any]:
        """With the trial only into a process that is spawned to train it: elsewhere reports could be lost."""
        tied = {} if spawning() else {"trial": Detached(self.trial), "_process": None}
        return self.__dict__ | {"_enough": None, "_interruption": None, "schedule": no_schedule} | tied


def no_schedule() -> None:
    """What falls is not known."""


_VERDICTS = {Action.PAUSE: 1.0, Action.STOP: 2.0}  # every other verdict is 0: the trial trained to its end


def ending_metrics(reporter: Reporter) -> tuple[dict[str, float], str]:
    """Return what trackers log when a fit ends: metrics, and the reason as a sentence."""
    trial = reporter.trial
    verdict = reporter.verdict or trial.verdict
    cut = trial._horizon is not None and reporter.verdict is not None
    metrics = {
        "haltune_verdict": _VERDICTS.get(verdict.action, 0.0) if verdict else 0.0,
        f"haltune_{trial.unit}s_saved": max(0.0, (trial._horizon or 0) - float(trial.epoch)) if cut else 0.0,
    }
    chance = verdict.evidence.get("p_win") if verdict else None
    if isinstance(chance, (int, float)):
        metrics["haltune_p_win"] = float(chance)
    return metrics, f"{verdict.action}: {verdict.reason}" if verdict else "trained without a verdict"


# what callbacks know about a study, to warn once

_WARNED: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
_MODELS: WeakKeyDictionary[Any, WeakKeyDictionary[Any, int]] = WeakKeyDictionary()  # study -> model -> trial


def once(study: Any, sentence: str, about: str | None = None) -> None:
    """Warn and log once a study: the same sentence, or the first sentence `about` a matter."""
    warned = _WARNED.setdefault(study, set())
    if (about or sentence) not in warned:
        warned.add(about or sentence)
        study.warn(sentence, about)


def trained_by(study: Any, model: Any, trial: int) -> int | None:
    """Return the other trial of a study that has trained this model, or None."""
    first = _MODELS.setdefault(study, WeakKeyDictionary()).setdefault(model, trial)
    return first if first != trial else None


# wrong use


def need_trial(trial: Any, monitor: Any = None) -> None:
    """Raise InvalidInput when `trial` is no trial, or `monitor` is no name."""
    if isinstance(trial, str):
        raise InvalidInput(
            f"The first argument is the string {trial!r}, not a trial; perhaps the arguments are swapped. Write "
            f"HaltuneCallback(trial, monitor={trial!r})."
        )
    # a study reports, too
    if isinstance(trial, type) or not (hasattr(trial, "report") and hasattr(trial, "verdict")):
        raise InvalidInput(
            f"{_named(trial)} is not a trial. Write HaltuneCallback(trial), with a trial from `for trial in study` or "
            "study.ask()."
        )
    if monitor is not None and not (isinstance(monitor, str) and monitor):
        raise InvalidInput(f"monitor is a logged metric's name such as 'val_loss', not {_named(monitor)}.")


def scalar(value: Any, name: str) -> float:
    """Return `value` as a float. NaN and infinity pass: the study decides what they mean.

    Raises InvalidInput for a vector, printing its shape, and for what is no number.
    """
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
    """Return the logged values that are one number; only the goals' metrics have to be."""
    found = {}
    for name, value in logged.items():
        if not isinstance(value, (str, bytes)):
            with suppress(InvalidInput):
                found[name] = scalar(value, name)
    return found


def missing(name: str, logged: Iterable[str], when: str, how: str, guess: bool = True) -> InvalidInput:
    """Return the error for a metric that was never logged.

    when: "in the first epoch". how: how to log it. guess: a similar name that was logged may be meant.
    """
    names = sorted(set(logged))
    listed = f"Logged names: {', '.join(names)}." if names else "Nothing was logged."
    near = nearest(name, names) if guess else None
    monitor = f"HaltuneCallback(trial, monitor={near or 'name'!r})"
    do = f"{how}, or name another one, {monitor}."
    if near:
        do = f"If you mean {near!r}, write {monitor}; otherwise {how[0].lower()}{how[1:]}."
    return InvalidInput(f"The metric {name!r} was not logged {when}. {listed} {do}")


def unranked(rank_by: str, logged: Iterable[str], when: str, how: str) -> InvalidInput:
    """Return the error for a metric of rank_by= that was never logged; arguments as in `missing`."""
    return InvalidInput(
        f"rank_by={rank_by!r} was not logged {when}. Logged names: {', '.join(sorted(set(logged)))}. {how}, or name "
        "one of these."
    )


def nearest(name: str, names: Iterable[str], likeness: float = 0.5) -> str | None:
    """Return the logged name most like `name`, or None. Letter case does not count.

    It never points the other way, val_acc for val_loss, nor is it one of training for another phase's.
    likeness: difflib's ratio that it needs at least; 0.9 takes a spelling mistake alone.
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


def two_callbacks(where: str) -> InvalidInput:
    """Return the error for two callbacks of haltune in one fit."""
    return InvalidInput(f"{where} holds two HaltuneCallbacks, and each would report every epoch. Delete one of them.")


def _named(value: Any) -> str:
    text = repr(value)
    kind = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"{text} ({kind})" if len(text) <= 60 else f"an object of type {kind}"
