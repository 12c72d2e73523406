"""The examples run, small, as a newcomer runs them: each leaves a page, and a second call continues."""

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from haltune import load_study
from haltune.log.events import Reported, Started
from haltune.store.open import open_store

EXAMPLES = Path(__file__).parent.parent / "examples"
FIRST = ("01_lightning.py", "digits.html", ("lightning", "sklearn", "rich", "plotly"))
KERAS = ("02_keras.py", "digits_keras.html", ("keras", "sklearn", "rich", "plotly"))
CASES = [  # the slow ones import expensive frameworks; make lint checks the types of all
    pytest.param(*FIRST, marks=pytest.mark.slow),
    pytest.param(*KERAS, marks=pytest.mark.slow),
    ("03_plain_loop.py", "digits_plain_loop.html", ("sklearn", "rich", "plotly")),
]


HYPERBAND = [
    ("04_hyperband_lightning.py", "digits_hyperband.html", ("lightning", "sklearn", "rich", "plotly")),
    ("05_hyperband_keras.py", "digits_hyperband_keras.html", ("keras", "sklearn", "rich", "plotly")),
]

BUDGET = [
    ("06_budget_lightning.py", "digits_budget.html", ("lightning", "sklearn", "rich", "plotly")),
    ("10_budget_keras.py", "digits_budget_keras.html", ("keras", "sklearn", "rich", "plotly")),
]


def run(script, folder, *arguments):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"} | keras_backend(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def keras_backend():
    """Return TensorFlow if it is installed, as Keras does; otherwise torch."""
    have_tensorflow = importlib.util.find_spec("tensorflow") is not None
    return {} if have_tensorflow or "KERAS_BACKEND" in os.environ else {"KERAS_BACKEND": "torch"}


@pytest.mark.slow
@pytest.mark.parametrize(("script", "page", "needs"), CASES)
def test_an_example_trains_reports_and_continues_where_it_was(script, page, needs, tmp_path):
    need(script, needs)
    first = run(script, tmp_path, 1, 2)
    assert "1 trial: 1 trained in full" in first
    assert "2 epochs trained" in first
    assert 'data-trial="trial-0"' in (tmp_path / page).read_text(encoding="utf-8")
    second = run(script, tmp_path, 2, 2)
    assert "2 trials: " in second
    assert "the budget of 2 trials is spent" in second
    told = reports(tmp_path, Path(page).with_suffix(".db"))
    assert told[0] == 2  # the first trial was not trained again
    assert set(told) == {0, 1}


@pytest.mark.slow
def test_two_processes_share_a_store_of_json_lines_and_the_next_call_continues(tmp_path):
    assert "checkpoint_epoch" in run("11_own_store.py", tmp_path, 3)
    started = (tmp_path / "jsonl_store.jsonl").read_text().count('"kind": "started"')
    run("11_own_store.py", tmp_path, 5)
    assert (started, (tmp_path / "jsonl_store.jsonl").read_text().count('"kind": "started"')) == (3, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("script", "page", "needs"), HYPERBAND)
def test_a_promoted_network_continues_where_it_was(script, page, needs, tmp_path):
    need(script, needs)
    printed = run(script, tmp_path, 3)
    assert "  0     3       1     2       3" in printed  # brackets s = 1 and s = 0
    assert "11 epochs trained" in printed  # 3 x 1, the best of them 2 more, 2 x 3: nothing is trained twice
    assert "all 2 brackets are complete" in printed
    assert (tmp_path / page).exists()
    best = load_study((tmp_path / page).with_suffix(".db")).best
    kept = list((tmp_path / page).with_suffix(".checkpoints").rglob("*epoch*"))
    assert [str(path) for path in kept] == [best.checkpoint]  # of the best run alone
    if script == "04_hyperband_lightning.py":
        assert "11 epochs trained" in run(script, tmp_path, 3)


@pytest.mark.slow
def test_a_search_ends_with_what_it_gained(tmp_path):
    need("07_autobct_keras.py", ("keras", "sklearn", "rich", "plotly"))
    printed = run("07_autobct_keras.py", tmp_path, 2, 1)
    assert "he search is over: 2 trainings" in printed
    assert "max_trainings=2 is reached. Keep the last configuration, of trial 1" in printed
    assert (tmp_path / "digits_autobct.html").exists()


@pytest.mark.slow
def test_a_level_set_is_found_and_put_to_the_test(tmp_path):
    need("08_levelset_lightning.py", ("lightning", "sklearn"))
    printed = run("08_levelset_lightning.py", tmp_path, 8, 1, 1)
    assert "at least 0.85: " in printed
    assert "trained inside: " in printed
    assert "trained outside: " in printed
    assert set(reports(tmp_path, "digits_levelset.db")) == set(range(8))


@pytest.mark.slow
def test_workers_are_launched_and_a_second_call_continues(tmp_path):
    need("09_launch.py", ("sklearn", "plotly"))
    printed = run("09_launch.py", tmp_path, 3, 3, 2)
    assert "3 trials: " in printed
    assert (tmp_path / "digits_launch.html").exists()
    trained = reports(tmp_path, "digits_launch.db")
    assert "the budget of 3 trials is spent" in run("09_launch.py", tmp_path, 3, 3, 2)
    assert reports(tmp_path, "digits_launch.db") == trained


@pytest.mark.slow
def test_a_script_trains_by_itself_and_as_the_trials_of_a_study_file(tmp_path):
    need("train_script.py", ("torch", "sklearn", "typer", "rich"))
    assert "epoch 9: continue" in run("train_script.py", tmp_path)
    text = (EXAMPLES / "digits.toml").read_text(encoding="utf-8")
    small = text.replace("trials = 20", "trials = 3").replace("max_epochs = 9", "max_epochs = 3")
    (tmp_path / "digits.toml").write_text(small, encoding="utf-8")
    command = ["run", "--study", "digits.toml", "--workers", "2", "--", sys.executable, EXAMPLES / "train_script.py"]
    done = subprocess.run(
        [sys.executable, "-m", "haltune.cli", *map(str, command)], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 trials: " in done.stdout
    assert set(reports(tmp_path, "digits_script.db")) == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.parametrize(("script", "page", "needs"), BUDGET)
def test_a_search_with_a_budget_of_time_ends_in_time(script, page, needs, tmp_path):
    need(script, needs)
    printed = run(script, tmp_path, "8s", 1)
    assert (tmp_path / page).exists()
    assert "are left" in printed or "8 s of time is spent" in printed
    (name,) = (store := open_store((tmp_path / page).with_suffix(".db"))).names()
    begun = [e.at for e in store.read(name) if isinstance(e, Started)]
    assert begun[-1] - begun[0] < 9  # a decision takes a moment, and what runs then may take longer


def need(script, packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{script} needs {package}: pip install 'haltune[dev]'")


def reports(folder, name):
    """Return the number of reports of each trial of the only study in the folder."""
    store = open_store(folder / name)
    (name,) = store.names()
    return Counter(e.trial for e in store.read(name) if isinstance(e, Reported))


def test_each_example_keeps_its_study_in_a_file_of_its_own():
    texts = [path.read_text(encoding="utf-8") for path in EXAMPLES.iterdir() if path.suffix in (".py", ".toml")]
    files = [name for text in texts for name in set(re.findall(r"[\w.]+\.db", text))]
    assert len(files) == len(set(files)) == 11
