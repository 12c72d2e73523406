"""Callbacks and real studies together, in memory and on SQLite."""

from dataclasses import dataclass

import pytest
from callback_studies import StopsAtTwo, study

from haltune import Budget, Float, Minimize, Problem, Space, Study
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning, StoreError
from haltune.log.problem import ENDLESS
from haltune.policies import InfiniteHyperband

quietly = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path}/search.db"


def descend(trial, at=None, error=None):
    """A plain training whose loss falls as 1 / epoch; `error` is raised at epoch `at`."""
    loop = TrainingLoop(trial)
    for epoch in loop:
        if epoch == at:
            raise error
        loop.report(1.0 / epoch)


def outcomes(s):
    return [(t.status, t.epochs.tolist()) for t in s.trials]


FULL, SHORT = ("completed", [1, 2, 3, 4]), ("stopped", [1, 2])


def test_a_plain_loop_is_stopped_by_the_study(store):
    s = study(store)
    for trial in s:
        with trial:
            descend(trial)
    assert outcomes(s) == [FULL, SHORT, SHORT]
    assert s.best.value == 0.25
    assert s.trials[1].verdict.reason == "two epochs are enough"


def lightning_fit(trial):
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, make_trainer, shuffled

    from haltune.callbacks.lightning import HaltuneCallback

    trainer = make_trainer(HaltuneCallback(trial), epochs=trial.max_epochs)
    trainer.fit(Net(), shuffled(), shuffled(), ckpt_path=trial.checkpoint)


@dataclass(frozen=True)
class Fails(StopsAtTwo):
    """Raises where it is to judge the first two epochs."""

    def judge(self, state, history, trial, rng):
        if trial.epoch <= 2:
            raise ZeroDivisionError("a bug in a policy")
        return super().judge(state, history, trial, rng)


def test_what_a_policy_raises_costs_its_verdicts_and_is_said_once():
    """Nothing is delivered twice: the report was stored before the policy was asked."""
    s = Study(study().problem, Fails(1), seed=0)
    with s.ask() as trial, pytest.warns(HaltuneWarning, match="failed to judge epoch 1 .*a bug in") as caught:
        descend(trial)
    assert len(caught) == 1
    assert outcomes(s) == [FULL]
    reports = [e for e in s.events() if e.kind == "reported"]
    assert [e.verdict.action for e in reports] == ["unjudged", "unjudged", "continue", "continue"]


def test_a_store_out_of_reach_costs_the_verdicts_and_nothing_else(store, monkeypatch):
    s = study(store, trials=1)
    trial = s.ask()
    record = type(trial).record

    def unreachable(self, *args, **named):
        if reached < 3:
            raise StoreError("the disk is gone")
        return record(self, *args, **named)

    monkeypatch.setattr(type(trial), "record", unreachable)
    reached = 0

    def train():
        nonlocal reached
        loop = TrainingLoop(trial)
        for reached in loop:
            loop.report(1.0 / reached)

    with trial, pytest.warns(HaltuneWarning, match=r"disk is gone.*raining continues"):
        train()
    assert outcomes(s) == [FULL]
    reports = [e for e in s.events() if e.kind == "reported"]
    assert [e.verdict.action for e in reports] == ["unjudged", "unjudged", "continue", "continue"]
    assert [e.value for e in reports] == [1, 1 / 2, 1 / 3, 1 / 4]


def endless(metric="val_loss"):
    """A search without a horizon that ends after 30 epochs."""
    problem = Problem(Space({"lr": Float(1e-3, 1e-1, log=True)}), Minimize(metric))
    return Study(problem, InfiniteHyperband(), seed=0, budget=Budget(epochs=30))


def trained_to_rungs(s):
    """True when a trial went on beyond its first rung, another reached the last one of its kind, and none failed."""
    ends = {str(t.status) for t in s.trials}
    return max(t.attempt for t in s.trials) > 1 and max(t.epoch for t in s.trials) >= 4 and "failed" not in ends


def by_trial(trial):
    for epoch in trial.epochs():
        if trial.report(1.0 / epoch).stops:
            break


@quietly
@pytest.mark.parametrize("train", [by_trial, lightning_fit])
def test_without_a_horizon_a_trial_has_a_number_of_epochs_that_loops_take(train):
    s = endless()
    for trial in s:
        assert (trial.max_epochs, trial.horizon) == (ENDLESS, None)
        with trial:
            train(trial)
    assert trained_to_rungs(s)


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_fit_whose_last_leg_holds_no_value_is_completed():
    """It needs no new value: what was logged before the pause was not misspelt."""
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import search

    found = []
    for at in ((), (4,)):
        study, _, _ = search(at, epochs=5, check_val_every_n_epoch=2, num_sanity_val_steps=0)
        (t,) = study.trials
        assert t.attempt == 1 + len(at)
        found.append((str(t.status), t.epochs.tolist(), t.values.tolist()))
    assert found[0] == found[1]
    assert found[0][:2] == ("completed", [2, 4])
