"""What a program gave up is as if it had never been reported: no policy ranks, promotes or learns by it.

A log of a search is given one more attempt: a trial reports a value above all others, is told to continue, and its
program then trains it again from its start. Every later decision must come out as it was recorded without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from worlds import LAWFUL, search, small_study

from haltune import Study
from haltune.log import events as ev
from haltune.log.decisions import Action, Verdict
from haltune.log.events import Event, Status
from haltune.study.redecide import redecide

# the default search and those with an audit or a price plan by what was spent, and what is given up was spent
FREE = ("random", "gpucb", "halving", "hyperband", "asha", "asha-stopping", "ladder", "infinite-hyperband")


def with_an_attempt_given_up(study: Study, trial: int, value: float) -> Iterator[tuple[Event, bool]]:
    """Yield the events of the log, and whether they were there before."""
    events = list(study.events())
    place = next(n for n, e in enumerate(events) if isinstance(e, ev.Started) and e.trial == trial) + 1
    report, start = events[place], events[place - 1]
    assert isinstance(report, ev.Reported)
    assert isinstance(start, ev.Started)
    on = Verdict(Action.CONTINUE, "the best so far", {"rank": 1, "arrived": trial + 1}, 2.0)
    yield from ((e, True) for e in events[:place])
    yield replace(report, value=value, seconds=0.0, verdict=on), False
    yield ev.Ended(at=report.at, trial=trial, attempt=1, status=Status.INTERRUPTED), False
    yield ev.Resumed(
        at=report.at, trial=trial, attempt=2, seen=place, deciding=0.0, worker=start.worker, by_policy=False,
        anew=True, given_up=True, pause_at=start.pause_at, resource=start.resource, tags=start.tags, reason="",
        evidence={},
    ), False  # fmt: skip
    for e in events[place:]:
        changed: dict[str, Any] = {}
        if isinstance(e, ev.AttemptEvent | ev.Resumed) and e.trial == trial:
            changed["attempt"] = e.attempt + 1
        if (seen := getattr(e, "seen", None)) is not None and seen >= place:
            changed["seen"] = seen + 3
        yield replace(e, **changed), True


@pytest.mark.parametrize("trial", [1, 3])
@pytest.mark.parametrize("name", FREE)
def test_every_later_decision_is_that_of_a_search_without_it(name: str, trial: int) -> None:
    study = search(small_study(LAWFUL[name](), trials=6))
    best = max(float(t.values.max()) for t in study.trials)
    log, was_there = zip(*with_an_attempt_given_up(study, trial, best + 1e-3), strict=True)
    decisions = [d for d in redecide(study.problem, LAWFUL[name](), log) if was_there[d[0]]]
    assert len(decisions) >= 5
    assert [d for d in decisions if d[1] != d[2]] == []
