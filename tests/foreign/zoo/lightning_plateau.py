"""ReduceLROnPlateau and EarlyStopping in Lightning, with automatic gradient accumulation."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
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
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.parameters(), self.hparams.lr, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, factor=0.3, patience=0)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


def search(study):
    train = DataLoader(TensorDataset(x[:64], y[:64]), 8, shuffle=True)
    val = DataLoader(TensorDataset(x[64:], y[64:]), 16)
    for trial in study:
        with trial:
            stopping = EarlyStopping("val_loss", patience=2)
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[stopping, HaltuneCallback(trial)],
                              accumulate_grad_batches=2, logger=False, enable_progress_bar=False,
                              enable_model_summary=False, enable_checkpointing=False)
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
    max_epochs=6,
    trials=[{"lr": 0.3}, {"lr": 0.2}],
    pauses=[1, 2],
    updates=4,
)
