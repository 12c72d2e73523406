"""What a page may ask for: each is an event in the log, seen by all workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from haltune.errors import InvalidInput
from haltune.store.open import open_store
from haltune.store.studies import hold, lift
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


ALL: dict[str, Callable[[Place, Mapping[str, Any]], str]] = {
    "stop": stop,
    "resume": resume,
    "enqueue": enqueue,
}
