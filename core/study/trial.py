"""A trial, as the training code uses it: its configuration, reports and checkpoints."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from haltune._utils.checks import number, timed
from haltune._utils.signals import interrupts
from haltune.above import above
from haltune.display import numeral, several_of
from haltune.errors import InvalidInput, RankLost, StoreError, free_memory, is_shortage
from haltune.hints import KnowsAttributes, explain_misreading, with_hints
from haltune.log.decisions import Verdict
from haltune.log.events import Status
from haltune.log.problem import ENDLESS, length_argument, position_argument
from haltune.ranks import this

from .attempt import Report
from .port import Port


class Trial(Port, KnowsAttributes):
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

    def __repr__(self) -> str:
        return f"Trial({self.id}, attempt={self.attempt}, epoch={self.epoch:.7g}, config={self.config})"

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
        value, metrics = self.measures.split(value, metrics)
        if epoch is not None or step is not None or tokens is not None:
            position = self._position(position, {"epoch": epoch, "step": step, "token": tokens})
        self._doubt_order(value, position)
        value = number("value", value)
        position = None if position is None else number(self.unit, position, positive=True)
        if (known := self._recalled(value, position)) is not None:
            return known
        position = self._next() if position is None else position
        if self.horizon is not None and position > self.horizon:
            if position > self.horizon * (1.0 + 1e-9):
                raise InvalidInput(
                    f"{self.unit}={numeral(position)} is beyond {length_argument(self.unit)}={self.horizon}, the full "
                    f"training of this study. Let the trial end the loop: for {self.unit} in trial."
                    f"{'epochs' if self.unit == 'epoch' else 'steps'}(). If a callback reports, do not report yourself."
                )
            position = float(self.horizon)  # computed from batches, with a rounding error
        took, validated = timed(seconds, validation, self._session.monotonic() - self._lap)
        paid = None if cost is None else number("cost", cost, positive=None)
        return self.record(Report(value, position, took, validated, paid, metrics), judge)

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
            return self.epoch + every if self.horizon is None else min(self.epoch + every, float(self.horizon))
        raise InvalidInput(
            f"The study counts {several_of(self.unit)}, and the report does not say how many were trained. "
            f"Write trial.report(value, {position_argument(self.unit)})."
        )

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

    def epochs(self) -> Iterator[int]:
        """Yield the epochs still to train, from 1, until the verdict is to stop or pause, or max_epochs is reached.

        Within `with trial:` a SIGTERM or SIGUSR1 that arrives during an epoch is raised at its end, as SystemExit.
        In a study that counts steps or your own unit, it yields those. In a study that counts tokens, it yields the
        steps of this attempt, from 1. Report whenever you have validated. If an exception ends the loop within an epoch
        and you start it again (a smaller batch after out of memory), the trial's curve starts again too.

        Example:
            >>> from haltune.policies import RandomSearch
            >>> problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), max_epochs=2)
            >>> trial = Study(problem, RandomSearch(trials=1), seed=0).ask()
            >>> [trial.report(0.5, epoch).action.value for epoch in trial.epochs()]
            ['continue', 'continue']
        """
        self.begins_loop()
        epoch = 0 if self.unit == "token" else math.floor(self.epoch)
        horizon = math.inf if self.horizon is None else self.horizon
        try:
            while max(epoch, self.epoch) < horizon and not (self.verdict and self.verdict.stops):
                if self._signals.waits:
                    self._signals.leave()
                    return  # an outer trial continues to the end of its own epoch
                epoch += 1
                self._signals.counts = True
                self.begins_epoch(epoch)
                yield epoch
                self.begins_epoch(None)
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
        if self.horizon is not None and position >= self.horizon:
            return True
        if self.pause_at is not None and self.pause_at != self.horizon:
            return self.epoch < self.pause_at <= position
        every, validation = problem.every or 1.0, self._validation
        if math.floor(position / every + 1e-9) <= math.floor(self.epoch / every + 1e-9):
            return False
        return self._session.monotonic() - self._lap >= validation * (1.0 / share - 1.0)

    def __enter__(self) -> Self:
        if not self._held_here:
            self.adopt()
        if this().alone:  # ranks would leave at different epochs
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
        self._need_held()
        if os.path.isabs(str(path)) and not os.path.lexists(path):  # other names may be keys of the user's own storage
            self._session.warn(
                f"checkpointed({str(path)!r}): nothing exists at this path, so a later attempt cannot load it. Call "
                "checkpointed() after you have written the state, or use trial.save(write).",
                "checkpointed",
            )
        self._session.checkpointed(self, str(path), seconds)

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
            See docs/loops/keras.md::

                model = trial.load_model() or build(**trial.config)
        """
        load = above("load_model", "trial.load_model", "haltune.callbacks.keras.load_model(trial, make_model)")
        return load(self, make_model, **options)
