"""What a resumed Trainer needs beyond its own checkpoint is restored, or the trial does not pause."""

import copy
import enum
import random
import time
import warnings
from collections import Counter, defaultdict
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from callback_fakes import PAUSE, FakeTrial
from callback_studies import study
from fits import drawn
from paused_studies import pausing_study

from examples import rows as rows_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import h5py  # noqa: E402
import pandas as pd  # noqa: E402
from sklearn import preprocessing  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from tqdm import tqdm  # noqa: E402
from transformers import (  # noqa: E402
    DataCollatorForLanguageModeling,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer  # noqa: E402
from transformers_nets import EVERY_TWO, Net, Stream, adds_adapter, measured, rows, same, trainer, weights  # noqa: E402

from haltune import Constant, Study  # noqa: E402
from haltune.callbacks.transformers import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, NotSupported  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Unfreezes(TrainerCallback):
    """It freezes the last layer, and frees it once, at the start of the second epoch."""

    def on_train_begin(self, args, state, control, model, **others):
        model.layers[-1].requires_grad_(False)

    def on_epoch_begin(self, args, state, control, model, **others):
        if state.epoch == 1:
            model.layers[-1].requires_grad_(True)


class Settings(dict):
    __getattr__ = dict.get


class Cools(TrainerCallback):
    """It lowers the dropout by a count of its own."""

    def __init__(self):
        self.seen, self.starts, self.settings = 0, 0, Settings(rate=0.3)

    def on_train_begin(self, *args, **others):
        self.starts += 1

    def on_step_end(self, args, state, control, model, **others):
        self.seen += 1
        model.layers[1].p = self.settings.rate / (1 + self.seen)


class Weighs(Trainer):
    """It weighs the loss by a count of its own, which its class does not set before the training."""

    def compute_loss(self, model, inputs, return_outputs=False, **others):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **others)
        if model.training:
            self.seen = getattr(self, "seen", 0) + 1
        loss = loss * (1 + 0.1 * getattr(self, "seen", 0))
        return (loss, outputs) if return_outputs else loss


class Alternates(Trainer):
    """It takes a number from an iterator in each step."""

    def training_step(self, *arguments, **others):
        self.numbers = getattr(self, "numbers", None) or cycle([1.0, 2.0])
        next(self.numbers)
        return super().training_step(*arguments, **others)


class Clips(TrainerCallback):
    """It lowers a setting of the Trainer by its present value."""

    def on_step_end(self, args, state, control, **others):
        args.max_grad_norm *= 0.8


class SetsBeta(Trainer):
    """A library's Trainer, of which only __init__ sets a number."""

    __module__ = Trainer.__module__

    def __init__(self, *arguments, **others):
        super().__init__(*arguments, **others)
        self.beta = 1.0

    def compute_loss(self, model, inputs, return_outputs=False, **others):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **others)
        return (loss * self.beta, outputs) if return_outputs else loss * self.beta


class LowersBeta(SetsBeta):
    """The program's own, which lowers that number."""

    def training_step(self, *arguments, **others):
        self.beta *= 0.9
        return super().training_step(*arguments, **others)


class Accumulates(TrainerCallback):
    """It accumulates more gradients from the second epoch on."""

    def on_epoch_begin(self, args, state, control, **others):
        args.gradient_accumulation_steps = 1 + (state.epoch >= 1)


class CountsEpochs(Cools):
    """It counts at the end of an epoch, after the pause."""

    def on_step_end(self, *args, **others):
        pass

    def on_epoch_end(self, args, state, control, model, **others):
        super().on_step_end(args, state, control, model)


class Lists(TrainerCallback):
    """It lists the epochs as they start, and lowers the dropout by their number."""

    def __init__(self):
        self.epochs = []

    def on_epoch_begin(self, args, state, control, **others):
        self.epochs.append(state.epoch)

    def on_step_end(self, args, state, control, model, **others):
        model.layers[1].p = 0.3 / len(self.epochs)


class Phase(enum.Enum):
    WARM, COLD = "warm", "cold"


class Kinds(enum.Flag):
    EVEN, ODD = enum.auto(), enum.auto()


class Phases(TrainerCallback):
    """It notes members of enumerations, of which it has none at the start, and lowers the dropout by their number."""

    def __init__(self):
        self.phases, self.kinds = [], None

    def on_step_end(self, args, state, control, model, **others):
        self.phases.append(Phase.WARM if len(self.phases) < 3 else Phase.COLD)
        self.kinds = Kinds.EVEN | Kinds.ODD if self.kinds is Kinds.EVEN else Kinds.EVEN
        model.layers[1].p = 0.3 / (1 + self.phases.count(Phase.COLD) + (self.kinds is Kinds.EVEN))


class Tallies(TrainerCallback):
    """It counts steps in counters that it makes when it needs them, and lowers the dropout by their number."""

    def __init__(self):
        self.steps, self.places, self.seen = {}, {}, {}

    def on_step_end(self, args, state, control, model, **others):
        self.steps.setdefault("all", Counter())[f"{state.global_step % 5}"] += 1
        self.places.setdefault("all", defaultdict(list))[state.global_step % 3].append(1)
        if not isinstance(self.seen, defaultdict):
            self.seen = defaultdict(int)
        self.seen[state.global_step % 7] += 1
        model.layers[1].p = 0.3 / (1 + self.steps["all"]["2"] + len(self.places["all"][1]) + self.seen[1])


class Anneals(TrainerCallback):
    """It lowers the dropout by a function of NumPy."""

    def on_step_end(self, args, state, control, model, **others):
        model.layers[1].p = np.interp(state.global_step, [0, 16], [0.5, 0.1])


class Rows(TrainerCallback):
    """It notes the steps in an array with fields, and lowers the dropout by their number."""

    def __init__(self):
        self.rows = np.zeros(99, [("step", "i4"), ("place", "f4", (2,))])

    def on_step_end(self, args, state, control, model, **others):
        self.rows["step"][state.global_step] = state.global_step
        model.layers[1].p = 0.3 / (1 + int(np.count_nonzero(self.rows["step"])))


class Shrinks(TrainerCallback):
    """It shrinks the weights at the end of an epoch, by a number that it draws."""

    def on_epoch_end(self, args, state, control, model, **others):
        with torch.no_grad():
            for weight in model.parameters():
                weight *= 1 - 0.1 * torch.rand(()) - 0.1 * random.random()


class Starts(TrainerCallback):
    """It shrinks them at the start of an epoch, and the learning rate."""

    def on_epoch_begin(self, args, state, control, model, optimizer, **others):
        Shrinks().on_epoch_end(args, state, control, model)
        for group in optimizer.param_groups:
            group["lr"] *= 0.8


class Patient(TrainerCallback):
    """It ends the training after an evaluation that is not better, one at the start included."""

    def __init__(self):
        self.best, self.waited = np.inf, 0

    def on_evaluate(self, args, state, control, metrics, **others):
        self.waited = 0 if metrics["eval_loss"] < self.best else self.waited + 1
        self.best = min(self.best, metrics["eval_loss"])
        control.should_training_stop |= self.waited >= 1


class Unlabeled(Net):
    """Its loss is that of a function given to the Trainer."""

    def forward(self, x):
        return {"logits": self.layers(x).squeeze(-1)}


class Eases:
    """A function of the loss that counts its calls in training."""

    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, labels, num_items_in_batch=None):
        self.calls += torch.is_grad_enabled()
        scale = 1 + self.calls if torch.is_grad_enabled() else 1
        return (outputs["logits"] - labels).pow(2).mean() / scale


def eases():
    """The same, with a variable of an enclosing function."""
    calls = 0

    def loss(outputs, labels, num_items_in_batch=None):
        nonlocal calls
        calls += torch.is_grad_enabled()
        scale = 1 + calls if torch.is_grad_enabled() else 1
        return (outputs["logits"] - labels).pow(2).mean() / scale

    return loss


class EndsAtTwo(TrainerCallback):
    def on_epoch_end(self, args, state, control, **others):
        control.should_training_stop = state.epoch >= 2


class AveragesEpochs(TrainerCallback):
    """It makes its average at the end of the second epoch."""

    def on_epoch_end(self, args, state, control, model, **others):
        if state.epoch == 2:
            self.average = torch.optim.swa_utils.AveragedModel(model)


class Memory:
    """What a callback remembers, in a class of its own."""

    def __init__(self):
        self.mean, self.rng, self.seen = {}, np.random.default_rng(3), {"nothing"}


class Pulls(TrainerCallback):
    """It pulls the weights to a mean of theirs, of bfloat16, by a rate that it draws."""

    def __init__(self):
        self.memory = Memory()

    def on_step_end(self, args, state, control, model, **others):
        self.memory.seen.add(state.global_step)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                mean = self.memory.mean.setdefault(name, weight.bfloat16())
                mean.lerp_(weight.bfloat16(), 1 / len(self.memory.seen))
                weight.lerp_(mean.to(weight.dtype), self.memory.rng.random())


class Averages(TrainerCallback):
    """A user's own average of the weights."""

    def on_train_begin(self, args, state, control, model, **others):
        self.average = torch.optim.swa_utils.AveragedModel(model)

    def on_step_end(self, args, state, control, model, **others):
        self.average.update_parameters(model)


class Anchors(TrainerCallback):
    """It pulls the weights to a copy of the model, which it makes at the start."""

    def on_train_begin(self, args, state, control, model, **others):
        self.anchor = copy.deepcopy(model)

    def on_step_end(self, args, state, control, model, **others):
        with torch.no_grad():
            for weight, start in zip(model.parameters(), self.anchor.parameters(), strict=True):
                weight.lerp_(start, 0.1)


class Looks(TrainerCallback):
    """At the start it makes what is the same in each fit: a table, a model that is not the trained one, the time."""

    def on_train_begin(self, args, state, control, model, **others):
        self.model, self.weights, self.began = model, [*model.parameters()], time.time()
        self.table, self.other = np.zeros(3_000_000), Net().requires_grad_(False)
        self.other.layers.load_state_dict({k: v * 0 + 0.5 for k, v in self.other.layers.state_dict().items()})

    def on_step_end(self, *args, **others):
        assert time.time() - self.began < 60


class Probes(TrainerCallback):
    """It trains a layer on top of the model."""

    def on_train_begin(self, args, state, control, model, **others):
        self.probe = torch.nn.Sequential(model.layers, torch.nn.Linear(1, 1))

    def on_step_end(self, *args, **others):
        with torch.no_grad():
            self.probe[1].weight += 0.01


class Outside(Net):
    """Its output is scaled by a weight that a loss might have, and that is not among its parameters."""

    def __init__(self):
        super().__init__()
        self.scale = [torch.ones(1, requires_grad=True)]

    def forward(self, x, labels):
        return super().forward(x * self.scale[0], labels)


def of_both(model):
    return torch.optim.SGD([*model.parameters(), *model.scale], 0.05), None


class Projector:
    """An object that an optimizer keeps for each weight, as GaLore does."""


class Projects(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for weight in self.param_groups[0]["params"]:
            self.state[weight].setdefault("projector", Projector())


def cosine(model):
    """A schedule by NumPy, whose rates are numbers of NumPy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + np.cos(step / 16)))


class Cuts(TrainerCallback):
    """It cuts the rate by a number of NumPy at the end of an epoch, before the state is saved."""

    def on_epoch_end(self, args, state, control, optimizer, **others):
        for group in optimizer.param_groups:
            group["lr"] *= np.float64(0.9)


def layerwise(model):
    """As the Trainer makes galore_adamw_layerwise, without its package."""
    each = {p: torch.optim.SGD([p], 0.05, momentum=0.9) for p in model.parameters()}

    def step(parameter):
        each[parameter].step()
        each[parameter].zero_grad()

    for parameter in each:
        parameter.register_post_accumulate_grad_hook(step)
    return LayerWiseDummyOptimizer(optimizer_dict=each), None


class Loads(Trainer):
    """It makes the loader of the training itself, whatever TrainingArguments say of it."""

    def get_train_dataloader(self):
        loader = DataLoader(
            self.train_dataset, 4, shuffle=True, num_workers=1, persistent_workers=True, collate_fn=self.data_collator
        )
        return self.accelerator.prepare(loader)


class Grows(TrainerCallback):
    def on_epoch_end(self, args, state, control, optimizer, lr_scheduler, **others):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
        lr_scheduler.base_lrs.append(0.1)
        lr_scheduler.lr_lambdas.append(lambda step: 1.0)


class Prunes(TrainerCallback):
    def on_epoch_end(self, args, state, control, model, **others):
        if state.epoch == 1:
            prune.random_unstructured(model.layers[-1], "weight", 1)


class Noise:
    """A collator that adds noise: of a generator of its own, or of the process."""

    def __init__(self, rng=None):
        self.rng = rng

    def __call__(self, batch):
        found = default_data_collator(batch)
        noise = torch.randn(3) if self.rng is None else torch.tensor([self.rng.random() for _ in range(3)])
        return found | {"x": found["x"] + noise}


DRAWS = random.Random()


class Names:
    """A collator that draws from a generator in a variable of its module."""

    def __init__(self):
        DRAWS.seed(4)

    def __call__(self, batch):
        found = default_data_collator(batch)
        return found | {"x": found["x"] + DRAWS.random()}


class Noisy(torch.utils.data.Dataset):
    """Rows with noise that each reading draws."""

    def __init__(self):
        self.rows = rows(16)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        return self.rows[i] | {"x": self.rows[i]["x"] + torch.randn(3)}


class Shows(ProgressCallback):
    """A progress bar with words of its own, and one for each epoch."""

    def __init__(self):
        super().__init__()
        self.epochs = None

    def on_train_begin(self, args, state, control, **others):
        super().on_train_begin(args, state, control, **others)
        self.training_bar.set_description("mine")

    def on_epoch_begin(self, args, state, control, **others):
        self.epochs = tqdm(total=4)


class Opens(torch.utils.data.Dataset):
    """Rows of a file that is opened where they are read first, by itself or by a reader that counts."""

    def __init__(self, path, counts):
        self.path, self.file, self.reader, self.late = path, None, Reader(path, counts), None

    def __len__(self):
        return 16

    def __getitem__(self, i):
        if self.file is None:
            self.file = h5py.File(self.path)
        if self.late is None:
            self.late = Reader(self.path, self.reader.counts)
        x = torch.tensor(self.file["x"][i]) + self.late.total(i) / 100
        return {"x": x, "labels": self.reader.total(i)}


class Reader:
    def __init__(self, path, counts):
        self.path, self.h5, self.counts, self.seen = path, None, counts, 0

    def _open(self):
        self.h5 = h5py.File(self.path)

    def close(self):
        if self.h5 is not None:
            self.h5.close()
            self.h5 = None

    def total(self, i):
        if not self.h5:
            self._open()
        self.seen += self.counts
        return torch.tensor(self.h5["x"][i]).sum() * (1 + self.seen / 100)


class Tabled(torch.utils.data.Dataset):
    """Rows of a table. Its index remembers what it has looked up."""

    def __init__(self):
        self.table = pd.DataFrame([row["x"].tolist() for row in rows(16)], index=[f"row {i}" for i in range(16)])
        self.index, self.looked_up = self.table.index, pd.MultiIndex.from_product([range(4), range(4)])

    def __len__(self):
        return 16

    def __getitem__(self, i):
        assert self.index.get_loc(f"row {i}") == i == self.looked_up.get_loc((i // 4, i % 4))
        x = torch.tensor(self.table.iloc[i].to_numpy(), dtype=torch.float32)
        return {"x": x, "labels": x.sum()}


class Rewrites(Tabled):
    """It changes rows as they are read."""

    def __getitem__(self, i):
        self.table.iloc[i, 0] += 0.1
        return super().__getitem__(i)


class Scales(TrainerCallback):
    """It scales the dropout by the mean of what a scaler of scikit-learn has seen."""

    def __init__(self):
        self.scaler = preprocessing.StandardScaler().partial_fit([[1.0]])

    def on_step_end(self, args, state, control, model, **others):
        self.scaler.partial_fit([[state.global_step]])
        model.layers[1].p = 0.3 / (1 + self.scaler.mean_[0])


class Counts(Net):
    """A net that counts its batches, and trains less the more there were."""

    seen = 0

    def forward(self, x, labels):
        out = super().forward(x, labels)
        self.seen = self.seen + self.training
        return out | {"loss": out["loss"] / (1 + self.seen)}


class Carries(Net):
    """It carries a tensor from batch to batch, and detaches it where it reads it, as an LSTM's state is carried."""

    carried = None

    def forward(self, x, labels):
        out, carried = super().forward(x, labels), 0.0 if self.carried is None else self.carried.detach()
        if self.training:
            self.carried = 0.5 * carried + out["loss"]
        return out | {"loss": out["loss"] * (1 + carried)}


class Scaled(torch.utils.data.Dataset):
    """Rows by a scale, which a program sets as an epoch starts."""

    def __init__(self):
        self.rows, self.scale = rows(16), 1.0

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return self.rows[index] | {"x": self.rows[index]["x"] * self.scale}


class Rescales(TrainerCallback):
    def on_epoch_begin(self, args, state, control, train_dataloader, **others):
        train_dataloader.dataset.scale *= 0.8


class Weighted(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.WeightedRandomSampler(torch.ones(16), 16)


class Mines(TrainerCallback):
    """It lets the sampler draw the first rows more often with each epoch."""

    def on_epoch_end(self, args, state, control, train_dataloader, **others):
        sampler = train_dataloader.batch_sampler.sampler
        sampler.weights = sampler.weights * torch.linspace(1.0, 0.5, 16)


class Chosen(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SubsetRandomSampler([*range(8)] * 2)


class Chooses(TrainerCallback):
    """It lets the sampler draw other rows with each epoch."""

    def on_epoch_end(self, args, state, control, train_dataloader, **others):
        sampler = train_dataloader.batch_sampler.sampler
        sampler.indices = [*sampler.indices[4:], *((row + 8) % 16 for row in sampler.indices[:4])]


class Counting(torch.optim.SGD):
    """It has a count among the states of its weights, as MADGRAD."""

    def __init__(self, weights):
        super().__init__(weights, 0.05, momentum=0.9)
        self.state["k"] = torch.tensor([0])


class Long(torch.utils.data.Dataset):
    """Rows with a length each."""

    def __init__(self):
        self.rows = [row | {"input_ids": [0] * (1 + i % 7)} for i, row in enumerate(rows(16))]

    def __len__(self):
        return 16

    def __getitem__(self, i):
        return self.rows[i]


def make(folder, *callbacks, collator=None, model=None, train=None, loss=None, **options):
    torch.manual_seed(0)
    if loss is not None:
        options["kind"] = partial(Trainer, compute_loss_func=loss())
    t = trainer(folder, *callbacks, model=model and model(), train=train and train(), data=train and train(), **options)
    if collator is not None:
        t.data_collator = collator()
    return t


def trained(tmp_path, at, others=(), epochs=4, unit="epoch", **options):
    """A straight training, and one that a policy pauses: their logs, the record and haltune's warnings."""
    straight = make(tmp_path / "straight", *[kind() for kind in others], epochs=epochs, **options)
    straight.train()
    s = pausing_study(f"{tmp_path}/s.db", at=at, epochs=epochs if unit == "epoch" else options["max_steps"], unit=unit,
                      metric="eval_loss", verbose=0)  # fmt: skip
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", HaltuneWarning)
        for trial in s:
            with trial:
                t = make(
                    tmp_path / "out", HaltuneCallback(trial), *[kind() for kind in others], epochs=epochs, **options
                )
                for _ in range(trial.attempt - 1):  # not the states that a resumed training is to find
                    drawn()
                t.train(resume_from_checkpoint=trial.checkpoint)
    (record,) = s.trials
    logged = [line["eval_loss"] for line in straight.state.log_history if "eval_loss" in line]
    assert record.values.tolist() == logged[options.get("eval_on_start", 0) :]
    assert same(weights(t), weights(straight))
    losses = [line["loss"] for line in straight.state.log_history if "loss" in line]
    said = [str(w.message) for w in found if issubclass(w.category, HaltuneWarning)]
    return record, losses, said


GROUPED = {"train_sampling_strategy": "group_by_length", "remove_unused_columns": False}
WORKERS = {"dataloader_num_workers": 1}
LABELLED = {"model": Unlabeled, "remove_unused_columns": False, "label_names": ["labels"]}
WITHIN = ((1.5, 2.5), EVERY_TWO)
BETWEEN = ((1, 2), {})
OWN = {"collator": lambda: Noise(random.Random(4))}
GLOBAL = {"collator": Noise}
RESTORED = {
    "trainable flags": (*BETWEEN, {"others": [Unfreezes]}),
    "trainable flags, within": (*WITHIN, {"others": [Unfreezes]}),
    "attributes of a callback": (*BETWEEN, {"others": [Cools]}),
    "attributes of a callback, within": (*WITHIN, {"others": [Cools]}),
    "attributes of a Trainer": (*BETWEEN, {"kind": Weighs}),
    "attributes of a Trainer, within": (*WITHIN, {"kind": Weighs}),
    "a setting of the Trainer": (*BETWEEN, {"others": [Clips]}),
    "a setting of the Trainer, within": (*WITHIN, {"others": [Clips]}),
    "a number that a library's Trainer sets at its start": (*BETWEEN, {"kind": LowersBeta}),
    "tensors and a generator of a callback": (*BETWEEN, {"others": [Pulls]}),
    "tensors and a generator of a callback, within": (*WITHIN, {"others": [Pulls]}),
    "members of enumerations": (*BETWEEN, {"others": [Phases]}),
    "counters": (*BETWEEN, {"others": [Tallies]}),
    "an array with fields": (*BETWEEN, {"others": [Rows]}),
    "a list that grows at the start of an epoch": (*BETWEEN, {"others": [Lists]}),
    "a list that grows at the start of an epoch, within": (*WITHIN, {"others": [Lists]}),
    "attributes that change at the end of an epoch": ((2,), EVERY_TWO, {"others": [CountsEpochs]}),
    "weights that change at the end of an epoch": ((2, 3), EVERY_TWO, {"others": [Shrinks]}),
    "random numbers at the start of an epoch": (*BETWEEN, {"others": [Starts]}),
    "random numbers at the start of an epoch, within": (*WITHIN, {"others": [Starts]}),
    "an evaluation at the start": (*BETWEEN, {"others": [Starts], "eval_on_start": True}),
    "patience that counts an evaluation at the start": (*BETWEEN, {"others": [Patient], "eval_on_start": True}),
    "patience that counts an evaluation at the start, within": (*WITHIN, {"others": [Patient], "eval_on_start": True}),
    "a function of the loss": (*BETWEEN, LABELLED | {"loss": Eases}),
    "a function of the loss, within": (*WITHIN, LABELLED | {"loss": eases}),
    "what a hook makes in each fit": (*BETWEEN, {"others": [Looks]}),
    "numbers of NumPy in modules": (*BETWEEN, {"others": [Anneals]}),
    "numbers of modules": (*BETWEEN, {"model": Counts}),
    "a tensor that a module carries with its graph": (*BETWEEN, {"model": Carries}),
    "weights of a sampler": (*BETWEEN, {"kind": Weighted, "others": [Mines]}),
    "rates of NumPy": (*BETWEEN, {"optimizers": cosine, "others": [Cuts]}),
    "rates of NumPy, within": (*WITHIN, {"optimizers": cosine}),
    "rows of a sampler": (*BETWEEN, {"kind": Chosen, "others": [Chooses]}),
    "a count of an optimizer": (*BETWEEN, {"optimizers": lambda model: (Counting(model.parameters()), None)}),
    "a collator with a generator": (*BETWEEN, OWN),
    "a collator of NumPy": (*BETWEEN, {"collator": lambda: Noise(np.random.default_rng(4))}),
    "a collator that draws": (*BETWEEN, GLOBAL),
    "a collator that names a generator": (*BETWEEN, {"collator": Names}),
    "a number of the data that an epoch sets, within": (*WITHIN, {"train": Scaled, "others": [Rescales]}),
    "data that draw": (*BETWEEN, {"train": Noisy}),
    "data that draw in workers": (*BETWEEN, {"train": Noisy} | WORKERS),
    "plain data in workers, within": (*WITHIN, WORKERS),
    "ignore_data_skip": (*BETWEEN, {"ignore_data_skip": True}),
    "grouped by length": (*WITHIN, GROUPED | {"train": Long, "collator": lambda: Lengths()}),
    "a seed of the data": (*WITHIN, {"data_seed": 9}),
    "a log between the evaluations": (*WITHIN, {"logging_strategy": "steps", "logging_steps": 3}),
    "a log after the evaluation": ((2,), EVERY_TWO, {"logging_strategy": "epoch"}),
    "a progress bar": (*BETWEEN, {"others": [Shows]}),
    "a progress bar, within": (*WITHIN, {"others": [Shows]}),
    "a table": (*BETWEEN, {"train": Tabled}),
    "NEFTune off, dropout on": (*WITHIN, {"max_grad_norm": 0.1}),
}


class Lengths:
    def __call__(self, batch):
        return default_data_collator([{k: v for k, v in row.items() if k != "input_ids"} for row in batch])


@pytest.mark.parametrize(("at", "evaluates", "options"), rows_of(
    RESTORED, "trainable flags, within", "attributes of a Trainer", "tensors and a generator of a callback, within",
    "random numbers at the start of an epoch", "a function of the loss", "a collator with a generator",
    "data that draw", "grouped by length", "a log between the evaluations", "a progress bar",
))  # fmt: skip
def test_what_changes_later_steps_is_restored(at, evaluates, options, tmp_path):
    record, losses, said = trained(tmp_path, at, **evaluates | options)
    assert said == []
    assert record.attempt == len(at) + 1
    if (how := evaluates | options).get("logging_strategy"):
        found = record.metrics["loss"]
        reported = losses[:-1] if how["logging_strategy"] == "epoch" else losses  # the last comes after the last report
        assert {*found[np.isfinite(found)]} == {*reported}


DECLINED = {
    "a callback's average": (*BETWEEN, {"others": [Averages]}, r"Averages\.average changes in training and is not"),
    "an average that starts where it would pause": (
        (2,),
        EVERY_TWO,
        {"others": [AveragesEpochs]},
        "AveragesEpochs.aver",
    ),
    "an iterator of its own class": (*BETWEEN, {"kind": Alternates}, "because Alternates.numbers is an iterator"),
    "a copy of the model at the start": (*BETWEEN, {"others": [Anchors]}, "Anchors.anchor is a copy of the weights"),
    "a layer on top of the model": (*BETWEEN, {"others": [Probes]}, r"Probes\.probe changes in training and is not"),
    "groups of the optimizer": ((2,), {}, {"others": [Grows]}, "other parameter groups"),
    "objects of an optimizer": (
        *BETWEEN,
        {"optimizers": lambda model: (Projects(model.parameters(), 0.05), None)},
        "the optimizer has objects of Projector",
    ),
    "weights of a loss": (*BETWEEN, {"model": Outside, "optimizers": of_both}, "weights outside the model"),
    "pruned weights": ((2,), {}, {"others": [Prunes]}, "other parameters or buffers"),
    "a collator with a generator": (*WITHIN, OWN, "draw random numbers"),
    "a collator that draws": (*WITHIN, GLOBAL, "draw random numbers"),
    "data that draw": (*WITHIN, {"train": Noisy}, "draw random numbers"),
    "data that draw in workers": (*WITHIN, {"train": Noisy} | WORKERS, "draw random numbers"),
    "a table that changes": (*BETWEEN, {"train": Rewrites}, "table changes in training and is not"),
    "a scaler": (*BETWEEN, {"others": [Scales]}, "Scales.scaler changes in training and is not"),
    "persistent workers": (*BETWEEN, WORKERS | {"dataloader_persistent_workers": True}, "persistent workers"),
    "persistent workers of the program's loader": (*BETWEEN, {"kind": Loads}, "persistent workers"),
    "a layerwise optimizer": (*BETWEEN, {"optimizers": layerwise}, "layerwise optimizer"),
    "ignore_data_skip": (*WITHIN, {"ignore_data_skip": True}, "ignore_data_skip=True"),
    "save_only_model": (*BETWEEN, {"save_strategy": "epoch", "save_only_model": True}, "save_only_model"),
}


@pytest.mark.parametrize(
    ("at", "evaluates", "options", "match"),
    rows_of(
        DECLINED,
        "a callback's average",
        "an average that starts where it would pause",
        "an iterator of its own class",
        "weights of a loss",
        "a collator with a generator",
        "a table that changes",
        "persistent workers",
        "save_only_model",
    ),
)
def test_what_cannot_be_restored_is_not_paused_and_said_once(at, evaluates, options, match, tmp_path):
    record, _, said = trained(tmp_path, at, **evaluates | options)
    assert record.attempt == 1
    (reason,) = said
    assert match.replace("\\", "") in reason
    assert "it keeps training" in reason


def test_a_training_that_accumulates_more_gradients_later_is_not_paused(tmp_path):
    record, _, said = trained(tmp_path, (2,), others=[Accumulates])
    assert record.attempt == 1
    assert any("gradient_accumulation_steps changes in training" in one and "keeps training" in one for one in said)


def test_a_file_that_data_open_as_they_are_read_is_opened_again(tmp_path):
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = np.stack([row["x"].numpy() for row in rows(16)])
    counts = cycle([1, 0])  # the rows that train, not those that are evaluated
    record, _, said = trained(tmp_path, (1, 2), train=lambda: Opens(tmp_path / "rows.h5", next(counts)))
    assert (record.attempt, said) == (3, [])


class Masks(DataCollatorForLanguageModeling):
    """A collator that masks rows by the generator of transformers' own, without a tokenizer."""

    __module__ = DataCollatorForLanguageModeling.__module__

    def torch_call(self, examples):
        if self.seed is not None and self.generator is None:
            self.create_rng()
        batch = default_data_collator(examples)
        return batch | {"x": batch["x"] * (torch.rand(batch["x"].shape, generator=self.generator) < 0.8)}


def masks():
    return Masks(None, mlm=False, seed=5)


@pytest.mark.parametrize("options", [{}, pytest.param(WORKERS, marks=pytest.mark.slow)])
def test_a_generator_that_a_collator_makes_at_its_first_batch_continues(options, tmp_path):
    record, _, said = trained(tmp_path, (1, 2), collator=masks, **options)
    assert (record.attempt, said) == (3, [])


def test_a_generator_that_a_collator_makes_at_its_first_batch_is_not_paused_within_a_pass(tmp_path):
    record, _, said = trained(tmp_path, (1.5,), collator=masks, **EVERY_TWO)
    assert record.attempt == 1
    assert "draw random numbers" in said[0]


def test_ranks_of_adalora_that_are_chosen_by_averages_are_not_paused(tmp_path):
    peft = pytest.importorskip("peft", reason="PEFT is not installed")

    def adapted():
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
        chosen = {"init_r": 4, "target_r": 2, "tinit": 1, "tfinal": 2, "deltaT": 1, "total_step": 8}
        return peft.get_peft_model(layers, peft.AdaLoraConfig(target_modules=["0", "1"], **chosen))

    class Chooses(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model=None, **others):
            model.base_model.update_and_allocate(state.global_step)

    class Fits(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **others):
            loss = (model(inputs["x"]) - inputs["labels"]).pow(2).mean()
            return (loss, {"loss": loss}) if return_outputs else loss

    rows = [{"x": torch.full((4,), float(i)), "labels": torch.tensor([float(i)])} for i in range(8)]
    how = {"eval_strategy": "epoch", "save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    how |= {"label_names": ["labels"], "remove_unused_columns": False}
    s = pausing_study(at=(2,), epochs=4, metric="eval_loss", verbose=0)
    with pytest.warns(HaltuneWarning, match="AdaLoRA chooses its ranks by averages.*keeps training"):
        for trial in s:
            with trial:
                arguments = TrainingArguments(str(tmp_path), num_train_epochs=4, **how)
                callbacks = [HaltuneCallback(trial), Chooses()]
                Fits(adapted(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=callbacks).train()
    assert s.trials[0].attempt == 1


def adapted(*saved):
    """The net with an adapter of PEFT. saved: further modules that its checkpoints have."""
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    torch.manual_seed(0)
    return peft.get_peft_model(Net(), peft.LoraConfig(r=2, target_modules=["layers.2"], modules_to_save=[*saved]))


def test_adapters_that_the_model_has_added_are_not_paused(tmp_path):
    pytest.importorskip("peft", reason="PEFT is not installed")
    record, _, said = trained(tmp_path, (2,), model=adds_adapter)
    assert record.attempt == 1
    assert "the Trainer does not load adapters that model.add_adapter made" in said[0]


UNLABELLED = {"remove_unused_columns": False, "label_names": ["labels"]}


def test_adapters_resume_with_the_modules_that_peft_saves(tmp_path):
    record, _, said = trained(tmp_path, (1, 2), model=lambda: adapted("layers.0"), **UNLABELLED)
    assert (record.attempt, said) == (3, [])


@pytest.mark.slow
def test_what_changes_around_the_adapters_is_not_paused_and_a_kept_model_is_named(tmp_path):
    """A batch norm's buffers, which the checkpoints of PEFT lack."""
    record, _, said = trained(tmp_path, (1, 2), model=adapted, **UNLABELLED)
    assert record.attempt == 1
    declined, kept = said
    assert "have the adapters alone, and other weights or buffers of the model change in training" in declined
    assert "it keeps training" in declined
    assert "a model that is kept does not have the value of its trial: name their modules in modules_to_save=" in kept


@pytest.mark.parametrize("replaced", [False, True])
def test_a_trial_that_resumes_around_other_frozen_weights_is_warned_unless_peft_replaced_them(replaced, tmp_path):
    """The program draws frozen weights in each attempt, such as those of a new head, and PEFT does not save them."""
    s = pausing_study(at=(2,), epochs=3, metric="eval_loss", verbose=0)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", HaltuneWarning)
        for trial in s:
            with trial:
                model = adapted("layers.0")
                layers = model.base_model.model.layers
                with torch.no_grad():
                    (layers[0].original_module if replaced else layers[2].base_layer).weight.add_(trial.attempt)
                t = trainer(tmp_path, HaltuneCallback(trial), model=model, **UNLABELLED)
                t.train(resume_from_checkpoint=trial.checkpoint)
    said = [str(w.message) for w in found if issubclass(w.category, HaltuneWarning)]
    assert s.trials[0].attempt == 2
    assert replaced == (not said)
    assert all("resumed, but some weights of its model could not be restored" in one for one in said)


def averaged():
    """A function of metrics that returns the mean of all errors so far."""
    errors = []

    def metrics(prediction):
        errors.append(measured(prediction)["mae"])
        return {"mean": float(np.mean(errors))}

    return metrics


@pytest.mark.parametrize("evaluates", [pytest.param({}, marks=pytest.mark.slow), EVERY_TWO])
def test_what_compute_metrics_remembers_is_restored(evaluates, tmp_path):
    found = []
    for at in ((), (1, 2)):
        s = pausing_study(at=at, epochs=3, metric="eval_mean", verbose=0)
        for trial in s:
            with trial:
                t = trainer(tmp_path / f"{len(at)}", HaltuneCallback(trial), **evaluates)
                t.compute_metrics = averaged()
                t.train(resume_from_checkpoint=trial.checkpoint)
        found.append((s.trials[0].attempt, s.trials[0].values.tolist()))
    (one, straight), (other, resumed) = found
    assert (one, other) == (1, 3)
    assert straight == resumed


class Keeps(Eases):
    """It keeps the outputs of the last batch, which cannot be saved."""

    def __call__(self, outputs, labels, num_items_in_batch=None):
        self.outputs = iter(outputs)
        return super().__call__(outputs, labels)


def test_a_loss_that_keeps_what_cannot_be_saved_does_not_fail_the_checkpoints_of_the_program(tmp_path):
    trial = FakeTrial("eval_loss", max_epochs=2)
    make(tmp_path, HaltuneCallback(trial), **LABELLED, loss=Keeps, epochs=2, save_strategy="epoch").train()
    assert trial.epochs == [1, 2]


def test_data_without_a_length_that_started_again_are_not_paused_within_a_pass(tmp_path):
    options = EVERY_TWO | {"max_steps": 8, "train": lambda: Stream(16)}
    record, _, said = trained(tmp_path, (6,), unit="step", **options)
    assert (record.attempt, len(said)) == (1, 1)
    assert "started again" in said[0]


@pytest.mark.parametrize(
    "kind", [pytest.param(Starts, marks=pytest.mark.slow), Shrinks, pytest.param(CountsEpochs, marks=pytest.mark.slow)]
)
def test_the_hooks_of_a_pass_over_data_without_a_length_count_once(kind, tmp_path):
    options = {"max_steps": 12, "train": lambda: Stream(16), "others": [kind]}
    record, _, said = trained(tmp_path, (4, 8), unit="step", **options)
    assert (record.attempt, said) == (3, [])


@pytest.mark.slow
def test_a_pass_that_ends_where_a_trial_paused_counts(tmp_path):
    options = EVERY_TWO | {"max_steps": 8, "train": lambda: Stream(16)}
    record, _, said = trained(tmp_path, (4, 6), unit="step", **options)
    assert (record.attempt, len(said)) == (2, 1)
    assert "started again" in said[0]


def test_a_callback_that_ends_the_training_after_the_epoch_wins_over_a_pause_in_its_last_step(tmp_path):
    record, _, said = trained(tmp_path, (2,), others=[EndsAtTwo], **EVERY_TWO)
    assert (record.attempt, record.epoch, record.status.value, said) == (1, 2.0, "completed", [])


def test_a_pause_without_what_haltune_adds_to_the_checkpoint_is_declined(tmp_path):
    class Blocks(TrainerCallback):
        def on_save(self, args, state, control, **others):
            (tmp_path / f"checkpoint-{state.global_step}" / "haltune.json").mkdir()

    s = pausing_study(at=(2,), epochs=3, metric="eval_loss", verbose=0)
    with pytest.warns(HaltuneWarning, match=r"could not be written.*keeps training"), s.ask() as trial:
        trainer(tmp_path, Blocks(), HaltuneCallback(trial)).train()
    assert s.trials[0].epochs.tolist() == [1, 2, 3]


def test_a_file_of_the_program_that_cannot_be_read_ends_no_training(tmp_path):
    class Exports(TrainerCallback):
        def on_save(self, args, state, control, **others):
            (tmp_path / f"checkpoint-{state.global_step}" / "half.safetensors").write_bytes(b"{")

    s = pausing_study(at=(2,), epochs=3, metric="eval_loss", verbose=0)
    with s.ask() as trial:
        trainer(tmp_path, Exports(), HaltuneCallback(trial)).train()
    assert (s.trials[0].status.value, s.trials[0].epochs.tolist()) == ("paused", [1, 2])


# whose checkpoint it is


def shared(trial, folder, path=True):
    t = trainer(folder, HaltuneCallback(trial), save_strategy="epoch")
    t.train(resume_from_checkpoint=path)
    return t


def test_the_last_checkpoint_of_another_trial_in_a_shared_folder_is_refused(tmp_path):
    s = study(epochs=3, metric="eval_loss")
    with s.ask() as trial:
        shared(trial, tmp_path, None)
    with pytest.raises(
        NotSupported, match=r"trial 1 loaded a state of trial 0.*resume_from_checkpoint=trial.checkpoint"
    ):
        shared(s.ask(), tmp_path)


def test_a_checkpoint_of_another_study_with_the_same_number_is_refused(tmp_path):
    one, other = (Study({"lr": Constant(x)}, "eval_loss", max_epochs=3, budget="1 trial") for x in (1.0, 2.0))
    with one.ask() as trial:
        shared(trial, tmp_path, None)
    with pytest.raises(NotSupported, match="a state of trial 0 of another study, with another configuration"):
        shared(other.ask(), tmp_path)


def test_a_checkpoint_that_names_no_trial_is_refused(tmp_path):
    trainer(tmp_path, save_strategy="epoch").train()
    trial = FakeTrial("eval_loss")
    with pytest.raises(NotSupported, match=r"names no trial.*To start from other weights, load them into the model"):
        shared(trial, tmp_path)
    assert trial.epochs == []


def paused_by_two(tmp_path):
    """Return the next attempt of a trial that two ranks have paused after two epochs of four steps each."""
    s = pausing_study(tmp_path / "s.db", metric="eval_loss", verbose=0)
    with s.ask() as trial:
        trainer(tmp_path, HaltuneCallback(trial), epochs=4).train()
    trial = s.ask()
    file = Path(trial.checkpoint, "haltune.json")
    file.write_text(file.read_text().replace('"ranks": 1', '"ranks": 2'))
    return trial


class Says(TrainerCallback):
    """It states that a library, which does not run where tests do, spreads the model."""

    trainer = None

    def __init__(self, library):
        self.library = library

    def on_train_begin(self, args, state, control, **others):
        setattr(self.trainer, f"is_{self.library}_enabled", True)


def test_a_trainer_under_fsdp_does_not_save_where_its_checkpoint_would_lack_the_count_of_its_optimizer(tmp_path):
    trial, says = FakeTrial("eval_loss", max_epochs=3, verdicts={2.0: PAUSE}), Says("fsdp")
    says.trainer = t = trainer(
        tmp_path, says, HaltuneCallback(trial), optimizers=lambda model: (Counting(model.parameters()), None)
    )
    with pytest.warns(HaltuneWarning, match=r"because Counting has a state that belongs to no weight.*keeps training"):
        t.train()
    assert (trial.epochs, trial.declined, [*tmp_path.glob("checkpoint-*")]) == ([1, 2, 3], 1, [])


def test_a_trial_continues_on_another_number_of_ranks_with_a_warning(tmp_path):
    with pytest.warns(HaltuneWarning, match="paused on 2 ranks and resumes on 1"), paused_by_two(tmp_path) as trial:
        t = trainer(tmp_path, HaltuneCallback(trial), epochs=4)
        t.train(resume_from_checkpoint=trial.checkpoint)
    assert (trial.attempt, trial.epoch, t.state.global_step) == (2, 4, 16)


@pytest.mark.parametrize(
    ("batch", "others", "why"),
    [
        (2, [], "resume on 1: an epoch has 8 steps there, not 4"),
        (4, [Says("deepspeed")], "resume on 1, because each rank"),
    ],
)
def test_another_number_of_ranks_is_refused_where_the_state_or_the_epoch_would_be_another(batch, others, why, tmp_path):
    with pytest.raises(NotSupported, match=f"paused on 2 ranks and cannot {why}"), paused_by_two(tmp_path) as trial:
        t = trainer(tmp_path, *others, HaltuneCallback(trial), epochs=4, per_device_train_batch_size=batch)
        for other in others:
            other.trainer = t
        t.train(resume_from_checkpoint=trial.checkpoint)


# a training that starts again


class RunsOut(TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        if state.global_step == 3 and state.train_batch_size == 8:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    "file",
    [
        pytest.param("optimizer.pt", marks=pytest.mark.slow),
        pytest.param("scheduler.pt", marks=pytest.mark.slow),
        "model.safetensors",
    ],
)
def test_a_trial_whose_checkpoint_lost_a_file_starts_again_as_the_trainer_would_go_on_without_it(file, tmp_path):
    def train(trial):
        t = make(tmp_path / "run", HaltuneCallback(trial), learning_rate=trial.config["lr"])
        t.train(resume_from_checkpoint=trial.checkpoint)

    told = []
    for lost in (False, True):
        search = pausing_study(tmp_path / f"{lost}.db", at=(2,), epochs=3, metric="eval_loss", verbose=0)
        with search.ask() as trial:
            train(trial)
        if lost:
            (path,) = search.checkpoints.of(0).glob(f"*/{file}")
            path.unlink()
            with pytest.warns(HaltuneWarning, match=f"trial 0, .* has lost its file {file}.* starts from scratch"):
                trial = search.ask()
            with trial:
                train(trial)
        for trial in search:
            with trial:
                train(trial)
        told.append(search.trials[0])
    assert [t.attempt for t in told] == [2, 3]
    assert [*told[0].values] == [*told[1].values]


def test_a_smaller_batch_after_out_of_memory_starts_the_curve_again(tmp_path):
    s = study(epochs=3, metric="eval_loss")
    options = {"auto_find_batch_size": True, "per_device_train_batch_size": 8}
    warned = pytest.warns(
        HaltuneWarning, match="trains again from its start.*The Trainer continues with the same model"
    )
    with warned, s.ask() as trial:
        t = trainer(tmp_path, HaltuneCallback(trial), RunsOut(), **options)
        t.train()
    (record,) = s.trials
    assert record.values.tolist() == [line["eval_loss"] for line in t.state.log_history if "eval_loss" in line]
    assert (record.epochs.tolist(), s.spent.epochs) == ([1, 2, 3], 4.0)


class Nested(Counts):
    """A net within modules of the program's, of which the innermost remembers losses."""

    def __init__(self):
        super().__init__()
        self.outer = Remembers(Remembers(None))

    def forward(self, x, labels):
        return self.outer(super().forward(x, labels))


class Remembers(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.losses = inner, []

    def forward(self, out):
        if self.inner is not None:
            return self.inner(out)
        self.losses = [*self.losses, float(out["loss"])][-3:]
        return out | {"loss": out["loss"] * (1 + self.losses[0])}


def test_what_an_inner_module_remembers_is_set_in_it_alone(tmp_path):
    made = []

    def make():
        made.append(Nested())
        return made[-1]

    record, _, said = trained(tmp_path, (2,), model=make)
    assert (record.attempt, said) == (2, [])
    names = [{*vars(model.outer)} for model in made]
    assert names == names[:1] * len(names)
