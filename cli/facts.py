"""What the listings show, as plain data that JSON holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from haltune import events as ev
from haltune.events import Status
from haltune.history import History, TrialRecord
from haltune.store import Store


def status(store: Store, name: str, history: History) -> dict[str, Any]:
    """How a search stands, and who trains what."""
    spent, best = history.spent, history.best()
    counts = {str(s): len(history.with_status(s)) for s in Status}
    state = "finished" if history.finished else "held" if history.held else "goes on"
    return {
        "study": name, "store": store.url, "state": state, "reason": history.finished or history.held,
        "goal": history.problem.goal.to_json(), "trials": {s: n for s, n in counts.items() if n},
        "epochs": spent.epochs, "time": spent.time, "worker_time": spent.worker_time, "deciding": spent.deciding,
        "best": None if best is None else {"trial": best.trial, "value": number(best.value), "epoch": best.epoch},
        "workers": [
            {"trial": w.trial, "attempt": w.attempt, "worker": w.holder, "silent": store.now() - w.renewed}
            for w in store.leases(name)
        ],
    }  # fmt: skip


def trial(t: TrialRecord) -> dict[str, Any]:
    """One trial in a line."""
    return {
        "trial": t.id, "status": str(t.status), "attempt": t.attempt, "epoch": t.epoch,
        "value": number(t.values[-1]) if len(t.values) else None, "seconds": float(t.seconds.sum()),
        "error": t.error, "config": ev.plain(dict(t.config)), "tags": ev.plain(dict(t.tags)),
    }  # fmt: skip


def reports(history: History) -> Iterator[dict[str, Any]]:
    """One row a report."""
    for t in history.trials:
        for i, epoch in enumerate(t.epochs):
            row = {
                "trial": t.id, "attempt": t.attempt, "status": str(t.status), "epoch": float(epoch),
                "value": number(t.values[i]), "score": number(t.scores[i]), "seconds": float(t.seconds[i]),
            }  # fmt: skip
            row |= {f"config.{name}": value for name, value in ev.plain(dict(t.config)).items()}
            yield row | {f"metric.{name}": number(column[i]) for name, column in t.metrics.items()}


def number(value: float) -> float | str:
    """A float as strict JSON holds it."""
    return float(value) if math.isfinite(value) else str(float(value))
