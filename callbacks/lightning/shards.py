"""Saving under strategies that spread a model over the processes: ModelParallelStrategy (FSDP2), FSDPStrategy.

The strategy writes the folder itself, every process its part, and loads it with `ckpt_path=`. No process has the whole
state, so what `checkpoint` and `resuming` compare is this process's part.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from haltune._utils.disk import force
from haltune.errors import NotSupported
from haltune.ranks import Group

from ..objects import local
from ..reporter import ordinary_errors
from ..sharded import DIFFER, OF_LIGHTNING, check_parts, differing

_STRATEGIES = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy"}


def sharded(trainer: Any) -> bool:
    """Return whether no process has the whole state."""
    return not _STRATEGIES.isdisjoint([kind.__name__ for kind in type(trainer.strategy).__mro__])


def cannot_save(trainer: Any) -> NotSupported | None:
    """Return the error for a pause under this strategy; None if it can be saved."""
    if all(kind.__name__ != "DeepSpeedStrategy" for kind in type(trainer.strategy).__mro__):
        return None
    return NotSupported(
        f"A trial under {type(trainer.strategy).__name__} cannot be paused, because haltune cannot check that its "
        "state is complete. Use ModelParallelStrategy() or FSDPStrategy(), or a policy that only stops trials."
    )


def loads_late(trainer: Any) -> bool:
    """Return whether Lightning loads a checkpoint after on_fit_start."""
    return bool(trainer.strategy.restore_checkpoint_after_setup)


def bytes_needed(trainer: Any, ranks: Group) -> int:
    """Return the approximate bytes of a checkpoint, from the parts of this process."""
    module = trainer.lightning_module
    parts = [*module.parameters(), *module.buffers()]
    for optimizer in trainer.optimizers:
        parts += [v for state in optimizer.state.values() for v in state.values() if hasattr(v, "untyped_storage")]
    return int(1.1 * ranks.size * sum(local(part).nbytes for part in parts)) + 2**20


def write(trainer: Any, path: Path, ranks: Group, without: Container[str]) -> Exception | None:
    """Let the strategy save on every process, all of it or `without` some parts. Return the error on all, or None.

    The Trainer waits for all processes after the strategy has saved. One that raised an error would not come.
    """
    strategy = trainer.strategy
    before, failure = strategy.save_checkpoint, None

    def guarded(checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        nonlocal failure
        try:
            kept = {name: part for name, part in checkpoint.items() if name not in without}
            buffers = dict(trainer.lightning_module.named_buffers())  # such as the running means of BatchNorm
            if any(own := ranks.gather(differing(buffers, ranks))):
                kept[DIFFER] = own
            with ordinary_errors():
                before(kept, filepath, storage_options=storage_options)
            force(path)  # a part may not have left the memory of this machine
        except Exception as error:
            failure = error

    strategy.save_checkpoint = guarded
    try:
        trainer.save_checkpoint(path, weights_only=False)
    except Exception as error:  # the state cannot be collected
        failure = error
    finally:
        del strategy.save_checkpoint
    texts = ranks.gather(None if failure is None else f"{type(failure).__name__}: {failure}")
    return failure or next((OSError(text) for text in texts if text is not None), None)


def put_back(trainer: Any, checkpoint: dict[str, Any]) -> None:
    """Set the buffers of this process that differ between processes: Lightning saves those of one."""
    own = checkpoint.get(DIFFER, [])
    if len(own) == trainer.world_size:
        for name, value in trainer.lightning_module.named_buffers():
            if name in own[trainer.global_rank]:
                value.copy_(own[trainer.global_rank][name])


def check(path: Path) -> None:
    """Raise an error if a part of a folder is missing."""
    if path.is_dir():
        check_parts(path)


def metadata(path: Path) -> Path:
    """Return the file of a checkpoint that has all but tensors."""
    return path / OF_LIGHTNING if path.is_dir() else path
