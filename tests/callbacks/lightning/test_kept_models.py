"""The file that is kept for a trial has the weights that its value is of."""

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, ModelPruning, StochasticWeightAveraging  # noqa: E402
from lightning_nets import FORTY, make_trainer, ten_batches  # noqa: E402

from haltune import Float, Minimize, Study  # noqa: E402
from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning  # noqa: E402
from haltune.policies import RandomSearch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


class Plain(pl.LightningModule):
    """Its value is that of its weights alone."""

    def __init__(self, norm=False):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.BatchNorm1d(3) if norm else torch.nn.Identity(), torch.nn.Linear(3, 1))

    def loss(self, rows):
        return torch.nn.functional.mse_loss(self.net(rows), rows.sum(1, keepdim=True))

    def training_step(self, batch, index):
        return self.loss(batch[0])

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch[0]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


def searched(*others, of="last", epochs=4, net=Plain, **options):
    study = Study({"lr": Float(0.1, 0.2)}, Minimize("val_loss", of=of), max_epochs=4, budget="1 trial", seed=0,
                  policy=RandomSearch())  # fmt: skip
    with study.ask() as trial:
        trainer = make_trainer(*others, HaltuneCallback(trial), epochs=epochs, **options)
        whole = torch.utils.data.DataLoader(FORTY, 40)
        trainer.fit(net(any(isinstance(c, StochasticWeightAveraging) for c in others)), ten_batches(), whole)
    return study, trainer


def evaluated(path):
    with torch.no_grad():
        return float(Plain.load_from_checkpoint(path).eval().loss(FORTY.tensors[0]))


@pytest.mark.parametrize("of", ["last", "best"])
def test_an_average_that_is_validated_is_the_model_that_is_kept(of):
    study, _ = searched(EMAWeightAveraging(decay=0.9, update_starting_at_step=15), of=of)
    assert evaluated(study.best.checkpoint) == pytest.approx(study.best.value, rel=1e-6)


class OwnAverage(pl.Callback):
    """It validates with an average, and leaves it out of checkpoints."""

    def on_train_batch_end(self, trainer, module, *_):
        now = [p.detach().clone() for p in module.parameters()]
        old = getattr(self, "average", now)
        self.average = [0.9 * a + 0.1 * b for a, b in zip(old, now, strict=True)]

    def on_validation_start(self, trainer, module):
        if hasattr(self, "average"):
            self.weights = [p.detach().clone() for p in module.parameters()]
            self.put(module, self.average)

    def on_validation_end(self, trainer, module):
        if hasattr(self, "average"):
            self.put(module, self.weights)

    def put(self, module, values):
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), values, strict=True):
                parameter.copy_(value)


@pytest.mark.parametrize("of", ["last", "best"])
def test_a_model_is_not_kept_under_the_value_of_an_average_that_its_file_lacks(of):
    with pytest.warns(HaltuneWarning, match=r"is not kept: its value is of other weights.*on_save_checkpoint"):
        study, _ = searched(OwnAverage(), of=of)
    assert study.best.checkpoint is None


class Average:
    """An average of a library, which a program puts in place within its steps, as that of torch_ema."""

    __module__ = "torch"

    def __init__(self, module):
        self.weights = [*module.parameters()]
        self.averages = [weight.detach().clone() for weight in self.weights]

    def update(self):
        for average, weight in zip(self.averages, self.weights, strict=True):
            average.lerp_(weight.detach(), 0.1)

    @contextmanager
    def in_place(self):
        before = [weight.detach().clone() for weight in self.weights]
        for values in (self.averages, before):
            for weight, value in zip(self.weights, values, strict=True):
                weight.data.copy_(value)
            if values is self.averages:
                yield

    def state_dict(self):
        return {"averages": self.averages}

    def load_state_dict(self, state):
        self.averages = state["averages"]


class Averages(Plain):
    """It holds an average, and does not validate with it."""

    def __init__(self, norm=False):
        super().__init__()
        self.average = Average(self)

    def on_train_batch_end(self, *_):
        self.average.update()


class ValidatesAverage(Averages):
    def validation_step(self, batch, index):
        with self.average.in_place():
            super().validation_step(batch, index)


@pytest.mark.parametrize("of", ["last", "best"])
def test_a_model_is_not_kept_under_the_value_of_an_average_that_a_validation_step_puts_in_place(of):
    with pytest.warns(HaltuneWarning, match=r"is not kept: its value is of other weights.*the module averages"):
        study, _ = searched(of=of, net=ValidatesAverage)
    assert study.best.checkpoint is None


def test_a_model_is_kept_whose_module_holds_an_average_that_it_does_not_validate():
    study, _ = searched(net=Averages)
    assert evaluated(study.best.checkpoint) == pytest.approx(study.best.value, rel=1e-6)


class Prunes(ModelPruning):
    """It prunes after the validations of some epochs, from 0."""

    def __init__(self, *epochs):
        super().__init__("random_unstructured", amount=lambda epoch: 0.4 * (epoch in epochs), verbose=0)

    def setup(self, trainer, pl_module, stage):
        torch.manual_seed(0)
        super().setup(trainer, pl_module, stage)


@pytest.mark.parametrize(("of", "epochs"), [("last", [3]), ("best", [0, 1, 2, 3])])
def test_a_model_that_is_pruned_after_its_validation_is_not_kept_under_that_value(of, epochs):
    with pytest.warns(HaltuneWarning, match=r"is not kept: its value is of other weights.*prunes weights"):
        study, _ = searched(Prunes(*epochs), of=of)
    assert study.best.checkpoint is None


def test_a_pruned_model_is_kept_with_its_value():
    study, _ = searched(Prunes(0, 1))
    assert evaluated(study.best.checkpoint) == pytest.approx(study.best.value, rel=1e-5)


def test_the_epoch_that_stochastic_weight_averaging_adds_is_trained_and_its_value_is_the_trials():
    study, trainer = searched(StochasticWeightAveraging(0.02, swa_epoch_start=0.5))
    assert (trainer.current_epoch, study.trials[0].epochs.tolist()) == (5, [1, 2, 3, 4])
    assert study.trials[0].values[-1] == pytest.approx(float(trainer.callback_metrics["val_loss"]), rel=1e-6)
    assert evaluated(study.best.checkpoint) == pytest.approx(study.best.value, rel=1e-5)


def test_a_program_that_keeps_its_best_epoch_is_told_how_the_study_counts_it(tmp_path, caplog):
    searched(ModelCheckpoint(tmp_path, monitor="val_loss"), enable_checkpointing=True)
    assert "If you use that model, make the goal Minimize('val_loss', of='best')" in caplog.text
    caplog.clear()
    searched(ModelCheckpoint(tmp_path, monitor="val_loss"), of="best", enable_checkpointing=True)
    assert "of='best'" not in caplog.text


def test_the_trainers_checkpoint_callback_is_the_users_or_none():
    class Asks(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            self.found = trainer.checkpoint_callback, trainer.early_stopping_callback

    asks = Asks()
    searched(asks)
    assert asks.found == (None, None)
