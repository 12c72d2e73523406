"""A trial, as the training code uses it: its configuration, reports and checkpoints."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from haltune._utils.checks import number, timed
from haltune._utils.disk import discard, siblings
from haltune._utils.interruption import AroundTrial
from haltune._utils.signals import interrupts
from haltune.above import above
from haltune.display import numeral, several_of
from haltune.errors import InvalidInput, LeaseLost, RankLost, StoreError, free_memory, is_shortage
from haltune.hints import KnowsAttributes, answering, explain_misreading
from haltune.log.decisions import Action, Verdict, continue_
from haltune.log.events import Status
from haltune.log.problem import ENDLESS, length_argument, position_argument
from haltune.ranks import this
from haltune.store.checkpoints import keepers

from .attempt import Attempt, Failure, Report
from .session import Session

_FINISHES = ("completed", "stopped", "interrupted", "failed")


class Trial(Attempt, KnowsAttributes):
    """One attempt at one configuration, held by this worker under a lease.

    Use it as a context manager: an exception inside is recorded, and Ctrl-C gives the trial back. On SIGTERM or
    SIGUSR1, which announce a preemption, the trial is given back at the end of an epoch of `epochs()`; outside of an
    epoch, at once. The program then exits with 143 or 138.

    A Study makes it. Its data: `config`, a plain dict without inactive parameters; `max_epochs` for the Trainer;
    `checkpoint`, the path of the state to continue from, or None; `epoch`, the last reported epoch; `verdict`, the last
    verdict; `resource` and `tags`, set by the policy.

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

    def __init__(self, session: Session, attempt: Attempt) -> None:
        super().__init__(**vars(attempt))
        self._session = session
        problem = session.log.problem
        self.unit = problem.unit  # of `epoch` and `_horizon`
        self._horizon = problem.max_epochs  # None: only the policy limits a training
        self._goal, self._measures = problem.goal, problem.measures
        self._lap = session.monotonic()
        self._validation = 0.0  # seconds of the last evaluation, if known
        self._last_act: Callable[[], object] | None = None  # see _before_end
        self._unheard: tuple[float, float] | None = None  # epoch and value of a report that was interrupted
        self._signals = AroundTrial(not session.launched, "step" if self.unit == "token" else self.unit)

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
        return ENDLESS if self._horizon is None and self.pause_at is not None else self._horizon

    @property
    def max_steps(self) -> int | None:
        """The steps of a full training, if the study counts steps; None for other units."""
        return self._horizon if self.unit == "step" else None

    @property
    def max_tokens(self) -> int | None:
        """The tokens of a full training, if the study counts tokens; None for other units."""
        return self._horizon if self.unit == "token" else None

    @property
    def step(self) -> float:
        """The last reported position, in the study's unit; the same as `epoch`."""
        return self.epoch

    @property
    def level(self) -> str | None:
        """The name of the haltune.policies.Level to measure with, if the policy chooses one."""
        return self.tags.get("level")

    def __repr__(self) -> str:
        return f"Trial({self.id}, attempt={self.attempt}, epoch={self.epoch:.7g}, config={self.config})"

    @answering
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
            cost: Cost of the epoch, in your own unit. Default: None.
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
        value, metrics = self._measures.split(value, metrics)
        if epoch is not None or step is not None or tokens is not None:
            position = self._position(position, {"epoch": epoch, "step": step, "token": tokens})
        self._doubt_order(value, position)
        value = number("value", value)
        if self._unheard is not None and (known := self._recalled(value, position, self._unheard)) is not None:
            self._unheard = None
            return known
        position = self._next() if position is None else number(self.unit, position, positive=True)
        if self._horizon is not None and position > self._horizon:
            if position > self._horizon * (1.0 + 1e-9):
                raise InvalidInput(
                    f"{self.unit}={numeral(position)} is beyond {length_argument(self.unit)}={self._horizon}, the full "
                    f"training of this study. Let the trial end the loop: for {self.unit} in trial."
                    f"{'epochs' if self.unit == 'epoch' else 'steps'}(). If a callback reports, do not report yourself."
                )
            position = float(self._horizon)  # computed from batches, with a rounding error
        took, validated = timed(seconds, validation, self._session.monotonic() - self._lap)
        paid = None if cost is None else number("cost", cost, positive=None)
        return self._record(Report(value, position, took, validated, paid, metrics), judge)

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
        if self.unit == "epoch":
            return math.floor(self.epoch) + 1.0
        if (every := self._session.log.problem.every) is not None:
            return self.epoch + every if self._horizon is None else min(self.epoch + every, float(self._horizon))
        raise InvalidInput(
            f"The study counts {several_of(self.unit)}, and the report does not say how many were trained. "
            f"Write trial.report(value, {position_argument(self.unit)})."
        )

    def _record(self, report: Report, judge: bool = True) -> Verdict:
        """Record a report of a callback, of which only the further metrics must still be checked."""
        if self._measures.others:
            self._measures.check(report.metrics, self.metrics if self._measures.limited else ())
        if report.metrics:
            further = sorted(report.metrics.items(), key=lambda pair: str(pair[0]))
            scalars = {str(name): number(f"metric {name!r}", scalar) for name, scalar in further}
            report = replace(report, metrics=scalars)
        self._unheard = report.epoch, report.value
        with self._signals.whole():
            verdict = self._session.record(self, report, judge)
        self._validation = report.validation or self._validation
        self._lap, self._unheard = self._session.monotonic(), None
        return verdict

    def _doubt_order(self, value: Any, epoch: Any) -> None:
        """Raises InvalidInput if, by their types, value and epoch of the first report are swapped."""
        if isinstance(epoch, Mapping):
            raise InvalidInput(
                "trial.report() got the values second. Pass them first: "
                "trial.report({'val_acc': 0.9, 'latency_ms': 12}, epoch)."
            )
        fraction = isinstance(epoch, float) and 0.0 < epoch < math.inf and not epoch.is_integer()
        if fraction and type(value) is int and value in (0, 1) and self.epoch == 0:
            raise InvalidInput(
                f"trial.report({value}, {epoch:g}) means that the value is {value} after {epoch:g} epochs. The value "
                f"comes first: write trial.report({epoch:g}, {value or 1}). If you do mean it, write "
                f"trial.report({value:.1f}, {epoch:g})."
            )

    def _recalled(self, value: float, epoch: float | None, unheard: tuple[float, float]) -> Verdict | None:
        """Return the verdict of a repeated report that is in the log already, although its call was interrupted."""
        self._session.recall(self)
        same = epoch in (None, unheard[0]) and np.array_equal(value, unheard[1], equal_nan=True)
        if not same or self.epoch < unheard[0]:
            return None
        return self.verdict or continue_("recorded already, before the call was interrupted")

    def epochs(self) -> Iterator[int]:
        """Yield the epochs still to train, from 1, until the verdict is to stop or pause, or max_epochs is reached.

        Within `with trial:` a SIGTERM or SIGUSR1 that arrives during an epoch is raised at its end, as SystemExit.
        In a study that counts steps or your own unit, it yields those. In a study that counts tokens, it yields the
        steps of this attempt, from 1. Report whenever you have validated.

        Example:
            >>> from haltune.policies import RandomSearch
            >>> problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), max_epochs=2)
            >>> trial = Study(problem, RandomSearch(trials=1), seed=0).ask()
            >>> [trial.report(0.5, epoch).action.value for epoch in trial.epochs()]
            ['continue', 'continue']
        """
        epoch = 0 if self.unit == "token" else math.floor(self.epoch)
        horizon = math.inf if self._horizon is None else self._horizon
        try:
            while max(epoch, self.epoch) < horizon and not (self.verdict and self.verdict.stops):
                if self._signals.waits:
                    self._signals.leave()
                    return  # an outer trial continues to the end of its own epoch
                epoch += 1
                self._signals.counts = True
                yield epoch
        finally:
            self._signals.counts = False

    steps = epochs

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
        if self._horizon is not None and position >= self._horizon:
            return True
        if self.pause_at is not None and self.pause_at != self._horizon:
            return self.epoch < self.pause_at <= position
        every, validation = problem.every or 1.0, self._validation
        if math.floor(position / every + 1e-9) <= math.floor(self.epoch / every + 1e-9):
            return False
        return self._session.monotonic() - self._lap >= validation * (1.0 / share - 1.0)

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Further metrics reported so far: name -> (n,), one entry for each report, NaN if it was not reported."""
        return self._session.log.history.trial(self.id).metrics

    def _go_on(self) -> None:
        """Take back a PAUSE that could not be carried out, so that later reports are judged."""
        if self.verdict is not None and self.verdict.action is Action.PAUSE:
            self.verdict = None

    def _adopt(self) -> None:
        """Continue the trial in a forked or spawned process. Raises NotSupported for a study in memory."""
        self._session.adopt(self)
        self._lap = self._session.monotonic()

    def heartbeat(self) -> None:
        """Renew the lease during an epoch that outlasts it."""
        self._session.renew(self)

    @property
    def _heartbeat_seconds(self) -> float:
        return self._session.lease_seconds / 4.0

    def _before_end(self, act: Callable[[], object] | None) -> None:
        """Call `act` once when the trial is given back without an error, for loops whose end calls no callback."""
        self._last_act = act

    def finish(self, status: Status | str | None = None) -> None:
        """End the trial and give it back. `with trial:` does this for you; a second call does nothing.

        Args:
            status: "completed", "stopped", "interrupted" or "failed". Default: None, stopped or paused after such a
                verdict, otherwise completed.

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
        if act is not None and self.ended is None:
            act()
        self._session.end(self, None if status is None else Status(status))

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
        self._session.end(self, Status.INTERRUPTED)

    def fail(self, error: BaseException) -> None:
        """Record that training failed, with the traceback. `with trial:` does this; a second call does nothing.

        Args:
            error: The exception. After a StoreError the trial is interrupted, because its training did not fail.

        Raises:
            InvalidInput: If `error` is not an exception.
            StoreError: If the log cannot be written.

        Example:
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=2, seed=0, budget="1 trial")
            >>> study.ask().fail(ValueError("the data is gone"))
            >>> study.trials[0].error
            'ValueError: the data is gone'
        """
        if isinstance(error, StoreError):
            self.interrupt()
        else:
            self._session.end(self, Status.FAILED, Failure.by(error))

    def __enter__(self) -> Self:
        if this().place.rank == 0 and this().place.world in (None, 1):  # ranks would leave at different epochs
            self._signals.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        self._signals.end()  # the trial ends as a whole before a signal does
        forgiven = False
        try:
            forgiven = self._end(error)
        finally:
            self._signals.counts = False
            if error is None or forgiven or isinstance(error, Exception):
                self._signals.leave()
            else:
                self._signals.__exit__(kind, error, None)
        return forgiven

    def _end(self, error: BaseException | None) -> bool:
        """Record how the block ended; return True if the search continues after the error."""
        try:
            if error is None:
                self.finish()
                self._session.log_ended()
                return False
            if self.ended not in (None, Status.FAILED):
                return False  # the training was over, so the error is not about this trial
            if interrupts(error) or isinstance(error, StoreError) or self._signals.waits:
                self.interrupt()
                return False
            explain_misreading(error, self.config)
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
            path: A file or a folder of yours. haltune does not delete it.
            seconds: Time that saving took. Default: 0.

        Raises:
            StoreError: If the store cannot be reached.
        """
        if os.path.isabs(str(path)) and not os.path.lexists(path):  # other names may be keys of the user's own storage
            self._session.warn(
                f"checkpointed({str(path)!r}): nothing exists at this path, so a later attempt cannot load it. Call "
                "checkpointed() after you have written the state, or use trial.save(write).",
                "checkpointed",
            )
        self._session.checkpointed(self, str(path), seconds)

    def save(self, write: Callable[[Path], object], suffix: str = ".ckpt", keep: bool = False) -> str:
        """Save the state after the last reported epoch. A later attempt finds its path in `checkpoint`.

        In a distributed training all ranks call it; only rank 0 calls `write`, and all return the path.

        Args:
            write: Called with a temporary path, to make a file or a folder there. haltune then forces it to the disk,
                renames it, records it and deletes older checkpoints of the trial.
            suffix: Ending of the path. Default: ".ckpt".
            keep: True for the trial's best epoch, with which it counts. This state is kept in addition to the one to
                resume from; it is `study.best.checkpoint` if no trial is better. Default: False.

        Raises:
            InvalidInput: If `write` is not a function, or wrote nothing at its path.
            NoRoom: If the quota is full; OSError if the disk is full. The previous checkpoint remains.
            LeaseLost: If another worker holds the trial now, or it has ended.
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
        with self._signals.whole():
            return self._session.decide(self, "is saved", partial(self._save, write, suffix, keep))

    def _save(self, write: Callable[[Path], object], suffix: str, keep: bool) -> str:
        began = self._session.monotonic()
        temporary = self._begin_save(suffix, keep)
        with self._ours(temporary):
            try:
                write(temporary)
                check_written(temporary)
            except BaseException:
                discard(temporary)
                raise
        return self._commit_save(temporary, self._session.monotonic() - began, keep)

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
            See docs/guide.md::

                model = trial.load_model() or build(**trial.config)
        """
        load = above("load_model", "trial.load_model", "haltune.callbacks.keras.load_model(trial, make_model)")
        return load(self, make_model, **options)

    def _begin_save(self, suffix: str = ".ckpt", keep: bool = False) -> Path:
        """Return a temporary path for `_commit_save`, the same on all ranks, for states that they write together."""
        work = partial(self._session.checkpoints.temporary, self.id, self.attempt, self.epoch, suffix, keep, self.unit)
        return self._session.decide(self, "starts to be saved", work, str, Path)

    def _commit_save(self, temporary: Path, seconds: float = 0.0, keep: bool = False) -> str:
        """Make the state at a path of `_begin_save` the trial's checkpoint; return its path. Raises as `save` does.

        seconds: time that writing took.
        """
        return self._session.decide(self, "commits", partial(self._publish, temporary, seconds, keep))

    def _publish(self, temporary: Path, seconds: float, keep: bool) -> str:
        checkpoints = self._session.checkpoints
        with checkpoints.undecided(temporary):
            with self._ours(temporary):
                final = checkpoints.publish(temporary)
            # an error may come after the append, so the file stays; the next save deletes files that the log lacks
            if not self._session.checkpointed(self, checkpoints.recorded(final), seconds, keep):
                discard(final)
                raise self._lost()
            checkpoints.supersede(final)
        self._lap = self._session.monotonic()
        return str(final)

    @contextmanager
    def _ours(self, temporary: Path) -> Iterator[None]:
        """Raise LeaseLost if the block fails because another worker took the trial and deleted the temporary files."""
        try:
            yield
        except Exception as error:
            if not os.path.lexists(temporary):
                with suppress(StoreError):
                    self._session.sync()
                record = self._session.log.history.trial(self.id)
                if (record.attempt, record.status) != (self.attempt, Status.RUNNING):
                    raise self._lost() from error
            raise

    def _lost(self) -> LeaseLost:
        why = f"has ended ({self.ended})" if self.ended else "was offered to another worker"
        return LeaseLost(f"Trial {self.id} {why}. Its state is not saved.")

    def room_for(self, size: int) -> None:
        """Check that a checkpoint could be saved now.

        Args:
            size: Size of the checkpoint, in bytes.

        Raises:
            NoRoom: If it does not fit in the quota; OSError if it does not fit on the disk.
        """
        self._session.decide(self, "needs room", partial(self._session.checkpoints.room_for, self.id, size))

    def _cannot_save(self, why: str) -> None:
        """Record that the state could not be saved, so that `room_for` raises from now on."""
        self._session.checkpoints.refused[self.id] = why

    @property
    def _keeps_checkpoint(self) -> bool:
        """True if the trial is one of the best, whose state is kept, and the epoch it counts with is not saved."""
        return self._session.decide(self, "keeps its checkpoint", self._keeps)

    @property
    def _keeps_epoch(self) -> bool:
        """True if the last reported epoch is the trial's best, the trial counts with it, and its state is kept."""
        if self._goal.of == "last":
            return False

        def work() -> bool:
            cut = self.verdict is not None and self.verdict.action is Action.STOP  # a paused trial may continue
            return self._keeps(cut) and self._session.log.history.as_best(self.id).epoch == self.epoch

        return self._session.decide(self, "keeps its best epoch", work)

    def _keeps(self, cut: bool | None = None) -> bool:
        keep, history = self._session.checkpoints.keep, self._session.log.history
        if cut is None:
            cut = self.verdict is not None and self.verdict.stops
        if keep == 0 or self.id not in keepers(history, keep, self.id, cut):
            return False
        best = history.as_best(self.id)
        return best.checkpoint_epoch != best.epoch


def check_write(write: Any) -> None:
    """Raises InvalidInput if `write` is not a function of one path."""
    if not callable(write):
        raise InvalidInput(
            f"write={write!r} is not a function. Pass one that takes the path to write to, such as lambda path: "
            "torch.save(state, path). If you have written a file yourself, record it with trial.checkpointed(path)."
        )
    try:
        signature = inspect.signature(write)
    except ValueError:  # a built-in function without a signature
        return
    try:
        signature.bind(None)
    except TypeError:
        raise InvalidInput(
            f"write={write!r} cannot be called with one argument, the path to write to. Pass lambda path: ..."
        ) from None


def check_written(path: Path) -> None:
    """Raises InvalidInput if nothing exists at the path of a state, although its folder does."""
    if os.path.lexists(path) or not path.parent.is_dir():
        return
    if appended := [part.name[len(path.name) :] for part in siblings(path)]:
        raise InvalidInput(
            f"write(path) appended {appended[0]!r} to its path, as np.save does. Pass suffix={appended[0]!r} to "
            "trial.save(), so that the path ends with it."
        )
    raise InvalidInput("write(path) wrote nothing at its path. Write a file or a folder there.")
