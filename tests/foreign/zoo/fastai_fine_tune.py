"""fastai's fine_tune: a split model, clipped gradients, early stopping, and a callback that remembers and cools."""

import fastai.callback.schedule
import torch
from fastai.callback.core import Callback
from fastai.callback.tracker import EarlyStoppingCallback
from fastai.callback.training import GradientClip
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.torch_core import params

from haltune import Float, Minimize
from haltune.callbacks.fastai import HaltuneCallback

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)
rows = [(one, other) for one, other in zip(x, y, strict=True)]


class History(Callback):
    """Remembers losses, and cools the dropout after each epoch."""

    def __init__(self):
        self.seen, self.last = [], torch.zeros(1)

    def after_batch(self):
        if self.training:
            self.seen.append(float(self.loss))

    def after_train(self):
        self.last = torch.tensor(self.seen[-2:])
        self.learn.model[1].p *= 0.9
        self.best = min(self.loss.item(), getattr(self, "best", 1.0))
        for group in self.learn.opt.hypers:  # what it remembers counts later
            group["wd"] = 0.1 * self.best


def learner():
    dls = DataLoaders(DataLoader(rows[:64], bs=16, shuffle=True), DataLoader(rows[64:], bs=32))
    layers = torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
    net = torch.nn.Sequential(*layers)
    return Learner(dls, net, torch.nn.functional.mse_loss, splitter=lambda m: [params(m[0]), params(m[2:])])


def search(study):
    for trial in study:
        with trial:
            learn = learner()
            cbs = [History(), GradientClip(0.5), EarlyStoppingCallback(patience=5), HaltuneCallback(trial)]
            with learn.no_bar(), learn.no_logging():
                learn.fine_tune(trial.max_epochs - 1, trial.config["lr"], freeze_epochs=1, cbs=cbs)


def evaluate(path, config):
    learn = learner().load(f"{path}/model")
    learn.model.eval()
    with torch.no_grad():
        return torch.nn.functional.mse_loss(learn.model(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "fastai"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("valid_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    counts="fastai.optimizer:Optimizer.step",
)
