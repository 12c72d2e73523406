"""Saving a Lightning training for a pause: when, what is in the file, and what happens when it fails."""

import json
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from callback_fakes import PAUSE, STOP, FakeTrial
from paused_studies import pausing_study

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning.fabric.plugins import TorchCheckpointIO  # noqa: E402
from lightning.pytorch.plugins import AsyncCheckpointIO  # noqa: E402
from lightning_nets import Net, Slow, make_trainer, search, seed, shuffled  # noqa: E402

from haltune import Budget, Minimize  # noqa: E402
from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, NotSupported  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def fit(trial, *others, net=None, checkpoint=None, **options):
    trainer = make_trainer(*others, HaltuneCallback(trial), epochs=trial.max_epochs, **options)
    trainer.fit(net or Net(), shuffled(), shuffled(), ckpt_path=checkpoint)
    return trainer


def one_leg(study, **options):
    trial = study.ask()
    with trial:
        fit(trial, checkpoint=trial.checkpoint, **options)
    return trial


def test_a_pause_saves_at_the_end_of_the_epoch_and_ends_the_fit_by_the_flag():
    trial = FakeTrial(max_epochs=9, verdicts={2.0: PAUSE})
    trainer = fit(trial)
    assert (trial.epochs, trial.saved, trial.endings) == ([1, 2], [2], [None])
    assert trainer.state.finished
    state = torch.load(trial.checkpoint, weights_only=True)
    assert state["epoch"] == 2
    assert len(state["callbacks"]["haltune"]["random"]) == 1  # of one process
    json.dumps(state["callbacks"]["haltune"])  # primitives only


class Counts(torch.optim.SGD):
    """It counts its steps among the states of its weights, as MADGRAD of torch_optimizer."""

    def __init__(self, weights):
        super().__init__(weights, 0.1)
        self.state["k"] = torch.tensor([0])


class Counted(Net):
    def configure_optimizers(self):
        return Counts(self.parameters())


def test_an_optimizer_with_a_count_among_its_states_pauses():
    trial = FakeTrial(max_epochs=9, verdicts={2.0: PAUSE})
    fit(trial, net=Counted())
    assert (trial.epochs, trial.saved) == ([1, 2], [2])


@pytest.mark.parametrize(
    ("options", "saved"), [({}, 4 / 3), ({"accumulate_grad_batches": 2}, 5 / 3), ({"min_epochs": 2}, 2)]
)
def test_a_pause_within_an_epoch_comes_at_the_first_report_from_which_the_fit_resumes_exactly(options, saved):
    trial = FakeTrial(max_epochs=9, verdicts={4 / 3: PAUSE})
    with pytest.warns(HaltuneWarning, match="pause at the next possible point") if options else nullcontext():
        fit(trial, net=Slow(), val_check_interval=1 / 3, **options)
    assert trial.saved == pytest.approx([saved])
    assert trial.epochs == pytest.approx([n / 3 for n in range(1, round(3 * saved) + 1)])


def test_min_epochs_win_over_a_pause_which_then_saves_the_later_state():
    trial = FakeTrial(max_epochs=9, verdicts={1.0: PAUSE})
    trainer = fit(trial, min_epochs=3)
    assert (trial.epochs, trial.saved, trial.declined) == ([1, 2, 3], [3], 0)
    assert trainer.current_epoch == 3


def test_the_budgets_end_saves_too_and_a_larger_budget_continues_from_there():
    straight = search((), store=None)
    study = pausing_study(at=(), budget=Budget(epochs=2))
    seed(0)
    cut = one_leg(study)
    assert (study.trials[0].status, study.trials[0].checkpoint_epoch) == ("interrupted", 2)
    study.budget = Budget(epochs=100)
    seed(1)
    trial = one_leg(study)
    assert (trial.id, trial.attempt, study.trials[0].status) == (cut.id, 2, "completed")
    assert study.trials[0].values.tolist() == straight[0].trials[0].values.tolist()


class Broken(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        super().save_checkpoint({}, path)
        raise OSError("the disk broke")


def test_a_save_that_fails_at_the_end_gives_the_trial_back_and_it_is_not_paused_again():
    study = pausing_study()
    with pytest.warns(HaltuneWarning, match=r"the disk broke.*does not pause") as caught:
        one_leg(study, plugins=[Broken()])
    assert len([w for w in caught if issubclass(w.category, HaltuneWarning)]) == 1
    record = study.trials[0]
    assert (record.status, record.epoch, record.checkpoint) == ("interrupted", 2, None)
    assert not [path for path in study.checkpoints.folder.rglob("*") if path.is_file()]
    with pytest.warns(HaltuneWarning, match="it failed before"):
        again = one_leg(study, plugins=[Broken()])
    assert (again.id, again.attempt, study.trials[0].status) == (0, 2, "completed")


def test_a_state_that_cannot_be_collected_declines_the_pause_before_anything_is_lost():
    class Unsaveable(pl.Callback):
        def state_dict(self):
            raise ValueError("no state of mine")

    study = pausing_study()
    trial = study.ask()
    with trial, pytest.warns(HaltuneWarning, match=r"no state of mine.*keeps training") as caught:
        fit(trial, Unsaveable())
    assert len([w for w in caught if issubclass(w.category, HaltuneWarning)]) == 1
    assert (study.trials[0].status, study.trials[0].attempt, study.trials[0].epoch) == ("completed", 1, 4)


class Preset:
    """A hyperparameter that is not a primitive."""


def test_a_checkpoint_that_the_next_fit_would_refuse_is_not_made():
    class WithPreset(Net):
        def __init__(self, preset):
            super().__init__()
            self.save_hyperparameters()

    study = pausing_study()
    (trial,) = [study.ask()]
    with trial, pytest.warns(HaltuneWarning, match=r"would have [\w.]*Preset.*weights_only=False.*keeps training"):
        trainer = make_trainer(HaltuneCallback(trial), epochs=trial.max_epochs)
        trainer.fit(WithPreset(Preset()), shuffled(), shuffled(), ckpt_path=trial.checkpoint)
    assert (study.trials[0].status, study.trials[0].attempt) == ("completed", 1)


class ByNumpy(Net):
    """Its rates are numbers of NumPy, which torch does not load by default."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 * (1 + np.cos(epoch / 4)))
        return [optimizer], [schedule]


def test_a_training_with_rates_of_numpy_pauses_and_resumes():
    study = pausing_study()
    for _ in range(2):
        one_leg(study, net=ByNumpy())
    assert (study.trials[0].status, study.trials[0].attempt, study.trials[0].epoch) == ("completed", 2, 4)


def test_an_asynchronous_writer_is_waited_for():
    trial = FakeTrial(max_epochs=9, verdicts={1.0: PAUSE})
    trainer = fit(trial, plugins=[AsyncCheckpointIO()])
    assert torch.load(trial.checkpoint, weights_only=True)["epoch"] == 1
    assert isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO)


class Gated(TorchCheckpointIO):
    """Writes the file of an epoch when the next one has begun: a fit that waited for it would never get there."""

    def __init__(self, last):
        super().__init__()
        self.last, self.now, self.written = last, 0, []
        self.begun = [threading.Event() for _ in range(last + 2)]

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        assert self.begun[checkpoint["epoch"] + 1].wait(30)
        self.written.append([checkpoint["epoch"], self.now])
        super().save_checkpoint(checkpoint, path, storage_options)


class Opens(pl.Callback):
    def __init__(self, gated):
        self.gated = gated

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.gated.now = trainer.current_epoch
        self.gated.begun[trainer.current_epoch].set()
        if trainer.current_epoch == self.gated.last:
            self.gated.begun[-1].set()


def test_a_fit_continues_while_the_model_of_its_best_epoch_is_written():
    study = pausing_study(at=(), epochs=4, keep=1, verbose=0, metric=Minimize("val_loss", of="best"))
    gated = Gated(3)
    with study.ask() as trial:
        ours = HaltuneCallback(trial, background=True)
        trainer = make_trainer(Opens(gated), ours, epochs=4, plugins=[gated])
        trainer.fit(Net(), shuffled(), shuffled())
    kept = torch.load(study.best.checkpoint, weights_only=True)
    assert (kept["epoch"] + 1, "optimizer_states" in kept) == (study.best.epoch, False)
    assert gated.written
    assert all(now == min(epoch + 1, 3) for epoch, now in gated.written)


def deepspeed_strategy(**settings):
    """Return a strategy of one process with what haltune asks DeepSpeed's, which runs on a GPU."""
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class DeepSpeedStrategy(SingleDeviceStrategy):
        restore_checkpoint_after_setup = zero_stage_3 = True
        load_full_weights = False

        def __init__(self):
            super().__init__("cpu")
            offload = {"device": "cpu", "nvme_path": "/local_nvme"}  # the path is Lightning's default
            self.config = {"zero_optimization": {"stage": 3, "offload_param": offload}}
            self.deepspeed_engine = SimpleNamespace(micro_steps=3)
            vars(self).update(settings)

    return DeepSpeedStrategy()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"config": {"zero_optimization": {}}}, "ZeRO 1, 2 and 3 only"),
        ({"config": {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}}, "none on NVMe"),
        ({"load_full_weights": True}, "loads one file, not the folder"),
    ],
    ids=["no ZeRO", "NVMe", "full weights"],
)
def test_a_trial_whose_state_deepspeed_does_not_save_whole_can_stop_and_does_not_pause(settings, why):
    def train(trial):
        fit(trial, strategy=deepspeed_strategy(**settings))

    trial = FakeTrial(max_epochs=4)
    trial.pause_at = 2
    with pytest.raises(NotSupported, match=f"cannot be paused, because.*{why}.*only stops"):
        train(trial)
    stopped = FakeTrial(max_epochs=4, verdicts={2.0: STOP})
    train(stopped)
    assert stopped.epochs == [1, 2]
    paused = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=f"cannot be paused, because.*{why}.*keeps training"):
        train(paused)
    assert paused.epochs == [1, 2, 3, 4]


def test_a_trial_does_not_pause_while_deepspeed_accumulates_gradients_over_the_end_of_an_epoch():
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    with pytest.warns(
        HaltuneWarning, match=r"over the end of this epoch.*divide the number of batches.*keeps training"
    ):
        fit(trial, strategy=deepspeed_strategy(), accumulate_grad_batches=2)
    assert trial.epochs == [1, 2, 3, 4]


def test_a_trial_does_not_pause_where_a_sharded_checkpoint_would_lack_the_count_of_its_optimizer():
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=r"because Counts has a state that belongs to no weight.*keeps training"):
        fit(trial, net=Counted(), strategy=deepspeed_strategy())
    assert trial.epochs == [1, 2, 3, 4]


def test_a_folder_of_deepspeed_from_other_ranks_is_refused_before_it_is_loaded(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    for rank in range(2):
        (tmp_path / "checkpoint" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    trial = FakeTrial(max_epochs=4)
    trial.checkpoint = str(tmp_path)
    with pytest.raises(NotSupported, match=r"paused on 2 ranks and cannot resume on 1.*Trainer\(devices=2\)"):
        fit(trial, strategy=deepspeed_strategy(), checkpoint=tmp_path)
