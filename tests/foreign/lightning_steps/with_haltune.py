"""Lightning: train a small CNN by steps with checkpoints and early stopping."""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from haltune import Float, Int, Study
from haltune.callbacks.lightning import HaltuneCallback


class DigitsData(L.LightningDataModule):
    def __init__(self, batch_size=32):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        x, y = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(y))
        self.train, self.val = random_split(data, [1500, len(data) - 1500], generator=torch.Generator().manual_seed(0))

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.hparams.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=256)


class Net(L.LightningModule):
    def __init__(self, lr=1e-2, width=16, dropout=0.1, weight_decay=1e-4):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width * 2, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(width * 2 * 16, 10),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay)
        sched = torch.optim.lr_scheduler.OneCycleLR(
            opt, max_lr=self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def main():
    space = {"lr": Float(1e-4, 1e-1, log=True), "width": Int(4, 32, log=True), "dropout": Float(0.0, 0.5)}
    study = Study(space, "val_loss", "search.db", max_steps=120, budget="6 trials", seed=0)
    for trial in study:
        with trial:
            L.seed_everything(7)
            trainer = L.Trainer(
                max_steps=trial.max_steps,
                max_epochs=-1,
                check_val_every_n_epoch=None,
                val_check_interval=10,
                accelerator="cpu",
                logger=CSVLogger("logs"),
                callbacks=[
                    ModelCheckpoint(monitor="val_loss", mode="min", save_top_k=1, save_last=True),
                    EarlyStopping(monitor="val_loss", mode="min", patience=4),
                    LearningRateMonitor("step"),
                    HaltuneCallback(trial),
                ],
                log_every_n_steps=10,
                enable_progress_bar=False,
            )
            data = DigitsData()
            trainer.fit(Net(**trial.config), datamodule=data, ckpt_path=trial.checkpoint)
            print("best", trainer.checkpoint_callback.best_model_path, trainer.checkpoint_callback.best_model_score)
    print(study.best)


if __name__ == "__main__":
    main()
