"""A trial as the training code sees it: a configuration to train, and somewhere to report to and to save."""

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
from haltune.log.decisions import Action, Verdict, go_on
from haltune.log.events import Status
from haltune.log.problem import ENDLESS, Measures, length_argument, position_argument
from haltune.ranks import this
from haltune.store.checkpoints import keepers

from .attempt import Attempt, Failure, Report
from .session import Session

_FINISHES = ("completed", "stopped", "interrupted", "failed")


class Trial(Attempt, KnowsAttributes):
    """One attempt at one configuration, held by this worker under a lease.

    Use it as a context manager: an exception inside is recorded, Ctrl-C gives the trial back. SIGTERM and SIGUSR1, as
    before a preemption, wait for the end of an epoch of `epochs()`, and elsewhere inside give it back at once; the
    program ends with 143 or 138.

    A Study makes it; its data: `config`, a plain dict without inactive parameters; `max_epochs` for the Trainer;
    `checkpoint`, the path of the state to go on from, or None; `epoch`, the last that was reported; `verdict`, the last
    answer; `resource` and `tags`, the policy's.

    Args:
        session: Of the process that holds it.
        attempt: Its data, as the log has it.

    Raises:
        StoreError: As any use of the study, when the log is out of reach for longer than its `patience`.

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
        self._session = session  # what this process does for its study
        problem = session.log.problem
        self.unit = problem.unit  # what a training counts, and `epoch` and `horizon` with it
        self._horizon = problem.max_epochs  # of a full training; None: the policy alone says
        self._goal, self._measures = problem.goal, Measures.of(problem)
        self._lap = session.monotonic()
        self._validation = 0.0  # seconds of the last evaluation, if known
        self._last_act: Callable[[], object] | None = None  # see _before_end
        self._unheard: tuple[float, float] | None = None  # epoch and value of a report that was interrupted
        self._signals = AroundTrial(not session.launched)

    if not TYPE_CHECKING:

        def __getitem__(self, name: Any) -> Any:
            raise TypeError(f"a trial is not its configuration: write trial.config[{name!r}]")

    @property
    def max_epochs(self) -> int | None:
        """The epochs to give to a Trainer, to fit or to a schedule: those of a full training.

        Without a horizon, where the policy alone ends trainings (InfiniteHyperband), it is ENDLESS, a number that
        no training reaches: whatever rung the trial pauses at, it goes on under the same plan, and a schedule
        over it stays where it begins. None when nobody says how long: give the loop your own number then, and where
        the study counts something else: see max_steps.
        """
        if self.unit != "epoch":
            return None
        return ENDLESS if self._horizon is None and self.until is not None else self._horizon

    @property
    def max_steps(self) -> int | None:
        """As max_epochs, where the study counts steps; None where it counts something else."""
        return self._horizon if self.unit == "step" else None

    @property
    def max_tokens(self) -> int | None:
        """As max_epochs, where the study counts tokens; None where it counts something else."""
        return self._horizon if self.unit == "token" else None

    @property
    def step(self) -> float:
        """The last position that was reported, in what the study counts: `epoch` by another name."""
        return self.epoch

    @property
    def level(self) -> str | None:
        """How to measure, where the policy chooses: the name of a haltune.policies.Level."""
        return self.tags.get("level")

    def __repr__(self) -> str:
        return f"Trial({self.id}, attempt={self.attempt}, epoch={self.epoch:.7g}, config={self.config})"

    @answering
    def report(
        self,
        value: float | Mapping[str, float],
        epoch: float | None = None,
        seconds: float | None = None,
        *,
        step: float | None = None,
        tokens: float | None = None,
        validation: float | None = None,
        metrics: Mapping[str, float] | None = None,
        cost: float | None = None,
        judge: bool = True,
    ) -> Verdict:
        """Record one validation and learn whether to go on; after a STOP or PAUSE the verdict stays what it is.

        Args:
            value: The goal's metric, its own units; NaN and infinities are recorded as they are. With several goals or
                constraints each by its name, {"val_acc": 0.9, "latency_ms": 12}; constraints in the first report at
                least. Names beyond these are further scalars.
            epoch: From 1, increasing; fractional within an epoch: 0.25. In a study that counts something else the
                position in that. Default: None, the next.
            seconds: Since the last report, validation included. Default: None, as measured.
            step: The position in a study that counts steps, in the place of epoch. Default: None.
            tokens: The same in a study that counts tokens. Default: None.
            validation: Seconds of those spent validating, at most all of them. Default: None, not known.
            metrics: Further scalars of the epoch, by their names. Default: None.
            cost: What the epoch cost, in own units. Default: None.
            judge: False stores a report that is delivered late, without asking the policy. Default: True.

        Raises:
            InvalidInput: for what is not a number, a goal that is missing, a position beyond a full training or in
                another unit than the study's, a validation of more than `seconds`.
            StoreError: when the log cannot be written.
            Exception: what the policy raises, after the report was stored unjudged.

        Example:
            >>> from haltune.policies import RandomSearch
            >>> problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), max_epochs=2)
            >>> trial = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=1)).ask()
            >>> trial.report(0.3, metrics={"accuracy": 0.9}).action
            <Action.CONTINUE: 'continue'>
        """
        value, metrics = self._measures.split(value, metrics)
        if step is not None or tokens is not None:
            epoch = self._position(epoch, {"step": step, "token": tokens})
        self._doubt_order(value, epoch)
        value = number("value", value)
        if self._unheard is not None and (known := self._recalled(value, epoch, self._unheard)) is not None:
            self._unheard = None
            return known
        epoch = self._next() if epoch is None else number(self.unit, epoch, positive=True)
        if self._horizon is not None and epoch > self._horizon:
            if epoch > self._horizon * (1.0 + 1e-9):
                raise InvalidInput(
                    f"{self.unit}={numeral(epoch)} is beyond {length_argument(self.unit)}={self._horizon}, a full "
                    f"training as the study was made. Leave the loop then: for {self.unit} in trial."
                    f"{'epochs' if self.unit == 'epoch' else 'steps'}(). If a callback reports, do not report yourself"
                )
            epoch = float(self._horizon)  # reckoned from batches
        took, validated = timed(seconds, validation, self._session.monotonic() - self._lap)
        dear = None if cost is None else number("cost", cost, positive=None)
        return self._record(Report(value, epoch, took, validated, dear, metrics), judge)

    def _position(self, epoch: float | None, given: dict[str, float | None]) -> float:
        """The position of a report that is given by its unit. Raises InvalidInput if that is not the study's."""
        (unit, position), *more = [(unit, value) for unit, value in given.items() if value is not None]
        if more or epoch is not None:
            raise InvalidInput("trial.report() got two positions. Give one: epoch, step= or tokens=")
        if unit != self.unit:
            raise InvalidInput(
                f"trial.report(..., {unit}{'s' * (unit == 'token')}={position!r}) in a study that counts "
                f"{several_of(self.unit)}. Make the study with {length_argument(unit)}=, or report the {self.unit}"
            )
        assert position is not None
        return position

    def _next(self) -> float:
        """Where a report is that does not say so. Raises InvalidInput where that cannot be guessed."""
        if self.unit == "epoch":
            return math.floor(self.epoch) + 1.0
        if (every := self._session.log.problem.every) is not None:
            return self.epoch + every if self._horizon is None else min(self.epoch + every, float(self._horizon))
        raise InvalidInput(
            f"the study counts {several_of(self.unit)}, and the report does not say how many were trained. "
            f"Write trial.report(value, {position_argument(self.unit)})"
        )

    def _record(self, report: Report, judge: bool = True) -> Verdict:
        """As `report`, of what a callback has made of it: its numbers are numbers, but for further scalars."""
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
        """Raises InvalidInput for the first report of an epoch and its value, by their types, in the other order."""
        if isinstance(epoch, Mapping):
            raise InvalidInput("the values come first: trial.report({'val_acc': 0.9, 'latency_ms': 12}, epoch)")
        fraction = isinstance(epoch, float) and 0.0 < epoch < math.inf and not epoch.is_integer()
        if fraction and type(value) is int and value in (0, 1) and self.epoch == 0:
            raise InvalidInput(
                f"trial.report({value}, {epoch:g}) says that the value is {value} after {epoch:g} epochs. The value "
                f"comes first: trial.report({epoch:g}, {value or 1}); where it is meant so, "
                f"trial.report({value:.1f}, {epoch:g})"
            )

    def _recalled(self, value: float, epoch: float | None, unheard: tuple[float, float]) -> Verdict | None:
        """The verdict of a report that is made once more, if it is in the log though nobody heard so."""
        self._session.recall(self)
        same = epoch in (None, unheard[0]) and np.array_equal(value, unheard[1], equal_nan=True)
        if not same or self.epoch < unheard[0]:
            return None
        return self.verdict or go_on("recorded before its worker heard so")

    def epochs(self) -> Iterator[int]:
        """The epochs still to train, counted from 1; ends after a verdict to stop or pause, and at the horizon.

        Within `with trial:` a SIGTERM or SIGUSR1 that came during an epoch is raised at its end, as SystemExit.
        In a study that counts steps or a unit of yours it counts these. In a study by tokens it counts the steps of
        this attempt, from 1. Report when you have validated.

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
                    return  # a trial around this one goes on to the end of its own epoch
                epoch += 1
                self._signals.counts = True
                yield epoch
        finally:
            self._signals.counts = False

    steps = epochs

    def evaluate_now(self, position: float, *, share: float = 0.2) -> bool:
        """Return whether a decision needs an evaluation at this position; for evaluations that take long.

        It does at the end of a full training and at the trial's next rung. If the policy may stop the trial at every
        judged report, it does at a judged point once evaluations take at most `share` of the time, as measured by
        `report(..., validation=seconds)`. Several ranks ask on one rank, and share the answer.

        Args:
            position: Epochs, or what else the study counts, trained so far.
            share: Of the time since the last report that an evaluation may take. Default: 0.2.

        Raises:
            InvalidInput: In a study that counts something else than epochs, without `judge_every=`.

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
                "Make the study with judge_every="
            )
        if self._horizon is not None and position >= self._horizon:
            return True
        if self.until is not None and self.until != self._horizon:
            return self.epoch < self.until <= position
        every, validation = problem.every or 1.0, self._validation
        if math.floor(position / every + 1e-9) <= math.floor(self.epoch / every + 1e-9):
            return False
        return self._session.monotonic() - self._lap >= validation * (1.0 / share - 1.0)

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Further scalars reported so far: name -> (n,), one entry a report, NaN where it was not reported."""
        return self._session.log.history.trial(self.id).metrics

    def _go_on(self) -> None:
        """Take back a PAUSE that could not be carried out: later reports are judged again."""
        if self.verdict is not None and self.verdict.action is Action.PAUSE:
            self.verdict = None

    def _adopt(self) -> None:
        """Go on with the trial in a process that was forked or spawned to train it. Raises NotSupported in memory."""
        self._session.adopt(self)
        self._lap = self._session.monotonic()

    def heartbeat(self) -> None:
        """Renew the lease during an epoch that outlasts it."""
        self._session.renew(self)

    @property
    def _heartbeat_seconds(self) -> float:
        return self._session.lease_seconds / 4.0

    def _before_end(self, act: Callable[[], object] | None) -> None:
        """Have `act` called once as the trial is given back in order: for loops that tell no callback of their end."""
        self._last_act = act

    def finish(self, status: Status | str | None = None) -> None:
        """Give the trial back; again, nothing. `with trial:` does so by itself.

        Args:
            status: "completed", "stopped", "interrupted" or "failed". Default: None, stopped or paused after such a
                verdict, else completed.

        Raises:
            InvalidInput: For another status.
            StoreError: When the log cannot be written.

        Example:
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=1, seed=0, budget="1 trial")
            >>> trial = study.ask()
            >>> _ = trial.report(0.3)
            >>> trial.finish()
            >>> study.trials[0].status.value
            'completed'
        """
        if status is not None and status not in _FINISHES:
            raise InvalidInput(f"status={status!r}: {', '.join(_FINISHES)}, or None to let the last verdict say")
        act, self._last_act = self._last_act, None
        if act is not None and self.ended is None:
            act()
        self._session.end(self, None if status is None else Status(status))

    def interrupt(self) -> None:
        """Give the trial back unfinished: it is offered again, from its last checkpoint. Again, nothing.

        Raises:
            StoreError: When the log cannot be written.

        Example:
            >>> study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=2, seed=0, budget="1 trial")
            >>> study.ask().interrupt()
            >>> study.ask().attempt
            2
        """
        self._session.end(self, Status.INTERRUPTED)

    def fail(self, error: BaseException) -> None:
        """Record that training failed, with the traceback; again, nothing. `with trial:` does so by itself.

        Args:
            error: The exception. After a StoreError the trial is interrupted, because its training did not fail.

        Raises:
            InvalidInput: For what is no exception.
            StoreError: When the log cannot be written.

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
        """Record how the block ended; True when the search goes on after the error."""
        try:
            if error is None:
                self.finish()
                self._session.tell()
                return False
            if self.ended not in (None, Status.FAILED):
                return False  # the training was over: what came after it is not the search's to forgive
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
            self._session.forget(self)  # nobody trains it
            if error is None:
                raise
            error.add_note(f"haltune could not record this: {broken}")  # the user's own exception matters more
        return False

    # saving

    def checkpointed(self, path: str, seconds: float = 0.0) -> None:
        """Say that a path holds the state after the last epoch reported: a later attempt begins there.

        Args:
            path: A file or a folder of yours, which haltune does not delete.
            seconds: What saving it took, for the account of the time. Default: 0.

        Raises:
            StoreError: When the store cannot be reached.
        """
        if os.path.isabs(str(path)) and not os.path.lexists(path):  # of other names the user knows what they mean
            self._session.warn(
                f"checkpointed({str(path)!r}): nothing lies there, and a trial that continues is given it to load. Say "
                "it once the state is written, or have trial.save(write) write it",
                "checkpointed",
            )
        self._session.checkpointed(self, str(path), seconds)

    def save(self, write: Callable[[Path], object], suffix: str = ".ckpt", keep: bool = False) -> str:
        """Save the state after the last epoch reported; a later attempt has its path as `checkpoint`.

        Of the ranks of a distributed training rank 0 alone calls it; all return the path.

        Args:
            write: Called with a temporary path, to make a file or a folder there. It is then forced to the disk,
                renamed, and recorded; older checkpoints of the trial are deleted.
            suffix: What the path ends in. Default: ".ckpt".
            keep: The epoch is the trial's best, and counts for it: kept beside what the trial goes on from, and
                `study.best.checkpoint` where no run is better. Default: False.

        Raises:
            InvalidInput: When `write` is no function, or wrote nothing at its path.
            NoRoom: when the quota is full; OSError when the disk is. The checkpoint before it is there still.
            LeaseLost: when the trial is another worker's by now, or has ended.
            Exception: what `write` raises.

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
        """The Keras model of `checkpoint`, or None without one; see haltune.callbacks.keras.load_model.

        Args:
            make_model: A function: then make_model(**trial.config), with the weights and the optimizer of `checkpoint`
                if there is one. Default: None, the model as it was saved.
            options: As keras.saving.load_model takes them, such as custom_objects.

        Returns:
            The model.

        Raises:
            ImportError: When Keras is missing.
            InvalidInput: For a checkpoint that is no model of Keras'.

        Example:
            See docs/guide.md::

                model = trial.load_model() or build(**trial.config)
        """
        load = above("load_model", "trial.load_model", "haltune.callbacks.keras.load_model(trial, make_model)")
        return load(self, make_model, **options)

    def _begin_save(self, suffix: str = ".ckpt", keep: bool = False) -> Path:
        """A temporary path for `_commit_save`, the same on all ranks; for states that they write together."""
        work = partial(self._session.checkpoints.temporary, self.id, self.attempt, self.epoch, suffix, keep, self.unit)
        return self._session.decide(self, "begins to be saved", work, str, Path)

    def _commit_save(self, temporary: Path, seconds: float = 0.0, keep: bool = False) -> str:
        """Make what was written at a path of `_begin_save` the trial's checkpoint; its path. Raises as `save` does.

        seconds: What writing took, for the account of the time.
        """
        return self._session.decide(self, "commits", partial(self._publish, temporary, seconds, keep))

    def _publish(self, temporary: Path, seconds: float, keep: bool) -> str:
        checkpoints = self._session.checkpoints
        with checkpoints.undecided(temporary):
            with self._ours(temporary):
                final = checkpoints.publish(temporary)
            # what is raised here may come after the append: what the log does not name is left for the next to delete
            if not self._session.checkpointed(self, checkpoints.recorded(final), seconds, keep):
                discard(final)
                raise self._lost()
            checkpoints.supersede(final)
        self._lap = self._session.monotonic()
        return str(final)

    @contextmanager
    def _ours(self, temporary: Path) -> Iterator[None]:
        """LeaseLost for what fails because another worker, which has the trial by now, deleted what was being saved."""
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
        return LeaseLost(f"trial {self.id} {why}: its state is not saved")

    def room_for(self, size: int) -> None:
        """Find out whether a checkpoint could be saved now.

        Args:
            size: Of the checkpoint, in bytes.

        Raises:
            NoRoom: When it does not fit in the quota; OSError when not on the disk.
        """
        self._session.decide(self, "needs room", partial(self._session.checkpoints.room_for, self.id, size))

    def _cannot_save(self, why: str) -> None:
        """Its state could not be saved when it was too late to train on: `room_for` says so from now on."""
        self._session.checkpoints.refused[self.id] = why

    @property
    def _keeps_checkpoint(self) -> bool:
        """True while the trial is one of the best whose state is kept, and the epoch it counts for is not saved."""
        return self._session.decide(self, "keeps its checkpoint", self._keeps)

    @property
    def _keeps_epoch(self) -> bool:
        """True when the state after the epoch just reported is to be kept: the trial's best, where that counts."""
        if self._goal.of == "last":
            return False

        def work() -> bool:
            cut = self.verdict is not None and self.verdict.action is Action.STOP  # what pauses may go on
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
    """Raises InvalidInput for what is no function that writes a state."""
    if not callable(write):
        raise InvalidInput(
            "what saves is a function of the path to write to, such as lambda path: torch.save(state, path), not "
            f"{write!r}; where you have written a file of your own, trial.checkpointed(path) records it"
        )
    try:
        signature = inspect.signature(write)
    except ValueError:  # of what is built in nobody knows what it takes
        return
    try:
        signature.bind(None)
    except TypeError:
        raise InvalidInput(
            f"what saves is called with the path to write to, and {write!r} takes something else: lambda path: ..."
        ) from None


def check_written(path: Path) -> None:
    """Raises InvalidInput where nothing lies at the path of a state, though its folder is there."""
    if os.path.lexists(path) or not path.parent.is_dir():
        return
    if appended := [part.name[len(path.name) :] for part in siblings(path)]:
        raise InvalidInput(
            f"the state was not written to the path that was given, but to that with {appended[0]!r} behind it, as "
            f"np.save does: ask for a path that ends so, suffix={appended[0]!r}"
        )
    raise InvalidInput("nothing was written to the path that was given: save there, a file or a folder")
