"""Errors of haltune.launch.ray before it uses a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from whims import PROBLEM

from haltune import Study
from haltune.errors import InvalidInput, NotSupported, installing
from haltune.policies import RandomSearch


def python(code: str, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_ray_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "import haltune.launch\n"
        "try: from haltune.launch.ray import run\n"
        "except ImportError as error: print(error)"
    )
    assert python(code, tmp_path) == f"haltune.launch.ray needs Ray: {installing('ray')}"


def test_the_launcher_and_ray_itself_are_two_modules(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'haltune[ray]'")
    code = (
        "from haltune.launch import ray as launcher\n"
        "import ray\n"
        "print(ray is launcher, hasattr(ray, 'init'), launcher.__name__)"
    )
    assert python(code, tmp_path) == "False True haltune.launch.ray"


def train(trial: Any) -> None:
    raise AssertionError("nobody trains here")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resources": {}}, "resources="),
        ({"resources": {"GPU": 1.5}}, "or a whole number"),
        ({"workers": 0}, "workers=0"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"trial_timeout": "soon"}, "trial_timeout"),
    ],
)
def test_what_is_not_allowed_is_an_error_that_names_it(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    launcher = pytest.importorskip("haltune.launch.ray", exc_type=ImportError)
    study = Study(PROBLEM, RandomSearch(trials=1), tmp_path / "search.db")
    with pytest.raises(InvalidInput, match=words):
        launcher.run(study, train, **options)
    assert not sys.modules["ray"].is_initialized()


def test_a_study_in_memory_cannot_leave_its_process() -> None:
    launcher = pytest.importorskip("haltune.launch.ray", exc_type=ImportError)
    with pytest.raises(NotSupported, match=r"search\.db"):
        launcher.run(Study(PROBLEM, RandomSearch(trials=1)), train)
    with pytest.raises(InvalidInput, match="a Study"):
        launcher.run("search.db", train)
    with pytest.raises(InvalidInput, match="train="):
        launcher.run(Study(PROBLEM, RandomSearch(trials=1)), "train")
