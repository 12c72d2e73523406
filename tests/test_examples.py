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


def run(script, folder, trials, epochs=2):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), str(trials), str(epochs)],
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
    for package in needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{script} needs {package}: pip install 'haltune[dev]'")
    first = run(script, tmp_path, trials=1)
    assert "1 trial: 1 trained in full" in first
    assert "2 epochs trained" in first
    assert (tmp_path / page).stat().st_size > 1_000_000  # Plotly is in it
    second = run(script, tmp_path, trials=2)
    assert "2 trials: " in second
    assert "the budget of 2 trials is spent" in second
    told = reports(tmp_path)
    assert told[0] == 2  # the first trial was not trained again
    assert set(told) == {0, 1}


def reports(folder):
    """How many reports each trial of the only study in the folder has."""
    store = open_store(folder / "digits.db")
    (name,) = store.names()
    return Counter(e.trial for e in store.read(name) if isinstance(e, Reported))


@pytest.mark.parametrize("script", [c[0] for c in CASES])
def test_an_example_is_short(script):
    assert len((EXAMPLES / script).read_text(encoding="utf-8").splitlines()) < 60
