"""The environment of HaltuneCallback in a Keras fit: other callbacks, trackers and other processes."""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from haltune.errors import NotSupported
from haltune.ranks import torch_ranks
from haltune.study import Trial

from ..reporter import Reporter, ending_metrics
from ..schedules import falls

_DEPTH = 4  # frames: Keras' list calls its callbacks directly, or through one or two wrappers
_TRACKERS = {"wandb", "mlflow", "comet_ml", "neptune", "clearml", "aim", "dvclive", "swanlab"}  # packages


def calling_list(callback: Any) -> list[Any]:
    """Return the list of callbacks that is calling a hook of `callback`; an empty list if it is not found.

    Keras gives a callback its model and its parameters, but no access to the others, so the list is searched in the
    frames above: a CallbackList has it as `callbacks`. If another version of Keras has no such list, there are no
    warnings and no tracker logs; the training does not change.
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
    """Return whether it is Keras' TensorBoard or CSVLogger, or a callback of a tracking service."""
    from keras import callbacks

    package = type(callback).__module__.partition(".")[0]
    return isinstance(callback, (callbacks.TensorBoard, callbacks.CSVLogger)) or package in _TRACKERS


def put_trackers_behind(listed: list[Any], callback: Any) -> None:
    """Move trackers that precede `callback` in its list right after it, so that they log the metrics that it adds.

    This is safe during a round of calls: no callback is called twice, and none is skipped.
    """
    mine = next((i for i, c in enumerate(listed) if c is callback), 0)
    others = [c for c in listed[:mine] if not is_tracker(c)]
    trackers = [c for c in listed[:mine] if is_tracker(c)]
    if trackers:
        listed[: mine + 1] = [*others, callback, *trackers]


def tracked(reporter: Reporter, epoch: int, trackers: list[Any]) -> dict[str, float]:
    """Return the metrics to add to an epoch's logs for trackers; at an end, write the reason to TensorBoard as text."""
    metrics, reason = ending_metrics(reporter)
    for tracker in trackers if reporter.verdict else ():
        folder = getattr(tracker, "log_dir", None)
        with suppress(Exception):  # a failure to show the reason must not end a training
            if folder is not None:
                writer = tracker.summary.create_file_writer(os.path.join(folder, "train"))
                with writer.as_default():
                    tracker.summary.text("haltune_reason", reason, step=epoch)
                writer.close()
    return {"haltune_p_win": math.nan} | metrics  # CSVLogger fixes its columns in the first epoch


def refuse_many_processes() -> None:
    """Raise NotSupported if this training has several processes, because each would report and stop separately.

    Several devices in one process (MirroredStrategy, keras.distribution) are one training.
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
                f"This fit runs in several processes ({sentence.format(processes)}). With Keras, haltune supports one "
                "process only. Train in one process, with MirroredStrategy or keras.distribution for several devices."
            )


def still_to_fall(model: Any, params: dict[str, Any], by_epochs: list[Callable[..., float]]) -> str | None:
    """Return the name of a schedule whose learning rate decays until the end of the fit; None if there is none.

    by_epochs: the functions of LearningRateScheduler callbacks, schedule(epoch, lr) or schedule(epoch).
    """
    from keras import ops
    from keras.optimizers.schedules import LearningRateSchedule

    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of a LossScaleOptimizer
    epochs, steps = params.get("epochs"), params.get("steps")
    if not epochs or not steps:
        return None
    done = int(ops.convert_to_numpy(optimizer.iterations))
    schedule = _learning_rate(optimizer)
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


def _learning_rate(optimizer: Any) -> Any:
    """Return an optimizer's learning rate, or a copy of its schedule; None if Keras cannot copy it."""
    from keras.optimizers.schedules import deserialize

    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return deserialize(optimizer.get_config()["learning_rate"])
    return None


def advice(trial: Trial, callback: Any, listed: list[Any]) -> Iterator[str]:
    """Yield a warning for each other callback that conflicts with a starting trial."""
    from keras.callbacks import EarlyStopping

    pause_at, before = trial.pause_at, True
    for other in listed:
        before = before and other is not callback
        rung = pause_at is not None and (trial.horizon is None or pause_at < trial.horizon)
        # the first epoch that it checks always improves; after it, `patience` epochs (at least one) may not
        if rung and isinstance(other, EarlyStopping) and other.start_from_epoch + max(other.patience, 1) + 1 < pause_at:
            yield (
                f"EarlyStopping(patience={other.patience}) can end this training before epoch {pause_at:g}, where the "
                f"policy compares trials. Give it patience={pause_at:g} or more, or leave stopping to haltune."
            )
            pause_at = None
        if before and type(other).__name__ == "SwapEMAWeights" and getattr(other, "swap_on_epoch", False):
            yield (
                "SwapEMAWeights(swap_on_epoch=True) comes before HaltuneCallback, so a paused trial would be saved "
                "with averaged weights and would not resume exactly. Put HaltuneCallback before it."
            )
