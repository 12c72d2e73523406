"""What a page may ask for: each is an event in the log, seen by all workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from haltune.errors import InvalidInput
from haltune.store.studies import ask_of, hold, if_allowed, lift, limits_of, raise_limits
from haltune.study.reading import Following

from .location import Location

Does = Callable[[Location, Following, Mapping[str, Any]], str]


def stop(location: Location, study: Following, asked: Mapping[str, Any]) -> str:
    """Hold the search: runs finish their epochs and are saved."""
    training = study.history.running > len(study.lost)
    if study.outcome.over and not training:
        return f"nothing is left to stop: {study.outcome.reason}"
    hold(
        location.written,
        location.name,
        "stopped on its page; Resume there or `haltune resume` lets it continue",
    )
    return "it stops: each run ends after the epoch under way" if training else "it stops: nobody trains now"


def resume(location: Location, study: Following, asked: Mapping[str, Any]) -> str:
    """Let a search that was stopped go on."""
    if not lift(location.written, location.name, study.history):
        return "nobody had stopped it"
    return "it continues: its workers go on, or will when they are started"


def enqueue(location: Location, study: Following, asked: Mapping[str, Any]) -> str:
    """Have a configuration trained before any that the policy chooses."""
    config = asked.get("config")
    if not isinstance(config, dict):
        raise InvalidInput('{"config": {"lr": 0.01}}: a configuration, by its names')
    waits = study.enqueue(location.written, config, bool(asked.get("again")))
    return f"it waits to be trained{if_allowed(study.problem)}" if waits else "it was begun already, or waits"


def end(location: Location, study: Following, asked: Mapping[str, Any]) -> str:
    """Stop one run for good."""
    _ask(location, study, asked, "stop", "stopped by you, on the search's page")
    return f"trial {asked['trial']} ends after the epoch under way"


def pause(location: Location, study: Following, asked: Mapping[str, Any]) -> str:
    """Set one run aside: it is saved, and offered to nobody."""
    _ask(location, study, asked, "pause", "paused by you, on the search's page: Continue there lets it go on")
    return f"trial {asked['trial']} pauses after the epoch under way, until you let it continue"


def proceed(location: Location, study: Following, asked: Mapping[str, Any]) -> str:
    """Let one run go on that was paused or was to end."""
    _ask(location, study, asked, "continue", "let go on by you, on the search's page")
    return f"trial {asked['trial']} continues"


def _ask(location: Location, study: Following, asked: Mapping[str, Any], wish: str, reason: str) -> None:
    trial = asked.get("trial")
    if not isinstance(trial, int) or isinstance(trial, bool):
        raise InvalidInput('{"trial": 7}: the number of a trial')
    ask_of(location.written, location.name, study.history, trial, wish, reason)


def extend(location: Location, study: Following, asked: Mapping[str, Any]) -> str:
    """Raise limits of the budget."""
    limits = asked.get("limits")
    if not isinstance(limits, dict):
        raise InvalidInput('{"limits": {"trials": 80}}: limits of the budget, by their names')
    raised = raise_limits(location.written, location.name, study.history, limits)
    now = "" if study.history.running > len(study.lost) else "; nobody trains now: run its program again"
    return f"the budget is {limits_of(raised)} now{now}"


ALL: dict[str, Does] = {
    "stop": stop, "resume": resume, "enqueue": enqueue, "end": end, "pause": pause, "continue": proceed,
    "extend": extend,
}  # fmt: skip
