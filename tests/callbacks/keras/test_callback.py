"""The Keras callback on each backend. Keras chooses its backend once in a process, so each gets its own."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EVERYWHERE = ("keras_checks.py", "keras_resume_checks.py", "keras_loading_checks.py")
CHECKS = {  # what is the same on every backend is checked on torch, which is fastest
    "tensorflow": EVERYWHERE,
    "torch": (*EVERYWHERE, "keras_pause_checks.py", "keras_misuse_checks.py", "keras_company_checks.py"),
    "jax": ("keras_resume_checks.py",),
}
THE_REST = {"jax": ("keras_checks.py", "keras_loading_checks.py")}


def run(in_a_process, backend, *files, only="not slow", **environment):
    for package in ("keras", backend):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    arguments = [
        *(str(HERE / f) for f in files),
        "-q",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-m",
        only,
    ]
    source = f"import sys, pytest\nsys.exit(pytest.main({arguments}))"
    in_a_process(source, KERAS_BACKEND=backend, **environment)


@pytest.mark.parametrize(
    ("backend", "files"),
    [
        *CHECKS.items(),
        *(
            pytest.param(*more, marks=pytest.mark.slow, id=f"{more[0]}, the rest")
            for more in THE_REST.items()
        ),
    ],
)
def test_the_keras_callback_holds_its_contract(in_a_process, tmp_path, backend, files):
    compiled = {  # many checks train the same tiny net: XLA compiles it once
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    run(in_a_process, backend, *files, **compiled)


def test_it_holds_on_two_devices_of_a_mirrored_strategy(in_a_process):
    run(in_a_process, "tensorflow", "keras_mirrored_checks.py")


@pytest.mark.slow
def test_a_model_built_by_a_function_holds_there_too(in_a_process):
    run(in_a_process, "tensorflow", "keras_mirrored_checks.py", only="slow")
