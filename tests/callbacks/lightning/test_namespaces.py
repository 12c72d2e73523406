"""One callback under each of Lightning's two names and under both; no framework is imported too early."""

import importlib.util

import pytest

from haltune.callbacks.base import framework_bases

FIT = """
import sys
from callback_fakes import FakeTrial, PAUSE, STOP
from haltune.callbacks.lightning import HaltuneCallback  # before any framework, as sorted imports have it

assert not {"torch", "lightning", "pytorch_lightning"} & set(sys.modules)
import copy, pickle, torch

def fit(pl):
    def trained(trial, checkpoint=None):
        torch.manual_seed(trial.attempt)
        callback = HaltuneCallback(trial)
        trainer = pl.Trainer(max_epochs=trial.max_epochs, callbacks=callback, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
        loader = torch.utils.data.DataLoader(torch.arange(4.0).reshape(4, 1), shuffle=True)
        trainer.fit(Net(), loader, loader, ckpt_path=checkpoint)
        assert trainer.callbacks == [callback], trainer.callbacks
        return callback
    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
        def training_step(self, batch, index):
            return self.layer(batch).pow(2).mean()
        def validation_step(self, batch, index):
            self.log("val_loss", self.layer(batch).pow(2).mean())
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    trial = FakeTrial(max_epochs=5, verdicts={2.0: STOP})
    callback = HaltuneCallback(trial)
    assert isinstance(callback, pl.Callback) and isinstance(callback, HaltuneCallback)
    for twin in (copy.copy(callback), copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert type(twin) is type(callback), type(twin)
    assert type(callback).__qualname__ == HaltuneCallback.__qualname__
    callback = trained(trial)
    assert trial.epochs == [1, 2], trial.epochs
    straight, paused = FakeTrial(max_epochs=3), FakeTrial(max_epochs=3, verdicts={1.0: PAUSE})
    trained(straight)
    trained(paused)
    again = FakeTrial(max_epochs=3, epoch=1.0)
    again.attempt = 2
    trained(again, paused.checkpoint)
    assert paused.values + again.values == straight.values, (paused.values, again.values, straight.values)
    return callback
"""
LIGHTNING = "import lightning.pytorch as new; callback = fit(new); assert 'pytorch_lightning' not in sys.modules\n"
PYTORCH_LIGHTNING = "import pytorch_lightning as old; callback = fit(old); assert 'lightning' not in sys.modules\n"


def need(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.mark.slow
def test_in_pytorch_lightning_alone_it_works(in_a_process):
    need("torch", "pytorch_lightning")
    in_a_process(FIT + PYTORCH_LIGHTNING)


@pytest.mark.slow
def test_it_works_in_lightning_alone_then_in_both_at_once(in_a_process):
    need("torch", "pytorch_lightning", "lightning")
    both = "import pytorch_lightning as old; fit(old); assert isinstance(fit(new), old.Callback)\n"
    subclass = """
class Mine(HaltuneCallback):
    def on_fit_start(self, trainer, module):
        self.started = True
HaltuneCallback = Mine
mine = fit(new)
assert mine.started and isinstance(pickle.loads(pickle.dumps(mine)), Mine)
"""
    in_a_process(FIT + LIGHTNING + both + subclass)


def test_a_missing_framework_says_what_to_install():
    with pytest.raises(ImportError, match=r"needs third_framework.*Run: pip install it"):
        framework_bases(("third_framework",), "Callback", "pip install it")


def test_importing_the_callbacks_imports_no_framework(in_a_process):
    ours = "accelerate, catboost, fastai, keras, lightgbm, lightning, loop, sklearn, transformers, xgboost"
    heavy = f"{ours.replace('loop, ', '')}, torch, tensorflow, jax, pytorch_lightning, sqlalchemy".split(", ")
    in_a_process(
        f"import sys\nfrom haltune.callbacks import {ours}\n"
        f"assert not {set(heavy)} & set(sys.modules), {set(heavy)} & set(sys.modules)\n"
    )
