"""The user's own configurations: begun before any of the policy's, once, as it begins its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from whims import PAUSE, PROBLEM, Whims
from worlds import SPACE, problem, search, small_study, train

from haltune import Budget, Choice, Float, HaltuneWarning, Maximize, Problem, Space, Study, Trial
from haltune.errors import InvalidInput, StudyMismatch
from haltune.log.events import Enqueued, Started
from haltune.policies import AutoBCT, Hyperband, RandomSearch, TruVaR
from haltune.store.memory import MemoryStore
from haltune.study.replay import replay
from haltune.study.view import follow_study

MINE = {"lr": 0.25, "layers": 2, "kernel": "rbf"}
OTHER = {"lr": 0.5, "layers": 4, "kernel": "poly", "degree": 3}
ASKED = RandomSearch()


def begun(study: Study) -> list[dict[str, Any]]:
    return [dict(t.config) for t in study.trials]


def starts(study: Study) -> list[Started]:
    return [e for e in study.events() if isinstance(e, Started)]


def test_what_is_enqueued_is_begun_next_in_its_order_and_says_so():
    study = small_study(ASKED, trials=5)
    train(study.ask())
    assert study.enqueue(OTHER)
    assert study.enqueue(MINE)
    search(study)
    assert begun(study)[1:3] == [OTHER, MINE]
    reasons = [e.reason for e in starts(study)]
    assert [reason.startswith("enqueued by you") for reason in reasons] == [False, True, True, False, False]
    assert reasons[1] == "enqueued by you, in the place of: drawn at random"
    assert "enqueued by you" in study.explain(1)
    assert study.trials[1].proposed == reasons[1]


def test_the_rest_of_the_search_is_drawn_as_without_it():
    plain, mine = search(small_study(ASKED)), small_study(ASKED)
    mine.enqueue(MINE)
    assert begun(search(mine))[1:] == begun(plain)[1:]


def test_a_problem_begins_with_its_own_configurations():
    study = search(small_study(ASKED, problem=replace(problem(), start=[MINE, OTHER])))
    assert begun(study)[:2] == [MINE, OTHER]
    assert len(study.trials) == 5


def test_the_policy_says_how_far_and_on_what_it_trains():
    study = small_study(Hyperband(eta=2, rounds=1))
    study.enqueue(MINE)
    plain, (first, *_) = small_study(Hyperband(eta=2, rounds=1)).ask(), [study.ask()]
    assert first.config == MINE
    assert (first.until, first.resource, first.tags) == (plain.until, plain.resource, plain.tags)
    assert first.until < 6


def test_a_run_that_goes_on_comes_before_it():
    study = Study(PROBLEM, Whims(), budget=Budget(trials=9))
    with study.ask() as trial:
        trial.report(PAUSE)
    study.enqueue({"x": 0.5})
    assert [(t.id, t.attempt) for t in (study.ask(), study.ask())] == [(0, 2), (1, 1)]
    assert study.trials[1].config == {"x": 0.5}


def test_what_was_begun_or_waits_is_not_enqueued_again_unless_told_so():
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


def test_two_workers_begin_it_once_and_enqueue_it_once():
    store = MemoryStore()
    one, two = (small_study(ASKED, store) for _ in range(2))
    assert [one.enqueue(MINE), two.enqueue(MINE), two.enqueue(OTHER)] == [True, False, True]
    assert [worker.ask().config for worker in (two, one)] == [MINE, OTHER]
    assert one.ask().config not in (MINE, OTHER)


class Meanwhile(RandomSearch):
    """While it thinks, another worker does something."""

    does: Any = staticmethod(lambda: None)

    def propose(self, state, history, rng):
        does, type(self).does = type(self).does, staticmethod(lambda: None)
        does()
        return super().propose(state, history, rng)


def test_what_is_enqueued_while_a_worker_decides_comes_before_its_decision():
    store = MemoryStore()
    one, two = (small_study(Meanwhile(), store) for _ in range(2))
    Meanwhile.does = staticmethod(lambda: two.enqueue(MINE))
    assert one.ask().config == MINE


def test_what_another_worker_begins_meanwhile_is_not_begun_twice():
    store = MemoryStore()
    one, two = (small_study(Meanwhile(), store) for _ in range(2))
    one.enqueue(MINE)
    Meanwhile.does = staticmethod(two.ask)
    assert one.ask().config != MINE
    assert begun(one)[0] == MINE


def test_a_value_that_json_has_no_type_for_is_what_it_was(tmp_path: Path):
    space = Space({"kernel": Choice([(3, 3), (5, 5)]), "lr": Float(0.1, 1)})
    mine = {"kernel": (5, 5), "lr": 0.5}
    the_problem = Problem(space, Maximize("acc", (0, 1)), 3, start=[{"kernel": (3, 3), "lr": 0.5}])
    path = str(tmp_path / "search.db")
    small_study(ASKED, path, problem=the_problem).enqueue(mine)
    study = small_study(ASKED, path, problem=the_problem)
    assert [study.ask().config for _ in range(2)] == [{"kernel": (3, 3), "lr": 0.5}, mine]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"lr": 0.1, "kernel": "rbf"}, "'layers' is missing"),
        ({**MINE, "lr": 7.0}, r"'lr' is 7.0, but must lie in \[0.0001, 1.0\]"),
        ({**MINE, "degree": 3}, "active only when"),
        ({**MINE, "depth": 3}, "'depth' is no parameter"),
        (3, "like a dict; got 3"),
    ],
)
def test_what_is_no_configuration_is_refused_wherever_it_is_given(config: Any, says: str):
    study = small_study(ASKED)
    with pytest.raises(InvalidInput, match=rf"enqueue\(config\): .*{says}"):
        study.enqueue(config)
    with pytest.raises(InvalidInput, match=rf"start\[1\]: .*{says}"):
        replace(problem(), start=[MINE, config])
    assert not study.history.queue


def test_what_a_constraint_forbids_is_refused_by_its_name():
    space = Space(dict(SPACE.parameters), constraints=[("shallow", lambda c: c["layers"] < 4)])
    with pytest.raises(InvalidInput, match="the constraint 'shallow' does not allow"):
        small_study(ASKED, problem=problem(space=space)).enqueue(OTHER)


@pytest.mark.parametrize("bad", [lambda c: c["layers"] < 4, lambda c: c["layers"] < 4 or c["none"]])
def test_one_who_lacks_the_constraints_may_enqueue_and_who_trains_holds_it_to_them(tmp_path: Path, bad: Any):
    path = str(tmp_path / "search.db")
    space = Space(dict(SPACE.parameters), constraints=[("shallow", bad)])
    study = small_study(ASKED, path, problem=problem(space=space), trials=2)
    asked = follow_study(path)
    assert [asked.enqueue(study.store, config) for config in (OTHER, MINE, MINE)] == [True, True, False]
    with pytest.raises(InvalidInput, match=r"enqueue\(config\): .*lr"):
        asked.enqueue(study.store, {**MINE, "lr": 7})
    with pytest.warns(HaltuneWarning, match="enqueued configuration .*layers=4.* is not begun: .*'shallow'"):
        assert study.ask().config == MINE
    assert not study.history.queue
    asked.sync()
    assert not asked.history.queue
    assert [d for d in replay(study.problem, ASKED, study.events()) if d[1] != d[2]] == []


def test_what_its_policy_ended_takes_no_more_from_one_who_has_the_log_alone(tmp_path: Path):
    path = str(tmp_path / "search.db")
    study = search(small_study(RandomSearch(trials=1), path))
    with pytest.raises(InvalidInput, match=r"has ended this search for good"):
        follow_study(path).enqueue(study.store, MINE)


@pytest.mark.parametrize("start", [MINE, "MINE", 3])
def test_a_start_that_is_no_list_is_refused(start: Any):
    with pytest.raises(InvalidInput, match="a list of configurations"):
        replace(problem(), start=start)


def test_a_start_is_given_once():
    with pytest.raises(InvalidInput, match=r"start\[2\] is start\[0\] again"):
        replace(problem(), start=[MINE, OTHER, MINE])


def test_a_study_is_told_from_one_that_begins_otherwise_and_older_ones_open():
    store = MemoryStore()
    small_study(ASKED, store).ask().report(0.5)  # a study without a report would make way
    assert "start" not in problem().to_json()
    assert Problem.from_json(problem().to_json()) == problem()
    started = replace(problem(), start=[MINE])
    assert Problem.from_json(started.to_json()) == started
    with pytest.raises(StudyMismatch, match="start: was not there, now"):
        small_study(ASKED, store, problem=started)


def test_what_the_budget_leaves_is_told():
    study = small_study(ASKED, problem=replace(problem(), start=[MINE, OTHER]), trials=1)
    assert search(study).outcome.reason.endswith("1 enqueued configuration not begun")


def test_what_the_policys_end_leaves_is_warned_of_and_nothing_can_be_added():
    study = small_study(RandomSearch(trials=1), problem=replace(problem(), start=[MINE, OTHER]))
    with pytest.warns(HaltuneWarning, match="1 enqueued configuration not begun: all 1 random"):
        search(study)
    assert not study.enqueue(MINE)
    with pytest.raises(InvalidInput, match=r"has ended this search for good.*all 1 random"):
        study.enqueue({**MINE, "lr": 0.75})


def test_the_runs_of_a_mean_keep_their_configuration():
    study = small_study(AutoBCT(gamma=1e-3, repeats=2, min_trainings=40), trials=4)
    study.enqueue(MINE)
    study.enqueue(OTHER)
    assert begun(search(study)) == [MINE, MINE, OTHER, OTHER]


def test_a_grid_learns_from_a_configuration_beside_it_and_never_chooses_it():
    grid = [{"lr": lr, "layers": layers, "kernel": "rbf"} for lr in (0.01, 0.1, 1.0) for layers in (1, 2, 3)]
    policy = TruVaR(grid=grid, initial=2)
    study = small_study(policy, trials=6)
    study.enqueue(MINE)
    search(study)
    assert begun(study)[0] == MINE
    assert all(config in grid for config in begun(study)[1:])
    assert [d for d in replay(study.problem, policy, study.events()) if d[1] != d[2]] == []


def test_a_trial_is_asked_for_in_a_loop_as_always():
    study = small_study(ASKED, problem=replace(problem(), start=[MINE]))
    assert isinstance(trial := study.ask(), Trial)
    assert trial.config == MINE
