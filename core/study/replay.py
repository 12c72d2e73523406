"""Replay: put the questions of a log to a policy again, and compare the answers.

Since the log is the only state, every decision must come out as it was recorded, the reason last. What differs
betrays a changed version of the policy, another library underneath, or a defect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from haltune.log import events as ev
from haltune.log.decisions import ASKED, CUT, Action, Resume, Start
from haltune.log.events import plain, verdict_to_json
from haltune.log.policy import Fold, Policy
from haltune.log.problem import Problem
from haltune.policies.from_spec import suited

from .asking import propose
from .judging import judge, with_report


def replay(problem: Problem, policy: Policy[Any], log: Iterable[ev.Event]) -> Iterator[tuple[int, Any, Any]]:
    """(position, recorded, found) of each decision of the policy, both in comparable JSON.

    In the order of what the decisions had seen: workers that decide at the same time append out of it.
    """
    events = list(log)
    prefix = Fold(problem, suited(policy, problem))
    decisions = [
        (n, recorded) for n, e in enumerate(events) if (recorded := _recorded(e, problem)) is not None
    ]
    for position, recorded in sorted(decisions, key=lambda d: (events[d[0]].seen, d[0])):  # type: ignore[attr-defined]
        for event in events[prefix.history.position : events[position].seen]:  # type: ignore[attr-defined]
            prefix.take(event)
        yield position, recorded, _asked(prefix, events[position])


def decided(answer: Any) -> Any:
    """What was decided and by which numbers, without the words: another version may put them better."""
    if isinstance(answer, Mapping):
        return {name: value for name, value in answer.items() if name != "reason"}
    return answer[:-1]


def _recorded(event: ev.Event, problem: Problem) -> Any:
    """The policy's answer that an event records; None when it was not the policy's."""
    if isinstance(event, ev.Started):
        return ["start", event.config, event.until, event.resource, event.tags, event.reason]
    if isinstance(event, ev.Resumed) and event.by_policy:
        return ["resume", event.trial, event.until, event.resource, event.tags, event.reason]
    if isinstance(event, ev.Finished):
        return ["finish", event.reason]
    if isinstance(event, ev.Reported):
        judged = (
            event.verdict.action is not Action.UNJUDGED and not {CUT, ASKED} & event.verdict.evidence.keys()
        )
        full = problem.max_epochs is not None and event.epoch >= problem.max_epochs
        return verdict_to_json(event.verdict) if judged and not full else None
    return None


def _asked(prefix: Fold, event: ev.Event) -> Any:
    history = prefix.history
    if isinstance(event, ev.Reported):
        trial = with_report(history, history.trial(event.trial), event)
        return verdict_to_json(judge(prefix.policy, prefix.state, history, trial))
    move = propose(prefix.policy, prefix.state, history)
    if isinstance(move, Start):
        config = plain(history.problem.space.canonical(move.config))
        until = history.problem.max_epochs if move.until is None else move.until
        return ["start", config, until, move.resource, plain(move.tags), move.reason]
    if isinstance(move, Resume):
        until = history.problem.max_epochs if move.until is None else move.until
        return ["resume", move.trial, until, move.resource, plain(move.tags), move.reason]
    return [type(move).__name__.lower(), move.reason]
