"""No rung is below the study's min_epochs, in every policy with rungs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import SPACE, search, small_study

from haltune import Action, Budget, Maximize, Problem, Verdict, load_study
from haltune.log.events import Status
from haltune.policies import Halting, Hyperband, Ladder, MultiFidelity, OptimalStopping, Resume, Start
from haltune.store.memory import MemoryStore

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


# the names that options had


@pytest.mark.parametrize(
    ("make", "same", "said"),
    [
        (lambda: Ladder(patience=3), Ladder(min_trials_per_rung=3), "min_trials_per_rung=3"),  # type: ignore[call-arg]
        (lambda: Ladder(min_epochs=2), Ladder(min_resource=2), r"Study\(\.\.\., min_epochs="),  # type: ignore[call-arg]
        (lambda: MultiFidelity(patience=3), MultiFidelity(min_trials_per_rung=3), "min_trials_per_rung=3"),  # type: ignore[call-arg]
        (lambda: OptimalStopping(beside=False), OptimalStopping(reference_curves=False), "reference_curves=False"),  # type: ignore[call-arg]
        (lambda: Start({}, until=3.0), Start({}, 3.0), r"pause_at=3\.0"),  # type: ignore[call-arg]
        (lambda: Resume(1, until=3.0), Resume(1, 3.0), r"pause_at=3\.0"),  # type: ignore[call-arg]
        (lambda: Verdict(GOES, "r", until=3.0), Verdict(GOES, "r", pause_at=3.0), r"pause_at=3\.0"),  # type: ignore[call-arg]
    ],
)
def test_the_old_name_of_an_option_works_and_names_the_new_one(make: Any, same: Any, said: str) -> None:
    with pytest.warns(UserWarning, match=said):
        assert make() == same


def test_the_old_name_of_an_attribute_is_read_and_names_the_new_one() -> None:
    study = small_study(Hyperband(9, eta=3, rounds=1), problem=problem(9, 1))
    trial = study.ask()
    started = list(study.events())[-1]
    assert trial.pause_at == 1.0
    for part in (trial, study.history.trial(0), started, Verdict(GOES, "r", pause_at=1.0)):
        with pytest.warns(UserWarning, match=f"{type(part).__name__}.until is now {type(part).__name__}.pause_at"):
            assert part.until == 1.0  # type: ignore[union-attr]
    with pytest.raises(AttributeError):
        study.history.until  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize(
    ("policy", "old"),
    [
        (Ladder(min_trials_per_rung=2), {"min_trials_per_rung": "patience", "min_resource": "min_epochs"}),
        (MultiFidelity(4, min_trials_per_rung=2), {"min_trials_per_rung": "patience"}),
        (Halting(Ladder(), OptimalStopping(reference_curves=False)), {"reference_curves": "beside"}),
    ],
)
def test_a_log_with_the_old_names_opens_as_the_same_policy_without_a_warning(
    policy: Any, old: dict[str, str], around: bool, recwarn: pytest.WarningsRecorder
) -> None:
    asked = Halting(policy) if around else policy
    events = list(search(small_study(asked, trials=3)).events())
    first: Any = events[0]
    spec = {old.get(name, name): value for name, value in policy.spec.items()}
    if "stopping" in spec:
        spec["stopping"] = {old.get(name, name): value for name, value in spec["stopping"].items()}
    before = MemoryStore()
    before.create("study", replace(first, policy={**asked.spec, "inner": spec} if around else spec))
    before.append("study", events[1:], seen=1, about=None)
    assert load_study(before, budget=Budget(trials=3)).policy == asked
    assert len(search(small_study(asked, before, trials=4)).trials) == 4
    assert not [w for w in recwarn if "is now" in str(w.message)]
