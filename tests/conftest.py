"""Fixtures that all tests may use, and the two ways in which properties are tried.

`make test` is to say the same of the same code in every clone: its examples are fixed, and nothing depends on how
quick the machine is. `make test-all` looks for what nobody has seen yet.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from postgres import postgres_server, postgres_url

from examples import QUICK, USUAL
from haltune.ranks.agreement import alone

__all__ = ["postgres_server", "postgres_url"]

settings.register_profile(
    "repeatable", max_examples=QUICK, derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.register_profile(
    "fresh", settings.get_profile("repeatable"), derandomize=False, max_examples=4 * USUAL
)
settings.load_profile("repeatable")  # pytest --hypothesis-profile=fresh loads the other one


@pytest.fixture(autouse=True, scope="module")
def _imports_are_no_garbage() -> None:
    """Without this each collection walks through all that was imported, and frameworks ask for many."""
    gc.freeze()


SEARCHES = {Path(__file__).parent / room for room in ("laws", "policies")}


@pytest.fixture(autouse=True)
def _searches_have_no_ranks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Other tests have started programs in this process, and each might be a rank that hears of all studies."""
    if SEARCHES.isdisjoint(request.path.parents):
        yield
        return
    with alone():
        yield
