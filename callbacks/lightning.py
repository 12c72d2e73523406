"""The callback for Lightning, under both its names: `lightning` and `pytorch_lightning`.

    from haltune.callbacks.lightning import HaltuneCallback

    Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)])

It reports after every validation of a fit, be it several an epoch or one in several
epochs; a metric logged only in training is reported at the end of each training epoch.
It says nothing in sanity checks, in fast_dev_run, in the Tuner's own fits, and in
`validate` and `test`. Importing this module imports no framework.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from haltune.errors import InvalidInput, NotSupported

from .advice import missing
from .fresh import AFTERWARDS, TRAINING, VALIDATION, Fresh
from .handle import Trial
from .portable import Portable
from .reporter import Reporter

if TYPE_CHECKING:
    from lightning.pytorch import Callback as _Base
else:
    _Base = object

_NO_LENGTH = (
    "it came within an epoch whose number of batches is not known, as the training loader has no length. "
    "Give it a length or set Trainer(limit_train_batches=...)"
)
PATIENCE = 2  # epochs; a metric logged every other epoch may be absent in the first


class HaltuneCallback(Portable, _Base):  # type: ignore[misc]
    """Reports the goal's metric to `trial` and stops the fit when the policy says so.

    `monitor`: the name under which the metric is logged, if it is not the goal's.
    `verbose`: print a line for every report.

    Raises InvalidInput when `trial` is not a trial and when the metric is a vector or was never
    logged; NotSupported for several processes and for a verdict to pause.
    """

    _homes = ("lightning.pytorch", "pytorch_lightning")
    _install = 'pip install "haltune[lightning]"'
    _held = frozenset({"log", "log_dict"})  # methods of the module, set by the Trainer

    def __init__(self, trial: Trial, monitor: str | None = None, verbose: bool = False) -> None:
        hint = "Call trainer.fit(..., ckpt_path=trial.checkpoint)"
        self._reporter = Reporter(trial, monitor, verbose, resume_hint=hint)
        self._fresh = Fresh(self.monitor)
        self._done: float | None = None  # epochs trained when the last one ended, until it is dealt with
        self._start()

    @property
    def trial(self) -> Trial:
        """The trial it reports to."""
        return self._reporter.trial

    @property
    def monitor(self) -> str:
        """The name of the metric it reports."""
        return self._reporter.metric

    # the hooks, in the order Lightning calls them

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            _refuse_many_processes(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not _silent(trainer):
            self._start()
            self._reporter.begin(_planned_epochs(trainer))
            trainer.should_stop |= self._reporter.verdict is not None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if not _silent(trainer):
            self._after_epoch(trainer)
            self._fresh.before(trainer.callback_metrics, TRAINING, AFTERWARDS)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not _silent(trainer):
            self._fresh.before(trainer.callback_metrics, VALIDATION)
            self._reporter.clock.validating()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not _silent(trainer):
            self._reporter.clock.validated()
            self._validations += 1
            self._report(trainer, VALIDATION, _epochs_done(trainer))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not _silent(trainer):
            self._epochs += 1
            self._done = _epochs_done(trainer)
            self._report(trainer, TRAINING, self._done)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if not _silent(trainer):
            self._after_epoch(trainer)
            self._need_a_value(trainer, patience=1)
            self._reporter.end_of_fit()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if trainer.state.fn == "fit" and not trainer.fast_dev_run:
            self._reporter.fail(exception)
        self._let_go()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._let_go()

    # what a checkpoint holds: primitives, and whose they are

    @property
    def state_key(self) -> str:
        """Its place in a checkpoint, the same under both names of Lightning."""
        return "haltune"

    def state_dict(self) -> dict[str, Any]:
        return {"trial": self.trial.id, "source": self._fresh.source}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict.get("trial") == self.trial.id:
            self._fresh.source = state_dict.get("source")

    def _start(self) -> None:
        self._fresh.forget()
        self._epochs = 0  # training epochs that ended in this fit
        self._validations = 0
        self._done = None

    def _let_go(self) -> None:
        self._forget()
        self._fresh.forget()

    def _report(self, trainer: Any, phase: str, epoch: float | None) -> None:
        value = self._fresh.take(phase, trainer.callback_metrics)
        if value is not None and epoch is None:
            self._reporter.warn_once("length", f"a value of {self.monitor!r} is not reported: {_NO_LENGTH}")
        elif value is not None and epoch is not None:
            trainer.should_stop |= self._reporter.report(value, epoch)

    def _after_epoch(self, trainer: Any) -> None:
        """What the module's own on_train_epoch_end logged is there only now."""
        if self._done is not None:
            self._report(trainer, AFTERWARDS, self._done)
        self._done = None
        validates = bool(trainer.enable_validation)
        if self._validations or not validates:
            self._need_a_value(trainer, PATIENCE)

    def _need_a_value(self, trainer: Any, patience: int) -> None:
        if self._epochs >= patience and self._reporter.reports == 0:
            if self.monitor in trainer.callback_metrics:
                raise InvalidInput(f"{self.monitor!r} was logged but never reported: {_NO_LENGTH}")
            when = "in this fit" if patience == 1 else f"in the first {self._epochs} epochs"
            how = f"Log it, self.log({self.monitor!r}, ...)"
            raise missing(self.monitor, trainer.callback_metrics, when, how)


def _silent(trainer: Any) -> bool:
    """True where the same hooks fire but no training epoch is validated."""
    return trainer.state.fn != "fit" or trainer.sanity_checking or bool(trainer.fast_dev_run)


def _planned_epochs(trainer: Any) -> float | None:
    epochs = trainer.max_epochs
    return float(epochs) if epochs is not None and epochs >= 0 else None


def _epochs_done(trainer: Any) -> float | None:
    """Epochs trained so far, fractional within one: current_epoch + batches done / batches of an epoch.

    None within an epoch of unknown length, and in one without a batch (the stop came at its start).
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    if progress.is_last_batch:
        return float(trainer.current_epoch + 1)
    batches = trainer.num_training_batches
    if not isfinite(batches) or progress.current.ready == 0:
        return None
    return float(trainer.current_epoch + progress.current.ready / batches)


def _refuse_many_processes(trainer: Any) -> None:
    """Raises NotSupported: each process would report, and stop, on its own."""
    counts = {n: getattr(trainer, n, 1) for n in ("world_size", "num_devices", "num_nodes")}
    if max(counts.values()) > 1:
        found = ", ".join(f"{name}={count}" for name, count in counts.items())
        raise NotSupported(
            f"this Trainer runs several processes or devices ({found}); "
            "haltune does not report from them yet. Use Trainer(devices=1, num_nodes=1)"
        )
