"""The user's own configurations: started once, before the policy's, in the same way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import SPACE, problem, search, small_study, train

from haltune import HaltuneWarning, Problem, Space, Study
from haltune.errors import InvalidInput, StudyMismatch
from haltune.log.events import Enqueued, Started
from haltune.policies import RandomSearch
from haltune.store.memory import MemoryStore
from haltune.study.redecide import redecide
from haltune.study.view import follow_study

MINE = {"lr": 0.25, "layers": 2, "kernel": "rbf"}
OTHER = {"lr": 0.5, "layers": 4, "kernel": "poly", "degree": 3}
ASKED = RandomSearch()


def begun(study: Study) -> list[dict[str, Any]]:
    return [dict(t.config) for t in study.trials]


def starts(study: Study) -> list[Started]:
    return [e for e in study.events() if isinstance(e, Started)]


def test_what_is_enqueued_is_started_next_in_its_order_and_says_so():
    study = small_study(ASKED, trials=5)
    train(study.ask())
    assert study.enqueue(OTHER)
    assert study.enqueue(MINE)
    search(study)
    assert begun(study)[1:3] == [OTHER, MINE]
    reasons = [e.reason for e in starts(study)]
    assert [reason.startswith("enqueued by you") for reason in reasons] == [False, True, True, False, False]
    assert reasons[1] == "enqueued by you, in place of one drawn at random"
    assert "enqueued by you" in study.explain(1)
    assert study.trials[1].proposed == reasons[1]


def test_a_problem_starts_with_its_own_configurations():
    study = search(small_study(ASKED, problem=replace(problem(), start=[MINE, OTHER])))
    assert begun(study)[:2] == [MINE, OTHER]
    assert len(study.trials) == 5


def test_a_configuration_that_started_or_waits_is_not_enqueued_again_unless_asked():
    study = small_study(ASKED, trials=4)
    assert [study.enqueue(MINE), study.enqueue(dict(reversed(MINE.items())))] == [True, False]
    train(study.ask())
    assert not study.enqueue(MINE)
    assert study.enqueue(MINE, again=True)
    assert begun(search(study))[:2] == [MINE, MINE]
    assert begun(study).count(MINE) == 2


def test_a_program_that_is_run_again_finds_what_it_enqueued(tmp_path: Path):
    path = str(tmp_path / "search.db")
    first = small_study(ASKED, path)
    assert [first.enqueue(MINE), first.enqueue(OTHER)] == [True, True]
    train(first.ask())
    again = small_study(ASKED, path)
    assert [again.enqueue(MINE), again.enqueue(OTHER)] == [False, False]
    assert begun(search(again))[:2] == [MINE, OTHER]
    assert [e.config for e in again.events() if isinstance(e, Enqueued)] == [MINE, OTHER]


def test_two_workers_start_it_once_and_enqueue_it_once():
    store = MemoryStore()
    one, two = (small_study(ASKED, store) for _ in range(2))
    assert [one.enqueue(MINE), two.enqueue(MINE), two.enqueue(OTHER)] == [True, False, True]
    assert [worker.ask().config for worker in (two, one)] == [MINE, OTHER]
    assert one.ask().config not in (MINE, OTHER)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"lr": 0.1, "kernel": "rbf"}, "has no 'layers'"),
        ({**MINE, "lr": 7.0}, r"'lr' is 7.0. Use a value in \[0.0001, 1.0\]"),
        (3, "is a dict of names and values; got 3"),
    ],
)
def test_what_is_no_configuration_is_refused_wherever_it_is_given(config: Any, says: str):
    study = small_study(ASKED)
    with pytest.raises(InvalidInput, match=rf"enqueue\(config\): .*{says}"):
        study.enqueue(config)
    with pytest.raises(InvalidInput, match=rf"start\[1\]: .*{says}"):
        replace(problem(), start=[MINE, config])
    assert not study.history.queue


@pytest.mark.parametrize("bad", [lambda c: c["layers"] < 4, lambda c: c["layers"] < 4 or c["none"]])
def test_one_who_lacks_the_constraints_may_enqueue_and_who_trains_holds_it_to_them(tmp_path: Path, bad: Any):
    path = str(tmp_path / "search.db")
    space = Space(dict(SPACE.parameters), constraints=[("shallow", bad)])
    study = small_study(ASKED, path, problem=problem(space=space), trials=2)
    asked = follow_study(path)
    assert [asked.enqueue(study.store, config) for config in (OTHER, MINE, MINE)] == [True, True, False]
    with pytest.raises(InvalidInput, match=r"enqueue\(config\): .*lr"):
        asked.enqueue(study.store, {**MINE, "lr": 7})
    with pytest.warns(HaltuneWarning, match="enqueued configuration .*layers=4.* is not started: .*'shallow'"):
        assert study.ask().config == MINE
    assert not study.history.queue
    asked.sync()
    assert not asked.history.queue
    assert [d for d in redecide(study.problem, ASKED, study.events()) if d[1] != d[2]] == []


def test_a_study_is_distinguished_from_one_that_starts_otherwise():
    store = MemoryStore()
    small_study(ASKED, store).ask().report(0.5)  # a study without a report would make way
    assert Problem.from_json(problem().to_json()) == problem()
    started = replace(problem(), start=[MINE])
    assert Problem.from_json(started.to_json()) == started
    with pytest.raises(StudyMismatch, match=r"start: recorded \[\], given"):
        small_study(ASKED, store, problem=started)


def test_what_the_policys_end_leaves_is_warned_of_and_nothing_can_be_added():
    study = small_study(RandomSearch(trials=1), problem=replace(problem(), start=[MINE, OTHER]))
    with pytest.warns(HaltuneWarning, match="1 enqueued configuration not started: all 1 random"):
        search(study)
    assert not study.enqueue(MINE)
    with pytest.raises(InvalidInput, match=r"has finished this search.*all 1 random"):
        study.enqueue({**MINE, "lr": 0.75})
