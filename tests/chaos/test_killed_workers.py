"""Workers of one search are killed again and again, and nothing that they were promised is lost."""

from __future__ import annotations

import os
import random
import sys
import time
import warnings
from itertools import count
from pathlib import Path

import chaos
import pytest
from filled import fill, report

from haltune.errors import HaltuneWarning
from haltune.log.events import Reported
from haltune.store.open import open_store

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc: a killed worker's lease must run out"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # forks while threads of other tests run
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


@pytest.mark.slow
def test_workers_killed_at_random_moments_lose_nothing_on_sqlite(tmp_path: Path, folder: Path) -> None:
    survives(f"sqlite:///{tmp_path}/chaos.db", folder, SEVERAL)


@pytest.mark.slow
def test_workers_killed_at_random_moments_lose_nothing_on_postgresql(postgres_url: str, folder: Path) -> None:
    survives(postgres_url, folder, SEVERAL)


@pytest.mark.slow
def test_workers_of_a_launcher_that_are_killed_are_replaced(tmp_path: Path, folder: Path) -> None:
    launched(f"sqlite:///{tmp_path}/chaos.db", folder, 3, 12, 3)


@pytest.mark.slow
def test_workers_of_a_launcher_are_killed_a_hundred_times_on_sqlite(tmp_path: Path, folder: Path) -> None:
    launched(f"sqlite:///{tmp_path}/chaos.db", folder, 100, 400, 8)


@pytest.mark.slow
def test_a_thousand_kills_lose_nothing_on_postgresql(postgres_url: str, folder: Path) -> None:
    survives(postgres_url, folder, MANY)


@pytest.mark.parametrize("kills", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_a_file_opened_after_each_kill_holds_what_was_acknowledged_and_warns_of_nothing(
    tmp_path: Path, kills: int
) -> None:
    path = tmp_path / "a.db"
    fill(open_store(path), 0)
    acknowledged = os.open(tmp_path / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def life() -> None:
        warnings.simplefilter("error")
        for n in count():
            store = open_store(path)
            for k in range(5):
                epoch = float(os.getpid() * 10**6 + 5 * n + k)
                store.append("s", [report(epoch, "r" * 20_000)], seen=10**9, about=None)
                os.write(acknowledged, f"{epoch:.0f}\n".encode())
            store.close()

    chance = random.Random(0)
    alive = [chaos.in_fork(life) for _ in range(2)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", HaltuneWarning)
            for n in range(kills):
                time.sleep(chance.uniform(0.0, 0.06))
                chaos.kill(alive.pop(chance.randrange(2)))
                store = open_store(path, reading=n % 2 == 0)
                assert store.names() == ["s"]
                store.close()
                alive.append(chaos.in_fork(life))
    finally:  # they would continue forever
        chaos.kill(*alive)
    kept = [e.epoch for e in open_store(path).read("s") if isinstance(e, Reported)]
    promised = [float(line) for line in (tmp_path / "acknowledged").read_text().splitlines()]
    assert len(promised) > kills
    assert set(promised) <= set(kept)
    assert len(kept) == len(set(kept)) <= len(promised) + kills + 2
