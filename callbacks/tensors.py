"""The tensors and weights of torch models: the parts that this process holds, and digests of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .reporter import digest

_SAMPLED = 64  # elements of a tensor in a fingerprint, in addition to its sum
FSDP1 = "FullyShardedDataParallel"  # the class of modules under the first version of FSDP


def local(tensor: Any) -> Any:
    """Return the part of a tensor that this process holds: all of it, unless it is spread over several."""
    tensor = getattr(tensor, "ds_tensor", tensor).detach()  # ZeRO 3 of DeepSpeed
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def fingerprint_of(tensors: list[Any]) -> str:
    """Return a digest of a sum and of a few elements of each tensor.

    All elements are read where they are, and few are copied. Their versions would not do: an average that is written by
    `tensor.data` has the same version.
    """
    import torch

    shapes = repr([(tuple(t.shape), t.dtype) for t in tensors]).encode()
    parts: dict[Any, list[Any]] = {}  # bytes by device, for one copy from each
    for t in (local(t) for t in tensors if t.device.type != "meta" and t.layout is torch.strided):
        flat = (torch.view_as_real(t) if t.is_complex() else t).reshape(-1)
        flat = flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)  # it has gaps
        few = flat[:: len(flat) // _SAMPLED + 1].clone(memory_format=torch.contiguous_format)
        parts.setdefault(t.device, []).extend(part.view(torch.uint8) for part in (*_sums(flat), few))
    return digest([shapes, *(torch.cat(of_device).cpu().numpy() for of_device in parts.values())])


def _sums(flat: Any) -> tuple[Any, Any]:
    """Return the sum of all bits, 64 at a time, and what is left over. A sum of numbers takes 20 times as long."""
    import torch

    whole = len(flat) - len(flat) % (8 // flat.element_size())
    bits = flat[:whole]
    if bits.storage_offset() * bits.element_size() % 8:
        bits = bits.clone()
    return bits.view(torch.int64).sum()[None], flat[whole:]


def outside(models: Iterable[Any], optimizers: Iterable[Any], copies: bool = False) -> list[Any]:
    """Return the weights that torch's optimizers train outside the models, such as those of a loss.

    Buffers, and what a state_dict of a model's own adds, are of the model. copies: also if all are outside;
    otherwise these count as flat copies, which their optimizer saves.
    """
    models = [*models]
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    trained = [weight for group in groups for weight in group["params"] if weight.requires_grad]
    own = {id(weight) for model in models for weight in model.parameters()}
    found = [weight for weight in trained if id(weight) not in own]
    if not found or (len(found) == len(trained) and not copies):
        return []
    states = (value for model in models for value in model.state_dict().values())
    saved = {value.data_ptr() for value in states if hasattr(value, "data_ptr")}
    return [weight for weight in found if weight.data_ptr() not in saved]


def weights(model: Any) -> list[Any]:
    """Return the parameters of a torch model, under FSDP the parts that this process holds.

    There the parameters of a module are whole after a validation and parts after a step, so they cannot be compared.
    FSDP has no public names for the parts. Without them, haltune would take a model for another one after a validation,
    and not keep it.
    """
    own, others = [], set()  # parts, and ids of the parameters that share their weights
    for module in model.modules():
        if type(module).__name__ == FSDP1 and module._has_params:
            flat = module._flat_param
            own.append(getattr(flat, "_local_shard", flat))
            others |= {id(flat), *map(id, getattr(flat, "_params", None) or ())}
        elif hasattr(module, "_get_fsdp_state"):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
            for one in (one for group in groups if group is not None for one in group.fsdp_params):
                own.append(one.sharded_param)
                others |= {id(one.sharded_param), id(getattr(one, "_unsharded_param", None))}
    return own + [p for p in model.parameters() if id(p) not in others]


def storage(tensor: Any) -> int:
    """Return the place of a tensor's elements in memory: tensors that share them have the same."""
    return int(local(tensor).untyped_storage().data_ptr())


def storages(model: Any) -> set[int]:
    """Return the storages of a torch model's weights."""
    return {storage(t) for t in (*model.parameters(), *model.buffers())}
