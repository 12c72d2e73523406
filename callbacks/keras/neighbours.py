"""The other callbacks of a fit, and the trackers among them.

Keras tells a callback nothing of the others: the list that calls it is found in the frames
above. When it is not there, in another Keras or in a list of somebody's own, there is no
company: nothing is advised and nothing logged, and the training is the same.
"""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from typing import Any

from ..frameworks.trackers import REASON, ending_metrics
from ..reporting.reporter import Reporter

_DEPTH = 4  # frames: Keras' list calls its callbacks itself, a wrapper or two may lie between
_PACKAGES = {"wandb", "mlflow", "comet_ml", "neptune", "clearml", "aim", "dvclive", "swanlab"}


def calling_list(callback: Any) -> list[Any]:
    """The list of callbacks that calls one of `callback`'s hooks now; an empty one when it is not found."""
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        listed = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(listed, list) and any(c is callback for c in listed):
            return listed
        if frame.f_back is None:
            break
        frame = frame.f_back
    return []


def is_tracker(callback: Any) -> bool:
    """True for Keras' TensorBoard and CSVLogger and for the callbacks of tracking services."""
    from keras import callbacks

    package = type(callback).__module__.partition(".")[0]
    return isinstance(callback, (callbacks.TensorBoard, callbacks.CSVLogger)) or package in _PACKAGES


def put_trackers_behind(listed: list[Any], callback: Any) -> None:
    """Move the trackers that stand before `callback` in its list to right behind it.

    A tracker only reads the logs of an epoch: behind the callback it also reads what that adds to them.
    Safe in the middle of a round of calls: nobody gets a second turn, and nobody misses one.
    """
    mine = next((i for i, c in enumerate(listed) if c is callback), 0)
    others = [c for c in listed[:mine] if not is_tracker(c)]
    trackers = [c for c in listed[:mine] if is_tracker(c)]
    if trackers:
        listed[: mine + 1] = [*others, callback, *trackers]


def tracked(reporter: Reporter, epoch: int, trackers: list[Any]) -> dict[str, float]:
    """What the logs of an epoch gain for trackers; TensorBoard is also told the reason for an end, as a text."""
    metrics, reason = ending_metrics(reporter)
    for tracker in trackers if reporter.verdict else ():
        _tell_tensorboard(tracker, reason, epoch)
    return {"haltune_p_win": math.nan} | metrics  # CSVLogger takes its columns from the first epoch


def _tell_tensorboard(tracker: Any, reason: str, epoch: int) -> None:
    folder = getattr(tracker, "log_dir", None)
    with suppress(Exception):  # a reason that cannot be shown must not end a training
        if folder is not None:
            writer = tracker.summary.create_file_writer(os.path.join(folder, "train"))
            with writer.as_default():
                tracker.summary.text(REASON, reason, step=epoch)
            writer.close()
