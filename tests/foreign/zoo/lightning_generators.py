"""Lightning with generators everywhere but in the data: in the module of the program, a class, a callback, a layer, an optimizer."""

import logging
import random

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)
rng = np.random.default_rng(0)


class Mix:
    def __init__(self):
        self.numbers = random.Random(1)

    def share(self):
        return self.numbers.betavariate(0.4, 0.4)


mix = Mix()


class Noise(torch.nn.Module):
    generator = torch.Generator()

    def forward(self, inputs):
        return inputs + 0.1 * torch.randn(inputs.shape, generator=self.generator) if self.training else inputs


class Langevin(torch.optim.Optimizer):
    def __init__(self, weights, lr):
        super().__init__(weights, {"lr": lr})
        self.numbers = torch.Generator().manual_seed(3)

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.add_(weight.grad, alpha=-group["lr"])
                    weight.add_(torch.randn(weight.shape, generator=self.numbers), alpha=0.01)
        return loss


class Data(LightningDataModule):
    def __init__(self):
        super().__init__()
        self.numbers = np.random.default_rng(5)

    def train_dataloader(self):
        return DataLoader(TensorDataset(x[:64], y[:64]), 16)

    def val_dataloader(self):
        return DataLoader(TensorDataset(x[64:], y[64:]), 16)

    def on_after_batch_transfer(self, batch, index):
        inputs, targets = batch
        return inputs * (1 + 0.1 * self.numbers.normal()) if self.trainer.training else inputs, targets


class Flip(Callback):
    def __init__(self):
        self.held = [random.Random(2)]

    def on_train_batch_start(self, trainer, module, batch, index):
        batch[0].mul_(1 if self.held[0].random() < 0.7 else -1)
        batch[1].add_(0.1 * rng.normal())


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.noise, self.net = Noise(), torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        inputs, targets = batch
        share = mix.share()
        inputs = share * inputs + (1 - share) * inputs.flip(0)
        targets = share * targets + (1 - share) * targets.flip(0) ** 2
        return torch.nn.functional.mse_loss(self.net(self.noise(inputs)), targets)

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return Langevin(self.parameters(), self.hparams.lr)


def search(study):
    global mix, rng
    for trial in study:
        with trial:
            mix, rng = Mix(), np.random.default_rng(0)
            Noise.generator.manual_seed(0)
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[Flip(), HaltuneCallback(trial)], logger=False,
                              enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
            trainer.fit(Net(**trial.config), Data(), ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path).eval()
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
)
