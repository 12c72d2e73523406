"""Two validation loaders in Lightning; the search is by the second one's accuracy, from torchmetrics."""

import logging

import torch
import torchmetrics
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Maximize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
y = (x.sum(1) > 0).long()


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(4, 2)
        self.accuracy = torch.nn.ModuleList(torchmetrics.Accuracy("multiclass", num_classes=2) for _ in range(2))

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index, dataloader_idx=0):
        self.accuracy[dataloader_idx](self.net(batch[0]), batch[1])
        self.log("val_acc", self.accuracy[dataloader_idx], on_step=False, on_epoch=True)

    def configure_optimizers(self):
        adam = torch.optim.AdamW(self.parameters(), self.hparams.lr)
        return [adam], [torch.optim.lr_scheduler.OneCycleLR(adam, self.hparams.lr, total_steps=4)]


def search(study):
    train = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True)
    near, far = (DataLoader(TensorDataset(x[part], y[part]), 8) for part in (slice(64, 96), slice(96, 128)))
    for trial in study:
        with trial:
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)], logger=False,
                              enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
            trainer.fit(Net(**trial.config), train, [near, far], ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    return (net.net(x[96:]).argmax(1) == y[96:]).float().mean().item()


zoo = dict(
    needs=["torch", "lightning", "torchmetrics"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Maximize("val_acc/dataloader_idx_1"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    says=["before the end of its learning-rate schedule"],
)
