"""The callback for Lightning: each hook says in a few lines what the reporter is to do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from haltune.errors import InvalidInput
from haltune.study import Trial

from ..frameworks.departure import leave_group_at_exit
from ..frameworks.portable import Reporting
from ..frameworks.ranks import Agreement
from ..frameworks.trackers import tell_loggers
from ..reporting.advice import first_epochs, missing, nearest, need_instance, two_callbacks
from ..reporting.reporter import Reporter
from . import checkpoint, hook_order, interruption, limits, randomness
from .fresh_metrics import TRAINING, VALIDATION, FreshMetrics, numbers
from .progress import at_boundary, epochs_done, planned_epochs, ranks_of, silent
from .schedules import advice

if TYPE_CHECKING:
    from lightning.pytorch import Callback as _Base
else:
    _Base = object

_NO_LENGTH = (
    "it came within an epoch whose number of batches is not known, as the training loader has no length. "
    "Give it a length or set Trainer(limit_train_batches=...)"
)
_EPOCHS_WITHOUT_VALUE = 2  # at first, but for a slip of the pen: one logged every other epoch may be absent


@dataclass(frozen=True)
class _Found:
    """A new value of the goal's metric, not reported yet."""

    value: Any  # a scalar tensor
    epoch: float | None  # epochs trained; None: unknown
    lap: tuple[float, float]  # seconds since the report before, and of them in validation
    beside: Mapping[str, Any]  # of other goals and constraints, as logged last


class HaltuneCallback(Reporting, _Base):  # type: ignore[misc]
    """Reports the goal's metric to a trial, stops the fit when the policy says so, and saves it for a pause.

    Args:
        trial: What `study.ask()` gave, or the loop over a study.
        monitor: The name under which the metric is logged. Default: None, the goal's.
        verbose: Print a line for every report. Default: False.
        record: "all" scalars logged in an epoch are stored with its report, or the "monitor" only. Default: "all".

    Raises:
        InvalidInput: When `trial` is not a trial, and when the metric is a vector or was never logged.
        NotSupported: For Fabric, for a max_steps or max_time below the trial's horizon, and for a trial to be paused
            under a sharded strategy.

    Example:
        ::

            from lightning.pytorch import Trainer
            from lightning.pytorch.demos.boring_classes import BoringModel

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.lightning import HaltuneCallback
            from haltune.policies import RandomSearch

            class Net(BoringModel):
                def validation_step(self, batch, index):
                    self.log("val_loss", self.step(batch))

            problem = Problem(Space({"lr": Float(0.01, 0.1)}), Minimize("val_loss"), max_epochs=2)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)])
                    trainer.fit(Net(), ckpt_path=trial.checkpoint)
    """

    _homes = ("lightning.pytorch", "pytorch_lightning")
    _extra = "lightning"
    _held = frozenset({"log", "log_dict"})  # methods of the module, set by the Trainer

    def __init__(
        self, trial: Trial, monitor: str | None = None, verbose: bool = False, record: str = "all"
    ) -> None:
        hint = "Call trainer.fit(..., ckpt_path=trial.checkpoint)"
        self._reporter = Reporter(trial, monitor, verbose, record=record, resume_hint=hint)
        self._fresh = FreshMetrics(self.monitor)
        self._loaded: list[Any] = []  # random states of all ranks, from a checkpoint, until they are put back
        self._to_save: list[Any] = []  # the same, while this callback saves
        self._trained: float | None = None  # epochs trained when the last one ended
        self._start()

    # the hooks, in the order Lightning calls them; `hook_order` calls those without an `on_`

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        raise limits.fabric()

    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:
        raise limits.fabric()  # the one hook of Fabric's after setup_module and setup_optimizers

    def setup(self, trainer: Any, pl_module: Any = None, stage: str = "") -> None:
        need_instance(self, HaltuneCallback)  # called on the class, it lacks its last argument
        if stage == "fit":
            leave_group_at_exit()
            self._loaded = []  # what a `validate` loaded is not this fit's
            self._planned = planned_epochs(trainer)  # before callbacks add one for their own use
            if any(isinstance(c, HaltuneCallback) and c is not self for c in trainer.callbacks):
                raise two_callbacks("Trainer(callbacks=[...])")
            hook_order.take(trainer, self)
            if self.trial.checkpoint:
                checkpoint.prepare(trainer, pl_module)

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self._reporter.foresee(trainer.callback_metrics)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not silent(trainer):
            self._start()
            interruption.hear(trainer, self._reporter)
            limits.same_trial(ranks_of(trainer), self.trial)
            trainer.should_stop |= ranks_of(trainer).decide(lambda: self._begin(trainer))
            if trainer.reload_dataloaders_every_n_epochs:  # which draw before the epoch starts
                self._restore(trainer)

    def epoch_starts(self, trainer: Any) -> None:
        if not silent(trainer):
            self._restore(trainer)
            self._fresh.before(TRAINING, trainer.callback_metrics)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not silent(trainer):
            self._fresh.before(VALIDATION, trainer.callback_metrics)
            self._reporter.clock.validating()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not silent(trainer):
            self._reporter.clock.validated()
            self._validations += 1
            self._find(trainer, VALIDATION, trainer.callback_metrics)
            if not at_boundary(trainer):  # else the epoch's last metrics are still to come
                self._report(trainer, VALIDATION)

    def epoch_ends(self, trainer: Any) -> None:
        if not silent(trainer):
            self._epochs += 1
            self._trained = epochs_done(trainer)
            self._find(trainer, TRAINING, trainer.callback_metrics)
            self._report(trainer, TRAINING, self._trained)

    def training_ends(self, trainer: Any) -> None:
        if not silent(trainer):
            ranks = ranks_of(trainer)
            logged = dict(trainer.callback_metrics)
            ranks.decide(lambda: self._check_end(trainer, logged))
            checkpoint.save(trainer, self._reporter, ranks, lambda: self._remember(trainer, ranks))
            self._to_save = []
            if ranks.rank == 0:
                tell_loggers(trainer, self._reporter)
                self._reporter.end_of_fit()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException | None = None) -> None:
        if exception is None:
            return  # on the class: `setup` said so
        if trainer.state.fn == "fit" and not trainer.fast_dev_run and trainer.is_global_zero:
            self._report_late()
            self._reporter.fail(exception)
        self._reporter.postpone()
        self._let_go(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._let_go(trainer)
        interruption.leave(trainer, self._reporter)

    # what a checkpoint holds: primitives, and whose they are

    @property
    def state_key(self) -> str:
        """Its key in a checkpoint, the same under both names of Lightning."""
        # a Trainer with two of them would refuse their keys with a riddle: `setup` says what is wrong
        checked = sys._getframe(1).f_code.co_name == "_validate_callbacks_list"
        return f"haltune-{id(self)}" if checked else "haltune"

    def state_dict(self) -> dict[str, Any]:
        state = {"trial": self.trial.id, "source": self._fresh.source}
        return state | ({"random": self._to_save} if self._to_save else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict.get("trial") == self.trial.id:
            self._fresh.source = state_dict.get("source")
            self._loaded = state_dict.get("random", self._loaded)  # a Tuner saves and loads in between

    def _start(self) -> None:
        self._fresh.forget()
        self._found: _Found | None = None
        self._epochs = 0  # training epochs that ended in this fit
        self._trained = None
        self._validations = 0
        self._ends = False  # whether this callback told the Trainer to stop

    def _let_go(self, trainer: Any) -> None:
        self._forget()
        self._fresh.forget()
        self._found = None
        self._reporter.release()
        hook_order.leave(trainer, self)

    def _restore(self, trainer: Any) -> None:
        """Go on with the random numbers of a checkpoint, once."""
        states, self._loaded = self._loaded, []
        if trainer.global_rank < len(states):
            randomness.restore(trainer, states[trainer.global_rank])

    def _begin(self, trainer: Any) -> bool:
        """True when the fit has nothing to do."""
        reporter, trial = self._reporter, self.trial
        reporter.begin(self._planned, trainer.lightning_module)
        limits.check_start(trainer, trial)
        if not reporter.ended and trial.checkpoint and trainer.current_epoch < int(trial.epoch):
            reporter.repeats(
                f"trial {trial.id} continues after epoch {trial.epoch:g}, but this fit begins at epoch "
                f"{trainer.current_epoch} and trains them again: call trainer.fit(..., ckpt_path=trial.checkpoint)"
            )
        for sentence in advice(trainer, trial):
            reporter.advise(sentence)
        return reporter.verdict is not None

    def _find(self, trainer: Any, phase: str, logged: Mapping[str, Any]) -> None:
        value = self._fresh.take(phase, logged)
        if value is not None:
            beside = {n: logged[n] for n in self._reporter.measures.others if n in logged}
            self._found = _Found(value, epochs_done(trainer), self._reporter.clock.lap(), beside)

    def _report(self, trainer: Any, phase: str, over: float | None = None) -> None:
        """What was found goes to the study by rank 0, and its answer to all; every rank comes here. over: see heed."""
        found, self._found = self._found, None
        logged = dict(trainer.callback_metrics)  # the reading may be a collective, so all ranks read
        stops, pauses = ranks_of(trainer).decide(lambda: self._tell(trainer, phase, found, logged, over))
        # a pause waits for the end of the epoch: from within one a fit cannot go on exactly
        if stops and (not pauses or at_boundary(trainer)):
            self._ends = trainer.should_stop = True
        if found is not None and self.trial.goal.of == "best":
            checkpoint.keep(trainer, self._reporter, ranks_of(trainer))

    def _tell(
        self, trainer: Any, phase: str, found: _Found | None, logged: Mapping[str, Any], over: float | None
    ) -> tuple[bool, bool]:
        """Whether the fit should end, and whether for a pause."""
        reporter = self._reporter
        if found is not None and found.epoch is None:
            reporter.warn_once("length", f"a value of {self.monitor!r} is not reported: {_NO_LENGTH}")
        elif found is not None and found.epoch is not None:
            fresh = self._fresh.all(phase, logged) if reporter.record == "all" else {}
            beside = {n: logged[n] for n in reporter.measures.others if n in logged}
            told = numbers({**found.beside, **beside, **fresh})
            reporter.report(found.value, found.epoch, told, lambda: _need(trainer), found.lap)
        reporter.heed(over)
        if trainer.should_stop and not self._ends:
            reporter.ends_by_itself()
        if phase == TRAINING and (self._validations or not trainer.enable_validation):
            patience = 1 if nearest(self.monitor, logged, 0.9) else _EPOCHS_WITHOUT_VALUE
            self._need_a_value(logged, f"in {first_epochs(self._epochs)}", patience)
        return reporter.stopping or reporter.leaving, reporter.pausing

    def _report_late(self) -> None:
        """What an exception kept from being reported."""
        found, self._found = self._found, None
        if found is not None and found.epoch is not None:
            with suppress(Exception):  # it would replace the user's
                beside = numbers(found.beside)
                self._reporter.report(found.value, found.epoch, beside, lap=found.lap, judge=False)

    def _check_end(self, trainer: Any, logged: Mapping[str, Any]) -> None:
        self._need_a_value(logged, "in this fit")
        if not self._reporter.stopping:
            limits.check_end(trainer, self.trial, self._trained)

    def _remember(self, trainer: Any, ranks: Agreement) -> None:
        self._to_save = ranks.gather(randomness.capture(trainer))

    def _need_a_value(self, logged: Mapping[str, Any], when: str, patience: int = 1) -> None:
        if self._epochs >= patience and self._reporter.silent:
            if self.monitor in logged:
                raise InvalidInput(f"{self.monitor!r} was logged but never reported: {_NO_LENGTH}")
            log = f"self.log({self.monitor!r}, ...)"
            how = f"No validation ran: give trainer.fit its data, or log it in training, {log}"
            raise missing(self.monitor, logged, when, f"Log it, {log}" if self._validations else how)


def _need(trainer: Any) -> int:
    """Bytes of a checkpoint. Raises where none can be made, or it could not be loaded again."""
    if limits.sharded(trainer):
        raise limits.cannot_save(trainer)
    # collecting the state may be a collective, and rank 0 is alone here
    return checkpoint.rehearse(trainer) if ranks_of(trainer).size == 1 else checkpoint.size(trainer)
