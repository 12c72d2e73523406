"""The port of a trial: what a training loop asks of it, and what the loop must state.

    hook -> callback -> Reporter.report -> Port.record -> Session.change (rank, retry, lock)
         -> judging.record -> policy.judge, Replica.append -> Store.append

The reference of the port says what a callback for a framework needs. `Fits` holds what a fit trains, for every
loop; `LoopPort` adds what only haltune's own loops and launchers state; `Trial` adds what users call.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from haltune._utils.checks import number, unfit
from haltune._utils.disk import discard, siblings
from haltune.display import one_line
from haltune.errors import HaltuneError, InvalidInput, NotSupported, RankLost, StoreError, is_full
from haltune.log.decisions import Action, Verdict, continue_
from haltune.log.events import Status
from haltune.log.folds import over_folds
from haltune.log.problem import length_advice, rounded
from haltune.ranks import lone, torch_ranks, without_barriers

from .attempt import Failure, Report
from .fits import Fits
from .judging import answered, record
from .replica import Replica
from .states import State
from .weights import OwnWeights

_FINISHES = ("completed", "stopped", "interrupted", "failed")


class Port(Fits):
    """One attempt at one configuration, as a training loop sees it.

    Facts to read: `id`, `attempt`, `unit`; `configuration`, as text (only the program reads `config`); `horizon`, the
    length of a full training in the study's unit, or None if only the policy ends trainings; `pause_at`, the next rung;
    `checkpoint`, the path of the state to continue from; `epoch`, the last reported position; `verdict`, the last
    verdict; `ended`, the status once it has ended; `goal` and `measures`, the metrics that a report needs; `history`,
    the log.

    To state: `starts`, what a fit trains and from where; `record`, a report; `save`, or `begin_save` and `commit_save`
    or `give_up_save`, a state; `decline_pause`, a state that cannot be saved; `finish`, `fail`, `interrupt`, the end.
    In a distributed training every rank makes the same calls and gets the same answers.

    Args:
        session: The session of the process that holds the trial.
        attempt: Its data, from the log.
    """

    _validation = 0.0  # seconds of the last evaluation, if known
    _last_act: Callable[[], object] | None = None  # see `LoopPort.before_end`

    @cached_property
    def _weights(self) -> OwnWeights:
        """What is known of the weights that it trains."""
        return OwnWeights(self)

    @property
    def checkpoint(self) -> str | None:
        """The path of the state to continue from; None: the training starts from its beginning."""
        self._asks = self._loads = True
        if self._checkpoint is not None:
            self._weights.loads(sys._getframe(1))  # of who reads it
        return self._checkpoint

    @checkpoint.setter
    def checkpoint(self, path: str | None) -> None:
        self._checkpoint = path

    def record(self, report: Report, judge: bool = True, updates: float | None = None) -> Verdict:
        """Append a report, and return the verdict on it; after a STOP or PAUSE the verdict does not change.

        Args:
            report: The values, the position and the seconds; its position is above `epoch`.
            judge: False stores a report that is delivered late, without a decision of the policy. Default: True.
            updates: Updates that this fit has made so far, by the optimizer's, the learner's or the library's own
                counter. If they do not keep pace with the positions, the trial warns. Default: None, not known.

        Raises:
            InvalidInput: If a goal's metric is missing, or a metric is not a number.
            StoreError: If the log cannot be written; at once if `patient` is False.
            Exception: The exception of the policy. The report is stored before, unjudged.
        """
        self._need_held()
        if (self._over_folds or (self._first is None and over_folds(self.metrics))) and not over_folds(report.metrics):
            raise trains_over_folds(self.id)
        if self.measures.others:
            self.measures.check(report.metrics, self.metrics if self.measures.limited else ())
        scalars = {}
        for name in sorted(report.metrics, key=str):
            scalars[str(name)] = number(f"metric {name!r}", report.metrics[name])
        report = replace(report, epoch=rounded(report.epoch), metrics=scalars)
        self._states.date(self, report.epoch, self._left, fitted=self._model is not None)
        self._restart_before(report.epoch)
        idle = updates is None and judge and self._idles(report.epoch) and self._weights.same
        before = self.epoch
        self._unheard = report.epoch, report.value, False
        session = self._session
        if not (self._reads or self._first or self.attempt > 1 or session.launched):
            self.hint(
                f"Trial {self.id} reports, but its program has not read {self._name}.config, so all trials may train "
                f"the same configuration. Build the model from it, such as make_model(**{self._name}.config).",
                "config",
            )

        def work(replica: Replica) -> None:  # on rank 0, which may load the state for all
            if self._first is None:
                self._need_loaded()
            self._weights.need_own_start(replica, report.epoch)
            record(replica, session.budget, self, report, judge, session.monotonic)

        about = f"{self._label} reports {self.unit} {report.epoch:.12g}"
        with self._signals.whole():
            try:
                verdict = session.change(work, about, lambda _: answered(self, report), self, self.patient)
            except StoreError:
                self._unheard = report.epoch, report.value, True
                raise
        session.logger.judged(session.log.history, self, report, verdict, session.budget)
        self._validation = report.validation or self._validation
        self._broken = None
        self._recorded(before, report.epoch, updates, idle)
        left_out = self._states.left_out
        if left_out is not None and left_out.early and lone():  # others have the verdict
            self.decline_pause()
            verdict = self.verdict or verdict
        self._states.reported(self)
        if not self._over_folds:  # otherwise the fold looks
            self._weights.looks(sys._getframe())
        if judge:  # otherwise it delivers late what it reported before
            self._signals.reported()
        self._lap, self._unheard = session.monotonic(), None  # at the end: a call that is interrupted may be repeated
        return verdict

    # saving

    def save(
        self,
        write: Callable[[Path], object],
        suffix: str = ".ckpt",
        keep: bool | float = False,
        *,
        resumes_only: bool = False,
    ) -> str:
        """Save the state after the last reported epoch. A later attempt finds its path in `checkpoint`.

        Save after the report. A state that is saved before it counts from the report on, as that of the reported epoch,
        unless the program trains in between: then it is not kept. haltune sees this only with torch. Other programs
        must not save at the start of an epoch, before they train.
        In a loop over `epochs` the random state of Python, NumPy, torch, TensorFlow and Keras is saved too, and
        restored; so are random generators in variables of the program.
        In a distributed training all ranks call it; only rank 0 calls `write`, and all return the path.
        If the disk or the quota is full, a plain loop within `with trial:` keeps training, with one warning: the trial
        is not paused, the previous checkpoint remains, and its path is returned, or "" without one.

        Args:
            write: Called with a temporary path, to make a file or a folder there. haltune then forces it to the disk,
                renames it, records it and deletes older checkpoints of the trial.
            suffix: Ending of the path. Default: ".ckpt".
            keep: True for the trial's best epoch, with which it counts, or an earlier epoch whose state this is. It is
                kept in addition to the state to resume from, as `study.best.checkpoint` if no trial is better.
                Default: False.
            resumes_only: True if the model in it is not the one that was evaluated, such as the weights under an
                average, so that `study.best.checkpoint` is never this file. Default: False.

        Raises:
            InvalidInput: If `write` is not a function, or wrote nothing at its path.
            NoRoom: If the quota is full, except as above; OSError if the disk is full. The previous checkpoint remains.
            LeaseLost: If another worker holds the trial now, or it has ended. In a handler of Ctrl-C this is a warning.
            NotSupported: If `write` waits for other ranks, which do not call it.
            Exception: The exception of `write`.

        Example:
            >>> from haltune.policies import RandomSearch
            >>> problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), max_epochs=2)
            >>> trial = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=1)).ask()
            >>> _ = trial.report(0.3)
            >>> path = trial.save(lambda path: path.write_text("weights"), ".txt")
            >>> open(path).read(), trial.checkpoint == path
            ('weights', True)
        """
        check_write(write)
        # the loops of haltune decline a pause themselves; ranks that this one has started might miss that it does
        follow = torch_ranks().alone or not self.alone
        continues = self._block is not None and not self.stated and follow
        try:
            return self._save(write, suffix, keep, resumes_only, "is saved", continues)
        except Exception as error:
            if self._block is None and is_full(error):
                error.add_note(
                    "haltune: make room or raise disk_quota. Within `with trial:`, trial.save(write) of a plain loop "
                    "does not raise this, and the trial keeps training without a pause."
                )
            raise

    def _save(
        self,
        write: Callable[[Path], object],
        suffix: str,
        keep: bool | float,
        resumes_only: bool,
        about: str,
        continues: bool = False,
    ) -> str:
        """Save, as `save` does. about: the topic under which all ranks do it. continues: also if the disk is full."""
        session, states, state = self._session, self._states, self._begins_save(keep, resumes_only)
        began = session.monotonic()

        def written() -> list[str]:  # on rank 0, for all ranks: the path, and why there is none
            try:
                temporary = Path(states.path(self, state, suffix))
                with states.writing(self, temporary):
                    with without_barriers():
                        write(temporary)
                    check_written(temporary)
                state.weights = self._sign_weights()
                return [states.commit(self, state, temporary, session.monotonic() - began), ""]
            except Exception as error:
                if not (continues and is_full(error)):
                    raise
                return ["", one_line(error)]

        with self._signals.whole():
            answer: list[str] = session.once(self, about, written)
            path, full = answer
            seconds = session.monotonic() - began
            if not full:
                self._saved(state, seconds, path)
                return path
        self._lap += seconds
        if state.keep is False:
            states.left_out = state
            if self.verdict is not None and self.verdict.action is Action.PAUSE:
                state.declined = self.verdict
                self.decline_pause()
        what = "its state" if state.keep is False else "its best model"
        then = "" if self._is_over else "; it keeps training"
        self.warn(
            f"Trial {self.id}: {what} could not be saved ({full}){then}. Make room or raise disk_quota.",
            "save",
            once=True,
        )
        return self.resumes_from or ""

    def _pauses_unsaved(self) -> None:
        """Take back that a pause was declined, because the program has left its loop at once."""
        if (pause := self._states.declined) is not None and self.ended is None:
            self.verdict, self._states.left_out = pause, None
            self._session.log.first_time("nothing saved", advice=True)  # it has saved, so it needs no such advice

    def begin_save(self, suffix: str = ".ckpt", keep: bool | float = False) -> Path:
        """Return a temporary path to write a state to, the same on all ranks; `commit_save` makes it a checkpoint.

        If the state cannot be written, call `give_up_save` on all ranks.

        Args:
            suffix: Ending of the path. Default: ".ckpt".
            keep: See `commit_save`. Default: False.

        Raises:
            OSError: If the folder cannot be made.
        """
        state = self._begins_save(keep)
        path = self._session.once(self, "starts to be saved", partial(self._states.path, self, state, suffix), Path)
        self._states.begun[path] = keep, self.epoch, state
        return path

    def commit_save(
        self, temporary: Path, seconds: float = 0.0, keep: bool | float = False, resumes_only: bool = False
    ) -> str:
        """Make the state at a path of `begin_save` the trial's checkpoint, and return its path.

        It is the state of where `begin_save` was called, also if reports have come since.

        Args:
            temporary: The path, with the whole state: a file or a folder.
            seconds: Time that writing took. Default: 0.
            keep: True for the trial's best epoch, with which it counts. It is kept in addition to the state to resume
                from. Default: False.
            resumes_only: See `save`. Default: False.

        Raises:
            LeaseLost: If another worker holds the trial now, or it has ended.
            NoRoom: If the quota is full; OSError if the disk is full. The previous checkpoint remains.
        """
        self._need_held()
        unknown, session = (None, self.epoch, None), self._session
        asked, since, begun = self._states.begun.pop(Path(temporary), unknown)
        if (state := begun) is None or keep is not asked or resumes_only:  # `is`, as 1.0 == True
            state = self._begins_save(keep, resumes_only)
        if begun is not None and self.epoch > since:
            upcoming = next((e for e in self.history.trial(self.id).epochs if e > since), self.epoch)
            state.position = float(upcoming if begun.early else since)
            state.early = False
        began = session.monotonic()
        state.weights = self._sign_weights()
        path: str = session.once(self, "commits", partial(self._states.commit, self, state, temporary, seconds))
        self._saved(state, seconds + session.monotonic() - began, path)
        return path

    def give_up_save(self, temporary: Path) -> None:
        """Delete what was written to a path of `begin_save`, in place of `commit_save`; ignore errors of the disk.

        Args:
            temporary: The path.
        """
        self._states.begun.pop(Path(temporary), None)
        torch_ranks().first(lambda: discard(temporary))

    def _begins_save(self, keep: bool | float = False, resumes_only: bool = False) -> State:
        """Return a state that is to be written. Raises NotSupported in a process that does not train the trial."""
        self._need_held()
        # a loop of haltune's saves between its epochs, after their reports
        own = (self.patient or self._left is not None) and not self._over_folds and self._model is None
        upcoming = self._next_position or self.epoch + 1.0
        return self._states.begins(self, keep, resumes_only, self._left, own, upcoming, self._weights.of_earlier)

    def _sign_weights(self) -> str:
        """State that its present weights are of this trial, where they are known; return the marks for the log."""
        marks = {self._mark, *self._weights.sign()}
        self._weights.notes()
        self._weights.looks(sys._getframe())
        return "\n".join(sorted(mark for mark in marks if isinstance(mark, str) and self._seen.signed.get(mark)))

    def _saved(self, state: State, seconds: float, path: str | None = None) -> None:
        """Note a state that was saved. seconds: that it took, which are not of the epoch. path: see `States.saved`."""
        self._lap += seconds
        self._states.saved(state, path)
        pauses = self._may_resume and state.keep is False
        if pauses and not state.early and self._states.before_training:
            self._doubt_saved()
        over = self._counted and self._within is None  # otherwise the training may continue from there, too
        if pauses and over and state.of is not None:
            self.warn(
                f"Trial {self.id} pauses after {self._at(self.epoch)}, but its program has restored the weights "
                f"of {self._at(state.of)} before it saved, so a trial that resumes continues from those. Save before "
                "you restore the best weights.",
                "weights put back",
                once=True,
            )

    def _doubt_saved(self) -> None:
        """Warn once of a state that lacks a part of its epoch, unless no attempt can resume from it."""
        if not self._is_over or self._may_resume:
            self.warn(
                f"Trial {self.id} saves its state of {self._at(self.epoch)} before its training of this {self.unit} is "
                f"over, so a trial that resumes from it does not train the rest. Save at the end of the {self.unit}, "
                "as TrainingLoop does.",
                "saved within",
                once=True,
            )

    @property
    def _next_position(self) -> float | None:
        """The position of a report that gives none; None if it cannot be guessed."""
        if self._left is not None and self.unit != "token":
            return self._left  # a loop over the epochs may report every n-th only
        if self.unit == "epoch":
            return math.floor(self.epoch) + 1.0
        if (every := self._session.log.problem.every) is None:
            return None
        return self.epoch + every if self.horizon is None else min(self.epoch + every, float(self.horizon))

    def decline_pause(self, why: str | None = None) -> None:
        """Take back a PAUSE that was not carried out, so that later reports are judged.

        Args:
            why: Why no state of this trial can be saved, so that `room_for` raises from now on. Default: None.
        """
        if self.verdict is not None and self.verdict.action is Action.PAUSE:
            self.verdict = continue_("its pause was declined")
        if why is not None:
            self._session.checkpoints.refused[self.id] = why

    def keeps(self, best_epoch: bool = False) -> bool:
        """Return whether the present state is to be kept, because the trial is one of the best and it is not saved.

        Args:
            best_epoch: Ask about the last reported epoch: is it the trial's best, with which it counts? Otherwise about
                the end of the training. Default: False.
        """
        return self._states.keeps(self, best_epoch)

    # the end

    def finish(self, status: Status | str | None = None) -> None:
        """End the trial and give it back. `with trial:` does this for you; a second call does nothing.

        Args:
            status: "completed", "stopped", "interrupted" or "failed". Default: None, stopped or paused after such a
                verdict, interrupted if your program handled Ctrl-C and has not reported since, otherwise completed.

        Raises:
            InvalidInput: For another status.
            StoreError: If the log cannot be written.

        Example:
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=1, seed=0, budget="1 trial")
            >>> trial = study.ask()
            >>> _ = trial.report(0.3)
            >>> trial.finish()
            >>> study.trials[0].status.value
            'completed'
        """
        if status is not None and status not in _FINISHES:
            raise InvalidInput(
                f"status={status!r} is not a status. Use one of {', '.join(_FINISHES)}, or None to follow the last "
                "verdict."
            )
        act, self._last_act = self._last_act, None
        if act is not None and self.ended is None and self._held_here:
            act()
        if status is None and self._ended_by_ctrl_c:
            status = Status.INTERRUPTED
        if status != Status.INTERRUPTED:
            self._states.ends(self)
        if status is None and (failure := self._handled()) is not None:
            self._end_as(Status.FAILED, failure)
        self._end_as(None if status is None else Status(status))
        if status is None and self.ended is Status.COMPLETED:
            self._look_at_plan()

    def _look_at_plan(self) -> None:
        """Warn if the trial has ended below max_epochs because its last fit planned so: no other fit followed."""
        if self.horizon is not None and self.epoch == self.planned and self.epoch < self.horizon:
            self.warn(
                f"Trial {self.id} ended after {self._at(self.epoch)}, as its last fit planned, but the search "
                f"compares final values at {self.unit} {self.horizon}. {length_advice(self.unit, self.epoch)}, unless "
                "your program ended it early.",
                "horizon",
                once=True,
            )

    def interrupt(self) -> None:
        """Give the trial back unfinished; it is offered again and resumes from its last checkpoint.

        A second call does nothing.

        Raises:
            StoreError: If the log cannot be written.

        Example:
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=2, seed=0, budget="1 trial")
            >>> study.ask().interrupt()
            >>> study.ask().attempt
            2
        """
        self._end_as(Status.INTERRUPTED)

    def fail(self, error: BaseException | Failure) -> None:
        """Record that training failed, with the traceback. `with trial:` does this; a second call does nothing.

        Args:
            error: The exception; or a Failure, if only its text is known. After a StoreError, the error of a full
                disk, a NotSupported, or another error of haltune's before any trial has succeeded, the trial is
                interrupted: the machine or the program is wrong, not its configuration, which is offered again. Except
                after a StoreError, it fails if this happens a second time in the same process.

        Raises:
            InvalidInput: If `error` is not an exception.
            StoreError: If the log cannot be written.

        Example:
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=2, seed=0, budget="1 trial")
            >>> study.ask().fail(ValueError("the data is gone"))
            >>> study.trials[0].error
            'ValueError: the data is gone'
        """
        refused = self._seen.refused
        early = isinstance(error, HaltuneError) and not isinstance(error, RankLost) and not self.history.any_success
        full = isinstance(error, BaseException) and is_full(error)
        first = (early or full or isinstance(error, NotSupported)) and self.id not in refused
        if first:
            refused.add(self.id)
        if first or isinstance(error, StoreError):
            self.interrupt()
        else:
            self._end_as(Status.FAILED, error if isinstance(error, Failure) else Failure.by(error))

    def _end_as(self, status: Status | None, failure: Failure | None = None, lost: str | None = None) -> None:
        """Append the end, unless this process is a fork that does not train the trial, such as one that loads data."""
        if self._held_here:
            if status is None:
                self._pauses_unsaved()
            self._draws.ends_epoch(over=True)  # a variable may hold the iterator, which is then closed later or never
            try:
                self._weights.sign()
                self._session.end(self, status, failure, lost, self._unlogged())
                self._draws.saved_by_rank_0(self.resumes_from)
            finally:
                if self._block != os.getpid():  # otherwise the program may draw until the end of the block
                    self._draws.ends()


def trains_over_folds(id: int) -> InvalidInput:
    """Return the error for a report or an epoch of a trial that trains over folds."""
    return InvalidInput(
        f"Trial {id} trains over folds, and its value is the mean of their values: do not report it yourself. Within "
        "the loop over trial.folds(k), write fold.report(value), fold.epochs() and HaltuneCallback(fold)."
    )


def check_write(write: Any) -> None:
    """Raise InvalidInput if `write` is not a function of one path."""
    if not callable(write):
        raise InvalidInput(
            f"write={write!r} is not a function. Pass one that takes the path to write to, such as lambda path: "
            "torch.save(state, path). If you have written a file yourself, record it with trial.checkpointed(path)."
        )
    if unfit(write) is not None:
        raise InvalidInput(
            f"write={write!r} cannot be called with one argument, the path to write to. Pass lambda path: ..."
        )


def check_written(path: Path) -> None:
    """Raise InvalidInput if nothing exists at the path of a state, although its folder does."""
    if os.path.lexists(path) or not path.parent.is_dir():
        return
    match siblings(path):
        case [part] if part.is_file():
            end = part.name[len(path.name) :]
            raise InvalidInput(
                f"write(path) appended {end!r} to its path, as np.save does. Pass suffix={end!r}, so that the path "
                "ends with it."
            )
        case [part, *_]:
            raise InvalidInput(
                f"write(path) wrote {part.name[len(path.name) :]!r} after its path, as tf.train.Checkpoint does, and "
                "nothing at the path. Make a folder and write into it, path.mkdir() and path / 'state'. If a library "
                "writes in the background, wait for it there."
            )
    raise InvalidInput("write(path) wrote nothing at its path. Write a file or a folder there.")
