"""Callbacks and real studies together, in memory and on SQLite."""

import signal
from dataclasses import dataclass

import pytest
from callback_studies import StopsAtTwo, study
from paused_studies import pausing_study

from haltune import Budget, Float, Minimize, Problem, Space, Study
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning, InvalidInput, StoreError
from haltune.log.problem import ENDLESS
from haltune.policies import InfiniteHyperband, RandomSearch

quietly = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return None if request.param == "memory" else f"sqlite:///{tmp_path}/search.db"


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


def lightning_fit(trial, resumes=False, **hooks):
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, make_trainer, shuffled

    from haltune.callbacks.lightning import HaltuneCallback

    callback = HaltuneCallback(trial)
    trainer = make_trainer(callback, epochs=trial.max_epochs)
    net = type("Hooked", (Net,), hooks)()
    trainer.fit(net, shuffled(), shuffled(), ckpt_path=trial.checkpoint if resumes else None)
    return callback


def raises_at(epoch, error):
    def on_validation_start(self):
        if self.current_epoch + 1 == epoch and not self.trainer.sanity_checking:
            raise error

    return {"on_validation_start": on_validation_start}


@quietly
def test_a_trial_out_of_memory_says_so_and_the_search_goes_on(store):
    s = study(store)
    for trial in s:
        with trial:
            error = RuntimeError("CUDA out of memory. Tried to allocate 20 MiB")
            lightning_fit(trial, **(raises_at(2, error) if trial.id == 1 else {}))
    assert outcomes(s) == [FULL, ("failed", [1]), SHORT]
    assert "out of memory" in s.trials[1].error


@quietly
def test_ctrl_c_gives_a_trial_back_and_it_is_offered_again(store):
    before = signal.getsignal(signal.SIGINT)
    s = study(store, trials=1)
    trial = s.ask()
    try:
        with pytest.raises(SystemExit), trial:
            lightning_fit(trial, **raises_at(3, KeyboardInterrupt()))
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning leaves it ignored
    assert outcomes(s) == [("interrupted", [1, 2])]
    again = s.ask()
    assert (again.id, again.attempt, again.epoch) == (0, 2, 0)
    with again:
        lightning_fit(again)
    assert outcomes(s) == [FULL]


@dataclass(frozen=True)
class Fails(StopsAtTwo):
    """Raises where it is to judge the first two epochs."""

    error: type[Exception] = ZeroDivisionError

    def judge(self, state, history, trial, rng):
        if trial.epoch <= 2:
            raise self.error("a bug in a policy")
        return super().judge(state, history, trial, rng)


@pytest.mark.parametrize("error", [ZeroDivisionError, InvalidInput])
def test_what_a_policy_raises_costs_its_verdicts_and_is_said_once(error):
    """Nothing is delivered twice: the report was stored before the policy was asked."""
    s = Study(study().problem, Fails(1, error), seed=0)
    with s.ask() as trial, pytest.warns(HaltuneWarning, match="failed to judge epoch 1 .*a bug in") as caught:
        descend(trial)
    assert len(caught) == 1
    assert outcomes(s) == [FULL]
    reports = [e for e in s.events() if e.kind == "reported"]
    assert [e.verdict.action for e in reports] == ["unjudged", "unjudged", "continue", "continue"]


def test_a_store_out_of_reach_costs_the_verdicts_and_nothing_else(store, monkeypatch):
    s = study(store, trials=1)
    trial = s.ask()
    record = type(trial)._record

    def unreachable(self, *args, **named):
        if reached < 3:
            raise StoreError("the disk is gone")
        return record(self, *args, **named)

    monkeypatch.setattr(type(trial), "_record", unreachable)
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


def by_range(trial):
    for epoch in range(trial.epoch, trial.max_epochs):
        if trial.report(1.0 / (epoch + 1)).stops:
            break


@quietly
@pytest.mark.parametrize("train", [by_trial, by_range, lambda trial: lightning_fit(trial, resumes=True)])
def test_without_a_horizon_a_trial_has_a_number_of_epochs_that_loops_take(train):
    s = endless()
    for trial in s:
        assert (trial.max_epochs, trial.horizon) == (ENDLESS, None)
        with trial:
            train(trial)
    assert trained_to_rungs(s)


def test_a_report_beyond_a_rung_is_taken_without_a_horizon():
    trial = endless().ask()
    with trial:
        for epoch in range(1, 6):
            trial.report(0.5, epoch)
    assert trial.epoch == 5


def test_a_problem_and_a_policy_that_say_nothing_of_an_end_leave_it_to_the_user():
    problem = Problem(Space({"lr": Float(1e-3, 1e-1)}), Minimize("val_loss"))
    assert Study(problem, RandomSearch(trials=1)).ask().max_epochs is None


# a trial that resumes needs no new value: what was logged before the pause was not misspelt


def straight_and_paused(search, at=(4,), **options):
    """(status, epochs, values) of one trial, trained straight and with a pause."""
    for pauses in ((), at):
        (t,) = search(pauses, **options).trials
        assert t.attempt == 1 + len(pauses)
        yield str(t.status), t.epochs.tolist(), t.values.tolist()


def lightning_search(at, **options):
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning_nets import Net, search

    class NowAndThen(Net):
        def on_validation_epoch_end(self):
            if self.current_epoch % 4 == 0:
                self.log("dear", 1.0 / (1 + self.current_epoch))

    return search(at, NowAndThen, **options)[0]


SELDOM = {"metric": "val_loss", "epochs": 5, "check_val_every_n_epoch": 2, "num_sanity_val_steps": 0}


@quietly
@pytest.mark.parametrize(
    ("options", "epochs"), [(SELDOM, [2, 4]), ({"metric": "dear", "epochs": 8, "at": (5,)}, [1, 5])]
)
def test_a_lightning_fit_whose_last_leg_holds_no_value_is_completed(options, epochs):
    straight, paused = straight_and_paused(lightning_search, **options)
    assert straight == paused
    assert straight[:2] == ("completed", epochs)


@quietly
def test_a_trainer_of_hugging_face_whose_last_leg_evaluates_nothing_is_completed(tmp_path):
    for package in ("torch", "transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from transformers import TrainerCallback
    from transformers_nets import trainer

    from haltune.callbacks.transformers import HaltuneCallback

    class EvaluatesNowAndThen(TrainerCallback):
        def on_epoch_end(self, args, state, control, **others):
            control.should_evaluate = round(state.epoch) in (2, 4)

    def search(at):
        study = pausing_study(at=at, metric="eval_loss", epochs=5)
        for trial in study:
            folder = tmp_path / f"{len(at)}-{trial.attempt}"
            others = EvaluatesNowAndThen(), HaltuneCallback(trial)
            with trial:
                t = trainer(folder, *others, epochs=trial.max_epochs, eval_strategy="no")
                t.train(resume_from_checkpoint=trial.checkpoint)
        return study

    straight, paused = straight_and_paused(search)
    assert straight == paused
    assert straight[:2] == ("completed", [2, 4])
