"""What the listings show, as plain data that JSON holds."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from typing import Any

from haltune._utils.process import surely_gone
from haltune.log.codec import plain
from haltune.log.comparison import Comparisons
from haltune.log.events import Status
from haltune.log.fate import Savings, fate_of, trained_again
from haltune.log.history import History
from haltune.log.records import Best, OnFront, TrialRecord
from haltune.study.reading import Reading
from haltune.study.telling.audit import Audit


def status(study: Reading) -> dict[str, Any]:
    """How a search stands, and who trains what."""
    history, store, name, outcome = study.history, study.store, study.name, study.outcome
    spent, problem = history.spent, history.problem
    top = None if problem.further else study.best
    counts = {str(s): len(history.with_status(s)) for s in Status}
    audit = study.audit() if problem.plain else None
    savings = Savings.of(history, outcome.over and not outcome.held)
    state = "stopped" if outcome.held else "over" if outcome.over else "idle" if study.idle else "continues"
    return {
        "study": name, "store": store.url, "state": state, "reason": outcome.reason,
        "goal": problem.to_json()["goal"], "trials": {s: n for s, n in counts.items() if n},
        "epochs": spent.epochs, "trained_again": trained_again(history),
        "saved": savings.epochs, "ended_sooner": savings.itself,
        "time": spent.time, "worker_time": spent.worker_time, "deciding": spent.deciding,
        "complete": sum(t.complete for t in history.trials), "best": None if top is None else best(top),
        "workers": [
            {"trial": w.trial, "attempt": w.attempt, "worker": w.holder, "silent": store.now() - w.renewed,
             "lost": surely_gone(w.holder)}
            for w in store.leases(name)
        ],
        "queue": [plain(dict(config)) for config in history.queue],
        **({"front": [on_front(run) for run in study.pareto_front()]} if problem.further else {}),
        **({"constraints": problem.to_json()["constraints"]} if problem.constraints else {}),
        **({"audit": audited(audit)} if audit and audit.share else {}),
    }  # fmt: skip


def best(b: Best) -> dict[str, Any]:
    """The best run: its number, what it counts for, and its checkpoint."""
    return {"trial": b.trial, "value": number(b.value), "epoch": b.epoch, "checkpoint": b.checkpoint,
            "checkpoint_epoch": None if b.checkpoint is None else b.checkpoint_epoch}  # fmt: skip


def on_front(run: OnFront) -> dict[str, Any]:
    """A run of the front: what it came to in each goal, too."""
    return best(run) | {"values": {name: number(v) for name, v in run.values.items()}}


def audited(a: Audit) -> dict[str, Any]:
    """What an audit found so far."""
    return {
        "share": a.share, "audited": a.audited, "stops": a.stops, "wrong": a.wrong, "unknown": a.unknown,
        "interval": list(a.of_stops.interval), "cost": a.cost, "saved": a.saved,
        "K1": a.K1, "advice": a.advice,
    }  # fmt: skip


def trial(t: TrialRecord, comparisons: Comparisons, lost: Container[int] = ()) -> dict[str, Any]:
    """One trial in a line; its value is the one it counts for."""
    problem, over = comparisons.history.problem, comparisons.over
    values = t.counting(problem.goal)
    return {
        "trial": t.id, "status": str(t.status), "outcome": fate_of(t, problem, over, lost).words,
        "complete": t.complete, "attempt": t.attempt, "epoch": t.epoch,
        "value": number(values[-1]) if len(values) else None,
        **({"values": {n: number(v) for n, v in t.results(problem).items()}} if problem.measured else {}),
        "seconds": float(t.seconds.sum()),
        "reason": comparisons.reason(t), "error": t.error, "config": plain(dict(t.config)), "tags": plain(dict(t.tags)),
    }  # fmt: skip


def reports(history: History) -> Iterator[dict[str, Any]]:
    """One row a report."""
    for t in history.trials:
        for i, epoch in enumerate(t.epochs):
            row = {
                "trial": t.id, "attempt": t.attempt, "status": str(t.status), "epoch": float(epoch),
                "value": number(t.values[i]), "score": number(t.scores[i]), "seconds": float(t.seconds[i]),
            }  # fmt: skip
            row |= {f"config.{name}": value for name, value in plain(dict(t.config)).items()}
            yield row | {f"metric.{name}": number(column[i]) for name, column in t.metrics.items()}


def number(value: float) -> float | str:
    """A float as strict JSON holds it."""
    return float(value) if math.isfinite(value) else str(float(value))
