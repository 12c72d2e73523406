"""What haltune assumes of frameworks beyond their documentation, checked on the installed versions.

A table for each framework. A row has the assumption, what does not work in haltune without it, and a check. So after an
upgrade of a framework, a failing test names what changed and what it breaks. The table of Keras is in
keras/keras_assumption_checks.py, because a process has only one backend.
"""

import inspect
from types import SimpleNamespace

import pytest

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
    from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping
    from lightning.pytorch.loggers.logger import Logger
    from lightning.pytorch.plugins.environments import SLURMEnvironment
    from torch.utils.data import DataLoader

    from haltune.callbacks.lightning import VALIDATION, FreshMetrics, checkpoint, checks, internals

    seen = SimpleNamespace(steps=[], fresh=[], loads={}, order=[], sharded=checks._SHARDED)
    events = []
    say = events.append

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, index):
            self.log("loss", loss := self.layer(batch).pow(2).mean())
            return loss

        def validation_step(self, batch, index):
            self.log("constant", 1.0)

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

    class Last(Checkpoint):
        def on_train_epoch_end(self, trainer, module):
            say("a checkpoint callback's epoch end")
            seen.last = "last" in trainer.callback_metrics

    class Spy(Callback):
        def setup(self, trainer, module, stage):
            trainer.callbacks = [self, *(c for c in trainer.callbacks if c is not self), Last()]
            seen.environment = internals.cluster_environment(trainer)

        def on_fit_start(self, trainer, module):
            seen.given = internals.given_loaders(trainer), trainer.train_dataloader

        def on_train_start(self, trainer, module):
            seen.order.append("replaced list")
            seen.made = internals.loader_epoch(trainer)
            seen.loop = trainer.fit_loop
            seen.loads["default"] = internals.loads_anything(trainer)
            seen.fresh_metrics = FreshMetrics("constant")
            internals.hook_batches(trainer, lambda: say("batches start"), lambda rest: self.step(trainer, rest))

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
            seen.fresh.append("constant" in seen.fresh_metrics.all(VALIDATION, trainer.callback_metrics))

        def on_train_end(self, trainer, module):
            kept = checkpoint._Kept(trainer.strategy.checkpoint_io)
            checkpoint._save(trainer, "", kept, weights_only=False)
            seen.checkpoint = kept.checkpoint
            internals.unhook_batches(trainer)
            seen.left = vars(trainer.fit_loop.epoch_loop).keys() & {"run", "on_advance_end"}

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
            seen.loads["anything"] = internals.loads_anything(trainer)
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
    "checkpoint callbacks are called after the module's on_train_epoch_end": (
        "metrics logged there would be missing in reports",
        lambda seen: seen.last and in_order(seen.events, "the module's epoch end", "a checkpoint callback's epoch end"),
    ),
    "save_checkpoint collects the state and gives it to strategy.checkpoint_io, which can be replaced": (
        "whether a pause can be saved would be known only after the fit has ended",
        lambda seen: {"state_dict", "loops", "callbacks", "optimizer_states"} <= seen.checkpoint.keys(),
    ),
    "EarlyStopping keeps check_on_train_epoch_end under its name with an underscore": (
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
