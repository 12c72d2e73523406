"""Callbacks of a Trainer that read the weights and the learning rate when the training starts: L2-SP, pruning."""

import numpy as np
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from haltune import Float, Minimize
from haltune.callbacks.transformers import HaltuneCallback

x = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
rows = [{"x": one, "labels": one.sum()} for one in x]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def forward(self, x, labels):
        out = self.net(x).squeeze(-1)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


class Pull(TrainerCallback):
    """Pulls the weights to those at the start, by the rate at the start."""

    def __init__(self):
        self.start = {}

    def on_train_begin(self, args, state, control, model, optimizer, **others):
        self.keep(model)
        self.rate = optimizer.param_groups[0]["lr"]

    def keep(self, model):
        for name, weight in model.named_parameters():
            self.start[name] = weight.detach().clone()

    def on_step_end(self, args, state, control, model, **others):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.lerp_(self.start[name], 10 * self.rate)


class Lottery(TrainerCallback):
    """Perturbs the weights at the start, keeps some at 0, and makes a small first step."""

    def on_train_begin(self, args, state, control, model, optimizer, **others):
        optimizer.param_groups[0]["lr"] *= 0.1
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1)
        self.masks = [np.random.random(w.shape) > 0.3 for w in model.parameters()]  # noqa: NPY002
        self.prune(model)

    def on_step_end(self, args, state, control, model, **others):
        self.prune(model)

    def prune(self, model):
        with torch.no_grad():
            for weight, mask in zip(model.parameters(), self.masks, strict=True):
                weight.mul_(torch.as_tensor(mask))


def search(study):
    for trial in study:
        with trial:
            arguments = TrainingArguments(
                f"runs/{trial.id}", num_train_epochs=trial.max_epochs, per_device_train_batch_size=16,
                eval_strategy="epoch", save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
                **trial.config)
            trainer = Trainer(Net(), arguments, train_dataset=rows[:64], eval_dataset=rows[64:],
                              callbacks=[Pull(), HaltuneCallback(trial), Lottery()])
            trainer.train(resume_from_checkpoint=trial.checkpoint)


def evaluate(path, config):
    from safetensors.torch import load_file

    net = Net()
    net.load_state_dict(load_file(f"{path}/model.safetensors"))
    with torch.no_grad():
        return net(x[64:], x[64:].sum(1))["loss"].item()


zoo = dict(
    needs=["torch", "transformers", "accelerate"],
    space={"learning_rate": Float(1e-4, 1e-1, log=True)},
    goal=Minimize("eval_loss"),
    max_epochs=4,
    trials=[{"learning_rate": 0.02}, {"learning_rate": 0.01}],
    pauses=[1, 3],
    updates=4,
    says=["before the end of its learning-rate schedule"],
)
