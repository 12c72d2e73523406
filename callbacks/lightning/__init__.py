"""The callback for Lightning, for both packages: `lightning` and `pytorch_lightning`.

It reports after every validation of a fit, with one or several validations an epoch, or one every few epochs. A metric
that is logged in training only is reported at the end of each training epoch. If the study counts steps, has
max_epochs=1, or has a goal with `smooth` or `rank_by`, it is reported every log_every_n_steps. The report of an epoch
comes at its very end, with all metrics that were logged in it. There are no reports in sanity checks, fast_dev_run, the
Tuner's own fits, `validate` and `test`.

A paused trial is saved where it reports, at the end of an epoch or within one. It resumes exactly in a fit with
`ckpt_path=trial.checkpoint`. Within an epoch, the resumed fit reads the first batches of the epoch again, without
training on them, unless the loader has a state. With several processes rank 0 reports, and all ranks follow its
decisions.
"""

from __future__ import annotations

import math
import signal
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from haltune._utils.interruption import Interruption
from haltune.errors import InvalidInput, NotSupported
from haltune.ranks import Group, leave_group_at_exit
from haltune.study import Trial
from haltune.study.loops import warn_of_ranks

from .. import carried, plain
from ..base import Reporting, framework_bases, of_instance, over
from ..behind import Behind
from ..changes import warn_of_failed
from ..reporter import Reporter, ending_metrics, missing, nearest, scalars, two_callbacks, unranked
from . import attributes, checkpoint, checks, internals, resuming, shards
from .checkpoint import TRAINED
from .checks import at_boundary, ranks_of, silent

if TYPE_CHECKING:
    from lightning.pytorch import Callback as _Base
else:
    _Base = object

__all__ = ["HaltuneCallback"]

VALIDATION = "validation"
TRAINING = "training"  # the whole epoch, or the steps since the last report, including validations
_NO_LENGTH = (
    "it was logged within an epoch whose number of batches is not known, because the training loader has no length. "
    "Give it a length or set Trainer(limit_train_batches=...)"
)
_EPOCHS_WITHOUT_VALUE = 2  # the most at first, because some metrics are logged every other epoch; 1 for a misspelling


class FreshMetrics:
    """New values in Lightning's table of metrics, which is never cleared and can contain old values.

    A value is new if it is another tensor than before the phase, even if it is equal. Lightning has no other sign of it
    (Lightning-AI/pytorch-lightning#7558): it computes a value once and gives out views of it. The first phase with a
    new value of the goal's metric, `name`, is the source from then on. So a name logged both in training and in
    validation is reported once.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.source: str | None = None  # the phase of the goal's metric
        self._seen: dict[str, dict[str, Any]] = {}  # phase -> the table at its start

    def before(self, phase: str, logged: Mapping[str, Any]) -> None:
        """Record the table at the start of a phase."""
        self._seen[phase] = dict(logged)

    def take(self, phase: str, logged: Mapping[str, Any]) -> Any:
        """Return the phase's new value of the goal's metric; None if there is none, or if it is not the source."""
        if self.source not in (None, phase):
            return None
        value = self.all(phase, logged).get(self.name)
        if value is not None:
            self.source = phase
        return value

    def all(self, phase: str, logged: Mapping[str, Any]) -> dict[str, Any]:
        """Return all new values of a phase."""
        seen = self._seen.get(phase, {})
        return {name: value for name, value in logged.items() if not _same(value, seen.get(name))}

    def forget(self) -> None:
        """Drop the values, because a fit starts or ends."""
        self._seen = {}


def _same(value: Any, old: Any) -> bool:
    """Return whether two logged values are one tensor or views of it, or one object that is no tensor."""
    tensors = hasattr(value, "is_set_to") and hasattr(old, "is_set_to")
    return value is old or (tensors and bool(value.is_set_to(old)))


@dataclass(frozen=True)
class _Found:
    """New value of the goal's metric that is not reported yet."""

    value: Any  # a scalar tensor
    epoch: float | None  # trained epochs; None: unknown
    lap: tuple[float, float]  # seconds since the last report, and the part in validation
    updates: int | None  # optimizer steps of this fit; None: not as many in each epoch
    others: Mapping[str, Any]  # last logged values of other goals and constraints


class _Last:
    """Callback that is called after all others. It is in the Trainer's list from `setup` to `teardown`."""

    def __init__(self, owner: HaltuneCallback) -> None:
        self.owner = owner
        self.teardown = owner.all_torn_down


class HaltuneCallback(Reporting, _Base):  # type: ignore[misc]
    """Callback that reports the goal's metric to a trial, stops the fit when the policy decides so, and saves pauses.

    A training metric, self.log("train_loss", loss), is reported every Trainer(log_every_n_steps=) steps if the study
    counts steps, has max_epochs=1, or has a goal with `smooth` or `rank_by`. Otherwise, and always with on_step=False,
    it is reported at the end of each epoch. Minimize("train_loss", smooth=100, rank_by="val_loss") judges by it and
    ranks full trainings by validations, which can be rare.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: The name under which the metric is logged. Default: None, the goal's.
        verbose: Print a line for every report. Default: False.
        record: "all" stores all scalars logged in an epoch with its report, "monitor" only this one. Default: "all".
        tokens: In a study that counts tokens, a function that returns the number in a training batch,
            `lambda b: b["input_ids"].numel()`. Several processes add up. Default: None.
        background: If the goal counts the best epoch (of="best"), let the training continue while the model of this
            epoch is written. A fit of one process holds a copy of its weights in the memory of the CPU then. Several
            processes wait for the file. Default: False.

    Raises:
        InvalidInput: If `trial` is not a trial, if the metric is a vector or was never logged, or if the study counts
            tokens and `tokens` is not set.
        NotSupported: If you use Fabric, if max_steps or max_time ends the fit before the trial's max_epochs, or if a
            trial under DeepSpeedStrategy without ZeRO, or with offloading to NVMe, is to pause.

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
    _install = "lightning"
    _hint = "Call trainer.fit(..., ckpt_path=trial.checkpoint)"
    _counts = ("epoch", "step", "token")
    _held = frozenset({"log", "log_dict"})  # methods of the module, set by the Trainer

    def __init__(
        self,
        trial: Trial,
        monitor: str | None = None,
        verbose: bool = False,
        record: str = "all",
        tokens: Callable[[Any], Any] | None = None,
        background: bool = False,
    ) -> None:
        if getattr(trial, "unit", None) == "token" and not callable(tokens):
            raise InvalidInput(
                f"The study counts tokens, but tokens={tokens!r} is not a function that counts those of a batch. Write "
                'HaltuneCallback(trial, tokens=lambda batch: batch["input_ids"].numel()), or make the study with '
                "max_steps=."
            )
        self._tokens_in, self._background = tokens, background
        super().__init__(trial, monitor, verbose, record)

    def _setup(self) -> None:
        self._fresh = FreshMetrics(self.monitor)
        self._behind = Behind(self._reporter)
        self._loaded: list[Any] = []  # random states of all ranks from a checkpoint, until they are restored
        # random states and changed attributes of all ranks, while this callback saves
        self._to_save: tuple[list[Any], list[Any]] | None = None
        self._quiet: list[tuple[Any, bool]] = []  # (EarlyStopping, its setting before)
        self._tokens = 0  # trained tokens, in a study that counts them
        self._validates = False  # the check before training logged the metric
        self._validated: set[str] = set()  # names of the metrics of validations
        self._beginning: Any = None  # a resuming.Start, from on_fit_start on
        self._numbers: dict[str, Any] = {}  # of the module and the data module, before finders set them
        self._before: dict[str, dict[str, str]] = {}  # marks of attributes before the hooks of the start
        self._early: dict[str, set[str]] = {}  # names of attributes that were set before loaders are made, by owner
        self._made_by: dict[str, Any] = {}  # numbers before the loaders of this epoch were made, if each makes its own
        self._given: list[Any] = []  # the user's callbacks, in their order
        self._fits = False  # on_fit_start was called, so a later load is a finder's own
        self._of: int | None = None  # the trial of the loaded checkpoint; None: none was loaded
        self._changed: list[Any] = []  # changed attributes of all ranks from a checkpoint, until they are set
        self._trained_weights: dict[str, Any] = {}  # of a checkpoint whose state_dict has others, such as an average
        self._found_before: dict[str, Any] = {}  # numbers that a finder of batch sizes or learning rates has set
        # random states at the start of the present epoch's loader and, if later, at its first batch
        self._epoch_start: list[Any] = []
        self._start()

    def _start(self) -> None:
        self._fresh.forget()
        self._found: _Found | None = None
        self._epochs = 0  # training epochs that ended in this fit
        self._trained: float | None = None  # trained epochs when the last one ended
        self._steps_before = 0  # optimizer steps before this fit
        self._validations = 0
        self._by_step = False  # a training metric was reported within an epoch
        self._reads = False  # the first batch was read
        self._due = False  # the present step is to be reported, on all ranks
        self._ends = False  # this callback stopped the Trainer
        self._saved = False  # the state within an epoch was saved for a pause
        self._snapshot: attributes.Snapshot | None = None  # set when the first epoch starts
        self._within = False  # the fit resumes within an epoch, of which the checkpoint has the start
        self._streams = self._drew = False  # reads an IterableDataset in this process; reading it drew numbers
        self._read: Any = None  # the random state before the stream's next batch is read
        self._kept_value: _Found | None = None  # the last value before an epoch that another callback adds
        self._weights: dict[str, Any] = {}  # a sample of the weights in the last validation
        self._evaluated: dict[str, Any] = {}  # a sample of the weights of the last report
        self._averages: bool | None = None  # whether the module holds an average, as of the fit's first validation
        self._hook: Any = None  # of torch, within the first step of a validation

    # the hooks, in Lightning's order

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        raise checks.fabric()

    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:
        raise checks.fabric()  # Fabric's only hook after setup_module and setup_optimizers

    @of_instance
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        self.trial.attaches()
        leave_group_at_exit()
        plain.forget()
        checks.leave_requeue(trainer, self.trial)
        # drop what an earlier `validate` loaded
        self._loaded, self._changed, self._of, self._tokens, self._found_before = [], [], None, 0, {}
        self._fits, self._early, self._made_by, self._trained_weights = False, {}, {}, {}
        epochs = trainer.max_epochs
        # before other callbacks add an epoch for their own use
        self._planned = float(epochs) if epochs is not None and epochs >= 0 else None
        self._leave_list(trainer)
        if any(isinstance(c, HaltuneCallback) and c is not self for c in trainer.callbacks):
            raise two_callbacks("Trainer(callbacks=[...])")
        last = over(_Last, framework_bases(self._homes, self._base, self._install))(self)
        # first in the list: the random state is restored before other callbacks draw, and the final state is saved
        # before weights are averaged into the model. Lightning iterates over the list, so it is replaced, not changed.
        self._given = list(trainer.callbacks)
        trainer.callbacks = [self, *(c for c in trainer.callbacks if c is not self), last]
        if self.trial.checkpoint and trainer.precision == "64-true":
            pl_module.double()  # Lightning would load the weights before that, and round them to single precision

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._fits = True
        trained, self._trained_weights = self._trained_weights, {}
        if trained:
            pl_module.load_state_dict(trained, strict=False)
        if not silent(trainer):
            self._epoch_start = [checkpoint.capture(trainer)]  # Lightning starts the first loader before the epoch
            checks.check_trainer(trainer, self.trial)
            shards.need_ranks(trainer, self.trial)
            over = self.trial.ended is not None and not (self.trial.verdict is not None and self.trial.verdict.stops)
            if over and self._of == self.trial.id:  # at its last epoch, so that none starts
                ranks_of(trainer).first(self._reporter.warn_ended)
            self._beginning = resuming.Start(trainer)
            self._numbers = attributes.numbers(trainer)
            makes = bool(trainer.reload_dataloaders_every_n_epochs)
            self._before = attributes.marked(trainer, data=makes)
            self._made_by = self._made_by or (self._numbers if makes else {})

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        self._validates = self.monitor in trainer.callback_metrics
        self._validated |= trainer.callback_metrics.keys()
        ranks_of(trainer).first(lambda: self._reporter.foresee(trainer.callback_metrics))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not silent(trainer):
            self._start()
            ranks = ranks_of(trainer)
            self._reporter.defer(Interruption(ranks.alone and not shards.sharded(trainer)))
            self._reporter.schedule = partial(checks.still_to_fall, weakref.ref(trainer))
            self.trial.attaches(ranks.size - 1)  # again: a subclass may replace `setup`
            checks.same_trial(ranks, self.trial)
            # a metric may be logged on rank 0 alone, and all ranks must report at the same points
            stops, self._validates = ranks.once(lambda: (self._begin(trainer), self._validates))
            trainer.should_stop |= stops
            self._beginning = self._beginning or resuming.Start(trainer)  # a subclass may replace on_fit_start
            if self._finders(trainer) and self._numbers:
                now = attributes.numbers(trainer)
                self._found_before |= {n: v for n, v in now.items() if v != self._numbers.get(n)}
            if trainer.reload_dataloaders_every_n_epochs:  # new loaders are made, and draw, before the epoch starts
                self._restore(trainer)
                self._prepare(trainer, at_boundary(trainer))
                self._made_by = attributes.numbers(trainer) if at_boundary(trainer) else self._made_by
            starts, ends = partial(self._batches_start, trainer), partial(self._epoch_ends, trainer)
            validated = partial(self._validation_ends, trainer)
            internals.hook_batches(trainer, starts, partial(self._step_ends, trainer), validated, ends)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if not silent(trainer):
            if not getattr(trainer.fit_loop, "restarted_mid_epoch", False):
                self._continue(trainer)
                self._restore(trainer)
            self._fresh.before(TRAINING, trainer.callback_metrics)

    def _batches_start(self, trainer: Any) -> None:
        """Handle the first batch of an epoch, after all hooks of its start; or the next batch of a resumed fit."""
        self._read = None  # the iterator of the epoch draws first
        if checks.resumes_after_batches(trainer):
            return  # the fit continues with the next epoch
        self._continue(trainer)
        if not self._reads:
            self._reads = True
            carried.warn_of_data(self.trial, attributes.data_parts(trainer), self._of is None)
        if getattr(trainer.fit_loop, "restarted_mid_epoch", False):
            internals.end_restart(trainer)
        if self._loaded:
            self._restore(trainer)
        if not self._within:
            now = checkpoint.capture(trainer)
            first = not (self._epochs or trainer.current_epoch)
            self._epoch_start = [*self._epoch_start, now] if first else [now]
        self._within = False
        if self._snapshot is not None and (self._epochs or trainer.current_epoch):
            self._snapshot.epoch_starts(trainer)

    def _step_ends(self, trainer: Any, rest: Callable[[], None]) -> None:
        """Handle the end of a step, after all of its hooks. rest: Lightning's own end of the step."""
        logs = self._logs(trainer)
        if logs is not None:
            self._find(trainer, TRAINING)
            self._by_step = self._by_step or ranks_of(trainer).once(lambda: self._found is not None)
            self._found = self._found if logs else None
        # a metric may be logged on rank 0 alone
        self._due = self._by_step and (self._found is not None if ranks_of(trainer).alone else bool(logs))
        rest()  # validates, and then reports
        if self._due and not at_boundary(trainer):
            self._report(trainer, TRAINING, within=True)
        self._read = checkpoint.drawn() if self._streams else None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._drew |= self._read is not None and self._read != checkpoint.drawn()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trial = self.trial
        if trial.unit == "token" and self._tokens_in is not None and not silent(trainer):
            self._tokens += checks.of_all_ranks(trainer, int(self._tokens_in(batch)))
        if trial.horizon is None or silent(trainer) or self._adds(trainer):
            return
        if (self._position(trainer) or 0) >= trial.horizon:
            self._ends = trainer.should_stop = True  # makes Lightning validate now

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not silent(trainer):
            self._fresh.before(VALIDATION, trainer.callback_metrics)
            self._reporter.clock.validating()

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not (batch_idx or dataloader_idx or silent(trainer) or shards.sharded(trainer)):
            self._sample(pl_module)
            if self._averages is None:
                self._averages = attributes.holds_average(trainer)
            if self._averages:  # the step may put it in place
                self._hook = resuming.before_forward(pl_module, partial(self._sample, pl_module))

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _sample(self, module: Any) -> None:
        masks = {name: buffer for name, buffer in module.named_buffers() if name.endswith("_mask")}
        weights = masks | dict(module.named_parameters())  # perhaps averaged ones
        self._weights = resuming.sample(resuming.pruned(weights))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not silent(trainer):
            self._reporter.clock.validated()
            self._validations += 1
            self._validated |= self._fresh.all(VALIDATION, trainer.callback_metrics).keys()
            if self._found is None or (self._adds(trainer) and not self._by_step):  # the last one is of the final model
                self._find(trainer, VALIDATION)
            else:  # the metrics of the validated step
                self._found = replace(self._found, lap=self._reporter.clock.lap())

    def _validation_ends(self, trainer: Any) -> None:
        """Handle the end of a validation, after all hooks of all callbacks and of the module."""
        # at the end of an epoch its last metrics come later
        if not (silent(trainer) or at_boundary(trainer) or self._adds(trainer)):
            self._report(trainer, VALIDATION, within=True)

    def _epoch_ends(self, trainer: Any) -> None:
        """Handle the end of an epoch, after all hooks of all callbacks and of the module."""
        if not silent(trainer):
            self._epochs += 1
            self._made_by = attributes.numbers(trainer) if self._made_by else {}
            if self._snapshot is not None:
                self._snapshot.epoch_ends(trainer, self.trial)
            self._sign(trainer)
            self._trained = self._position(trainer)
            if not self._by_step:
                self._find(trainer, TRAINING)
            if self._adds(trainer) and trainer.current_epoch + 1 < trainer.max_epochs:
                self._kept_value, self._found = self._found, None  # the added epoch ends the training
                return
            self._found, self._kept_value = self._found or self._kept_value, None
            self._report(trainer, TRAINING, self._trained)
            self._reporter.trained = self._trained or self._reporter.trained

    def _adds(self, trainer: Any) -> bool:
        """Return whether this is the last epoch that the user planned, or later, and a callback has added more.

        Lightning's StochasticWeightAveraging trains an epoch more, to update batch norm for the averaged weights.
        """
        planned = self._planned
        return planned is not None and trainer.max_epochs > planned and trainer.current_epoch + 1 >= planned

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if not silent(trainer):
            ranks = ranks_of(trainer)
            logged = dict(trainer.callback_metrics)
            ranks.once(lambda: self._check_end(trainer, logged))
            self._behind.commit()
            if not self._saved:
                self._save(trainer, ranks)
            ranks.first(lambda: _tell_loggers(trainer, self._reporter))
            carried.leave_data(attributes.data_parts(trainer))
            ranks.first(self._reporter.end_of_fit)

    @of_instance
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if trainer.state.fn == "fit" and not trainer.fast_dev_run:
            ranks_of(trainer).first(lambda: self._fail(trainer, exception))
        self._reporter.postpone()
        self._let_go(trainer)

    def _fail(self, trainer: Any, exception: BaseException) -> None:
        self._behind.commit()
        found, self._found = self._found, None
        if found is not None and found.epoch is not None:
            with suppress(Exception):  # it would replace the user's exception
                self._reporter.report(found.value, found.epoch, scalars(found.others), lap=found.lap, judge=False)
        if self._snapshot is not None:  # the fit has trained
            self._sign(trainer)
            carried.leave(trainer.callbacks)
        self._reporter.fail(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._let_go(trainer)

    def all_torn_down(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raise a deferred Ctrl-C or SIGTERM, after the loggers and the other callbacks have ended."""
        if stage == "fit":
            carried.leave(trainer.callbacks)
        if stage == "fit" and self._epochs and self._of is None:
            self._sign(trainer)  # averaged ones; in a resumed fit they may be those with which other trials start
        self._reporter.leave()
        if trainer.received_sigterm:  # Lightning handles it only within its epochs
            raise SystemExit(128 + signal.SIGTERM)  # a shell's exit code

    # the callback's part of a checkpoint: primitives, and the trial's number

    @property
    def state_key(self) -> str:
        """The callback's key in a checkpoint, the same for both packages."""
        return "haltune"

    def state_dict(self) -> dict[str, Any]:
        state = {"trial": self.trial.id, "config": self.trial.configuration, "source": self._fresh.source}
        state |= {"found": self._found_before} if self._found_before else {}
        state |= {"tokens": self._tokens} if self._tokens else {}
        return state | ({"made_by": self._made_by} if self._made_by else {})

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        found = self._to_save
        if found is None and self._snapshot is not None and ranks_of(trainer).alone:
            with suppress(Exception):  # a file of the program's, to resume after a kill; an error would end its save
                found = [self._randomness(trainer)], [self._snapshot.changes(trainer, small=True)]
        if found is not None:
            checkpoint["callbacks"][self.state_key]["random"], checkpoint["haltune"] = found

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        late = shards.loads_late(trainer)  # Lightning loads after on_fit_start
        if trainer.state.fn == "fit" and (late or not self._fits) and not trainer.fast_dev_run:
            checks.check_loaded(trainer, self.trial, checkpoint, checks.how_to_resume(trainer, self.trial, self._hint))
            resuming.complete(trainer, self.trial, checkpoint)
            self._changed = checkpoint.get("haltune", [])
            self._trained_weights = checkpoint.get(TRAINED, {})
            if trainer.global_rank < len(self._changed):  # Lightning saves those of rank 0, and loads them after this
                checkpoint["callbacks"].update(self._changed[trainer.global_rank].get("states", {}))
            shards.put_back(trainer, checkpoint)
            own = checkpoint["callbacks"].get(self.state_key, {})
            self._found_before, self._made_by = own.get("found", {}), own.get("made_by", {})
            self._prepare(trainer, False)
            # before loaders and optimizers are made
            attributes.set_numbers(trainer, self._found_before | self._made_by)
            # they would run again, and then start at epoch 0
            trainer.callbacks = [c for c in trainer.callbacks if c not in self._finders(trainer)]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._of = state_dict.get("trial")
        if self._of == self.trial.id:
            self._fresh.source = state_dict.get("source")
            self._tokens = state_dict.get("tokens", 0)
            if self._snapshot is None:  # otherwise a finder loads what it has saved in this fit
                self._loaded = state_dict.get("random", self._loaded)  # a Tuner saves and loads before the fit

    def _finders(self, trainer: Any) -> list[Any]:
        """Return Lightning's callbacks that find a batch size or a learning rate at the start of each fit."""
        return [c for c in trainer.callbacks if checks.is_finder(c)]

    def __getstate__(self) -> dict[str, Any]:
        self._fresh.forget()  # tensors
        return super().__getstate__() | {"_snapshot": None, "_weights": {}, "_evaluated": {}}

    def _let_go(self, trainer: Any) -> None:
        self.on_validation_batch_end()
        self._averages = None
        self._forget()
        self._fresh.forget()
        self._found = self._kept_value = self._snapshot = self._beginning = None
        self._reporter.release()
        self._leave_list(trainer)

    def _leave_list(self, trainer: Any) -> None:
        """Restore the user's order of the Trainer's callbacks."""
        for early, checked in self._quiet:
            internals.check_early_stopping(early, checked)
        self._quiet = []
        internals.unhook_batches(trainer)
        if any(isinstance(c, _Last) and c.owner is self for c in trainer.callbacks):
            more = [c for c in trainer.callbacks if c not in self._given and not isinstance(c, _Last)]
            trainer.callbacks, self._given = [*self._given, *more], []

    def _save(self, trainer: Any, ranks: Group) -> None:
        def remember() -> None:
            drawn = ranks.gather(self._randomness(trainer))
            assert self._snapshot is not None
            own = attributes.own_states(trainer, ranks)
            self._to_save = drawn, ranks.gather(self._snapshot.changes(trainer) | ({"states": own} if own else {}))

        checkpoint.save(trainer, self._reporter, ranks, self._evaluated, remember, lambda: self._check(trainer))
        self._to_save = None

    def _randomness(self, trainer: Any) -> dict[str, Any]:
        state = checkpoint.capture(trainer)
        return state if at_boundary(trainer) else state | {"start": self._epoch_start}

    def _continue(self, trainer: Any) -> None:
        """When the first epoch starts, record the attributes of the fit's objects, and set those of the checkpoint."""
        if self._snapshot is None:
            carried.need_own_state(carried.who(self.trial), trainer.callbacks, self._of is None)
            carried.warn_of_own(self.trial, trainer.callbacks, self._of is None)
            self._snapshot = attributes.Snapshot(trainer, self.trial.id, self._before, self._early)
            changed, self._changed = self._changed, []
            self._beginning.trains(trainer)
            self._streams = resuming.reads_a_stream(trainer)
            if trainer.global_rank < len(changed):
                made = bool(self._early) and at_boundary(trainer)
                failed = attributes.put_back(trainer, changed[trainer.global_rank], self.trial.id, made)
                self._snapshot.put_back(changed[trainer.global_rank])
                warn_of_failed(self.trial, *failed)

    def _prepare(self, trainer: Any, whole: bool) -> None:
        """Before a program makes new loaders at an epoch, set the attributes from which it makes them."""
        if trainer.reload_dataloaders_every_n_epochs and trainer.global_rank < len(self._changed):
            self._early |= attributes.prepare(trainer, self._changed[trainer.global_rank], whole)

    def _restore(self, trainer: Any) -> None:
        """Restore the random state of a checkpoint, once."""
        states, self._loaded = self._loaded, []
        if len(states) not in (0, trainer.world_size):
            warn_of_ranks(self.trial, len(states), trainer.world_size)
        if trainer.global_rank < len(states):
            state = states[trainer.global_rank]
            self.trial.restores_randomness(checkpoint.to_put_back(trainer))
            if "start" in state:
                self._epoch_start, self._within = state["start"], True
                checkpoint.reach(trainer, self._epoch_start, state["seeds"])
            checkpoint.restore(trainer, state)

    def _begin(self, trainer: Any) -> bool:
        """Start the fit; return whether it has nothing to do."""
        reporter, trial = self._reporter, self.trial
        self._steps_before = trainer.global_step
        reporter.resume_hint = checks.how_to_resume(trainer, trial, self._hint)
        planned = self._planned if trial.unit == "epoch" else None
        planned = checks.planned_steps(trainer) if trial.unit == "step" else planned
        starts = {"step": trainer.global_step, "token": self._tokens}.get(trial.unit, checks.first_epoch(trainer))
        of: int | str | None = self._of
        if of is None and not shards.sharded(trainer):
            of = trial.signer(resuming.mark(trainer.lightning_module))
        reporter.begin(planned, trainer.lightning_module, starts, of)
        checks.check_start(trainer, trial)
        if resuming.outside(trainer):
            reporter.hint_at_lack("module")
        if self._fresh.source is None:
            self._foresee(trainer)
        if checks.keeps_best_itself(trainer, self.monitor):
            reporter.advise_best(f"ModelCheckpoint(monitor={self.monitor!r})", "epoch", file=True)
        running_best = checks.running_best(trainer, trial, self.monitor)
        plateau = checks.plateau_left_out(trainer, trial)
        for sentence in (checks.advice(trainer, trial), checks.requeues(trainer), running_best, plateau):
            if sentence is not None:
                reporter.advise(sentence)
        if trial.id > 0 and (sentence := checks.loud(trainer, self._homes)) is not None:
            trial.hint(sentence, "loud")
        return reporter.verdict is not None

    def _foresee(self, trainer: Any) -> None:
        """Raise InvalidInput if the goal's metric comes from validations and none will run; warn if that is likely."""
        found = checks.no_validation(trainer, self.monitor)
        if found is None or not (self._validates or self.monitor.startswith("val")):
            return
        why, how = found
        if trainer.enable_validation and trainer.check_val_every_n_epoch is None and self.trial.horizon is not None:
            self._reporter.advise(
                f"{why}. haltune validates at the end of each trial, so none is stopped or paused before.", "validation"
            )
            return
        sentence = f"The metric {self.monitor!r} is one of validations, but none will run in this fit: {why}."
        without = checks.of_lightning(trainer.lightning_module.validation_step) and checks.logs_in_training(trainer)
        if self._validates or not (without or checks.logged_in_training(trainer, self.monitor)):
            raise InvalidInput(f"{sentence} {how}; or name a training metric, HaltuneCallback(trial, monitor='name').")
        self._reporter.advise(sentence, "validation")

    def _position(self, trainer: Any) -> float | None:
        """Return the position in the study's unit; see `checks.epochs_done`."""
        unit = self.trial.unit
        if unit != "epoch":
            return float(trainer.global_step if unit == "step" else self._tokens)
        where = checks.epochs_done(trainer)
        return where if where is None or self._planned is None else min(where, self._planned)

    def _logs(self, trainer: Any) -> bool | None:
        """Return whether to report this step: Lightning logs its training metric, or it is the last step of the study.

        None if steps are not reported; False at the end of an epoch, which shows whether the metric is logged by steps.
        """
        trial = self.trial
        goal, horizon = trial.goal, trial.horizon
        noisy = goal.smooth is not None or goal.rank_by is not None
        if not (noisy or trial.unit != "epoch" or horizon == 1) or self._reporter.measures.goals:
            return None
        if self._validates or self._fresh.source == VALIDATION or checks.accumulates(trainer) or silent(trainer):
            return None
        if trial.unit == "epoch" and not math.isfinite(trainer.num_training_batches):
            return None
        if internals.logs_step(trainer):
            return True
        ends = horizon is not None and (self._position(trainer) or 0.0) >= horizon
        return ends if ends or at_boundary(trainer) else None

    def _find(self, trainer: Any, phase: str) -> None:
        logged = trainer.callback_metrics
        value = self._fresh.take(phase, logged)
        if value is not None:
            where = self._position(trainer)
            updates = None if checks.schedules_accumulation(trainer) else trainer.global_step - self._steps_before
            self._found = _Found(value, where, self._reporter.clock.lap(), updates, self._others(logged))

    def _others(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        """Return the other metrics that reports need; by steps, that of rank_by= comes only after a validation."""
        measures = self._reporter.measures
        return {n: logged[n] for n in measures.others if n in logged and not (self._by_step and n in measures.ranked)}

    def _report(self, trainer: Any, phase: str, over: float | None = None, within: bool = False) -> None:
        """Report the found value on rank 0, and stop on all ranks. Every rank calls this.

        over: see `Reporter.heed`. within: the epoch continues, and a pause is saved now.
        """
        found, self._found, self._due = self._found, None, False
        logged = dict(trainer.callback_metrics)  # reading may be a collective, so all ranks read
        ranks, reporter = ranks_of(trainer), self._reporter

        @cache
        def why_not() -> str | None:
            """Return why a pause here would not be exact. It may read all data, so only a fit that may end asks."""
            why = resuming.not_here(trainer, self._validated, self._drew)
            if why is None and self._snapshot is not None and not at_boundary(trainer):
                return self._snapshot.not_within(trainer)
            return why

        self._evaluated = self._weights if self._fresh.source == VALIDATION else {}

        def question() -> tuple[bool, bool, bool, str | None]:
            """Return whether the fit should end, whether to save its state first, and what rank 0 found, and where."""
            if found is not None and found.epoch is None:
                reporter.warn_once("length", f"A value of {self.monitor!r} is not reported: {_NO_LENGTH}")
            elif found is not None and found.epoch is not None:
                news = self._fresh.all(TRAINING if self._by_step else phase, logged)
                fresh = news if reporter.record == "all" or self._by_step else {}
                metrics = scalars({**found.others, **self._others(logged), **fresh})
                reporter.look_ahead(found.epoch)
                reporter.report(
                    found.value, found.epoch, metrics, lambda: self._need(trainer), found.lap, updates=found.updates
                )
            if self._ends_early and (reporter.pausing or reporter.waits):
                reporter.decline(
                    "its fit ends where it would pause, before the trial's last epoch, and a resumed fit would "
                    "continue where the program starts another one, perhaps with a new optimizer",
                    always=True,
                )
            elif over is None and found is not None and reporter.waits and why_not() is None:
                reporter.heed(found.epoch)
            else:
                reporter.heed(over)
            if trainer.should_stop and not self._ends:
                reporter.ends_by_itself()
            if not within and (self._validations or not trainer.enable_validation):
                epochs = "the first epoch" if self._epochs == 1 else f"the first {self._epochs} epochs"
                self._need_a_value(trainer, logged, f"in {epochs}", _EPOCHS_WITHOUT_VALUE)
            return reporter.over, reporter.saves, found is not None, self._fresh.source

        stops, saves, has, self._fresh.source = ranks.once(question)
        why = None
        if stops and saves:  # ranks may differ in their data and in the memory of their callbacks
            why = ranks.first_reason(why_not)
            lost = checks.first_error(ranks, partial(self._check, trainer) if why is None and not self._saved else None)
            stops, saves = ranks.once(lambda: self._checked(why, lost))
        self._behind.commit(wait=stops)
        if self._by_step:
            self._fresh.before(TRAINING, logged)
        if stops and saves and within and why is None:
            self._save(trainer, ranks)
            stops, self._saved = ranks.once(lambda: (reporter.over, reporter.saves))  # saving may have failed
            saves = False
        if stops and (not saves or why is None):
            self._ends = trainer.should_stop = True
            if within and not self._quiet:  # EarlyStopping needs a validation metric at the end of the epoch
                stopping = trainer.early_stopping_callbacks
                self._quiet = [(c, internals.check_early_stopping(c, False)) for c in stopping]
        rare = (trainer.check_val_every_n_epoch or 1) > 1  # perhaps not in the last epoch
        if has and (rare or reporter.trial.goal.of == "best"):
            self._behind.commit()
            behind = self._behind if self._background and ranks.alone and not shards.sharded(trainer) else None
            checkpoint.save(trainer, reporter, ranks, self._evaluated, best_epoch=True, behind=behind)

    def _checked(self, why: str | None, lost: Exception | None) -> tuple[bool, bool]:
        """Check on rank 0 a pause that is not saved yet; return whether the fit should end, and whether to save first.

        why, lost: the reason and the error of the first rank with one.
        """
        reporter = self._reporter

        def check() -> None:
            if lost is not None:
                raise lost

        if reporter.pausing and not self._saved:  # after a save within, hooks of the end may have changed what it saved
            if why is None:
                reporter.attempt(check)  # much may have changed since a PAUSE within
            else:
                reporter.advise(
                    f"This fit cannot resume exactly from here: {why}. Trials pause at the next possible point, at the "
                    "latest at the end of the epoch.",
                    "within",
                )
        return reporter.over, reporter.saves

    @property
    def _ends_early(self) -> bool:
        """True if this fit ends here by its own plan, and another one may follow in the trial."""
        trial = self.trial
        horizon = math.inf if trial.horizon is None else trial.horizon
        return trial.planned is not None and trial.planned <= trial.epoch < horizon

    def _sign(self, trainer: Any) -> None:
        """State that the weights are this trial's: the program may keep them in an object or a file."""
        if not shards.sharded(trainer):
            ranks_of(trainer).first(lambda: self.trial.sign(resuming.mark(trainer.lightning_module)))

    def _need(self, trainer: Any) -> int:
        """Return the bytes of a checkpoint. Raises an error if none can be made, loaded again, or resumed exactly."""
        self._check(trainer)
        return checkpoint.bytes_needed(trainer, ranks_of(trainer))

    def _check(self, trainer: Any) -> None:
        """Raise NotSupported if no state of this fit resumes exactly."""
        if (why := self._beginning.never(trainer)) is not None:
            raise NotSupported(why)
        if self._snapshot is not None and not shards.sharded(trainer):
            self._snapshot.check(trainer)

    def _check_end(self, trainer: Any, logged: Mapping[str, Any]) -> None:
        if self._by_step and self._reporter.silent:
            raise InvalidInput(
                f"{self.monitor!r} was logged but never reported, because Lightning logs every "
                f"{trainer.log_every_n_steps} steps, more than this fit has. Reduce Trainer(log_every_n_steps=)."
            )
        self._need_a_value(trainer, logged, "in this fit")
        if not self._reporter.stopping:
            checks.check_end(trainer, self.trial, self._trained)

    def _need_a_value(self, trainer: Any, logged: Mapping[str, Any], when: str, patience: int = 1) -> None:
        rank_by, validated = self.trial.goal.rank_by, self._validations or not trainer.enable_validation
        waits = patience > 1  # for what the program logs in some epochs
        if rank_by is not None and validated and self._reporter.verdict is None and rank_by not in logged:
            if waits and checks.logged(trainer, rank_by):
                return
            raise unranked(rank_by, logged, when, f"Log it, self.log({rank_by!r}, ...)")
        if not self._reporter.silent or self._by_step or (waits and checks.logged(trainer, self.monitor)):
            return
        if self._epochs >= patience or (self._epochs and nearest(self.monitor, logged, 0.9) is not None):
            if self.monitor in logged:
                raise InvalidInput(f"{self.monitor!r} was logged but never reported: {_NO_LENGTH}")
            log = f"self.log({self.monitor!r}, ...)"
            why, how = checks.no_validation(trainer, self.monitor) or ("none ran", "Let a validation run")
            how = f"{how}, because {why}; or log it in training, {log}"
            raise missing(self.monitor, logged, when, f"Log it, {log}" if self._validations else how)


def _tell_loggers(trainer: Any, reporter: Reporter) -> None:
    """Log the end of the trial with each logger of the Trainer. A failing logger does not break the training.

    Lightning itself logs a stopped training as a success, because it is stopped by the Trainer's flag.
    """
    metrics, reason = ending_metrics(reporter)
    for logger in trainer.loggers:
        with suppress(Exception):
            logger.log_metrics(metrics, step=trainer.global_step)
        with suppress(Exception):
            experiment = logger.experiment
            summary: Any = getattr(experiment, "summary", None)
            if hasattr(summary, "__setitem__"):
                summary["haltune_reason"] = reason
            elif hasattr(experiment, "add_text"):
                # TensorBoard shows only a run's last table of hyperparameters: another one would hide the user's
                experiment.add_text("haltune_reason", reason, trainer.global_step)
                logger.hparams["haltune_reason"] = reason
            else:
                logger.log_hyperparams({"haltune_reason": reason})
        with suppress(Exception):
            logger.save()
