"""One process decides, all obey: what rank 0 answered, or what it raised, holds on every rank.

Every rank must ask in the same places, whether it has something to say or not: a rank that asks alone waits for ever.
"""

from __future__ import annotations

import atexit
import copy
import multiprocessing
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Agreement:
    """The processes of one training.

    rank, size: this process among how many. broadcast: (value, rank) -> that rank's value, on every rank.
    """

    rank: int = 0
    size: int = 1
    broadcast: Callable[[Any, int], Any] | None = None  # unused by a single process

    def decide(self, question: Callable[[], T]) -> T:
        """Return the answer of rank 0, which alone asks `question`; what that raised is raised on every rank."""
        if self.size == 1 or self.broadcast is None:
            return question()
        answer, error = None, None
        if self.rank == 0:
            try:
                answer = question()
            except BaseException as raised:  # Ctrl-C too: the others wait for an answer
                error = raised
        answer, travelled = self.broadcast((answer, _portable(error)), 0)
        if travelled is not None:
            raise error or travelled  # rank 0 raises its own, with its traceback
        return answer  # type: ignore[no-any-return]

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank."""
        if self.size == 1 or self.broadcast is None:
            return [value]
        return [self.broadcast(value, rank) for rank in range(self.size)]


def torch_ranks() -> Agreement:
    """Return the ranks of torch.distributed's default process group; a single rank without one."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Agreement()

    def broadcast(value: Any, rank: int) -> Any:
        box = [value]
        distributed.broadcast_object_list(box, src=rank)
        return box[0]

    return Agreement(distributed.get_rank(), distributed.get_world_size(), broadcast)


def _portable(error: BaseException | None) -> BaseException | None:
    """The error as it can be sent: one that does not survive pickling becomes a RuntimeError of its words."""
    if error is None:
        return None
    with suppress(Exception):
        pickle.dumps(error)  # as the broadcast does; and it can be rebuilt from that:
        twin = copy.copy(error)
        if type(twin) is type(error) and str(twin) == str(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")


@cache  # once in a process
def leave_group_at_exit() -> None:
    """End gloo's default process group before the interpreter ends, in a process that a strategy spawned.

    Nothing else does, and gloo's threads may still hold tensors of the last collective while the interpreter is torn
    down: whoever frees one there aborts the process, once in some hundred times, and with it the launch.
    """
    if multiprocessing.parent_process() is not None:
        atexit.register(_leave)


def _leave() -> None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_backend() == "gloo":
        with suppress(Exception):  # it ends all the same
            distributed.destroy_process_group()
