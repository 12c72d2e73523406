"""A space that is widened: the search continues in it with all that was learnt, also in other open programs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from everyone import each_class
from widened import (
    NARROW,
    THIRD,
    WIDE,
    at_once,
    configs,
    crashed_and_continued,
    differing,
    height,
    study_in,
    train_until_it_is_widened,
    widen_while_it_trains,
    widenings,
)
from workers import together
from worlds import LAWFUL, ending, search, train

from haltune import Budget, Choice, Finish, Float, Int, Maximize, Problem, Space, Study, Trial, load_study
from haltune.errors import InvalidInput, StudyMismatch
from haltune.log.events import Event, Finished, Widened
from haltune.log.history import History
from haltune.policies import Policy, RandomSearch, Start
from haltune.store.memory import MemoryStore
from haltune.study.view import read_study


@pytest.fixture
def narrow() -> Study:
    return search(study_in(NARROW, MemoryStore()), height)


def test_what_was_found_stays_to_the_bit_and_the_search_continues_outside(narrow: Study) -> None:
    before, best = configs(narrow), narrow.best
    wide = study_in(WIDE, narrow.store, trials=12)
    assert (wide.problem.space, configs(wide), wide.best) == (WIDE, before, best)
    assert WIDE.canonical_many(before) != before  # its own grids are others
    search(wide, height)
    assert configs(wide)[:4] == before
    assert any(not NARROW.contains(c) for c in configs(wide)[4:])
    np.testing.assert_allclose(wide.history.points, WIDE.encode_many(configs(wide)), atol=1e-9)


def test_what_was_tried_is_known_and_may_be_enqueued_again_as_it_was(narrow: Study) -> None:
    wide = study_in(WIDE, narrow.store, trials=9)
    first = configs(narrow)[0]
    assert not wide.enqueue(first)
    assert wide.enqueue(first, again=True)
    trial = wide.ask()
    assert isinstance(trial, Trial)
    assert trial.config == first
    assert wide.history.tried == {NARROW.key(c) for c in configs(narrow)}
    assert wide.enqueue({"lr": 1.0, "layers": 4, "kernel": "poly", "decay": -1.0})


def test_a_program_that_has_it_open_continues_in_the_wider_space(narrow: Study) -> None:
    """Running trials continue; a move that was decided in the narrower space is refused."""
    store = narrow.store
    open_still = study_in(NARROW, store, trials=14)
    running = open_still.ask()
    assert isinstance(running, Trial)
    wide = study_in(WIDE, store, trials=14)
    assert not running.report(0.3, 1, seconds=1.0).stops
    assert open_still.problem.space == WIDE
    running.finish()
    search(open_still, height)
    assert any(not NARROW.contains(c) for c in configs(open_still)[5:])
    wide.sync()
    assert configs(wide) == configs(open_still)
    assert open_still.session.settings.problem.space == WIDE
    assert pickle.loads(pickle.dumps(open_still.session.settings.problem.space)) == WIDE  # a worker starts with it
    assert list(differing(wide, RandomSearch())) == []


@each_class
def test_a_policy_continues_outside_the_old_ranges_and_by_its_log_alone(name: str) -> None:
    """Its cached state of the narrower space has no effect."""
    store = MemoryStore()
    open_still = search(study_in(NARROW, store, LAWFUL[name](), 3), height)
    before = configs(open_still)
    open_still.budget = Budget(trials=len(before) + 1)
    running = open_still.ask()
    study_in(WIDE, store, LAWFUL[name](), 3)
    open_still.budget = Budget(trials=len(before) + 3)
    beside = open_still.ask()  # with as many results as before
    for trial in (beside, running):
        if isinstance(trial, Trial):
            train(trial, height)
    search(open_still, height)
    assert configs(open_still)[: len(before)] == before
    assert any(not NARROW.contains(c) for c in configs(open_still))
    assert differing(open_still, LAWFUL[name]()) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dead process's generator
@pytest.mark.parametrize("name", [pytest.param("random", marks=pytest.mark.slow), "multifidelity"])
def test_a_process_killed_at_any_append_before_or_after_the_widening_reaches_the_same_end(name: str) -> None:
    def searched(store: Any) -> Study:
        if not store.names() or not widenings(store):
            search(study_in(NARROW, store, LAWFUL[name](), 2), height)
        return search(study_in(WIDE, store, LAWFUL[name](), 4), height)

    whole = MemoryStore()
    expected = ending(searched(whole))
    log = list(whole.read("study"))
    at = next(n for n, e in enumerate(log) if isinstance(e, Widened))
    near = {(life, after) for life in range(at - 1, at + 2) for after in (True, False)}
    for life, after in sorted({*near, *((n, n % 2 == 0) for n in range(1, len(log), 9))}):
        study = crashed_and_continued(searched, life, after)
        assert ending(study) == expected
        assert len(widenings(study.store)) == 1


OTHERS = {
    "a range that is a choice": {**WIDE.parameters, "layers": Choice([1, 2])},
    "another kind": {**WIDE.parameters, "layers": Float(0.0, 9.0)},
    "another scale": {**WIDE.parameters, "lr": Float(1e-4, 1.0)},
    "a parameter less": {name: d for name, d in WIDE.parameters.items() if name != "decay"},
    "a parameter of which nobody says what it was": {**WIDE.parameters, "momentum": Float(0.0, 1.0)},
    "a condition": {**WIDE.parameters, "layers": Int(1, 4, when={"kernel": "rbf"})},
}


@pytest.mark.parametrize("other", OTHERS)
def test_any_other_space_is_refused_and_nothing_is_written(narrow: Study, other: str) -> None:
    before = list(narrow.store.read("study"))
    with pytest.raises(StudyMismatch, match=r"(?s) - space: '.*In a wider or narrower space"):
        study_in(Space(OTHERS[other]), narrow.store)
    assert list(narrow.store.read("study")) == before


def test_who_opens_it_by_its_log_has_the_wider_space(tmp_path: Path) -> None:
    url = str(tmp_path / "search.db")
    before = configs(search(study_in(NARROW, url), height))
    study_in(WIDE, url)
    again = load_study(url, budget="9 trials")
    assert again.problem.space == WIDE
    assert configs(search(again, height))[:4] == before
    reading = read_study(url)
    assert reading.problem.space == reading.history.problem.space == WIDE
    assert configs(reading) == configs(again)
    assert any(not NARROW.contains(c) for c in configs(reading))
    assert len(widenings(again.store)) == 1


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/search.db"
    return str(request.getfixturevalue("postgres_url"))


def test_one_process_widens_it_while_another_trains(url: str) -> None:
    trained, beside = together(at_once, (train_until_it_is_widened, url), (widen_while_it_trains, url))
    study = load_study(url)
    assert len(widenings(study.store)) == 1
    assert len(study.trials) == 12 == len(trained) + len(beside)
    assert configs(study)[:2] == trained[:2]
    assert all(map(NARROW.contains, trained[:2]))
    assert any(not NARROW.contains(c) for c in trained[2:])
    assert [t.epoch for t in study.trials] == [6] * 12
    assert differing(study, RandomSearch()) == []


class Sweep(Policy[int]):
    """Every whole number of the space in turn, and then the end; up to 9 of them."""

    def start(self, problem: Problem) -> int:
        domain = problem.space.parameters["x"]
        assert isinstance(domain, Int)
        if int(domain.high) > 9:
            raise InvalidInput("up to 9")
        return int(domain.high)

    def fold(self, state: int, event: Event) -> int:
        return state

    def propose(self, state: int, history: History, rng: Any) -> Any:
        x = len(history) + 1
        return Start({"x": x}) if x <= state else Finish(f"all {state} were tried")

    @property
    def endless(self) -> bool:
        return False


def sweep(high: int, store: Any) -> Study:
    space = Space({"x": Int(1, high)})
    return Study(Problem(space, Maximize("acc", (0, 99)), 1), Sweep(), store, seed=0)


def test_a_search_that_had_ended_for_want_of_more_takes_up_what_is_new() -> None:
    store = MemoryStore()
    first = search(sweep(2, store), lambda c, e: c["x"])
    assert first.outcome.reason == "all 2 were tried"
    more = sweep(4, store)
    assert not more.outcome.over
    assert [c["x"] for c in configs(search(more, lambda c, e: c["x"]))] == [1, 2, 3, 4]
    assert more.outcome.reason == "all 4 were tried"
    assert [e.reason for e in store.read("study") if isinstance(e, Finished)] == [
        "all 2 were tried", "all 4 were tried",
    ]  # fmt: skip


def test_an_option_may_bring_its_own_parameters() -> None:
    """Earlier configurations lack these parameters, so no values are needed."""
    store = MemoryStore()
    space = Space({"optimizer": Choice(["adam"]), "lr": Float(0.1, 1.0), "layers": Int(1, 2)})
    before = configs(search(study_in(space, store), lambda c, e: c["lr"]))
    wider = Space({
        "optimizer": Choice(["adam", "sgd"]), "lr": Float(0.1, 1.0), "layers": Int(1, 3),
        "momentum": Float(0.0, 1.0, when={"optimizer": "sgd"}), "third": Int(1, 9, when={"layers": (">", 2)}),
    })  # fmt: skip
    found = configs(search(study_in(wider, store, trials=20), lambda c, e: c["lr"]))
    assert found[:4] == before
    assert {("momentum" in c, "third" in c) for c in found} == {(m, t) for m in (0, 1) for t in (0, 1)}
    assert all(("momentum" in c, "third" in c) == (c["optimizer"] == "sgd", c["layers"] == 3) for c in found)


MOMENTUM = Space({**NARROW.parameters, "momentum": THIRD})
VARIED = Space({**NARROW.parameters, "momentum": Float(0.0, 1.0)})


@pytest.mark.parametrize("name", ["random", "multifidelity", "truvar-grid"])
def test_a_parameter_that_is_new_has_been_what_its_constant_says(name: str, tmp_path: Path) -> None:
    store, policy = str(tmp_path / "search.db"), LAWFUL[name]
    narrow = search(study_in(NARROW, store, policy(), 3), height)
    narrow.budget = "9 trials"
    narrow.enqueue(enqueued := {"lr": 0.01, "layers": 1, "kernel": "rbf", "decay": 0.0})
    before = configs(narrow)
    with pytest.raises(StudyMismatch, match=r"'momentum' is new, .*such as Study\(space \| \{'momentum': 0\.0\}"):
        study_in(VARIED, store, policy())
    assert configs(study_in(MOMENTUM, store, policy())) == [c | {"momentum": THIRD} for c in before]
    wide = study_in(VARIED, store, policy(), trials=9)
    assert not wide.enqueue(enqueued | {"momentum": THIRD})
    assert not wide.enqueue(before[0] | {"momentum": THIRD})
    search(wide, lambda c, e: height(c, e) + c["momentum"] / 100)
    found = configs(wide)
    assert found[: len(before)] == [c | {"momentum": THIRD} for c in before]
    assert enqueued | {"momentum": THIRD} in found
    assert len({c["momentum"] for c in found}) > 1
    assert wide.history.points.shape == (len(found), 5)
    assert configs(load_study(store)) == configs(read_study(store)) == found
    assert differing(wide, policy()) == []
