"""The ranks of one fit, which a framework connects: rank 0 decides, and its answer or its error is broadcast.

Every rank must make the same calls in the same order. A rank that calls alone waits forever.
"""

from __future__ import annotations

import atexit
import copy
import multiprocessing
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from haltune.display import one_line
from haltune.errors import NotSupported

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """The ranks of one fit; by default a single process.

    rank, size: this process's rank, and the number of processes. broadcast: (value, rank) -> that rank's value. every:
    value -> the values of all ranks, in one collective; None: by a broadcast from each.
    """

    rank: int = 0
    size: int = 1
    broadcast: Callable[[Any, int], Any] | None = None  # unused by a single process
    every: Callable[[Any], list[Any]] | None = None

    @property
    def alone(self) -> bool:
        return self.size == 1 or self.broadcast is None

    def first(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work` on rank 0; None on the others, which do not wait."""
        return work() if self.rank == 0 else None

    def own(self, name: str) -> str:
        """Return the name of this rank's own file: `name` with {} for the rank."""
        return name.format(self.rank)

    def once(self, question: Callable[[], T]) -> T:
        """Call `question` on rank 0 only; return its answer, or raise its error, on every rank."""
        if self.size == 1 or self.broadcast is None:
            return question()
        answer, error = None, None
        try:
            answer = self.first(question)
        except BaseException as raised:  # Ctrl-C, too: the other ranks wait for an answer
            error = raised
        answer, travelled = self.broadcast((answer, _portable(error)), 0)
        if travelled is not None:
            raise error or travelled  # rank 0 raises its own, with its traceback
        return answer  # type: ignore[no-any-return]

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank."""
        if self.size == 1 or self.broadcast is None:
            return [value]
        return self.every(value) if self.every else [self.broadcast(value, rank) for rank in range(self.size)]

    def first_reason(self, why_not: Callable[[], str | None]) -> str | None:
        """Return the answer of the first rank that has one. Every rank asks, so an error is an answer, too."""
        try:
            why = why_not()
        except Exception as error:
            if self.alone:
                raise
            why = one_line(error)
        return next((one for one in self.gather(why) if one is not None), None)


def torch_ranks() -> Group:
    """Return the ranks of torch.distributed's default process group; a single rank without one."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Group()

    def broadcast(value: Any, rank: int) -> Any:
        box = [value]
        distributed.broadcast_object_list(box, src=rank)
        return box[0]

    def every(value: Any) -> list[Any]:
        box = [None] * distributed.get_world_size()
        distributed.all_gather_object(box, value)
        return box

    return Group(distributed.get_rank(), distributed.get_world_size(), broadcast, every)


@contextmanager
def in_place_of_barriers(meet: Callable[[], object]) -> Iterator[None]:
    """Call `meet` where torch waits for all ranks in a block, in this thread.

    torch has no hook at its barriers, and frameworks call them where they save. Without the replaced function, a rank
    that cannot write its part would leave the others there, until the timeout of their group.
    """
    if torch_ranks().alone:
        yield
        return
    distributed: Any = sys.modules["torch"].distributed
    before, here = distributed.barrier, threading.get_ident()

    def barrier(group: Any = None, async_op: bool = False, *args: Any, **named: Any) -> Any:
        of_all = distributed.get_world_size(group) == distributed.get_world_size()  # DeepSpeed has such a group
        if async_op or not of_all or threading.get_ident() != here:
            return before(group, async_op, *args, **named)
        return meet()

    distributed.barrier = barrier
    try:
        yield
    finally:
        distributed.barrier = before


def without_barriers() -> AbstractContextManager[None]:
    """Raise NotSupported where torch waits for the other ranks in a block of rank 0 alone: they would never come."""

    def refuse() -> None:
        raise NotSupported(
            "save waits for the other ranks, as fabric.save does, but rank 0 alone calls it (in TrainingLoop(trial, "
            "together=True, save=lambda path: fabric.save(path / 'state.ckpt', state)) every rank calls it)"
        )

    return in_place_of_barriers(refuse)


def _portable(error: BaseException | None) -> BaseException | None:
    """Return the error in a form that can be sent; one that cannot be pickled becomes a RuntimeError with its text."""
    if error is None:
        return None
    with suppress(Exception):
        pickle.dumps(error)  # as the broadcast does; then test that it can be rebuilt
        twin = copy.copy(error)
        if type(twin) is type(error) and str(twin) == str(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")


@cache  # once in a process
def leave_group_at_exit() -> None:
    """End gloo's default process group before the interpreter ends, in a process that a strategy spawned.

    Nothing else ends it. gloo's threads may still hold tensors of the last collective while the interpreter shuts down.
    If a tensor is freed then, the process aborts (about once in some hundred times), and so does the launch.
    """
    if multiprocessing.parent_process() is not None:
        atexit.register(_leave)


def _leave() -> None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_backend() == "gloo":
        with suppress(Exception):  # the process ends in any case
            distributed.destroy_process_group()
