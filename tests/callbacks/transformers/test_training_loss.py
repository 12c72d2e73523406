"""Hugging Face's Trainer in studies that judge the training loss, at its logs, and rank by evaluations."""

import math

import pytest
from callback_fakes import STOP, FakeTrial

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import EarlyStoppingCallback, Trainer, TrainerCallback  # noqa: E402
from transformers_nets import GOAL, OFTEN, Net, trainer  # noqa: E402

from haltune import Float, Minimize, Study  # noqa: E402
from haltune.callbacks.transformers import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput  # noqa: E402
from haltune.log.problem import Measures  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def counting(horizon, unit="step", goal=GOAL, **more):
    trial = FakeTrial(goal.metric, max_epochs=horizon, **more)
    trial.unit, trial.goal = unit, goal
    trial.measures = Measures(goal.metric, ranked=(goal.rank_by,) if goal.rank_by else ())
    return trial


def logged(t, name="loss"):
    return {line["step"]: line[name] for line in t.state.log_history if name in line}


def test_each_log_is_reported_and_evaluations_and_the_last_step_are_logged_too(tmp_path):
    trial = counting(12)
    t = trainer(tmp_path, HaltuneCallback(trial), **OFTEN)
    t.train()
    assert trial.epochs == [2, 4, 5, 6, 8, 10, 12]
    assert dict(zip(trial.epochs, trial.values, strict=True)) == logged(t)
    evaluated = {r["epoch"]: r["metrics"]["eval_loss"] for r in trial.reports if "eval_loss" in r["metrics"]}
    assert evaluated == logged(t, "eval_loss")
    assert list(evaluated) == [5, 10, 12]


@pytest.mark.parametrize("evaluates", [{"eval_strategy": "steps", "eval_steps": 50}, {"eval_strategy": "epoch"}])
@pytest.mark.parametrize(("unit", "horizon"), [("step", 6), ("epoch", 2), ("step", 8)])
def test_the_last_report_has_the_one_evaluation_of_the_end(unit, horizon, evaluates, tmp_path):
    trial = counting(horizon, unit)
    steps = {"max_steps": horizon} if unit == "step" else {}
    t = trainer(tmp_path, HaltuneCallback(trial), epochs=2, **OFTEN | evaluates | steps | {"logging_steps": 3})
    t.train()
    assert trial.epochs[-1] == horizon
    assert trial.reports[-1]["metrics"]["eval_loss"] == t.state.log_history[-2]["eval_loss"]
    assert [line["step"] for line in t.state.log_history if "eval_loss" in line][-2:].count(t.state.global_step) == 1


@pytest.mark.parametrize("name", ["train_loss", "loss"])
def test_a_trainer_without_evaluations_reports_its_loss_under_both_names(name, tmp_path):
    trial = counting(8, goal=Minimize(name))
    t = trainer(tmp_path, HaltuneCallback(trial), epochs=2, **OFTEN | {"eval_strategy": "no"})
    t.train()
    assert dict(zip(trial.epochs, trial.values, strict=True)) == logged(t)
    assert trial.epochs == [2, 4, 6, 8]


def test_a_plain_loss_of_a_trainer_that_evaluates_is_that_of_the_evaluation(tmp_path):
    trial = counting(8, goal=Minimize("loss"))
    t = trainer(tmp_path, HaltuneCallback(trial), epochs=2, **OFTEN)
    t.train()
    assert dict(zip(trial.epochs, trial.values, strict=True)) == logged(t, "eval_loss")


def test_a_smoothed_metric_that_only_evaluations_have_is_reported_by_these(tmp_path):
    trial = counting(8, goal=Minimize("mae", smooth=4))
    t = trainer(tmp_path, HaltuneCallback(trial), epochs=2, **OFTEN)
    t.train()
    assert dict(zip(trial.epochs, trial.values, strict=True)) == logged(t, "eval_mae")


class Rewarded(Trainer):
    """It adds a metric to its logs of training, as trainers of TRL do."""

    def log(self, logs, *args):
        super().log(logs | ({"reward": -self.state.global_step} if "loss" in logs else {}), *args)


def test_any_metric_in_the_logs_of_training_can_be_judged(tmp_path):
    trial = counting(8, goal=Minimize("reward", rank_by="eval_loss"))
    t = trainer(tmp_path, HaltuneCallback(trial), epochs=2, **OFTEN)
    t.__class__ = Rewarded
    t.train()
    assert trial.values == [-2, -4, -5, -6, -8]


@pytest.mark.parametrize(("unit", "horizon", "at"), [("step", 8, 2), ("epoch", 2, 0.5)])
def test_a_stop_at_a_log_ends_the_training_there_without_another_evaluation(unit, horizon, at, tmp_path):
    trial = counting(horizon, unit, verdicts={at: STOP})
    t = trainer(tmp_path, HaltuneCallback(trial), epochs=2, **OFTEN | {"eval_strategy": "epoch"})
    t.train()
    assert (trial.epochs, t.state.global_step, logged(t, "eval_loss")) == ([at], 2, {})


def test_another_callback_that_ends_the_training_leaves_the_last_evaluation_in_a_report(tmp_path):
    trial = counting(40)
    stopping = EarlyStoppingCallback(1, early_stopping_threshold=9.0)
    options = OFTEN | {"eval_steps": 3, "metric_for_best_model": "eval_loss", "load_best_model_at_end": True}
    options |= {"save_strategy": "steps", "save_steps": 3}
    t = trainer(tmp_path, HaltuneCallback(trial), stopping, max_steps=40, **options)
    t.train()
    assert trial.epochs == [2, 3, 4, 6]
    assert trial.reports[-1]["metrics"]["eval_loss"] == logged(t, "eval_loss")[6]


class Diverges(Net):
    """Its loss is not a number from the fourth batch on."""

    seen = 0

    def forward(self, x, labels):
        out = super().forward(x, labels)
        self.seen += self.training
        return out | {"loss": out["loss"] * (math.nan if self.seen > 3 else 1.0)}


class Overrides(Trainer):
    def _maybe_log_save_evaluate(self, *args, **named):
        return super()._maybe_log_save_evaluate(*args, **named)


@pytest.mark.parametrize("kind", [Trainer, Overrides])
def test_a_loss_that_is_not_a_number_is_reported_as_such_though_the_trainer_logs_zero(kind, tmp_path):
    trial = counting(8)
    t = trainer(tmp_path, HaltuneCallback(trial), model=Diverges(), epochs=2, kind=kind, **OFTEN)
    t.train()
    assert logged(t)[8] == 0.0
    assert [math.isfinite(value) for value in trial.values] == [True, False, False, False, False]


@pytest.mark.slow
def test_the_default_search_decides_by_the_loss_of_training_and_ranks_by_the_evaluation(tmp_path):
    study = Study(
        {"learning_rate": Float(1e-4, 1.0, log=True)}, GOAL, f"{tmp_path}/s.db", max_steps=16, budget="12 trials",
        seed=0, verbose=0,
    )  # fmt: skip
    for trial in study:
        with trial:
            options = OFTEN | {"eval_steps": 50} | trial.config
            t = trainer(tmp_path, HaltuneCallback(trial), max_steps=trial.max_steps, **options)
            t.train(resume_from_checkpoint=trial.checkpoint)
    full = [t for t in study.trials if t.epoch == 16]
    assert 1 <= len(full) <= 9
    assert study.best.value == min(t.metrics["eval_loss"][-1] for t in full)


# wrong use


def fails(tmp_path, goal, match, *others, trial=None, **options):
    trial = trial or counting(12, goal=goal)
    t = trainer(tmp_path, HaltuneCallback(trial), *others, **OFTEN | options)
    with pytest.raises(InvalidInput, match=match):
        t.train()
    return t.state.global_step


def test_ranking_by_evaluations_that_the_trainer_never_makes_is_refused_at_once(tmp_path):
    match = r"rank_by='eval_loss' needs evaluations.*eval_strategy='steps', eval_steps=12"
    assert fails(tmp_path, GOAL, match, eval_strategy="no") == 0


def test_a_metric_to_rank_by_that_the_first_evaluation_lacks_ends_the_training_there(tmp_path):
    trial = counting(12, goal=Minimize("loss", rank_by="eval_lass"))
    match = (
        r"'eval_lass' was not logged.*names: eval_loss, eval_mae.*If you mean 'eval_loss', write rank_by='eval_loss';"
    )
    assert fails(tmp_path, trial.goal, match, trial=trial) == trial.epochs[-1] == 5


def test_a_metric_that_logs_of_training_lack_is_named_after_the_third(tmp_path):
    match = r"'train_los' was not logged in the training logs\. Logged names: .*loss"
    assert fails(tmp_path, Minimize("train_los"), match, eval_steps=50) == 6


def test_a_metric_that_evaluations_lack_and_logs_have_names_the_way_to_judge_it(tmp_path):
    match = (
        r"'grad_norm' was not logged in the first eval.*judge its values in training, Minimize\('grad_norm', rank_by="
    )
    assert fails(tmp_path, Minimize("grad_norm"), match) == 5


def test_a_trainer_that_never_evaluates_names_the_loss_of_training(tmp_path):
    fails(tmp_path, Minimize("eval_loss"), r"or judge the training loss, Minimize\('train_loss'\)", eval_strategy="no")


def test_logs_too_rare_to_stop_anything_are_warned_of(tmp_path):
    t = trainer(tmp_path, HaltuneCallback(counting(12)), **OFTEN | {"logging_steps": 500})
    with pytest.warns(HaltuneWarning, match=r"logs 'loss' every 500 steps and trains 12.*logging_steps="):
        t.train()


class LogsWithin(TrainerCallback):
    """A user's log of a loss, before the step is over."""

    trainer = None

    def on_pre_optimizer_step(self, *args, **others):
        self.trainer.log({"loss": -1.0})


def test_a_log_of_the_users_own_within_a_step_is_not_reported(tmp_path):
    trial, own = counting(8), LogsWithin()
    own.trainer = t = trainer(tmp_path, HaltuneCallback(trial), own, epochs=2, **OFTEN)
    t.train()
    assert trial.epochs == [2, 4, 5, 6, 8]
    assert min(trial.values) > 0
