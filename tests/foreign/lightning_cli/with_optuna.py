"""The shape of Lightning's backbone example: a module around a backbone, a data module, the LightningCLI."""

import sys

import optuna
import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from optuna_integration import PyTorchLightningPruningCallback
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Backbone(torch.nn.Module):
    def __init__(self, hidden_dim: int = 16):
        super().__init__()
        self.l1 = torch.nn.Linear(16, hidden_dim)
        self.l2 = torch.nn.Linear(hidden_dim, 4)

    def forward(self, x):
        return self.l2(torch.relu(self.l1(x)))


class LitClassifier(LightningModule):
    def __init__(self, hidden_dim: int = 16, learning_rate: float = 0.01):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = Backbone(hidden_dim)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.backbone(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("valid_loss", F.cross_entropy(self.backbone(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)


class MyDataModule(LightningDataModule):
    def __init__(self, batch_size: int = 32):
        super().__init__()
        x = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))
        self.rows = TensorDataset(x, 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(self.rows, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.rows, batch_size=self.batch_size)


def cli_main(trial):
    learning_rate = trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True)
    hidden_dim = trial.suggest_int("hidden_dim", 4, 64, log=True)
    cli = LightningCLI(
        LitClassifier,
        MyDataModule,
        seed_everything_default=1234,
        save_config_kwargs={"overwrite": True},
        trainer_defaults={
            "max_epochs": 9,
            "callbacks": [PyTorchLightningPruningCallback(trial, monitor="valid_loss")],
        },
        args=[
            *sys.argv[1:],
            f"--model.learning_rate={learning_rate}",
            f"--model.hidden_dim={hidden_dim}",
        ],
    )
    return cli.trainer.callback_metrics["valid_loss"].item()


if __name__ == "__main__":
    same = {"storage": "sqlite:///search.db", "study_name": "study", "load_if_exists": True}
    study = optuna.create_study(direction="minimize", **same)
    study.optimize(cli_main, n_trials=8)
    print(study.best_trial)
