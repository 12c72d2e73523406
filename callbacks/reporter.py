"""What every training loop needs: report a validation, keep the verdict, save for a pause, never break a training.

A `Reporter` stands between one training loop and one trial.

- The first STOP or PAUSE is latched: later reports are stored and not judged again.
- A PAUSE that cannot be saved is declined: the training continues, with one warning, and is judged again.
- Epochs strictly increase; a repeat is ignored with one warning.
- If the study cannot be reached, reports wait, are sent again with the next one, and are then stored without a verdict.
- Ctrl-C and SIGTERM wait for the end of an epoch that was reported; its state is saved as for a pause.
- `end` and `fail` are idempotent and never raise. A trial that reached its horizon ends, too.
"""

from __future__ import annotations

import difflib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from haltune._utils.forks import heirs
from haltune._utils.signals import interrupts
from haltune.display import one_line, plural, visible
from haltune.errors import HaltuneError, InvalidInput, LeaseLost, NotSupported, StoreError
from haltune.log.decisions import Action, Verdict
from haltune.log.metric_names import direction
from haltune.log.problem import Measures
from haltune.study import Trial
from haltune.study.attempt import Report
from haltune.study.session import spawning

from .interruption import Interruption


class Clock:
    """Stopwatch of a training, in seconds. It is restarted after each report: the study's time is no training time.

    now: Any monotonic clock, in seconds.
    """

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
        """(seconds since the last restart, seconds of these in validation)."""
        return self._now() - self._start, self._validation


class Heartbeat:
    """Daemon thread that renews a trial's lease while an epoch runs long.

    It ends when it is stopped, when the trial has ended, and when its owner is gone: after an exception most frameworks
    call no hook.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = weakref.ref(owner)
        self._enough = threading.Event()
        self._thread: threading.Thread | None = None
        heirs.add(self)

    def after_fork(self) -> None:
        """See haltune._utils.forks: the thread, which may have held the event's lock, is the parent's."""
        self._enough, self._thread = threading.Event(), None

    def start(self, trial: Any) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        self._enough = threading.Event()
        weakref.finalize(self._owner(), _end_heartbeat, self._enough, os.getpid())
        arguments = (weakref.ref(trial), trial._heartbeat_seconds, self._enough)
        self._thread = threading.Thread(target=_beat, args=arguments, name="haltune-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._enough.set()
        self._thread = None


def _end_heartbeat(enough: threading.Event, pid: int) -> None:
    if os.getpid() == pid:  # not at the end of a forked process
        enough.set()


def _beat(trial: Any, interval: float, enough: threading.Event) -> None:
    while not enough.wait(interval):
        held = trial()
        if held is None or held.ended is not None:
            return
        with suppress(Exception):  # the next report says what is wrong with the store
            held.heartbeat()
        del held  # else the trial would live on through this thread


class Detached:
    """The trial of a pickled callback: its data can be read, but it takes no reports."""

    attempt, checkpoint, verdict = 0, None, None

    def __init__(self, trial: Trial) -> None:
        self.id, self.config, self.goal, self.epoch = (
            trial.id,
            dict(trial.config),
            trial.goal,
            float(trial.epoch),
        )
        self.max_epochs, self.horizon = trial.max_epochs, trial.horizon

    def report(self, *args: Any, **kwargs: Any) -> Any:
        raise NotSupported(
            f"this callback was unpickled and is not tied to trial {self.id} any more: "
            "its reports would be lost. Make a new one where the training runs, HaltuneCallback(trial)"
        )

    _adopt = _before_end = _record = report

    def finish(self, *args: Any) -> None:
        """Does nothing: the trial ends where it lives."""

    fail = finish


class Reporter:
    """The reports of one training loop to one trial.

    monitor: the logged name to report; None: the goal's metric.
    verbose: print a line for each report.
    record: "all" scalars of an epoch are stored, or the "monitor" alone.
    resume_hint: how a user of this loop continues at the right epoch.
    now: a monotonic clock, seconds.

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
        if record not in ("all", "monitor"):
            raise InvalidInput(
                f"record={record!r}: 'all' stores every scalar of an epoch, 'monitor' the goal's metric alone"
            )
        self.trial: Trial = trial
        self.metric: str = monitor or trial.goal.metric
        self.measures: Measures = trial._measures
        self.verbose, self.record, self.clock = verbose, record, Clock(now)
        self.reports = 0  # values taken since `begin`, repeats among them
        self.verdict: Verdict | None = None  # the first STOP or PAUSE
        self._resume_hint = resume_hint
        self._warned: set[str] = set()  # topics of this training
        self._waiting: list[Report] = []  # that could not be delivered yet
        self._heartbeat = Heartbeat(self)
        self._last = float(trial.epoch)  # the epoch reported last
        self._ended = trial.ended is not None
        self._repeats = False  # this fit trains epochs again
        self._by_itself = False  # the training ended in an epoch after which it was to be cut
        self._process: int | None = os.getpid()  # that reports; None: unpickled elsewhere
        self._interruption: Interruption | None = None  # while signals may wait
        self._leaves = False  # a signal waited until the end of an epoch

    # where the training stands

    @property
    def stopping(self) -> bool:
        """True when the loop should end: a STOP or PAUSE came, the trial is lost, or it reached its horizon."""
        horizon = self.trial.horizon
        return self.verdict is not None or (not self._ended and horizon is not None and self._last >= horizon)

    @property
    def pausing(self) -> bool:
        """True when the loop should save its state before it ends: the trial may be resumed."""
        return self.verdict is not None and self.verdict.resumable and not self._ended

    @property
    def leaving(self) -> bool:
        """True when the loop should save its state and end because of Ctrl-C or SIGTERM alone."""
        return self._leaves and not self._ended and not self.stopping

    @property
    def saves(self) -> bool:
        """True when the state after this epoch should be saved to resume from."""
        return self.pausing or (self.leaving and self.trial.epoch == self._last)

    @property
    def keeps(self) -> bool:
        """True when the final state should be saved, too: the trial is among the best, whose checkpoints are kept."""
        with suppress(Exception):  # a study out of reach
            return not self._ended and self.trial._keeps_checkpoint
        return False

    @property
    def keeps_epoch(self) -> bool:
        """True when the state after the epoch just reported should be saved: it is the trial's best so far."""
        with suppress(Exception):
            return not self._ended and self.trial._keeps_epoch
        return False

    @property
    def ended(self) -> bool:
        """True when the trial has ended: later epochs are not reported."""
        return self._ended

    @property
    def silent(self) -> bool:
        """True while the trial has no value, of this fit or of one before it: is the metric's name misspelt?"""
        return self.reports == 0 and self._last <= 0 and not self._ended

    # a fit, from its start to its end

    def begin(self, planned: float | None = None, model: Any = None) -> None:
        """A fit starts training now. planned: its number of epochs, if it is known. model: what it trains.

        Raises NotSupported in another process than the one that asked for the trial, unless that one forked or
        spawned it to train and the study has a store that both can reach.
        """
        trial = self.trial
        if os.getpid() != self._process:
            trial._adopt()
            self._process, self._heartbeat = os.getpid(), Heartbeat(self)
        self.reports = 0
        self._last = max(self._last, float(trial.epoch))
        self._ended = self._ended or trial.ended is not None
        horizon = trial.horizon
        if self._ended and self.verdict is None:
            self.warn_once("ended", f"trial {trial.id} has ended: what this fit trains is not reported")
        elif planned is not None and horizon is not None and planned != horizon:
            why = (
                f"trials are compared at {horizon}: haltune stops a trial earlier where that pays"
                if planned < horizon
                else f"the search's max_epochs is {horizon}: haltune ends each fit there, and a learning-rate schedule "
                "made for more is cut short"
            )
            self.advise(
                f"this fit plans {plural(planned, 'epoch')} but {why}. Give the loop trial.max_epochs; or make "
                f"{planned:g} the max_epochs of the search",
                "horizon",
            )
        known = self._ended or model is None
        if not known and (first := trained_by(trial.session, model, trial.id)) is not None:
            self.advise(
                f"trial {trial.id} trains the very model that trial {first} has trained, with its weights and the "
                "configuration it was built with: build a model for each trial, within the loop, from trial.config",
                "model",
            )
        if not self._ended:
            self._heartbeat.start(trial)
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

        value: one number, or several by their names, as `Trial.report` takes them.
        metrics: further scalars of the epoch.
        need: returns the bytes of a checkpoint; called on a PAUSE by loops that cannot continue once they have stopped.
            Without room for it the pause is declined.
        lap: the clock's, when it was taken before. judge: False stores the value without a verdict.

        Raises InvalidInput for a vector, and for a mapping without the goal.
        """
        trial = self.trial
        seconds, validation = lap or self.clock.lap()
        value, scalars = self.measures.told(value, metrics)
        if self.record != "all":
            scalars = {name: scalars[name] for name in self.measures.others if name in scalars}
        self.reports += 1
        try:
            report = Report(scalar(value, self.metric), float(epoch), seconds, validation, metrics=scalars)
            if not self._is_new(report.epoch):
                return self.stopping
            self._last = report.epoch
            trial._patient = False  # a server that is away does not hold up the training
            try:
                self._deliver_waiting()
                verdict = trial._record(report, judge and self.verdict is None)
            except LeaseLost as error:
                self._lost(error)
            except Exception as error:
                self._undelivered(report, error)
            else:
                self._latch(verdict, need)
                if self.verbose:
                    what = f"trial {trial.id}, epoch {report.epoch:g}: {self.metric} = {report.value:.6g}"
                    print(visible(f"{what}, {verdict.action}: {verdict.reason}"), flush=True)
        finally:
            self.clock.restart()
        return self.stopping

    def ends_by_itself(self) -> None:
        """Somebody else ended the training where a PAUSE or Ctrl-C would: completed, if no STOP comes."""
        if self.pausing or self.leaving:
            self.forgo()
            self.verdict, self._leaves, self._by_itself = None, False, True

    def end_of_fit(self) -> None:
        """A fit is over: end the trial if nothing may follow; otherwise `with trial` ends it."""
        if self.verdict is None and self._by_itself:
            self.end("completed")
        elif self.stopping:
            self.end()
        elif self.leaving:
            self.end("interrupted")
        else:
            self.settle()

    def settle(self) -> None:
        """Nothing more is reported: deliver what waits, now with the study's patience, and stop the heartbeat."""
        self._heartbeat.stop()
        self.trial._patient = True
        with suppress(Exception):
            self._deliver_waiting()
        if self._waiting:
            with suppress(Exception):  # warnings may be errors
                left = plural(len(self._waiting), "report")
                self.warn_once("late", f"{left} of trial {self.trial.id} could not be delivered")

    def end(self, status: str | None = None) -> None:
        """End the trial; status None lets the study say stopped, paused or completed."""
        self._close(lambda: self.trial.finish(status))

    def fail(self, error: BaseException) -> None:
        """End the trial by an exception: interrupted for Ctrl-C and SIGTERM, waiting ones too, else failed."""
        if interrupts(error) or (self._interruption is not None and self._interruption.waits):
            # what was to end anyway is not offered again; a pause that was to be saved is
            self.end(None if self.stopping and not self.pausing else "interrupted")
        else:
            self._close(lambda: self.trial.fail(error))

    def release(self) -> None:
        """No fit is under way: stop the heartbeat."""
        self._heartbeat.stop()

    def _close(self, closing: Callable[[], None]) -> None:
        self._heartbeat.stop()
        if not self._ended:
            self._ended = True
            self.settle()
            with suppress(Exception):
                closing()

    # Ctrl-C and SIGTERM

    def hear(self, interruption: Interruption) -> None:
        """From now on signals wait until `heed`, and are raised in `leave`, or after `postpone`."""
        self.postpone()
        self._leaves, self._interruption = False, interruption.__enter__()

    def heed(self, epoch: float | None) -> None:
        """So many epochs are trained: the loop may end here, if the last was reported."""
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
                self.advise(
                    f"the model of trial {self.trial.id}, the best so far, is not kept: {why}", "kept"
                )
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
            consequence = "it trains on instead of losing its work"
            if over:
                self.trial._cannot_save(why)
                self.end("interrupted")
                consequence = "its training had ended: it starts again further back, not paused then"
        if always:
            self.advise(f"a trial cannot be paused, as {why}; {consequence}")
        else:
            self.warn_once("save", f"trial {self.trial.id}: {why}; {consequence}")

    def forgo(self) -> bool:
        """Take a PAUSE back, if there was one: later reports are judged again."""
        paused = self.verdict is not None and self.verdict.action is Action.PAUSE
        if paused:
            self.verdict = None
            self.trial.go_on()
        return paused

    # warnings

    def repeats(self, sentence: str) -> None:
        """This fit trains epochs again that were reported: warn of the first trial, and count from the second on."""
        if self._repeats:
            return
        self._repeats = True
        notes = _notes(self.trial.session)
        notes.repeats, notes.epochs = notes.repeats + 1, notes.epochs + self._last
        if notes.repeats == 1:
            self.warn_once("repeat", sentence)
        else:
            self.warn_once(
                "repeat",
                f"{notes.repeats} fits have begun again though their trials had been trained: "
                f"{plural(notes.epochs, 'epoch')} were paid for twice. {self._resume_hint}; "
                "or choose BOBOS(), a policy that never pauses",
                about="repeats",
            )

    def foresee(self, logged: Iterable[str]) -> None:
        """Warn if a check before training did not log the metric, but a name much like it.

        Not for a metric of training, which no such check logs.
        """
        near = nearest(self.metric, names := set(logged), 0.7)
        if near is not None and self.metric not in names and not self.metric.lower().startswith("train"):
            self.advise(
                f"the metric {self.metric!r} was not logged in the check before training, {near!r} was: if it is "
                f"meant, HaltuneCallback(trial, monitor={near!r})"
            )

    def advise(self, sentence: str, about: str | None = None) -> None:
        """Warn once a study of the same sentence, or of the first sentence `about` a matter."""
        once(self.trial.session, sentence, about)

    def warn_once(self, topic: str, sentence: str, about: str | None = None) -> None:
        """Warn once in this training for each topic; in the log once for each matter it is `about`."""
        if topic not in self._warned:
            self._warned.add(topic)
            self.trial.session.warn(sentence, about or topic)

    # on the way to the trial

    def _is_new(self, epoch: float) -> bool:
        self._last = max(self._last, float(self.trial.epoch))
        horizon = self.trial.horizon
        if self._ended or (horizon is not None and epoch > horizon):
            return False
        if epoch <= self._last:
            self.repeats(
                f"trial {self.trial.id} has reported epoch {self._last:g} already; epoch {epoch:g} is ignored. "
                f"Does this fit begin again? {self._resume_hint}"
            )
        return epoch > self._last

    def _deliver_waiting(self) -> None:
        while self._waiting:
            self.trial._record(self._waiting[0], judge=False)
            self._waiting.pop(0)

    def _undelivered(self, report: Report, error: Exception) -> None:
        """A store out of reach, or a bug in a policy, is not the training's fault; an error about the report is."""
        kind = f"({type(error).__name__}: {error})"
        if float(self.trial.epoch) >= report.epoch:  # stored: only then is a policy asked
            self.warn_once(
                "policy",
                f"the policy failed to judge epoch {report.epoch:g} of trial {self.trial.id} {kind}; the report is "
                "stored, and training continues",
            )
        elif isinstance(error, HaltuneError) and not isinstance(error, StoreError):
            raise error
        else:
            self._waiting.append(report)
            self.warn_once(
                "outage",
                f"the study cannot take reports now {kind}; training continues, they are kept and delivered later, "
                "unjudged",
            )

    def _latch(self, verdict: Verdict, need: Callable[[], int] | None) -> None:
        if self.verdict is None and verdict.stops:
            self.verdict = verdict
            if need is not None and verdict.action is Action.PAUSE:
                self.attempt(lambda: self.trial.room_for(need()))

    def _lost(self, error: LeaseLost) -> None:
        reason = f"trial {self.trial.id} is no longer this worker's, so its training stops: {error}"
        self.verdict, self._ended = Verdict(Action.STOP, reason), True
        self._heartbeat.stop()
        self.warn_once("lease", reason)

    def __getstate__(self) -> dict[str, Any]:
        """With the trial only into a process that is spawned to train it: elsewhere reports could be lost."""
        tied = {} if spawning() else {"trial": Detached(self.trial), "_process": None}
        return self.__dict__ | {"_heartbeat": None, "_interruption": None} | tied

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._heartbeat = Heartbeat(self)


_VERDICTS = {Action.PAUSE: 1.0, Action.STOP: 2.0}  # every other verdict is 0: the trial trained to its end


def ending_metrics(reporter: Reporter) -> tuple[dict[str, float], str]:
    """What trackers log when a fit ends: metrics, and the sentence why."""
    trial = reporter.trial
    verdict = reporter.verdict or trial.verdict
    cut = trial.horizon is not None and reporter.verdict is not None
    metrics = {
        "haltune_verdict": _VERDICTS.get(verdict.action, 0.0) if verdict else 0.0,
        "haltune_epochs_saved": max(0.0, (trial.horizon or 0) - float(trial.epoch)) if cut else 0.0,
    }
    chance = verdict.evidence.get("p_win") if verdict else None
    if isinstance(chance, (int, float)):
        metrics["haltune_p_win"] = float(chance)
    return metrics, f"{verdict.action}: {verdict.reason}" if verdict else "trained without a verdict"


# what callbacks know of a study: it is warned about once


@dataclass
class _Notes:
    warned: set[str] = field(default_factory=set)
    repeats: int = 0  # fits that began again
    epochs: float = 0.0  # trained twice by them
    models: WeakKeyDictionary[Any, int] = field(default_factory=WeakKeyDictionary)  # model -> trial


_NOTES: WeakKeyDictionary[Any, _Notes] = WeakKeyDictionary()


def _notes(study: Any) -> _Notes:
    return _NOTES.setdefault(study, _Notes())


def once(study: Any, sentence: str, about: str | None = None) -> None:
    """A HaltuneWarning, and a log line, once a study: the same sentence, or the first `about` a matter."""
    warned = _notes(study).warned
    if (about or sentence) not in warned:
        warned.add(about or sentence)
        study.warn(sentence, about)


def trained_by(study: Any, model: Any, trial: int) -> int | None:
    """Return the other trial of a study that has trained this very model, or None."""
    first = _notes(study).models.setdefault(model, trial)
    return first if first != trial else None


# wrong use


def need_trial(trial: Any, monitor: Any = None) -> None:
    """Raise InvalidInput when `trial` is no trial, or `monitor` is no name."""
    if isinstance(trial, str):
        raise InvalidInput(
            f"the string {trial!r} stands where the trial belongs; were the arguments swapped? "
            f"Write HaltuneCallback(trial, monitor={trial!r})"
        )
    if isinstance(trial, type) or not (
        hasattr(trial, "report") and hasattr(trial, "goal")
    ):  # a study reports, too
        raise InvalidInput(
            f"{_named(trial)} is not a trial: write HaltuneCallback(trial), with the trial that `for trial in study` "
            "or study.ask() gives"
        )
    if monitor is not None and not (isinstance(monitor, str) and monitor):
        raise InvalidInput(f"monitor is a logged metric's name such as 'val_loss', not {_named(monitor)}")


def scalar(value: Any, name: str) -> float:
    """Return `value` as a float. NaN and infinity pass: the study decides what they mean.

    Raises InvalidInput for a vector, printing its shape, and for what is no number.
    """
    shape = tuple(getattr(value, "shape", ()))
    if not shape and isinstance(value, (list, tuple)):
        shape = (len(value),)
    if math.prod(shape) != 1 or isinstance(value, (list, tuple)):
        raise InvalidInput(
            f"the metric {name!r} is not one number but has shape {shape}: "
            "reduce it, by its mean say, or monitor a metric that is a scalar"
        )
    try:
        return float(value.item() if shape else value)
    except (TypeError, ValueError):
        raise InvalidInput(f"the metric {name!r} is {_named(value)}, not a number") from None


def scalars(logged: Mapping[str, Any]) -> dict[str, float]:
    """Return what is one number among logged values; only the goals' metrics have to be."""
    found = {}
    for name, value in logged.items():
        if not isinstance(value, (str, bytes)):
            with suppress(InvalidInput):
                found[name] = scalar(value, name)
    return found


def missing(name: str, logged: Iterable[str], when: str, how: str, guess: bool = True) -> InvalidInput:
    """The error for a metric that was never logged.

    when: "in the first epoch". how: how to log it. guess: whether a name that was logged may be meant.
    """
    names = sorted(set(logged))
    listed = f"What was logged: {', '.join(names)}." if names else "Nothing was logged at all."
    near = nearest(name, names) if guess else None
    monitor = f"HaltuneCallback(trial, monitor={near or 'name'!r})"
    do = f"{how}, or name another one: {monitor}"
    if near:
        do = f"Did you mean {near!r}? Then {monitor}; if not, {how[0].lower()}{how[1:]}"
    return InvalidInput(f"the metric {name!r} was not logged {when}. {listed} {do}")


def nearest(name: str, names: Iterable[str], likeness: float = 0.5) -> str | None:
    """Return the logged name most like `name`, or None. Letter case does not count.

    It never points the other way, val_acc for val_loss, nor is it one of training for one that is not.
    likeness: difflib's ratio that it needs at least; 0.9 takes a slip of the pen alone.
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
    """The error for two of haltune's callbacks in one fit."""
    return InvalidInput(
        f"{where} holds two HaltuneCallbacks, and each would report every epoch: leave one of them, "
        "HaltuneCallback(trial), and delete the other line"
    )


def _named(value: Any) -> str:
    """A short description of a value of the wrong kind."""
    text = repr(value)
    kind = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"{text} ({kind})" if len(text) <= 60 else f"an object of type {kind}"
