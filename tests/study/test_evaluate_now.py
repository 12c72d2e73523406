"""A loop whose evaluation takes long asks whether a decision needs one."""

from __future__ import annotations

import pytest
from worlds import problem

from haltune import Minimize, Problem, Study, Trial
from haltune.errors import InvalidInput
from haltune.log.decisions import Action
from haltune.policies import Hyperband, Ladder, RandomSearch
from haltune.study.session import clocked

SPACE = problem().space


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def trained(study: Study, clock: Clock, seconds: float = 0.0) -> list[int]:
    """The steps at which a trial was evaluated: a step of training takes a second, an evaluation `seconds`."""
    trial, found = study.ask(), []
    assert isinstance(trial, Trial)
    with trial:
        for step in trial.epochs():
            clock.now += 1.0
            if trial.evaluate_now(step):
                found.append(step)
                clock.now += seconds
                if trial.report(0.5, step, validation=seconds).stops:
                    break
    return found


def test_trials_on_rungs_are_evaluated_at_rungs_and_at_the_end() -> None:
    clock = Clock()
    with clocked(clock):
        policy = Ladder(min_trials_per_rung=1, eta=2, first_cut=2)
        study = Study(Problem(SPACE, Minimize("loss"), 50), policy, seed=0, budget="2 trials", verbose=0)
    assert trained(study, clock) in ([1], [1, 3, 9, 27, 50])


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 1000), (25.0, 10), (100.0, 3)])
def test_where_any_report_may_decide_evaluations_keep_to_their_share(seconds: float, most: int) -> None:
    clock = Clock()
    posed = Problem(SPACE, Minimize("loss"), 1000, unit="step", judge_every=1)
    with clocked(clock):
        study = Study(posed, RandomSearch(), budget="1 trial", verbose=0)
    found = trained(study, clock, seconds)
    assert found[-1] == 1000
    assert len(found) <= most + 2
    assert seconds * len(found[1:-1]) <= 0.25 * 1000


def test_a_trial_whose_pause_was_declined_is_judged_again_before_its_end() -> None:
    study = Study(Problem(SPACE, Minimize("loss"), 27), Hyperband(), seed=0, verbose=0)
    trial = study.ask()
    assert isinstance(trial, Trial)
    assert [trial.evaluate_now(epoch) for epoch in (0.5, 1)] == [False, True]
    assert trial.report(0.5, 1).action is Action.PAUSE
    trial.decline_pause()
    assert [trial.evaluate_now(epoch) for epoch in (1.5, 2)] == [False, True]


def test_without_judge_every_a_study_in_steps_cannot_say() -> None:
    study = Study(Problem(SPACE, Minimize("loss"), 100, unit="step"), RandomSearch(), budget="1 trial", verbose=0)
    trial = study.ask()
    assert isinstance(trial, Trial)
    with pytest.raises(InvalidInput, match="judge_every="):
        trial.evaluate_now(10)
