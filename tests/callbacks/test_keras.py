"""The Keras callback on each backend. Keras chooses its backend once in a process, so each gets its own."""

import importlib.util
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "keras_checks.py"


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_the_keras_callback_holds_its_contract(in_a_process, backend):
    for package in ("keras", backend):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    in_a_process(
        "import sys, pytest\n"
        f"sys.exit(pytest.main([{str(CHECKS)!r}, '-q', '--import-mode=importlib', '-p', 'no:cacheprovider']))",
        KERAS_BACKEND=backend,
    )
