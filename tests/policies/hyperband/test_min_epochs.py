"""No rung is below the study's min_epochs, in every policy with rungs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import SPACE, small_study

from haltune import Action, Budget, Maximize, Problem
from haltune.log.events import Status
from haltune.policies import Hyperband, Ladder, MultiFidelity

GOES = Action.CONTINUE


def problem(horizon: int, least: int) -> Problem:
    return Problem(SPACE, Maximize("acc", (0, 1)), horizon, min_epochs=least)


@given(horizon=st.integers(1, 300), share=st.floats(0, 1), step=st.integers(2, 5), first=st.integers(1, 9))
def test_rungs_ascend_from_the_minimum_to_the_horizon(horizon: int, share: float, step: int, first: int) -> None:
    least = int(share * horizon)
    ladder = Ladder(step=step, min_resource=min(first, horizon))
    for policy in (ladder, MultiFidelity()):
        rungs = list(policy.rungs(horizon, least))
        assert rungs == sorted(set(rungs))
        assert rungs[-1] == horizon
        assert rungs[0] >= least
    rungs = ladder.rungs(horizon, least)
    assert rungs[0] == max(min(first, horizon), least)
    assert rungs[:-1] == [rungs[0] * step**k for k in range(len(rungs) - 1)]


@pytest.mark.parametrize("horizon", [1, 2, 3, 10, 50])
def test_without_a_minimum_the_default_search_has_the_rungs_that_it_had(horizon: int) -> None:
    known = {1: (1,), 2: (1, 2), 3: (1, 3), 10: (1, 3, 10), 50: (1, 3, 9, 27, 50)}
    assert MultiFidelity().rungs(horizon) == MultiFidelity().rungs(horizon, 1) == known[horizon]


@pytest.mark.parametrize("options", [{"asynchronous": True}, {"asynchronous": "stop"}, {}])
def test_trials_that_seconds_bound_are_compared_after_the_minimum_by_what_they_reached_there(
    options: dict[str, Any],
) -> None:
    """At one second an epoch the first rung is at epoch 1; no trial arrives there before epoch 3."""
    policy = Hyperband(6.0, eta=2, rounds=1, resource="seconds", brackets="most_exploratory", **options)
    study = small_study(policy, problem=problem(6, 3), budget=Budget(trials=8))
    for trial in study:
        with trial:
            for epoch in trial.epochs():  # who is ahead at first is behind from epoch 3 on
                lead = trial.config["lr"] if epoch >= 3 else -trial.config["lr"]
                trial.report(0.5 + lead / 3, seconds=1.0)
    ended = [t for t in study.trials if t.epoch > 3 or t.status is Status.COMPLETED]
    assert ended
    best = max(study.trials, key=lambda t: float(t.config["lr"]))
    assert best in ended
    assert all(t.epoch >= 3 for t in study.trials)
    assert {t.status for t in study.trials} & {Status.PAUSED, Status.STOPPED}
