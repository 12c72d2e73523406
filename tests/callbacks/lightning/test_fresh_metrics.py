"""Which metrics a Lightning fit's reports carry: every fresh scalar of the epoch, and no older one."""

import signal

import pytest
from callback_fakes import STOP, FakeTrial
from paused_studies import pausing_study

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning_nets import BATCHES, Net, make_trainer, shuffled  # noqa: E402

from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import InvalidInput  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


class Counts(Net):
    """Every metric's value says in which batch, validation or epoch it was logged."""

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


def fit(trial, *others, net=None, record="all", **options):
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
    fit(trial, num_sanity_val_steps=0)
    assert trial.values == [1, 2, 3]
    assert metrics(trial) == [epoch(1), epoch(2, once=7.0), epoch(3)]


def test_record_monitor_stores_the_goals_metric_alone():
    trial = FakeTrial()
    fit(trial, num_sanity_val_steps=0, record="monitor")
    assert (trial.values, [r["metrics"] for r in trial.reports]) == ([1, 2, 3], [{}, {}, {}])
    with pytest.raises(InvalidInput, match="record='some'"):
        HaltuneCallback(FakeTrial(), record="some")


def test_a_validation_within_an_epoch_carries_what_it_measured():
    trial = FakeTrial(max_epochs=1)
    fit(trial, num_sanity_val_steps=0, val_check_interval=1 / 3)
    assert metrics(trial) == [
        {"val_acc": 10.0},
        {"val_acc": 20.0},
        epoch(1, val_acc=30.0),
    ]


def test_the_study_keeps_them_in_columns():
    study = pausing_study(at=())
    trial = study.ask()
    with trial:
        fit(trial, num_sanity_val_steps=0)
    columns = study.trials[0].metrics
    assert columns["val_acc"].tolist() == [10, 20, 30, 40]
    assert columns["afterwards"].tolist() == [100, 200, 300, 400]
    assert str(columns["once"].tolist()) == "[nan, 7.0, nan, nan]"


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


def test_the_order_of_the_users_callbacks_is_as_it_was_after_a_fit():
    class Theirs(pl.Callback):
        pass

    ours, theirs, trial = None, Theirs(), FakeTrial()
    ours = HaltuneCallback(trial)
    trainer = make_trainer(theirs, ours, epochs=3)
    trainer.fit(Counts(), shuffled(), shuffled())
    assert trainer.callbacks == [theirs, ours]
    assert trainer.checkpoint_callback is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a bug")])
def test_an_exception_between_validation_and_the_epochs_end_loses_no_value(error):
    class Raises(Counts):
        def on_train_epoch_end(self):
            if self.current_epoch == 1:
                raise error

    before, trial = signal.getsignal(signal.SIGINT), FakeTrial()
    try:
        with pytest.raises((SystemExit, ValueError)):
            fit(trial, net=Raises(), num_sanity_val_steps=0)
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning leaves it ignored
    assert (trial.epochs, trial.values) == ([1, 2], [1, 2])
    assert [r["judge"] for r in trial.reports] == [True, False]
    assert trial.endings == [error if isinstance(error, ValueError) else "interrupted"]


def test_the_clock_laps_at_the_end_of_validation():
    trial, now = FakeTrial(max_epochs=2), [0.0]

    class Slow(Counts):
        def on_validation_model_eval(self):
            super().on_validation_model_eval()
            now[0] += 2.0

        def training_step(self, batch, index):
            now[0] += 1.0
            return super().training_step(batch, index)

        def on_train_epoch_end(self):
            now[0] += 100.0

    callback = HaltuneCallback(trial)
    callback._reporter.clock.__init__(lambda: now[0])
    net = Slow()
    make_trainer(callback, epochs=2).fit(net, shuffled(), shuffled())
    assert [r["seconds"] for r in trial.reports] == [BATCHES + 2.0] * 2


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
        trainer = fit(trial, num_sanity_val_steps=0)
        assert trial.epochs == [1, 2]
        assert (trainer.current_epoch, trainer.global_step) == (2, 2 * BATCHES)
