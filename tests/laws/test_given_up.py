"""What a program gave up is as if it had never been reported: no policy ranks, promotes or learns by it.

A log of a search is given one more attempt: a trial reports values above all others, is told to continue, and its
program then trains it again from its start. Later decisions must come out as without it. A verdict stands once it was
given, and the epochs were spent: where a decision depends on these, it must not depend on the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from worlds import EPOCHS, LAWFUL, SPACE, search, small_study

from haltune import Maximize, Problem, Study
from haltune.log import events as ev
from haltune.log.decisions import AUDIT, Action, Verdict
from haltune.log.events import Event, Status
from haltune.log.policy import Fold
from haltune.study.explain import audit
from haltune.study.redecide import redecide

# the default search and those with an audit or a price plan by what was spent, and what is given up was spent
FREE = ("random", "gpucb", "halving", "hyperband", "asha", "asha-stopping", "ladder", "infinite-hyperband")
QUICK = ("halving", "hyperband", "asha", "multifidelity", "halting-audit", "halting-ladder")


def with_an_attempt_given_up(
    study: Study, trial: int, value: float, epochs: int = 1, **evidence: float
) -> Iterator[tuple[Event, bool]]:
    """Yield the events of the log, and whether they were there before. evidence: of the verdicts on the attempt."""
    events = list(study.events())
    place = next(n for n, e in enumerate(events) if isinstance(e, ev.Started) and e.trial == trial) + 1
    report, start = events[place], events[place - 1]
    assert isinstance(report, ev.Reported)
    assert isinstance(start, ev.Started)
    yield from ((e, True) for e in events[:place])
    for n in range(1, epochs + 1):
        on = Verdict(
            Action.CONTINUE, "the best so far", {"rank": 1, "arrived": trial + 1, **evidence}, min(n + 1.0, 6.0)
        )
        yield replace(report, epoch=float(n), value=value, seconds=0.0, seen=place + n - 1, verdict=on), False
    yield ev.Ended(at=report.at, trial=trial, attempt=1, status=Status.INTERRUPTED), False
    yield ev.Resumed(
        at=report.at, trial=trial, attempt=2, seen=place + epochs - 1, deciding=0.0, worker=start.worker,
        by_policy=False, anew=True, given_up=True, pause_at=start.pause_at, resource=start.resource, tags=start.tags,
        reason="", evidence={},
    ), False  # fmt: skip
    for e in events[place:]:
        changed: dict[str, Any] = {}
        if isinstance(e, ev.AttemptEvent | ev.Resumed) and e.trial == trial:
            changed["attempt"] = e.attempt + 1
        if (seen := getattr(e, "seen", None)) is not None and seen >= place:
            changed["seen"] = seen + epochs + 2
        yield replace(e, **changed), True


def decisions(study: Study, name: str, trial: int, *given_up: Any, **evidence: float) -> list[tuple[int, Any, Any]]:
    """Return the decisions that were there before, and how they come out."""
    log, was_there = zip(*with_an_attempt_given_up(study, trial, *given_up, **evidence), strict=True)
    return [d for d in redecide(study.problem, LAWFUL[name](), log) if was_there[d[0]]]


def searched(name: str, **options: Any) -> tuple[Study, float]:
    """Return a search and its largest value."""
    study = search(small_study(LAWFUL[name](), trials=6, **options))
    return study, max(float(t.values.max()) for t in study.trials)


# of a synchronous bracket these trials are the last to arrive: a rung that they completed stays complete
COMPLETE = {("hyperband", 3), ("infinite-hyperband", 1)}


@pytest.mark.parametrize(("name", "trial"), [(n, t) for n in FREE for t in (1, 3) if (n, t) not in COMPLETE])
def test_every_later_decision_is_that_of_a_search_without_it(name: str, trial: int) -> None:
    study, best = searched(name)
    found = decisions(study, name, trial, best + 1e-3)
    assert len(found) >= 5
    assert [d for d in found if d[1] != d[2]] == []


@pytest.mark.parametrize("epochs", [1, 6])
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LAWFUL]
)
def test_no_later_decision_depends_on_its_values(name: str, epochs: int) -> None:
    study, best = searched(name)
    little, much = ([d[2] for d in decisions(study, name, 1, best + by, epochs)] for by in (1e-3, 1.0))
    assert len(little) >= 5
    assert [pair for pair in zip(little, much, strict=True) if pair[0] != pair[1]] == []


def test_an_audited_trial_that_would_have_been_stopped_is_judged_again() -> None:
    study, best = searched("halting-audit")
    trial = next(e.trial for e in study.events() if isinstance(e, ev.Started) and AUDIT in e.evidence)
    without, would_stop = (
        [d[2] for d in decisions(study, "halting-audit", trial, best, 2, **more)] for more in ({}, {AUDIT: 2.0})
    )
    assert without == would_stop
    log = [e for e, _ in with_an_attempt_given_up(study, trial, best, 2, **{AUDIT: 2.0})]
    found = audit(folded(study, "halting-audit", log).history, log, 0.05)
    assert replace(found, cost=0.0) == replace(study.audit(0.05), cost=0.0)  # what was given up was trained


@pytest.mark.parametrize("of", ["last", "best"])
def test_the_default_search_has_the_best_value_of_a_search_without_it(of: str) -> None:
    study, best = searched("multifidelity", problem=Problem(SPACE, Maximize("acc", of=of), EPOCHS))
    without = folded(study, "multifidelity", study.events())
    log = [event for event, _ in with_an_attempt_given_up(study, 1, best + 1.0, EPOCHS)]
    found = folded(study, "multifidelity", log)
    assert found.state.rows.best == without.state.rows.best == study.best.value
    assert found.state.rows.table.height.tolist() == without.state.rows.table.height.tolist()
    assert found.history.learnt_scale() == without.history.learnt_scale()


def folded(study: Study, name: str, log: Iterable[Event]) -> Fold:
    """Return what a policy knows after a log."""
    found = Fold(study.problem, LAWFUL[name]())
    for event in log:
        found.take(event)
    return found
