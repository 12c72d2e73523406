"""What a page may ask for: each is an event in the log, seen by all workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from haltune.errors import InvalidInput
from haltune.store.open import open_store
from haltune.store.studies import ask_of, hold, lift, limits_of, raise_limits
from haltune.study.reading import read_study

from .board import Place


def stop(place: Place, asked: Mapping[str, Any]) -> str:
    """Hold the search: runs finish their epochs and are saved."""
    study = read_study(place.store, place.name, place.checkpoints)
    training = study.history.running > 0
    if study.outcome.over and not training:
        return f"nothing is left to stop: {study.outcome.reason}"
    hold(
        open_store(place.url),
        place.name,
        "stopped on its page; Resume there or `haltune resume` lets it continue",
    )
    return "it stops: each run ends after the epoch under way" if training else "it stops: nobody trains now"


def resume(place: Place, asked: Mapping[str, Any]) -> str:
    """Let a search that was stopped go on."""
    history = read_study(place.store, place.name, place.checkpoints).history
    if not lift(open_store(place.url), place.name, history):
        return "nobody had stopped it"
    return "it continues: its workers go on, or will when they are started"


def enqueue(place: Place, asked: Mapping[str, Any]) -> str:
    """Have a configuration trained before any that the policy chooses."""
    from haltune.study.entrance.loading import load_study

    config = asked.get("config")
    if not isinstance(config, dict):
        raise InvalidInput('{"config": {"lr": 0.01}}: a configuration, by its names')
    study = load_study(place.url, place.name, checkpoints=place.checkpoints)
    waits = study.enqueue(config, bool(asked.get("again")))
    return "it waits to be trained" if waits else "it was begun already, or waits"


def end(place: Place, asked: Mapping[str, Any]) -> str:
    """Stop one run for good."""
    return _ask(
        place, asked, "stop", "stopped by you, on the search's page", "ends after the epoch under way"
    )


def pause(place: Place, asked: Mapping[str, Any]) -> str:
    """Set one run aside: it is saved, and offered to nobody."""
    reason = "set aside by you, on the search's page: Continue there lets it go on"
    return _ask(place, asked, "pause", reason, "is set aside after the epoch under way")


def proceed(place: Place, asked: Mapping[str, Any]) -> str:
    """Let one run go on that was set aside or was to end."""
    return _ask(place, asked, "continue", "let go on by you, on the search's page", "continues")


def _ask(place: Place, asked: Mapping[str, Any], wish: str, reason: str, said: str) -> str:
    trial = asked.get("trial")
    if not isinstance(trial, int) or isinstance(trial, bool):
        raise InvalidInput('{"trial": 7}: the number of a trial')
    history = read_study(place.store, place.name, place.checkpoints).history
    ask_of(open_store(place.url), place.name, history, trial, wish, reason)
    return f"trial {trial} {said}"


def extend(place: Place, asked: Mapping[str, Any]) -> str:
    """Raise limits of the budget."""
    limits = asked.get("limits")
    if not isinstance(limits, dict):
        raise InvalidInput('{"limits": {"trials": 80}}: limits of the budget, by their names')
    study = read_study(place.store, place.name, place.checkpoints)
    raised = raise_limits(open_store(place.url), place.name, study.history, limits)
    now = "" if study.history.running else "; nobody trains now: run its program again"
    return f"the budget is {limits_of(raised)} now{now}"


ALL: dict[str, Callable[[Place, Mapping[str, Any]], str]] = {
    "stop": stop, "resume": resume, "enqueue": enqueue, "end": end, "pause": pause, "continue": proceed,
    "extend": extend,
}  # fmt: skip
