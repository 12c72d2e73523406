"""Any event there may be, and images of things that are equal exactly when the things are: to the bit, NaN too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from haltune import Action, Verdict
from haltune.log import events as ev
from haltune.log.events import Event, Status
from haltune.log.history import History

finite = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)  # no -0.0
anything = st.floats().map(lambda x: x + 0.0)
seconds = st.floats(0, 1e9)
paths = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1)
names = st.text(min_size=1, max_size=8)
leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | finite | st.text(max_size=8)
plain_values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
plain_mappings = st.dictionaries(names, plain_values, max_size=3)
numbers = st.integers(0, 2**31 - 1)
attempts = st.integers(1, 2**31 - 1)
ended = st.sampled_from([status for status in Status if status is not Status.RUNNING])
some_epochs = st.floats(0.01, 1e6)
ends = st.none() | some_epochs
verdicts = st.builds(
    Verdict, st.sampled_from(Action), st.text(max_size=20), plain_mappings, ends | st.just(float("inf"))
)
metrics = st.dictionaries(names, anything, max_size=3)

_BY_TYPE = {
    ev.Created: {"problem": plain_mappings, "policy": plain_mappings, "seed": numbers},
    ev.Started: {"trial": numbers, "config": plain_mappings, "pause_at": ends, "resource": ends, "tags": plain_mappings,
                 "reason": st.text(), "evidence": plain_mappings, "seen": numbers, "deciding": seconds,
                 "worker": names},
    ev.Resumed: {"trial": numbers, "attempt": attempts, "pause_at": ends, "resource": ends, "tags": plain_mappings,
                 "reason": st.text(), "evidence": plain_mappings, "seen": numbers, "deciding": seconds,
                 "worker": names, "by_policy": st.booleans()},
    ev.Reported: {"trial": numbers, "attempt": attempts, "epoch": some_epochs, "value": anything, "seconds": seconds,
                  "verdict": verdicts, "seen": numbers, "validation": st.none() | seconds,
                  "cost": st.none() | seconds, "deciding": seconds, "metrics": metrics},
    ev.Checkpointed: {"trial": numbers, "attempt": attempts, "epoch": some_epochs, "path": paths,
                      "seconds": seconds},
    ev.Kept: {"trial": numbers, "attempt": attempts, "epoch": some_epochs, "path": paths, "seconds": seconds},
    ev.Slept: {"trial": numbers, "attempt": attempts, "since": seconds, "seconds": seconds},
    ev.Ended: {"trial": numbers, "attempt": attempts, "status": ended, "error": st.none() | st.text(),
               "traceback": st.none() | st.text()},
    ev.Expired: {"trial": numbers, "attempt": attempts, "holder": names, "last_alive": seconds,
                 "status": ended},
    ev.Budgeted: {"budget": st.dictionaries(st.sampled_from(["time", "cost", "epochs"]), some_epochs)},
    ev.Asked: {"trial": numbers, "attempt": attempts, "wish": st.sampled_from(["stop", "pause", "continue"]),
               "reason": st.text()},
    ev.Raised: {"budget": st.dictionaries(st.sampled_from(["time", "cost", "epochs"]), some_epochs)},
    ev.Noted: {"trial": numbers, "text": st.text()},
    ev.Widened: {"space": plain_mappings, "inner": st.none() | plain_mappings},
    ev.Enqueued: {"config": plain_mappings},
    ev.Refused: {"reason": st.text()},
    ev.Finished: {"reason": st.text(), "seen": numbers},
}  # fmt: skip


def _rescaled(at: float, ends: list[float]) -> Event:
    return ev.Rescaled(at=at, low=min(ends), high=max(ends))


some_event: st.SearchStrategy[Event] = st.one_of(
    st.builds(_rescaled, seconds, st.lists(finite, min_size=2, max_size=2, unique=True)),
    *(st.builds(kind, at=seconds, **parts) for kind, parts in _BY_TYPE.items()),  # type: ignore[arg-type]
)


def image(value: Any) -> Any:
    """Plain nested tuples; floats by their bits, so that NaN equals NaN and 1.0 is not 1."""
    if isinstance(value, float):
        return ("float", float(value).hex())
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), tuple(image(v) for v in value.tolist()))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *((f.name, image(getattr(value, f.name))) for f in fields(value)))
    if isinstance(value, Mapping):
        return ("mapping", frozenset((k, image(v)) for k, v in value.items()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ("sequence", tuple(image(v) for v in value))
    return (type(value).__name__, value)


def image_of(history: History) -> Any:
    """Return all data of a history."""
    return image(
        {
            "trials": history.trials, "best": history.best(), "ranked": history.ranked(),
            "spent": history.spent, "pending": [t.id for t in history.pending], "scale": history.scale,
            "learnt": history.learnt_scale(), "incumbent": history.incumbent(), "finished": history.finished,
            "queue": list(history.queue),
            "counts": [history.position, history.moves, history.failures_in_a_row, history.running, history.paused],
            "interrupted": history.interrupted, "tried": sorted(history.tried), "now": history.now,
            "seed": history.seed, "losses": [history.losses(i) for i in range(len(history))],
            "longest": history.longest_epoch, "success": history.any_success,
        }
    )  # fmt: skip


def folded(problem: Any, log: Any) -> History:
    """A log folded from its beginning."""
    history = History(problem)
    for event in log:
        history.apply(event)
    return history
