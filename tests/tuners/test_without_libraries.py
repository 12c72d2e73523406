"""Where the other library is not installed, its bridge says what to install."""

import subprocess
import sys

import pytest

from haltune.errors import installing

CODE = """
import sys
sys.modules[{library!r}] = None
import haltune
try:
    haltune.{bridge}.{name}
except ImportError as error:
    print(error)
"""
BRIDGES = [
    ("ray_tune", "HaltuneSearch", "ray", "Ray Tune", "ray-tune"),
    ("syne_tune", "HaltuneScheduler", "syne_tune", "Syne Tune", "syne-tune"),
    ("keras_tuner", "Tuner", "keras_tuner", "Keras Tuner", "keras-tuner"),
    ("optuna", "HaltunePruner", "optuna", "Optuna", "optuna"),
]


@pytest.mark.parametrize(("bridge", "name", "library", "called", "extra"), BRIDGES)
def test_it_is_named_with_what_to_type(bridge, name, library, called, extra):
    code = CODE.format(bridge=bridge, library=library, name=name)
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"haltune.{bridge} needs {called}: {installing(extra)}"
