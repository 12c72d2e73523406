"""The laws, of searches that begin with configurations of the user's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everyone import each_class
from worlds import LAWFUL, ONE_AT_A_TIME, Clock, Crash, MortalStore, ending, problem, search, small_study, train

from haltune import Study, Trial
from haltune.store.memory import MemoryStore
from haltune.study.replay import replay

MINE = {"lr": 0.25, "layers": 2, "kernel": "rbf"}
OTHER = {"lr": 0.03, "layers": 4, "kernel": "poly", "degree": 3}
THIRD = {"lr": 0.9, "layers": 1, "kernel": "rbf"}
WITH_START = replace(problem(), start=[MINE, OTHER])


def started(name: str, store: Any = None, trials: int = 4) -> Study:
    return small_study(LAWFUL[name](), store, problem=WITH_START, trials=trials)


def begun(study: Study) -> list[Any]:
    """What was begun, but for winners that train anew."""
    return [dict(t.config) for t in study.trials if "of" not in t.tags]


@each_class
def test_every_policy_begins_with_the_users_own_and_comes_to_its_end(name: str) -> None:
    study = started(name)
    train(study.ask())
    study.enqueue(THIRD)
    search(study)
    assert begun(study)[:3] == [MINE, OTHER, THIRD]
    assert len(begun(study)) == 4
    assert study.best is not None
    assert [d for d in replay(study.problem, LAWFUL[name](), study.events()) if d[1] != d[2]] == []


@each_class
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dead process's generator
def test_a_program_with_configurations_of_its_own_that_is_killed_and_run_again_comes_to_the_same_end(name: str) -> None:
    """Some of the first states of a log, which has the user's configurations: the last stored, or not, in turn."""

    def program(store: Any = None) -> Study:
        study = started(name, store)
        study.enqueue(THIRD)
        return search(study)

    expected = ending(program())
    for life in (2, 7, 14):
        clock = Clock()
        store = MortalStore(life, life % 2 == 0, clock)
        with pytest.raises(Crash):
            program(store)
        store.revive()
        clock.now += 1e6  # the lease of the dead process has expired
        assert ending(program(store)) == expected


@each_class
def test_workers_that_ask_at_once_share_the_users_own(name: str) -> None:
    store = MemoryStore()
    held = [started(name, store).ask() for _ in range(3)]
    configs = [trial.config for trial in held if isinstance(trial, Trial)]
    assert configs[:2] == ([MINE] if name in ONE_AT_A_TIME else [MINE, OTHER])
    assert len(configs) == (1 if name in ONE_AT_A_TIME else 3)
