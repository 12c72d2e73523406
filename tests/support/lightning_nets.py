"""Tiny Lightning modules and trainers, a search that trains straight or with a pause, and cases of such trainings."""

import random
from dataclasses import replace

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from fits import Case, few
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging, TQDMProgressBar
from paused_studies import pausing_study
from samplers import Shuffling
from torch.optim import SGD, Adam
from torch.optim import lr_scheduler as lr
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchmetrics import MeanMetric

from haltune import Minimize
from haltune.callbacks.lightning import HaltuneCallback

ROWS, BATCH = 12, 4
BATCHES = ROWS // BATCH


def momentum(net):
    """A function of the module, so that nets pickle into spawned processes."""
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


class Net(pl.LightningModule):
    """Dropout, noise from three generators, metrics of steps, epochs, validations and epoch ends."""

    def __init__(self, optimize=momentum):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
        )
        self.optimize = optimize

    def loss(self, batch):
        return self.layers(batch).pow(2).mean()

    def training_step(self, batch, index):
        noise = np.random.rand() + random.random() + torch.rand(())  # noqa: NPY002
        loss = self.loss(batch[0] * (1 + 0.1 * noise))
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch[0]) + 0.001 * torch.rand(()))

    def on_train_epoch_start(self):
        self.log("drawn", torch.rand(()))  # drawn between the epoch's start and its shuffling

    def on_train_epoch_end(self):
        self.log("afterwards", torch.rand(()))

    def configure_optimizers(self):
        return self.optimize(self)


def rows():
    return TensorDataset(torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)))


def shuffled(**options):
    return DataLoader(rows(), batch_size=BATCH, shuffle=True, **options)


def seed(number):
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


def make_trainer(*callbacks, epochs, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 1,
        "accelerator": "cpu",
    }
    return pl.Trainer(max_epochs=epochs, callbacks=list(callbacks), **quiet | options)


def search(
    at, make_net=Net, make_data=shuffled, others=list, metric="val_loss", store=None, epochs=4, budget=None, **options
):
    """Train one trial of a study that pauses it after the epochs `at`; the study, the last trainer, the next draw."""
    study = pausing_study(store, at=at, metric=metric, epochs=epochs, budget=budget)
    for attempt, trial in enumerate(study):
        seed(attempt)  # a resumed attempt starts with other random numbers
        trainer = make_trainer(*others(), HaltuneCallback(trial), epochs=trial.max_epochs, **options)
        with trial:
            trainer.fit(make_net(), make_data(), make_data(), ckpt_path=trial.checkpoint)
    return study, trainer, random.random() + np.random.rand() + float(torch.rand(()))  # noqa: NPY002


# trainings that equal uninterrupted ones when they resume: the cases of test_every_loop.py


def scheduled(make, interval="epoch", optimizer=SGD, **more):
    def optimize(net):
        o = optimizer(net.parameters(), lr=0.1)
        return {"optimizer": o, "lr_scheduler": {"scheduler": make(o), "interval": interval} | more}

    return lambda: Net(optimize)


class TwoOptimizers(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, index))
            optimizer.step()
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def configure_optimizers(self):
        first, second = SGD(self.layers[0].parameters(), 0.1, 0.9), Adam(self.layers[3].parameters(), 0.01)
        return [first, second], [lr.StepLR(first, 2, 0.5), lr.ExponentialLR(second, 0.9)]


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization, as programs copy it: its state_dict lacks the state of the optimizer within."""

    def __init__(self, params, base, **options):
        super().__init__(params, options)
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["old"] = parameter.clone()
            parameter.add_(parameter.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(self.state[parameter]["old"])
        self.base_optimizer.step()
        self.zero_grad()


class Sharpness(Net):
    """It steps by SAM, and makes no step that Lightning counts."""

    def __init__(self):
        super().__init__(lambda net: SAM(net.parameters(), SGD, lr=0.02, momentum=0.9))
        self.automatic_optimization = False

    def training_step(self, batch, index):
        sam = self.optimizers(use_pl_optimizer=False)
        self.manual_backward(super().training_step(batch, index))
        sam.first_step()
        self.manual_backward(self.loss(batch[0]))
        sam.second_step()


class Ema(pl.Callback):
    """A user's callback with state of its own, which also draws random numbers."""

    def __init__(self):
        self.average, self.draws = None, 0.0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        weight = module.layers[0].weight.detach().clone()
        self.average = weight if self.average is None else 0.9 * self.average + 0.1 * weight

    def on_train_epoch_start(self, trainer, module):
        self.draws += float(torch.rand(()))

    def state_dict(self):
        return {"average": self.average, "draws": self.draws}

    def load_state_dict(self, state):
        self.average, self.draws = state["average"], state["draws"]


class Exports(Ema):
    """It writes its average into checkpoints, in place of the weights that train."""

    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["state_dict"]["layers.0.weight"] = self.average


def averaging():
    from lightning.pytorch.callbacks import EMAWeightAveraging

    return [EMAWeightAveraging(decay=0.8)]


def company():
    keeper = ModelCheckpoint(monitor="val_loss", save_top_k=2)
    return [EarlyStopping("val_loss", patience=9), keeper, TQDMProgressBar()]


class Stream(IterableDataset):
    """Random rows, no length; every iteration draws."""

    def __iter__(self):
        return iter([(torch.randn(3),) for _ in range(12)])


class LongStream(IterableDataset):
    """Rows without a number, drawn at random."""

    def __iter__(self):
        yield from zip(torch.randn(40, 3, generator=torch.Generator().manual_seed(int(torch.randint(9, ())))))


FORTY = TensorDataset(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)))


def ten_batches(**options):
    return DataLoader(FORTY, batch_size=4, **{"shuffle": True} | options)


class Slow(Net):
    """It does not diverge in 3 epochs of 10 batches, and remembers the losses of its batches.

    It prepares nothing when an epoch starts: a fit that resumes within an epoch does not call that hook.
    """

    on_train_epoch_start = pl.LightningModule.on_train_epoch_start

    def __init__(self, optimize=lambda net: SGD(net.parameters(), lr=0.02, momentum=0.9)):
        super().__init__(optimize)
        self.losses = []

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.losses.append(float(loss.detach()))
        return loss


def plateau(optimizer):
    scheduler = lr.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


def cosine(net):
    optimizer = SGD(net.parameters(), lr=0.02, momentum=0.9)
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": lr.CosineAnnealingLR(optimizer, 20), "interval": "step"},
    }


class Measures(Slow):
    """It validates with a metric object, too, and counts validations after them."""

    def __init__(self):
        super().__init__()
        self.mean, self.validations = MeanMetric(), 0

    def loss(self, batch):
        return super().loss(batch) * 0.9**self.validations

    def validation_step(self, batch, index):
        self.log("val_loss", loss := self.loss(batch[0]))
        self.mean(loss)
        self.log("val_mean", self.mean)

    def on_validation_end(self):
        self.validations += 1


class OwnLoader(Slow):
    """Its loader has a generator, and is made by the module."""

    def train_dataloader(self):
        return ten_batches(generator=torch.Generator().manual_seed(5))


class Changing(Slow):
    """It changes what no checkpoint of Lightning has: flags, modes, numbers, lists, tensors, and a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()), persistent=False)
        self.register_buffer("grows", torch.zeros(1), persistent=False)
        self.register_buffer("first", None, persistent=False)
        self.seen, self.trail, self.mean, self.bank = 0, [], None, torch.zeros(300_000)
        self.layers[0].requires_grad_(False)

    def training_step(self, batch, index):
        self.seen += 1
        if self.seen == 5:
            self.layers[0].requires_grad_(True)
            self.layers[1].eval()
            self.layers[2].p = 0.1
        self.scale.mul_(0.99)
        loss = super().training_step(batch, index) * self.scale / (1 + 0.1 * self.seen)
        self.trail = [*self.trail, float(loss)][-3:]
        self.mean = loss.detach() if self.mean is None else 0.9 * self.mean + 0.1 * loss.detach()
        self.grows = torch.cat([self.grows, loss.detach()[None]])
        self.first = loss.detach() if self.first is None else self.first
        self.bank[self.seen] = loss.detach()
        loss = loss * (1 + 0.01 * sum(self.trail) + 0.001 * (self.grows.sum() + self.bank.sum()) + 0.01 * self.first)
        return loss + 0.01 * self.mean * self.layers[3].weight.sum()


class Carries(Slow):
    """It carries a tensor from batch to batch, and detaches it where it reads it, as an LSTM's state is carried."""

    def __init__(self):
        super().__init__()
        self.carried = None

    def training_step(self, batch, index):
        carried = 0.0 if self.carried is None else self.carried.detach()
        loss = super().training_step(batch, index)
        self.carried = 0.5 * carried + loss
        return loss + 0.01 * carried * self.layers[3].weight.sum()


class Mines(Slow):
    """Its sampler draws the first rows more often with each epoch."""

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        sampler = self.trainer.train_dataloader.sampler
        sampler.weights = sampler.weights * torch.linspace(1.0, 0.5, len(sampler.weights))


class Labels(Slow):
    """It trains on other rows of its data after each epoch, as active learning does."""

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        loader = self.trainer.train_dataloader
        part = loader.dataset if isinstance(loader.dataset, Subset) else loader.sampler
        part.indices = [*part.indices[4:], *((row + 20) % 40 for row in part.indices[:4])]


class Warms(lr.LRScheduler):
    """A warm-up of the program's, as notebooks have it."""

    def get_lr(self):
        return [rate * min(1.0, self.last_epoch / 12) for rate in self.base_lrs]


class Cooling:
    """It holds the optimizer, and lowers its momentum by a count of its own."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0

    def step(self):
        self.steps += 1
        self.optimizer.param_groups[0]["momentum"] = 0.9 / (1 + 0.1 * self.steps)


class Shadow:
    """It holds the model, and an average of its weights."""

    def __init__(self, model):
        self.model, self.weights = model, {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self):
        for name, parameter in self.model.named_parameters():
            self.weights[name] = 0.9 * self.weights[name] + 0.1 * parameter.detach()


class StepsItself(Slow):
    """It steps a schedule, a scaler and two objects itself, and gives Lightning the optimizer alone."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        self.scheduler, self.cooling, self.shadow = [Warms(optimizer)], Cooling(optimizer), Shadow(self.layers[3])
        self.scaler = torch.amp.GradScaler("cpu")
        return optimizer

    def training_step(self, batch, index):
        loss = self.scaler.scale(super().training_step(batch, index)) / 65536.0
        return loss + 0.01 * (self.layers[3].weight - self.shadow.weights["weight"]).sum()

    def optimizer_step(self, *args, **options):
        super().optimizer_step(*args, **options)
        for one in (*self.scheduler, self.cooling):
            one.step()
        self.scaler.update(0.9 * self.scaler.get_scale())
        self.shadow.update()


class Waits(pl.Callback):
    """A user's callback without state_dict, which lowers the rate by a count of its own."""

    def __init__(self):
        self.batches, self.factor = 0, 1.0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.batches += 1
        if self.batches % 4 == 0:
            self.factor *= 0.9
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = 0.02 * self.factor


class Cools(pl.Callback):
    """A user's callback without state_dict, which lowers the dropout by a count of its own."""

    def __init__(self):
        self.batches = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.batches += 1
        module.layers[2].p = 0.5 / (1 + self.batches)


class Data(pl.LightningDataModule):
    """A training loader of it has the scale that a callback has set, and an order by its number."""

    def __init__(self):
        super().__init__()
        self.scale, self.made = 1.0, 0

    def train_dataloader(self):
        self.made += 1
        rows = TensorDataset(self.scale * FORTY.tensors[0])
        return DataLoader(rows, BATCH, shuffle=True, generator=torch.Generator().manual_seed(self.made))

    def val_dataloader(self):
        return DataLoader(FORTY, 8)


class Scales(pl.Callback):
    """It scales the data of the next epoch."""

    def on_train_epoch_end(self, trainer, module):
        trainer.datamodule.scale *= 0.5


class Accumulating(Slow):
    """It accumulates gradients itself, also across epochs."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization, self.batches = False, 0

    def training_step(self, batch, index):
        self.manual_backward(super().training_step(batch, index) / 4)
        self.batches += 1
        if self.batches % 4 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()


class Drawing(Sampler):
    """Its order comes from a generator of NumPy and one of Python."""

    def __init__(self):
        self.rng, self.python = np.random.default_rng(3), random.Random(3)

    def __iter__(self):
        order = self.rng.permutation(40).tolist()
        self.python.shuffle(order)
        yield from order

    def __len__(self):
        return 40


DRAWS = random.Random()


class Naming(Drawing):
    """Its order comes from a generator in a variable of its module."""

    def __init__(self):
        DRAWS.seed(3)

    def __iter__(self):
        yield from DRAWS.sample(range(40), 40)


class Backbone(Net):
    def __init__(self):
        super().__init__()
        self.backbone = self.layers[:2]

    def configure_optimizers(self):
        return SGD([p for p in self.parameters() if p.requires_grad], 0.05, 0.9)


class Found(Net):
    """Its rate and its batch size are found before the first epoch; both differ from those that it is made with."""

    def __init__(self):
        super().__init__(lambda net: SGD(net.parameters(), net.lr, 0.9))
        self.lr, self.batch_size = 0.01, 2

    def train_dataloader(self):
        return DataLoader(rows(), self.batch_size, shuffle=True)


def freezing():
    from lightning.pytorch.callbacks import BackboneFinetuning

    return [BackboneFinetuning(1, train_bn=False)]


def finders():
    from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder

    return [
        BatchSizeFinder(max_trials=1, steps_per_trial=1, init_val=3),
        LearningRateFinder(1e-4, 0.02, num_training_steps=30),
    ]


def of(make):
    return Case({"train": make, "validation": make})


def within(*at, length=2, unit="epoch", **options):
    """Pauses within epochs of ten batches, at validations."""
    return Case({"net": Slow, "train": ten_batches, "val_check_interval": 2} | options, at, length, unit)


BY_STEPS = {"length": 20, "unit": "step", "epochs": -1, "max_steps": 20, "check_val_every_n_epoch": None}
CASES = {
    "OneCycleLR": Case({"net": scheduled(lambda o: lr.OneCycleLR(o, 0.2, 4 * BATCHES), "step", Adam)}),
    "ReduceLROnPlateau": Case(
        {"net": scheduled(lambda o: lr.ReduceLROnPlateau(o, patience=0, threshold=0.9), monitor="val_loss")}
    ),
    "worker processes": of(lambda: shuffled(num_workers=1)),
    "a loader's own generator": of(lambda: shuffled(generator=torch.Generator().manual_seed(5))),
    "weights averaged by Lightning": Case({"others": averaging}),
    "a user's stateful callback": Case({"others": lambda: [Ema()]}),
    "an average in place of the weights": Case({"others": lambda: [Exports()]}),
    "changes outside the checkpoint": Case({"net": Changing}),
    "what its module steps itself": Case({"net": StepsItself, "train": ten_batches}, (1, 2), 3),
    "a user's callback without a state": Case({"others": lambda: [Waits()]}),
    "frozen layers": Case({"net": Backbone, "others": freezing}, at=(1, 3)),
    "a found rate and batch size": Case(
        {"net": Found, "train": lambda: None, "others": lambda: [*finders(), Cools()]}, apart=None
    ),
    "gradients accumulated by hand": Case({"net": Accumulating, "train": ten_batches}, (1, 2), 3),
    "a generator that a sampler names": Case({"net": Slow, "train": lambda: DataLoader(FORTY, 4, sampler=Naming())}),
    "a sampler's own generators": Case({"net": Slow, "train": lambda: DataLoader(FORTY, 4, sampler=Drawing())}),
    "a sampler of a library": Case({"net": Slow, "train": lambda: DataLoader(FORTY, 4, sampler=Shuffling(40))}),
    "a sampler that Lightning distributes": Case(
        {"net": Slow, "train": lambda: DataLoader(FORTY, 4, sampler=DistributedSamplerWrapper(Shuffling(40), 1, 0))}
    ),
    "weights of a sampler": Case(
        {"net": Mines, "train": lambda: DataLoader(FORTY, 4, sampler=WeightedRandomSampler(torch.ones(40), 40))}
    ),
    "rows of a sampler": Case(
        {"net": Labels, "train": lambda: DataLoader(FORTY, 4, sampler=SubsetRandomSampler([*range(20)]))}
    ),
    "rows of a subset": Case(
        {"net": Labels, "train": lambda: DataLoader(Subset(FORTY, [*range(20)]), 4, shuffle=True)}
    ),
    "bf16-mixed": Case({"precision": "bf16-mixed"}),
    "weights averaged late": Case(  # Lightning trains an epoch more for it
        {"others": lambda: [StochasticWeightAveraging(0.01, 1, annealing_epochs=2)]}, at=(1, 3)
    ),
    "two optimizers": Case({"net": TwoOptimizers}),
    "gradient accumulation": Case({"accumulate_grad_batches": 2}),
    "two validations an epoch": Case({"val_check_interval": 1 / 3}),
    "a training metric": Case(metric="train_loss"),
    "a stream without length": of(lambda: DataLoader(Stream(), batch_size=4)),
    "loaders made anew each epoch": Case({"reload_dataloaders_every_n_epochs": 1}),
    "loaders made anew of a data module that changes": Case(
        {"net": Slow, "train": Data, "others": lambda: [Scales()], "reload_dataloaders_every_n_epochs": 1}, (1, 2), 3
    ),
    "early stopping, checkpoints and a progress bar": Case(
        {"others": company, "enable_checkpointing": True, "enable_progress_bar": True}
    ),
    "within one epoch": within(0.4, 0.8, length=1),
    "within several epochs": within(0.8, 1.2, 2.0, 2.4, length=3),
    "within, twice in an epoch but the first": within(1.2, 1.6),
    "within, worker processes": within(0.4, 1.6, train=lambda: ten_batches(num_workers=1)),
    "within, a loader's own generator": within(
        0.4, 1.6, train=lambda: ten_batches(generator=torch.Generator().manual_seed(7))
    ),
    "within, a loader of the module": within(0.4, 1.6, net=OwnLoader, train=lambda: None),
    "within, a metric of validations": within(0.4, 1.6, net=Measures),
    "within, a schedule by steps": within(0.4, 1.6, net=lambda: Slow(cosine)),
    "within, gradient accumulation": within(0.4, 1.6, accumulate_grad_batches=2),
    "within, early stopping": within(0.4, 1.6, others=lambda: [EarlyStopping("val_loss", patience=8)]),
    "within, changes outside the checkpoint": within(0.4, 1.6, net=Changing),
    "within, a tensor that it carries with its graph": within(0.4, 1.0, 1.6, net=Carries),
    "within, a user's callback without a state": within(0.4, 1.6, others=lambda: [Waits()]),
    "within, gradients accumulated by hand": within(0.5, 1.5, net=Accumulating, val_check_interval=5),
    "within, ReduceLROnPlateau by epochs": within(
        0.4, 1.6, net=lambda: Slow(lambda net: plateau(SGD(net.parameters(), 0.02))), length=3
    ),
    "within, loaders made anew each epoch": within(
        0.4, 1.6, net=OwnLoader, train=lambda: None, reload_dataloaders_every_n_epochs=1
    ),
    "within, loaders made anew of a data module that changes": within(
        0.4, 1.2, 1.6, train=Data, others=lambda: [Scales()], reload_dataloaders_every_n_epochs=1
    ),
    "by steps": within(4, 10, 16, **BY_STEPS),
    "by steps, data without a length": within(
        4, 8, 16, **BY_STEPS, train=lambda: DataLoader(LongStream(), batch_size=4)
    ),
    "by tokens": within(48, 72, 192, length=240, unit="token", epochs=2, accumulate_grad_batches=2),
}
GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))
ON_GPU = {"SGD with momentum": Case()} | {
    name: CASES[name] for name in ("OneCycleLR", "bf16-mixed", "weights averaged by Lightning")
}
ON_GPU |= {"16-mixed": Case({"precision": "16-mixed"})}
for name, case in ON_GPU.items():
    CASES[f"on a CUDA device, {name}"] = replace(
        case, options=case.options | {"accelerator": "gpu", "devices": 1}, marks=GPU
    )
GOAL = Minimize("train_loss", smooth=3, rank_by="val_loss")
JUDGED = {  # by the loss of training: length in steps, positions of pauses, options
    "by steps": (20, (3, 12, 18), {}),
    "at a validation": (20, (6, 9, 12), {"val_check_interval": 6, "check_val_every_n_epoch": None}),
    "at the end of an epoch": (20, (5, 10, 15), {"log_every_n_steps": 5}),
    "gradient accumulation": (10, (2, 6), {"accumulate_grad_batches": 2, "log_every_n_steps": 2}),
    "logs rarer than epochs": (30, (12, 24), {"log_every_n_steps": 12}),
    "early stopping": (20, (3, 12), {"others": lambda: [EarlyStopping("val_loss", patience=4)]}),
}
LOGGING = {"net": Slow, "train": ten_batches, "log_every_n_steps": 3}
CASES["loss of training, within one epoch"] = Case(LOGGING, (0.3, 0.6), 1, metric=GOAL)
for name, (length, at, options) in JUDGED.items():
    steps = {"epochs": -1, "max_steps": length}
    # the last step is validated for the ranking, with numbers drawn
    apart = frozenset({"logged", "next random numbers"} if length % options.get("val_check_interval", 10) else ())
    CASES[f"loss of training, {name}"] = Case(LOGGING | steps | options, at, length, "step", GOAL, apart=apart)
CASES = few(
    CASES,
    "ReduceLROnPlateau",
    "frozen layers",
    "a sampler's own generators",
    "within, a loader's own generator",
    "by steps",
    "loss of training, by steps",
    *(name for name, case in CASES.items() if case.marks == GPU),
)
