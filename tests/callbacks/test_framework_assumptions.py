"""What haltune assumes of frameworks beyond their documentation, checked on the installed versions.

A table for each framework. A row has the assumption, what does not work in haltune without it, and a check. So after an
upgrade of a framework, a failing test names what changed and what it breaks. The table of Keras is in
keras/keras_assumption_checks.py, because a process has only one backend.
"""

import inspect
import os
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from haltune._utils import learners
from haltune._utils.data import persistent
from haltune._utils.interruption import caller
from haltune.errors import NotSupported

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def holds(row, *seen):
    breaks, check = row
    assert check(*seen), f"Without it: {breaks}."


# Lightning. All of its private parts are used in callbacks/lightning/internals.py.

BATCHES, ACCUMULATED = 4, 2


@pytest.fixture(scope="module")
def lightning():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning.pytorch.callbacks import Callback, EarlyStopping
    from lightning.pytorch.loggers.logger import Logger
    from lightning.pytorch.plugins.environments import SLURMEnvironment
    from torch.utils.data import DataLoader
    from torchmetrics import MeanMetric

    from haltune.callbacks.lightning import VALIDATION, FreshMetrics, checkpoint, checks, internals, shards
    from haltune.ranks import Group

    seen = SimpleNamespace(steps=[], fresh=[], loads={}, order=[], sharded=shards._STRATEGIES)
    events = []
    say = events.append

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.mean = torch.nn.Linear(2, 1), MeanMetric()

        def training_step(self, batch, index):
            self.log("loss", loss := self.layer(batch).pow(2).mean())
            return loss

        def validation_step(self, batch, index):
            self.log("constant", 1.0)
            self.mean(1.0)
            self.log("mean", self.mean)

        def on_train_epoch_start(self):
            say("the module's epoch start")

        def on_train_batch_end(self, outputs, batch, index):
            self.log("late", float(index))
            say("the module's batch end")

        def on_train_epoch_end(self):
            self.log("last", 1.0)
            say("the module's epoch end")

        def on_validation_start(self):
            say("validation starts")

        def on_validation_end(self):
            say("validation ends")

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Loader(DataLoader):
        def __iter__(self):
            say("iter")
            return super().__iter__()

    class Logs(Logger):
        name, version = "logs", 0

        def log_metrics(self, metrics, step=None):
            say("logged")

        def log_hyperparams(self, *arguments, **named):
            pass

    class Spy(Callback):
        def setup(self, trainer, module, stage):
            trainer.callbacks = [self, *(c for c in trainer.callbacks if c is not self)]
            seen.environment = internals.cluster_environment(trainer)

        def on_fit_start(self, trainer, module):
            seen.given = internals.given_loaders(trainer), trainer.train_dataloader

        def on_train_start(self, trainer, module):
            seen.order.append("replaced list")
            seen.made = internals.loader_epoch(trainer)
            seen.loop = trainer.fit_loop
            seen.loads["default"] = internals.loads_anything()
            seen.validates = [internals.has_validation_data(trainer)]
            seen.fresh_metrics = FreshMetrics("constant")
            starts, validated = (lambda: say("batches start")), (lambda: say("validated"))
            step, ends = (lambda rest: self.step(trainer, rest)), (lambda: self.ends(trainer))
            internals.hook_batches(trainer, starts, step, validated, ends)

        def ends(self, trainer):
            say("the epoch ends")
            seen.last = "last" in trainer.callback_metrics

        def step(self, trainer, rest):
            say("step ends")
            progress = trainer.fit_loop.epoch_loop.batch_progress
            logged = "logged" in events[len(events) - events[::-1].index("the module's batch end") :]
            seen.steps.append(
                SimpleNamespace(
                    ready=progress.current.ready,
                    last=progress.is_last_batch,
                    fetched=trainer.fit_loop._data_fetcher.fetched,
                    accumulates=checks.accumulates(trainer),
                    theirs=trainer.fit_loop.epoch_loop._should_accumulate(),
                    logs=internals.logs_step(trainer),
                    logged=logged,
                    late=float(trainer.callback_metrics["late"]),
                )
            )
            rest()
            say("step over")

        def on_validation_start(self, trainer, module):
            seen.fresh_metrics.before(VALIDATION, trainer.callback_metrics)
            seen.fresh.append("constant" in seen.fresh_metrics.all(VALIDATION, trainer.callback_metrics))

        def on_validation_end(self, trainer, module):
            seen.modes = internals.modes_before_validation(trainer), module.training
            seen.resets, seen.metric = internals.metrics_to_reset(trainer), module.mean
            seen.fresh.append("constant" in seen.fresh_metrics.all(VALIDATION, trainer.callback_metrics))

        def on_train_end(self, trainer, module):
            kept = checkpoint._Kept(trainer.strategy.checkpoint_io)
            checkpoint._save(trainer, "", kept)
            seen.checkpoint = kept.checkpoint
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "saved")
                seen.failed = shards.write(trainer, None, path, Group(), {"optimizer_states"})
                seen.saved = torch.load(path, weights_only=False).keys()
            internals.unhook_batches(trainer)
            seen.left = vars(trainer.fit_loop.epoch_loop).keys() & {"run", "on_advance_end"}
            seen.left |= vars(trainer._logger_connector).keys() & {"on_epoch_end", "reset_results"}
            seen.left |= vars(trainer.strategy).keys() & {"save_checkpoint"}

    class Other(Callback):
        def on_train_start(self, trainer, module):
            seen.order.append("other")

    def trainer(*callbacks, **options):
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
        plain = {"max_epochs": 2, "num_sanity_val_steps": 0, "enable_checkpointing": False}
        return pl.Trainer(callbacks=list(callbacks), **quiet | plain | options)

    loader = seen.loader = Loader(torch.ones(2 * BATCHES, 2), batch_size=2)
    seen.slurm = SLURMEnvironment(auto_requeue=False)
    logged = {"logger": Logs(), "log_every_n_steps": 1, "accumulate_grad_batches": ACCUMULATED}
    trainer(Other(), Spy(), plugins=[seen.slurm], **logged).fit(Net(), loader, DataLoader(torch.ones(2, 2)))
    seen.events = [*events]

    class Asks(Callback):
        def on_train_start(self, trainer, module):
            seen.loads["anything"] = internals.loads_anything()
            seen.validates.append(internals.has_validation_data(trainer))
            seen.early = internals.check_early_stopping(trainer.early_stopping_callbacks[0], False)

    early = EarlyStopping("unlogged", check_on_train_epoch_end=True)
    seen.argument = "weights_only" in inspect.signature(pl.Trainer.fit).parameters
    trainer(Asks(), early).fit(Net(), loader, **{"weights_only": False} if seen.argument else {})
    internals.check_early_stopping(early, True)
    with pytest.raises(RuntimeError, match="unlogged"):
        trainer(early).fit(Net(), loader)
    return seen


def in_order(events, *names):
    """Whether each of these events, whenever the first one comes, is followed by the next one at some time."""
    places = [i for i, event in enumerate(events) if event == names[0]]
    for i in places:
        for name in names[1:]:
            if name not in events[i + 1 :]:
                return False
            i = events.index(name, i + 1)
    return bool(places)


def second_epoch(seen):
    start = [i for i, event in enumerate(seen.events) if event == "the module's epoch start"][1]
    return [e for e in seen.events[start:] if e in ("the module's epoch start", "batches start", "iter")]


LIGHTNING = {
    "run() of the epoch loop is called on the instance, between the module's epoch start and iter(loader)": (
        "the random state from which a trial paused within an epoch reads its batches again",
        lambda seen: second_epoch(seen) == ["the module's epoch start", "batches start", "iter"],
    ),
    "on_advance_end() is called on the instance, after the module's batch end, and validates": (
        "reports of training metrics by steps",
        lambda seen: (
            in_order(seen.events, "the module's batch end", "step ends", "step over")
            and in_order(seen.events, "validation starts", "validation ends", "step over")
            and [s.late for s in seen.steps] == 2 * [0.0, 1.0, 2.0, 3.0]
        ),
    ),
    "reset_results() is called on the instance, after the module's on_validation_end": (
        "a pause within an epoch would save the weights and metrics of a validation",
        lambda seen: in_order(seen.events, "validation starts", "validation ends", "validated", "step over"),
    ),
    "_results has the metric objects that a validation logs": (
        "the next validation would add to them, of a fit that resumes from a file of the program's",
        lambda seen: seen.resets == {id(seen.metric)},
    ),
    "a method set on the instance can be deleted again": (
        "a fit without a trial on the same Trainer",
        lambda seen: not seen.left,
    ),
    "_batches_that_stepped counts the steps of log_every_n_steps": (
        "reports of the steps that Lightning logs",
        lambda seen: all(s.logs == s.logged for s in seen.steps if not s.accumulates),
    ),
    "batch_progress and the Trainer's attributes say whether gradients are accumulated": (
        "pauses within an epoch, and reports by steps, with accumulate_grad_batches",
        lambda seen: [s.accumulates for s in seen.steps] == [s.theirs for s in seen.steps] == 4 * [True, False],
    ),
    "batch_progress.is_last_batch and current.ready say where the fit is in an epoch": (
        "positions within an epoch, and pauses at its end",
        lambda seen: [(s.ready, s.last) for s in seen.steps] == 2 * [(i, i == BATCHES) for i in (1, 2, 3, 4)],
    ),
    "_data_fetcher.fetched counts the batches of the epoch": (
        "a trial that resumes within an epoch would end it too early or too late",
        lambda seen: [s.fetched for s in seen.steps] == 2 * [1, 2, 3, 4],
    ),
    "_data_source has the loaders given to fit before the Trainer has them": (
        "exact resumption with a loader's own generator in the first epoch",
        lambda seen: seen.given[0] is seen.loader and seen.given[1] is None,
    ),
    "the validation loop's _data_source says whether a fit has validation data": (
        "the error for a fit that does not validate would not say what is missing",
        lambda seen: seen.validates == [True, False],
    ),
    "_last_train_dl_reload_epoch is the epoch in which the loaders were made": (
        "exact resumption with reload_dataloaders_every_n_epochs",
        lambda seen: seen.made == 0,
    ),
    "the fit loop says by _restarting, and from 2.6 by _resuming_from_checkpoint, that it resumes": (
        "batches and schedules of a trial that resumes at an epoch",
        lambda seen: (
            "_restarting" in vars(seen.loop)
            and ("_resuming_from_checkpoint" in vars(seen.loop)) == hasattr(seen.loop, "is_resuming")
        ),
    ),
    "callback_metrics has another tensor for each new value, and a view of the old one else": (
        "stale values would be reported, or equal ones would not",
        lambda seen: seen.fresh == 2 * [False, True],
    ),
    "trainer.callbacks can be replaced in setup": (
        "the random state would be restored after other callbacks have drawn",
        lambda seen: seen.order == ["replaced list", "other"],
    ),
    "the logger connector's on_epoch_end() is called on the instance, after the module's on_train_epoch_end": (
        "metrics logged there would be missing in reports",
        lambda seen: seen.last and in_order(seen.events, "the module's epoch end", "the epoch ends"),
    ),
    "the validation loop has the modes of the modules before it in _module_mode": (
        "modules in evaluation after a trial has resumed within an epoch",
        lambda seen: seen.modes == (dict.fromkeys(("module.", "module.layer", "module.mean"), True), False),
    ),
    "save_checkpoint collects the state and gives it to strategy.checkpoint_io, which can be replaced": (
        "whether a pause can be saved would be known only after the fit has ended",
        lambda seen: {"state_dict", "loops", "callbacks", "optimizer_states"} <= seen.checkpoint.keys(),
    ),
    "save_checkpoint calls strategy.save_checkpoint on the instance, with the state": (
        "a process that cannot write its part would leave the others waiting",
        lambda seen: seen.failed is None and "state_dict" in seen.saved and "optimizer_states" not in seen.saved,
    ),
    "EarlyStopping keeps check_on_train_epoch_end as _check_on_train_epoch_end": (
        "a stop within an epoch would end with the error of an EarlyStopping without a validation",
        lambda seen: seen.early is True,  # and where it is set to False, the fit ends without that error
    ),
    "_accelerator_connector has the cluster environment with one process, too": (
        "the warning about SLURM jobs that Lightning requeues",
        lambda seen: seen.environment is seen.slurm,
    ),
    "_run() has the argument weights_only of fit": (
        "pauses with hyperparameters that are no primitives",
        lambda seen: seen.loads == {"default": not seen.argument, "anything": True},
    ),
    "the strategies with sharded states have these names": (
        "a pause under one of them would not be declined",
        lambda seen: all(hasattr(strategies(), name) for name in seen.sharded),
    ),
    "AsyncCheckpointIO has the plugin that it wraps as checkpoint_io": (
        "a pause would be recorded before its file exists",
        lambda seen: isinstance(async_io().checkpoint_io, type(plain_io())),
    ),
}


def strategies():
    import lightning.pytorch.strategies

    return lightning.pytorch.strategies


def plain_io():
    from lightning.pytorch.plugins import TorchCheckpointIO

    return TorchCheckpointIO()


def async_io():
    from lightning.pytorch.plugins.io import AsyncCheckpointIO

    return AsyncCheckpointIO(plain_io())


@pytest.mark.parametrize("assumption", LIGHTNING)
def test_lightning(assumption, lightning):
    holds(LIGHTNING[assumption], lightning)


# Hugging Face's Trainer


@pytest.fixture(scope="module")
def transformers(tmp_path_factory):
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
    from transformers_nets import Net, trainer

    seen = SimpleNamespace(events=[], trainers=[], losses=[], kept=[])
    say = seen.events.append

    class Spies(Net):
        def forward(self, x, labels):
            out = super().forward(x, labels)
            if self.training:
                say("batch")
                seen.loss = float(out["loss"])
            return out

    class Spy(TrainerCallback):
        def on_train_begin(self, args, state, control, **others):
            train = caller("train", "transformers.")
            seen.trainers.append(train and train.f_locals["self"])
            seen.resumes = "resume_from_checkpoint" in train.f_locals

        def on_epoch_begin(self, args, state, control, **others):
            say("epoch begins")

        def on_epoch_end(self, args, state, control, **others):
            say("epoch ends")

        def on_step_begin(self, args, state, control, **others):
            say("step begins")

        def on_step_end(self, args, state, control, **others):
            say("step ends")
            trains = caller("train", "transformers.").f_locals["self"]
            seen.since_log = float(trains._tr_loss), state.global_step - trains._globalstep_last_logged

        def on_prediction_step(self, args, state, control, **others):
            loop = caller("evaluation_loop", "transformers.")
            seen.evaluated = loop and loop.f_locals["self"].model

        def on_log(self, args, state, control, logs, **others):
            if "loss" in logs:
                say("log")
                seen.kept.append(abs(seen.since_log[0] - logs["loss"]) < 1e-3 and seen.since_log[1] == 1)
                logs_it = caller("_maybe_log_save_evaluate", "transformers.")
                found = logs_it and logs_it.f_back.f_locals.get("tr_loss_step")
                seen.losses.append((found is not None and float(found), seen.loss))

    spy = seen.spy = Spy()
    options = {"logging_strategy": "steps", "logging_steps": 1, "gradient_accumulation_steps": 2}
    options |= {"save_strategy": "epoch"}
    seen.trainer = trainer(tmp_path_factory.mktemp("run"), spy, model=Spies(), epochs=1, **options)
    seen.trainer.train()
    seen.checkpoint = get_last_checkpoint(seen.trainer.args.output_dir)
    resumed = trainer(tmp_path_factory.mktemp("resumed"), spy, model=Spies(), epochs=2, **options)
    resumed._load_rng_state = lambda checkpoint: say("random state")
    place, before = len(seen.events), len(seen.trainers)
    resumed.train(resume_from_checkpoint=seen.checkpoint)
    seen.after_resume, seen.events[place:], seen.trainers[before:] = seen.events[place:], [], []
    seen.trainer.evaluate()
    seen.batches = []
    for size in (2, 4):
        seen.trainer._train_batch_size = size
        seen.batches.append(len(seen.trainer.get_train_dataloader()))
    return seen


def between(seen):
    """The last event of a step or an epoch before each log."""
    marks = ("epoch begins", "epoch ends", "step begins", "step ends")
    before, found = "", []
    for event in seen.events:
        before = event if event in marks else before
        found += [before] if event == "log" else []
    return found


TRANSFORMERS = {
    "train() is on the stack in on_train_begin, with the Trainer as self": (
        "Ctrl-C that waits until the state is saved, and the state of EarlyStoppingCallback in a resumed trial",
        lambda seen: seen.trainers == [seen.trainer] and seen.spy in seen.trainer.callback_handler.callbacks,
    ),
    "train() has its argument resume_from_checkpoint": (
        "a trial could train on from another trial's checkpoint",
        lambda seen: seen.resumes,
    ),
    "evaluation_loop() is on the stack in on_prediction_step, with the Trainer as self": (
        "the model of other weights than the evaluated ones would be kept as the best",
        lambda seen: seen.evaluated is seen.trainer.model,
    ),
    "the Trainer logs its loss after on_step_end or on_epoch_end, and before the next one begins": (
        "logs of the user's own within a step would be reported as the Trainer's",
        lambda seen: "step ends" in between(seen) and {*between(seen)} <= {"step ends", "epoch ends"},
    ),
    "on_step_begin comes before the first of the accumulated batches only": (
        "the same, with gradient_accumulation_steps",
        lambda seen: [e for e in seen.events if e in ("step begins", "batch")][:3] == ["step begins", "batch", "batch"],
    ),
    "the caller of _maybe_log_save_evaluate() has the loss of the last batch as tr_loss_step": (
        "a training that diverged would be judged by a loss of 0",
        lambda seen: (
            seen.losses and all(min(abs(found - loss), abs(2 * found - loss)) < 1e-4 for found, loss in seen.losses)
        ),
    ),
    "_load_rng_state() restores the random state after on_epoch_begin, where a training resumes between epochs": (
        "numbers that a callback draws in on_epoch_begin would shift all later ones of a resumed trial",
        lambda seen: seen.after_resume[:3] == ["epoch begins", "random state", "step begins"],
    ),
    "the Trainer has the loss since its last log as _tr_loss, and that log's step as _globalstep_last_logged": (
        "the first training loss after a pause between two logs",
        lambda seen: seen.kept and all(seen.kept),
    ),
    "the Trainer has made its schedule where _created_lr_scheduler is True": (
        "a hint about a program's own schedule would name the argument lr_scheduler_type",
        lambda seen: seen.trainer._created_lr_scheduler is True,
    ),
    "_load_from_checkpoint() loads the weights of a checkpoint": (
        "a trial whose callbacks change weights at the start of a training would resume from those",
        lambda seen: loads_again(seen.trainer, seen.checkpoint),
    ),
    "evaluate() has its sets as eval_dataset, and the name of the one under way as eval_dataset_name": (
        "a report would have the metrics of the later sets from the evaluation before",
        lambda _: several_sets() == [True, False],
    ),
    "a model has _hf_peft_config_loaded once it has an adapter of its own, which the Trainer does not load": (
        "each trial that resumes would fail",
        lambda _: adapters_are_not_loaded(),
    ),
    "_train_batch_size sets the batch size of the next training": (
        "searches over the batch size by hyperparameter_search",
        lambda seen: seen.batches[0] == 2 * seen.batches[1],
    ),
    "create_accelerator_and_postprocess() makes the Accelerator again, from the arguments": (
        "searches over arguments of the Accelerator by hyperparameter_search",
        lambda seen: accelerator(seen.trainer) is not accelerator(seen.trainer),
    ),
}


def loads_again(trainer, checkpoint):
    weight = next(trainer.model.parameters()).data
    trained = weight.clone()
    weight.zero_()
    trainer._load_from_checkpoint(checkpoint)
    return bool(trained.any()) and weight.equal(trained)


def several_sets():
    """Whether another set follows, after each of two."""
    from transformers import TrainerCallback
    from transformers_nets import rows, trainer

    from haltune.callbacks.trainer_internals import evaluates_more

    class Spy(TrainerCallback):
        def on_evaluate(self, args, state, control, **others):
            found.append(evaluates_more())

    found = []
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder, Spy(), data={"one": rows(4), "two": rows(4, 1)}).evaluate()
    return found


def adapters_are_not_loaded():
    pytest.importorskip("peft", reason="PEFT is not installed")
    from transformers.trainer_utils import get_last_checkpoint
    from transformers_nets import adds_adapter, trainer

    with tempfile.TemporaryDirectory() as folder:
        saves = {"save_strategy": "epoch", "epochs": 1}
        trainer(folder, model=(model := adds_adapter()), **saves).train()
        resumed = trainer(folder, model=adds_adapter(), **saves | {"epochs": 2})
        with pytest.raises(ValueError, match="checkpoint"):
            resumed.train(resume_from_checkpoint=get_last_checkpoint(folder))
    return vars(model)["_hf_peft_config_loaded"]


def accelerator(trainer):
    trainer.create_accelerator_and_postprocess()
    return trainer.accelerator


@pytest.mark.parametrize("assumption", TRANSFORMERS)
def test_transformers(assumption, transformers):
    holds(TRANSFORMERS[assumption], transformers)


@pytest.mark.slow  # what TRL imports takes longer than all checks here
@pytest.mark.parametrize("kind", ["GRPOTrainer", "RLOOTrainer"])
def test_trl_has_the_completions_as_buffered_inputs_and_counts_its_steps_as_step(kind):
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    code = inspect.unwrap(getattr(trl, kind)._prepare_inputs).__code__
    breaks = "Without it: a pause within the steps on the same completions would go through."
    assert {"_buffered_inputs", "_step"} <= {*code.co_names}, breaks


# fastai


@pytest.fixture(scope="module")
def fastai(tmp_path_factory):
    pytest.importorskip("fastai", reason="fastai is not installed")
    from fastai.callback.core import Callback
    from fastai.callback.tracker import SaveModelCallback
    from fits import Fastai

    seen = SimpleNamespace(fits=[], finds=[], saved=[], tunes=[])

    class Spy(Callback):
        def before_fit(self):
            frame = caller("fit", "fastai.learner")
            seen.fits.append(frame is not None and frame.f_locals["self"] is self.learn)
            seen.finds.append(hasattr(self.learn, "lr_finder"))
            tuning = caller("fine_tune", "fastai.callback.schedule")
            seen.tunes.append(tuning and (tuning.f_locals["epochs"], tuning.f_locals["freeze_epochs"]))

    save = SaveModelCallback(fname="best")
    save._save = seen.saved.append
    learn = Fastai().learner(path=tmp_path_factory.mktemp("fastai"), cbs=Spy())
    learn.save("best")  # which the callback loads at the end
    learn.fit(1, 0.01, cbs=save)
    learn.validate()
    learn.lr_find(num_it=20, show_plot=False)
    learn.fine_tune(1)
    return seen


FASTAI = {
    "fit() is on the stack in before_fit, and not when the Learner only validates": (
        "a validation would begin and end the trial's training",
        lambda seen: seen.fits[:2] == [True, False],
    ),
    "a Learner that looks for a learning rate has its callback as lr_finder": (
        "lr_find() would train and end the trial",
        lambda seen: seen.finds[:2] == [False, False] and seen.finds[2] is True,
    ),
    "fine_tune() is on the stack of its two fits, with its epochs and freeze_epochs": (
        "the advice on a plan that is longer than max_epochs",
        lambda seen: seen.tunes[:3] == [None] * 3 and seen.tunes[3:] == [(1, 1)] * 2,
    ),
    "SaveModelCallback saves by _save(), which can be set on the instance": (
        "a resumed trial would overwrite the file of the best weights",
        lambda seen: seen.saved == ["best"],
    ),
}


@pytest.mark.parametrize("assumption", FASTAI)
def test_fastai(assumption, fastai):
    holds(FASTAI[assumption], fastai)


# Stable-Baselines3


@pytest.fixture(scope="module")
def stable_baselines3():
    gymnasium = pytest.importorskip("gymnasium")
    sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
    from stable_baselines3.common.callbacks import BaseCallback, EvalCallback

    seen = SimpleNamespace(planned=[], rewards=[], updates=[], called=set())

    class Spy(BaseCallback):
        def _on_training_start(self):
            seen.planned.append(self.locals.get("total_timesteps"))
            self.follow(self.locals["callback"], "_on_rollout_start")
            self.follow(self.locals["callback"], "_on_step")

        def follow(self, root, hook):
            def called():
                seen.called.add(hook)
                return getattr(type(root), hook)(root)

            setattr(root, hook, called)

        def _on_step(self):
            seen.rewards.append(getattr(self.parent, "last_mean_reward", None))
            seen.place = getattr(self.parent, "callback_on_new_best", None)
            return True

    for kind, size in (("PPO", {"n_steps": 16, "batch_size": 16}), ("DQN", {"buffer_size": 32, "learning_starts": 8})):
        model = getattr(sb3, kind)("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **size)
        tests = EvalCallback(
            gymnasium.make("CartPole-v1"), callback_after_eval=Spy(), eval_freq=16, n_eval_episodes=1, verbose=0
        )
        model.learn(16, callback=tests)
        seen.updates.append(model._n_updates)
    return seen


STABLE_BASELINES3 = {
    "the locals of learn() have total_timesteps": (
        "the warning about a fit of another length than the search's",
        lambda seen: seen.planned == [16, 16],
    ),
    "they have the callback that is called, and its hooks are called on the instance": (
        "a stop within an evaluation would not end the training",
        lambda seen: seen.called == {"_on_rollout_start", "_on_step"},
    ),
    "an EvalCallback is the parent of its callbacks, and has last_mean_reward and callback_on_new_best": (
        "reports of evaluations",
        lambda seen: len(seen.rewards) == 2 and None not in seen.rewards and seen.place is None,
    ),
    "a model counts its updates as _n_updates": (
        "a report before the first update would count as trained",
        lambda seen: len(seen.updates) == 2 and min(seen.updates) > 0,
    ),
}


@pytest.mark.parametrize("assumption", STABLE_BASELINES3)
def test_stable_baselines3(assumption, stable_baselines3):
    holds(STABLE_BASELINES3[assumption], stable_baselines3)


# Accelerate


@pytest.fixture(scope="module")
def accelerate():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from accelerate import Accelerator

    seen = SimpleNamespace(accelerator=Accelerator(cpu=True), net=torch.nn.Linear(1, 1))
    data = torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2, shuffle=True)
    sgd = torch.optim.SGD(seen.net.parameters(), 0.1)
    decay = torch.optim.lr_scheduler.StepLR(sgd, 1)
    _, seen.loader, *seen.steps = seen.accelerator.prepare(seen.net, data, sgd, decay)
    seen.scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(seen.net.parameters(), 0.1), 1)
    seen.accelerator.register_for_checkpointing(seen.scheduler)
    seen.accelerator.register_save_state_pre_hook(print)
    seen.accelerator.register_load_state_pre_hook(repr)
    return seen


ACCELERATE = {
    "an Accelerator has the models that it prepared as _models": (
        "the error for an Accelerator that holds the model of another trial",
        lambda seen: [m is seen.net for m in seen.accelerator._models] == [True],
    ),
    "it has the loaders that it prepared as _dataloaders": (
        "the position within the data in a resumed trial",
        lambda seen: [d is seen.loader for d in seen.accelerator._dataloaders] == [True],
    ),
    "it has the optimizers and schedulers that it prepared as _optimizers and _schedulers": (
        "gradients that wait for a step would be lost, and a trial with a schedule would not pause",
        lambda seen: [*seen.accelerator._optimizers, *seen.accelerator._schedulers] == seen.steps,
    ),
    "it has the objects that are registered for checkpointing as _custom_objects": (
        "a checkpoint could hold pickles, which run any code",
        lambda seen: [o is seen.scheduler for o in seen.accelerator._custom_objects] == [True],
    ),
    "it has the hooks of its state as _save_model_state_pre_hook and _load_model_state_pre_hook": (
        "the pauses of a training with an average that these hooks save and load",
        lambda seen: (
            [*seen.accelerator._save_model_state_pre_hook.values()] == [print]
            and [*seen.accelerator._load_model_state_pre_hook.values()] == [repr]
        ),
    ),
    "a prepared loader that is given another class is read by it": (
        "the position within the data in a resumed trial",
        lambda seen: reads_by_its_class(seen.accelerator, seen.loader),
    ),
    "a prepared loader counts its passes as iteration": (
        "the order of shuffled data in a resumed trial",
        lambda seen: (len(list(seen.loader)), seen.loader.iteration) == (2, 1),
    ),
}


def reads_by_its_class(accelerator, loader):
    from haltune.callbacks.accelerate import _Placed

    passes, kind = loader.iteration, type(loader)
    vars(object)["__class__"].__set__(loader, type(kind.__name__, (_Placed, kind), {}))
    places = [loader._haltune_place["taken"] for _ in loader]
    vars(object)["__class__"].__set__(loader, kind)
    loader.iteration = passes
    return places == [1, 2]


@pytest.mark.parametrize("assumption", ACCELERATE)
def test_accelerate(assumption, accelerate):
    holds(ACCELERATE[assumption], accelerate)


# Boosters


def catboost_call(before=None):
    """What the only hook of CatBoost finds on the stack, and the error that fit() raises for one of the hook."""
    catboost = pytest.importorskip("catboost", reason="CatBoost is not installed")
    seen = SimpleNamespace()

    class Spy:
        def after_iteration(self, info):
            seen.given = set(vars(info))
            fit = caller("_fit", "catboost.")
            seen.model, seen.callbacks = fit.f_locals["self"], fit.f_locals["callbacks"]
            seen.params, seen.train, seen.before = (fit.f_locals[n] for n in ("params", "train_params", "init_model"))
            raise KeyError("of mine")

    spy = seen.spy = Spy()
    seen.made = catboost.CatBoostRegressor(iterations=2, verbose=False, allow_writing_files=False)
    with pytest.raises(Exception, match="") as raised:
        seen.made.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0], callbacks=[spy], init_model=before)
    seen.error = raised.type
    return seen


def catboost_continues():
    """Whether a fit that continues a model has it as it was given and loaded, its parameters, and its eval_sets."""
    catboost = pytest.importorskip("catboost", reason="CatBoost is not installed")
    before = catboost.CatBoostRegressor(iterations=1, verbose=False, allow_writing_files=False)
    before.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
    seen = catboost_call(before)
    loaded = seen.train["init_model"].tree_count_
    return (seen.before, loaded, seen.train["eval_sets"], seen.params["iterations"]) == (before, 1, [], 2)


def catboost_asks():
    """Whether CatBoost asks for the path of a snapshot where it has the callbacks and the loss."""
    catboost = pytest.importorskip("catboost", reason="CatBoost is not installed")
    found, spy = [], SimpleNamespace(after_iteration=lambda info: True)

    class Snapshot(os.PathLike):
        def __fspath__(self):
            prepares = caller("_prepare_train_params", "catboost.")
            found.extend(prepares.f_locals[name] for name in ("callbacks", "params"))
            return os.path.join(folder, "snapshot")

    with tempfile.TemporaryDirectory() as folder:
        made = catboost.CatBoostRegressor(iterations=1, verbose=False, train_dir=folder)
        made.fit([[0.0], [1.0]], [0.0, 1.0], callbacks=[spy], save_snapshot=True, snapshot_file=Snapshot())
    return found[0] == [spy] and found[1]["loss_function"] == "RMSE"


def lightgbm_call():
    lgb = pytest.importorskip("lightgbm", reason="LightGBM is not installed")
    import numpy as np

    seen, data = SimpleNamespace(removed=[]), lgb.Dataset(np.arange(20.0)[:, None], np.arange(20.0))

    class Spy:
        @property
        def order(self):
            known = caller("train", "lightgbm.").f_locals
            seen.arguments = {"callbacks_before_iter", "callbacks", "feval", "fobj"} <= known.keys()
            return 25

        def __call__(self, env):
            seen.train = caller("train", "lightgbm.") is not None
            seen.data = env.model.train_set is data
            env.model.rollback_one_iter = lambda: seen.removed.append(env.iteration)
            env.model.rollback_one_iter()
            known = caller("train", "lightgbm.").f_locals
            seen.callbacks, seen.continued = known["callbacks_after_iter"], "init_model" in known
            seen.earlier = known["callbacks_before_iter"]

    spy = seen.spy = Spy()
    rates = lgb.reset_parameter(learning_rate=[0.1])
    lgb.train({"verbose": -1, "min_data_in_leaf": 1}, data, 1, callbacks=[spy, rates])
    seen.sets = seen.earlier == [rates] and isinstance(rates, lgb.callback._ResetParameterCallback)
    seen.early, record = lgb.early_stopping(1), lgb.record_evaluation({})
    seen.kinds = isinstance(seen.early, lgb.callback._EarlyStoppingCallback)
    seen.kinds &= isinstance(record, lgb.callback._RecordEvaluationCallback)
    seen.removes = "rollback_one_iter" in vars(lgb.Booster)
    seen.kinds &= {"enabled", "verbose"} <= vars(seen.early).keys() and "eval_result" in vars(record)
    return seen


def xgboost_call():
    xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    import numpy as np

    from haltune.callbacks import xgboost

    seen = SimpleNamespace(folds=[], epochs=[], arguments=[])

    class Spy(xgb.callback.TrainingCallback):
        def before_training(self, model):
            xgboost._number_on(5)
            return model

        def after_iteration(self, model, epoch, logs):
            seen.epochs.append(epoch)
            seen.arguments.append({"num_boost_round", "obj", "custom_metric"} <= xgboost._arguments(model).keys())
            seen.train = caller("train", "xgboost.") is not None
            seen.folds.append(hasattr(model, "cvfolds"))
            seen.callbacks = list(caller("after_iteration", "xgboost.callback").f_locals["self"].callbacks)
            if seen.train:
                known = caller("train", "xgboost.").f_locals
                seen.given = known["params"], "xgb_model" in known
            return False

    data = xgb.DMatrix(np.arange(20.0)[:, None], np.arange(20.0))
    xgb.cv({"nthread": 1}, data, 1, nfold=2, callbacks=[Spy()])
    xgb.train({"nthread": 1}, data, 1, callbacks=[spy := Spy()])
    seen.found = spy in seen.callbacks and seen.given == ({"nthread": 1}, True)
    of = {"EarlyStopping": {"rounds": 1}, "TrainingCheckPoint": {"directory": ""}}
    numbering = xgboost._NUMBERING.items()
    made = [(getattr(xgb.callback, kind)(**of[kind]), {start, *names}) for kind, (start, names) in numbering]
    seen.numbering = all(names <= vars(one).keys() for one, names in made)
    return seen


def xgboost_sets():
    """The parameters that a callback of the library sets."""
    xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")

    from haltune.callbacks import xgboost

    booster, pending = xgb.Booster(), []
    with xgboost._noting(booster, pending):
        xgb.callback.LearningRateScheduler(lambda round: 0.25).after_iteration(booster, 0, {})
    return pending if "set_param" not in vars(booster) else []


def updates_are_refused():
    """Whether a booster that another trial has trained is refused in the class of its library."""
    xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    lgb = pytest.importorskip("lightgbm", reason="LightGBM is not installed")
    import numpy as np

    x = np.arange(20.0)[:, None]
    boosters = [
        (xgb.train({"nthread": 1}, data := xgb.DMatrix(x, x[:, 0]), 1), (data, 1)),
        (lgb.train({"verbose": -1}, lgb.Dataset(x, x[:, 0]), 1), ()),
    ]
    for booster, given in boosters:
        learners.refuse(booster, learners.mark(booster), "of another trial")
        with pytest.raises(NotSupported, match="of another trial"):
            booster.update(*given)
        learners.allow(booster)
    return True


BOOSTERS = {
    "CatBoost: _fit() is on the stack of the hook, with the model as self and the callbacks": (
        "the best model is kept, two callbacks are refused, and Ctrl-C waits for the end of the round",
        lambda: (seen := catboost_call()).model is seen.made and seen.callbacks[0] is seen.spy,
    ),
    "CatBoost: _fit() has its params, its init_model, and that model loaded and the eval_sets in train_params": (
        "a model cut by use_best_model would be kept as it was trained, and another trial's would be continued",
        catboost_continues,
    ),
    "CatBoost: _prepare_train_params() asks for the path of the snapshot, and has the callbacks and params": (
        "a trial would not pause whose callbacks, losses or metrics remember something",
        catboost_asks,
    ),
    "CatBoost: the hook gets the round and the metrics only": (
        "nothing: with the model in it, the stack need not be read",
        lambda: catboost_call().given == {"iteration", "metrics"},
    ),
    "CatBoost: fit() replaces an error of the hook by its own": (
        "nothing: with the error itself, it need not be kept until the trial ends",
        lambda: not issubclass(catboost_call().error, KeyError),
    ),
    "LightGBM: train() is on the stack of a callback, and a booster has its train_set": (
        "Ctrl-C that waits for the round, and the error for a Dataset with another booster's scores",
        lambda: (seen := lightgbm_call()).train and seen.data,
    ),
    "LightGBM: train() has its callbacks in a list callbacks_after_iter, and its init_model": (
        "early stopping would count from its start in a resumed trial, and another trial's model could be continued",
        lambda: (seen := lightgbm_call()).continued and seen.callbacks == [seen.spy],
    ),
    "LightGBM: train() has reset_parameter's callback in a list callbacks_before_iter": (
        "a trial whose schedule starts again at a resume would pause",
        lambda: lightgbm_call().sets,
    ),
    "LightGBM: early stopping has a later order than haltune's callback": (
        "the last round before early stopping would not be reported",
        lambda: lightgbm_call().early.order > 25,
    ),
    "LightGBM: train() asks for the order when it has callbacks_before_iter, its callbacks, feval and fobj": (
        "what the program's callbacks, objective and metrics remember would start again in a resumed trial",
        lambda: lightgbm_call().arguments,
    ),
    "LightGBM: early stopping and the record are of classes of their own, with enabled, verbose and eval_result": (
        "both would start again in a resumed trial",
        lambda: lightgbm_call().kinds,
    ),
    "LightGBM: a booster removes its last round by rollback_one_iter, which can be replaced on the instance": (
        "a round that a callback removes would count",
        lambda: (seen := lightgbm_call()).removes and seen.removed == [0],
    ),
    "XGBoost: a callback sets parameters by set_param of the booster, which can be replaced on the instance": (
        "the first round of a resumed training would have the parameters of before",
        lambda: xgboost_sets() == [("learning_rate", "0.25")],
    ),
    "XGBoost: train() is on the stack of a callback, and the boosters of cv() have cvfolds": (
        "Ctrl-C that waits for the round, and the refusal to pause xgb.cv",
        lambda: (seen := xgboost_call()).train and seen.folds == [True, False],
    ),
    "XGBoost: train() has its params and xgb_model, and the caller of a hook all callbacks": (
        "a booster that draws rows would pause, another trial's be continued, and early stopping forget its rounds",
        lambda: xgboost_call().found,
    ),
    "XGBoost: train() and cv() have num_boost_round, obj and custom_metric": (
        "what the program's objective and metric remember would start again in a resumed trial",
        lambda: xgboost_call().arguments == [True, True],
    ),
    "XGBoost: the hooks of all callbacks are called on the instance that calls them": (
        "a schedule of the learning rate would start again in a resumed trial",
        lambda: xgboost_call().epochs == [5, 5],
    ),
    "XGBoost: early stopping and checkpoints have the first number of their rounds, and what they remember": (
        "a resumed trial would stop at another round",
        lambda: xgboost_call().numbering,
    ),
    "XGBoost and LightGBM: update() can be replaced in the class of a booster": (
        "a plain loop would train a booster that another trial has trained",
        updates_are_refused,
    ),
}


@pytest.mark.parametrize("assumption", BOOSTERS)
def test_boosters(assumption):
    holds(BOOSTERS[assumption])


# torch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def alone_in_a_group(torch):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def schedules(torch):
    """Whether the schedules of an optimizer are found, and their next rates without a step or a warning."""
    from haltune._utils.schedules import SchedulePlace, ahead, schedules_of

    sgd = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)
    made = torch.optim.lr_scheduler.StepLR(sgd, 1, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rates = ahead(made, SchedulePlace.of(made), 2)
    return schedules_of(sgd) == [made] and rates == [[0.05], [0.025]] and SchedulePlace.of(made).sets


def buffers(torch):
    from haltune.callbacks.changes import set_buffers, unsaved_buffers

    net = torch.nn.Linear(1, 1)
    net.register_buffer("seen", torch.zeros(1), persistent=False)
    set_buffers(net, {"seen": torch.ones(1)})
    return unsaved_buffers(net) == [("seen", net.seen)] and bool(net.seen)


def workers(torch):
    loader = torch.utils.data.DataLoader([1, 2], num_workers=1, persistent_workers=True)
    unread = persistent([("train.loader", loader)])
    assert len([*loader]) == 2
    return (unread, persistent([("train.loader", loader)])) == (None, "loader")


class Draws:
    """A data set that draws in its worker, from torch's generator."""

    def __init__(self, torch, draws):
        self.torch, self.draws = torch, draws

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.torch.rand(1) if self.draws else self.torch.ones(1)


def watched(torch):
    """Whether the functions of a loader that are set after it was made are called in its worker."""
    from haltune.callbacks.trainer_state import _Watched

    found = []
    for draws in (True, False):
        loader = torch.utils.data.DataLoader(Draws(torch, draws), num_workers=1)
        watch = _Watched(loader)
        found.append((len(list(loader)), bool(watch.drawn.value)))
    return found == [(2, True), (2, False)]


def next_rates(torch):
    """Whether schedules have rates at other steps, the parts of several, and a count of their steps."""
    from haltune.callbacks.schedules import of_torch

    schedulers = torch.optim.lr_scheduler
    sgd = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)
    parts = [schedulers.StepLR(sgd, 1, 0.5), schedulers.ExponentialLR(sgd, 0.1)]
    both = schedulers.SequentialLR(sgd, parts, [2])
    name, rate = of_torch(both)
    rates = [round(rate(step), 9) for step in (0, 1, 2, 3)]
    return (name, rates) == ("StepLR then ExponentialLR", [0.1, 0.05, 0.1, 0.01]) and parts[0]._step_count == 1


TORCH = {
    "a loader calls worker_init_fn and collate_fn in its workers, also if they are set after it was made": (
        "a trial whose data draw random numbers in workers would pause within a pass",
        watched,
    ),
    "a schedule has _get_closed_form_lr() and _step_count, and one of several its _schedulers and _milestones": (
        "hints about schedules that fall until the end, and about those that a program does not load",
        next_rates,
    ),
    "a loader has its workers as _iterator once it is read": (
        "a plain loop would pause with workers that persist, or not pause because of a loader that it never reads",
        workers,
    ),
    "what refers to an optimizer has its schedules, with last_epoch, _last_lr and _get_lr_called_within_step": (
        "a plain loop that does not load its schedule would resume with other rates",
        schedules,
    ),
    "a module has its _buffers, and the names of those that its state lacks in _non_persistent_buffers_set": (
        "such buffers would start again in a resumed trial",
        buffers,
    ),
}


@pytest.mark.parametrize("assumption", TORCH)
def test_torch(assumption, torch):
    holds(TORCH[assumption], torch)


def flat(torch):
    """Whether the parameters in a flat one are found: as one weight, and trainable by their names."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    from haltune.callbacks import sharded, tensors

    one, other = (
        FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=torch.device("cpu"), use_orig_params=own)
        for own in (True, False)
    )
    with sharded._trainable(other, {"weight"}):
        trained = [parameter.requires_grad for parameter in other.parameters()]
    return [weight.numel() for weight in tensors.weights(one)] == [6] and trained == [True]


def in_groups(torch):
    """Whether the parts of parameters are found while the whole parameters are there."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from haltune.callbacks import tensors

    net = fully_shard(torch.nn.Linear(2, 2), mesh=init_device_mesh("cpu", (1,)), reshard_after_forward=False)
    net(torch.ones(1, 2))
    whole = [type(parameter).__name__ for parameter in net.parameters()]
    return whole == 2 * ["Parameter"] and [hasattr(weight, "to_local") for weight in tensors.weights(net)] == 2 * [True]


def barriers(torch):
    """Whether frameworks wait for all ranks by torch.distributed.barrier, as it is at that time."""
    from haltune.ranks import group

    met = []
    with pytest.MonkeyPatch.context() as patch, suppress(ImportError):
        patch.setattr(group, "torch_ranks", lambda: group.Group(0, 2, lambda value, rank: value))
        with group.in_place_of_barriers(lambda: met.append("met")):
            from accelerate import PartialState
            from accelerate.utils import DistributedType

            state = SimpleNamespace(distributed_type=DistributedType.MULTI_CPU, local_process_index=0)
            PartialState.wait_for_everyone(state)
            from lightning.fabric.strategies import DDPStrategy

            DDPStrategy(parallel_devices=[torch.device("cpu")]).barrier()
    return met == ["met", "met"] and torch.distributed.barrier.__module__.startswith("torch.")


DISTRIBUTED = {
    "Accelerate and Fabric wait for all ranks by torch.distributed.barrier, which can be replaced": (
        "a rank that cannot write its part would leave the others waiting",
        barriers,
    ),
    "the first version has _has_params, _flat_param with its _params, _fqns and _local_shard": (
        "a model would be another one after a validation, and the state of its optimizer not be loaded",
        flat,
    ),
    "fully_shard has _get_fsdp_state() with _fsdp_param_groups, or one _fsdp_param_group, with _unsharded_param": (
        "a model would be another one after a validation, and not be kept",
        in_groups,
    ),
}


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.parametrize("assumption", DISTRIBUTED)
def test_torch_distributed(assumption, torch):
    holds(DISTRIBUTED[assumption], torch)


# Optuna and Ray Tune. Their private parts are used in bridges/optuna/spaces.py and bridges/ray_tune.


@pytest.fixture(scope="module")
def optuna():
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed")
    from haltune.optuna import spaces

    seen = SimpleNamespace(spaces=spaces, brackets=[], all=[])

    class Spy(optuna.samplers.RandomSampler):
        def infer_relative_search_space(self, study, trial):
            spaces.set_attribute(study, trial, "user", 1)
            spaces.set_system_attribute(study, trial, "system", 2)
            seen.brackets.append(len(study.get_trials(deepcopy=False)))
            seen.all.append(len(spaces.all_trials(study, tuple(optuna.trial.TrialState))))
            return {}

    pruner = optuna.pruners.HyperbandPruner(1, 9)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # the name decides the bracket of a trial
    study = seen.study = optuna.create_study(study_name="study", sampler=Spy(), pruner=pruner)

    def objective(trial):
        trial.report(trial.suggest_float("x", 0, 1), 1)
        return float(trial.should_prune())

    study.optimize(objective, 6)
    return seen


OPTUNA = {
    "a study has its _storage, which sets the attributes of a running trial by _trial_id": (
        "reasons of the pruner, and choices that other workers see",
        lambda seen: all((t.user_attrs["user"], t.system_attrs["system"]) == (1, 2) for t in seen.study.trials),
    ),
    "with HyperbandPruner a sampler's study has the trials of a bracket, and the storage all, by _study_id": (
        "the sampler would learn from a part of the trials",
        lambda seen: seen.all == [1, 2, 3, 4, 5, 6] and seen.brackets != seen.all,
    ),
    "create_trial() refuses a value that its distribution does not have": (
        "values of other ranges would be taken for those of this one",
        lambda seen: (
            [
                seen.spaces.contains(seen.spaces.FloatDistribution(0.0, 1.0, step=0.25), value)
                for value in (0.0, 0.75, 0.8, 1.5)
            ]
            == [True, True, False, False]
        ),
    ),
}


@pytest.mark.parametrize("assumption", OPTUNA)
def test_optuna(assumption, optuna):
    holds(OPTUNA[assumption], optuna)


def test_a_scorer_of_scikit_learn_has_its_function_as_score_func():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    without = "Without it: the error for a scorer, which is to be maximized, in a study that minimizes"
    assert metrics.get_scorer("accuracy")._score_func is metrics.accuracy_score, without


def test_ray_tunes_wrappers_of_a_search_have_it_as_searcher():
    pytest.importorskip("ray.tune", reason="Ray Tune is not installed")
    from ray.tune.search import ConcurrencyLimiter, Repeater, Searcher, SearchGenerator

    search = Searcher("loss", "min")
    wrapped = [ConcurrencyLimiter(search, 1), Repeater(search), SearchGenerator(search)]
    without = "Without it: one study of HaltuneSearch and HaltuneScheduler"
    assert all(wrapper.searcher is search for wrapper in wrapped), without
