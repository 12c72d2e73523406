"""HaltuneCallback in real Lightning fits: what is reported, when, and what the training keeps."""

import pytest
from callback_fakes import STOP, FakeTrial

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")


from lightning_nets import BATCHES, Net, make_trainer, shuffled  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

from haltune import Float, Study  # noqa: E402
from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput  # noqa: E402
from haltune.policies import RandomSearch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


class Bare(pl.LightningModule):
    """Logs its loss in validation."""

    def __init__(self, lr=0.1):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.lr = lr

    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch, index):
        self.log("val_loss", self.layer(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def data(rows=8, batch=2):
    rng = torch.Generator().manual_seed(0)
    return DataLoader(TensorDataset(torch.randn(rows, 2, generator=rng)), batch_size=batch)


def bare_trainer(*callbacks, epochs=3, **options):
    return make_trainer(*callbacks, epochs=epochs, **{"num_sanity_val_steps": 0} | options)


def fit(trial, net=None, monitor=None, validation=True, **options):
    callback = HaltuneCallback(trial, monitor)
    trainer = bare_trainer(callback, **options)
    trainer.fit(net or Bare(), data(), data() if validation else None)
    return trainer, callback


class CountsValidations(Bare):
    """val_loss is the number of the validation it came from."""

    count = 0

    def on_validation_start(self):
        self.count += 1

    def validation_step(self, batch, index):
        self.log("val_loss", float(self.count))


def test_a_trainer_without_a_limit_ends_at_the_trials_horizon():
    trial = FakeTrial(max_epochs=2)
    trainer, _ = fit(trial, epochs=-1)
    assert trial.epochs == [1, 2]
    assert trainer.current_epoch == 2


def test_min_epochs_win_over_a_stop_and_later_reports_are_not_judged():
    trial = FakeTrial(max_epochs=9, verdicts={1.0: STOP})
    fit(trial, epochs=9, min_epochs=3)
    assert trial.epochs == [1, 2, 3]
    assert [r["judge"] for r in trial.reports] == [True, False, False]


def test_several_validations_an_epoch_are_fractions():
    trial = FakeTrial(max_epochs=2)
    fit(trial, CountsValidations(), epochs=2, val_check_interval=0.5)
    assert (trial.epochs, trial.values) == ([0.5, 1.0, 1.5, 2.0], [1, 2, 3, 4])


def test_one_validation_in_two_epochs_leaves_no_stale_value():
    trial = FakeTrial(max_epochs=4)
    fit(trial, CountsValidations(), epochs=4, check_val_every_n_epoch=2)
    assert (trial.epochs, trial.values) == ([2, 4], [1, 2])


class LogsTraining(Bare):
    """train_loss is the batch's number in the whole fit, so its epoch mean and last value differ."""

    count = 0

    def training_step(self, batch, index):
        self.count += 1
        self.log("train_loss", float(self.count), on_step=True, on_epoch=True)
        return super().training_step(batch, index)


@pytest.mark.parametrize("validation", [True, False])
def test_a_train_metric_of_steps_and_epochs_reports_the_epochs_mean(validation):
    trial = FakeTrial("train_loss")
    fit(trial, LogsTraining(), validation=validation)
    assert (trial.epochs, trial.values) == ([1, 2, 3], [2.5, 6.5, 10.5])


def test_a_name_logged_in_both_phases_is_reported_from_validation_alone():
    class Both(CountsValidations):
        def training_step(self, batch, index):
            self.log("val_loss", -1.0, on_step=True, on_epoch=True)
            return super().training_step(batch, index)

    trial = FakeTrial()
    fit(trial, Both())
    assert trial.values == [1, 2, 3]


def test_the_sanity_check_fast_dev_run_and_later_validations_say_nothing():
    trial, net = FakeTrial(max_epochs=2), CountsValidations()
    trainer, _ = fit(trial, net, epochs=2, num_sanity_val_steps=2)
    trainer.validate(net, data(), verbose=False)
    assert (trial.epochs, trial.values) == ([1, 2], [2, 3])
    dry = FakeTrial()
    fit(dry, fast_dev_run=True)
    assert (dry.reports, dry.endings) == ([], [])


@pytest.mark.filterwarnings("ignore")
def test_the_tuners_own_fits_say_nothing(tmp_path):
    from lightning.pytorch.callbacks import LearningRateFinder
    from lightning.pytorch.tuner import Tuner

    trial, net = FakeTrial(max_epochs=2), Bare()
    trainer = bare_trainer(HaltuneCallback(trial), epochs=2, default_root_dir=tmp_path)
    Tuner(trainer).lr_find(net, data(), data(), num_training=6, early_stop_threshold=None)
    assert (trial.reports, trial.endings) == ([], [])
    trainer.fit(net, data(), data())
    assert trial.epochs == [1, 2]

    other = FakeTrial(max_epochs=2)
    finder = LearningRateFinder(num_training_steps=6, early_stop_threshold=None)
    both = bare_trainer(HaltuneCallback(other), finder, epochs=2, default_root_dir=tmp_path)
    both.fit(Bare(), data(), data())
    assert other.epochs == [1, 2]


def test_early_stopping_and_checkpoints_work_together_with_it(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    keeper = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", save_last=True)
    bare_trainer(HaltuneCallback(trial), keeper, epochs=9, enable_checkpointing=True).fit(Bare(), data(), data())
    state = torch.load(keeper.last_model_path, weights_only=True)
    assert state["epoch"] == 1  # the epoch that was stopped is in it
    random_state = state["callbacks"]["haltune"].pop("random")
    assert state["callbacks"]["haltune"] == {"trial": 7, "config": "[('lr', 0.1)]", "source": "validation"}
    assert len(random_state) == 1  # of this process


def test_a_file_that_the_program_saves_has_small_attributes_buffers_and_gradients_alone(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Holds(Bare):
        def __init__(self, rows):
            super().__init__()
            self.automatic_optimization = False
            self.seen, self.record = 0, [0.0] * rows
            self.rows, self.weights = torch.zeros(rows, 32), torch.ones(rows, 32)
            self.layer.mask = torch.nn.Buffer(torch.ones(rows, 32), persistent=False)
            self.wide = torch.nn.Linear(rows, 32)

        def training_step(self, batch, index):
            self.seen += 1
            self.record[0], self.rows[0] = 1.0, 1.0
            self.manual_backward(self.wide(self.wide.weight).mean())
            self.optimizers().step()

        def on_validation_model_zero_grad(self):
            pass

    def saved(rows):
        path = tmp_path / str(rows)
        keeper = ModelCheckpoint(dirpath=path)
        trial = FakeTrial(max_epochs=1)
        bare_trainer(HaltuneCallback(trial), keeper, epochs=1, enable_checkpointing=True).fit(
            Holds(rows), data(), data()
        )
        (found,) = torch.load(keeper.best_model_path, weights_only=True)["haltune"]
        return found["attributes"]["module."].keys(), found["buffers"].keys(), found["gradients"].keys()

    few, many = saved(32), saved(20_000)
    assert few == ({"seen", "record", "rows", "weights"}, {"layer.mask"}, {"wide.weight", "wide.bias"})
    assert many == ({"seen"}, set(), set())


class NoLength(IterableDataset):
    def __iter__(self):
        return iter(torch.randn(6, 2))


class OnTensors(Bare):
    def training_step(self, batch, index):
        return self.layer(batch).pow(2).mean()


def test_a_loader_without_length_reports_whole_epochs_and_explains_fractions():
    trial = FakeTrial(max_epochs=2)
    trainer = bare_trainer(HaltuneCallback(trial), epochs=2, val_check_interval=1)
    with pytest.warns(HaltuneWarning, match="limit_train_batches") as caught:
        trainer.fit(OnTensors(), DataLoader(NoLength(), batch_size=2), data())
    assert trial.epochs == [1, 2]
    assert len([w for w in caught if issubclass(w.category, HaltuneWarning)]) == 1


def test_a_fit_after_a_stop_ends_before_its_first_batch():
    trial = FakeTrial(max_epochs=9, verdicts={1.0: STOP})
    callback = HaltuneCallback(trial)
    bare_trainer(callback, epochs=9).fit(Bare(), data(), data())
    again = bare_trainer(callback, epochs=9)
    again.fit(Bare(), data(), data())
    assert again.global_step == 0


# Which metrics a Lightning fit's reports carry: every fresh scalar of the epoch, and no older one


class Counts(Net):
    """Every metric's value is the number of the batch, validation or epoch at which it was logged."""

    batches = validations = 0

    def training_step(self, batch, index):
        self.batches += 1
        self.log("step", float(self.batches), on_step=True, on_epoch=True)
        if self.current_epoch == 1:
            self.log("once", 7.0)
        return self.loss(batch[0])

    def on_validation_start(self):
        self.validations += 1

    def validation_step(self, batch, index):
        self.log_dict({"val_loss": float(self.validations), "val_acc": 10.0 * self.validations})

    def on_train_epoch_start(self):
        pass

    def on_train_epoch_end(self):
        self.log("afterwards", 100.0 * (self.current_epoch + 1))


def fresh_metrics_fit(trial, *others, net=None, record="all", **options):
    trainer = make_trainer(*others, HaltuneCallback(trial, record=record), epochs=trial.max_epochs, **options)
    trainer.fit(net or Counts(), shuffled(), shuffled())
    return trainer


def metrics(trial, monitor=None):
    """Those recorded besides the monitored one, which is among them with the value that was judged."""
    goal = monitor or trial.goal.metric
    assert all(r["metrics"].pop(goal) == r["value"] for r in trial.reports)
    return [r["metrics"] for r in trial.reports]


def epoch(n, **more):
    last = float(BATCHES * n)
    mean = last - (BATCHES - 1) / 2
    steps = {"step": mean, "step_step": last, "step_epoch": mean}
    return steps | {"val_acc": 10.0 * n, "afterwards": 100.0 * n} | more


def test_all_scalars_of_an_epoch_are_stored_with_it_and_no_older_one():
    trial = FakeTrial()
    fresh_metrics_fit(trial, num_sanity_val_steps=0)
    assert trial.values == [1, 2, 3]
    assert metrics(trial) == [epoch(1), epoch(2, once=7.0), epoch(3)]


def test_a_validation_within_an_epoch_carries_what_it_measured():
    trial = FakeTrial(max_epochs=1)
    fresh_metrics_fit(trial, num_sanity_val_steps=0, val_check_interval=1 / 3)
    assert metrics(trial) == [{"val_acc": 10.0}, {"val_acc": 20.0}, epoch(1, val_acc=30.0)]


def test_metrics_of_other_callbacks_are_there_wherever_they_stand():
    class Logs(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            module.log("theirs", 5.0)

    for others in ((Logs(),), ()):
        trial = FakeTrial()
        callback = HaltuneCallback(trial)
        last = () if others else (Logs(),)
        make_trainer(*others, callback, *last, epochs=3).fit(Counts(), shuffled(), shuffled())
        assert [m["theirs"] for m in metrics(trial)] == [5.0] * 3


def test_an_exception_between_validation_and_the_epochs_end_loses_no_value():
    class Raises(Counts):
        def on_train_epoch_end(self):
            if self.current_epoch == 1:
                raise error

    trial, error = FakeTrial(), ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        fresh_metrics_fit(trial, net=Raises(), num_sanity_val_steps=0)
    assert (trial.epochs, trial.values) == ([1, 2], [1, 2])
    assert [r["judge"] for r in trial.reports] == [True, False]
    assert trial.endings == [error]


def test_several_validation_loaders_name_their_metrics_in_the_advice():
    class Two(Net):
        def validation_step(self, batch, index, dataloader_idx=0):
            self.log("val_loss", float(dataloader_idx + 1))

    def run(trial, monitor=None):
        trainer = make_trainer(HaltuneCallback(trial, monitor), epochs=3)
        trainer.fit(Two(), shuffled(), [shuffled(), shuffled()])

    advice = r"val_loss/dataloader_idx_1\. If you mean 'val_loss/dataloader_idx_0'"
    with pytest.raises(InvalidInput, match=advice):
        run(FakeTrial())
    trial = FakeTrial()
    run(trial, "val_loss/dataloader_idx_1")
    assert trial.values == [2, 2, 2]
    assert [m["val_loss/dataloader_idx_0"] for m in metrics(trial, "val_loss/dataloader_idx_1")] == [1, 1, 1]


def test_a_stop_on_any_metric_ends_the_fit_after_whole_epochs():
    for metric in ("val_loss", "step", "afterwards"):
        trial = FakeTrial(metric, max_epochs=9, verdicts={2.0: STOP})
        trainer = fresh_metrics_fit(trial, num_sanity_val_steps=0)
        assert trial.epochs == [1, 2]
        assert (trainer.current_epoch, trainer.global_step) == (2, 2 * BATCHES)


@pytest.mark.parametrize(
    ("level", "shown", "advice"),
    [
        ("INFO", [], ".setLevel('ERROR')."),
        ("INFO", ["progress_bar"], "and give the Trainer enable_progress_bar=False."),
        ("INFO", ["progress_bar", "model_summary"], "enable_progress_bar=False and enable_model_summary=False."),
        ("ERROR", ["progress_bar", "model_summary"], None),
    ],
)
def test_from_the_second_fit_on_one_line_says_how_to_hide_lightnings_own(level, shown, advice, caplog):
    caplog.set_level(level, "lightning.pytorch")
    study = Study({"lr": Float(0.01, 0.1)}, "val_loss", max_epochs=2, policy=RandomSearch(trials=3), seed=0)
    fits = []
    for trial in study:
        with trial:
            fit(trial, Bare(**trial.config), epochs=trial.max_epochs, **{f"enable_{what}": True for what in shown})
        fits.append([line for line in caplog.messages if line.startswith("Lightning logs ")])
    assert [len(lines) for lines in fits] == ([0, 1, 1] if advice else [0, 0, 0])
    assert all(line.endswith(advice) and line.count("enable_") == len(shown) for line in fits[-1])
