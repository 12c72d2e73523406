"""Requests of users to a running search: end or pause a trial, raise the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paused_studies import pausing_study
from worlds import small_study

from haltune import Budget, Study
from haltune.errors import HaltuneError
from haltune.log.events import Raised, Status
from haltune.policies import BOBOS, Halting, Ladder, OptimalStopping, RandomSearch
from haltune.report import summary
from haltune.store.studies import ask_of, raise_limits
from haltune.study.redecide import redecide, without_reason
from haltune.study.view import read_study


def asks(study: Study, trial: int, wish: str) -> None:
    """Send a request as another process does."""
    study.sync()
    ask_of(study.store, study.name, study.history, trial, wish, f"{wish}, says the user")
    study.sync()


def raises(study: Study, **limits: Any) -> Budget:
    study.sync()
    return raise_limits(study.store, study.name, study.history, limits)


def trained(study: Study) -> None:
    """Until the search is over."""
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                if trial.report(0.5 + trial.id / 100 + epoch / 1000, seconds=1.0).stops:
                    break


def check_replay(study: Study) -> None:
    decisions = list(redecide(study.problem, study.policy, study.events()))
    assert decisions
    assert all(without_reason(was) == without_reason(now) for _, was, now in decisions)


@pytest.mark.parametrize("policy", [Ladder(), Halting(RandomSearch(), OptimalStopping(paths=500))])
def test_a_run_that_is_to_end_stops_at_its_next_report_with_the_reason_and_stays_ended(policy):
    study = small_study(policy, trials=4)
    with study.ask() as trial:
        asks(study, trial.id, "stop")
        verdict = trial.report(0.6, seconds=1.0)
        assert verdict.stops
        assert verdict.reason == "stop, says the user"
        assert not verdict.resumable
    record = study.trials[0]
    assert (record.status, record.epoch) == (Status.STOPPED, 1.0)
    assert "stop, says the user" in study.explain(0)
    trained(study)
    assert study.trials[0].attempt == 1
    assert study.outcome.over
    check_replay(study)


def test_a_trial_that_the_user_pauses_is_saved_offered_to_no_worker_and_continues_later(tmp_path):
    study = small_study(RandomSearch(), trials=2, checkpoints=tmp_path)
    with study.ask() as trial:
        trial.report(0.5, seconds=1.0)
        asks(study, trial.id, "pause")
        verdict = trial.report(0.6, seconds=1.0)
        assert verdict.stops
        assert verdict.resumable
        trial.save(lambda path: path.write_text("state"))
    assert study.trials[0].status is Status.INTERRUPTED
    assert "1 paused by you" in summary(study)
    other = study.ask()
    assert other.id == 1
    asks(study, 0, "continue")
    with other:
        for epoch in range(1, 5):
            other.report(epoch / 10, seconds=1.0)
    again = study.ask()
    assert (again.id, again.attempt, Path(again.checkpoint).read_text()) == (0, 2, "state")
    assert "attempt 1 was paused by you: continues from epoch 2" in study.explain(0)
    with again:
        assert not again.report(0.7, epoch=3, seconds=1.0).stops
    check_replay(study)


@pytest.mark.parametrize(
    ("status", "wish", "message"),
    [
        (Status.COMPLETED, "stop", "trial 0 has ended \\(completed\\), so it cannot stop"),
        (Status.RUNNING, "continue", "trial 0 has no request to withdraw; it is running"),
        (Status.PAUSED, "pause", "trial 0 is paused, so the policy decides whether it continues"),
    ],
)
def test_what_cannot_be_asked_is_answered_in_words(status, wish, message):
    study = small_study(Ladder() if status is Status.PAUSED else RandomSearch(), trials=9)
    trial = study.ask()
    if status is not Status.RUNNING:
        for epoch in trial.epochs():
            if trial.report(0.1 if status is Status.PAUSED else epoch / 10, seconds=1.0).stops:
                break
        trial.finish()
    assert study.trials[0].status is status
    with pytest.raises(HaltuneError, match=message):
        asks(study, 0, wish)
    with pytest.raises(HaltuneError, match="there is no trial 77"):
        asks(study, 77, "stop")


# -- the budget ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [RandomSearch(), BOBOS()])
def test_a_budget_that_is_raised_while_the_search_runs_lets_it_go_further(policy):
    study = small_study(policy, trials=2)
    trial = study.ask()
    told = raises(study, trials=4)
    assert told.trials == 4
    with trial:
        for epoch in trial.epochs():
            if trial.report(epoch / 10, seconds=1.0).stops:
                break
    trained(study)
    assert len(study.trials) == 4
    assert study.outcome.over
    check_replay(study)


def test_who_reads_the_log_alone_knows_the_raised_budget(tmp_path):
    study = small_study(RandomSearch(), trials=2, store=f"sqlite:///{tmp_path}/a.db")
    trained(study)
    assert read_study(tmp_path / "a.db").outcome.over
    raises(study, trials=3)
    assert not read_study(tmp_path / "a.db").outcome.over
    trained(study)
    assert len(study.trials) == 3


def test_who_reads_a_log_without_its_policy_knows_the_raised_budget_too(tmp_path):
    study = pausing_study(f"sqlite:///{tmp_path}/a.db", at=(1,), trials=9, budget="1 trial", verbose=0)
    with study.ask() as trial:
        assert trial.report(0.5, seconds=1.0).stops
    assert "the log lacks the policy" in read_study(tmp_path / "a.db").outcome.reason
    raises(study, trials=2)
    view = read_study(tmp_path / "a.db")
    assert (view.outcome.over, view.outcome.reason, view.idle) == (False, "the search can continue", True)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"trials": 2}, "no limit is raised. The budget is trials 2"),
        ({"trails": 9}, "unknown limit. The limits of this budget are: trials"),
        ({"trials": "many"}, "a positive number"),
    ],
)
def test_limits_that_raise_nothing_are_refused_in_words(limits, message):
    study = small_study(RandomSearch(), trials=2)
    study.ask()
    with pytest.raises(HaltuneError, match=message):
        raises(study, **limits)
    assert not any(isinstance(e, Raised) for e in study.events())
