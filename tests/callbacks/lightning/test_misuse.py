"""Lightning fits that haltune refuses; LightningCLI and the other forms of automatic optimization work."""

import copy
import pickle
import warnings

import pytest
from callback_fakes import STOP, FakeTrial

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")


from lightning_nets import BATCHES, Net, make_trainer, shuffled  # noqa: E402

from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported, UnknownArgument  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def fit(trial, *others, net=None, **options):
    trainer = make_trainer(*others, HaltuneCallback(trial), epochs=trial.max_epochs, **options)
    trainer.fit(net or Net(), shuffled(), shuffled())
    return trainer


def test_max_steps_below_the_horizon_say_so_before_the_first_batch():
    trial, net = FakeTrial(max_epochs=9), Net()
    with pytest.raises(NotSupported, match=r"max_steps=6 ends this fit after 2 epochs.*compared at 9.*Budget"):
        fit(trial, net=net, max_steps=2 * BATCHES)
    assert (trial.reports, net.trainer.global_step) == ([], 0)
    whole = FakeTrial()
    fit(whole, max_steps=3 * 2, accumulate_grad_batches=2)
    assert whole.epochs == [1, 2, 3]


def test_a_trainer_that_logs_nothing_is_refused_before_its_first_batch():
    net = Net()
    with pytest.raises(NotSupported, match=r"barebones=True\) ignores self.log"):
        pl.Trainer(barebones=True, callbacks=[HaltuneCallback(FakeTrial(max_epochs=4))]).fit(
            net, shuffled(), shuffled()
        )
    assert not net.trainer.global_step


def test_max_time_that_ends_a_fit_early_says_so_and_is_no_result():
    trial = FakeTrial(max_epochs=10**9)
    with pytest.raises(NotSupported, match=r"max_time ends this fit after .* epochs?, .*Budget"):
        fit(trial, max_time={"seconds": 0.2})
    assert isinstance(trial.endings[0], NotSupported)


@pytest.mark.parametrize(
    ("until", "patience", "options", "named"),
    [
        (4, 2, {}, "before epoch 4"),
        (4, 8, {"val_check_interval": 1 / 3}, "patience=8"),  # 8 validations are under 3 epochs
        (4, 3, {}, None),  # the first epoch always improves
        (6, 1, {}, None),  # no rung before the end
    ],
)
def test_an_early_stopping_that_can_end_a_trial_before_its_first_rung_is_warned_about(until, patience, options, named):
    from lightning.pytorch.callbacks import EarlyStopping

    class Once(pl.Callback):
        def on_train_batch_start(self, trainer, *args):
            trainer.should_stop = True

    trial = FakeTrial("drawn", max_epochs=6)
    trial.pause_at = until
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HaltuneWarning)
        fit(trial, Once(), EarlyStopping("val_loss", patience=patience, strict=False), **options)
    found = [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]
    assert [named in sentence for sentence in found] == [True] * (named is not None)


@pytest.mark.parametrize(("metric", "warned"), [("val_loss_best", True), ("val_loss", False)])
def test_a_goal_that_is_the_best_value_so_far_is_warned_about_as_the_last_model_is_kept(metric, warned):
    from torchmetrics import MinMetric

    class Tracks(Net):
        def __init__(self):
            super().__init__()
            self.lowest = MinMetric()

        def on_validation_epoch_end(self):
            self.lowest(self.trainer.callback_metrics["val_loss"])
            self.log("val_loss_best", self.lowest.compute())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HaltuneWarning)
        fit(FakeTrial(metric, max_epochs=1), net=Tracks())
    advice = "by its best epoch, Minimize('val_loss', of='best')"
    assert any(advice in str(w.message) for w in caught) == warned


def test_fabric_says_which_loop_to_use():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[HaltuneCallback(FakeTrial())])
    fabric.launch()
    net = torch.nn.Linear(1, 1)
    with pytest.raises(NotSupported, match=r"haltune\.callbacks\.loop\.TrainingLoop.*together=True.*fabric\.save"):
        fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1))
    optimizer = fabric.setup_optimizers(torch.optim.SGD(net.parameters(), 0.1))
    with pytest.raises(NotSupported, match="TrainingLoop"):
        optimizer.step()


def test_lightning_cli_takes_the_callback_as_a_default_of_its_trainer():
    pytest.importorskip("jsonargparse", reason="jsonargparse is not installed")
    from lightning.pytorch.cli import LightningCLI

    class Data(pl.LightningDataModule):
        def train_dataloader(self):
            return shuffled()

        val_dataloader = train_dataloader

    class Model(Net):
        def __init__(self, rate: float = 0.1):
            super().__init__()
            self.optimize = lambda net: torch.optim.SGD(net.parameters(), lr=rate)

    trial = FakeTrial(max_epochs=5, verdicts={2.0: STOP})
    callback = HaltuneCallback(trial)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    given = {"trainer_defaults": quiet | {"callbacks": [callback]}, "save_config_callback": None}
    cli = LightningCLI(Model, Data, run=False, args=["--model.rate=0.01", "--trainer.max_epochs=5"], **given)
    cli.trainer.fit(cli.model, cli.datamodule)
    assert trial.epochs == [1, 2]
    assert (cli.trainer.current_epoch, cli.model.optimizers().param_groups[0]["lr"]) == (2, 0.01)


# Errors of wrong use in a Lightning fit


def misuse_fit(*callbacks, net=None, validation=True, epochs=9):
    make_trainer(*callbacks, epochs=epochs).fit(net or Net(), shuffled(), shuffled() if validation else None)


def test_two_callbacks_in_one_fit_are_refused():
    trial = FakeTrial()
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `HaltuneCallback`"):
        misuse_fit(HaltuneCallback(trial), HaltuneCallback(trial))
    assert trial.reports == []


def test_a_misnamed_metric_is_warned_about_after_the_sanity_check_and_refused_after_the_first_epoch():
    trial = FakeTrial(max_epochs=9)
    warned = r"check before training logged 'val_loss'.*monitor='val_loss'"
    refused = r"not logged in the first epoch\..*mean 'val_loss'"
    with pytest.warns(HaltuneWarning, match=warned), pytest.raises(InvalidInput, match=refused):
        misuse_fit(HaltuneCallback(trial, monitor="val_los"))
    assert trial.reports == []


@pytest.mark.parametrize("every", [2, 4])
def test_a_metric_that_is_logged_in_some_epochs_is_waited_for(every):
    class Rarely(Net):
        def on_validation_epoch_end(self):
            if self.current_epoch % every == every - 1 and not self.trainer.sanity_checking:
                self.log_dict({"val_fid": torch.tensor(3.0), "val_is": torch.tensor(2.0)})

    trial = FakeTrial(max_epochs=8)
    misuse_fit(HaltuneCallback(trial, monitor="val_fid"), net=Rarely(), epochs=8)
    assert trial.epochs == [*range(every, 9, every)]


def test_a_metric_of_tests_alone_is_refused_after_two_epochs():
    class Tests(Net):
        def test_step(self, batch, index):
            self.log("test_acc", 1.0)

    with pytest.raises(InvalidInput, match="'test_acc' was not logged in the first 2 epochs"):
        misuse_fit(HaltuneCallback(FakeTrial(max_epochs=8), monitor="test_acc"), net=Tests(), epochs=8)


@pytest.mark.parametrize(
    ("validation", "options", "named"),
    [
        (
            False,
            {},
            r"trainer\.fit was given no validation data\. Pass it, trainer\.fit\(model, train_loader, val_loader\)",
        ),
        (True, {"limit_val_batches": 0}, r"Trainer\(limit_val_batches=0\).* Delete limit_val_batches=0"),
        (
            True,
            {"check_val_every_n_epoch": 10},
            r"check_val_every_n_epoch=10\) validates first after 10 epochs.* has 9",
        ),
    ],
)
def test_a_fit_in_which_no_validation_will_run_is_refused_before_its_first_epoch(validation, options, named):
    trial, net = FakeTrial(max_epochs=9), Net()
    trainer = make_trainer(HaltuneCallback(trial), epochs=9, **options)
    with pytest.raises(InvalidInput, match=rf"'val_loss' is one of validations, but none will run.*{named}"):
        trainer.fit(net, shuffled(), shuffled() if validation else None)
    assert trainer.global_step == 0


@pytest.mark.parametrize("data", [True, False])
def test_a_module_without_validation_step_that_logs_nothing_is_refused_before_its_first_epoch(data):
    class Quiet(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            return self.net(batch[0]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = make_trainer(HaltuneCallback(FakeTrial(max_epochs=2)), epochs=2)
    lacks = "no validation_step" + " and trainer.fit was given no validation data" * (not data)
    writes = r"Define validation_step\(.*self\.log\('val_loss', value\)" + r" and pass it, trainer\.fit\(" * (not data)
    with pytest.raises(InvalidInput, match=rf"the module has {lacks}\. {writes}"):
        trainer.fit(Quiet(), shuffled(), shuffled() if data else None)
    assert trainer.global_step == 0


def test_a_validation_that_comes_only_at_the_end_is_named_before_the_first_epoch():
    trial = FakeTrial(max_epochs=2)
    with pytest.warns(HaltuneWarning, match=r"val_check_interval=100\) validates first after 100 batches.*at the end"):
        fit(trial, val_check_interval=100, check_val_every_n_epoch=None)
    assert trial.epochs == [2]


def test_a_validation_metric_that_the_module_logs_itself_needs_no_validation():
    class Evaluates(Net):
        def on_train_epoch_end(self):
            self.log("val_loss", self.current_epoch + 1.0)

    trial = FakeTrial(max_epochs=2)
    with pytest.warns(HaltuneWarning, match="none will run in this fit"):
        fit(trial, net=Evaluates(), limit_val_batches=0)
    assert trial.values == [1, 2]


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"mode": "max"}, r"HaltuneCallback has no argument mode=: .*Maximize\('val_acc'\)"),
        ({"patience": 3}, "the policy decides when a trial stops"),
        ({"monitr": "val_acc"}, r"did you mean monitor=\?"),
    ],
)
def test_the_words_of_the_frameworks_own_callbacks_are_answered(named, told):
    with pytest.raises(UnknownArgument, match=told):
        HaltuneCallback(FakeTrial(), **named)


def test_a_callback_needs_its_trial_copies_with_it_and_a_subclass_takes_what_it_likes():
    class Mine(HaltuneCallback):
        def __init__(self, trial, **named):
            super().__init__(trial)
            self.named = named

    with pytest.raises(InvalidInput, match="each trial needs a callback of its own"):
        HaltuneCallback()
    made = Mine(FakeTrial(), mode="max")
    assert made.named == {"mode": "max"}
    assert copy.copy(made).trial is copy.deepcopy(made).trial is made.trial
    assert pickle.loads(pickle.dumps(HaltuneCallback(FakeTrial()))).trial.id == 7
