"""A trial and its folds, as the training code uses them: configuration, reports and checkpoints."""

from __future__ import annotations

import copy
import gc
import inspect
import math
import os
import re
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np

from haltune._utils.around import is_own, on_stack
from haltune._utils.checks import number, timed
from haltune._utils.drawn import drawn
from haltune._utils.interruption import quietly
from haltune._utils.orders import words_of_passes
from haltune._utils.randomness import capture, put, put_back
from haltune._utils.signals import interrupts, lost_rank
from haltune._utils.updates import Training
from haltune.above import above
from haltune.display import numeral, one_line, plural, several_of
from haltune.errors import (
    InvalidInput,
    LeaseLost,
    NotSupported,
    RankLost,
    StoreError,
    free_memory,
    is_full,
    is_shortage,
)
from haltune.hints import KnowsAttributes, explain_misreading, with_hints
from haltune.log.decisions import Action, Verdict, continue_
from haltune.log.events import Status
from haltune.log.folds import EPOCH, FOLD, SETTLED, FoldCurve, curves, estimate, of_fold, over_folds, trained
from haltune.log.problem import ENDLESS, length_argument, position_argument, rounded
from haltune.ranks import follows, this

from .attempt import Attempt, Failure, Report, epoch_number
from .draws import put_beside, random_of
from .loops import LoopPort
from .port import trains_over_folds

T = TypeVar("T")
_BETWEEN = ".fold"  # suffix of a checkpoint between two folds, which has no model but the process's random state
_RANK = ".rank"  # and of the random state of each rank above 0, next to it


class Trial(LoopPort, KnowsAttributes):
    """One attempt at one configuration, held by this worker under a lease.

    Use it as a context manager: an exception inside is recorded. Ctrl-C gives the trial back and ends the search, also
    if your program handles it and ends the training. On SIGTERM or SIGUSR1, which announce a preemption, the trial is
    given back at the end of an epoch of `epochs()`; outside of an epoch, at once. The program then exits with 143 or
    138.

    A Study makes it. Its data: `config`, a plain dict without inactive parameters; `max_epochs` for the Trainer;
    `checkpoint`, the path of the state to continue from, or None; `folder`, for files of your own; `epoch`, the last
    reported epoch; `verdict`, the last verdict; `resource` and `tags`, set by the policy.

    Args:
        session: The session of the process that holds it.
        attempt: Its data, from the log.

    Raises:
        StoreError: If the log cannot be reached for longer than `patience`, as in any use of the study.

    Example:
        >>> study = Study({"lr": Float(1e-3, 1.0, log=True)}, "acc", max_epochs=3, seed=0, budget="2 trials")
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(1 - trial.config["lr"] ** epoch)
        >>> len(study.trials)
        2
    """

    _fold: Fold | None = None  # the one that trains now
    _placed: Any = None  # the random state at the first report of an attempt; True after the second one
    _folds_over = False  # all folds that this process is to train have ended

    if not TYPE_CHECKING:

        def __getitem__(self, name: Any) -> Any:
            raise TypeError(f"A trial has no item {name!r}. Write trial.config[{name!r}].")

    @property
    def max_epochs(self) -> int | None:
        """The epochs of a full training, to pass to a Trainer, to fit or to a learning-rate schedule.

        If only the policy ends trainings (InfiniteHyperband), it is ENDLESS, a number that no training reaches. The
        plan is then the same at every rung, and a schedule over it stays at its first value. None if nothing limits
        a training: use your own number. None also if the study counts another unit; see max_steps.
        """
        if self.unit != "epoch":
            return None
        return ENDLESS if self.horizon is None and self.pause_at is not None else self.horizon

    @property
    def max_steps(self) -> int | None:
        """The steps of a full training, if the study counts steps; None for other units."""
        return self.horizon if self.unit == "step" else None

    @property
    def max_tokens(self) -> int | None:
        """The tokens of a full training, if the study counts tokens; None for other units."""
        return self.horizon if self.unit == "token" else None

    @property
    def step(self) -> float:
        """The last reported position, in the study's unit; the same as `epoch`."""
        return self.epoch

    @property
    def level(self) -> str | None:
        """The name of the haltune.policies.Level to measure with, if the policy chooses one."""
        return self.tags.get("level")

    @property
    def folder(self) -> Path:
        """A folder for files of your own, such as plots and logs: one for all attempts of the trial.

        It is next to the trial's checkpoints and exists after the first use. haltune deletes nothing in it. The page
        of the search lists its files.

        Raises:
            OSError: If the folder cannot be made.
            NotSupported: On a node of Ray that cannot reach the study's folder.

        Example:
            >>> study = Study({"lr": Float(1e-3, 1.0, log=True)}, "acc", max_epochs=3, seed=0, budget="2 trials")
            >>> trial = study.ask()
            >>> _ = (trial.folder / "confusion.csv").write_text("3,0")
            >>> [path.name for path in trial.folder.iterdir()]
            ['confusion.csv']
        """
        self._loads = True  # a state of the program's own may be there
        folder = self._session.checkpoints.files_of(self.id)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def __repr__(self) -> str:
        return f"Trial({self.id}, attempt={self.attempt}, epoch={self.epoch:.7g}, config={vars(self)['config']})"

    @with_hints
    def report(
        self,
        value: float | Mapping[str, float],
        position: float | None = None,
        seconds: float | None = None,
        *,
        epoch: float | None = None,
        step: float | None = None,
        tokens: float | None = None,
        validation: float | None = None,
        metrics: Mapping[str, float] | None = None,
        cost: float | None = None,
        judge: bool = True,
    ) -> Verdict:
        """Record one validation and return the verdict. After a STOP or PAUSE the verdict does not change.

        Args:
            value: The goal's metric, in its own units; NaN and infinities are recorded too. With several goals or
                constraints: a dict by name, {"val_acc": 0.9, "latency_ms": 12}. Constraints are required in the first
                report only. Other names are recorded as further metrics.
            position: What the training has reached, in the study's unit: increasing, the first epoch is 1, fractional
                within an epoch: 0.25. Default: None, the next.
            seconds: Since the last report, validation included. Default: None, measured.
            epoch: The position, in a study that counts epochs only. Default: None.
            step: The position, in a study that counts steps only. Default: None.
            tokens: The position, in a study that counts tokens only. Default: None.
            validation: Seconds spent validating, part of `seconds`. Default: None, not known.
            metrics: Further metrics of the epoch, by name. Default: None.
            cost: Cost since the last report, in your own unit. Default: None.
            judge: False stores a report that is delivered late, without a decision of the policy. Default: True.

        Raises:
            InvalidInput: If a value is not a number, a goal is missing, the position is beyond a full training or in
                another unit than the study's, or `validation` is more than `seconds`.
            StoreError: If the log cannot be written.
            Exception: The exception of the policy. The report is stored before, unjudged.

        Example:
            >>> from haltune.policies import RandomSearch
            >>> problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), max_epochs=2)
            >>> trial = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=1)).ask()
            >>> trial.report(0.3, metrics={"accuracy": 0.9}).action
            <Action.CONTINUE: 'continue'>
        """
        if self._over_folds:
            raise trains_over_folds(self.id)
        value, metrics = self.measures.split(value, metrics)
        if epoch is not None or step is not None or tokens is not None:
            position = self._position(position, {"epoch": epoch, "step": step, "token": tokens})
        self._doubt_order(value, position)
        value = number("value", value)
        position = None if position is None else number(self.unit, position, positive=True)
        self._doubt_count(position)
        if (known := self._recalled(value, position)) is not None:
            return known
        lap = self._session.monotonic() - self._lap
        made = self._weights.new_model(self._left if position is None else position)
        if position is None:
            position = self._next()
            if made and self.unit == "epoch":
                position += made - 1  # earlier reports of the model with which the curve starts again
        if self.horizon is not None and position > self.horizon:
            if position > self.horizon * (1.0 + 1e-9):
                raise InvalidInput(
                    f"{self.unit}={numeral(position)} is beyond {length_argument(self.unit)}={self.horizon}, the full "
                    f"training of this study. If a full training is longer, make a new study with a larger "
                    f"{length_argument(self.unit)}=. Otherwise let the trial end the loop: for {self.unit} in trial."
                    f"{'epochs' if self.unit == 'epoch' else 'steps'}(). If a callback reports, do not report yourself."
                )
            position = float(self.horizon)  # computed from batches, with a rounding error
        took, validated = timed(seconds, validation, lap)
        paid = None if cost is None else number("cost", cost, positive=None)
        self._weights.reported()
        verdict = self.record(Report(value, position, took, validated, paid, metrics), judge)
        if verdict.action is Action.PAUSE and not self.stated and (why := self.forgets()) is not None:
            self.decline_pause()
            self.warn(f"A {self._name} cannot be paused, because {why}; it keeps training", once=True)
            return self.verdict or verdict
        if self._block is not None and not self.stated and self._placed is not True:  # otherwise it trains elsewhere
            self._doubts_draws()
        return verdict

    def _doubts_draws(self) -> None:
        """Hint at a loop of the program's own that draws other random numbers than without the pause.

        From the state at its save it is to draw about as many until the next report as from one report to the next. A
        generator that the program sets in each epoch needs no state, nor does one from which only loaders draw that
        neither shuffle nor have workers.
        """
        if self._seen.takes_turns:
            return
        known, now = self._seen.draws, capture()
        if self._placed is None:
            self._placed = now
        else:
            moved = {name for name, state in now.items() if self._placed.get(name, state) != state}
            known |= {name: drawn(name, self._placed[name], now[name]) for name in moved - known.keys()}
        first, left = self._placed, self._draws.left
        self._placed = now if first is now else True
        for name, words in known.items() if self._begins else ():
            if words and name in first and not (name == "torch" and words <= words_of_passes(on_stack())):
                most = 1.1 * words + 10.0 * math.sqrt(words)  # a shuffle takes more words at one time than at another
                made = None if left is None or name not in left else drawn(name, left[name], first[name], most)
                if not (made and made <= most < math.inf):
                    self._weights.hint_of_draws()
                    return

    def _position(self, position: float | None, given: dict[str, float | None]) -> float:
        """Return the position given as epoch=, step= or tokens=. Raises InvalidInput if the study has another unit."""
        (unit, found), *more = [(unit, value) for unit, value in given.items() if value is not None]
        if more or position is not None:
            raise InvalidInput("trial.report() got two positions. Give one: by its order, or epoch=, step= or tokens=.")
        if unit != self.unit:
            raise InvalidInput(
                f"trial.report(..., {unit}{'s' * (unit == 'token')}={found!r}) in a study that counts "
                f"{several_of(self.unit)}. Write trial.report(value, {position_argument(self.unit)}), or make the "
                f"study with {length_argument(unit)}=."
            )
        assert found is not None
        return found

    def _next(self) -> float:
        """Return the position of a report without one. Raises InvalidInput if it cannot be guessed."""
        if self._within is not None and self.unit != "token":
            return self._within
        if (found := self._next_position) is not None:
            return found
        raise InvalidInput(
            f"The study counts {several_of(self.unit)}, and the report does not say how many were trained. "
            f"Write trial.report(value, {position_argument(self.unit)})."
        )

    def _doubt_order(self, value: Any, epoch: Any) -> None:
        """Raise InvalidInput if, by their types, value and epoch of the first report are swapped."""
        if isinstance(epoch, Mapping):
            names = dict.fromkeys((self.measures.first, *self.measures.goals, *self.measures.limited))
            values = f"{{{', '.join(f'{name!r}: ...' for name in names)}}}"
            raise InvalidInput(f"trial.report() got the values second. Pass them first: trial.report({values}, epoch).")
        fraction = isinstance(epoch, float) and 0.0 < epoch < math.inf and not epoch.is_integer()
        if fraction and type(value) is int and value in (0, 1) and self.epoch == 0:
            after = f"after {epoch:g} {several_of(self.unit)}"
            raise InvalidInput(
                f"trial.report({value}, {epoch:g}) means that the value is {value} {after}. The value "
                f"comes first: write trial.report({epoch:g}, {value or 1}). If you do mean it, write "
                f"trial.report({value:.1f}, {epoch:g})."
            )

    def _doubt_count(self, position: float | None) -> None:
        """Hint once at a report of another epoch than the one of the loop: epoch + 1, or another metric."""
        if position is None or self._within is None or self.unit != "epoch" or abs(position - self._within) < 1.0:
            return
        name = self._name
        self.hint(
            f"Trial {self.id} reports {self._at(position)} within {self._at(self._within)} of {name}.epochs(), which "
            f"counts from 1. Write {name}.report(value) or {name}.report(value, epoch). For another metric write "
            f"{name}.report(value, metrics={{'loss': loss}}).",
            "count",
        )

    def epochs(self) -> Iterator[int]:
        """Yield the epochs still to train, from 1, until the verdict is to stop or pause, or max_epochs is reached.

        Within `with trial:` a SIGTERM or SIGUSR1 that arrives during an epoch is raised at its end, as SystemExit.
        In a study that counts steps or your own unit, it yields those. In a study that counts tokens, it yields the
        steps of this attempt, from 1. Report whenever you have validated. If an exception ends the loop within an epoch
        and you start it again (a smaller batch after out of memory), the trial's curve starts again too. If you handle
        it and do not start again, the trial fails; to end a training early, leave the loop by `break`.

        Example:
            >>> from haltune.policies import RandomSearch
            >>> problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), max_epochs=2)
            >>> trial = Study(problem, RandomSearch(trials=1), seed=0).ask()
            >>> [trial.report(0.5, epoch).action.value for epoch in trial.epochs()]
            ['continue', 'continue']
        """
        if self._over_folds:
            raise trains_over_folds(self.id)
        begins = self.begins_loop()
        self.doubts_orders(*self._draws.begins_loop(self.attempt, self.resumes_from if begins else None))
        epoch = 0 if self.unit == "token" else math.floor(self.epoch)
        horizon = math.inf if self.horizon is None else self.horizon
        try:
            while max(epoch, self.epoch) < horizon and not self._stops:
                if self._signals.waits:
                    self._signals.leave()
                    return  # an outer trial continues to the end of its own epoch
                epoch += 1
                self._signals.counts = True
                self.begins_epoch(epoch, own=True)
                try:
                    yield epoch
                except GeneratorExit:
                    self._draws.ends_epoch()
                    self.leaves_loop()
                    raise
                self._draws.ends_epoch()
                self.begins_epoch(None, own=True)
        finally:
            self._signals.counts = False
            self._weights.sign()
            self._weights.learners.looked(self._weights.trains)

    steps = epochs

    def folds(self, count: int, *, of: Literal["last", "best"] = "last") -> Iterator[Fold]:
        """Yield the folds still to train, until the verdict is to stop or pause: the trial's value is their mean.

        A fold is one training from its own start, of the study's max_epochs. Use it in place of the trial, in a
        callback or a loop: HaltuneCallback(fold), fold.epochs(), fold.report(value), fold.checkpoint. The trial may
        stop or pause within any fold, or between two. It resumes there: finished folds are not trained again.

        A position of the trial counts the epochs of all folds, divided by `count`. Its value before the last fold ends
        is an estimate of the mean; see haltune.log.folds. Only the folds have models: `study.best.checkpoint` is None,
        and `study.best.folds` has their values. Train the final model on all data.

        Args:
            count: Number of folds, the same whenever the trial resumes.
            of: Which value of a fold counts: its "last", or its "best" so far. Default: "last".

        Raises:
            InvalidInput: If trainings have no fixed length, if the goal counts a trial's best epoch or smooths its
                curve, if the trial has reports of its own or of another number of folds, at a second call, or within
                zip() or enumerate(): use `fold.index`.

        Example:
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=2, seed=0, budget="1 trial")
            >>> for trial in study:
            ...     with trial:
            ...         for fold in trial.folds(3):
            ...             for epoch in fold.epochs():
            ...                 verdict = fold.report(fold.index + 1 / epoch)
            >>> study.best.value, study.best.folds
            (1.5, (0.5, 1.5, 2.5))
        """
        _check_folds(self, count, of)
        own: list[Callable[[], Any]] = []  # the iterator that is returned
        found = self._each_fold(self._first_fold(count, of == "best"), own)
        own.append(weakref.ref(found))
        return found

    def _first_fold(self, count: int, best: bool) -> Fold | None:
        """Return the fold that the trial continues with, by its log and its last checkpoint; None after the last."""
        known = curves(self.metrics, self.goal.metric)
        if not known:
            return Fold(self, 0, count, best)
        place = self.resumes_from if _is_between(self.resumes_from) else None
        last = Fold(self, known[-1].index, count, best)
        if place is None and not last._at_end:
            last.restart(last._saved_start(loads=True))
            return last
        if place is not None:
            self.restores_randomness()
            put_back(random_of(place, _RANK) if follows() else Path(place))
        return last._following()

    def _each_fold(self, fold: Fold | None, own: list[Callable[[], Any]]) -> Iterator[Fold]:
        _need_no_count(own[0]())
        try:
            while fold is not None and self.ended is None and not self._stops:
                self._fold = self._weights.trains = fold
                self._over_folds = True
                self._draws.starts(fold.resumes_from, fold=True)
                yield fold
                self._weights.sign()
                self._weights.ends_fold()
                fold._close()
                fold._mark_end(f"ends fold {fold.index}")  # on all ranks, of which rank 0 may have reported alone
                if fold.ended is not None and (fold.index + 1 == fold.count or self._stops):
                    self.finish()  # a loop that ends its trial ends it with the last fold
                fold = fold._following()
            self._folds_over = True
        finally:
            self._fold, self._weights.trains = None, self

    def evaluate_now(self, position: float, *, share: float = 0.2) -> bool:
        """Return whether a decision needs an evaluation at this position; for evaluations that take long.

        True at the end of a full training and at the trial's next rung. If the policy may stop the trial at every
        judged report, it is also True at a judged point while evaluations take at most `share` of the time.
        `report(..., validation=seconds)` measures them. In a distributed training call it on one rank and share the
        answer.

        Args:
            position: Epochs trained so far, or the study's other unit.
            share: Largest share of the time since the last report that an evaluation may take. Default: 0.2.

        Raises:
            InvalidInput: In a study that does not count epochs, without `judge_every=`.

        Example:
            >>> from haltune.policies import Hyperband
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=27, policy=Hyperband(), seed=0)
            >>> trial = study.ask()
            >>> for epoch in trial.epochs():
            ...     if trial.evaluate_now(epoch):
            ...         verdict = trial.report(0.5, epoch)
            >>> trial.epoch, verdict.action.value
            (1, 'pause')
        """
        problem = self._session.log.problem
        if problem.judge_every is None and self.unit != "epoch":
            raise InvalidInput(
                f"trial.evaluate_now() needs to know how many {several_of(self.unit)} lie between two judged reports. "
                "Make the study with judge_every=."
            )
        if self.horizon is not None and position >= self.horizon:
            return True
        if self.pause_at is not None and self.pause_at != self.horizon and self.epoch < self.pause_at:
            return position >= self.pause_at  # it has come further only where its pause was declined
        every, validation = problem.every or 1.0, self._validation
        if math.floor(position / every + 1e-9) <= math.floor(self.epoch / every + 1e-9):
            return False
        return self._session.monotonic() - self._lap >= validation * (1.0 / share - 1.0)

    def __enter__(self) -> Self:
        if not self._held_here:
            self.adopt()
        self._draws.starts(self.resumes_from)  # raises an error if its random state is damaged
        if self.alone:  # ranks would leave at different epochs
            self._signals.__enter__()
        self._session.enter(self)
        self._block = os.getpid()
        self._weights.learners.looks(self._weights.trains)
        self._states.training = Training(self._weights.begins)
        self._weights.extras.enters(sys._getframe(1))
        self._seen.numbers.enters(sys._getframe(1))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        self._signals.end()  # the trial ends as a whole before a signal does
        self._signals.turned_into(error)
        self._session.leave(self)
        self._block = None
        self._sign_weights()
        self._weights.learners.looked(self._weights.trains)
        if self._states.training is not None:
            self._states.training.ends()
        forgiven = False
        try:
            forgiven = self._end(error)
        finally:
            self._draws.ends()
            self._signals.counts = False
            if error is None or forgiven or isinstance(error, Exception):
                self._signals.leave()
            else:
                self._signals.__exit__(kind, error, None)
        return forgiven

    def _need_loaded(self) -> None:
        if self._fold is None:
            super()._need_loaded()
        else:
            self._fold._loads |= self._loads
            self._fold._need_loaded()

    def restart(self, position: float = 0.0, advice: str = "") -> None:
        super().restart(position, advice)
        self._states.begins_loop()
        self._weights.restarts()

    def _doubt_kept(self) -> None:
        """Hint once that the best trial has no state with its value, in a loop that saves other states by itself."""
        if self.resumes_from is None or not self.keeps():
            return
        best, saved = self.history.present_best(self.id), self.history.trial(self.id).checkpoint_epoch
        if (of := self._states.unlike) is not None and saved in (best.epoch, self.epoch):
            how = "trained on" if of == saved else f"restored the weights of {self._at(of)}"
            by_best = self._session.log.problem.by_best_epoch
            other = "" if of == saved or by_best is None else f" If the best epoch counts, use {by_best!r}."
            self.hint(
                f"Trial {self.id} is the best so far, but its program has {how} between its report and its save, so "
                f"the file does not have this value, and study.best.checkpoint is None. Report the state that you "
                f"save.{other}",
                "not kept",
            )
            return
        if saved == best.epoch:
            return
        name = length_argument(self.unit)
        end = self.horizon if getattr(self, name) is None else f"trial.{name}"  # a unit of the user's own
        if best.epoch < self.epoch:
            ours = self._session.checkpoints.is_written(self.resumes_from)
            how = f"each {self.unit} that is its best so far" + ", to another file each time" * (not ours)
        elif self.horizon is None or self.epoch < self.horizon:
            how = f"the last {self.unit}, too, where your program ends a training early"
        else:
            how = f"the last {self.unit}, too: if trial.report(value).stops or {self.unit} == {end}"
        self.hint(
            f"Trial {self.id} is the best so far with its value of {self._at(best.epoch)}, but its program saved it "
            f"last after {self._at(saved)}, so study.best.checkpoint is None. Save after {how}.",
            "not kept",
        )

    def _finish_whole(self) -> None:
        """End a trial whose program ended without an error; after a Ctrl-C that it handled, end the search too."""
        self.finish()
        if self._signals.interrupted and self.ended is Status.INTERRUPTED:
            raise quietly(KeyboardInterrupt(f"Ctrl-C, which the program handled, ended trial {self.id} early"))

    def _end(self, error: BaseException | None) -> bool:
        """Record how the block ended; return True if the search continues after the error."""
        try:
            if error is None:
                own = self.ended is None and not (self.stated or self._over_folds)  # a loop of the user's
                self._finish_whole()
                if own and self.ended is Status.COMPLETED:
                    self._doubt_kept()
                self._session.log_ended()
                return False
            if isinstance(error, LeaseLost) and self.alone and self.history.trial(self.id).attempt > self.attempt:
                self.interrupt()  # this worker counted as lost, and the trial was offered again
                self._session.warn(f"{error} This program continues with another trial.", "taken")
                return True
            if self.ended not in (None, Status.FAILED):
                return False  # the training was over, so the error is not about this trial
            if (lost := lost_rank(error)) is not None and not self._signals.waits:  # started again, perhaps without end
                self.mark_lost(lost)
                return False
            if interrupts(error) or isinstance(error, StoreError) or self._signals.waits:
                self.interrupt()
                return False
            recorded = self.history.trial(self.id).config
            explain_misreading(error, self.config, self._session.log.problem.space.names, recorded)
            self.fail(error)
            if self.ended in (Status.COMPLETED, Status.STOPPED, Status.PAUSED):
                return False  # it was over in a process that trained it
            tolerated = self._session.tolerates(self, error)
            if tolerated and is_shortage(error):
                free_memory(error)
            return tolerated
        except (StoreError, RankLost) as broken:
            self._session.forget(self)
            if error is None:
                raise
            error.add_note(f"haltune could not record this: {broken}")  # the user's own exception matters more
        return False

    # saving

    def checkpointed(self, path: str, seconds: float = 0.0) -> None:
        """Record that a path holds the state after the last reported epoch; a later attempt resumes from it.

        Args:
            path: A file or a folder of yours, which haltune does not delete. If it exists, its full path is recorded.
                Other texts, such as keys of your own storage, are recorded as they are.
            seconds: Time that saving took. Default: 0.

        Raises:
            InvalidInput: If it is a checkpoint of another trial, or `seconds` is not a number.
            StoreError: If the store cannot be reached.
        """
        self._need_held()
        if (owner := self.owner(path)) not in (None, self.id):
            raise InvalidInput(
                f"checkpointed({str(path)!r}): this is a checkpoint of trial {owner}, so trial {self.id} would resume "
                "the training of another configuration. Write its own state, and pass that path."
            )
        path, seconds = str(path), number("seconds", seconds, positive=None)
        weights = self._sign_weights()
        if os.path.lexists(path):
            path = os.path.abspath(path)  # a later attempt may have another working directory
        elif os.path.isabs(path):  # other names may be keys of the user's own storage
            self._session.warn(
                f"checkpointed({path!r}): nothing exists at this path, so a later attempt cannot load it. Call "
                "checkpointed() after you have written the state, or use trial.save(write).",
                "checkpointed",
            )
        state = self._begins_save()
        state.path, state.seconds, state.weights = path, seconds, weights
        if not state.early:
            self._states.record(self, state, own=True)
        self._saved(state, seconds)

    def load_model(self, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Return the Keras model of `checkpoint`, or None without one; see haltune.callbacks.keras.load_model.

        Args:
            make_model: A function that builds the model: make_model(**trial.config). If there is a `checkpoint`, its
                weights and optimizer are loaded. Default: None, the model as it was saved.
            options: Options of keras.saving.load_model, such as custom_objects.

        Returns:
            The model.

        Raises:
            ImportError: If Keras is missing.
            InvalidInput: If the checkpoint is not a Keras model.

        Example:
            ::

                model = trial.load_model() or build(**trial.config)
        """
        load = above("load_model", "trial.load_model", "haltune.callbacks.keras.load_model(trial, make_model)")
        return load(self, make_model, **options)


class Fold(Trial):
    """One of the trainings whose mean is a trial's value. It takes the trial's place in callbacks and loops.

    `trial.folds(count)` yields it. Its data are those of one training: `max_epochs`; `epoch`, its last reported epoch;
    `checkpoint`, the state of this fold to continue from, or None; `verdict`. `index` is its number, from 0, and
    `count` the number of folds. The end of a fold ends only this training.
    """

    def __init__(self, trial: Trial, index: int, count: int, best: bool) -> None:
        self._trial = t = trial
        super().__init__(
            t._session, Attempt(t.id, t.attempt, copy.deepcopy(vars(t)["config"]), None, t.resource, t.tags, None, 0)
        )
        self.index, self.count, self._index = index, count, index
        self._block, self._begins, self._draws, self._states = t._block, t._begins, t._draws, t._states
        self._weights = t._weights
        self.counts_best = best  # the best value so far counts, not the last
        assert self.horizon is not None
        self._length = float(self.horizon)
        self._signals = trial._signals
        self._status: Status | None = None  # how its loop ended it
        self._place: Any = None  # the random state that was saved at its end
        self._look()

    def __repr__(self) -> str:
        config = vars(self)["config"]
        return f"Fold({self.index} of {self.count}, trial={self.id}, epoch={self.epoch:.7g}, config={config})"

    def __enter__(self) -> Self:
        raise InvalidInput("A fold has no block of its own. Write `with trial:` around the loop over trial.folds(k).")

    def folds(self, count: int, *, of: Literal["last", "best"] = "last") -> Iterator[Fold]:
        """Raise InvalidInput: a fold has no folds."""
        raise InvalidInput(
            "A fold has no folds. For repeated cross-validation loop once, over trial.folds(repeats * k): fold.index "
            "% k is the fold, and fold.index // k the repeat."
        )

    _folds_hint = ""  # it is one
    _name = "fold"

    @property
    def _reads(self) -> bool:
        return self._trial._reads

    @_reads.setter
    def _reads(self, reads: bool) -> None:
        self._trial._reads = reads

    @property
    def _first_reported(self) -> float:
        curve = self._curve()
        return 0.0 if curve is None else float(curve.epochs[0])

    @property
    def _resumes(self) -> bool:
        return self._first is None and self.epoch > 0 and self._trial._resumes

    @property
    def _broken(self) -> Failure | None:
        """An exception in a fold is the trial's."""
        return self._trial._broken

    @_broken.setter
    def _broken(self, failure: Failure | None) -> None:
        self._trial._broken = failure

    # its own place in the trial

    @property
    def _at_end(self) -> bool:
        """True if it was trained in full."""
        return self.epoch >= self._length

    def _look(self) -> None:
        """Follow the trial: set its own position, verdict and checkpoint."""
        trial = self._trial
        if _is_between(trial.resumes_from):  # this fold started afresh after it
            trial.checkpoint = None
        folds = curves(trial.metrics, self.goal.metric)
        before = [float(np.max(curve.epochs)) for curve in folds if curve.index < self.index]
        self._done = math.fsum(before)  # epochs of the earlier folds
        e = max((float(np.max(curve.epochs)) for curve in folds if curve.index == self.index), default=0.0)
        self.epoch, self.attempt = epoch_number(e), trial.attempt
        self.checkpoint = trial.resumes_from if e else None  # without a report it is a state of the fold before
        self.pause_at = None if trial.pause_at is None else self._own(trial.pause_at)
        self.verdict, self.ended = trial.verdict, self._status or trial.ended
        if self._at_end and self._may_resume:
            self.verdict = continue_("the fold is trained in full; the trial pauses before the next one")
        self._lap, self._validation = trial._lap, trial._validation

    def _whole(self, position: float) -> float:
        """Return a position of this fold in the trial: the epochs of all folds, divided by the number of folds."""
        return (self._done + position) / self.count

    def _own(self, position: float) -> float:
        """The inverse of `_whole`, at most the end of this fold."""
        exact = position * self.count - self._done
        near = float(round(exact))
        return min(self._length, near if abs(exact - near) < 1e-9 * self._length else exact)

    def _next(self) -> float:
        problem = self._session.log.problem
        if self.unit == "epoch" or problem.judge_every is not None or problem.spacing is None:
            return super()._next()
        return self._own(self._whole(self.epoch) + problem.spacing)

    def evaluate_now(self, position: float, *, share: float = 0.2) -> bool:
        if position >= self._length:
            return True
        return self._trial.evaluate_now(self._whole(position), share=share)

    # its reports

    def starts(
        self,
        model: Any = None,
        position: float | None = None,
        of: int | str | None = None,
        resume: str = "Resume it there",
    ) -> None:
        before = self.history.furthest_superseded(self.id)
        known = () if before is None else curves(before.metrics, self.goal.metric)
        reached = max((float(np.max(c.epochs)) for c in known if c.index == self.index), default=0.0)
        if position is not None and position > reached and not self.epoch:
            raise NotSupported(
                f"Fold {self.index} of trial {self.id} starts afresh, but this fit starts at {self._at(position)}, "
                "so it would continue the training of another fold. Load fold.checkpoint only, and let each fold save "
                "to a folder of its own."
            )
        super().starts(model, position, of, resume)
        trial, fold = (self.id, self.index) if model is None else self._first_with(model)
        if trial == self.id and fold != self.index:
            self.warn(
                f"Fold {self.index} of trial {self.id} trains the same model object as fold {fold}, and continues "
                "with all that your program does not reset in it, which has seen this fold's validation data. Build a "
                "model for each fold, within the loop.",
                "model of folds",
                once=True,
            )

    def warn(self, text: str, about: str | None = None, once: bool = False) -> None:
        """Warn in the words of a program that holds a fold."""
        super().warn(re.sub(r"\btrial\.(?!folds)(?=\w)", "fold.", text), about, once)

    def _saved_start(self, loads: bool) -> float:
        return max(0.0, self._own(super()._saved_start(loads)))

    def restart(self, position: float = 0.0, advice: str = "") -> None:
        trial, reached, self._left, self._within = self._trial, self.epoch, None, None
        trial._need_held()
        if self.ended is not None or self._cut or position >= reached:
            return
        if self._done and self.history.trial(self.id).checkpoint_epoch > self._whole(position):
            trial.epoch, position = self._whole(0.0), 0.0
            self._save_place()  # the finished folds stay
        if not self._session.restart(trial, self._whole(position)):
            return
        self._first, trial._first, trial._unheard, trial._lap = None, None, None, self._session.monotonic()
        self._begins = trial._begins = trial.epoch
        self._broken = None
        self._look()
        self._warn_of_restart(f"Fold {self.index} of trial {self.id}", reached, position, advice)

    def _restart_before(self, epoch: float) -> None:
        self._loads |= self._trial._loads  # the trial's checkpoint and folder are of this fold
        super()._restart_before(epoch)

    def record(self, report: Report, judge: bool = True, updates: float | None = None) -> Verdict:
        trial, report = self._trial, replace(report, epoch=rounded(report.epoch))
        trial.patient = self.patient
        self._restart_before(report.epoch)
        idle = updates is None and judge and self._idles(report.epoch) and self._weights.same
        before = self.epoch
        verdict = trial.record(self._of_trial(report), judge)
        self._look()
        self._recorded(before, report.epoch, updates, idle)
        self._weights.looks(sys._getframe())
        if self._at_end:
            self._mark_end()
            return self.verdict or verdict  # a pause is the trial's, between two folds
        return verdict

    def _of_trial(self, report: Report) -> Report:
        """Return the report of the trial: an estimate of the mean over folds, and this fold's own values as metrics."""
        metrics, value = dict(report.metrics), report.value
        if self.counts_best and (mine := self._curve()) is not None:
            value = mine.value if self.goal.sign * (mine.value - value) > 0.0 or math.isnan(value) else value
        metrics |= {FOLD: float(self.index), EPOCH: float(report.epoch), of_fold(self.goal.metric): value}
        for name in self.measures.others:
            if name in metrics:
                metrics[of_fold(name)] = own = number(f"metric {name!r}", metrics[name])
                # the last value of the others counts, which no later report of this fold may replace
                at = report.epoch if name in self.measures.goals else math.inf
                metrics[name] = estimate(self._earlier(name), at, own, self._length)
        value = estimate(self._earlier(self.goal.metric), report.epoch, value, self._length)
        return replace(report, value=value, epoch=self._whole(report.epoch), metrics=metrics)

    def _earlier(self, metric: str) -> list[FoldCurve]:
        known = curves(self._trial.metrics, metric, sparse=metric != self.goal.metric)
        return [curve for curve in known if curve.index < self.index]

    def _curve(self, metric: str | None = None) -> FoldCurve | None:
        """Return its own curve; None before its first report. metric: default the goal's."""
        known = curves(self._trial.metrics, metric or self.goal.metric, sparse=metric is not None)
        return next((curve for curve in known if curve.index == self.index), None)

    def _recalled(self, value: float, epoch: float | None) -> Verdict | None:
        trial = self._trial
        if (unheard := trial._unheard) is None:
            return None
        position = self._own(unheard[0]) if epoch is None else rounded(epoch)
        if position <= 0.0:  # it was of the fold before
            return None
        report = self._of_trial(Report(value, position, 0.0))
        known = self._by_trial(lambda: trial._recalled(report.value, report.epoch))
        return None if known is None else self.verdict or known  # a pause is the trial's, between two folds

    # its end

    def _close(self) -> None:
        """Look at the fold after its training. Raises InvalidInput if it has no report."""
        trial = self._trial
        if (act := trial._last_act) is not None and self.ended is None:
            trial._last_act = None
            act()
        trial.recall()  # another process may have trained it
        if self._ended_by_ctrl_c:
            trial.interrupt()
        if (failure := self._handled()) is not None:
            trial._end_as(Status.FAILED, failure)
        trial._pauses_unsaved()
        self._look()
        if self._cut:
            return
        if (mine := self._curve()) is None:
            raise InvalidInput(
                f"Fold {self.index} of trial {self.id} ended without one report. Train it before the next one, within "
                "for fold in trial.folds(k):, which list(trial.folds(k)) does not. Call fold.report(value) after every "
                f"{self.unit}, or pass a new HaltuneCallback(fold) to the trainer."
            )
        if not self._at_end and self.index + 1 == self.count:
            self._settle(mine.value)

    @property
    def _cut(self) -> bool:
        """True if the trial ended within this fold."""
        return self._trial.ended is not None or (self._trial._stops and not self._at_end)

    def _settle(self, value: float) -> None:
        """Report the mean over folds, after a last fold that ended by itself: no epoch remains in which it gains."""
        trial, found = self._trial, self._trial.history.trial(self.id)
        metrics = {name: c.value for name in self.measures.others if (c := self._curve(name)) is not None}
        mean = self._of_trial(Report(value, math.inf, 0.0, metrics=metrics))
        if np.array_equal(mean.value, found.values[-1], equal_nan=True):
            return
        # a position of its own, at which nothing was trained
        place = min(trial.epoch * (1.0 + 0.5 * SETTLED), self._length)
        trial.record(replace(mean, epoch=place, metrics={**mean.metrics, EPOCH: float(self.epoch)}), judge=False)

    def _following(self) -> Fold | None:
        """Return the fold after this one, or None."""
        return None if self.index + 1 >= self.count else Fold(self._trial, self.index + 1, self.count, self.counts_best)

    def _mark_end(self, about: str = "is saved") -> None:
        """Save where the trial continues after this fold: no state of a model, but the process's random state.

        about: the topic under which ranks do it, those that have reported the end, or all after the loop.
        """
        trial = self._trial
        if self._cut or (trial._stops and not trial._may_resume):
            return
        if this().single and capture() == self._place and trial.resumes_from is None:  # ranks have different states
            return
        self._save_place(about)

    def _save_place(self, about: str = "is saved") -> None:
        trial, place = self._trial, capture()
        trial._mark = ""  # it has no model
        try:
            path = trial._save(put, _BETWEEN, False, False, about)
            put_beside(path, capture, _RANK)
        except LeaseLost:
            raise
        except Exception as error:
            if is_full(error):
                trial.decline_pause()
            self.warn(
                f"Trial {self.id}: the end of fold {self.index} could not be saved ({one_line(error)}). If the trial "
                "resumes, it trains this fold again.",
                "end of fold",
                once=True,
            )
        self._place = place
        self._look()

    def _end_as(self, status: Status | None, failure: Failure | None = None, lost: str | None = None) -> None:
        """End this training; the trial, too, if it was interrupted or failed."""
        if status in (Status.INTERRUPTED, Status.FAILED):
            self._trial._end_as(status, failure, lost)
        elif self.ended is None and self._held_here:
            self._close()
            self._status = Status.COMPLETED
            if self._cut and self.verdict is not None:
                self._status = Status.PAUSED if self.verdict.action is Action.PAUSE else Status.STOPPED
            elif not self._at_end:
                self._mark_end()  # before a deferred Ctrl-C
        self._look()

    def sign(self, mark: Hashable) -> None:
        super().sign(mark)
        self._trial._mark = self._mark  # the log gets it with a state that this fold saves

    def keeps(self, best_epoch: bool = False) -> bool:
        """Return False: no model has the mean over folds."""
        return False

    def _need_report(self) -> None:
        """Raise InvalidInput if the log would take the state for one of the fold before, or of the epoch before."""
        if not self.epoch or (self._left is not None and self._states.trained):
            what = f"has trained since {self._at(self.epoch)}" if self.epoch else "has no report"
            raise InvalidInput(
                f"Fold {self.index} of trial {self.id} {what}, so its state has no {self.unit}. Save after "
                "fold.report(value)."
            )

    # what it leaves to the trial

    def _save(self, *how: Any) -> str:
        self._need_report()
        return self._by_trial(lambda: self._trial._save(*how))

    def begin_save(self, suffix: str = ".ckpt", keep: bool | float = False) -> Path:
        self._need_report()
        return self._trial.begin_save(suffix, keep)

    def commit_save(
        self, temporary: Path, seconds: float = 0.0, keep: bool | float = False, resumes_only: bool = False
    ) -> str:
        return self._by_trial(lambda: self._trial.commit_save(temporary, seconds, keep, resumes_only))

    def checkpointed(self, path: str, seconds: float = 0.0) -> None:
        self._by_trial(lambda: self._trial.checkpointed(path, seconds))

    def adopt(self) -> None:
        self._process = os.getpid()
        self._by_trial(self._trial.adopt)

    def recall(self) -> None:
        self._by_trial(self._trial.recall)

    def decline_pause(self, why: str | None = None) -> None:
        self._by_trial(lambda: self._trial.decline_pause(why))

    def room_for(self, size: int) -> None:
        self._trial.room_for(size)

    @property
    def trained_on(self) -> bool:
        return self._trial.trained_on

    def before_end(self, act: Callable[[], object] | None) -> None:
        self._trial.before_end(act)

    def tolerates(self, error: BaseException) -> bool:
        return self._trial.tolerates(error)

    def _follow_rank_0(self) -> None:
        before = self.epoch
        self._by_trial(self._trial._follow_rank_0)
        if self.epoch > before:
            self._first = self._first or self.epoch

    def _by_trial(self, act: Callable[[], T]) -> T:
        try:
            return act()
        finally:
            self._look()


def _need_no_count(folds: Any) -> None:
    """Raise InvalidInput if zip() or enumerate() counts folds, of which a resumed trial yields the unfinished ones."""
    read = [folds]
    frame: FrameType | None = sys._getframe(2)
    # a progress bar iterates over them in a generator of its package: tqdm(trial.folds(k))
    while (
        frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR and not is_own(frame.f_globals["__name__"])
    ):
        read += [one for one in gc.get_referrers(frame) if inspect.isgenerator(one)]
        frame = frame.f_back
    around = gc.get_referrers(*read)
    around += [outer for one in around if type(one) is tuple for outer in gc.get_referrers(one)]  # that of zip
    if (counts := next((one for one in around if isinstance(one, (zip, enumerate, zip_longest))), None)) is not None:
        raise InvalidInput(
            f"{type(counts).__name__}() counts from the first fold whenever a trial resumes, but trial.folds() "
            "continues with the present one, which would train on the data of another. Write for fold in "
            "trial.folds(k): and take its data by fold.index, such as splits[fold.index]."
        )


def _check_folds(trial: Trial, count: Any, of: Any) -> None:
    """Raise InvalidInput if the trial cannot train over so many folds; see Trial.folds."""
    goal, id = trial.goal, trial.id
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidInput(f"trial.folds({count!r}): use the number of folds, such as 5.")
    if of not in ("last", "best"):
        raise InvalidInput(f"trial.folds({count}, of={of!r}): use 'last', or 'best' for the best epoch of each fold.")
    if trial.horizon is None:
        raise InvalidInput(
            "trial.folds() needs the length of a full training, at which a fold ends. Make the study with "
            f"{length_argument(trial.unit)}=, or use a policy other than InfiniteHyperband."
        )
    if goal.of == "best":
        raise InvalidInput(
            f"The goal counts the best {trial.unit} of a trial (of='best'), and a trial over folds counts as the mean "
            f"at its end. Use {type(goal).__name__}({goal.metric!r}), and trial.folds({count}, of='best') to count the "
            f"best {trial.unit} of each fold."
        )
    if goal.smooth is not None:
        raise InvalidInput(
            f"The goal smooths the curve of one training (smooth=), and a trial over folds has a mean of {count}. Omit "
            "smooth=."
        )
    if of == "best" and trial.measures.others:
        raise InvalidInput(
            f"trial.folds({count}, of='best') needs one goal without constraints or rank_by=, because the other "
            "metrics are of the last report. Use of='last'."
        )
    if trial._fold is not None:
        raise InvalidInput(f"Trial {id} is in a loop over its folds already. Do not call trial.folds() within it.")
    if trial._folds_over:
        raise InvalidInput(
            f"The folds of trial {id} are over. For repeated cross-validation loop once, over trial.folds(repeats * "
            "k): fold.index % k is the fold, and fold.index // k the repeat."
        )
    _warn_of_other_folds(trial, count)
    if not trial.epoch:
        return
    if not over_folds(trial.metrics):
        raise InvalidInput(
            f"Trial {id} has reported {trial._at(trial.epoch)} itself, so its value is not a mean over "
            "folds. Call trial.folds() before any report, and report with fold.report(value)."
        )
    if (known := round(trained(trial.metrics) / trial.epoch)) != count:
        raise InvalidInput(
            f"Trial {id} has started over {plural(known, 'fold')}, so it cannot continue over {count}. Use "
            f"trial.folds({known}), or start another study."
        )


def _is_between(checkpoint: str | None) -> bool:
    """Return whether a trial continues from a checkpoint with a new fold."""
    return checkpoint is not None and checkpoint.endswith(_BETWEEN)


def _warn_of_other_folds(trial: Trial, count: int) -> None:
    """Warn once in a study if an earlier trial was trained otherwise: the values of its trials are compared."""
    other = next((t for t in trial.history.trials if t.id < trial.id and len(t.epochs)), None)
    known = 1 if other is None or not over_folds(other.metrics) else round(trained(other.metrics) / other.epoch)
    if other is not None and known != count:
        trial.warn(
            f"Trial {trial.id} trains over {plural(count, 'fold')}, and trial {other.id} trained over {known}. A study "
            f"compares the values of its trials, so use trial.folds({known}), or start another study.",
            "number of folds",
            once=True,
        )
