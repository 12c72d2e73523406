"""haltune's Tuner for Keras Tuner, in processes of its own."""

import importlib.util
from pathlib import Path

import pytest
from elsewhere import printed

WHOLE = ("tuner_checks.py", "space_checks.py")
STOPS = "tuner_checks.py::test_losing_trials_are_stopped_and_callbacks_of_the_users_own_are_called"
GOES_ON = "tuner_checks.py::test_a_paused_run_continues_exactly_in_the_same_trial"


@pytest.mark.parametrize(
    ("backend", "checks"),
    [
        pytest.param("torch", WHOLE, id="torch", marks=pytest.mark.slow),
        pytest.param("tensorflow", (STOPS, GOES_ON), id="tensorflow", marks=pytest.mark.slow),
    ],
)
def test_the_tuner_holds_its_contract(backend, checks):
    for package in ("keras_tuner", backend):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    files = [str(Path(__file__).parent / name) for name in checks]
    arguments = [*files, "-q", "--import-mode=importlib", "-p", "no:cacheprovider"]
    printed(f"import sys, pytest\nsys.exit(pytest.main({arguments}))", KERAS_BACKEND=backend)
