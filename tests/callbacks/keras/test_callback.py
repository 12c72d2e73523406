"""The Keras callback on each backend. Keras chooses its backend once in a process, so each gets its own."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LAWS = "../test_every_loop.py"
RESUMING = f"{LAWS}::test_a_resumed_training_equals_an_uninterrupted_one_digit_for_digit"
COMPILED = "keras_resume_checks.py"  # in another process
STATE = ("keras_state_checks.py",)
EVERYWHERE = ("keras_checks.py", "keras_loading_checks.py", "keras_assumption_checks.py", COMPILED, LAWS)
ON_ONE = (
    "keras_pause_checks.py",
    "keras_state_checks.py",
    "keras_steps_checks.py",
    "keras_metric_names_checks.py",
    "keras_search_checks.py",
    "keras_interruption_checks.py",
    "../test_carried.py",
)
ZOO = "../../foreign/test_zoo.py"  # to import Keras takes longer than its quick programs there
WHOLE = [  # what is the same on every backend is checked on torch, which is fastest
    pytest.param("torch", (*EVERYWHERE, *ON_ONE, ZOO, "-mnot slow", "-k not another_process"), id="torch"),
    pytest.param("torch", (*EVERYWHERE, *ON_ONE, "-mslow"), id="torch, the rest", marks=pytest.mark.slow),
    pytest.param("torch", (COMPILED,), id="torch, compiled", marks=pytest.mark.slow),
    pytest.param("tensorflow", EVERYWHERE, id="tensorflow", marks=pytest.mark.slow),
    pytest.param("tensorflow", STATE, id="tensorflow, state", marks=pytest.mark.slow),
    pytest.param("jax", STATE, id="jax, state", marks=pytest.mark.slow),
    pytest.param("jax", (RESUMING, COMPILED), id="jax, resuming", marks=pytest.mark.slow),
    pytest.param("jax", EVERYWHERE[:3], id="jax, the rest", marks=pytest.mark.slow),
]
MIRRORED = "keras_mirrored_checks.py"
STOPS_AND_GOES_ON = (
    f"{LAWS}::test_a_stop_ends_the_training_after_its_round_and_the_horizon_does",
    f"{RESUMING}[keras, paused twice]",
)
SHORT = {  # the mirrored strategy comes first: it configures TensorFlow's devices before any operation
    "tensorflow": (
        f"{MIRRORED}::test_two_replicas_are_one_training_that_reports_and_stops", *STOPS_AND_GOES_ON,
    ),
    "jax": (
        "keras_steps_checks.py",
        "keras_checks.py::test_jaxs_processes_are_refused_with_a_sentence",
        *STOPS_AND_GOES_ON,
    ),
}  # fmt: skip


@pytest.fixture
def check(in_a_process, tmp_path):
    """Run these checks in a process that has this backend."""

    def run(backend, *checks):
        for package in ("keras", backend):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")
        arguments = [
            *(c if c.startswith("-") else str(HERE / c) for c in checks),
            "-q",
            "--import-mode=importlib",
            "-p",
            "no:cacheprovider",
        ]
        compiled = {  # many checks train the same tiny net: XLA compiles it once
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        environment = compiled | {"KERAS_BACKEND": backend, "ZOO_BACKEND": backend, "HALTUNE_FITS": "keras"}
        in_a_process(f"import sys, pytest\nsys.exit(pytest.main({arguments}))", **environment)

    return run


@pytest.mark.parametrize(("backend", "files"), WHOLE)
def test_the_keras_callback_holds_its_contract(check, backend, files):
    check(backend, *files)


@pytest.mark.slow  # the contract on torch is quick, and importing TensorFlow takes most of a minute
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_on_every_backend_it_stops_and_a_pause_leaves_no_trace(check, backend):
    check(backend, *SHORT[backend])


@pytest.mark.slow
def test_it_holds_on_two_devices_of_a_mirrored_strategy(check):
    # Keras 3.15 on TensorFlow 2.21 dies there at times without haltune, too: validated each epoch on two CPU devices
    for patience in (3, 2, 1, 0):
        try:
            check("tensorflow", MIRRORED)
            break
        except AssertionError as died:
            theirs = "Segmentation fault" in str(died) and "epoch_iterator.py" in str(died)
            if not theirs or patience == 0:
                raise
