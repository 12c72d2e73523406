"""Lightning averages the weights of the last epochs (WeightAveraging), as its page on averaging shows."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Averaging(WeightAveraging):
    def __init__(self):
        super().__init__(avg_fn=get_ema_avg_fn(0.5))

    def should_update(self, step_idx=None, epoch_idx=None):
        return epoch_idx is not None and epoch_idx >= 1


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr)


def search(study):
    train = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True)
    val = DataLoader(TensorDataset(x[64:], y[64:]), 16)
    for trial in study:
        with trial:
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[Averaging(), HaltuneCallback(trial)],
                              logger=False, enable_progress_bar=False, enable_model_summary=False,
                              enable_checkpointing=False)
            trainer.fit(Net(**trial.config), train, val, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    late=[r"is not kept: its value is of other weights"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=5,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=4,
    keeps=False,
)
