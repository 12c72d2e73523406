"""What surrounds HaltuneCallback in a Keras fit: other callbacks, trackers, schedules and other processes.

A schedule is built for so many steps. Trials train towards `trial.max_epochs` and are stopped or paused earlier, so
a schedule that ends elsewhere is most often one for another number of epochs. ExponentialDecay, InverseTimeDecay and
restarts have no end to be wrong.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from haltune.display import amount, plural
from haltune.errors import NotSupported
from haltune.study import Trial

from ..ranks import torch_ranks
from ..reporter import Reporter, ending_metrics

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
    ask_jax = (
        jax is not None and keras is not None and keras.backend.backend() == "jax"
    )  # the question claims devices
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


def advice(
    trial: Trial, callback: Any, listed: list[Any], optimizer: Any, steps: int | None
) -> Iterator[str]:
    """A sentence for what does not fit a trial that starts. steps: of the optimizer in an epoch, None if not known."""
    from keras.callbacks import EarlyStopping

    yield from _schedule_advice(getattr(optimizer, "inner_optimizer", optimizer), steps, trial.horizon)
    until, before = trial.until, True
    if until is not None and (trial.horizon is None or until < trial.horizon):
        for stopping in listed:
            # the first epoch that it looks at always improves; then patience more may not, one at least
            if (
                isinstance(stopping, EarlyStopping)
                and stopping.start_from_epoch + max(stopping.patience, 1) + 1 < until
            ):
                yield (
                    f"EarlyStopping(patience={stopping.patience}) can end this training before epoch {until:g}, where "
                    f"the policy compares trials: give it patience={until:g} or more, or leave stopping to haltune"
                )
                break
    for other in listed:
        before = before and other is not callback
        if before and type(other).__name__ == "SwapEMAWeights" and getattr(other, "swap_on_epoch", False):
            yield (
                "SwapEMAWeights(swap_on_epoch=True) stands before HaltuneCallback, so that a paused trial would be "
                "saved with its averaged weights and not continue as it was: put HaltuneCallback before it"
            )


def _schedule_advice(optimizer: Any, steps: int | None, horizon: int | None) -> Iterator[str]:
    """At most one sentence, for a schedule that does not end within an epoch of the horizon."""
    for schedule, around in _ending(getattr(optimizer, "_learning_rate", None), 0.0):
        warmup = _warmup(schedule)
        name, end = type(schedule).__name__, schedule.decay_steps + warmup
        if horizon is None:
            yield (
                f"the schedule {name} ends after {plural(end, 'step')}, but this problem sets no max_epochs: "
                "give the Problem one, or use a schedule without an end"
            )
            return
        if steps and not any(abs(e - steps * horizon) < steps for e in (end, end + around)):
            yield (
                f"the schedule {name} ends after {plural(end, 'step')}, {amount(end / steps, 'epochs', 4)}, but "
                f"trials train towards trial.max_epochs = {plural(horizon, 'epoch')} of {plural(steps, 'step')}: "
                f"write decay_steps=trial.max_epochs * {steps}{f' - {warmup:g} for the warm-up' if warmup else ''}; "
                "haltune stops or pauses a trial before that"
            )
            return


def _ending(schedule: Any, warmup: float) -> Iterator[tuple[Any, float]]:
    """The schedules with an end, nested ones too, with the warm-up steps of what wraps them."""
    from keras.optimizers.schedules import LearningRateSchedule

    if not isinstance(schedule, LearningRateSchedule):
        return
    kinds = {kind.__name__ for kind in type(schedule).__mro__}
    if kinds & {"CosineDecay", "PolynomialDecay"} and not getattr(schedule, "cycle", False):
        yield schedule, warmup
    for part in vars(schedule).values():
        yield from _ending(part, warmup + _warmup(schedule))


def _warmup(schedule: Any) -> float:
    """The steps that a schedule warms up for; CosineDecay does not without a target."""
    if getattr(schedule, "warmup_target", schedule) is None:
        return 0.0
    return float(getattr(schedule, "warmup_steps", 0) or 0)
