"""The processes of a training that torch.distributed connects, whoever connected them."""

from __future__ import annotations

import sys
from typing import Any

from .ranks import Agreement


def torch_ranks() -> Agreement:
    """The ranks of the default process group; one alone without such a group."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Agreement()

    def broadcast(value: Any, rank: int) -> Any:
        box = [value]
        distributed.broadcast_object_list(box, src=rank)
        return box[0]

    return Agreement(distributed.get_rank(), distributed.get_world_size(), broadcast)
