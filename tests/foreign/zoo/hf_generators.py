"""A Trainer of a class of its own, with generators in its loss, its collator of evaluations, a callback, the model and its data."""

import json
import random

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from haltune import Float, Minimize
from haltune.callbacks.transformers import HaltuneCallback

x = torch.randn(80, 8, generator=torch.Generator().manual_seed(3))
y = x.sum(1)
rng = np.random.default_rng(0)


class Masked(torch.utils.data.Dataset):
    def __init__(self, rows, seed):
        self.rows, self.rng = rows, np.random.default_rng(seed)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return {"x": x[row] * torch.tensor(self.rng.random(8) > 0.15), "labels": y[row]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.jitter = nn.Linear(8, 1), random.Random(4)

    def forward(self, x, labels):
        out = self.layer(x).squeeze(-1)
        if self.training:
            out = out * (1 + 0.1 * self.jitter.random())
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


class Crop:
    """Makes the batches of evaluations."""

    def __init__(self):
        self.numbers = random.Random(5)

    def __call__(self, rows):
        batch = torch.utils.data.default_collate(rows)
        return batch | {"x": batch["x"] * (self.numbers.random() > 0.2)}


crop = Crop()


class Weighted(Trainer):
    def compute_loss(self, model, inputs, *arguments, **options):
        loss = super().compute_loss(model, inputs, *arguments, **options)
        return loss * rng.uniform(0.5, 1.5) if model.training else loss

    def get_eval_dataloader(self, *arguments):
        return DataLoader(self.eval_dataset, 8, collate_fn=crop)


class Shake(TrainerCallback):
    def __init__(self):
        self.numbers = torch.Generator().manual_seed(0)

    def on_step_end(self, args, state, control, model=None, **others):
        with torch.no_grad():
            model.layer.weight.add_(torch.randn(1, 8, generator=self.numbers), alpha=0.01 * rng.random())


def search(study):
    global crop, rng
    for trial in study:
        with trial:
            crop, rng = Crop(), np.random.default_rng(0)
            arguments = TrainingArguments(
                f"runs/{trial.id}", num_train_epochs=trial.max_epochs, per_device_train_batch_size=16,
                eval_strategy="epoch", save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
                lr_scheduler_type="constant", **trial.config)
            trainer = Weighted(Net(), arguments, train_dataset=Masked(range(64), 1),
                               eval_dataset=Masked(range(64, 80), 2), callbacks=[Shake(), HaltuneCallback(trial)])
            trainer.train(resume_from_checkpoint=trial.checkpoint)


def evaluate(path, config):
    net, data, batches = Net(), Masked(range(64, 80), 2), Crop()
    net.load_state_dict(load_file(f"{path}/model.safetensors"))
    with torch.no_grad(), open(f"{path}/trainer_state.json") as file:
        for _ in range(round(json.load(file)["epoch"])):  # as many evaluations have drawn
            found = [net.eval()(**batches([data[i] for i in rows])) for rows in (range(8), range(8, 16))]
    return torch.stack([one["loss"] for one in found]).mean().item()


zoo = dict(
    needs=["torch", "transformers", "accelerate"],
    space={"learning_rate": Float(1e-4, 1e-1, log=True)},
    goal=Minimize("eval_loss"),
    max_epochs=4,
    trials=[{"learning_rate": 0.003}, {"learning_rate": 0.01}],
    pauses=[1, 3],
    updates=4,
)
