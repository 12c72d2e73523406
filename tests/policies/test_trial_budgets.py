"""A budget of trials limits how many start: started trials may be promoted, and at least one is trained in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from laboratory import Lab, Worker, differences, rising

from examples import quickly
from haltune import Budget, Finish
from haltune.display import plural
from haltune.log.events import Finished, Started, Status
from haltune.policies import Halting, Hyperband, Ladder, SuccessiveHalving
from haltune.policies.bobos.optimal_stopping import OptimalStopping

PAUSING: dict[str, Callable[[], Any]] = {
    "ladder": Ladder,
    "halving": SuccessiveHalving,
    "halving of many": lambda: SuccessiveHalving(81, eta=2),
    "hyperband": Hyperband,
    "promote": lambda: SuccessiveHalving(asynchronous=True),
    "stop": lambda: SuccessiveHalving(asynchronous="stop"),
    "halting": lambda: Halting(SuccessiveHalving(), OptimalStopping(paths=500)),
}


def begun(lab: Lab) -> list[Started]:
    """Return the starts of new trials, without retrained winners."""
    return [e for e in lab.log if isinstance(e, Started) and "of" not in e.tags]


def full(lab: Lab) -> list[int]:
    return [t.id for t in lab.study.trials if t.epoch == 27]


@pytest.mark.parametrize(("trials", "workers"), [(2, 3), pytest.param(20, 4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", list(PAUSING))
def test_the_best_of_those_that_started_is_trained_in_full_and_a_larger_number_continues(
    form: str, trials: int, workers: int
) -> None:
    lab = Lab(PAUSING[form], rising, epochs=27, workers=workers, budget=Budget(trials=trials)).run()
    assert len(begun(lab)) == len(lab.study.trials) == trials
    assert len(full(lab)) >= 1
    assert trials < 20 or len(full(lab)) < 20
    count = plural(trials, "trial")
    assert lab.study.outcome.reason == (
        f"the budget of {count} is spent: {count} started, {len(full(lab))} trained in full"
    )
    assert all(a.reason == lab.study.outcome.reason for a in lab.answers if isinstance(a, Finish))
    if form in ("ladder", "halving", "promote", "halving of many"):
        first = {e.trial: e.value for e in lab.reports() if e.epoch == 1}
        assert max(first, key=lambda id: first[id]) in full(lab)
    lab.budget = Budget(trials=trials + 6)
    lab.workers = [Worker(lab), Worker(lab)]
    assert not lab.study.outcome.over
    lab.run()
    assert len(lab.study.trials) == trials + 6
    assert differences(lab) == []


def test_a_bracket_that_closed_early_runs_again_when_more_may_start() -> None:
    make = lambda: SuccessiveHalving(9, rounds=1)  # noqa: E731
    lab = Lab(make, rising, epochs=9, budget=Budget(trials=4)).run()
    lab.budget = Budget(trials=100)
    lab.workers = [Worker(lab)]
    lab.run()
    assert [t.tags["bracket"] for t in lab.study.trials] == [0] * 4 + [1] * 9
    assert lab.answers[-1] == Finish("all 2 brackets are complete")
    assert differences(lab) == []


@pytest.mark.parametrize("form", quickly([n for n in PAUSING if n != "halving of many"], "hyperband", "ladder", "stop"))
def test_a_budget_that_was_lowered_to_the_trials_that_wait_at_a_rung_and_raised_again_loses_nothing(form: str) -> None:
    lab = Lab(PAUSING[form], rising, epochs=27, budget=Budget(trials=60))
    while len(begun(lab)) < 4 or lab.study.history.running:
        lab.workers[0].step()
    for trials in (4, 30):
        lab.budget = Budget(trials=trials)
        lab.workers = [Worker(lab)]
        lab.run()
        assert len(begun(lab)) == trials
    assert differences(lab) == []


def test_a_bracket_cut_to_paused_trials_by_a_lower_budget_runs_again_when_more_may_start() -> None:
    make = lambda: SuccessiveHalving(9, rounds=1)  # noqa: E731
    lab = Lab(make, rising, epochs=9, budget=Budget(trials=30))
    while len(begun(lab)) < 4 or lab.study.history.running:
        lab.workers[0].step()
    for trials in (4, 30):
        lab.budget = Budget(trials=trials)
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
    while failed < 4:  # 9 // 2 continue
        worker.step()
        if worker.trial is not None and worker.trial.attempt > 1:
            worker.fail()
            failed += 1
    lab.run()
    left = [t for t in lab.study.trials if t.status is not Status.FAILED]
    assert full(lab) == [max(left, key=lambda t: t.values[0]).id]
    assert differences(lab) == []


# -- rounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("form", [SuccessiveHalving, pytest.param(Hyperband, marks=pytest.mark.slow)])
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
