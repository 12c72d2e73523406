"""Saving under strategies that spread a model over the processes.

Those are ModelParallelStrategy (FSDP2 and tensor parallelism), FSDPStrategy and DeepSpeedStrategy. The strategy writes
the folder itself, every process its part, and loads it with `ckpt_path=`. No process has the whole state, so what
`checkpoint` and `resuming` compare is this process's part.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from haltune._utils.disk import force
from haltune.display import plural
from haltune.ranks import Group
from haltune.study import Trial

from .. import fsdp
from ..loop import other_ranks, together
from ..sharded import DIFFER, OF_LIGHTNING, apart, check_parts, differing
from ..tensors import local

_STRATEGIES = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy"}


def sharded(trainer: Any) -> bool:
    """Return whether no process has the whole state."""
    return not _STRATEGIES.isdisjoint([kind.__name__ for kind in type(trainer.strategy).__mro__])


def _zero(trainer: Any) -> bool:
    """Return whether DeepSpeed spreads the state."""
    return any(kind.__name__ == "DeepSpeedStrategy" for kind in type(trainer.strategy).__mro__)


def cannot_save(trainer: Any, resumes: bool = True) -> str | None:
    """Return why this strategy does not save the whole state; None if it does.

    resumes: the trial is to resume from it; otherwise only weights count.
    """
    if resumes and sharded(trainer) and (lost := apart(trainer.optimizers)) is not None:
        return lost
    if not _zero(trainer):
        return None
    strategy, weights = trainer.strategy, trainer.lightning_module.parameters()
    if getattr(strategy, "exclude_frozen_parameters", False) and not all(w.requires_grad for w in weights):
        return "exclude_frozen_parameters=True leaves the frozen weights out of its checkpoints (delete this argument)"
    if resumes and strategy.load_full_weights and strategy.zero_stage_3:
        return "with load_full_weights=True a fit loads one file, not the folder of a pause (delete this argument)"
    return fsdp.zero_lacks(strategy.config)


def need_ranks(trainer: Any, trial: Trial) -> None:
    """Raise NotSupported if DeepSpeed cannot load the checkpoint, because another number of ranks has written it."""
    if _zero(trainer) and trial.checkpoint is not None:
        wrote = _parts(Path(trial.checkpoint))
        if wrote not in (0, trainer.world_size):
            raise other_ranks(trial.id, wrote, trainer.world_size)


def _parts(folder: Path) -> int:
    """Return the number of ranks whose part of DeepSpeed's state is in a folder."""
    return len([*folder.glob("*/*_optim_states.pt")])


def loads_late(trainer: Any) -> bool:
    """Return whether Lightning loads a checkpoint after on_fit_start."""
    return bool(trainer.strategy.restore_checkpoint_after_setup)


def bytes_needed(trainer: Any, ranks: Group) -> int:
    """Return the approximate bytes of a checkpoint, from the parts of this process."""
    module, zero = trainer.lightning_module, _zero(trainer)
    one = each = 0  # bytes that one process writes, and that each does
    for tensor in (*module.parameters(), *module.buffers()):
        if zero and not hasattr(tensor, "ds_tensor"):
            one += tensor.nbytes
        else:
            each += local(tensor).nbytes
    for optimizer in trainer.optimizers:
        for weights, state in optimizer.state.items():  # those of ZeRO are copies in single precision
            parts = [*state.values(), *([weights] if zero else [])]
            each += sum(local(v).nbytes for v in parts if hasattr(v, "untyped_storage"))
    return int(1.1 * (one + ranks.size * each)) + 2**20


def write(trainer: Any, trial: Trial, path: Path, ranks: Group, without: Container[str]) -> Exception | None:
    """Let the strategy save on every process, all of it or `without` some parts. Return the error on all, or None.

    The Trainer waits for all processes after the strategy has saved. One that raised an error would not come.
    """
    strategy = trainer.strategy
    before, failure = strategy.save_checkpoint, None

    def guarded(checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        nonlocal failure
        try:
            kept = {name: part for name, part in checkpoint.items() if name not in without}
            kept |= own_buffers(trainer, trial, ranks)
            together(lambda: before(kept, filepath, storage_options=storage_options))
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


def own_buffers(trainer: Any, trial: Trial, ranks: Group) -> dict[str, Any]:
    """Return each rank's buffers that differ between ranks, such as the running means of BatchNorm, for a checkpoint.

    Every rank calls it.
    """
    own = ranks.gather(differing(dict(trainer.lightning_module.named_buffers()), ranks, trial))
    return {DIFFER: own} if any(own) else {}


def put_back(trainer: Any, checkpoint: dict[str, Any]) -> None:
    """Set the buffers of this process that differ between processes: Lightning saves those of one."""
    own = checkpoint.get(DIFFER, [])
    if len(own) == trainer.world_size:
        for name, value in trainer.lightning_module.named_buffers():
            if name in own[trainer.global_rank]:
                value.copy_(own[trainer.global_rank][name])


def check(trainer: Any, path: Path) -> None:
    """Raise an error if a part of a folder is missing."""
    if _zero(trainer):
        if missing := trainer.world_size - _parts(path):
            raise OSError(f"{plural(missing, 'part')} missing: all ranks must write to one shared folder")
    elif path.is_dir():
        check_parts(path)


def metadata(path: Path) -> Path:
    """Return the file of a checkpoint that has all but tensors."""
    return path / OF_LIGHTNING if path.is_dir() else path
