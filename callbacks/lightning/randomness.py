"""The random state of a Lightning training: put back so that a resumed fit draws what the paused one would have.

It is put back at the first on_train_epoch_start, before any other hook, and Lightning then draws the
epoch's shuffling again as it would have. Generators that the user gave to loaders and samplers are
saved by where they are. Those inside persistent worker processes cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..frameworks import randomness
from .progress import at_boundary


def capture(trainer: Any) -> dict[str, Any]:
    """This process's random state, of primitives only."""
    loaders = {name: randomness.of_tensor(g.get_state()) for name, g in _generators(trainer)}
    reloaded = getattr(
        trainer.fit_loop, "_last_train_dl_reload_epoch", 0
    )  # for reload_dataloaders_every_n_epochs
    return randomness.capture() | {"loaders": loaders, "reloaded": reloaded}


def restore(trainer: Any, state: dict[str, Any]) -> None:
    """Go on with `state` in the epoch that is about to start."""
    randomness.restore(state)
    for name, generator in _generators(trainer):
        if name in state["loaders"]:
            generator.set_state(randomness.tensor_of(state["loaders"][name]))
    if at_boundary(trainer):
        trainer.fit_loop._last_train_dl_reload_epoch = state["reloaded"]
        _begin_a_new_epoch(trainer.fit_loop)


def _begin_a_new_epoch(loop: Any) -> None:
    """Let Lightning go on as after an epoch of its own: make a new iterator, step the schedules at its end.

    Since 2.6 a resuming loop keeps the iterator that it made before its state was complete; and with
    max_steps it takes every checkpoint for one within an epoch.
    """
    loop._resuming_from_checkpoint = False
    loop._restarting = False
    loop.epoch_loop.restarting = False


def _generators(trainer: Any) -> Iterator[tuple[str, Any]]:
    """(where, generator) of the loaders and samplers that have their own, each generator once."""
    seen: set[int] = set()
    for phase, loaders in (("train", trainer.train_dataloader), ("val", trainer.val_dataloaders)):
        for i, loader in enumerate(_leaves(loaders)):
            batches = getattr(loader, "batch_sampler", None)
            owners = {
                "loader": loader,
                "sampler": getattr(loader, "sampler", None),
                "batches": batches,
                "batches.sampler": getattr(batches, "sampler", None),
            }
            for name, owner in owners.items():
                generator = getattr(owner, "generator", None)
                if hasattr(generator, "get_state") and id(generator) not in seen:
                    seen.add(id(generator))
                    yield f"{phase}.{i}.{name}", generator


def _leaves(loaders: Any) -> Iterator[Any]:
    """The loaders in whatever collection the user gave."""
    if isinstance(loaders, dict):
        loaders = list(loaders.values())
    loaders = getattr(loaders, "flattened", loaders)
    if isinstance(loaders, (list, tuple)):
        for loader in loaders:
            yield from _leaves(loader)
    elif loaders is not None:
        yield loaders
