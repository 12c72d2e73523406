"""Hugging Face's Trainer in studies that count steps, tokens and parts of an epoch."""

import pytest
from callback_fakes import STOP, FakeTrial

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from transformers_nets import EVERY_TWO, TOKENS, Counted, trainer  # noqa: E402

from haltune import Float, Study  # noqa: E402
from haltune.callbacks.transformers import HaltuneCallback, hyperparameter_search  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def counting(unit, horizon, **more):
    trial = FakeTrial("eval_loss", max_epochs=horizon, **more)
    trial.unit = unit
    return trial


def logged(t):
    return [line["eval_loss"] for line in t.state.log_history if "eval_loss" in line]


def test_steps_of_the_optimizer_are_counted_and_the_last_is_evaluated(tmp_path):
    trial = counting("step", 7)
    t = trainer(tmp_path, HaltuneCallback(trial), max_steps=7, gradient_accumulation_steps=2, **EVERY_TWO)
    t.train()
    assert (trial.epochs, trial.values) == ([2, 4, 6, 7], logged(t))


@pytest.mark.parametrize(("strategy", "at"), [("steps", [2, 4, 5]), ("epoch", [4, 5])])
def test_a_training_longer_than_the_study_ends_at_its_last_step(strategy, at, tmp_path):
    trial = counting("step", 5)
    t = trainer(tmp_path, HaltuneCallback(trial), **EVERY_TWO | {"eval_strategy": strategy})
    with pytest.warns(HaltuneWarning, match="plans 12 steps, but the search's max_steps is 5.*trial.max_steps"):
        t.train()
    assert (trial.epochs, t.state.global_step, len(logged(t))) == (at, 5, len(at))


def test_tokens_are_counted_and_the_training_ends_in_the_batch_with_the_last(tmp_path):
    trial = counting("token", 100)
    t = trainer(tmp_path, HaltuneCallback(trial), model=Counted(), epochs=9, **EVERY_TWO, **TOKENS)
    t.train()
    assert (trial.epochs, t.state.global_step) == ([24, 48, 72, 96, 100], 9)


def test_a_training_that_evaluates_by_epochs_ends_in_the_batch_with_the_last_token_too(tmp_path):
    trial = counting("token", 100)
    t = trainer(tmp_path, HaltuneCallback(trial), model=Counted(), epochs=9, **TOKENS)
    t.train()
    assert (trial.epochs, t.state.global_step) == ([48, 96, 100], 9)


def test_a_trainer_that_does_not_count_tokens_says_how_it_does(tmp_path):
    with pytest.raises(InvalidInput, match="include_num_input_tokens_seen=True"):
        trainer(tmp_path, HaltuneCallback(counting("token", 100))).train()


def test_a_unit_that_no_trainer_counts_is_refused_at_once():
    with pytest.raises(InvalidInput, match=r"counts games.*max_steps= or max_tokens="):
        HaltuneCallback(counting("game", 100))


@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_a_stop_within_an_epoch_ends_the_training_there(unit, tmp_path):
    horizon, at = {"step": (4, 2), "epoch": (1, 0.5)}[unit]
    trial = counting(unit, horizon, verdicts={at: STOP})
    t = trainer(tmp_path, HaltuneCallback(trial), epochs=1, **EVERY_TWO)
    t.train()
    assert (trial.epochs, t.state.global_step) == ([at], 2)


@pytest.mark.slow
def test_the_default_search_stops_trainings_of_one_epoch_early(tmp_path):
    study = Study(
        {"learning_rate": Float(1e-4, 1.0, log=True)}, "eval_loss", f"{tmp_path}/s.db", max_steps=16,
        budget="12 trials", seed=0, verbose=0,
    )  # fmt: skip
    for trial in study:
        with trial:
            t = trainer(tmp_path, HaltuneCallback(trial), max_steps=trial.max_steps, **EVERY_TWO, **trial.config)
            t.train(resume_from_checkpoint=trial.checkpoint)
    assert sum(t.epoch < 16 for t in study.trials) >= 2
    assert study.best.epoch == 16


def test_a_search_of_a_trainer_with_max_steps_counts_steps(tmp_path):
    t = trainer(tmp_path, max_steps=8, **EVERY_TWO)
    t.model_init = lambda: Counted()
    best = hyperparameter_search(t, {"learning_rate": Float(1e-3, 1e-1, log=True)}, n_trials=2, verbose=0)
    assert best.run_summary.best.epoch == 8
    assert best.run_summary.trials[0].epochs.tolist()[0] == 2
