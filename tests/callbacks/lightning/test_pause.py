"""Early stopping in the epoch of a pause, and what check_resume finds in a Lightning fit."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning.pytorch.callbacks import EarlyStopping  # noqa: E402
from lightning_nets import Net, make_trainer, search, shuffled  # noqa: E402

from haltune import Budget  # noqa: E402
from haltune.callbacks import check_resume  # noqa: E402
from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


@pytest.mark.parametrize(
    ("options", "in_training"), [({}, False), ({}, True), ({"at": (), "budget": Budget(epochs=2)}, True)]
)
def test_early_stopping_in_the_epoch_of_a_pause_completes_the_trial(options, in_training):
    def company():
        return [EarlyStopping("val_loss", min_delta=1e9, patience=1, check_on_train_epoch_end=in_training)]

    study, _, _ = search(**{"at": (2,), "others": company, "num_sanity_val_steps": 0} | options)
    assert [(t.status.value, t.attempt, t.epochs.tolist()) for t in study.trials] == [("completed", 1, [1, 2])]


def test_check_resume_finds_nothing_in_a_lightning_fit_and_names_what_a_forgotten_ckpt_path_loses():
    def run(trial, path=True):
        trainer = make_trainer(HaltuneCallback(trial), epochs=trial.max_epochs)
        trainer.fit(Net(), shuffled(), shuffled(), ckpt_path=trial.checkpoint if path else None)
        return trainer

    assert check_resume(run).differences == ()
    forgotten = check_resume(lambda trial: run(trial, path=False))
    assert "ckpt_path=trial.checkpoint" in str(forgotten)
