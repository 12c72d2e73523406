"""A tiny net, its data and the Trainer of Hugging Face that trains it."""

from itertools import cycle

import numpy as np
import torch
from transformers import Trainer, TrainingArguments


class Net(torch.nn.Module):
    """A linear layer behind a dropout, with a batch norm's buffers."""

    def __init__(self, dropout=0.3):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(dropout), torch.nn.Linear(3, 1))

    def forward(self, x, labels):
        out = self.layers(x).squeeze(-1)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


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


def trainer(folder, *callbacks, epochs=3, optimizers=None, model=None, data=None, train=None, **options):
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
    return Trainer(
        model,
        arguments,
        train_dataset=train or rows(16),
        eval_dataset=data or rows(8, 1),
        compute_metrics=measured,
        callbacks=list(callbacks),
        optimizers=optimizers(model) if optimizers else (None, None),
    )


def weights(t):
    return {name: value.clone() for name, value in t.model.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one) and one.keys() == other.keys()
