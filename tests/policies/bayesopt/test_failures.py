"""A failed training counts as the worst: what proposes keeps away from its place, and the scale stays."""

from __future__ import annotations

from typing import Any

import pytest
from virtual import SQUARE

from haltune import Budget, Maximize, Minimize, Problem, Study
from haltune.log.events import Ended, Expired, Status
from haltune.log.policy import fold_over
from haltune.policies import BOBOS, EI, GPUCB, Hyperband, Rollout
from haltune.policies.bayesopt import ImprovementSurrogate
from haltune.policies.costs import full_cost, trained_share


def searched(policy: Any, goal: Any = None, room: float = 0.6, trials: int = 16) -> Study:
    """A search whose trials are the better the larger a is, and have no memory beyond `room`."""
    problem = Problem(SQUARE, goal or Maximize("acc", (0, 1)), 3)
    study = Study(problem, policy, seed=0, budget=Budget(trials=trials), max_failures=100, verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                if epoch == 2 and trial.config["a"] > room:
                    raise MemoryError("no room")
                trial.report(study.problem.goal.sign * (0.2 + 0.8 * trial.config["a"]) * epoch / 3)
            trial.save(lambda path: path.touch())
    return study


@pytest.mark.parametrize(
    "policy",
    [
        GPUCB(),
        EI(),
        BOBOS(),
        pytest.param(Rollout(points=24, paths=8), marks=pytest.mark.slow),
        Hyperband(resume=False, min_resource=3, sampler=GPUCB()),
    ],
)
def test_a_search_keeps_away_from_where_trainings_fail_though_they_were_good_until_then(policy: Any) -> None:
    failed = [t.id for t in searched(policy).trials if t.status is Status.FAILED]
    assert failed
    assert sum(id >= 10 for id in failed) <= 3  # of 6; they were all of them


def test_of_a_metric_without_bounds_as_well() -> None:
    failed = [t.id for t in searched(GPUCB(), Minimize("loss")).trials if t.status is Status.FAILED]
    assert failed
    assert sum(id >= 10 for id in failed) <= 3


def test_the_units_that_results_are_seen_in_are_those_of_what_trained() -> None:
    study = searched(EI(), trials=9)
    ids = tuple(t.id for t in study.trials)
    trained = tuple(t.id for t in study.trials if t.status is Status.COMPLETED)
    assert 1 < len(trained) < len(ids)
    both = [ImprovementSurrogate(10).improvement(study.history, known) for known in (ids, trained)]
    assert both[0] is not None
    assert both[1] is not None
    assert vars(both[0].squash) == vars(both[1].squash)
    assert both[0].best == both[1].best


def test_what_failed_says_nothing_of_what_trainings_cost() -> None:
    study = searched(EI(), trials=9)
    trained = tuple(t.id for t in study.trials if t.status is Status.COMPLETED)
    assert {full_cost(study.history, t.id, "seconds") > 0 for t in study.trials if t.id not in trained} == {False}
    assert trained_share(study.history, tuple(range(9))) == trained_share(study.history, trained)


def test_a_trial_that_was_lost_too_often_has_failed_and_one_that_is_offered_again_has_not() -> None:
    lost = {"at": 0.0, "trial": 4, "attempt": 1, "holder": "w", "last_alive": 0.0}
    assert fold_over((1,), Expired(**lost, status=Status.FAILED)) == (1, 4)  # type: ignore[arg-type]
    assert fold_over((1,), Expired(**lost, status=Status.INTERRUPTED)) == (1,)  # type: ignore[arg-type]
    assert fold_over((1,), Ended(at=0.0, trial=2, attempt=1, status=Status.PAUSED)) == (1,)
