"""The user's own configurations: they wait in the history's queue, and are begun before any of the policy's.

When to begin one, how far to train it and under which tags is the policy's to say: where it would begin a configuration
of its own, the queue's first takes the place of that, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.decisions import ENQUEUED, Move, Start
from haltune.log.history import History
from haltune.store.base import Conflict

from .replica import Replica


def from_queue(move: Move, history: History) -> Move:
    """The policy's move; a new configuration of its own makes way for the first of the queue."""
    if not history.queue or not isinstance(move, Start) or move.repeats:
        return move
    reason = f"enqueued by you, in the place of: {move.reason or 'one that the policy would begin'}"
    return replace(move, config=history.queue[0], reason=reason, evidence={**move.evidence, ENQUEUED: True})


def enqueue(replica: Replica, config: Mapping[str, Any], again: bool) -> bool:
    """See Study.enqueue. config: in canonical form."""
    with replica.lock:
        while True:
            replica.sync()
            history = replica.history
            if not again and _is_known(history, config):
                return False
            if history.finished is not None and not replica.policy.plans:
                raise InvalidInput(
                    f"the policy has ended this search for good, so that nothing more is begun: {history.finished}. "
                    "Give a new search another name="
                )
            try:
                replica.append(ev.Enqueued(at=replica.now(), config=ev.plain(config)), None)
            except Conflict:
                continue
            return True


def _is_known(history: History, config: Mapping[str, Any]) -> bool:
    """Whether it was begun, or waits."""
    key = history.problem.space.key_of_canonical
    return key(config) in history.tried or key(config) in map(key, history.queue)
