"""A space that is narrowed: earlier trials stay in the model, and new ones lie inside, also in other open programs."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from everyone import each_class
from widened import WIDE, configs, crashed_and_continued, differing, height, study_in, widenings
from worlds import LAWFUL, ending, problem, search, small_study, train

from haltune import Budget, Choice, Float, Int, Problem, Space, Study, Trial, load_study
from haltune.errors import HaltuneWarning, InvalidInput, StudyMismatch
from haltune.store.memory import MemoryStore
from haltune.study.view import read_study

INNER = Space({
    "lr": Float(1e-3, 1 / 3, log=True), "layers": Int(1, 2), "kernel": Choice(["rbf"]), "decay": Float(0.0, 1.0),
})  # fmt: skip
FIXED = Space({"lr": Float(1e-3, 1e-1, log=True), "layers": 2, "kernel": "rbf", "decay": 0.5})
SHIFTED = Space({
    "lr": Float(0.5, 5.0, log=True), "layers": Int(4, 6), "kernel": Choice(["poly", "sigmoid"]),
    "decay": Float(-1.0, 100.0),
})  # fmt: skip
BEST = {"lr": 0.5, "layers": 4, "kernel": "poly", "decay": 50.0}


@pytest.fixture
def wide() -> Study:
    study = study_in(WIDE, MemoryStore())
    study.enqueue(BEST)
    return search(study, height)


def new_outside(study: Any, since: int, space: Space) -> list[dict[str, Any]]:
    """Return configurations outside `space` of trials from number `since` on that are not a trial trained again."""
    return [dict(t.config) for t in study.trials[since:] if "of" not in t.tags and not space.contains(t.config)]


@each_class
def test_every_policy_stays_inside_and_keeps_what_was_tried(name: str) -> None:
    store, policy = MemoryStore(), LAWFUL[name]
    study = search(study_in(WIDE, store, policy(), 4), height)
    before, best, count = configs(study), study.best, len(study.trials)
    inner = study_in(INNER, store, policy(), count + 6)
    assert (inner.problem.space.inside, configs(inner), inner.best) == (INNER, before, best)
    assert inner.history.points.shape == (count, 5)  # in the wide cube
    search(inner, height)
    assert configs(inner)[:count] == before
    assert new_outside(inner, count, INNER) == []
    assert differing(inner, policy()) == []
    back = search(study_in(WIDE, store, policy(), len(inner.trials) + 3), height)
    assert configs(back)[: len(inner.trials)] == configs(inner)
    assert differing(back, policy()) == []


@pytest.mark.parametrize("space", [INNER, FIXED, SHIFTED], ids=["smaller", "fixed", "shifted"])
def test_the_search_stays_inside_and_its_log_reopens(space: Space, tmp_path: Path) -> None:
    url = str(tmp_path / "search.db")
    before = configs(search(study_in(WIDE, url), height))
    study = search(study_in(space, url, trials=12), height)
    assert configs(study)[:4] == before
    assert len(study.trials) == 12
    assert new_outside(study, 4, space) == []
    for again in (load_study(url, budget="16 trials"), read_study(url), study_in(space, url, trials=16)):
        assert again.problem.space.inside == space
        assert configs(again) == configs(study)
    assert len(widenings(study.store)) == 1
    assert pickle.loads(pickle.dumps(study.problem.space)) == space  # a worker starts with it
    assert new_outside(search(load_study(url, budget="16 trials"), height), 4, space) == []
    assert differing(load_study(url), study.policy) == []


def test_it_is_narrowed_widened_and_narrowed_again(wide: Study) -> None:
    found = configs(wide)
    for number, space in enumerate([INNER, WIDE, SHIFTED, FIXED, WIDE], 1):
        study = search(study_in(space, wide.store, trials=4 + 3 * number), height)
        assert configs(study)[: len(found)] == found
        assert new_outside(study, len(found), space) == []
        assert len(widenings(study.store)) == number
        found = configs(study)
    assert study.problem.space.inside == WIDE
    assert study.history.problem.space.whole.parameters["lr"] == Float(1e-4, 5.0, log=True)


def test_a_space_that_was_widened_is_narrowed_to_less_than_it_was() -> None:
    store = MemoryStore()
    small = {"lr": Float(1e-3, 1e-1, log=True), "layers": 2, "kernel": "rbf"}
    search(study_in(Space(small), store), height)
    search(
        study_in(Space({**small, "lr": Float(1e-4, 1.0, log=True), "layers": Choice([2, 8])}), store, trials=8), height
    )
    inner = Space({**small, "lr": Float(1e-2, 0.3, log=True)})
    study = search(study_in(inner, store, trials=12), height)
    assert new_outside(study, 8, inner) == []


def test_a_best_trial_outside_stays_the_best_and_is_named(wide: Study, caplog: pytest.LogCaptureFixture) -> None:
    best = wide.best
    assert best is not None
    assert dict(best.config) == BEST
    with caplog.at_level(logging.INFO, "haltune"):
        inner = study_in(INNER, wide.store, trials=9)
    [line] = [r.getMessage() for r in caplog.records if "narrower" in r.getMessage()]
    assert "'layers' was Int(1, 4) and is Int(1, 2)." in line
    assert line.endswith(f" Trial {best.trial}, the best so far, lies outside and stays study.best.")
    assert search(inner, height).best == best


def test_a_configuration_outside_is_not_enqueued_and_one_in_the_queue_does_not_start(wide: Study) -> None:
    wide.budget = Budget(trials=12)
    outside, within = {**BEST, "layers": 3}, {"lr": 0.25, "layers": 1, "kernel": "rbf", "decay": 0.25}
    assert wide.enqueue(outside)
    assert wide.enqueue(within)
    inner = study_in(INNER, wide.store, trials=12)
    with pytest.raises(InvalidInput, match=r"'layers' is 4\. Use a value in \[1, 2\]"):
        inner.enqueue({**within, "layers": 4})
    with pytest.raises(InvalidInput, match="'kernel' must be one of 'rbf'; got 'poly'"):
        inner.enqueue({**within, "kernel": "poly"})
    with pytest.warns(HaltuneWarning, match=r"layers=3, .* is not started: 'lr' is 0\.5\. Use a value in"):
        found = configs(search(inner, height))[4:]
    assert found[0] == within
    assert outside not in found
    assert new_outside(inner, 4, INNER) == []


def test_a_running_trial_outside_continues_in_a_program_that_has_it_open(wide: Study) -> None:
    store = wide.store
    open_still = study_in(WIDE, store, trials=12)
    open_still.enqueue({**BEST, "layers": 3})
    running = open_still.ask()
    assert isinstance(running, Trial)
    study_in(INNER, store, trials=12)
    assert not running.report(0.3, 1, seconds=1.0).stops
    train(running, height)
    search(open_still, height)
    assert open_still.problem.space.inside == INNER
    assert open_still.trials[4].epoch == 6
    assert new_outside(open_still, 5, INNER) == []


def test_a_start_outside_may_be_left_out() -> None:
    store = MemoryStore()
    start = [{**BEST, "layers": 1, "kernel": "rbf", "lr": 0.25, "decay": 0.25}, BEST]

    def study(space: Space, start: list[Any], trials: int) -> Study:
        posed = Problem(space, problem().goal, problem().max_epochs, start)
        return small_study(LAWFUL["random"](), store, problem=posed, trials=trials)

    search(study(WIDE, start, 4), height)
    inner = search(study(INNER, start[:1], 8), height)
    assert configs(inner)[:2] == start
    assert new_outside(inner, 4, INNER) == []
    with pytest.raises(StudyMismatch, match="start: recorded"):
        study(INNER, [], 8)
    assert study(WIDE, start, 8).problem.space == WIDE


def test_a_finite_space_ends_when_all_inside_were_tried() -> None:
    store = MemoryStore()
    old = Space({"layers": Int(1, 9), "act": Choice(["relu", "gelu", "tanh"])})
    new = Space({"layers": Int(2, 3), "act": Choice(["gelu", "tanh"])})
    value = lambda c, e: 0.1 * c["layers"]  # noqa: E731
    search(study_in(old, store, LAWFUL["multifidelity"](), 6), value)
    count = len(read_study(store, "study").trials)
    inner = search(study_in(new, store, LAWFUL["multifidelity"](), count + 4), value)
    tried = {(c["layers"], c["act"]) for c in configs(inner)[count:]}
    assert tried <= {(n, a) for n in (2, 3) for a in ("gelu", "tanh")}
    assert len(tried) >= 2  # though more configurations were tried than the space has


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dead process's generator
def test_a_process_killed_at_the_narrowing_reaches_the_same_end() -> None:
    def searched(store: Any) -> Study:
        if not store.names() or not widenings(store):
            search(study_in(WIDE, store, trials=2), height)
        return search(study_in(INNER, store, trials=4), height)

    whole = MemoryStore()
    expected = ending(searched(whole))
    at = next(n for n, e in enumerate(whole.read("study")) if e.kind == "widened")
    for life, after in [(at - 1, True), (at, False), (at, True), (at + 1, False)]:
        study = crashed_and_continued(searched, life, after)
        assert ending(study) == expected
        assert len(widenings(study.store)) == 1
