"""A tiny net, its data, the Trainer of Hugging Face that trains it, and the cases in which it resumes exactly."""

from itertools import cycle

import numpy as np
import pytest
import torch
from fits import Case, few
from samplers import Shuffling
from transformers import Trainer, TrainingArguments

from haltune import Minimize


class Net(torch.nn.Module):
    """A linear layer behind a dropout, with a batch norm's buffers."""

    def __init__(self, dropout=0.3):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(dropout), torch.nn.Linear(3, 1))

    def forward(self, x, labels):
        out = self.layers(x).squeeze(-1)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


def adds_adapter():
    """A model of transformers with the layers of Net, to which it has added an adapter itself."""
    from peft import LoraConfig
    from transformers import PretrainedConfig, PreTrainedModel

    class Model(PreTrainedModel):
        config_class, forward = PretrainedConfig, Net.forward

        def __init__(self, config):
            super().__init__(config)
            self.layers = Net().layers
            self.post_init()

    model = Model(PretrainedConfig())
    model.add_adapter(LoraConfig(r=2, target_modules=["layers.2"]))
    return model


class Counted(Net):
    """Its input has a name in which the Trainer counts tokens."""

    main_input_name = "x"


def rows(n, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=rng)
    return [{"x": row, "labels": row.sum()} for row in x]


class Stream(torch.utils.data.IterableDataset):
    """Rows of unknown number; endless: repeated."""

    def __init__(self, n, endless=False):
        self.rows, self.endless = rows(n), endless

    def __iter__(self):
        yield from cycle(self.rows) if self.endless else self.rows


def measured(prediction):
    return {"mae": float(np.abs(prediction.predictions - prediction.label_ids).mean())}


def trainer(folder, *callbacks, epochs=3, optimizers=None, model=None, data=None, train=None, kind=Trainer, **options):
    quiet = {
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "eval_strategy": "epoch",
        "logging_strategy": "epoch",
        "per_device_train_batch_size": 4,
        "learning_rate": 0.05,
        "seed": 3,
    }
    arguments = TrainingArguments(output_dir=str(folder), num_train_epochs=epochs, **quiet | options)
    torch.manual_seed(0)
    model = model or Net()
    return kind(
        model,
        arguments,
        train_dataset=train or rows(16),
        eval_dataset=data or rows(8, 1),
        compute_metrics=measured,
        callbacks=list(callbacks),
        optimizers=optimizers(model) if optimizers else (None, None),
    )


class Sampled(Trainer):
    """Its order is that of a sampler of a library."""

    def _get_train_sampler(self, *args):
        return Shuffling(16)


class SavesAverage(Trainer):
    """It evaluates an average of the weights, and writes it into its checkpoints in place of them."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.average = weights(self)

    def training_step(self, *args, **options):
        loss = super().training_step(*args, **options)
        for name, value in self.model.state_dict().items():
            self.average[name] = (0.8 * self.average[name] + 0.2 * value).to(value.dtype)
        return loss

    def in_place(self, call, *args, **options):
        own = weights(self)
        self.model.load_state_dict(self.average)
        try:
            return call(*args, **options)
        finally:
            self.model.load_state_dict(own)

    def evaluate(self, *args, **options):
        return self.in_place(super().evaluate, *args, **options)

    def _save(self, *args, **options):
        self.in_place(super()._save, *args, **options)


def weights(t):
    return {name: value.clone() for name, value in t.model.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one) and one.keys() == other.keys()


def plateau(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.3)


EVERY_TWO = {"eval_strategy": "steps", "eval_steps": 2}
TOKENS = {"include_num_input_tokens_seen": True}  # here a row of 3 numbers counts as 3 tokens
ACCUMULATED = {"gradient_accumulation_steps": 2}
SAVING = {"save_strategy": "steps", "save_steps": 2}
ENDLESS = {"max_steps": 12, "train": lambda: Stream(16, endless=True)}
CASES = {
    "gradient accumulation": Case({"gradient_accumulation_steps": 3}),
    "ReduceLROnPlateau": Case({"optimizers": plateau, "metric_for_best_model": "eval_loss"}),
    "evaluation by steps": Case(EVERY_TWO),
    "the user saves two": Case({"save_strategy": "epoch", "save_total_limit": 2}),
    "bf16": Case({"bf16": True}),
    "a sampler of a library": Case({"kind": Sampled}),
    "an average in place of the weights": Case({"kind": SavesAverage}),
    "within epochs": Case(EVERY_TWO, (0.5, 1.5), 2),
    "by steps": Case(EVERY_TWO, (2, 6), 8, "step"),
    "by tokens": Case(EVERY_TWO | TOKENS | {"model": Counted}, (24, 72), 96, "token"),
    "by steps, gradient accumulation": Case(EVERY_TWO | ACCUMULATED | {"eval_steps": 1}, (1, 3), 4, "step"),
    "by steps, in the first pass of data without a length": Case(
        EVERY_TWO | {"max_steps": 12, "train": lambda: Stream(16)}, (2,), 12, "step"
    ),
    "by steps, endless data": Case(EVERY_TWO | ENDLESS, (2, 6, 10), 12, "step"),
    "by steps, the Trainer saves too": Case(EVERY_TWO | SAVING, (2, 6), 8, "step"),
}
GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))
for name, options in {"single precision": {}, "bf16": {"bf16": True}, "fp16": {"fp16": True}}.items():
    CASES[f"on a CUDA device, {name}"] = Case({"use_cpu": False} | options, marks=GPU)
GOAL = Minimize("loss", smooth=3, rank_by="eval_loss")
OFTEN = {"logging_strategy": "steps", "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 5}
BY_EPOCHS = {"eval_strategy": "epoch", "logging_strategy": "epoch"}
JUDGED = {  # by the loss of training: unit, length, positions of pauses, options
    "by steps": ("step", 8, (2, 4, 6), {}),
    "at an evaluation": ("step", 12, (4, 10), {}),
    "within epochs": ("epoch", 2, (0.5, 1.0, 1.5), {}),
    "evaluations by epochs": ("step", 8, (2, 4, 6), {"eval_strategy": "epoch"}),
    "logs by epochs": ("epoch", 3, (1, 2), BY_EPOCHS),
    "gradient accumulation": ("step", 4, (1, 3), ACCUMULATED | {"logging_steps": 1}),
    "endless data": ("step", 12, (2, 6, 10), ENDLESS),
    "the Trainer saves too": ("step", 8, (2, 6), SAVING),
}
for name, (unit, length, at, options) in JUDGED.items():
    steps = {"max_steps": length} if unit == "step" else {}
    CASES[f"loss of training, {name}"] = Case(OFTEN | steps | options, at, length, unit, GOAL)
CASES = few(
    CASES,
    "ReduceLROnPlateau",
    "within epochs",
    "by steps, endless data",
    "loss of training, by steps",
    *(name for name, case in CASES.items() if case.marks == GPU),
)
