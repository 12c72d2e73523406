"""Manual optimization that accumulates gradients and steps its own schedule; its warm-up is by hand too."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        sgd = self.optimizers()
        self.manual_backward(torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]) / 2)
        if (index + 1) % 2 == 0:
            if self.trainer.global_step < 3:
                for group in sgd.param_groups:
                    group["lr"] = self.hparams.lr * (self.trainer.global_step + 1) / 3
            sgd.step()
            sgd.zero_grad()

    def on_train_epoch_end(self):
        self.lr_schedulers().step()

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.parameters(), self.hparams.lr, momentum=0.9)
        return [sgd], [torch.optim.lr_scheduler.StepLR(sgd, 2, gamma=0.3)]


def search(study):
    train = DataLoader(TensorDataset(x[:64], y[:64]), 8, shuffle=True)
    val = DataLoader(TensorDataset(x[64:], y[64:]), 16)
    for trial in study:
        with trial:
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)], logger=False,
                              enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
            trainer.fit(Net(**trial.config), train, val, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
)
