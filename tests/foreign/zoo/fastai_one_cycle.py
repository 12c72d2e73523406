"""fastai's fit_one_cycle with mixed momentum, SaveModelCallback, a shuffling loader, and noise of a module."""

import fastai.callback.schedule
import torch
from fastai.callback.tracker import SaveModelCallback
from fastai.data.core import DataLoaders
from fastai.learner import Learner

from haltune import Float, Minimize
from haltune.callbacks.fastai import HaltuneCallback

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


class Noise(torch.nn.Module):
    """Multiplies by a number from a generator of its own, which is nearer to 1 with each batch."""

    def __init__(self):
        super().__init__()
        self.numbers = torch.Generator().manual_seed(1)
        self.register_buffer("batches", torch.ones(()), persistent=False)

    def forward(self, x):
        if not self.training:
            return x
        self.batches += 1
        return x * (1 + torch.randn((), generator=self.numbers) / self.batches)


def learner():
    rows = torch.utils.data.TensorDataset(x, y)
    train = torch.utils.data.DataLoader(torch.utils.data.Subset(rows, range(64)), 16, shuffle=True)
    valid = torch.utils.data.DataLoader(torch.utils.data.Subset(rows, range(64, 96)), 32)
    return Learner(DataLoaders(train, valid), torch.nn.Sequential(Noise(), torch.nn.Linear(4, 1)), torch.nn.functional.mse_loss)


def search(study):
    for trial in study:
        with trial:
            learn = learner()
            with learn.no_bar(), learn.no_logging():
                learn.fit_one_cycle(trial.max_epochs, trial.config["lr"],
                                    cbs=[SaveModelCallback(fname=f"model-{trial.id}"), HaltuneCallback(trial)])


def evaluate(path, config):
    learn = learner().load(f"{path}/model")
    with torch.no_grad():
        return torch.nn.functional.mse_loss(learn.model.eval()(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "fastai"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("valid_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=4,
    counts="fastai.optimizer:Optimizer.step",
    says=["SaveModelCallback keeps the model of its best epoch"],
)
