"""Lightning in studies that judge the loss of training, every log_every_n_steps, and rank by validations."""

import pytest
from callback_fakes import STOP, FakeTrial

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning_nets import GOAL, Slow, make_trainer, seed, shuffled, ten_batches  # noqa: E402

from haltune import Minimize  # noqa: E402
from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import InvalidInput  # noqa: E402
from haltune.log.problem import Measures  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
PLAIN = Minimize("train_loss")


def counting(unit, horizon, goal=GOAL, **more):
    trial = FakeTrial(goal.metric, max_epochs=horizon, **more)
    trial.unit, trial.goal = unit, goal
    trial.measures = Measures(goal.metric, ranked=(goal.rank_by,) if goal.rank_by else ())
    return trial


def fit(trial, others=(), net=Slow, **options):
    seed(3)
    trainer = make_trainer(*others, HaltuneCallback(trial), **{"epochs": -1, "log_every_n_steps": 3} | options)
    trainer.fit(model := net(), ten_batches(), shuffled())
    return trainer, model


def test_each_step_that_lightning_logs_is_reported_with_validations_between_them_and_the_last_step():
    trial = counting("step", 20)
    _, net = fit(trial, max_steps=20, val_check_interval=9, check_val_every_n_epoch=None)
    assert trial.epochs == [3, 6, 9, 12, 15, 18, 20]
    assert trial.values == [pytest.approx(net.losses[int(step) - 1]) for step in trial.epochs]
    assert [r["epoch"] for r in trial.reports if "val_loss" in r["metrics"]] == [9, 18, 20]


@pytest.mark.parametrize(
    ("goal", "epochs", "reports"),
    [(PLAIN, 1, [0.3, 0.6, 0.9, 1.0]), (GOAL, 2, [0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.0]), (PLAIN, 2, [1, 2])],
)
def test_a_study_by_epochs_gets_steps_if_it_has_one_epoch_or_smooths(goal, epochs, reports):
    trial = counting("epoch", epochs, goal)
    fit(trial, epochs=epochs)
    assert trial.epochs == reports


def test_steps_of_accumulated_batches_are_counted_once():
    trial = counting("step", 10)
    fit(trial, epochs=2, accumulate_grad_batches=2, log_every_n_steps=2)
    assert trial.epochs == [2, 4, 6, 8, 10]


class Both(Slow):
    """It logs one name in training and in validation."""

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("loss", self.loss(batch[0]))


def test_a_name_that_validation_logs_too_is_its():
    trial = counting("step", 20, Minimize("loss"))
    fit(trial, net=Both, max_steps=20)
    assert trial.epochs == [10, 20]


class ByEpoch(Slow):
    """It logs the loss of training as a mean of the epoch."""

    def training_step(self, batch, index):
        loss = self.loss(batch[0])
        self.log("train_mean", loss, on_step=False, on_epoch=True)
        return loss


def test_a_mean_of_the_epoch_is_reported_at_its_end():
    trial = counting("step", 20, Minimize("train_mean"))
    fit(trial, net=ByEpoch, max_steps=20)
    assert trial.epochs == [10, 20]


def test_a_stop_at_a_step_ends_the_fit_there_without_a_validation():
    trial = counting("step", 20, verdicts={6: STOP})
    trainer, _ = fit(trial, max_steps=20)
    assert (trial.epochs, trainer.global_step, "val_loss" in trainer.callback_metrics) == ([3, 6], 6, False)


def test_a_metric_to_rank_by_that_validation_lacks_ends_the_fit_after_an_epoch():
    trial = counting("step", 40, Minimize("train_loss", rank_by="val_lass"))
    with pytest.raises(
        InvalidInput,
        match=r"rank_by='val_lass' was not logged in the first.*names: .*val_loss.* write rank_by='val_loss';",
    ):
        fit(trial, max_steps=40)
    assert trial.epochs[-1] <= 20


def test_a_fit_that_has_fewer_steps_than_lightning_logs_after_is_an_error():
    match = r"Lightning logs every 50 steps, more than this fit has\. Reduce Trainer\(log_every"
    with pytest.raises(InvalidInput, match=match):
        fit(counting("step", 100), max_steps=10, log_every_n_steps=50)
