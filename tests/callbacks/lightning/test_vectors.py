"""A Lightning fit under several goals: other goals and constraints are taken from what is logged."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from paused_studies import PausesAt  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from haltune import Constraint, Float, Maximize, Minimize, Study  # noqa: E402
from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.policies import RandomSearch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(pl.LightningModule):
    def __init__(self, logs):
        super().__init__()
        self.layer, self.logs = torch.nn.Linear(2, 1), logs

    def on_fit_start(self):
        self.began = True

    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()

    def on_train_epoch_start(self):
        if self.current_epoch == 0 and "params" in self.logs:
            self.log("params", 3.0)

    def validation_step(self, batch, index):
        for name in set(self.logs) - {"params"}:
            self.log(name, torch.tensor(1.0 + self.current_epoch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class PausesForSeveral(PausesAt):
    several_goals = True


def fitted(logs, record, policy=None, at_most=5):
    study = Study(
        {"x": Float(0, 1)}, [Maximize("acc"), Minimize("ms")], max_epochs=2, budget="1 trial", verbose=0,
        policy=policy or RandomSearch(), constraints=[Constraint("params", at_most=at_most)],
    )  # fmt: skip
    data = DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2)
    for trial in study:
        with trial:
            callback = HaltuneCallback(trial, record=record)
            trainer = pl.Trainer(
                max_epochs=2, callbacks=[callback], logger=False, enable_checkpointing=False, accelerator="cpu",
                enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
            )  # fmt: skip
            trainer.fit(Net(logs), data, data, ckpt_path=trial.checkpoint)
    return study


@pytest.mark.parametrize("record", ["all", "monitor"])
def test_what_is_logged_once_and_what_is_logged_each_epoch_are_both_reported(record):
    trial = fitted(("acc", "ms", "params", "extra"), record).trials[0]
    assert trial.values.tolist() == [1.0, 2.0]
    assert trial.metrics["ms"].tolist() == [1.0, 2.0]
    assert trial.metrics["params"][0] == 3.0
    assert ("extra" in trial.metrics) == (record == "all")


def test_a_run_of_several_goals_pauses_and_resumes_and_what_was_logged_once_stays_known():
    study = fitted(("acc", "ms", "params"), "all", PausesForSeveral(1, at=(1,)))
    trial = study.trials[0]
    assert trial.attempt == 2
    assert trial.metrics["ms"].tolist() == trial.values.tolist() == [1.0, 2.0]
    assert [r.trial for r in study.pareto_front()] == [0]
