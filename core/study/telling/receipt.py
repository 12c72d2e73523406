"""Receipts: each decision on a trial, its reason, its numbers, and what it saved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from haltune._utils.process import named
from haltune.display import plural, visible
from haltune.log import events as ev
from haltune.log.comparison import Comparisons
from haltune.log.events import trial_of
from haltune.log.fate import fate_of, saved_epochs, saved_seconds
from haltune.log.history import History
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord


def receipt(history: History, trial: int, log: Iterable[ev.Event], over: bool = False) -> str:
    """The receipt of one trial as text. over: the search is. Raises InvalidInput for a trial that does not exist."""
    record = history.trial(trial)
    lines = _head(history, record, over)
    lines += _decision("ended because", now, {}) if (now := Comparisons(history, over).now(record)) else []
    for event in log:
        if trial_of(event) == trial:
            lines += _lines(event, history.problem)
    return visible("\n".join([*lines, *_saved(history, record, over)]))


def short_receipt(comparisons: Comparisons, trial: int) -> str:
    """What became of one trial and why, without each decision on the way. Raises InvalidInput as `receipt`."""
    history, over = comparisons.history, comparisons.over
    record = history.trial(trial)
    lines = _head(history, record, over)
    values = record.counting(history.problem.goal)
    if len(values):
        lines += _decision(history.problem.goal.metric, f"{values[-1]:.6g}, after epoch {record.epoch:g}", {})
        others = record.results(history.problem) if history.problem.measured else {}
        for name in history.problem.measured:
            lines += _decision(name, f"{others[name]:.6g}", {})
    lines += _decision("chosen because", record.proposed, {}) if record.proposed else []
    lines += _decision("continued as", record.resumed, {}) if record.resumed else []
    for title, words in comparisons.because(record):
        lines += _decision(title, words, {})
    return visible("\n".join([*lines, *_saved(history, record, over)]))


def _head(history: History, record: TrialRecord, over: bool) -> list[str]:
    settings = ", ".join(f"{name}={_short(value)}" for name, value in record.config.items())
    words = fate_of(record, history.problem, over).words
    return [f"trial {record.id}: {words}", f"  configuration  {settings or 'the only one there is'}"]


def _lines(event: ev.Event, problem: Problem) -> list[str]:
    if isinstance(event, ev.Started):
        return _decision("proposed", event.reason, event.evidence)
    if isinstance(event, ev.Resumed):
        return _decision(f"attempt {event.attempt}", event.reason, event.evidence)
    if isinstance(event, ev.Reported):
        head = f"epoch {event.epoch:g}"
        verdict = event.verdict
        said = [f"{n} {event.metrics[n]:.6g}" for n in problem.measured if n in event.metrics]
        values = ", ".join([f"{event.value:.6g}", *said])
        return _decision(head, f"{values} -> {verdict.action}: {verdict.reason}", verdict.evidence)
    if isinstance(event, ev.Ended):
        return _decision("ended", f"{event.status}{f' ({event.error})' if event.error else ''}", {})
    if isinstance(event, ev.Asked):
        return _decision("asked", f"{event.wish}: {event.reason}", {})
    if isinstance(event, ev.Expired):
        what = event.reason or f"{named(event.holder)} is gone"
        return _decision("lost", f"{what}; the trial is {event.status}", {})
    return []


def _decision(head: str, reason: str, evidence: Mapping[str, Any]) -> list[str]:
    numbers = ", ".join(f"{name} {_short(value)}" for name, value in evidence.items())
    return [f"  {head:<14} {reason}", *([f"  {'':<14} [{numbers}]"] if numbers else [])]


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _saved(history: History, record: TrialRecord, over: bool) -> list[str]:
    epochs = saved_epochs(record, history.problem, over)
    if not epochs:
        return []
    seconds = saved_seconds(record, history.problem, over)
    horizon = history.problem.max_epochs or math.inf
    return [
        f"  {'saved':<14} {epochs:g} of {plural(horizon, 'epoch')} ({epochs / horizon:.0%}), about {seconds:.3g} s"
    ]
