"""A budget of trials bounds what begins: what began and deserves it goes on, and something is trained in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from laboratory import Lab, Worker, differences, problem, rising, rough

from haltune import Budget, Finish, Study
from haltune.display import plural
from haltune.errors import StudyMismatch
from haltune.log.events import Budgeted, Created, Finished, Reported, Started, Status
from haltune.policies import Halting, Hyperband, InfiniteHyperband, Ladder, SuccessiveHalving
from haltune.policies.bobos.optimal_stopping import OptimalStopping
from haltune.store.memory import MemoryStore

PAUSING: dict[str, Callable[[], Any]] = {
    "ladder": Ladder,
    "halving": SuccessiveHalving,
    "halving of many": lambda: SuccessiveHalving(81, eta=2),
    "hyperband": Hyperband,
    "hyperband, once": lambda: Hyperband(rounds=1),
    "growing": lambda: Hyperband(schedule="growing"),
    "promote": lambda: SuccessiveHalving(asynchronous=True),
    "hyperband, promote": lambda: Hyperband(asynchronous=True),
    "stop": lambda: SuccessiveHalving(asynchronous="stop"),
    "halting": lambda: Halting(SuccessiveHalving(), OptimalStopping(paths=500)),
}
RETRAINING: dict[str, Callable[[], Any]] = {
    "halving": lambda: SuccessiveHalving(resume=False),
    "hyperband": lambda: Hyperband(resume=False),
    "samples": lambda: SuccessiveHalving(resource="samples", min_resource=100, max_resource=2700),
}


def begun(lab: Lab) -> list[Started]:
    """The starts of what was new; what wins and trains anew is not."""
    return [e for e in lab.log if isinstance(e, Started) and "of" not in e.tags]


def full(lab: Lab) -> list[int]:
    return [t.id for t in lab.study.trials if t.epoch == 27]


@pytest.mark.parametrize(
    ("trials", "workers"),
    [(1, 1), (2, 3), (5, 4), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(3, 1), (20, 1)]), (20, 4)],
)
@pytest.mark.parametrize("form", list(PAUSING))
def test_at_least_one_of_those_that_began_is_trained_in_full_and_the_outcome_says_how_many(
    form: str, trials: int, workers: int
) -> None:
    lab = Lab(PAUSING[form], rising, epochs=27, workers=workers, budget=Budget(trials=trials)).run()
    assert len(begun(lab)) == len(lab.study.trials) == trials
    assert len(full(lab)) >= 1
    assert trials < 20 or len(full(lab)) < 20
    count = plural(trials, "trial")
    assert lab.study.outcome.reason == (
        f"the budget of {count} is spent: {count} begun, {len(full(lab))} trained in full"
    )
    assert all(a.reason == lab.study.outcome.reason for a in lab.answers if isinstance(a, Finish))
    assert differences(lab) == []


@pytest.mark.parametrize("form", ["ladder", "halving", "promote", "halving of many"])
@pytest.mark.parametrize("trials", [2, 5, 20])
def test_who_is_trained_in_full_is_the_best_of_those_that_began(form: str, trials: int) -> None:
    lab = Lab(PAUSING[form], rising, epochs=27, workers=3, budget=Budget(trials=trials)).run()
    first = {e.trial: e.value for e in lab.reports() if e.epoch == 1}
    assert max(first, key=lambda id: first[id]) in full(lab)
    if form == "ladder":  # 20 // 6 at 3 epochs, one of them at 9, and it at 27
        assert len(full(lab)) == 1
        assert sum(t.epoch >= 3 for t in lab.study.trials) == max(1, trials // 6)


@pytest.mark.parametrize("trials", [1, 3, 20, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", list(RETRAINING))
def test_what_wins_trains_anew_though_nothing_new_may_begin(form: str, trials: int) -> None:
    value = lambda trial, epoch: -((trial * 7) % 11) / 11  # noqa: E731
    lab = Lab(RETRAINING[form], value, epochs=27, workers=2, budget=Budget(trials=trials)).run()
    assert len(begun(lab)) <= trials
    assert len(lab.study.trials) >= trials
    last = [t for t in lab.study.trials if t.resource in (27, 2700)]
    assert last
    assert differences(lab) == []


@pytest.mark.parametrize("form", list(PAUSING))
def test_a_larger_number_takes_the_search_up_again(form: str) -> None:
    lab = Lab(PAUSING[form], rising, epochs=27, workers=2, budget=Budget(trials=5)).run()
    for trials in (11, 30):
        lab.budget = Budget(trials=trials)
        lab.workers = [Worker(lab), Worker(lab)]
        assert not lab.study.outcome.over
        lab.run()
        assert len(lab.study.trials) == trials
        assert full(lab)
    assert differences(lab) == []


def test_a_bracket_that_closed_early_runs_again_when_more_may_begin() -> None:
    make = lambda: SuccessiveHalving(9, rounds=1)  # noqa: E731
    lab = Lab(make, rising, epochs=9, budget=Budget(trials=4)).run()
    lab.budget = Budget(trials=100)
    lab.workers = [Worker(lab)]
    lab.run()
    assert [t.tags["bracket"] for t in lab.study.trials] == [0] * 4 + [1] * 9
    assert lab.answers[-1] == Finish("all 2 brackets are complete")
    assert differences(lab) == []


@pytest.mark.parametrize(
    "asynchronous", [Ladder(2, 2, min_trials_per_rung=9), SuccessiveHalving(9, eta=2, asynchronous=True)]
)
def test_when_all_that_went_on_fail_the_best_that_is_left_is_trained_in_full(asynchronous: Any) -> None:
    lab = Lab(lambda: asynchronous, rising, epochs=27, budget=Budget(trials=9))
    worker, failed = lab.workers[0], 0
    while failed < 4:  # 9 // 2 go on
        worker.step()
        if worker.trial is not None and worker.trial.attempt > 1:
            worker.fail()
            failed += 1
    lab.run()
    left = [t for t in lab.study.trials if t.status is not Status.FAILED]
    assert full(lab) == [max(left, key=lambda t: t.values[0]).id]
    assert differences(lab) == []


def test_other_limits_still_hold_and_the_outcome_says_that_nothing_was_trained_in_full() -> None:
    lab = Lab(Ladder, rising, epochs=27, budget=Budget(trials=20, epochs=24)).run()
    assert lab.study.spent.epochs == 24
    assert lab.study.outcome.reason == ("the budget of 24 epochs is spent: 20 trials begun, none trained in full")


def test_workers_with_different_budgets_do_not_take_turns_in_saying_so() -> None:
    lab = Lab(Ladder, rough(3), epochs=9, workers=1, budget=Budget(trials=5))
    lab.workers[0].step()
    lab.budget = Budget(trials=12)
    lab.workers.append(Worker(lab))
    lab.run()
    told = [e.budget["trials"] for e in lab.log if isinstance(e, Budgeted)]
    assert told == [5, 12]
    assert len(lab.study.trials) == 12


def test_infinite_hyperband_closes_its_bracket_and_does_not_speak_of_full_trainings() -> None:
    lab = Lab(InfiniteHyperband, rising, epochs=None, budget=Budget(trials=7)).run()
    assert lab.study.outcome.reason == "the budget of 7 trials is spent: 7 trials begun"


# -- rounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("form", [Hyperband, SuccessiveHalving])
def test_brackets_repeat_until_the_budget_ends_and_run_once_without_one(form: Any, asynchronous: bool) -> None:
    make = lambda: form(asynchronous=asynchronous)  # noqa: E731
    once = Lab(make, rising, epochs=9).run()
    size = sum(b.rungs[0].n for b in make().table(9).brackets)
    assert len(once.study.trials) == size
    assert isinstance(once.log[-1], Finished)
    many = Lab(make, rising, epochs=9, budget=Budget(epochs=200)).run()
    assert len(many.study.trials) > 2 * size
    assert "epochs is spent" in many.study.outcome.reason
    for lab in (once, many):
        assert differences(lab) == []
    once.budget = Budget(epochs=200)  # and then a budget is given
    once.workers = [Worker(once)]
    once.run()
    assert len(once.study.trials) == len(many.study.trials)
    assert differences(once) == []


@pytest.mark.parametrize("form", [Hyperband, SuccessiveHalving])
def test_rounds_hold_under_any_budget(form: Any) -> None:
    lab = Lab(lambda: form(rounds=2), rising, epochs=9, budget=Budget(epochs=10**6)).run()
    size = sum(b.rungs[0].n for b in form().table(9).brackets)
    assert len(lab.study.trials) == 2 * size
    assert isinstance(lab.log[-1], Finished)


def test_a_budget_that_is_taken_away_lets_the_round_end() -> None:
    lab = Lab(Hyperband, rising, epochs=9, budget=Budget(trials=12)).run()
    lab.budget = None
    lab.workers = [Worker(lab)]
    lab.run()
    assert isinstance(lab.log[-1], Finished)
    assert [t.tags["bracket"] for t in lab.study.trials] == [0] * 9 + [1] * 3 + [2] * 3


@pytest.mark.parametrize("make", [Hyperband, SuccessiveHalving, lambda: Halting(Hyperband())])
def test_a_log_of_the_time_when_one_round_was_what_nothing_given_meant_is_taken_up(make: Any) -> None:
    policy = make()
    old = Lab(make, rising, epochs=9)
    created = old.log[0]
    assert isinstance(created, Created)
    spec = {**policy.spec.get("inner", policy.spec), "rounds": 1}
    spec = {**policy.spec, "inner": spec} if "inner" in policy.spec else spec
    store = MemoryStore()
    store.create("study", replace(created, policy=spec))
    study = Study(problem(9), make(), store, budget=Budget(epochs=200))
    for trial in study:
        for epoch in trial.epochs():
            trial.report(rising(trial.id, epoch), seconds=1)
    assert sum(isinstance(e, Reported) for e in study.events()) >= 200
    with pytest.raises(StudyMismatch):
        Study(problem(9), Hyperband(rounds=2), store)
