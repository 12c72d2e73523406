"""Before and after all other callbacks: where Lightning's order of hooks decides what is true.

- `First` sees on_train_epoch_start and on_train_end before the others: random state is put back
  before anybody draws, and the final state is saved before weights are averaged into the model.
- `Last` sees on_train_epoch_end after the others and after the module's own, so that every metric of
  the epoch is there. Lightning calls only early stopping and checkpoint callbacks that late, by an
  isinstance test: so it is, in name, a `Checkpoint`; it saves nothing.

They hold these places from `setup` to `teardown`. The list of callbacks is replaced, never changed:
Lightning is iterating over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .portable import Portable

if TYPE_CHECKING:
    from lightning.pytorch import Callback as _Base
    from lightning.pytorch.callbacks import Checkpoint as _Late
else:
    _Base = _Late = object


class _Place(Portable):
    """`owner`: the callback whose methods are called."""

    _base = "Callback"
    _homes = ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks")

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    @property
    def state_key(self) -> str:
        return f"haltune.{type(self).__name__}"


class First(_Place, _Base):  # type: ignore[misc]
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.owner.epoch_starts(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.owner.training_ends(trainer)


class Last(_Place, _Late):  # type: ignore[misc]
    _base = "Checkpoint"

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.owner.epoch_ends(trainer)


def take(trainer: Any, owner: Any) -> None:
    """Stand before and after the other callbacks."""
    leave(trainer, owner)
    trainer.callbacks = [First(owner), *trainer.callbacks, Last(owner)]


def leave(trainer: Any, owner: Any) -> None:
    """Go, if `owner` was there."""
    mine = [c for c in trainer.callbacks if isinstance(c, _Place) and c.owner is owner]
    if mine:
        trainer.callbacks = [c for c in trainer.callbacks if c not in mine]
