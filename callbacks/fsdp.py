"""What checkpoints of Accelerate and of the Trainer lack under FSDP and DeepSpeed, in files next to theirs.

Under FSDP Accelerate writes the folders pytorch_model_fsdp_0 and optimizer_0, every rank its parts, or files with the
whole state (FULL_STATE_DICT). Under both, buffers that differ between ranks, such as the running means of BatchNorm,
are saved for one rank only; each rank's own are in 0.parts, 1.parts. And the first version of FSDP loads no state of an
optimizer that has made no step: see `load_optimizers`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from haltune.ranks import torch_ranks
from haltune.study import Trial

from .sharded import PARTS, check_parts, differing, load_parts, metadata_of, plain_name, unstepped


def plugin(accelerator: Any) -> Any:
    """Return Accelerate's description of FSDP, or None if it does not shard the model by FSDP."""
    return getattr(getattr(accelerator, "state", None), "fsdp_plugin", None)


def deepspeed_lacks(accelerator: Any) -> str | None:
    """Return why checkpoints of Accelerate under DeepSpeed may lack a part of the state; None for ZeRO in memory."""
    plugin = None if accelerator is None else accelerator.state.deepspeed_plugin
    return zero_lacks(None if plugin is None else plugin.deepspeed_config)


def zero_lacks(config: Mapping[str, Any] | None) -> str | None:
    """Return why checkpoints of DeepSpeed with this configuration may lack state; None for ZeRO in memory."""
    if not (config or {}).get("zero_optimization", {}).get("stage") or '"nvme"' in json.dumps(config, default=str):
        return "under DeepSpeed haltune knows the whole state of ZeRO 1, 2 and 3 only (and none on NVMe)"
    return None


def warn_of_buffers(models: Iterable[Any], trial: Trial) -> dict[str, Any]:
    """Return this rank's buffers that differ between ranks, and warn of them. Every rank calls it."""
    return differing(_buffers(models), torch_ranks(), trial)


def write_buffers(folder: Path, models: Iterable[Any], trial: Trial) -> None:
    """Write this rank's buffers that differ between ranks, and warn of them. Every rank calls it."""
    import torch

    if own := warn_of_buffers(models, trial):
        torch.save({"differ": own, "also": {}}, folder / torch_ranks().own(PARTS))


def load_buffers(folder: Path, models: Iterable[Any]) -> None:
    """Set the buffers that this rank wrote."""
    if (file := folder / torch_ranks().own(PARTS)).is_file():
        buffers = _buffers(models)
        for name, value in load_parts(file)["differ"].items():
            if name in buffers:
                buffers[name].copy_(value)


def _buffers(models: Iterable[Any]) -> dict[str, Any]:
    return {plain_name(name): value for model in models for name, value in model.named_buffers()}


def load_optimizers(accelerator: Any, optimizers: Iterable[Any], models: Iterable[Any], folder: Path) -> None:
    """Load the states of optimizers that Accelerate has left out of a sharded checkpoint.

    Under the first version of FSDP it asks the optimizer which tensors to load, and a new optimizer has none. So the
    optimizer makes them first, and is loaded again.
    """
    described = plugin(accelerator)
    if described is None or described.fsdp_version != 1 or "SHARDED" not in str(described.state_dict_type):
        return
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, create_default_local_load_plan
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    class Planner(DefaultLoadPlanner):  # type: ignore[misc, unused-ignore]
        """Without its search for files of torch 2.3, which fails on a rank that has no part of a small tensor."""

        def create_local_plan(self) -> Any:
            return create_default_local_load_plan(self.state_dict, self.metadata, True)

    for i, (wrapped, model) in enumerate(zip(optimizers, models, strict=False)):
        optimizer = getattr(wrapped, "optimizer", wrapped)
        state = {"optimizer": get_optimizer_state_dict(model, optimizer)}  # which the optimizer makes for this
        dcp.load(state, checkpoint_id=folder / f"optimizer_{i}", planner=Planner())
        set_optimizer_state_dict(model, optimizer, state["optimizer"])


def lacks(accelerator: Any, optimizers: Iterable[Any]) -> str | None:
    """Return why FSDP would not load a state of these optimizers; None if it would."""
    described = plugin(accelerator)
    if described is None or described.fsdp_version != 2 or "FULL" not in str(described.state_dict_type):
        return None
    if all(optimizer.state for optimizer in optimizers):
        return None
    return (
        "with FULL_STATE_DICT FSDP loads no optimizer without a state, such as before its first step (use "
        "SHARDED_STATE_DICT)"
    )


def reshards(accelerator: Any) -> bool:
    """Return whether another number of ranks can load its checkpoints: PyTorch's DCP has all tensors, under FSDP2."""
    described = plugin(accelerator)
    return described is not None and described.fsdp_version == 2 and "SHARDED" in str(described.state_dict_type)


def saves(optimizers: Iterable[Any]) -> AbstractContextManager[None]:
    """Let FSDP save optimizers that have made no step as they are."""
    return unstepped(getattr(optimizer, "optimizer", optimizer) for optimizer in optimizers)


def loads(optimizers: Iterable[Any], folder: Path) -> AbstractContextManager[None]:
    """Let FSDP load optimizers that had made no step as they were."""
    return saves(optimizer for i, optimizer in enumerate(optimizers) if not _has_state(folder, i))


def _has_state(folder: Path, i: int) -> bool:
    """Return whether an optimizer had made a step."""
    import torch

    if (sharded := folder / f"optimizer_{i}").is_dir():
        return any(path[:2] == ("optimizer", "state") for path in metadata_of(sharded).planner_data.values())
    whole = folder / ("optimizer.bin" if i == 0 else f"optimizer_{i}.bin")
    return not whole.is_file() or bool(torch.load(whole, map_location="cpu", mmap=True, weights_only=True)["state"])


def check(folder: Path) -> None:
    """Raise InvalidInput if a part of a checkpoint is missing."""
    for file in folder.glob("*/.metadata"):
        check_parts(file.parent)
