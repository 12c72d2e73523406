"""What a Lightning checkpoint lacks is part of a pause, or the pause is declined before it is made."""

import json
from pathlib import Path

import pytest
from callback_fakes import PAUSE, FakeTrial

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning.pytorch.callbacks import EarlyStopping  # noqa: E402
from lightning_nets import FORTY, Drawing, Net, Sharpness, Slow, make_trainer, scheduled, search, shuffled, ten_batches  # noqa: E402
from samplers import Shuffling  # noqa: E402
from torch.optim import SGD  # noqa: E402
from torch.optim import lr_scheduler as lr  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


class PruningNet(Net):
    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            torch.nn.utils.prune.l1_unstructured(self.layers[0], "weight", 0.5)


class JoiningNet(Net):
    """Layers join the optimizer later."""

    def configure_optimizers(self):
        return SGD(self.layers[3].parameters(), 0.1)

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.optimizers().add_param_group({"params": list(self.layers[0].parameters())})


class SettingNet(Net):
    def on_train_start(self):
        torch.nn.init.ones_(self.layers[0].weight)


class LossOutside(Net):
    """Its loss has weights, and is no attribute of the module."""

    def configure_optimizers(self):
        return SGD([*self.parameters(), *ARCS.parameters()], 0.1)

    def loss(self, batch):
        return super().loss(batch) + ARCS(batch).pow(2).mean()


ARCS = torch.nn.Linear(3, 1)


class Acts(Net):
    """Its agent steps through an environment."""

    def __init__(self):
        super().__init__()
        self.agent = Agent()


class Agent:
    def __init__(self):
        self.env = pytest.importorskip("gymnasium", reason="Gymnasium is not installed").make("CartPole-v1")


class Average:
    """An average of the weights, of a library: torch_ema and Diffusers have one."""

    __module__ = "torch"

    def __init__(self, weights):
        self.weights, self.averages = list(weights), [w.detach().clone() for w in weights]

    def update(self):
        for average, weight in zip(self.averages, self.weights, strict=True):
            average.lerp_(weight.detach(), 0.1)

    def state_dict(self):
        return {"decay": 0.9, "averages": self.averages}

    def load_state_dict(self, state):
        for average, saved in zip(self.averages, state["averages"], strict=True):
            average.copy_(saved)


class Averages(Net):
    def __init__(self):
        super().__init__()
        self.average = Average([*self.parameters()])

    def on_train_batch_end(self, *args):
        self.average.update()


class SavesItsAverage(Averages):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["average"] = self.average.state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.average.load_state_dict(checkpoint["average"])


class MadeByTheModule(Net):
    def train_dataloader(self):
        return shuffled()


@pytest.mark.parametrize(
    ("net", "train", "options", "why"),
    [
        (PruningNet, shuffled, {}, r"structure of its module \(layers\.0\.weight"),
        (JoiningNet, shuffled, {}, r"optimizers or their parameter groups.*requires_grad=False"),
        (LossOutside, shuffled, {}, r"weights outside the module, as of a loss"),
        (SettingNet, shuffled, {}, r"weights are set in on_fit_start or on_train_start"),
        (Averages, shuffled, {}, r"average changes in training and holds weights.*on_save_checkpoint"),
        (Sharpness, shuffled, {}, r"SAM\.base_optimizer has moments.*state of both"),
        (Acts, shuffled, {}, r"the state of the environment in module\.agent"),
        (Net, lambda: shuffled(num_workers=1, persistent_workers=True), {}, r"persistent_workers=False"),
        (
            MadeByTheModule,
            lambda: None,
            {"reload_dataloaders_every_n_epochs": 3},
            r"reload_dataloaders_every_n_epochs=3",
        ),
    ],
    ids=[
        "pruning",
        "parameter groups",
        "a loss",
        "first hooks",
        "average",
        "an optimizer in another",
        "environment",
        "persistent workers",
        "old loaders",
    ],
)
def test_a_pause_whose_state_no_checkpoint_has_is_declined_and_named_once(net, train, options, why):
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE, 4.0: PAUSE})
    trainer = make_trainer(HaltuneCallback(trial), epochs=4, **options)
    data = [d for d in (train(),) if d is not None]
    with pytest.warns(HaltuneWarning, match=f"cannot be paused, because .*{why}.*keeps training") as caught:
        trainer.fit(net(), *data, val_dataloaders=shuffled())
    assert len([w for w in caught if w.category is HaltuneWarning]) == 1
    assert (trial.epochs, trial.saved) == ([1, 2, 3, 4], [])
    assert any("the kept model lacks them" in hint for hint in trial.hints) == (net is LossOutside)


class TrainsBuffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1, requires_grad=True))

    def configure_optimizers(self):
        return SGD([*self.parameters(), self.scale], 0.1)

    def loss(self, batch):
        return super().loss(batch) * self.scale


class SavesItsLoss(LossOutside):
    def state_dict(self, *args, **options):
        return super().state_dict(*args, **options) | ARCS.state_dict(prefix="arcs.")


@pytest.mark.parametrize("net", [TrainsBuffer, SavesItsLoss, SavesItsAverage])
def test_weights_that_are_no_parameters_of_the_module_but_are_in_its_state_let_it_pause(net):
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    trainer = make_trainer(HaltuneCallback(trial), epochs=4)
    trainer.fit(net(), shuffled(), val_dataloaders=shuffled())
    assert (trial.epochs, len(trial.saved)) == ([1, 2], 1)
    assert not any("outside" in hint for hint in trial.hints)


class Prepares(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        self.outputs = []


class Shuffles(IterableDataset):
    """A shuffle buffer: it draws while it is read."""

    def __iter__(self):
        rows = list(FORTY)
        while rows:
            yield rows.pop(int(torch.randint(len(rows), ())))


class Counts(Drawing):
    """Shuffles by a seed that it counts."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return iter(torch.randperm(len(self), generator=torch.Generator().manual_seed(self.passes)).tolist())


def mean_of_training():
    return scheduled(lambda o: lr.ReduceLROnPlateau(o), monitor="train_loss")()


@pytest.mark.parametrize(
    ("net", "train", "others", "why"),
    [
        (Slow, ten_batches, lambda: [Prepares()], r"Prepares\.on_train_epoch_start prepares an epoch"),
        (Net, ten_batches, list, r"Whole\.on_train_epoch_start prepares an epoch"),
        (Slow, ten_batches, lambda: [EarlyStopping("train_loss", patience=99)], "'train_loss', which .* EarlyStopping"),
        (Slow, lambda: DataLoader(Shuffles(), batch_size=4), list, r"draw random numbers.*num_workers=1"),
        (Slow, lambda: [ten_batches(), shuffled()], list, "loaders have different lengths"),
        (Slow, lambda: DataLoader(FORTY, 4, sampler=Drawing()), list, "samplers change while they are read"),
        (Slow, lambda: DataLoader(FORTY, 4, sampler=Counts()), list, "samplers change while they are read"),
        (Slow, lambda: DataLoader(FORTY, 4, sampler=Shuffling(40)), list, "samplers change while they are read"),
    ],
    ids=[
        "a callback's epoch",
        "a module's epoch",
        "a mean of the epoch",
        "a buffer",
        "several loaders",
        "a sampler",
        "a sampler's count",
        "a sampler of a library",
    ],
)
def test_a_pause_within_an_epoch_that_would_not_resume_exactly_waits_for_its_end(net, train, others, why):
    class Whole(net):
        def training_step(self, batch, index):
            return super().training_step(batch[0] if isinstance(batch[0], list) else batch, index)

    trial = FakeTrial(max_epochs=3, verdicts={1.4: PAUSE})
    trainer = make_trainer(*others(), HaltuneCallback(trial), epochs=3, val_check_interval=2, limit_train_batches=10)
    with pytest.warns(HaltuneWarning, match=f"cannot resume exactly from here: .*{why}"):
        trainer.fit(Whole(), train(), shuffled())
    assert (trial.saved, trial.epochs[-1]) == ([2], 2)


def test_a_pause_saves_no_large_tensor_that_its_module_holds_and_does_not_change():
    class Bank(Net):
        def __init__(self):
            super().__init__()
            self.bank = torch.rand(300_000)

    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    trainer = make_trainer(HaltuneCallback(trial), epochs=4)
    trainer.fit(Bank(), shuffled(), val_dataloaders=shuffled())
    assert (trial.epochs, trial.saved) == ([1, 2], [2])
    assert Path(trial.checkpoint).stat().st_size < 200_000


class Texts(Dataset):
    """Rows with texts."""

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return 12

    def __getitem__(self, row):
        return (torch.full((3,), row / 12),)


@pytest.mark.parametrize(
    "texts",
    [
        ["a" * 1000] * 20_000,
        pytest.param("b" * 20_000_000, marks=pytest.mark.slow),
        pytest.param([b"c" * 1000] * 20_000, marks=pytest.mark.slow),
    ],
)
def test_a_fit_writes_no_large_texts_of_its_data_to_see_whether_they_change(texts, monkeypatch):
    lengths, dumps = [], json.dumps

    def noted(*args, **options):
        lengths.append(len(text := dumps(*args, **options)))
        return text

    monkeypatch.setattr(json, "dumps", noted)
    study, _, _ = search((1,), make_data=lambda: DataLoader(Texts(texts), 4), epochs=2)
    assert (study.trials[0].attempt, max(lengths) < 1_000_000) == (2, True)


def test_a_fit_that_does_not_pause_copies_no_tensor_that_its_module_holds(monkeypatch):
    class Bank(Net):
        def __init__(self):
            super().__init__()
            self.bank = torch.zeros(12_345)

    copied, clone = [], torch.Tensor.clone
    monkeypatch.setattr(
        torch.Tensor, "clone", lambda tensor, **how: copied.append(tensor.numel()) or clone(tensor, **how)
    )
    search((), Bank, epochs=2)
    assert 12_345 not in copied
