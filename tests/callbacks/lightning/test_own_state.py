"""A Lightning fit trains its trial's configuration from its trial's state; other states are refused at its start."""

import warnings

import pytest
from callback_fakes import STOP, FakeTrial
from fits import seed
from paused_studies import pausing_study

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning_nets import Measures, Net, Sharpness, Slow, make_trainer, search, shuffled, ten_batches  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from haltune import Float, Minimize, Study  # noqa: E402
from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, NotSupported  # noqa: E402
from haltune.policies import RandomSearch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def searching(seed=0):
    space = {"lr": Float(1e-3, 1e-1, log=True)}
    return Study(space, Minimize("val_loss"), max_epochs=2, budget="3 trials", seed=seed, policy=RandomSearch())


def fit(trial, *others, path=None, trainer=None, epochs=2, **options):
    trainer = trainer or make_trainer(*others, HaltuneCallback(trial), epochs=epochs, **options)
    trainer.fit(Net(), shuffled(), shuffled(), ckpt_path=path)
    return trainer


@pytest.mark.parametrize("at", [1, 2])
def test_the_last_checkpoint_of_another_trial_is_refused_also_if_it_has_trained_in_full(tmp_path, at):
    study = searching()
    with study.ask() as first:
        saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_last=True)
        fit(first, saver, enable_checkpointing=True)
    path = "last" if at == 2 else tmp_path / "epoch=0.ckpt"
    second = study.ask()
    with (
        second,
        pytest.raises(NotSupported, match=r"loaded a state of trial 0.*Pass ckpt_path=trial\.checkpoint in place"),
    ):
        fit(second, ModelCheckpoint(tmp_path, save_last=True), path=path, enable_checkpointing=True)
    assert study.trials[1].values.tolist() == []


def test_a_fit_that_loads_the_last_state_of_its_ended_trial_and_trains_nothing_is_said_with_the_way_for_folds():
    with searching().ask() as trial:
        fit(trial)
        with pytest.warns(
            HaltuneWarning, match=r"has ended, so the epochs .* not reported.*loop over trial\.folds\(k\)"
        ):
            fit(trial, path=trial.checkpoint)


def test_the_same_trial_of_another_study_is_told_apart_by_its_configuration(tmp_path):
    with searching().ask() as first:
        fit(first).save_checkpoint(tmp_path / "state.ckpt")
    other = searching(seed=1).ask()
    with other, pytest.raises(NotSupported, match="a state of trial 0 of another study"):
        fit(other, path=tmp_path / "state.ckpt")


class OnBackbone(Net):
    """A new head on a backbone that the program has made for all trials."""

    def __init__(self, backbone):
        super().__init__()
        self.layers = torch.nn.Sequential(backbone, torch.nn.Linear(8, 1))


@pytest.mark.parametrize("frozen", [True, False])
def test_a_backbone_that_another_trial_has_trained_is_refused(frozen):
    backbone, study = torch.nn.Linear(3, 8).requires_grad_(not frozen), searching()

    def train(trial):
        with trial:
            make_trainer(HaltuneCallback(trial), epochs=2).fit(OnBackbone(backbone), shuffled(), shuffled())

    train(study.ask())
    if frozen:
        train(study.ask())
        assert [t.status for t in study.trials] == ["completed"] * 2
    else:
        with pytest.raises(NotSupported, match=r"starts with the weights of trial 0.*Build a model for each trial"):
            train(study.ask())


def test_a_training_without_a_trial_is_not_continued_under_one(tmp_path):
    alone = make_trainer(epochs=1)
    alone.fit(Net(), shuffled(), shuffled())
    alone.save_checkpoint(tmp_path / "base.ckpt")
    trial = searching().ask()
    with trial, pytest.raises(NotSupported, match=r"base\.ckpt, which names no trial.*load them into the module"):
        fit(trial, path=tmp_path / "base.ckpt")


def test_a_trainer_that_has_trained_before_is_refused():
    study = searching()
    with study.ask() as first:
        trainer = fit(first)
    second = study.ask()
    trainer.callbacks = [HaltuneCallback(second)]
    with second, pytest.raises(NotSupported, match=r"has trained 2 epochs before.*a Trainer for each trial"):
        fit(second, trainer=trainer)


def test_an_average_that_has_not_begun_has_the_weights_with_which_other_trials_start():
    from lightning.pytorch.callbacks import EMAWeightAveraging

    study = pausing_study(at=(1, 2), trials=2, epochs=3, verbose=0)
    for trial in study:  # it pauses before the average begins, and its module has the average after the fit
        with trial:
            seed(7)
            average = EMAWeightAveraging(update_starting_at_step=7)
            fit(trial, average, path=trial.checkpoint, epochs=3)
    assert [t.status for t in study.trials] == ["completed"] * 2


def test_what_cannot_be_put_back_is_said_when_the_trial_resumes():
    class Order:  # of no module, so a resumed trial cannot make it
        taken = 0

    class Counting(Callback):
        order = None

        def on_train_epoch_end(self, trainer, module):
            self.order = self.order or Order()
            self.order.taken += 1

    with pytest.warns(HaltuneWarning, match=r"has resumed, but Counting\.order could not be restored"):
        for trial in pausing_study(at=(1,), trials=1, epochs=2, verbose=0):
            with trial:
                fit(trial, Counting(), path=trial.checkpoint)


class Upload(Callback):
    """Sends what another callback has found at the end of the fit."""

    def __init__(self, found):
        self.found = found


@pytest.mark.parametrize("make", [lambda: ModelCheckpoint(monitor="val_loss"), lambda: EarlyStopping("val_loss")])
def test_a_callback_that_holds_one_of_lightning_prevents_no_pause(make, tmp_path):
    study = pausing_study(f"{tmp_path}/s.db", at=(1,), epochs=2, trials=1)
    for trial in study:
        with trial:
            found = make()
            fit(
                trial, found, Upload(found), path=trial.checkpoint, enable_checkpointing=True, default_root_dir=tmp_path
            )
    assert [t.attempt for t in study.trials] == [2]


def test_the_steps_of_an_optimizer_within_another_are_updates():
    study = searching()
    with study.ask() as trial:
        make_trainer(HaltuneCallback(trial), epochs=2).fit(Sharpness(), shuffled(), shuffled())
    assert study.trials[0].status == "completed"


def test_a_fit_that_resumes_from_a_file_of_its_program_measures_its_next_validation_alone(tmp_path):
    keeper, later = ModelCheckpoint(tmp_path), FakeTrial(max_epochs=2, epoch=1.0)

    def fit(trial, callback, path=None):
        options = {"epochs": 2, "enable_checkpointing": True, "val_check_interval": 5}
        trainer = make_trainer(callback, HaltuneCallback(trial), **options)
        trainer.fit(Measures(), ten_batches(), shuffled(), ckpt_path=path)

    fit(FakeTrial(max_epochs=2, verdicts={1.0: STOP}), keeper)
    fit(later, ModelCheckpoint(tmp_path / "later"), keeper.best_model_path)
    assert later.epochs[-2:] == [1.5, 2.0]
    assert [r["metrics"]["val_mean"] for r in later.reports] == pytest.approx([r["value"] for r in later.reports])


def strong(row):
    return row + 1.0


def light(row):
    return row


class Augmented(Dataset):
    def __init__(self):
        self.transform = strong

    def __len__(self):
        return 12

    def __getitem__(self, row):
        return (self.transform(torch.full((3,), row / 12)),)


def stronger(row):
    return row + 2.0


class Replaces(Callback):
    """It replaces the transform: by the light one in the second epoch alone, in each one from there on, or anew."""

    def __init__(self, how):
        self.how = how

    def on_train_epoch_start(self, trainer, module):
        data, epoch = trainer.train_dataloader.dataset, trainer.current_epoch
        if self.how == "another in each epoch":
            data.transform = (strong, light, stronger, light)[epoch]
        elif epoch == 1 or (self.how == "from there on" and epoch > 1):
            data.transform = light


@pytest.mark.parametrize("how", ["once", "from there on", "another in each epoch"])
@pytest.mark.parametrize("at", [1, 2])
def test_a_transform_that_was_replaced_before_a_pause_is_said_if_a_resumed_fit_trains_with_the_first_one(how, at):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study, _, _ = search((at,), Slow, lambda: DataLoader(Augmented(), 4), lambda: [Replaces(how)])
    said = [str(one.message) for one in caught if "could not be restored" in str(one.message)]
    assert study.trials[0].attempt == 2
    assert ["dataset.transform could not be" in one for one in said] == [True] * (at == 2 and how == "once")
