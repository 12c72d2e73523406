"""The examples run, small, as a newcomer runs them: each leaves a page, and a second call goes on."""

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from haltune.events import Reported
from haltune.store import open_store

EXAMPLES = Path(__file__).parent.parent / "examples"
CASES = [
    ("01_lightning.py", "digits.html", ("lightning", "sklearn", "rich", "plotly")),
    ("02_keras.py", "digits_keras.html", ("keras", "sklearn", "rich", "plotly")),
    ("03_plain_loop.py", "digits_plain_loop.html", ("sklearn", "rich", "plotly")),
]


HYPERBAND = [
    ("04_hyperband_lightning.py", "digits_hyperband.html", ("lightning", "sklearn", "rich", "plotly")),
    ("05_hyperband_keras.py", "digits_hyperband_keras.html", ("keras", "sklearn", "rich", "plotly")),
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
    """TensorFlow where it is installed, as Keras itself would have it; else torch."""
    have_tensorflow = importlib.util.find_spec("tensorflow") is not None
    return {} if have_tensorflow or "KERAS_BACKEND" in os.environ else {"KERAS_BACKEND": "torch"}


@pytest.mark.parametrize(("script", "page", "needs"), CASES, ids=[c[0] for c in CASES])
def test_an_example_trains_tells_and_goes_on_where_it_was(script, page, needs, tmp_path):
    need(script, needs)
    first = run(script, tmp_path, 1, 2)
    assert "1 trial: 1 trained in full" in first
    assert "2 epochs trained" in first
    assert (tmp_path / page).stat().st_size > 1_000_000  # Plotly is in it
    second = run(script, tmp_path, 2, 2)
    assert "2 trials: " in second
    assert "the budget of 2 trials is spent" in second
    told = reports(tmp_path)
    assert told[0] == 2  # the first trial was not trained again
    assert set(told) == {0, 1}


@pytest.mark.parametrize(("script", "page", "needs"), HYPERBAND, ids=[c[0] for c in HYPERBAND])
def test_a_promoted_network_goes_on_where_it_was(script, page, needs, tmp_path):
    need(script, needs)
    printed = run(script, tmp_path, 3)
    assert "  0     3       1     2       3" in printed  # brackets s = 1 and s = 0
    assert "11 epochs trained" in printed  # 3 x 1, the best of them 2 more, 2 x 3: nothing is trained twice
    assert "all 2 brackets are complete" in printed
    assert (tmp_path / page).exists()
    assert not list((tmp_path / "digits.checkpoints").rglob("*epoch*"))
    assert "11 epochs trained" in run(script, tmp_path, 3)


def need(script, packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{script} needs {package}: pip install 'haltune[dev]'")


def reports(folder):
    """How many reports each trial of the only study in the folder has."""
    store = open_store(folder / "digits.db")
    (name,) = store.names()
    return Counter(e.trial for e in store.read(name) if isinstance(e, Reported))


@pytest.mark.parametrize("script", [c[0] for c in CASES + HYPERBAND])
def test_an_example_is_short(script):
    assert len((EXAMPLES / script).read_text(encoding="utf-8").splitlines()) < 60
