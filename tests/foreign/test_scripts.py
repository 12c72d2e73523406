"""Training scripts in the shape that public ones have, searched by haltune as their users would.

A folder holds a script three times: as it is (original.py), with Optuna and with haltune. The data are small and drawn
at random. Optuna's are there to be counted, and run where it is installed.
"""

import difflib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from haltune import load_study
from haltune.log.events import Reported, Status

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "coming_from.md"
SCRIPTS = {  # what each needs, and what it is called with
    "pytorch_argparse": (("torch",), ()),
    "lightning_cli": (("lightning", "jsonargparse"), ("fit",)),
    "keras_timeseries": (("keras", "torch"), ()),
    "transformers_lora": (("torch", "transformers", "accelerate", "peft"), ()),
    "xgboost_sklearn": (("xgboost", "sklearn"), ()),
}


CONFIGURED = """
trainer:
  callbacks:
    - class_path: lightning.pytorch.callbacks.LearningRateMonitor
data:
  batch_size: 64
"""


WITHIN_AN_EPOCH = {  # searched by steps; they have no script with Optuna
    "lightning_steps": (("lightning", "sklearn"), ()),
    "stable_baselines3": (("stable_baselines3",), ()),
}


def need(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def printed(name, which, folder, *more, **instead):
    """Return the output of a script, run in its own folder. more: arguments. instead: replaced in its text."""
    packages, arguments = (SCRIPTS | WITHIN_AN_EPOCH)[name]
    need(*packages)
    text = (HERE / name / f"{which}.py").read_text(encoding="utf-8")
    for ours, theirs in instead.items():
        assert ours in text
        text = text.replace(ours, theirs)
    script = folder / "script.py"
    script.write_text(text.replace('"search.db", max_epochs', '"search.db", seed=0, max_epochs'), encoding="utf-8")
    environment = {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *arguments, *more], cwd=folder, env=os.environ | environment,
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def searched(tmp_path):
    """Run a script that searches; what it printed, and its study, of which some runs were cut and one was not."""

    def run(name, trials, *more):
        said = printed(name, "with_haltune", tmp_path, *more)
        study = load_study(tmp_path / "search.db")
        assert study.outcome.over
        assert len(study.trials) == trials
        ends = [float(t.epochs[-1]) for t in study.trials]
        assert min(ends) < study.problem.max_epochs
        assert study.history.trial(study.best.trial).status is Status.COMPLETED
        return said, study

    return run


def reports(study):
    """Return the number of reported epochs, including those that were trained again."""
    return sum(isinstance(e, Reported) for e in study.store.read(study.name))


@pytest.mark.slow
def test_a_pytorch_script_with_argparse_stops_where_haltune_says(searched):
    said, study = searched("pytorch_argparse", 8)
    assert said.count("Test set") == reports(study)
    assert any(t.epochs[-1] == 9 for t in study.trials)


@pytest.mark.slow
def test_xgboost_behind_scikit_learn_keeps_its_own_early_stopping_and_its_best_trees(searched, tmp_path):
    said, study = searched("xgboost_sklearn", 12)
    import xgboost

    assert said.count("accuracy:") >= 12  # a training that is cut still scores
    rounds = xgboost.Booster(model_file=study.best.checkpoint).num_boosted_rounds()
    assert rounds >= study.best.epoch  # of which it is the best


@pytest.mark.slow
def test_keras_callbacks_of_a_timeseries_script_work_and_the_best_weights_come_back(searched, tmp_path):
    said, study = searched("keras_timeseries", 8)
    assert len(re.findall(r"^Epoch \d+/12", said, flags=re.MULTILINE)) == reports(study)
    assert "ReduceLROnPlateau reducing learning rate" in said
    early = re.findall(r"^Epoch (?!12)\d+: early stopping", said, flags=re.MULTILINE)
    assert len(early) == sum(r.status is Status.COMPLETED and r.epochs[-1] < 12 for r in study.trials)
    assert (tmp_path / "best_model.keras").exists()
    assert 0 <= float(re.search(r"Test accuracy ([\d.]+)", said)[1]) <= 1


@pytest.mark.slow
def test_lightning_cli_trains_each_configuration_and_continues_from_checkpoints(searched, tmp_path):
    said, study = searched("lightning_cli", 8)
    assert "backbone" in said  # the model's summary
    assert f'"hidden_dim":    {study.best.config["hidden_dim"]}' in said
    assert list((tmp_path / "lightning_logs").glob("version_*/config.yaml"))  # LightningCLI's own


@pytest.mark.slow
def test_lightning_cli_keeps_the_callbacks_of_its_configuration_file(searched, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIGURED, encoding="utf-8")
    _, study = searched("lightning_cli", 8, "--config", "config.yaml")
    with_both = (tmp_path / "lightning_logs" / "version_0" / "config.yaml").read_text(encoding="utf-8")
    assert "callbacks.LearningRateMonitor" in with_both
    assert "batch_size: 64" in with_both
    assert study.best.checkpoint


@pytest.mark.slow
def test_a_lora_rank_is_searched_with_the_trainer_of_transformers(searched):
    _, study = searched("transformers_lora", 6)
    assert {t.config["rank"] for t in study.trials} <= set(range(1, 17))
    assert Path(study.best.checkpoint, "adapter_model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHIN_AN_EPOCH)
def test_a_script_by_steps_pauses_within_the_training_and_lightning_resumes_to_the_digit(name, tmp_path):
    printed(name, "with_haltune", tmp_path)
    study = load_study(tmp_path / "search.db")
    assert study.outcome.over
    assert min(t.epoch for t in study.trials) < study.problem.max_epochs
    resumed = next(t for t in study.trials if t.attempt > 1)
    assert Path(study.best.checkpoint).exists()
    if name == "lightning_steps":
        alone = tmp_path / "alone"
        alone.mkdir()
        never_pauses = {
            "from haltune import": "from haltune.policies import RandomSearch\nfrom haltune import",
            'budget="6 trials"': "policy=RandomSearch(trials=1)",
            "    for trial in study:": f"    study.enqueue({dict(resumed.config)!r})\n    for trial in study:",
        }
        printed(name, "with_haltune", alone, **never_pauses)
        (straight,) = load_study(alone / "search.db").trials
        assert straight.values[: len(resumed.values)].tolist() == resumed.values.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_trains_as_it_was(name, tmp_path):
    assert printed(name, "original", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_other_script_searches_with_optuna(name, tmp_path):
    need("optuna", "optuna_integration")
    assert "Trial(number=" in printed(name, "with_optuna", tmp_path) or name.startswith("keras")


def added(name, which):
    """Return the number of new or changed lines, without blank ones and indentation."""
    original, other = (
        [line.strip() for line in (HERE / name / f"{w}.py").read_text(encoding="utf-8").splitlines() if line.strip()]
        for w in ("original", which)
    )
    return sum(line.startswith("+ ") for line in difflib.ndiff(original, other))


def test_a_search_adds_no_more_lines_than_with_optuna_and_the_page_counts_them():
    rows = re.findall(r"^\| [^|]+ \| (\d+) \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    counted = [(added(name, "with_optuna"), added(name, "with_haltune")) for name in SCRIPTS]
    assert [(int(theirs), int(ours)) for theirs, ours in rows] == counted
    assert [name for name, (theirs, ours) in zip(SCRIPTS, counted, strict=True) if ours > theirs] == []
