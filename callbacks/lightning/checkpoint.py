"""The state of a Lightning training in a file that all ranks write together."""

from __future__ import annotations

import io
import pickle
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from haltune._utils.disk import discard
from haltune.errors import NotSupported

from ..frameworks.ranks import Agreement
from ..reporting.reporter import Reporter
from .limits import sharded


def save(trainer: Any, reporter: Reporter, ranks: Agreement, remember: Callable[[], None]) -> None:
    """Save the final state if the trial may go on or is kept; every rank comes here, in on_train_end.

    `remember`: called on every rank before the state is collected, when there is one to save.
    """
    keeps, path = ranks.decide(lambda: _final_place(trainer, reporter))
    if path is None:
        return
    began = time.monotonic()
    remember()
    error = write(trainer, path)
    ranks.decide(lambda: _publish(reporter, path, error, time.monotonic() - began, keeps))


def keep(trainer: Any, reporter: Reporter, ranks: Agreement) -> None:
    """Save weights and hyperparameters if the trial counts for the epoch just reported; every rank comes here."""
    path = ranks.decide(lambda: _place(trainer, reporter, keep=True) if reporter.keeps_epoch else None)
    if path is None:
        return
    began = time.monotonic()
    error = write(trainer, path, weights_only=True)
    ranks.decide(lambda: _publish(reporter, path, error, time.monotonic() - began, keeps=True, epoch=True))


def _final_place(trainer: Any, reporter: Reporter) -> tuple[bool, Path | None]:
    """Whether it is for the user alone, and where to write; None when there is nothing to save, or nowhere."""
    keeps = not reporter.saves and reporter.keeps
    if keeps:
        return True, _place(trainer, reporter)
    found: list[Path] = []
    if reporter.saves:
        reporter.attempt(lambda: found.append(reporter.trial.begin_save()), over=True)
    return False, found[0] if found else None


def _place(trainer: Any, reporter: Reporter, keep: bool = False) -> Path | None:
    """Where to write what is kept for the user; None for nowhere."""
    found: list[Path] = []

    def begin() -> None:
        if sharded(trainer):
            raise NotSupported(
                f"its state under {type(trainer.strategy).__name__} is spread over the processes"
            )
        found.append(reporter.trial.begin_save(keep=keep))

    reporter.attempt(begin, keeps=True)
    return found[0] if found else None


def _publish(
    reporter: Reporter, path: Path, error: Exception | None, seconds: float, keeps: bool, epoch: bool = False
) -> None:
    """keeps: for the user alone. epoch: of the best epoch."""

    def commit() -> None:
        if error is not None:
            raise error
        reporter.trial.commit_save(path, seconds, epoch)

    try:
        refused = None if error else _refused(path)
        saved = reporter.attempt(commit, over=not keeps, keeps=keeps)
    finally:
        discard(path)  # it is there still only if something failed
    if saved and refused:
        how = "load it with" if keeps else "continue with"
        call = "load_from_checkpoint(path" if keeps else "trainer.fit(..., ckpt_path=trial.checkpoint"
        reporter.warn_once(
            "weights_only",
            f"the checkpoint of trial {reporter.trial.id} holds {refused}, from the module's hyperparameters or a "
            f"callback's state, which torch loads only when told to: {how} {call}, weights_only=False)",
        )


def rehearse(trainer: Any) -> int:
    """Bytes of a checkpoint, found by making one in memory without its tensors; in a single process only.

    Raises what keeps it from being made, and NotSupported when it could not be loaded again: before the
    training is told to stop, for afterwards it cannot go on.
    """
    import torch

    sizes: dict[int, int] = {}
    state = _stripped(trainer._checkpoint_connector.dump_checkpoint(weights_only=False), sizes)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    length = buffer.tell()
    buffer.seek(0)
    if not _loads_anything() and (found := _refused(buffer)) is not None:
        raise NotSupported(
            f"its checkpoint would hold {found}, from the module's hyperparameters or a callback's state, which torch "
            "does not load by default: keep numbers, texts and lists there, str(path) for a path, or call "
            "trainer.fit(..., weights_only=False)"
        )
    return sum(sizes.values()) + length + _MARGIN


def _stripped(value: Any, sizes: dict[int, int]) -> Any:
    """The same without tensors, whose bytes are counted, those that share a storage once."""
    import torch

    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return None
    if isinstance(value, Mapping):
        return {k: _stripped(v, sizes) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_stripped(v, sizes) for v in value)
    return value


def _loads_anything() -> bool:
    """True when this fit was called with weights_only=False, or by a Lightning that knows no such thing.

    The Trainer does not keep it: it is read where it runs, in the frames above.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_run" and "ckpt_path" in frame.f_locals:
            return frame.f_locals.get("weights_only", False) is False
        frame = frame.f_back
    return False


_MARGIN = 2**16  # bytes: the random state, the names of tensors in the file


def _refused(file: Path | io.BytesIO) -> str | None:
    """What in a checkpoint torch.load refuses under weights_only, its default; None when it refuses nothing."""
    import torch

    where: Any = str(file) if isinstance(file, Path) else file
    try:
        torch.load(
            where, map_location="cpu", mmap=isinstance(file, Path), weights_only=True
        )  # reads no tensor
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        return found[1] if found else "an object"
    except Exception:  # a format of the user's own
        return None
    return None


def prepare(trainer: Any, module: Any) -> None:
    """Lightning loads weights before it converts the module, which would round doubles to single precision."""
    if trainer.precision == "64-true":
        module.double()


def write(trainer: Any, path: Path, weights_only: bool = False) -> Exception | None:
    """Save on every rank; what went wrong while rank 0 wrote the file is returned, not raised.

    A rank that raised would leave the others waiting for it.
    """
    strategy = trainer.strategy
    before = strategy.checkpoint_io
    guarded = _Guarded(before)
    strategy.checkpoint_io = guarded
    try:
        trainer.save_checkpoint(path, weights_only=weights_only)
    except Exception as error:  # a state that cannot even be collected
        return error
    finally:
        strategy.checkpoint_io = before
    return guarded.error


def size(trainer: Any) -> int:
    """About how many bytes a checkpoint takes; rather too many."""
    import torch

    modules = [trainer.lightning_module]
    for callback in trainer.callbacks:  # averaged weights
        modules += [v for v in vars(callback).values() if isinstance(v, torch.nn.Module)]
    tensors: dict[int, Any] = {}
    for module in modules:
        tensors |= {id(t): t for t in (*module.parameters(), *module.buffers())}
    for optimizer in trainer.optimizers:
        for state in optimizer.state.values():
            tensors |= {id(v): v for v in state.values() if isinstance(v, torch.Tensor)}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    return int(1.1 * total) + 2**20


class _Guarded:
    """The Trainer's way of writing files, made synchronous, with what it raises kept aside."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plugin, name)

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        try:
            _synchronous(self._plugin).save_checkpoint(checkpoint, path, storage_options=storage_options)
        except Exception as error:
            self.error = error


def _synchronous(plugin: Any) -> Any:
    """An AsyncCheckpointIO returns before its file is there: take what it wraps."""
    while type(plugin).__name__ == "AsyncCheckpointIO":
        plugin = plugin.checkpoint_io
    return plugin
