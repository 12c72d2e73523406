"""Before and after all other callbacks: where Lightning's order of hooks decides what is true.

- `First` sees on_train_epoch_start and on_train_end before the others: random state is put back
  before anybody draws, and the final state is saved before weights are averaged into the model.
- `Last` sees on_train_epoch_end after the others and after the module's own, so that every metric of
  the epoch is there. Lightning calls only early stopping and checkpoint callbacks that late, by an
  isinstance test: so it is a `Checkpoint`, but to the function that makes this test alone. To all others,
  trainer.checkpoint_callback and loggers among them, it is a plain callback.

They are there from `setup` to `teardown`. The list of callbacks is replaced, never changed:
Lightning is iterating over it.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from ..frameworks.portable import Portable, framework_bases

if TYPE_CHECKING:
    from lightning.pytorch import Callback as _Base
else:
    _Base = object

_CALLER = "_call_callback_hooks"  # Lightning's function that calls the hooks of callbacks


class _Relay(Portable):
    """`owner`: the callback whose methods are called."""

    _base = "Callback"
    _homes = ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks")

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    @property
    def state_key(self) -> str:
        return f"haltune.{type(self).__name__}"


class First(_Relay, _Base):  # type: ignore[misc]
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.owner.epoch_starts(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.owner.training_ends(trainer)


class Last(_Relay, _Base):  # type: ignore[misc]
    @property  # type: ignore[misc]
    def __class__(self) -> type:  # what isinstance looks at when the type itself is no answer
        return _late(framework_bases(self._homes, "", "Checkpoint")) if _called_by_lightning() else type(self)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.owner.epoch_ends(trainer)


def _called_by_lightning() -> bool:
    """True when the function that looks at `__class__` now is the one that calls hooks, or a comprehension in it."""
    frame: Any = sys._getframe(2)
    if frame.f_code.co_name == "<listcomp>":
        frame = frame.f_back
    return bool(frame.f_code.co_name == _CALLER)


@functools.cache
def _late(bases: tuple[type, ...]) -> type:
    """A class of which all `bases` are bases."""
    return type("Late", bases, {})


def take(trainer: Any, owner: Any) -> None:
    """Stand before and after the other callbacks."""
    leave(trainer, owner)
    trainer.callbacks = [First(owner), *trainer.callbacks, Last(owner)]


def leave(trainer: Any, owner: Any) -> None:
    """Go, if `owner` was there."""
    mine = [c for c in trainer.callbacks if isinstance(c, _Relay) and c.owner is owner]
    if mine:
        trainer.callbacks = [c for c in trainer.callbacks if c not in mine]
