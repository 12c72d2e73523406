"""What may be asked of a search as it stands, by buttons of a page that follows it."""

from __future__ import annotations

from typing import Any

from haltune.log.events import Status
from haltune.log.history import History

from ..digest import Digest, Row


def asks(facts: Digest, limits: dict[str, Any]) -> dict[str, Any]:
    """{"search": [action], "runs": {trial: [action]}}: what would change something. limits: of the budget."""
    history = facts.history
    may = {
        "enqueue": history.finished is None,
        "extend": bool(limits),
        "stop": history.held is None and (history.running > 0 or not facts.over),
        "resume": history.held is not None,
    }
    runs = {row.record.id: found for row in facts.rows if (found := _of(row, history))}
    return {"search": [action for action, would in may.items() if would], "runs": runs}


def _of(row: Row, history: History) -> list[str]:
    """Of a run that trains, or that was set aside."""
    if row.record.status not in (Status.RUNNING, Status.INTERRUPTED):
        return []
    asked = history.wishes.runs.get(row.record.id)
    wish = {"stop": "end"}.get(asked.wish, asked.wish) if asked else None
    trains = ["end", "pause"] if row.kind == "running" else []
    return [action for action in trains if action != wish] + ["continue"] * (wish is not None)
