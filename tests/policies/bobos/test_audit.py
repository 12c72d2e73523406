"""The audit: a declared share of the trials continues where the rule would stop it, with one message."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from rising import HORIZON, SOLVER, Pausing, curve
from scipy.stats import binom
from worlds import problem, search, small_study, train

from examples import quickly
from haltune import Action, Budget, Study, Trial
from haltune.log.decisions import AUDIT
from haltune.log.events import Checkpointed, Reported, Started, Status
from haltune.policies import BOBOS, Halting, Hyperband, OptimalStopping, RandomSearch
from haltune.store.memory import MemoryStore

ENDS = (0.9, 0.5, 0.3, 0.92, 0.2)  # of trial 0, 1, ...: 1, 2 and 4 lose


def ends_as_told(study: Study) -> Study:
    """Train the trials in turn to ENDS."""
    for trial in study:
        train(trial, lambda _, epoch, end=ENDS[trial.id]: curve(end, epoch))  # type: ignore[misc]
    return study


def of_five(policy: Any, **options: Any) -> Study:
    return small_study(policy, problem=problem(epochs=HORIZON), trials=5, **options)


@cache
def all_audited() -> Study:
    """Return five trials that are all audited; read only."""
    return ends_as_told(of_five(Halting(RandomSearch(), SOLVER, audit=1.0)))


def judged(study: Study, trial: int) -> list[Reported]:
    return [e for e in study.events() if isinstance(e, Reported) and e.trial == trial]


def marked(study: Study, trial: int) -> list[Reported]:
    """Return the reports of a trial whose verdict has an audit."""
    return [e for e in judged(study, trial) if AUDIT in e.verdict.evidence]


def declared(study: Study) -> list[int]:
    return [e.trial for e in study.events() if isinstance(e, Started) and AUDIT in e.evidence]


def test_runs_are_drawn_one_by_one_from_the_seed_and_declared_where_they_start() -> None:
    def audited(seed: int) -> tuple[Study, list[int]]:
        policy = Halting(RandomSearch(), audit=0.5)
        study = small_study(policy, problem=problem(epochs=1), trials=60, seed=seed)
        return study, declared(search(study, lambda c, e: 0.5))

    study, drawn = audited(1)
    assert drawn == audited(1)[1] != audited(2)[1]
    assert binom.ppf(1e-6, 60, 0.5) <= len(drawn) <= binom.ppf(1 - 1e-6, 60, 0.5)
    for start in (e for e in study.events() if isinstance(e, Started)):
        assert ("audit of 50% of the trials" in start.reason) == (start.trial in drawn)
        assert start.evidence.get(AUDIT, 0.5) == 0.5


POLICIES = {
    "halting": lambda audit: Halting(RandomSearch(), SOLVER, audit=audit),
    "halting-kappa": lambda audit: Halting(RandomSearch(), SOLVER, kappa=2.0, audit=audit),
    "bobos": lambda audit: BOBOS(initial=6, stopping=SOLVER, audit=audit),  # the same designs for all observations
}


@pytest.mark.parametrize("name", quickly(POLICIES, "bobos"))
def test_the_would_be_stop_is_the_stop_that_would_have_been(name: str) -> None:
    plain, audited = (ends_as_told(of_five(POLICIES[name](share))) for share in (0.0, 1.0))
    assert [t.status for t in audited.trials] == [Status.COMPLETED] * 5
    stopped = [t.id for t in plain.trials if t.status is Status.STOPPED]
    assert 1 in stopped  # later ones have reference curves
    would, stop = marked(audited, 1)[0], judged(plain, 1)[-1]
    assert would.epoch == stop.epoch
    assert would.verdict.action is Action.CONTINUE
    assert would.verdict.evidence == {**stop.verdict.evidence, AUDIT: stop.epoch}
    expected = f"audit: would stop here, {stop.verdict.reason}; continues to measure wrong stops"
    assert would.verdict.reason == expected


def test_after_its_would_be_stop_a_run_is_not_judged_again_and_says_why() -> None:
    study = all_audited()
    first, *later = marked(study, 2)
    assert [e.epoch for e in later] == [float(n) for n in range(int(first.epoch) + 1, HORIZON)]
    for e in later:
        assert e.verdict.evidence == {AUDIT: first.epoch}
        assert f"would have been stopped at epoch {first.epoch:g}" in e.verdict.reason


# policies inside and around


def test_a_pause_of_the_policy_inside_stands_and_the_rule_is_not_asked_again() -> None:
    policy = Halting(Pausing(), OptimalStopping(paths=4000, first=3), audit=1.0)
    study = Study(problem(epochs=12), policy, seed=3, budget=Budget(epochs=100))
    for _ in range(8):
        trial = study.ask()
        if not isinstance(trial, Trial):
            break
        if trial.attempt == 1:
            trial.checkpointed("nowhere") if trial.epoch else None
        else:
            trial.epoch = 3.0  # as if a checkpoint had been loaded
            saved = Checkpointed(at=0.0, trial=trial.id, attempt=1, epoch=3.0, path="state")
            study.history._trials[trial.id].saved = saved
        with trial:
            for epoch in trial.epochs():
                trial.report(curve((0.9, 0.15, 0.88, 0.2)[trial.id], epoch), epoch=epoch)
    first, *later = marked(study, 1)
    assert (first.epoch, first.attempt, first.verdict.action) == (3.0, 1, Action.PAUSE)
    assert first.verdict.reason.startswith("rung 3; audit: would stop here, P(beats")
    assert first.verdict.evidence["p_win"] <= first.verdict.evidence["bound"]
    assert later
    assert all(e.verdict.evidence == {AUDIT: 3.0} and e.attempt == 2 for e in later)
    assert [t.status for t in study.trials] == [Status.COMPLETED] * 4


def test_a_pause_by_hyperband_is_no_stop_of_the_rule() -> None:
    policy = Halting(Hyperband(eta=2, rounds=1), OptimalStopping(paths=4000, first=3), audit=1.0)
    study = search(small_study(policy, problem=problem(epochs=12), trials=30))
    told = study.audit()
    by = [str(t.verdict and t.verdict.reason) for t in study.trials if t.status is Status.STOPPED]
    assert all(re.match(r"\d+(st|nd|rd|th) of \d+ after", reason) for reason in by)  # Hyperband's own
    assert study.history.paused > 0
    assert told.audited == len(study.trials)
    assert 0 < told.unknown == sum(not study.trials[run.trial].complete for run in told.runs)
    assert told.saved == 0
    assert told.stops == told.unknown + told.of_stops.of


# resuming


def test_a_run_that_is_offered_again_keeps_its_first_would_be_stop() -> None:
    store = MemoryStore()
    study = of_five(Halting(RandomSearch(), SOLVER, audit=1.0), store=store)
    train(study.ask(), lambda _, epoch: curve(0.9, epoch))  # type: ignore[arg-type]
    trial = study.ask()
    assert isinstance(trial, Trial)
    for epoch in range(1, 16):
        trial.report(curve(0.3, epoch))
    trial.interrupt()
    again = of_five(Halting(RandomSearch(), SOLVER, audit=1.0), store=store, seed=7)
    for trial in again:
        train(trial, lambda _, epoch, end=ENDS[trial.id]: curve(end, epoch))  # type: ignore[misc]
    first, *later = marked(again, 1)
    assert first.attempt == 1
    assert [e.epoch for e in later if e.attempt == 2] == [float(n) for n in range(1, HORIZON)]
    assert all(e.verdict.evidence == {AUDIT: first.epoch} for e in later)
    assert again.audit().cost == sum(HORIZON - r.epoch for r in again.audit().runs) + 15  # it started again


# options
