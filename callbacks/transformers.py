"""The callback for the Trainer of Hugging Face's transformers, and its hyperparameter search.

It reports after every evaluation during training (of several sets: after the last one), but not after
`trainer.evaluate()` alone or eval_on_start. A training metric is reported at every log of the Trainer (logging_steps).
The position is in the study's unit: state.epoch (with fractions), the optimizer's steps, or the tokens seen. The
training can stop and pause within an epoch. After an exception the Trainer calls no callback, so keep the training
inside `with trial:`. At a pause, the Trainer writes one of its checkpoints, with the random state, and haltune moves it
to the trial.

In one process, Ctrl-C and SIGTERM wait for the next report, and the state is saved there. In a distributed training
every rank makes a callback. Rank 0 reports, and all ranks follow its decisions; signals do not wait there.
"""

from __future__ import annotations

import math
import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haltune._utils.code import mentioned
from haltune._utils.interruption import Interruption, caller, variables
from haltune.display import one_line
from haltune.errors import InvalidInput, NotSupported
from haltune.hints import with_hints
from haltune.log.metric_names import direction
from haltune.log.problem import Budget, Problem
from haltune.ranks import torch_ranks
from haltune.space import Space
from haltune.study import Study, Trial
from haltune.study.loops import warn_of_ranks

from . import fsdp, trainer_state
from .base import Reporting
from .changes import fingerprint
from .loop import other_ranks
from .reporter import missing, need_same_configuration, two_callbacks, unranked
from .sharded import apart
from .trainer_arguments import GOALS, arranged, check, check_read, horizon_of
from .trainer_internals import (
    continue_callbacks,
    diverged,
    evaluates_more,
    planned_length,
    room_needed,
    sharding_of,
    steps_in_epoch,
    still_to_fall,
)
from .trainer_state import Unsaved

if TYPE_CHECKING:
    from transformers import TrainerCallback as _Base
else:
    _Base = object

__all__ = ["HaltuneCallback", "hyperparameter_search"]

_EPOCHS_WITHOUT_VALUE = 2  # the most epochs without an evaluation, if neither the Trainer nor a callback evaluates
_LOGS_WITHOUT_VALUE = 3  # the most training logs without the goal's metric
_STARTED = "_haltune"  # attribute of a state: a HaltuneCallback has started its training
_DATA = " and Trainer(eval_dataset=held_out)"
_EVALUATE = "Write TrainingArguments(eval_strategy='epoch'){}, or judge the training loss, Minimize('train_loss')"
_RETRY = (
    "The Trainer continues with the same model, so its value is of both trainings. To avoid this, set a "
    "per_device_train_batch_size= that fits, and auto_find_batch_size=False."
)
GO_ON, END, SAVE = "go on", "end", "save"  # decisions of rank 0 for all ranks


class HaltuneCallback(Reporting, _Base):  # type: ignore[misc, unused-ignore]
    """Callback that reports the goal's metric after every evaluation, and ends the training at a stop or a pause.

    A training metric is reported at every log. The metric is a training metric if it is "train_loss", which the Trainer
    logs as "loss", if the goal has `rank_by` or `smooth`, or if the Trainer does not evaluate. Its name is that in the
    Trainer's log, such as "loss" or "reward". Minimize("loss", smooth=100, rank_by="eval_loss") judges by the training
    loss and ranks full trainings by evaluations, which can be rare. The Trainer then also logs at each evaluation and
    at the last step.

    With save_only_model or save_strategy="best" a pause is declined, with one warning. Under FSDP and DeepSpeed's ZeRO
    every rank writes its part, and `consolidate` (haltune.callbacks.sharded) makes one file from such a checkpoint.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: The metric's name in the Trainer's log, with or without "eval_" or "train_". Default: None, the goal's
            metric.
        verbose: Print a line for every report. Default: False.
        record: "all" stores all scalars logged since the last report, "monitor" only this one. Default: "all".

    Raises:
        InvalidInput: If `trial` is not a trial, if the metric is a vector or was never logged, if the training has two
            HaltuneCallbacks, if the study counts tokens and the Trainer does not, or if `rank_by` is set without
            evaluations.
        NotSupported: If a trial cannot resume on another number of ranks.

    Example:
        ::

            import torch
            from transformers import Trainer, TrainingArguments

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.transformers import HaltuneCallback
            from haltune.policies import RandomSearch

            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(3, 1)

                def forward(self, x, labels):
                    out = self.layer(x).squeeze(-1)
                    return {"loss": (out - labels).pow(2).mean(), "logits": out}

            rows = [{"x": x, "labels": x.sum()} for x in torch.randn(16, 3)]
            problem = Problem(Space({"lr": Float(0.01, 0.1)}), Minimize("eval_loss"), max_epochs=2)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    arguments = TrainingArguments(
                        f"run-{trial.id}", num_train_epochs=trial.max_epochs, eval_strategy="epoch",
                        learning_rate=trial.config["lr"], report_to="none",
                    )
                    trainer = Trainer(Net(), arguments, train_dataset=rows, eval_dataset=rows,
                                      callbacks=[HaltuneCallback(trial)])
                    trainer.train(resume_from_checkpoint=trial.checkpoint)
    """

    _homes = ("transformers.trainer_callback",)
    _base = "TrainerCallback"
    _counts = ("epoch", "step", "token")
    _install = 'pip install "transformers[torch]"'
    _hint = "Call trainer.train(resume_from_checkpoint=trial.checkpoint)"

    def _setup(self) -> None:
        self._training = False
        self._start()

    def _start(self, step: int = 0) -> None:
        self._first_step = step  # optimizer steps before this training
        self._sharding: str | None = None  # what spreads the model over ranks
        self._unable: str | None = None  # why its checkpoints do not have the whole state
        self._steps: int | None = None  # optimizer steps in a pass over the data; None: they have no length
        self._pass_began = step  # steps before the present pass over the data
        self._passes = 0  # ended passes over the data
        self._epochs = 0  # epochs started in this training
        self._may_evaluate = False  # code of the program names evaluations, which may be rare
        self._in_step = True  # from the start of a step or an epoch to its end, after which the Trainer logs
        self._logged: dict[str, float] = {}  # since the last report
        self._by_log = False  # the goal's metric is a training metric, reported at logs
        self._unreported: tuple[float, float] | None = None  # (value, position) to report with an evaluation
        self._logs = 0  # training logs of the Trainer
        self._names: set[str] = set()  # names in the training logs
        self._later = False  # the step is logged at the end of its epoch, with the evaluation there
        self._evaluated = 0  # the last evaluated step
        self._of_sets: dict[str, Any] = {}  # metrics of this evaluation, of the sets so far
        self._reported = step  # the last step whose value was reported
        self._cut = False  # this callback ended the training
        self._seen: set[str] = set()  # names of all evaluations
        self._keeps_epoch = False  # the last value is the trial's best, so the state is to be kept
        self._unsaved: Unsaved | None = None
        self._cannot_save: str | None = None  # the reason, if a pause is to be declined after the other callbacks
        self._weights_at, self._weights = -1, ""  # step and fingerprint of the weights that were evaluated last
        self._swaps = self._averages = False  # evaluated weights are not the model's: now, or at some evaluation
        self._takes = self._asked = False  # the next checkpoint is for the trial; haltune requested it
        self._saves = self._final = False  # that checkpoint is to resume from; it is the last one and kept
        self._waits = False  # the state to resume from is to be saved after all callbacks have seen the epoch's end

    # the hooks, in the Trainer's order

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if vars(state).get(_STARTED):  # each training has its own state
            raise two_callbacks("the Trainer")
        vars(state)[_STARTED] = True
        retries, self._training = self._training, True  # a training that failed is tried again, with a smaller batch
        self._start(state.global_step)
        # callbacks get neither the Trainer nor the checkpoint that it loads. Without them, EarlyStoppingCallback would
        # forget its count, and a trial could continue another trial's state
        given = variables(caller("train", "transformers."))
        trainer, path = given.get("self"), given.get("resume_from_checkpoint")
        loaded = self._loaded(state, path)
        continue_callbacks(state, trainer)
        if self.trial.unit == "token" and args.include_num_input_tokens_seen in ("no", False):
            raise InvalidInput(
                "The study counts tokens, and this Trainer does not. Set TrainingArguments("
                "include_num_input_tokens_seen=True)."
            )
        self._sharding = sharding_of(trainer, args)
        held = getattr(trainer, "accelerator", None)
        self._unable = fsdp.deepspeed_lacks(held) if self._sharding == "DeepSpeed" else None
        self._by_log = self._of_training(args)
        if self._by_log:
            self._check_logs(args, state)
        self._check_evaluations(args, state, trainer)
        self._advise_best(args)
        self._steps = steps_in_epoch(args, others.get("train_dataloader"))
        planned = planned_length(self.trial.unit, args, state, self._steps)
        position: float | None = 0.0
        if state.global_step:
            unknown = self._steps is None and self.trial.unit == "epoch"
            position = None if unknown else self._position(args, state)
        model = others.get("model")
        of = loaded["trial"]["id"] if loaded else torch_ranks().once(lambda: self.trial.signer(fingerprint(model)))
        if retries and position is not None:
            torch_ranks().once(lambda: self.trial.restart(position, _RETRY))
        torch_ranks().once(lambda: self._reporter.begin(planned, model, position, of))
        if loaded:
            self._check_ranks(loaded)
            self.trial.restores_randomness()  # the Trainer does, when its first epoch starts
        if trainer is not None:
            if loaded:
                fsdp.load_optimizers(held, [trainer.optimizer], [trainer.model], Path(str(path)))
                fsdp.load_buffers(Path(str(path)), [trainer.model])
            self._watch(trainer, loaded)
        control.should_training_stop |= torch_ranks().once(lambda: self._reporter.verdict is not None)
        # several ranks would not notice a signal in the same epoch
        self._reporter.defer(Interruption.within("train", "transformers.", bears=torch_ranks().alone))
        if (scheduler := others.get("lr_scheduler")) is not None:
            # no public name says whose it is; without it, an argument would be named that the program does not use
            made = getattr(trainer, "_created_lr_scheduler", True)
            self._reporter.schedule = partial(still_to_fall, args, state.max_steps, weakref.ref(scheduler), made)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._in_step = True
        late = args.eval_strategy == "no" and not self._may_evaluate and self._epochs >= _EPOCHS_WITHOUT_VALUE
        self._need_a_value(late)
        self._epochs += 1

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._in_step = True
        self._need_a_value(late=False)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._in_step = False
        horizon = self.trial.horizon
        ends = horizon is not None and self._position(args, state) >= horizon
        # random numbers of an evaluation at the end of the epoch belong to the state that a pause saves there
        ends_epoch = self._steps is not None and state.epoch % 1 == 0
        self._later = self._by_log and args.eval_strategy == "epoch" and ends_epoch
        # otherwise it evaluates at the end of its epoch, after the hooks there
        cuts = (
            args.eval_strategy == "epoch" and (self._by_log or state.global_step < state.max_steps) and not ends_epoch
        )
        if ends and (args.eval_strategy == "steps" or cuts):
            control.should_evaluate = True  # which ends the training
        if self._by_log:
            ends |= state.global_step >= state.max_steps
            control.should_log = not self._later and (control.should_log or control.should_evaluate or ends)
        if control.should_evaluate:
            self._reporter.clock.validating()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._in_step = False
        if state.global_step > self._pass_began:  # not in an epoch that was skipped to reach a checkpoint
            self._passes, self._pass_began = self._passes + 1, state.global_step
        if self._by_log:
            control.should_evaluate &= not (self._cut or self._evaluated == state.global_step)
            control.should_log |= control.should_evaluate or self._later
        elif self._cut and self._evaluated == state.global_step:  # at the last step of the study, within an epoch
            control.should_evaluate = False
        if control.should_evaluate:
            self._reporter.clock.validating()
        if self._waits:
            self._waits, self._saves, self._takes = False, True, True
            written = control.should_save or Path(args.output_dir, f"checkpoint-{state.global_step}").exists()
            self._asked, control.should_save = not written, True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        numbers = {k: v for k, v in (logs or {}).items() if isinstance(v, (int, float)) and k != "epoch"}
        self._logged.update(numbers)
        # only the Trainer's own training log, after which the state can be saved; a user's log may come within a step
        if "loss" not in numbers or not self._training or self._in_step:
            return
        self._names |= self._logged.keys()
        self._logs += 1
        name = next((n for n in self._in_training if n in self._logged), None)
        if not self._by_log or name is None:
            return
        value = math.nan if name == "loss" and diverged() else self._logged[name]
        self._unreported = value, self._position(args, state)
        if not control.should_evaluate:  # otherwise report with the metrics of the evaluation
            self._decide(args, state, control, others, {})

    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        step = state.global_step
        if self._training and step != self._weights_at:  # the first batch of an evaluation
            # callbacks get the model of train(); without the evaluated one, other weights would be kept as the best
            evaluates = variables(caller("evaluation_loop", "transformers.")).get("self")
            model = others.get("model") if evaluates is None else evaluates.model
            self._weights_at, self._weights = step, fingerprint(model)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any) -> None:
        if not self._training or state.global_step <= self._first_step:
            return  # evaluate() outside train(), or eval_on_start
        names = torch_ranks().once(lambda: list(metrics))  # a program may compute some on rank 0 alone
        self._of_sets |= {name: metrics.get(name, math.nan) for name in names}
        if evaluates_more():
            return
        metrics, self._of_sets = self._measured(self._of_sets), {}
        self._reporter.clock.validated()
        self._seen |= metrics.keys()
        self._evaluated = state.global_step
        if self._weights_at == state.global_step and not self._first_step:
            self.trial.sign(self._weights)  # in a resumed training, an average may have those with which others start
        name = next((n for n in _in_evaluations(self.monitor) if n in metrics), None)
        if self._unreported is None and name is not None and not (self._by_log and self._names & {*self._in_training}):
            self._by_log = False  # the metric was in no log
            self._unreported = metrics[name], self._position(args, state)
        if self._unreported is not None and (not self._by_log or not self._unranked(metrics)):
            self._decide(args, state, control, others, metrics)

    def _measured(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of an evaluation of all sets."""
        return metrics

    def _decide(self, args: Any, state: Any, control: Any, others: Any, metrics: Mapping[str, Any]) -> None:
        """Report the pending values and carry out the decision. metrics: of an evaluation."""
        ends = self._ends(state, control)
        what, takes, self._waits = torch_ranks().once(lambda: self._report(metrics, args, state, others, ends))
        self._unreported = None
        self._reported = state.global_step
        self._takes, self._asked = takes, what == SAVE and not control.should_save
        control.should_save |= what == SAVE
        self._end(control, what == END)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        source = Path(args.output_dir, f"checkpoint-{state.global_step}")
        written = None if self._unsaved is None else self._unsaved.written(source)
        keeps = self._takes or args.load_best_model_at_end
        self._swaps = keeps and self._other_weights(state, others.get("model"), written)
        self._averages |= self._swaps
        unwritten: str | None = None
        if self._unsaved is not None and source.is_dir():
            place = {
                "passes": self._passes, "pass_began": self._pass_began, "logged": self._logged, "steps": self._steps,
            }  # fmt: skip
            try:
                self._unsaved.write(source, self._within(state), place, written)
            except OSError as error:
                unwritten = f"a part of its state could not be written ({one_line(error)})"
        ended = control.should_training_stop or state.global_step >= state.max_steps
        if ended and self._loads_another(args, state) and self._reported == state.global_step:
            self._final = True  # after the fit, the model is that of another step
            self._takes = self._takes or torch_ranks().once(lambda: self._reporter.keeps)
        if self._swaps and self._takes and (self._keeps_epoch or self._final):
            self._advise_other_weights()
        if self._takes and self._reported == state.global_step:
            self._takes = False
            fsdp.write_buffers(source, [others["model"]], self.trial)
            saves = torch_ranks().once(lambda: self._saves and self._reporter.saves)
            # each has written its part; what callbacks and data remember may differ between ranks
            lost = torch_ranks().first_reason(lambda: unwritten or self._lost(args, state) if saves else None)
            ends = self._ends(state, control)  # by a later callback
            self._end(control, torch_ranks().once(lambda: self._take(args, state, ends, lost)))

    def _end(self, control: Any, whether: bool) -> None:
        self._cut |= whether
        control.should_training_stop |= whether

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._training:
            self._training = False
            self._need_a_value(late=state.global_step > self._first_step)
            if self._reported != state.global_step:
                self._reporter.trained = self._position(args, state)
            self.trial.sign(fingerprint(others.get("model")))
            if torch_ranks().once(lambda: self._reporter.keeps):
                fsdp.warn_of_buffers([others["model"]], self.trial)
            torch_ranks().once(lambda: self._finish(args, state, others))
            self._reporter.leave()

    # on rank 0

    def _ends(self, state: Any, control: Any) -> bool:
        """Return whether another callback ends this training before its last step."""
        return bool(control.should_training_stop and state.global_step < state.max_steps)

    def _epoch(self, args: Any, state: Any) -> float:
        """Return the trained epochs.

        If the data have no length, the Trainer assumes max_steps for an epoch, but a pass ends earlier or never. Then
        an epoch is the part between two evaluations, or a pass.
        """
        if self._steps is not None:
            return float(state.epoch or 0.0)
        if args.eval_strategy == "steps":
            return float(state.global_step / state.eval_steps)
        inside = state.global_step - self._pass_began
        return float(self._passes + inside / (inside + 1))

    def _position(self, args: Any, state: Any) -> float:
        """Return the position of the training in the study's unit."""
        epoch, tokens = self._epoch(args, state), getattr(state, "num_input_tokens_seen", 0)
        return self._reporter.position(epoch=epoch, step=state.global_step, token=tokens)

    def _of_training(self, args: Any) -> bool:
        """Return whether the goal's metric is a training metric, by its name."""
        goal, name = self.trial.goal, self.monitor
        if name.startswith("eval_") or self._reporter.measures.goals:
            return False
        noisy = goal.smooth is not None or goal.rank_by is not None
        return name.startswith("train_") or noisy or args.eval_strategy == "no"

    @property
    def _in_training(self) -> tuple[str, str]:
        """The names that the metric can have in the training logs."""
        return self.monitor.removeprefix("train_"), self.monitor

    def _check_logs(self, args: Any, state: Any) -> None:
        """Raise InvalidInput if rank_by= is set without evaluations; warn if a trial has one log only."""
        rank_by = self.trial.goal.rank_by or ""
        if rank_by.startswith("eval_") and args.eval_strategy == "no":
            raise InvalidInput(
                f"rank_by={rank_by!r} needs evaluations, and this Trainer makes none. Set TrainingArguments("
                f"eval_strategy='steps', eval_steps={state.max_steps}) for one at the end."
            )
        rare = args.logging_strategy == "steps" and state.logging_steps >= state.max_steps
        if rare and "loss" in self._in_training:
            self._reporter.advise(
                f"This Trainer logs {self.monitor!r} every {state.logging_steps} steps and trains {state.max_steps}. "
                "So a trial is judged only at its end and at evaluations. Reduce TrainingArguments(logging_steps=).",
                "logs",
            )

    def _unranked(self, metrics: Any) -> bool:
        """Return whether the metric of rank_by= is missing both in `metrics` and in the training logs."""
        rank_by = self.trial.goal.rank_by
        return rank_by is not None and not {*_in_evaluations(rank_by)} & {*metrics, *self._names}

    def _report(self, metrics: Any, args: Any, state: Any, others: Any, ends: bool) -> tuple[str, bool, bool]:
        """Report the pending values; return the decision, and whether to take a checkpoint of this step.

        The third is whether the state to resume from is to be saved at the end of the epoch, which this step ends: what
        callbacks do there, such as a change of weights or an end of the training, does not happen again.
        """
        assert self._unreported is not None

        def need() -> int:
            return room_needed(args.output_dir, others["model"], others["optimizer"], self._sharding is not None)

        wanted = self._reporter.measures.others
        logged = self._logged | {n: metrics[f"eval_{n}"] for n in wanted if f"eval_{n}" in metrics}
        value, epoch = self._unreported
        self._reporter.report(value, epoch, logged, need, updates=state.global_step - self._first_step)
        self._reporter.heed(epoch)
        self._logged = {}
        if ends:
            self._reporter.ends_by_itself()
        best = self.trial.goal.of == "best"  # otherwise the end counts, which is reported in any case
        self._keeps_epoch = best and self._reporter.keeps_epoch
        last = ends or self._reporter.stopping or state.global_step >= state.max_steps
        self._final = last and not self._reporter.pausing and self._reporter.keeps
        none_written = self._no_checkpoint(args, others["optimizer"])
        self._saves = self._reporter.saves
        if self._saves and (lost := none_written or self._lost(args, state)) is not None:
            self._saves, self._cannot_save = False, lost
            if self._unsaved is None:
                self._decline(ends)
        waits = self._saves and not self._within(state) and self._pass_began != state.global_step
        self._saves &= not waits
        keeps = not self._saves and none_written is None and (self._keeps_epoch or self._final)
        if keeps and not self._reporter.attempt(lambda: self.trial.room_for(need()), keeps=True):
            self._keeps_epoch = self._final = False  # a save that is not the program's own must not end the training
        if none_written is None and (self._saves or self._keeps_epoch or self._final):
            return SAVE, True, waits
        takes = self._keeps_epoch and args.save_strategy == "best"  # if the Trainer saves its best, too
        ends_now = self._reporter.over and self._cannot_save is None and not waits
        return END if ends_now else GO_ON, takes, waits

    def _all_called(self, state: Any, control: Any) -> None:
        self._decline(self._ends(state, control))

    def _decline(self, ends: bool) -> None:
        """Decline a pause that cannot be saved. ends: another callback ends the training in this step."""
        lost, self._cannot_save = self._cannot_save, None
        if lost is not None and ends:
            self._reporter.ends_by_itself()
        elif lost is not None:
            self._reporter.decline(lost, always=True)

    def _take(self, args: Any, state: Any, ends: bool, lost: str | None) -> bool:
        """Move the checkpoint that the Trainer has just written to the trial; return whether the training ends now.

        lost: why it does not resume exactly, on any rank.
        """
        if ends:
            self._reporter.ends_by_itself()
        source = Path(args.output_dir, f"checkpoint-{state.global_step}")
        best = state.best_model_checkpoint and Path(state.best_model_checkpoint)
        moves = self._asked and args.save_total_limit is None and best != source
        keeps, self._keeps_epoch = self._keeps_epoch, False
        if self._saves and self._reporter.saves and lost is not None:
            self._saves = False  # callbacks have changed since
            self._reporter.decline(lost, always=True)

        def put(puts: Callable[[Path, Path], object], path: Path) -> None:
            fsdp.check(source)
            if self._unsaved is not None and not (source / trainer_state.FILE).is_file():
                raise OSError(f"{trainer_state.FILE} could not be written")
            puts(source, path)

        if keeps and not self._swaps:
            self._reporter.keep(lambda path: put(shutil.copytree, path), "")
        if (self._saves and self._reporter.saves) or (self._final and not self._swaps and self._reporter.keeps):
            puts = shutil.move if moves else shutil.copytree
            self._reporter.save(lambda path: put(puts, path), "", resumes_only=self._swaps)
        if moves:
            shutil.rmtree(source, ignore_errors=True)  # it still exists if moving failed or was not needed
        return self._reporter.over and not self._waits

    def _finish(self, args: Any, state: Any, others: Any) -> None:
        """End the fit. If the Trainer saved nothing at the end, keep the model without the optimizer."""
        trainer = None if self._unsaved is None else self._unsaved.trainer

        def write(path: Path) -> None:  # a folder that from_pretrained takes
            trainer.save_model(str(path), _internal_call=True)  # type: ignore[union-attr]  # not pushed to a hub

        able = trainer is not None and self._sharding is None and not self._loads_another(args, state)
        # it may have loaded its best
        swaps = self._averages if args.load_best_model_at_end else self._other_weights(state, others.get("model"))
        if able and swaps and self._reporter.keeps:
            self._advise_other_weights()
        able &= not swaps
        self._reporter.end_of_fit(write if able else None, "")

    # the state of the training

    def _loaded(self, state: Any, path: Any) -> dict[str, Any] | None:
        """Return haltune's file of the checkpoint that the training loaded; None without a checkpoint.

        Raises NotSupported if the checkpoint is not of this trial.
        """
        if not state.global_step or not isinstance(path, (str, Path)):
            return None
        found = trainer_state.read(str(path))
        if found is None:
            raise NotSupported(
                f"This fit of trial {self.trial.id} loaded {str(path)!r}, which names no trial of haltune's, so it may "
                f"continue the training of another configuration. {self._hint}. To start from other weights, load "
                "them into the model."
            )
        if found["trial"]["id"] == self.trial.id:
            need_same_configuration(self.trial, f"{str(path)!r}, a state", found["trial"]["config"], self._hint)
        self._passes, self._pass_began, self._logged = found["passes"], found["pass_began"], found["logged"]
        return found

    def _check_ranks(self, loaded: Mapping[str, Any]) -> None:
        """Warn that another number of ranks wrote the checkpoint. Raises NotSupported if the training cannot continue.

        The Trainer finds its epoch by the optimizer's steps, so an epoch needs as many of them as before.
        """
        wrote, ranks = loaded["ranks"], torch_ranks().size
        if wrote == ranks:
            return
        if self._sharding == "DeepSpeed":  # it may have loaded a part
            raise other_ranks(self.trial.id, wrote, ranks)
        if self.trial.unit == "epoch" and self._steps != loaded["steps"]:
            why = (
                f": an epoch has {self._steps} steps there, not {loaded['steps']} (keep the batch of all ranks "
                "together as large as before)"
            )
            raise other_ranks(self.trial.id, wrote, ranks, why)
        warn_of_ranks(self.trial, wrote, ranks)

    @property
    def _own(self) -> dict[str, Any]:
        """What a checkpoint holds about its trial."""
        return {"id": self.trial.id, "config": self.trial.configuration}

    def _watch(self, trainer: Any, loaded: Mapping[str, Any] | None) -> None:
        """Add a callback behind all others that keeps what the Trainer's checkpoint lacks."""
        for other in [c for c in trainer.callback_handler.callbacks if isinstance(c, Unsaved)]:
            trainer.remove_callback(other)  # of a training that failed
        self._unsaved = Unsaved(trainer, self.trial, self._own, loaded, self._all_called)
        trainer.add_callback(self._unsaved)
        if self._sharding is None and self._unsaved.outside:
            self._reporter.hint_at_lack("model")

    def _within(self, state: Any) -> bool:
        """Return whether the present pass over the data has not ended."""
        return bool(state.global_step % self._steps if self._steps else state.global_step > self._pass_began)

    def _lost(self, args: Any, state: Any) -> str | None:
        """Return why a training that paused now would not continue as if it had not; None if it would."""
        if args.save_only_model:
            return "with save_only_model=True the Trainer saves no optimizer to continue with"
        if self._unsaved is None:
            return None
        return self._unsaved.why_not(args, self._within(state), self._passes, self._steps is not None)

    def _no_checkpoint(self, args: Any, optimizer: Any) -> str | None:
        """Return why the Trainer writes no whole checkpoint when haltune asks for one; None if it does."""
        if args.save_strategy == "best":  # then the Trainer ignores requests to save
            return "with save_strategy='best' the Trainer saves at no other time (use 'epoch' or 'no')"
        if self._sharding == "FSDP" and not args.save_only_model and (lost := apart([optimizer])) is not None:
            return lost  # its own save would raise an error, and end the training
        return self._unable

    def _loads_another(self, args: Any, state: Any) -> bool:
        """Return whether the Trainer ends with the model of another step than that of the value that counts."""
        if not args.load_best_model_at_end or state.best_model_checkpoint is None:
            return False
        best = Path(state.best_model_checkpoint).name != f"checkpoint-{state.global_step}"
        return best and self.trial.goal.of == "last"

    def _other_weights(self, state: Any, model: Any, written: str | None = None) -> bool:
        """Return whether the last evaluation had other weights than the model that is saved, such as an average.

        written: the fingerprint of the weights in the checkpoint; None: they are the model's.
        """
        if self._by_log or self._weights_at != state.global_step:
            return False
        return (written or fingerprint(model)) != self._weights

    def _advise_other_weights(self) -> None:
        self._reporter.advise(
            "The evaluation has other weights than the model that the Trainer saves, such as an average, so no "
            "model is kept: it would not have the value of its trial. Save the evaluated model in your callback.",
            "kept",
        )

    # advice

    def _check_evaluations(self, args: Any, state: Any, trainer: Any) -> None:
        """Raise InvalidInput before the training if it will never evaluate, and only an evaluation has the metric."""
        if trainer is None:
            return
        parts = {type(part) for part in (trainer, *trainer.callback_handler.callbacks)}
        own = [kind for kind in parts if not kind.__module__.startswith(("transformers.", "trl.", "haltune."))]
        self._may_evaluate = any({"should_evaluate", "evaluate"} & mentioned(kind) for kind in own)
        if own:
            return  # the program may evaluate by itself
        delay = state.max_steps if args.eval_strategy == "steps" else args.num_train_epochs
        if args.eval_strategy != "no" and args.eval_delay > delay and not self._by_log:
            raise InvalidInput(
                f"The first evaluation comes after eval_delay={args.eval_delay:g} {args.eval_strategy.value}s. This "
                f"training has {delay:g}, so {self.monitor!r} is never logged. Reduce TrainingArguments(eval_delay=)."
            )
        logged = {"loss", "grad_norm", "learning_rate", "num_input_tokens_seen"}
        of_transformers = type(trainer).__module__ == "transformers.trainer"
        unknown = of_transformers and not logged & {*self._in_training}
        if args.eval_strategy == "no" and (self.monitor.startswith("eval_") or unknown) and self._reporter.silent:
            how = _EVALUATE.format(_DATA if trainer.eval_dataset is None else "")
            raise missing(self.monitor, sorted(logged), "because this training never evaluates", how, guess=False)

    def _advise_best(self, args: Any) -> None:
        """Advise of='best' if the Trainer keeps its best model and the study counts the last value."""
        goal = self.trial.goal
        if not args.load_best_model_at_end or goal.of == "best" or goal.rank_by or self._reporter.measures.goals:
            return
        better = f"{type(goal).__name__}({goal.metric!r}, of='best')"
        metric = str(args.metric_for_best_model)
        same = {*_in_evaluations(metric)} & {*_in_evaluations(self.monitor)}
        if same and (args.greater_is_better is True) == (goal.sign > 0):
            keeps, do = "the best model of a training", f"Write {better} in the study"
        else:
            keeps = f"the model with the best {metric!r}"
            do = (
                f"Set TrainingArguments(metric_for_best_model={self.monitor!r}, greater_is_better={goal.sign > 0}) and "
                f"write {better} in the study"
            )
        self._reporter.advise(
            f"load_best_model_at_end=True keeps {keeps}, but the study counts the last {self.monitor!r}. {do}, or "
            "leave load_best_model_at_end out.",
            "best",
        )

    def _need_a_value(self, late: bool) -> None:
        """Raise InvalidInput on all ranks if evaluations or logs lack the metric, or if it is late and none came.

        If a value waited for an evaluation that lacks the metric of rank_by=, report it without a verdict.
        """
        if (held := self._unreported) is not None:
            torch_ranks().once(lambda: self._reporter.report(*held, self._logged, judge=False))
            self._unreported, self._logged = None, {}
        rank_by = self.trial.goal.rank_by
        if rank_by is not None and self._by_log and self._seen and self._unranked(self._seen):
            how = "Return it from compute_metrics, there without 'eval_'"
            raise unranked(rank_by, self._seen - {"epoch"}, "in the first evaluation", how)
        names = self._seen | self._names if self._by_log else self._seen
        if names & {*_in_evaluations(self.monitor), *(self._in_training if self._by_log else ())}:
            return
        found = any(name.startswith("eval_") for name in self._seen)
        late |= self._by_log and self._logs >= _LOGS_WITHOUT_VALUE and self.monitor.startswith("train_")
        if not (found or late) or not torch_ranks().once(lambda: self._reporter.silent):
            return
        if self._by_log:
            when = "in the training logs" + (" and the first evaluation" if found else "")
            raise missing(self.monitor, names or self._logged, when, f"Log it, trainer.log({{{self.monitor!r}: ...}})")
        if found:
            how = f"Return it from compute_metrics, {{{self.monitor.removeprefix('eval_')!r}: ...}}"
            if self.monitor in self._names:
                goal = self.trial.goal
                alike = [name for name in sorted(self._seen) if direction(name) == goal.sign]
                if goal.rank_by is None and (by := next((n for n in alike if n.startswith("eval_")), None)):
                    how += f", or judge its values in training, {replace(goal, rank_by=by)!r}"
            raise missing(self.monitor, self._seen - {"epoch"}, "in the first evaluation", how)
        how = _EVALUATE.format(_DATA)
        raise missing(self.monitor, self._logged, "in this fit", how, guess=False)  # never the training loss


def _in_evaluations(metric: str) -> tuple[str, str]:
    """Return the names that a metric can have in evaluations."""
    return metric, f"eval_{metric}"


# Trainer.hyperparameter_search cannot be extended by a backend: the backends are a closed enumeration, which it checks
# when it sets a trial's parameters, names its folder and reports. So this is a function with the same arguments.

OBJECTIVE = "objective"
Objective = Callable[[dict[str, float]], float]


@with_hints
def hyperparameter_search(
    trainer: Any,
    hp_space: Space | Mapping[str, Any],
    compute_objective: Objective | None = None,
    n_trials: int | None = 20,
    direction: str = "minimize",
    hp_name: Callable[[Trial], str] | None = None,
    timeout: float | str | None = None,
    **study: Any,
) -> Any:
    """Search over the arguments of a Trainer; return the best run. It replaces `trainer.hyperparameter_search(...)`.

    Trials stop early, or pause and resume from the Trainer's checkpoints. Each trial sets its parameters in
    TrainingArguments, which are restored afterwards. A full training is `num_train_epochs` or `max_steps`. Each trial
    starts with the state that callbacks such as EarlyStoppingCallback had before the search.

    Args:
        trainer: A Trainer with `model_init=` that evaluates every epoch.
        hp_space: Parameter -> Float, Int, Choice or constant. Parameters that are not fields of TrainingArguments are
            for `model_init(trial)`, in `trial.config`. When the Trainer is made, it calls model_init with None.
        compute_objective: A function from a dict of metrics to a number. Default: None, that of the Trainer: the
            evaluation loss, or the sum of all other metrics.
        n_trials: Number of trials, including those of earlier calls on the same store; None, no limit.
            Default: 20.
        direction: "minimize" or "maximize". Default: "minimize".
        hp_name: A function hp_name(trial) that returns the name of the trial's folder. Default: None, "run-" and its
            number.
        timeout: Seconds after which the search ends, or a text such as "2h". Default: None, no limit.
        study: Further arguments of haltune.Study: store="search.db", seed=0, policy=..., min_epochs=...

    Returns:
        transformers.trainer_utils.BestRun: `run_id`, `objective`, `hyperparameters`; `run_summary` is the Study, whose
        `best.checkpoint` is the model.

    Raises:
        InvalidInput: If the Trainer has no model_init, epochs or evaluations, if a parameter is not read, or only when
            the Trainer is made, or if no trial has a value.
        NotSupported: If there are several directions, or with DeepSpeed.
        Exception: The error of a training, if none has succeeded before, or after max_failures errors in a row.

    Example:
        ::

            import torch
            from transformers import Trainer, TrainingArguments

            from haltune import Float
            from haltune.callbacks.transformers import hyperparameter_search

            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(3, 1)

                def forward(self, x, labels):
                    out = self.layer(x).squeeze(-1)
                    return {"loss": (out - labels).pow(2).mean(), "logits": out}

            rows = [{"x": x, "labels": x.sum()} for x in torch.randn(16, 3)]
            arguments = TrainingArguments("runs", num_train_epochs=2, eval_strategy="epoch", report_to="none")
            trainer = Trainer(None, arguments, train_dataset=rows, eval_dataset=rows, model_init=Net)
            best = hyperparameter_search(trainer, {"learning_rate": Float(1e-4, 1e-1, log=True)}, n_trials=2)
            print(best.hyperparameters, best.run_summary.best.checkpoint)
    """
    from transformers.trainer_utils import BestRun, default_compute_objective

    check(trainer, hp_space, direction)
    if "budget" in study:
        raise InvalidInput("Set n_trials= and timeout= instead of budget=, as in the Trainer's own search.")
    goal = GOALS[direction](OBJECTIVE)
    space = hp_space if isinstance(hp_space, Space) else Space(hp_space)
    horizon, unit = horizon_of(trainer.args)
    problem = Problem(space, goal, horizon, min_epochs=study.pop("min_epochs", 0), unit=unit)
    check_read(trainer, space)
    search = Study(problem, budget=Budget(trials=n_trials, time=timeout), **study)
    compute = compute_objective or default_compute_objective
    folder = Path(trainer.args.output_dir)
    for trial in search:
        with trial:
            name = f"run-{trial.id}" if hp_name is None else hp_name(trial)
            callback = _ObjectiveCallback(trial, compute)
            with arranged(trainer, trial, str(folder / name), callback):
                trainer.train(resume_from_checkpoint=trial.checkpoint)
    best = search.best_trial
    return BestRun(str(best.id), search.best_value, search.best_params, search)


class _ObjectiveCallback(HaltuneCallback):
    """Callback that reports compute_objective of the metrics of all evaluation sets."""

    def __init__(self, trial: Trial, compute: Objective) -> None:
        super().__init__(trial, OBJECTIVE)
        self._compute = compute

    def _measured(self, metrics: dict[str, Any]) -> dict[str, Any]:
        return {**metrics, OBJECTIVE: self._compute(dict(metrics))}

    def _advise_best(self, args: Any) -> None:
        """Advise nothing: the goal of this search is not the user's to change."""
