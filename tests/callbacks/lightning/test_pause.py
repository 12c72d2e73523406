"""Paused Lightning trainings equal uninterrupted ones digit for digit, and a failed save loses no trial."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging, TQDMProgressBar  # noqa: E402
from lightning_nets import BATCHES, Net, make_trainer, search, shuffled  # noqa: E402
from torch.optim import SGD, Adam  # noqa: E402
from torch.optim import lr_scheduler as lr  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from haltune import Budget  # noqa: E402
from haltune.callbacks import check_resume  # noqa: E402
from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
EPOCHS = 4


def scheduled(make, interval="epoch", optimizer=SGD, **more):
    def optimize(net):
        o = optimizer(net.parameters(), lr=0.1)
        return {"optimizer": o, "lr_scheduler": {"scheduler": make(o), "interval": interval} | more}

    return lambda: Net(optimize)


class TwoOptimizers(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, index))
            optimizer.step()
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def configure_optimizers(self):
        first, second = SGD(self.layers[0].parameters(), 0.1, 0.9), Adam(self.layers[3].parameters(), 0.01)
        return [first, second], [lr.StepLR(first, 2, 0.5), lr.ExponentialLR(second, 0.9)]


class Ema(pl.Callback):
    """A user's callback with state of its own, which also draws random numbers."""

    def __init__(self):
        self.average, self.draws = None, 0.0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        weight = module.layers[0].weight.detach().clone()
        self.average = weight if self.average is None else 0.9 * self.average + 0.1 * weight

    def on_train_epoch_start(self, trainer, module):
        self.draws += float(torch.rand(()))

    def state_dict(self):
        return {"average": self.average, "draws": self.draws}

    def load_state_dict(self, state):
        self.average, self.draws = state["average"], state["draws"]


def averaging():
    from lightning.pytorch.callbacks import EMAWeightAveraging

    return [EMAWeightAveraging(decay=0.8)]


def own_generator():
    return shuffled(generator=torch.Generator().manual_seed(5))


class Stream(IterableDataset):
    """Random rows, no length; every iteration draws."""

    def __iter__(self):
        return iter([(torch.randn(3),) for _ in range(12)])


CASES = {
    "SGD with momentum": {},
    "OneCycleLR": {"make_net": scheduled(lambda o: lr.OneCycleLR(o, 0.2, EPOCHS * BATCHES), "step", Adam)},
    "ReduceLROnPlateau": {
        "make_net": scheduled(lambda o: lr.ReduceLROnPlateau(o, patience=0, threshold=0.9), monitor="val_loss")
    },
    "worker processes": {"make_data": lambda: shuffled(num_workers=1)},
    "a loader's own generator": {"make_data": own_generator},
    "weights averaged by Lightning": {"others": averaging},
    "a user's stateful callback": {"others": lambda: [Ema()]},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "weights averaged late": {"others": lambda: [StochasticWeightAveraging(0.01, 1, annealing_epochs=2)]},
    "two optimizers": {"make_net": TwoOptimizers},
    "gradient accumulation": {"accumulate_grad_batches": 2},
    "two validations an epoch": {"val_check_interval": 1 / 3},
    "a training metric": {"metric": "train_loss"},
    "a stream without length": {"make_data": lambda: DataLoader(Stream(), batch_size=4)},
    "loaders made anew each epoch": {"reload_dataloaders_every_n_epochs": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_a_paused_training_equals_an_uninterrupted_one(case):
    straight, paused = search((), **CASES[case]), search((1, 3), **CASES[case])
    assert [t.attempt for t in paused[0].trials] == [3]
    assert differences(straight, paused) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("case", ["SGD with momentum", "OneCycleLR", "bf16-mixed", "weights averaged by Lightning"])
def test_it_does_on_a_cuda_device(case):
    given = CASES[case] | {"accelerator": "gpu", "devices": 1}
    assert differences(search((), **given), search((1, 3), **given)) == []


def test_early_stopping_checkpoints_and_a_progress_bar_continue_too(tmp_path):
    def company():
        keeper = ModelCheckpoint(tmp_path / str(len(list(tmp_path.iterdir()))), monitor="val_loss", save_top_k=2)
        return [EarlyStopping("val_loss", patience=9), keeper, TQDMProgressBar()]

    given = {"others": company, "enable_checkpointing": True, "enable_progress_bar": True}
    straight, paused = search((), **given), search((2,), **given)
    assert differences(straight, paused) == []
    kept = [t.checkpoint_callback.best_model_score for t in (straight[1], paused[1])]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("options", "in_training"), [({}, False), ({}, True), ({"at": (), "budget": Budget(epochs=2)}, True)]
)
def test_early_stopping_in_the_epoch_of_a_pause_completes_the_trial(options, in_training):
    def company():
        return [EarlyStopping("val_loss", min_delta=1e9, patience=1, check_on_train_epoch_end=in_training)]

    study, _, _ = search(**{"at": (2,), "others": company, "num_sanity_val_steps": 0} | options)
    assert [(t.status.value, t.attempt, t.epochs.tolist()) for t in study.trials] == [("completed", 1, [1, 2])]


def differences(one, other):
    """The names of what is not equal bit for bit after two trainings."""
    found = []
    _compare("", _everything(*one), _everything(*other), found)
    return found


def _everything(study, trainer, next_draw):
    (trial,) = study.trials
    callbacks = {c.state_key: c.state_dict() for c in trainer.callbacks if "haltune" not in c.state_key}
    return {
        "status": trial.status.value,
        "values": trial.values.tolist(),
        "metrics": {n: v.tolist() for n, v in trial.metrics.items() if not n.startswith("haltune")},
        "weights": trainer.lightning_module.state_dict(),
        "optimizers": [o.state_dict() for o in trainer.optimizers],
        "schedulers": [c.scheduler.state_dict() for c in trainer.lr_scheduler_configs],
        "logged": dict(trainer.callback_metrics),
        "callbacks": {k: v for k, v in callbacks.items() if "ModelCheckpoint" not in k},
        "next random number": next_draw,
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
    }


def _compare(name, one, other, found):
    if isinstance(one, dict):
        if one.keys() != other.keys():
            found.append(f"{name}: {sorted(map(str, one.keys() ^ other.keys()))}")
        for key in one.keys() & other.keys():
            _compare(f"{name}/{key}", one[key], other[key], found)
    elif isinstance(one, (list, tuple)) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True)):
            _compare(f"{name}/{i}", *pair, found)
    elif isinstance(one, torch.Tensor):
        if not torch.equal(one, other):
            found.append(name)
    elif repr(one) != repr(other) and not callable(one):  # NaN equals NaN
        found.append(f"{name}: {one} {other}")


def test_check_resume_finds_nothing_in_a_lightning_fit_and_names_what_a_forgotten_ckpt_path_loses():
    def run(trial, path=True):
        trainer = make_trainer(HaltuneCallback(trial), epochs=trial.max_epochs)
        trainer.fit(Net(), shuffled(), shuffled(), ckpt_path=trial.checkpoint if path else None)
        return trainer

    assert check_resume(run).differences == ()
    forgotten = check_resume(lambda trial: run(trial, path=False))
    assert "ckpt_path=trial.checkpoint" in str(forgotten)
