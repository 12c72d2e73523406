"""A trial that ends before its learning rate has decayed: one hint in a study, and none with a constant rate."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
import torch
from lightning_nets import Net, make_trainer, shuffled
from paused_studies import pausing_study
from transformers_nets import trainer

from haltune.callbacks.lightning import HaltuneCallback as ForLightning
from haltune.callbacks.schedules import falls, of_torch
from haltune.callbacks.transformers import HaltuneCallback as ForTransformers
from haltune.errors import documented

pytestmark = pytest.mark.filterwarnings("ignore")
HINT = "before the end of its learning-rate schedule"


def own_schedule(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 20)


WSD = {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 4}}


@pytest.mark.parametrize(
    ("options", "at", "named"),
    [
        ({"lr_scheduler_type": "cosine"}, (1, 3), "(lr_scheduler_type='cosine')"),
        ({"lr_scheduler_type": "constant"}, (1, 3), None),
        ({"optimizers": own_schedule}, (1, 3), "(LambdaLR)"),
        (WSD, (1,), None),  # in its constant part
        (WSD, (3.5,), "(lr_scheduler_type='warmup_stable_decay')"),
    ],
)
def test_hugging_face(options, at, named, tmp_path, caplog):
    caplog.set_level(logging.INFO, "haltune")
    if 3.5 in at:
        options = options | {"eval_strategy": "steps", "eval_steps": 2}
    for trial in (study := pausing_study(at=at, trials=2, metric="eval_loss")):
        with trial:
            fit = trainer(tmp_path / f"run-{trial.id}", ForTransformers(trial), epochs=trial.max_epochs, **options)
            fit.train(resume_from_checkpoint=trial.checkpoint)
    assert [t.attempt for t in study.trials] == [1 + len(at)] * 2
    hints = [line for line in caplog.messages if HINT in line]
    assert len(hints) == (named is not None)
    assert all(named in line and documented("howto/schedules") in line for line in hints)


def cosine(interval):
    def optimize(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        length = 4 if interval == "epoch" else 12
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": interval}}

    return optimize


@pytest.mark.parametrize("interval", ["epoch", "step", None])
def test_lightning(interval, tmp_path, caplog):
    caplog.set_level(logging.INFO, "haltune")
    for trial in pausing_study(at=(1, 3), trials=2):
        with trial:
            net = Net(cosine(interval)) if interval else Net()
            fit = make_trainer(ForLightning(trial), epochs=trial.max_epochs)
            fit.fit(net, shuffled(), shuffled(), ckpt_path=trial.checkpoint)
    hints = [line for line in caplog.messages if HINT in line]
    assert ["(CosineAnnealingLR)" in line for line in hints] == [True] * (interval is not None)


def sgd():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


N, L = 100, torch.optim.lr_scheduler
BOUND = {
    "cosine": lambda o: L.CosineAnnealingLR(o, N),
    "linear": lambda o: L.LinearLR(o, 1.0, 1e-3, N),
    "one cycle": lambda o: L.OneCycleLR(o, 0.1, N),
    "after warm-up": lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.1, 1.0, 10), L.CosineAnnealingLR(o, N - 10)], [10]),
}
UNBOUND = {
    "constant": lambda o: L.ConstantLR(o, 1.0, 1),
    "steps": lambda o: L.StepLR(o, 60),
    "inverse root": lambda o: L.LambdaLR(o, lambda step: (1 + step) ** -0.5),
}


@pytest.mark.parametrize("name", [*BOUND, *UNBOUND])
def test_a_schedule_is_looked_at_as_it_will_be_and_stays_as_it_is(name):
    optimizer = sgd()
    scheduler = (BOUND | UNBOUND)[name](optimizer)
    for _ in range(30):
        optimizer.step()
        scheduler.step()
    before = scheduler.last_epoch, scheduler.get_last_lr(), optimizer.param_groups[0]["lr"]
    _, rate = of_torch(scheduler)
    assert falls(rate, 30, N) == (name in BOUND)
    assert (scheduler.last_epoch, scheduler.get_last_lr(), optimizer.param_groups[0]["lr"]) == before
    if name not in ("one cycle", "after warm-up"):
        assert rate(30) == pytest.approx(before[1][0])
    if name in BOUND:
        assert all(one >= other for one, other in pairwise(rate(step) for step in range(30, N)))
