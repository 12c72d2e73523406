"""Make the decisions of a log again, with the log's own policy, and compare.

The log is the only state, so its policy must decide everything as it was recorded. A difference shows a changed policy,
a changed library, or a defect. `haltune.report.replay` asks what another policy would have decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from haltune.log import events as ev
from haltune.log.decisions import ASKED, CUT, Action, Resume, Start
from haltune.log.events import Reported, plain, verdict_to_json
from haltune.log.policy import Fold, Policy
from haltune.log.problem import Problem
from haltune.policies.from_spec import suited

from .judging import judge
from .proposing import propose


def redecide(problem: Problem, policy: Policy[Any], log: Iterable[ev.Event]) -> Iterator[tuple[int, Any, Any]]:
    """Yield (position, recorded, found) for each decision of the policy, both in comparable JSON.

    They come in the order of the log positions that the decisions had seen: workers that decide at the same time append
    in another order.
    """
    events = list(log)
    prefix = Fold(problem, suited(policy, problem))
    decisions = [(n, made) for n, e in enumerate(events) if (made := _recorded(e, problem)) is not None]
    for position, recorded in sorted(decisions, key=lambda d: (events[d[0]].seen, d[0])):  # type: ignore[attr-defined]
        for event in events[prefix.history.position : events[position].seen]:  # type: ignore[attr-defined]
            prefix.take(event)
        yield position, recorded, _found(prefix, events[position])


def without_reason(answer: Any) -> Any:
    """Return a decision and its numbers without the reason, whose wording may differ between versions."""
    if isinstance(answer, Mapping):
        return {name: value for name, value in answer.items() if name != "reason"}
    return answer[:-1]


def _recorded(event: ev.Event, problem: Problem) -> Any:
    """Return the policy's answer that an event records; None if the policy did not decide it."""
    if isinstance(event, ev.Started):
        return ["start", event.config, event.pause_at, event.resource, event.tags, event.reason]
    if isinstance(event, ev.Resumed) and event.by_policy:
        return ["resume", event.trial, event.pause_at, event.resource, event.tags, event.reason]
    if isinstance(event, ev.Finished):
        return ["finish", event.reason]
    if isinstance(event, Reported):
        verdict = event.verdict
        judged = verdict.action is not Action.UNJUDGED and not {CUT, ASKED} & verdict.evidence.keys()
        full = problem.max_epochs is not None and event.epoch >= problem.max_epochs
        return verdict_to_json(verdict) if judged and not full else None
    return None


def _found(prefix: Fold, event: ev.Event) -> Any:
    """Return the policy's answer after the events of `prefix`, in the form of `_recorded`."""
    history = prefix.history
    if isinstance(event, Reported):
        return verdict_to_json(judge(prefix, event.trial, event))
    move = propose(prefix)
    if not isinstance(move, Start | Resume):
        return [type(move).__name__.lower(), move.reason]
    pause_at = history.problem.max_epochs if move.pause_at is None else move.pause_at
    rest = [pause_at, move.resource, plain(move.tags), move.reason]
    if isinstance(move, Start):
        return ["start", plain(history.problem.space.canonical(move.config)), *rest]
    return ["resume", move.trial, *rest]
