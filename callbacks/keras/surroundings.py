"""The environment of HaltuneCallback in a Keras fit: other callbacks, trackers and other processes."""

from __future__ import annotations

import dis
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from haltune._utils.interruption import caller, variables
from haltune.errors import NotSupported
from haltune.ranks import torch_ranks
from haltune.study import Trial

from ..reporter import Reporter, ending_metrics
from ..schedules import falls
from .optimizers import optimizers_of, planned_steps

_DEPTH = 6  # frames: Keras' list calls its callbacks directly, or through one or two wrappers, such as of a subclass
_TRACKERS = {"wandb", "mlflow", "comet_ml", "neptune", "clearml", "aim", "dvclive", "swanlab"}  # packages


def calling_list(callback: Any) -> list[Any]:
    """Return the list of callbacks that is calling a hook of `callback`; an empty list if it is not found.

    Keras gives a callback its model and its parameters, but no access to the others, so the list is searched in the
    frames above: a CallbackList has it as `callbacks`. Without it, a resumed fit would lose the state of the other
    callbacks, and there would be no warnings and no tracker logs.
    """
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        owner = variables(frame).get("self")
        listed = None if owner is callback else getattr(owner, "callbacks", None)
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


def is_listener(callback: Any) -> bool:
    """Return whether it only logs what other callbacks leave: a tracker, a progress bar, the history."""
    from keras import callbacks

    kinds = (callbacks.History, callbacks.ProgbarLogger, callbacks.RemoteMonitor)
    return is_tracker(callback) or isinstance(callback, kinds) or type(callback).__module__ == "tqdm.keras"


def place_of_fit() -> Any:
    """Return where the program calls the fit, its code and line; None in a loop of the program's own.

    Keras gives callbacks nothing of the call, so it is read from the stack. Without it, a program that calls fit for
    each epoch would keep, and resume with, the state of a single fit.
    """
    frame = caller("fit", "keras.")
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("keras.", "haltune.")):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lineno)


def moved_last(listed: list[Any], callback: Any) -> bool:
    """Move `callback` behind all others except listeners, in on_train_begin; return whether it is called again there.

    It saves the state of all others, so it is called after them. No other callback is called twice or skipped in this
    round of calls: a callback without hooks keeps the place until the end of the round.
    """
    from keras.callbacks import Callback

    place = next((i for i, c in enumerate(listed) if c is callback), None)
    if place is None:
        return False
    if not all(is_listener(c) for c in listed[place + 1 :]):
        listed[place] = Callback()
        listed.append(callback)
        return True
    others = [c for c in listed if c is not callback and type(c) is not Callback]
    listeners = [c for c in others if is_listener(c)]
    listed[:] = [*(c for c in others if not is_listener(c)), callback, *listeners]
    return False


def averagers(listed: list[Any]) -> list[Any]:
    """Return the callbacks of Keras that put averaged weights into the model while it is evaluated."""
    return [c for c in listed if type(c).__name__ == "SwapEMAWeights"]


@contextmanager
def averaged(listed: list[Any]) -> Iterator[None]:
    """Put the weights that were evaluated into the model.

    Keras has no public name for whether SwapEMAWeights has done so. Without it, the average would be swapped out again,
    and a kept model would not have the value of its trial.
    """
    swapped = [c for c in averagers(listed) if not c._ema_weights_in_model]
    for one in swapped:
        one.on_test_begin()
    try:
        yield
    finally:
        for one in swapped:
            one.on_test_end()


def at_ends_of_fits(callbacks: dict[str, Any], model: Any) -> list[str]:
    """Return the names of what acts at the start or the end of each fit: callbacks, and averages of optimizers."""
    found = [name for name, one in callbacks.items() if overrides(one, "on_train_begin", "on_train_end")]
    averages = any(getattr(one, "use_ema", False) for one in optimizers_of(model).values())
    return [*found, *(["use_ema"] if averages else [])]


def overrides(callback: Any, *hooks: str) -> bool:
    """Return whether a callback has one of these hooks, rather than that of the base class, which does nothing."""
    from keras.callbacks import Callback

    return any(getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook) for hook in hooks)


def reads_epochs(listed: list[Any]) -> str | None:
    """Return the name of what in this fit depends on the number of an epoch: a callback, validation_freq; or None."""
    from keras.callbacks import EarlyStopping, LambdaCallback, LearningRateScheduler

    for one in listed:
        own = not type(one).__module__.startswith(("keras.", "haltune.")) or isinstance(one, LambdaCallback)
        hooks = (one.on_epoch_begin, one.on_epoch_end) if own else ()
        waits = isinstance(one, EarlyStopping) and one.start_from_epoch
        if waits or isinstance(one, LearningRateScheduler) or any(map(_reads_first, hooks)):
            return type(one).__name__
    return "validation_freq" if validates_rarely() else None


def _reads_first(function: Any) -> bool:
    """Return whether a function reads its first argument, also if its code is not known."""
    code = getattr(function, "__code__", None)
    place = 1 if inspect.ismethod(function) else 0
    if code is None or code.co_argcount <= place:
        return True
    name = code.co_varnames[place]
    return any(one.opname.startswith("LOAD") and name in str(one.argval) for one in dis.get_instructions(code))


def _arguments_of_fit() -> dict[str, Any]:
    """Return the arguments of the call of fit, which callbacks do not receive; nothing in a loop of the program's.

    Without them, a fit that validates in no epoch would end with an error only after it, and one whose callbacks were
    made before it would have no plan.
    """
    return variables(caller("fit", "keras."))


def plan_of_fit() -> tuple[Any, dict[str, Any]]:
    """Return the model of this call of fit, and what Keras gives callbacks: epochs, and batches of an epoch."""
    given = _arguments_of_fit()
    batches = getattr(given.get("epoch_iterator"), "num_batches", None)
    return given["self"], {"epochs": given["epochs"], "steps": batches}


def validates_rarely() -> bool:
    """Return whether this call of fit has validation_freq=, so that it may validate in no epoch."""
    return bool(_arguments_of_fit().get("validation_freq", 1) != 1)


def lacks_validation(monitor: str, trial: Trial, listed: list[Any] | None = None) -> str | None:
    """Return how to log a validation metric in this call of fit, if nothing in it can; otherwise None.

    trial: which further fits may train to its end. listed: callbacks, one of which may log it. Otherwise the error
    comes after an epoch.
    """
    own = all(type(c).__module__.startswith(("keras.", "haltune.")) for c in listed or ())
    given = _arguments_of_fit()
    epochs = given.get("epochs")
    if not given or not own or not monitor.startswith("val_"):
        return None
    if given.get("validation_data", ()) is None and not given.get("validation_split"):
        return "Give model.fit validation_data=(x, y) or validation_split=0.2"
    rare, later = given.get("validation_freq", 1), trial.horizon if trial.unit == "epoch" else None
    if isinstance(rare, int) and isinstance(epochs, int) and rare > max(epochs, later or 0):
        return f"validation_freq={rare} is above epochs={epochs}: lower it"
    return None


def has_backup(listed: list[Any], model: Any) -> bool:
    """Return whether BackupAndRestore has restored a training when this fit started.

    Keras has no public name for the epoch at which it starts then. Without it, a trial would continue another one's
    backup.
    """
    loaded = bool(getattr(model, "_initial_epoch", None))
    return loaded and any(type(other).__name__ == "BackupAndRestore" for other in listed)


def refuse_backup(model: Any, trial: Trial) -> None:
    """Raise NotSupported if a trial that starts for the first time has the backup of another one."""
    if trial.attempt == 1:
        raise NotSupported(
            f"Trial {trial.id} starts, but BackupAndRestore has loaded the backup of another training "
            f"({model._initial_epoch} epochs). Give each trial a folder of its own, BackupAndRestore("
            f"f'backup/{trial.id}')."
        )


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
    ask_jax = jax is not None and keras is not None and keras.backend.backend() == "jax"  # asking claims devices
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


def still_to_fall(model: Any, params: dict[str, Any], rates: list[float]) -> str | None:
    """Return the name of a schedule whose learning rate decays until the end of the fit; None if there is none.

    It calls no function of the user's, which may count its calls.

    rates: with a LearningRateScheduler, the rates at the start of the fit and after each epoch.
    """
    from keras import ops
    from keras.optimizers.schedules import LearningRateSchedule

    if len(rates) > 1 and rates[-1] < rates[-2]:
        return "LearningRateScheduler"
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of a LossScaleOptimizer
    end = planned_steps(model, params.get("epochs"), params.get("steps"))
    if not end or optimizer is None:
        return None
    done = int(ops.convert_to_numpy(optimizer.iterations))
    schedule = _learning_rate(optimizer)
    of_keras = isinstance(schedule, LearningRateSchedule) and type(schedule).__module__.startswith("keras.")
    if of_keras and falls(lambda step: float(ops.convert_to_numpy(schedule(step))), done, end):
        return type(schedule).__name__
    return None


def rate_of(model: Any) -> float:
    """Return the learning rate of a model's optimizer, of a MultiOptimizer the sum of its rates; NaN without one."""
    from keras import ops

    optimizer = getattr(model, "optimizer", None)
    each = getattr(optimizer, "optimizers", [optimizer])  # a MultiOptimizer has no rate of its own
    return math.nan if optimizer is None else sum(float(ops.convert_to_numpy(one.learning_rate)) for one in each)


def _learning_rate(optimizer: Any) -> Any:
    """Return an optimizer's learning rate, or a copy of its schedule; None if Keras cannot copy it."""
    from keras.optimizers.schedules import deserialize

    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return deserialize(optimizer.get_config()["learning_rate"])
    return None


def advice(trial: Trial, listed: list[Any], steps: int | None) -> Iterator[str]:
    """Yield a warning for each EarlyStopping that conflicts with a starting trial. steps: of an epoch, if known."""
    from keras.callbacks import EarlyStopping

    pause_at, rare = trial.pause_at, _arguments_of_fit().get("validation_freq", 1)
    for other in listed:
        if not isinstance(other, EarlyStopping):
            continue
        rung = pause_at is not None and (trial.horizon is None or pause_at < trial.horizon)
        per = 1 if trial.unit == "epoch" else steps
        at = math.ceil(pause_at / per) if rung and pause_at and per else 0
        each = rare if str(other.monitor).startswith("val_") else 1  # epochs from one of its checks to the next
        # its first check always improves; after it, `patience` checks (at least one) may not
        if isinstance(each, int) and (other.start_from_epoch // each + max(other.patience, 1) + 1) * each < at:
            yield (
                f"EarlyStopping(patience={other.patience}) can end this training before epoch {at}, where the policy "
                f"compares trials. Give it patience={math.ceil(at / each)} or more, or leave stopping to haltune."
            )
            pause_at = None


def advise_best(reporter: Reporter, listed: list[Any]) -> None:
    """Advise of='best' where another callback returns the model of its best epoch, or saves it."""
    from keras.callbacks import EarlyStopping, ModelCheckpoint

    for other in listed:
        if isinstance(other, EarlyStopping) and other.restore_best_weights and other.monitor == reporter.metric:
            reporter.advise_best("EarlyStopping(restore_best_weights=True)", "epoch")
        elif isinstance(other, ModelCheckpoint) and other.save_best_only and other.monitor == reporter.metric:
            reporter.advise_best("ModelCheckpoint(save_best_only=True)", "epoch", file=True)
