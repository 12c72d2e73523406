"""Where the other tuner is not installed, its bridge says so when something of it is asked for."""

import subprocess
import sys

import pytest

from haltune.errors import installing

CODE = """
import sys
sys.modules[{library!r}] = None
import haltune
bridge = getattr(haltune, {bridge!r})
assert bridge.__all__
for name in bridge.__all__:
    try:
        getattr(bridge, name)
    except ImportError as error:
        print(error)
"""
BRIDGES = [
    ("ray_tune", "ray", "Ray Tune", "ray-tune"),
    ("syne_tune", "syne_tune", "Syne Tune", "syne-tune"),
    ("keras_tuner", "keras_tuner", "Keras Tuner", "keras-tuner"),
]


@pytest.mark.parametrize(("bridge", "library", "name", "extra"), BRIDGES)
def test_it_is_named_with_what_to_type(bridge, library, name, extra):
    code = CODE.format(bridge=bridge, library=library)
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) == {f"haltune.{bridge} needs {name}: {installing(extra)}"}
