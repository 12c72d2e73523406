"""Lightning on a stream with a set_epoch that nothing calls, several passes by steps."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
held_out = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))


class Stream(IterableDataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        numbers = torch.Generator().manual_seed(self.epoch)
        for _ in range(40):
            row = torch.randn(4, generator=numbers)
            yield row, row.sum(0, keepdim=True)


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


def search(study):
    val = DataLoader(TensorDataset(held_out, held_out.sum(1, keepdim=True)), 32)
    for trial in study:
        with trial:
            trainer = Trainer(max_epochs=-1, max_steps=trial.max_steps, val_check_interval=4,
                              check_val_every_n_epoch=None, callbacks=[HaltuneCallback(trial)], logger=False,
                              enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
            trainer.fit(Net(**trial.config), DataLoader(Stream(), 8), val, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path).eval()
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.net(held_out), held_out.sum(1, keepdim=True)).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=24,
    unit="step",
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[8, 16],
    updates=1,
)
