"""The truths about trainings, for Lightning programs drawn at random: see support/zoo.py.

Each program combines a module, an optimizer, a schedule, data, validations, and states that a module or a callback of
the user's own changes while it trains. A pause must be exact, or declined.
"""

import copy
import random
import warnings

import pytest
import torch
import zoo
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)  # fmt: skip
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler, random_split

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)
TRAIN, HELD_OUT = TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])
BATCHES, EPOCHS = 4, 4
loss = torch.nn.functional.mse_loss
adam, sgd = torch.optim.Adam, torch.optim.SGD

OPTIMIZERS = {
    "momentum": lambda p, lr: sgd(p, lr, momentum=0.9),
    "adam": adam,
    "groups": lambda p, lr: adam([{"params": p[:2], "lr": 0.1 * lr}, {"params": p[2:]}], lr),
    "lbfgs": lambda p, lr: torch.optim.LBFGS(p, lr, max_iter=3),
}
SCHEDULES = {  # name -> (schedule, by step)
    "step": (lambda o: schedules.StepLR(o, 1, 0.7), False),
    "one cycle": (lambda o: schedules.OneCycleLR(o, 0.05, total_steps=40), True),
    "restarts": (lambda o: schedules.CosineAnnealingWarmRestarts(o, 5), True),
    "two phases": (lambda o: schedules.SequentialLR(
        o, [schedules.ConstantLR(o, 0.5, 2), schedules.ExponentialLR(o, 0.8)], [2]), False),
    "plateau": (lambda o: schedules.ReduceLROnPlateau(o, patience=0, factor=0.5), False),
}  # fmt: skip
STATES = ("decays", "epoch's own", "teacher", "counts", "noise", "running loss", "queue", "dropout by epoch")
CALLBACKS = ("patience", "best file", "swa", "ema", "pruning", "noise", "rate by hand", "thaw", "frozen norm")


class Noisy(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return x[i] + 0.1 * torch.randn(4), y[i]


class Stream(IterableDataset):
    def __iter__(self):
        for i in torch.randperm(64).tolist():
            yield x[i], y[i]


class Counting(Dataset):
    def __init__(self):
        self.read = 0

    def __len__(self):
        return 64

    def __getitem__(self, i):
        self.read += 1
        return x[i] + 0.001 * self.read, y[i]


LOADERS = {
    "shuffled": lambda: DataLoader(TRAIN, 16, shuffle=True),
    "own generator": lambda: DataLoader(TRAIN, 16, shuffle=True, generator=torch.Generator().manual_seed(9)),
    "weighted": lambda: DataLoader(TRAIN, 16, sampler=WeightedRandomSampler(torch.rand(64), 64)),
    "noisy": lambda: DataLoader(Noisy(), 16, shuffle=True),
    "counting": lambda: DataLoader(Counting(), 16, shuffle=True),
    "stream": lambda: DataLoader(Stream(), 16),
}


class Data(LightningDataModule):
    """Splits at random in each attempt."""

    def setup(self, stage):
        self.train, self.held_out = random_split(TensorDataset(x, y), [64, 16])

    def train_dataloader(self):
        return DataLoader(self.train, 16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.held_out, 16)


class Net(LightningModule):
    def __init__(self, lr, drawn):
        super().__init__()
        self.save_hyperparameters()
        self.has = drawn["states"]
        middle = {"norm": torch.nn.BatchNorm1d(6), "dropout": torch.nn.Dropout(0.2)}[drawn["net"]]
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 6), middle, torch.nn.Linear(6, 1))
        self.automatic_optimization = not drawn["manual"]
        self.factor, self.running, self.recent = 1.0, [1.0, 0], []
        self.noise = torch.Generator().manual_seed(5)
        self.register_buffer("seen", torch.zeros(1))
        if "teacher" in self.has:
            self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    def training_step(self, batch, index):
        inputs, targets = batch
        if "noise" in self.has:
            inputs = inputs + 0.1 * torch.randn(inputs.shape, generator=self.noise)
        if "queue" in self.has:
            self.recent = [*self.recent, inputs.detach().mean(0)][-5:]
            inputs = inputs - 0.1 * torch.stack(self.recent).mean(0)
        error = loss(self.net(inputs), targets)
        if "teacher" in self.has:
            error = error + 0.1 * loss(self.net(inputs), self.teacher(inputs).detach())
        if "running loss" in self.has:
            self.running = [0.9 * self.running[0] + 0.1 * error.item(), self.running[1] + 1]
            error = error / self.running[0]
        if "counts" in self.has:
            self.seen += 1
        if "epoch's own" in self.has:
            self.outs.append(error.item())
        error = error * self.factor * (1.0 + 0.01 * self.seen.item())
        if self.automatic_optimization:
            return error
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        optimizer.zero_grad()
        self.manual_backward(error)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        return None

    def on_train_batch_end(self, *arguments):
        if "teacher" in self.has:
            with torch.no_grad():
                for slow, quick in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                    slow.mul_(0.9).add_(quick, alpha=0.1)

    def on_train_epoch_end(self):
        if "decays" in self.has:
            self.factor *= 0.8
        if "epoch's own" in self.has:
            self.log("mean_out", sum(self.outs) / len(self.outs))

    def validation_step(self, batch, index):
        self.log("val_loss", loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        drawn = self.hparams.drawn
        optimizer = OPTIMIZERS[drawn["optimizer"]](list(self.net.parameters()), self.hparams.lr)
        if drawn["schedule"] is None:
            return optimizer
        make, by_step = SCHEDULES[drawn["schedule"]]
        plan = {"scheduler": make(optimizer), "interval": "step" if by_step else "epoch", "monitor": "val_loss"}
        return {"optimizer": optimizer, "lr_scheduler": plan}


class PreparingNet(Net):
    """Lightning calls its hook only at the start of an epoch."""

    def on_train_epoch_start(self):
        self.outs = []
        if isinstance(self.net[1], torch.nn.Dropout):
            self.net[1].p = 0.1 + 0.1 * self.current_epoch


class AddsNoise(Callback):
    def __init__(self):
        self.noise = torch.Generator().manual_seed(3)

    def on_train_batch_end(self, trainer, module, *arguments):
        with torch.no_grad():
            for weights in module.net.parameters():
                weights.add_(0.001 * torch.randn(weights.shape, generator=self.noise))


class RateByHand(Callback):
    """Halves the rate where validations become worse."""

    def __init__(self):
        self.best = float("inf")

    def on_validation_end(self, trainer, module):
        value = trainer.callback_metrics["val_loss"].item()
        if value > self.best and not trainer.sanity_checking:
            for group in trainer.optimizers[0].param_groups:
                group["lr"] *= 0.5
        self.best = min(self.best, value)


class Thaw(BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.net[0])

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 2:
            self.unfreeze_and_add_param_group(module.net[0], optimizer)


class FrozenNorm(Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch >= 2:
            module.net[1].eval()


def callbacks(drawn, trial):
    made = {
        "patience": lambda: EarlyStopping("val_loss", patience=2),
        "best file": lambda: ModelCheckpoint(f"best{trial.id}", monitor="val_loss"),
        "swa": lambda: StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=2),
        "ema": lambda: EMAWeightAveraging(decay=0.9),
        "pruning": lambda: ModelPruning("l1_unstructured", amount=0.1, use_lottery_ticket_hypothesis=False),
        "noise": AddsNoise, "rate by hand": RateByHand, "thaw": Thaw, "frozen norm": FrozenNorm,
    }  # fmt: skip
    found = [made[name]() for name in drawn["callbacks"]]
    if drawn["accumulates"] == "more":
        found.append(GradientAccumulationScheduler({0: 1, 2: 2}))
    found.insert(drawn["place"] % (len(found) + 1), HaltuneCallback(trial))
    return found


def draw(seed):
    """Return a program's parts. What Lightning itself refuses is left out."""
    r = random.Random(seed)
    drawn = {
        "net": r.choice(["norm", "dropout"]),
        "manual": r.random() < 0.15,
        "optimizer": r.choice([*OPTIMIZERS]),
        "schedule": r.choice([None, *SCHEDULES]),
        "data": r.choice([*LOADERS, "split", "reloaded"]),
        "accumulates": r.choice([1, 1, 1, 2, 3, "more"]),
        "validates": r.choice([1.0, 1.0, 0.5, 0.25]),  # share of an epoch
        "states": [name for name in STATES if r.random() < 0.15],
        "callbacks": [name for name in CALLBACKS if r.random() < 0.15],
        "place": r.randrange(4),
        "pauses": sorted(r.sample([0.5, 1, 1.5, 2, 2.5, 3], r.choice([1, 2, 3]))),
        "of": r.choice(["last", "best"]),
    }
    lbfgs, averages = drawn["optimizer"] == "lbfgs", {"swa", "ema"} & {*drawn["callbacks"]}
    drawn["manual"] &= not lbfgs  # it needs a closure
    bars = {"thaw"} if lbfgs or drawn["manual"] else set()
    bars |= {"swa", "ema"} if lbfgs or drawn["manual"] or drawn["data"] == "stream" else set()
    bars |= {"ema", "pruning", "thaw"} if "swa" in averages else {"pruning"} if averages else set()
    drawn["callbacks"] = [name for name in drawn["callbacks"] if name not in bars]
    if drawn["manual"] or lbfgs:
        drawn["accumulates"] = 1
    refused = drawn["manual"] or "swa" in drawn["callbacks"]
    if (drawn["schedule"] == "plateau" and refused) or (drawn["schedule"] == "one cycle" and lbfgs):
        drawn["schedule"] = None
    if drawn["data"] == "stream":  # its length is not known, so neither is a position within an epoch
        drawn["validates"] = 1.0
    if "pruning" in drawn["callbacks"]:
        drawn["states"] = [name for name in drawn["states"] if name != "teacher"]
    if drawn["validates"] == 1.0:
        drawn["pauses"] = [at for at in drawn["pauses"] if at % 1 == 0] or [2]
    return drawn


def updates(drawn):
    """Return the function from a position to the updates until there."""

    def until(position):
        made = 0
        for epoch in range(EPOCHS):
            batches = round(min(max(position - epoch, 0.0), 1.0) * BATCHES)
            each = {"more": 1 if epoch < 2 else 2}.get(drawn["accumulates"], drawn["accumulates"])
            made += batches // each + (batches == BATCHES and BATCHES % each > 0)
        return made

    return until


def program(drawn):
    def search(study):
        for trial in study:
            with trial:
                trainer = Trainer(
                    max_epochs=trial.max_epochs, callbacks=callbacks(drawn, trial), logger=False,
                    val_check_interval=drawn["validates"], enable_progress_bar=False, enable_model_summary=False,
                    enable_checkpointing="best file" in drawn["callbacks"],
                    reload_dataloaders_every_n_epochs=int(drawn["data"] == "reloaded"),
                    **{} if drawn["accumulates"] == "more" else {"accumulate_grad_batches": drawn["accumulates"]},
                )  # fmt: skip
                prepares = {"epoch's own", "dropout by epoch"} & {*drawn["states"]}
                net = (PreparingNet if prepares else Net)(**trial.config, drawn=drawn)
                data = (
                    (Data(),) if drawn["data"] not in LOADERS else (LOADERS[drawn["data"]](), DataLoader(HELD_OUT, 16))
                )
                if isinstance(data[0], Data):
                    trainer.fit(net, datamodule=data[0], ckpt_path=trial.checkpoint)
                else:
                    trainer.fit(net, *data, ckpt_path=trial.checkpoint)

    def evaluate(path, config):
        net = Net.load_from_checkpoint(path).eval()
        with torch.no_grad():
            return loss(net.net(x[64:]), y[64:]).item()

    declared = zoo.Declaration(
        needs=[], space={"lr": Float(0.001, 1.0, log=True)}, goal=Minimize("val_loss"), max_epochs=EPOCHS,
        trials=[{"lr": 0.05}, {"lr": 0.02}], pauses=drawn["pauses"], updates=updates(drawn),
        best_epoch=drawn["of"] == "best", keeps="pruning" not in drawn["callbacks"],
    )  # fmt: skip
    return zoo.Program("drawn", search, evaluate, declared)


def holds(drawn):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = zoo.train_all(program(drawn))
    straight, paused = runs.straight.sound(), runs.paused.sound()
    assert repr(paused.curves) == repr(straight.curves)  # with NaN
    assert paused.weights == straight.weights
    zoo.own(runs)
    if drawn["data"] in LOADERS:  # otherwise each trial has held out other data
        zoo.kept(runs)
    until = updates(drawn)
    for ran in (straight, paused):
        for trial in ran.trials:
            before = 0
            for attempt in range(1, trial.attempt + 1):
                for position, made in ran.watch.reported.get((trial.id, attempt), []):
                    # the epoch that updates the norm for averaged weights ends with a step without gradients
                    empty = position == EPOCHS and drawn["net"] == "norm" and "swa" in drawn["callbacks"]
                    assert before + made == until(position) + empty, (trial.id, attempt, position)
                before += ran.watch.made[trial.id, attempt]
    refused = any("cannot be paused" in line or "cannot resume exactly" in line for line in paused.lines)
    ends = max(t.epochs[-1] for t in straight.trials)
    assert refused or ends <= drawn["pauses"][0] or any(t.attempt > 1 for t in paused.trials)


@pytest.mark.parametrize("seed", range(2))
def test_a_drawn_program_holds_the_truths(seed, caplog):
    holds(draw(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 60))
def test_further_drawn_programs_hold_the_truths(seed, caplog):
    holds(draw(seed))


@pytest.mark.parametrize(
    "other",
    [
        {"callbacks": ["swa"], "net": "norm", "validates": 0.5},  # Lightning adds an epoch, with validations within it
        # the structure of the module changes between the verdict and the end of the epoch, where the state is complete
        {"callbacks": ["pruning"], "states": ["epoch's own"], "validates": 0.5, "pauses": [0.5]},
        {"callbacks": ["pruning"], "validates": 0.5, "pauses": [0.5]},  # or between the saved state and the end
    ],
    ids=["averaged norm", "pruned after the verdict", "pruned after the pause"],
)
def test_the_truths_hold_for_a_kind_that_was_found_among_drawn_ones(other, caplog):
    plain = {"net": "dropout", "manual": False, "optimizer": "adam", "schedule": None, "data": "shuffled", "place": 0}
    plain |= {"accumulates": 1, "validates": 1.0, "states": [], "callbacks": [], "pauses": [1, 3], "of": "last"}
    holds(plain | other)
