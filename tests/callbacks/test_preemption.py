"""State of Lightning's and Hugging Face's own callbacks continues after a preemption, by haltune or by the user."""

import os
import signal
import warnings

import pytest

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import torch  # noqa: E402
from callback_fakes import STOP, FakeTrial  # noqa: E402
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning_nets import Net, make_trainer, seed, shuffled  # noqa: E402
from paused_studies import pausing_study  # noqa: E402
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402
from transformers_nets import trainer  # noqa: E402

from haltune.callbacks.lightning import HaltuneCallback as ForLightning  # noqa: E402
from haltune.callbacks.transformers import HaltuneCallback as ForTransformers  # noqa: E402
from haltune.errors import HaltuneWarning  # noqa: E402
from haltune.log.events import Status  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send(numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


class LightningSends(pl.Callback):
    def __init__(self, epoch, numbers):
        self.epoch, self.numbers = epoch, numbers

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if (trainer.current_epoch + 1, batch_idx) == (self.epoch, 1):
            send(self.numbers)


def by_lightning(folder, epoch=0, numbers=(), last=False):
    """Train until early stopping ends it: the study, the epochs, the patience used up, the best checkpoint."""
    folder.mkdir(exist_ok=True)
    study = pausing_study(folder / "search.db", at=(), epochs=12, verbose=0)
    for trial in study:
        with trial:
            seed(0)
            stopping = EarlyStopping("val_loss", patience=2, min_delta=0.02)
            best = ModelCheckpoint(dirpath=folder / f"run-{trial.id}", monitor="val_loss", save_last=True)
            callbacks = stopping, best, LightningSends(epoch, numbers), ForLightning(trial)
            fit = make_trainer(*callbacks, epochs=trial.max_epochs, enable_checkpointing=True)
            path = trial.checkpoint or ("last" if last else None)
            fit.fit(Net(), shuffled(), shuffled(), ckpt_path=path, weights_only=False)
    name = os.path.basename(best.best_model_path), float(best.best_model_score)
    return study, fit.current_epoch, stopping.wait_count, name


class TransformersSends(transformers.TrainerCallback):
    def __init__(self, epoch, numbers):
        self.epoch, self.numbers = epoch, numbers

    def on_step_end(self, args, state, control, **others):
        if state.global_step == 4 * self.epoch - 2:
            send(self.numbers)


def by_transformers(folder, epoch=0, numbers=(), last=False):
    folder.mkdir(exist_ok=True)
    study = pausing_study(folder / "search.db", at=(), epochs=12, metric="eval_loss", verbose=0)
    for trial in study:
        with trial:
            stopping = transformers.EarlyStoppingCallback(early_stopping_patience=3)
            run = folder / f"run-{trial.id}"
            callbacks = stopping, TransformersSends(epoch, numbers), ForTransformers(trial)
            fit = trainer(
                run, *callbacks, epochs=trial.max_epochs, learning_rate=1.5, lr_scheduler_type="constant",
                save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="eval_loss",
                greater_is_better=False,
            )  # fmt: skip
            saved = last and run.is_dir() and get_last_checkpoint(str(run))
            fit.train(resume_from_checkpoint=trial.checkpoint or bool(saved))
    name = os.path.basename(fit.state.best_model_checkpoint), fit.state.best_metric
    return study, fit.state.epoch, stopping.early_stopping_patience_counter, name


BOTH = pytest.mark.parametrize(("train", "epoch"), [(by_lightning, 2), (by_transformers, 4)])


@BOTH
def test_early_stopping_ends_a_preempted_trial_where_it_ends_one_that_never_was(train, epoch, tmp_path):
    straight, *expected = train(tmp_path / "straight")
    with pytest.raises(SystemExit) as caught:
        train(tmp_path / "cut", epoch, [signal.SIGTERM])
    assert caught.value.code == 143
    study, *found = train(tmp_path / "cut")
    assert found == expected
    assert found[0] > epoch
    (one,), (other,) = study.trials, straight.trials
    assert (one.status, one.attempt) == (Status.COMPLETED, 2)
    assert list(one.values) == list(other.values)


@BOTH
def test_it_does_where_the_training_continues_from_the_users_own_last_checkpoint(train, epoch, tmp_path):
    straight, *expected = train(tmp_path / "straight")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(tmp_path / "cut", epoch, [signal.SIGINT] * 2)  # which ends it at once
    study, *found = train(tmp_path / "cut", last=True)
    assert found[:2] == expected[:2]
    assert list(study.trials[0].values) == list(straight.trials[0].values)
    assert (study.trials[0].attempt, study.trials[0].epoch) == (2, expected[0])


def test_a_step_of_a_plateau_schedule_that_lightning_leaves_out_is_warned_of(tmp_path):
    class OnPlateau(Net):
        def configure_optimizers(self):
            sgd = torch.optim.SGD(self.parameters(), 0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)
            return {"optimizer": sgd, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

    def said(path=None):
        trial = FakeTrial(max_epochs=4, verdicts={2.0: STOP} if path is None else None)
        last = ModelCheckpoint(dirpath=tmp_path, save_last=True)
        fit = make_trainer(ForLightning(trial), last, epochs=4, enable_checkpointing=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", HaltuneWarning)
            fit.fit(OnPlateau(), shuffled(), shuffled(), ckpt_path=path, weights_only=False)
        return [str(w.message) for w in caught if "ReduceLROnPlateau had its step" in str(w.message)]

    assert [len(said(path)) for path in (None, "last")] == [0, 1]


SLURM = {
    "NTASKS": 1,
    "JOB_ID": 77,
    "JOB_NAME": "search",
    "PROCID": 0,
    "LOCALID": 0,
    "NODEID": 0,
    "NODELIST": "localhost",
}


def test_a_checkpoint_that_lightning_saved_to_requeue_one_trial_is_not_trained_by_another(tmp_path, monkeypatch):
    for name, value in SLURM.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho $* >> requeued\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    study = pausing_study(at=(), trials=2, verbose=0)
    for trial in study:
        callbacks = LightningSends(2, [signal.SIGUSR1]), ForLightning(trial)
        fit = make_trainer(*callbacks, epochs=trial.max_epochs, default_root_dir=tmp_path)
        if trial.id:
            with pytest.raises(Exception, match=r"loaded .*saved it in trial 0"):
                fit.fit(Net(), shuffled(), shuffled())
            break
        with trial, pytest.warns(match=r"SLURMEnvironment\(auto_requeue=False\)"):
            fit.fit(Net(), shuffled(), shuffled())
    assert (tmp_path / "requeued").read_text() == "requeue 77\n"
