"""Five truths about every program of the zoo: see support/zoo.py, which also says how to add one."""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zoo

HERE = Path(__file__)


def programs():
    """The programs of this process: those of Keras have one for each backend."""
    for path in sorted(zoo.PROGRAMS.glob("*.py")):
        declared = zoo.literals(path)
        if declared.get("backend", "") == zoo.of_keras():
            yield path.stem, declared


def cases():
    for name, declared in programs():
        wrong = declared.get("wrong", {})
        for truth in ("refused",) if "refuses" in declared else zoo.TRUTHS:
            marks = [pytest.mark.slow] if declared.get("slow") else []
            if (why := wrong.get(truth, wrong.get("all"))) is not None:
                marks.append(pytest.mark.xfail(strict=True, reason=why))
            yield pytest.param(name, truth, id=f"{name}-{truth}", marks=marks)


@functools.cache
def runs(name):
    for package in zoo.literals(zoo.PROGRAMS / f"{name}.py")["needs"]:
        if importlib.util.find_spec(package) is None:
            return package
    return zoo.train_all(zoo.load(name))


@pytest.mark.parametrize(("name", "truth"), list(cases()))
def test_a_truth_holds_for_the_program(name, truth):
    found = runs(name)
    if isinstance(found, str):
        pytest.skip(f"{found} is not installed")
    zoo.holds(truth, found)


@pytest.mark.skipif(zoo.of_keras() != "", reason="it is this one")
@pytest.mark.slow  # callbacks/keras/test_callback.py runs the quick ones
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_the_truths_hold_for_the_programs_of_keras_on_its_backend(backend):
    if importlib.util.find_spec("keras") is None or importlib.util.find_spec(backend) is None:
        pytest.skip(f"Keras or {backend} is not installed")
    environment = {"KERAS_BACKEND": backend, "ZOO_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(HERE), "-q", "-p", "no:cacheprovider"],
        env=os.environ | environment, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
