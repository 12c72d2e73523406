"""A small GAN by manual optimization with two optimizers, after Lightning's page on it."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
real = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)) * 0.1 + 1
noise = torch.randn(64, 2, generator=torch.Generator().manual_seed(1))


class GAN(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Linear(2, 2)
        self.discriminator = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(), nn.Linear(8, 1))

    def loss(self, samples, label):
        logits = self.discriminator(samples)
        return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))

    def training_step(self, batch, index):
        g, d = self.optimizers()
        fake = self.generator(torch.randn(len(batch), 2))
        d.zero_grad()
        self.manual_backward(self.loss(batch, 1.0) + self.loss(fake.detach(), 0.0))
        d.step()
        g.zero_grad()
        self.manual_backward(self.loss(fake, 1.0))
        g.step()

    def validation_step(self, batch, index):
        self.log("val_distance", distance(self))

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), self.hparams.lr) for part in (self.generator, self.discriminator)]


def distance(gan):
    with torch.no_grad():
        return (gan.generator(noise).mean(0) - real.mean(0)).norm().item()


def search(study):
    for trial in study:
        with trial:
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)], logger=False,
                              enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
            trainer.fit(GAN(**trial.config), DataLoader(real, 16, shuffle=True), DataLoader(real, 64),
                        ckpt_path=trial.checkpoint)


def evaluate(path, config):
    return distance(GAN.load_from_checkpoint(path))


zoo = dict(
    needs=["torch", "lightning"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_distance"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=8,
)
