"""What surrounds HaltuneCallback in a Keras fit: other callbacks, trackers and other processes."""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from haltune.errors import NotSupported
from haltune.study import Trial

from ..ranks import torch_ranks
from ..reporter import Reporter, ending_metrics
from ..schedules import falls

_DEPTH = 4  # frames: Keras' list calls its callbacks itself, a wrapper or two may lie between
_TRACKERS = {"wandb", "mlflow", "comet_ml", "neptune", "clearml", "aim", "dvclive", "swanlab"}  # packages


def calling_list(callback: Any) -> list[Any]:
    """The list of callbacks that calls one of `callback`'s hooks now; an empty one when it is not found.

    Keras gives a callback no way to the others: the list is found in the frames above. When it is not there, in another
    Keras, nothing is advised and nothing logged, and the training is the same.
    """
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
    return isinstance(callback, (callbacks.TensorBoard, callbacks.CSVLogger)) or package in _TRACKERS


def put_trackers_behind(listed: list[Any], callback: Any) -> None:
    """Move the trackers before `callback` in its list to right behind it: there they log what it adds to the logs.

    Safe in the middle of a round of calls: no callback gets a second turn, and none misses one.
    """
    mine = next((i for i, c in enumerate(listed) if c is callback), 0)
    others = [c for c in listed[:mine] if not is_tracker(c)]
    trackers = [c for c in listed[:mine] if is_tracker(c)]
    if trackers:
        listed[: mine + 1] = [*others, callback, *trackers]


def tracked(reporter: Reporter, epoch: int, trackers: list[Any]) -> dict[str, float]:
    """Return what the logs of an epoch gain for trackers; write the reason for an end to TensorBoard, as a text."""
    metrics, reason = ending_metrics(reporter)
    for tracker in trackers if reporter.verdict else ():
        folder = getattr(tracker, "log_dir", None)
        with suppress(Exception):  # a reason that cannot be shown must not end a training
            if folder is not None:
                writer = tracker.summary.create_file_writer(os.path.join(folder, "train"))
                with writer.as_default():
                    tracker.summary.text("haltune_reason", reason, step=epoch)
                writer.close()
    return {"haltune_p_win": math.nan} | metrics  # CSVLogger takes its columns from the first epoch


def refuse_many_processes() -> None:
    """Raise NotSupported when this training runs in several processes: each would report, and stop, on its own.

    Several devices of one process (MirroredStrategy, keras.distribution) are one training.
    """
    tasks = 1
    with suppress(ValueError, AttributeError, TypeError):
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        tasks = sum(len(cluster.get(job, ())) for job in ("chief", "worker", "master"))
    jax, keras = sys.modules.get("jax"), sys.modules.get("keras")
    ask_jax = jax is not None and keras is not None and keras.backend.backend() == "jax"  # the question claims devices
    found = {
        "TF_CONFIG with {} workers": tasks,
        "torch.distributed with {} processes": torch_ranks().size,
        "jax.distributed with {} processes": jax.process_count() if jax is not None and ask_jax else 1,
    }
    for sentence, processes in found.items():
        if processes > 1:
            raise NotSupported(
                f"this fit runs in several processes ({sentence.format(processes)}), and under Keras haltune "
                "reports from one only: train in one, on its devices with MirroredStrategy or keras.distribution"
            )


def still_to_fall(model: Any, params: dict[str, Any], by_epochs: list[Callable[..., float]]) -> str | None:
    """Return the name of a schedule whose learning rate is to fall until the end of the fit; None if there is none.

    by_epochs: what LearningRateScheduler callbacks call, schedule(epoch, lr) or schedule(epoch).
    """
    from keras import ops
    from keras.optimizers.schedules import LearningRateSchedule

    optimizer, epochs, steps = model.optimizer, params.get("epochs"), params.get("steps")
    if not epochs or not steps:
        return None
    done = int(ops.convert_to_numpy(optimizer.iterations))
    schedule = optimizer._learning_rate
    if isinstance(schedule, LearningRateSchedule):
        name = type(schedule).__name__
        return name if falls(lambda step: float(ops.convert_to_numpy(schedule(step))), done, epochs * steps) else None
    for function in by_epochs:
        rates = [float(ops.convert_to_numpy(optimizer.learning_rate))]
        for epoch in range(epochs):
            given = (epoch, rates[-1]) if len(inspect.signature(function).parameters) > 1 else (epoch,)
            rates.append(float(function(*given)))
        if falls(lambda epoch, rates=rates[1:]: rates[min(int(epoch), epochs - 1)], done / steps, epochs):  # type: ignore[misc]
            return "LearningRateScheduler"
    return None


def advice(trial: Trial, callback: Any, listed: list[Any]) -> Iterator[str]:
    """Yield a sentence for each other callback that does not fit a trial that starts."""
    from keras.callbacks import EarlyStopping

    until, before = trial.until, True
    for other in listed:
        before = before and other is not callback
        rung = until is not None and (trial._horizon is None or until < trial._horizon)
        # the first epoch that it looks at always improves; then patience more may not, one at least
        if rung and isinstance(other, EarlyStopping) and other.start_from_epoch + max(other.patience, 1) + 1 < until:
            yield (
                f"EarlyStopping(patience={other.patience}) can end this training before epoch {until:g}, where the "
                f"policy compares trials. Give it patience={until:g} or more, or leave stopping to haltune."
            )
            until = None
        if before and type(other).__name__ == "SwapEMAWeights" and getattr(other, "swap_on_epoch", False):
            yield (
                "SwapEMAWeights(swap_on_epoch=True) stands before HaltuneCallback, so a paused trial would be saved "
                "with its averaged weights and not resume exactly. Put HaltuneCallback before it."
            )
