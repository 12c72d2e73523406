"""Two ranks under DDP whose running means of BatchNorm differ. python running_means.py trainer|lightning FOLDER"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from paused_studies import pausing_study

from haltune.errors import HaltuneWarning

G = torch.Generator().manual_seed(0)
X = torch.randn(64, 4, generator=G)
Y = X.prod(1, keepdim=True)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))

    def forward(self, x, labels=None):
        out = self.net(x)
        return out if labels is None else {"loss": (out - labels).pow(2).mean(), "logits": out}


def trainer(trial, folder):
    from transformers import Trainer, TrainingArguments

    from haltune.callbacks.transformers import HaltuneCallback

    rows = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    how = {"eval_strategy": "epoch", "save_strategy": "no", "report_to": [], "use_cpu": True}
    arguments = TrainingArguments(folder, num_train_epochs=4, learning_rate=0.01, **how)
    callback = HaltuneCallback(trial)
    t = Trainer(Net(), arguments, train_dataset=rows[:48], eval_dataset=rows[48:], callbacks=[callback])
    t.train(resume_from_checkpoint=trial.checkpoint)


def lightning(trial, folder):
    import lightning

    from haltune.callbacks.lightning import HaltuneCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, number):
            return self.net(*batch)["loss"]

        def validation_step(self, batch, number):
            self.log("eval_loss", self.net(*batch)["loss"], sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.05)

    data = torch.utils.data.TensorDataset(X, Y)
    rows = torch.utils.data.Subset(data, range(48)), torch.utils.data.Subset(data, range(48, 64))
    loaders = [torch.utils.data.DataLoader(part, 8, shuffle=i == 0) for i, part in enumerate(rows)]
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning.Trainer(
        accelerator="cpu", devices=2, max_epochs=4, callbacks=[HaltuneCallback(trial)], **quiet,
        strategy=lightning.pytorch.strategies.DDPStrategy(broadcast_buffers=False),
    ).fit(Module(), *loaders, ckpt_path=trial.checkpoint)  # fmt: skip


def searched(train, folder, at):
    """Return values, attempts and warnings of a trial that pauses at the epochs `at`."""
    study = pausing_study(f"{folder}/{len(at)}.db", at, metric="eval_loss", keep=1, verbose=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for trial in study:
            with trial:
                torch.manual_seed(0)
                train(trial, folder)
    record = study.trials[0]
    said = [str(one.message) for one in caught if issubclass(one.category, HaltuneWarning)]
    return {"values": record.values.tolist(), "attempts": record.attempt, "said": said}


if __name__ == "__main__":
    found = {
        name: searched(globals()[sys.argv[1]], sys.argv[2], at) for name, at in (("straight", ()), ("paused", (2,)))
    }
    Path(sys.argv[2], f"{os.environ['RANK']}.json").write_text(json.dumps(found))
