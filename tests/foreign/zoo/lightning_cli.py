"""LightningCLI, called from Python, with the model's arguments from a trial."""

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Data(LightningDataModule):
    def __init__(self, batch_size: int = 16):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(TensorDataset(x[:64], y[:64]), self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(x[64:], y[64:]), 16)


class Net(LightningModule):
    def __init__(self, width: int = 8):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))


def search(study):
    for trial in study:
        with trial:
            quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False,
                         enable_checkpointing=False)
            cli = LightningCLI(Net, Data, save_config_callback=None, run=False, seed_everything_default=1, args=[
                "--optimizer=torch.optim.Adam", f"--optimizer.lr={trial.config['lr']}",
                "--lr_scheduler=torch.optim.lr_scheduler.ExponentialLR", "--lr_scheduler.gamma=0.9",
            ], trainer_defaults={"max_epochs": trial.max_epochs, "callbacks": [HaltuneCallback(trial)], **quiet})
            cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning", "jsonargparse"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    says=["Lightning logs some lines"],
)
