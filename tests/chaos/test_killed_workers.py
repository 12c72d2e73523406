"""Workers of one search are killed again and again, and nothing that they were promised is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import chaos
import pytest

import haltune.store.open  # noqa: F401  what each worker would have to load

pytestmark = [
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="no /proc: a killed worker's lease must run out"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # forks beside threads of other tests
]
SEVERAL, MANY = 12, 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "promised").mkdir()
    return tmp_path / "promised"


def survives(url: str, folder: Path, kills: int) -> None:
    trials = chaos.storm(url, kills, folder)
    found = chaos.check(url, folder, trials)
    print(f"{kills} kills: {found}")
    assert found["acknowledged"] > kills


def launched(url: str, folder: Path, kills: int, trials: int, workers: int) -> None:
    done, printed = chaos.launched_storm(url, kills, folder, trials, workers)
    found = chaos.check(url, folder, trials)
    print(f"{done} kills: {found}; {printed}")
    assert done == kills
    assert 0 < found["attempts lost"] <= kills


def test_workers_killed_at_random_moments_lose_nothing_on_sqlite(tmp_path: Path, folder: Path) -> None:
    survives(f"sqlite:///{tmp_path}/chaos.db", folder, SEVERAL)


@pytest.mark.slow
def test_workers_killed_at_random_moments_lose_nothing_on_postgresql(postgres_url: str, folder: Path) -> None:
    survives(postgres_url, folder, SEVERAL)


def test_workers_of_a_launcher_that_are_killed_are_replaced(tmp_path: Path, folder: Path) -> None:
    launched(f"sqlite:///{tmp_path}/chaos.db", folder, 3, 12, 3)


@pytest.mark.slow
def test_workers_of_a_launcher_are_killed_a_hundred_times_on_postgresql(
    postgres_url: str, folder: Path
) -> None:
    launched(postgres_url, folder, 100, 400, 8)


@pytest.mark.slow
def test_workers_of_a_launcher_are_killed_a_hundred_times_on_sqlite(tmp_path: Path, folder: Path) -> None:
    launched(f"sqlite:///{tmp_path}/chaos.db", folder, 100, 400, 8)


@pytest.mark.slow
def test_a_thousand_kills_lose_nothing_on_sqlite(tmp_path: Path, folder: Path) -> None:
    survives(f"sqlite:///{tmp_path}/chaos.db", folder, MANY)


@pytest.mark.slow
def test_a_thousand_kills_lose_nothing_on_postgresql(postgres_url: str, folder: Path) -> None:
    survives(postgres_url, folder, MANY)
