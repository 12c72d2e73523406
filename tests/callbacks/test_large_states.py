"""A large part of a model that is not saved: a trial pauses unless it changes."""

import re
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fits import FITS, X, Y  # noqa: E402
from paused_studies import pausing_study  # noqa: E402

from haltune.errors import HaltuneWarning  # noqa: E402

LARGE = 4_300_000  # numbers of 4 bytes
KINDS = ["buffer", "attribute", "constant buffer", "constant attribute"]


class Remembers(torch.nn.Module):
    """A model with a large memory, of which a few numbers change in each step."""

    def __init__(self, kind, inputs=3):
        super().__init__()
        self.layer, self.changes, self.steps = torch.nn.Linear(inputs, 1), "constant" not in kind, 0
        if "buffer" in kind:
            self.register_buffer("bank", torch.zeros(LARGE), persistent=False)
        else:
            self.bank = torch.zeros(LARGE)

    def forward(self, x, labels=None):
        if self.training and self.changes:
            self.steps += 1
            self.bank[self.steps] += 1.0
        out = self.layer(x) + self.bank[1:9].mean()
        return out if labels is None else {"loss": (out.squeeze(-1) - labels).pow(2).mean(), "logits": out}


def by_trainer(trial, net, folder, *callbacks):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from haltune.callbacks.transformers import HaltuneCallback

    rows = [{"x": x, "labels": y} for x, y in zip(X[:32], Y[:32], strict=True)]
    how = {"eval_strategy": "epoch", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(str(folder), num_train_epochs=3, save_strategy="no", **how)
    t = transformers.Trainer(
        net,
        arguments,
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=[HaltuneCallback(trial, "eval_loss"), *callbacks],
    )
    t.train(resume_from_checkpoint=trial.checkpoint)


def by_accelerate(trial, net, folder):
    accelerate = pytest.importorskip("accelerate")
    from haltune.callbacks.accelerate import AcceleratedLoop

    accelerator = accelerate.Accelerator(cpu=True)
    net, sgd = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    for _ in (loop := AcceleratedLoop(trial, accelerator)):
        loss = net(torch.tensor(X[:32]), torch.tensor(Y[:32]))["loss"]
        accelerator.backward(loss)
        sgd.step()
        sgd.zero_grad()
        loop.report(loss.item())


def by_fastai(trial, net, folder):
    pytest.importorskip("fastai")
    from haltune.callbacks.fastai import HaltuneCallback

    FITS["fastai"]().learner(net=net).fit(3, 0.05, cbs=HaltuneCallback(trial, "mae"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("train", [by_trainer, by_accelerate, by_fastai])
def test_a_trial_pauses_unless_a_large_part_of_the_model_that_is_not_saved_changes(train, kind, tmp_path):
    study = pausing_study(at=(2,), epochs=3, verbose=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for trial in study:
            with trial:
                train(trial, Remembers(kind, inputs=3 if train is by_fastai else 4), tmp_path)
    said = [str(one.message) for one in caught if issubclass(one.category, HaltuneWarning)]
    if "constant" in kind:
        assert (study.trials[0].attempt, said) == (2, [])
    else:
        assert study.trials[0].attempt == 1
        assert [bool(re.search("because bank changes.*too large.*keeps training", line)) for line in said] == [True]


class Views(Remembers):
    """A model with buffers that are parts of other tensors."""

    def __init__(self, inputs=3):
        super().__init__("constant", inputs)
        self.bank = torch.zeros(9)
        self.register_buffer("every_second", torch.arange(16.0)[::2], persistent=False)
        self.register_buffer("column", torch.arange(16.0).reshape(8, 2)[:, :1], persistent=False)
        self.register_buffer("one", torch.ones(1).expand(8), persistent=False)


@pytest.mark.parametrize("train", [by_trainer, by_accelerate, by_fastai])
def test_a_trial_pauses_whose_model_has_buffers_that_are_parts_of_other_tensors(train, tmp_path):
    study = pausing_study(at=(2,), epochs=3, verbose=0)
    for trial in study:
        with trial:
            train(trial, Views(inputs=3 if train is by_fastai else 4), tmp_path)
    assert (study.trials[0].attempt, study.trials[0].status) == (2, "completed")


class File(np.ndarray):
    """An array that may be as large as a disk."""

    def tobytes(self):
        raise AssertionError("the whole array was read")


class Samples:
    """Data of the program, with an object whose state cannot be read."""

    def __init__(self):
        self.view, self.tokens = memoryview(b""), np.zeros(5_000_000).view(File)


def test_large_data_that_a_callback_holds_are_not_read(tmp_path):
    transformers = pytest.importorskip("transformers")

    class Shows(transformers.TrainerCallback):
        def __init__(self):
            self.samples = Samples()

    study = pausing_study(at=(2,), epochs=3, verbose=0)
    for trial in study:
        with trial:
            by_trainer(trial, Remembers("constant attribute", inputs=4), tmp_path, Shows())
    assert (study.trials[0].attempt, study.trials[0].status) == (2, "completed")
