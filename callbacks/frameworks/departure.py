"""How a process that a strategy spawned leaves torch.distributed: before Python does.

Nothing in a spawned process ends its process group. Threads of gloo may then still hold tensors of the last
collective while the interpreter is torn down, and whoever frees one there aborts the process (SIGABRT): the training
is over, and its launch fails all the same, once in some hundred times. Processes that are forked leave Python at once.
"""

from __future__ import annotations

import atexit
import multiprocessing
import sys
from contextlib import suppress
from functools import cache


@cache  # once in a process
def leave_group_at_exit() -> None:
    """End gloo's default process group before the interpreter ends, in a process that was started for a training."""
    if multiprocessing.parent_process() is not None:
        atexit.register(_leave)


def _leave() -> None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_backend() == "gloo":
        with suppress(Exception):  # it ends all the same
            distributed.destroy_process_group()
