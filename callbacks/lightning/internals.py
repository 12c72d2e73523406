"""The parts of Lightning that have no public counterpart, a function for each.

Since version 2.0 Lightning's loops are private (Lightning-AI/pytorch-lightning#16445), but a trial that pauses within
an epoch must reach into them. Nothing else in haltune uses a private name of Lightning. While haltune saves a state,
two public parts of the strategy are replaced: its checkpoint_io (checkpoint.py) and its save_checkpoint (shards.py).
tests/callbacks/test_framework_assumptions.py states what each function assumes of the installed version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from haltune._utils.interruption import caller, variables


def hook_batches(
    trainer: Any,
    starts: Callable[[], None],
    step_ends: Callable[[Callable[[], None]], None],
    validated: Callable[[], None],
    ends: Callable[[], None],
) -> None:
    """Call `starts` before the first batch of an epoch, `ends` at its end, and `step_ends(rest)` after each step.

    `rest` validates, and `validated` is called at the end of that. A fit within this one, of a learning-rate finder, is
    not hooked.

    Lightning has no hook at these places:

    - after the module's on_train_epoch_start, where the loader's iterator draws random numbers
    - before the next batch of a fit that resumes within an epoch
    - after the module's on_train_batch_end, where the last metrics of a step are logged
    - after the validation of a step
    - after the module's on_validation_end, which may put weights back; there Lightning resets the validation's metrics

    After all hooks of an epoch's end it calls only EarlyStopping and Checkpoint callbacks, by an isinstance test
    (Lightning-AI/pytorch-lightning#16567). But trainer.checkpoint_callback would return such a callback.

    Without these calls, a trial paused within an epoch would resume with other batches, with averaged weights, or with
    the metrics of the validation before. A metric would be reported without the values of the module's last hook, and a
    training metric before the validation of its step.
    """
    loop, logs = trainer.fit_loop.epoch_loop, trainer._logger_connector
    run, advance_end, epoch_end, reset = loop.run, loop.on_advance_end, logs.on_epoch_end, logs.reset_results
    first = trainer.callbacks[0]

    def ours() -> bool:
        return first in trainer.callbacks

    def run_epoch(fetcher: Any) -> None:
        if ours():
            starts()
        run(fetcher)

    def end_step(fetcher: Any) -> None:
        if ours():
            step_ends(lambda: advance_end(fetcher))
        else:
            advance_end(fetcher)

    def end_validation() -> None:
        reset()
        if trainer.validating and ours():
            validated()

    def end_epoch() -> None:
        if trainer.training and ours():
            ends()
        epoch_end()

    loop.run, loop.on_advance_end, logs.on_epoch_end = run_epoch, end_step, end_epoch
    logs.reset_results = end_validation


def unhook_batches(trainer: Any) -> None:
    """Undo `hook_batches`."""
    for name in ("run", "on_advance_end"):
        vars(trainer.fit_loop.epoch_loop).pop(name, None)
    for name in ("on_epoch_end", "reset_results"):
        vars(trainer._logger_connector).pop(name, None)


def logs_step(trainer: Any) -> bool:
    """Return whether Lightning logs the metrics of the present step, by log_every_n_steps.

    It counts steps in a number of its own: with manual optimization, global_step counts those of each optimizer.
    Without it, a study that counts steps would report other steps than those that the user's logger shows.
    """
    every = trainer.log_every_n_steps
    return bool(every) and (trainer.fit_loop.epoch_loop._batches_that_stepped + 1) % every == 0


def check_early_stopping(early: Any, at_epoch_end: bool) -> bool:
    """Set where an EarlyStopping checks its metric; return the setting before.

    Its argument check_on_train_epoch_end has no public attribute. In an epoch that a stop cut short, the check would
    raise an error, because its validation did not run.
    """
    before: bool = early._check_on_train_epoch_end
    early._check_on_train_epoch_end = at_epoch_end
    return before


def cluster_environment(trainer: Any) -> Any:
    """Return the cluster environment, or None.

    Only strategies with several processes have it as an attribute, but Lightning requeues SLURM jobs of one process
    too. Without it, haltune would take the requeue signal from Lightning and not warn about hpc_ckpt files.
    """
    return getattr(trainer._accelerator_connector, "cluster_environment", None)


def loads_anything() -> bool:
    """Return whether the next fit loads any object from a checkpoint, as this one was called with weights_only=False.

    The Trainer passes the argument from call to call and does not keep it (Lightning-AI/pytorch-lightning#20058), so it
    is read from the call. Without it, a trial whose user allows any object would never pause. Before Lightning 2.6
    there is no such argument, and a checkpoint may hold anything.
    """
    run = caller("_run", "lightning.") or caller("_run", "pytorch_lightning.")
    return run is not None and variables(run).get("weights_only", False) is False


def loader_epoch(trainer: Any) -> Any:
    """Return the epoch in which the training loaders were made, for reload_dataloaders_every_n_epochs.

    A checkpoint of Lightning does not contain it. Without it, a resumed fit would make its loaders at other epochs.
    """
    return trainer.fit_loop._last_train_dl_reload_epoch


def start_new_epoch(trainer: Any, made: Any) -> None:
    """Let a resumed fit start its epoch as an uninterrupted one. made: see `loader_epoch`.

    A loop that resumes keeps the iterator that Lightning made before the random state was restored, and does not step
    the schedules at the end of the epoch; with max_steps it takes every checkpoint for one within an epoch. There is no
    public way to say that the epoch is whole (Lightning-AI/pytorch-lightning#19764). Without this, a trial that resumes
    at an epoch would read other batches and skip a step of its schedule.
    """
    loop = trainer.fit_loop
    loop._last_train_dl_reload_epoch = made
    loop._resuming_from_checkpoint = loop._restarting = loop.epoch_loop.restarting = False


def end_restart(trainer: Any) -> None:
    """Let a fit that resumed within an epoch end this epoch as an uninterrupted one.

    Lightning takes the whole epoch for a restart. Without this, ReduceLROnPlateau would not step at its end.
    """
    trainer.fit_loop._restarting = False


def skip_batches(trainer: Any, count: int, restore: Callable[[int], None], states: int) -> None:
    """Advance the iterator of the training loader by `count` batches, which are read and not trained.

    restore: restores a random state by its number, of which there are `states`; the iterator is made after the first.
    Lightning has no public access to its iterator, and does not skip the batches before the checkpoint itself
    (Lightning-AI/pytorch-lightning#19764). Without this, a fit that resumes within an epoch would train on its first
    batches again.
    """
    fetcher = trainer.fit_loop._data_fetcher
    for i in range(states):
        restore(i)
        if i == 0:
            iter(fetcher)
    for _ in range(count):
        next(fetcher)
    fetcher.fetched -= count  # Lightning adds them


def given_loaders(trainer: Any) -> Any:
    """Return the training loaders that were given to `fit`; None if a module or a data module makes them.

    trainer.train_dataloader is None until the loop has set them up, which draws the first random numbers. Without them,
    the generators of these loaders would be captured too late.
    """
    source = trainer.fit_loop._data_source
    return None if source.is_module() else source.instance


def has_validation_data(trainer: Any) -> bool:
    """Return whether validation data were given to `fit`, or the module or the data module makes them.

    trainer.val_dataloaders is None in a fit that does not validate. Without it, the error for such a fit would not say
    whether the data are missing or the method.
    """
    return bool(trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined())


def modes_before_validation(trainer: Any) -> dict[str, bool]:
    """Return, within a validation, whether each module was in training mode before it, by f"module.{name}".

    A validation sets all modules to evaluation and restores their modes after its last hook. Lightning keeps them in
    the loop alone. Without them, a pause at a validation within an epoch would save that all modules are in evaluation.
    """
    if not trainer.validating:
        return {}
    return {f"module.{name}": mode for name, mode in trainer.fit_loop.epoch_loop.val_loop._module_mode.mode.items()}


def metrics_to_reset(trainer: Any) -> set[int]:
    """Return the ids of the metric objects that a validation under way has logged: Lightning resets them at its end.

    It keeps them in its results alone. A file that the program saves in on_validation_end would have their counts, and
    the next validation of a fit that resumes from it would add to them.
    """
    results = trainer._results.values() if trainer.validating else ()
    return {id(part) for one in results if not one.is_tensor for part in one.value.modules()}
