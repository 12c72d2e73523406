"""Fixtures of all tests, and the two profiles of properties.

`make test` gives the same result for the same code in every clone: its examples are fixed, and independent of the
machine's speed. `make test-all` tries new examples.
"""

import gc
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import browser
from hypothesis import HealthCheck, settings
from postgres import postgres_server, postgres_url

from examples import QUICK, USUAL
from haltune.ranks import alone

__all__ = ["browser", "postgres_server", "postgres_url"]

settings.register_profile(
    "repeatable", max_examples=QUICK, derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.register_profile("fresh", settings.get_profile("repeatable"), derandomize=False, max_examples=USUAL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it in the background; some tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.load_profile("repeatable")  # pytest --hypothesis-profile=fresh loads the other one


@pytest.fixture(autouse=True, scope="module")
def _imports_are_no_garbage() -> None:
    """Without this each collection walks through all that was imported, and frameworks ask for many."""
    gc.freeze()


ROOT = Path(__file__).parent.parent
CACHES = re.compile(r"(^|/)(__pycache__|\.(pytest|mypy|ruff)_cache|\.hypothesis|\.venv|build|dist|[^/]*\.egg-info)/")


def _untracked() -> set[str]:
    """The files in the repository's tree that are not its own; none without git."""
    try:
        command = ["git", "-C", str(ROOT), "status", "--porcelain", "--ignored"]
        lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    except OSError:
        return set()
    return {line[3:] for line in lines if line[:2] in ("??", "!!") and not CACHES.search(line[3:])}


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # the workers of xdist leave it to who started them
        session.config.stash[BEFORE] = _untracked()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The tests write nothing into the repository's tree."""
    if BEFORE in session.config.stash and (new := _untracked() - session.config.stash[BEFORE]):
        print(f"\nthe tests wrote into the repository's tree: {', '.join(sorted(new))}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


# what takes longest, so that no worker is left alone with it: servers, processes, browsers, builds
LONGEST = [
    "callbacks/keras/test_callback.py", "chaos/test_killed_workers.py", "laws/test_huge_values.py",
    "chaos/test_outages.py",
    "ranks/test_readings.py", "launch/ray/test_cluster.py", "test_packaging.py", "test_site.py", "test_examples.py",
    "cli/test_programs.py", "report/page/test_browser.py", "laws/test_laws.py", "launch/test_run.py",
    "ranks/test_ranks.py", "cli/test_listings.py", "launch/test_crashes.py", "launch/test_scripts.py",
    "policies/hyperband/test_hyperband.py", "policies/multifidelity/test_multifidelity.py",
    "policies/truvar/test_truvar.py", "test_architecture.py", "cli/test_doctor.py", "laws/test_units.py",
    "ranks/test_followers.py", "policies/test_trial_budgets.py", "study/test_messages.py", "cli/test_exports.py",
    "policies/bobos/test_bobos.py", "launch/test_interrupts.py", "policies/multifidelity/test_second_looks.py",
    "policies/bayesopt/test_ei.py", "chaos/test_chaos.py", "test_notebooks.py",
]  # fmt: skip


SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Take back the handlers that a test or its library leaves: haltune handles no signal that has one."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    found = yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {Path(__file__).parent / file: n for n, file in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


BEFORE = pytest.StashKey[set[str]]()
ROOMS = ["laws", "log", "models", "optuna", "policies", "report", "space", "store", "trackers", "tuners"]
STUDIES = ["audit", "narrowing", "replay", "several_goals"]
SEARCHES = {Path(__file__).parent / room for room in (*ROOMS, *(f"study/test_{name}.py" for name in STUDIES))}


@pytest.fixture(autouse=True)
def _searches_train_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """They have no ranks, as other tests may have left some, and no model that each loop and report would look for.

    What haltune finds in the variables of a program is tested in study and callbacks, and by the programs of laws.
    """
    if SEARCHES.isdisjoint((request.path, *request.path.parents)) or request.path.name.startswith("test_any_"):
        yield
        return
    with alone(), pytest.MonkeyPatch.context() as patched:
        patched.setattr("haltune._utils.around._MOST", 0)  # functions on the stack
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_disk_is_waited_for() -> Iterator[None]:
    """A flush to the disk is for a loss of power, of which no test is: thousands of checkpoints here are flushed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _sb3_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stable-Baselines3 makes a folder in the system's temporary one for each training, in programs of tests too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("sb3")))
        yield
