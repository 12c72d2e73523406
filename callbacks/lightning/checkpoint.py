"""The state of a Lightning training: a file that all ranks write together, including the random state.

The random state is restored at the first on_train_epoch_start, before any other hook. Then Lightning shuffles the epoch
as in an uninterrupted training. Generators that the user gave to loaders and samplers are saved by their position.
Those in persistent worker processes cannot be saved.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from haltune._utils import generators, own_generators, randomness
from haltune.errors import NotSupported
from haltune.ranks import Group

from .. import plain
from ..behind import Behind, copied
from ..changes import makers
from ..reporter import Reporter
from ..schedules import make_plain
from . import shards
from .checks import at_boundary, leaves, loader_parts, stateful
from .internals import given_loaders, loader_epoch, loads_anything, skip_batches, start_new_epoch
from .resuming import differ, pruned, sample

TRAINED = "haltune_weights"  # in a file: the weights that train, if its state_dict has others
_TO_CONTINUE = (  # parts of a file that only a resumed fit needs
    "callbacks", "optimizer_states", "lr_schedulers", "current_model_state", "averaging_state", "haltune",
)  # fmt: skip
_MARGIN = 2**16  # bytes for the random state and for the names of tensors in the file
_SEED = "PL_GLOBAL_SEED"  # variable of the environment: the seed with which Lightning makes samplers


def save(
    trainer: Any,
    reporter: Reporter,
    ranks: Group,
    evaluated: Mapping[str, Any],
    remember: Callable[[], None] | None = None,
    check: Callable[[], None] | None = None,
    best_epoch: bool = False,
    behind: Behind | None = None,
) -> None:
    """Save the final state if the trial may resume or is kept. Every rank calls this.

    evaluated: a sample of the weights whose value was reported; a file with others is not kept for the user, and one to
        resume from is never that of the best.
    remember: called on every rank before the final state is collected. check: raises an error if it would not resume
        exactly.
    best_epoch: save only weights and hyperparameters, for the user, if the epoch just reported is the trial's best.
    behind: a single process writes the best epoch by it, while the fit continues.
    """

    def place() -> tuple[bool, Path | None]:
        """Return whether the file is only for the user, and its path; None if nothing is to be saved."""
        keeps = best_epoch or not reporter.saves
        found: list[Path] = []

        def begin() -> None:
            if (why := shards.cannot_save(trainer, resumes=not keeps)) is not None:
                raise NotSupported(why)
            if check is not None and not keeps:
                check()
            found.append(reporter.trial.begin_save(keep=best_epoch))

        if reporter.keeps_epoch if best_epoch else reporter.saves or reporter.keeps:
            reporter.attempt(begin, over=not keeps, keeps=keeps)
        return keeps, found[0] if found else None

    keeps, path = ranks.once(place)
    if path is None:
        return
    began = reporter.clock.now()
    if remember is not None:
        remember()
    other = False  # the file has other weights than were evaluated
    if shards.sharded(trainer):
        error = shards.write(trainer, reporter.trial, path, ranks, _TO_CONTINUE if best_epoch else ())
    else:
        guarded = _Guarded(trainer.strategy.checkpoint_io, evaluated, keeps, best_epoch, behind is not None)
        guarded.own = shards.own_buffers(trainer, reporter.trial, ranks)
        guarded.trained = {} if keeps else trainer.strategy.lightning_module_state_dict()
        try:
            _save(trainer, path, guarded)
        except Exception as failure:  # the state cannot be collected
            guarded.error = failure
        error, other = guarded.error, guarded.other
        if behind is not None and guarded.write is not None:
            behind.start(path, guarded.write, began)
            return

    def publish() -> None:
        def commit() -> None:
            if error is not None:
                raise error
            shards.check(trainer, path)
            reporter.trial.commit_save(path, reporter.clock.now() - began, best_epoch, other)

        try:
            refused = None if error else _refused(shards.metadata(path))
            saved = reporter.attempt(commit, over=not keeps, keeps=keeps)
        finally:
            reporter.trial.give_up_save(path)  # it still exists only after a failure
        if saved and refused:
            how = "load it with" if keeps else "continue with"
            call = "load_from_checkpoint(path" if keeps else "trainer.fit(..., ckpt_path=trial.checkpoint"
            reporter.warn_once(
                "weights_only",
                f"The checkpoint of trial {reporter.trial.id} has {refused}, from the module's hyperparameters or a "
                f"callback's state. By default, torch does not load it, so {how} {call}, weights_only=False)",
            )

    ranks.once(publish)


def bytes_needed(trainer: Any, ranks: Group) -> int:
    """Return the approximate bytes of a checkpoint. A single process makes it in memory without its tensors.

    Raises the error that prevents a checkpoint, or NotSupported if it could not be loaded again. This is checked before
    the training stops, because afterwards it cannot continue.
    """
    import torch

    if shards.sharded(trainer):
        return shards.bytes_needed(trainer, ranks)
    sizes: dict[int, int] = {}  # tensors that share a storage count once
    if ranks.size > 1:  # collecting the state may be a collective, but only rank 0 runs this
        modules = [trainer.lightning_module]
        for callback in trainer.callbacks:  # averaged weights
            modules += [v for v in vars(callback).values() if isinstance(v, torch.nn.Module)]
        for module in modules:
            _stripped([*module.parameters(), *module.buffers()], sizes)
        for optimizer in trainer.optimizers:
            _stripped(list(optimizer.state.values()), sizes)
        return int(1.1 * sum(sizes.values())) + 2**20
    kept = _Kept(trainer.strategy.checkpoint_io)
    _save(trainer, "", kept)
    buffer = io.BytesIO()
    torch.save(_stripped(kept.checkpoint, sizes), buffer)
    length = buffer.tell()
    buffer.seek(0)
    if not loads_anything() and (found := _refused(buffer)) is not None:
        raise NotSupported(
            f"its checkpoint would have {found}, from the module's hyperparameters or a callback's state, which torch "
            "does not load by default: use numbers, texts and lists there (str(path) for a path), or call "
            "trainer.fit(..., weights_only=False)"
        )
    return sum(sizes.values()) + length + _MARGIN


def _stripped(value: Any, sizes: dict[int, int]) -> Any:
    """Return the value without tensors, and count their bytes by storage."""
    import torch

    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return None
    if isinstance(value, Mapping):
        return {k: _stripped(v, sizes) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_stripped(v, sizes) for v in value)
    return value


def _refused(file: Path | io.BytesIO) -> str | None:
    """Return the object in a checkpoint that torch.load refuses with weights_only, its default; None without one."""
    import torch

    where: Any = str(file) if isinstance(file, Path) else file
    try:
        torch.load(where, map_location="cpu", mmap=isinstance(file, Path), weights_only=True)  # reads no tensor
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        return found[1] if found else "an object"
    except Exception:  # the user's own format
        return None
    return None


class _Plugin:
    """The Trainer's plugin for writing files (a CheckpointIO), with another save_checkpoint."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plugin, name)


class _Kept(_Plugin):
    """Plugin that keeps the checkpoint in memory."""

    checkpoint: Any = None

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self.checkpoint = checkpoint


class _Guarded(_Plugin):
    """Plugin that writes before it returns. It stores errors on rank 0 instead of raising them.

    If one rank raised an error, the others would wait for it forever.

    evaluated: see `save`. keeps: the file is for the user. light: it has only what loads the module. copies: the plugin
    copies the state, and leaves the writing to `write`.
    """

    error: Exception | None = None
    own: Mapping[str, Any] = {}  # of `shards.own_buffers`
    trained: Mapping[str, Any] = {}  # the module's state, in a file to resume from
    write: Callable[[], object] | None = None
    other = False  # the weights are not those that were evaluated

    def __init__(self, plugin: Any, evaluated: Mapping[str, Any], keeps: bool, light: bool, copies: bool) -> None:
        super().__init__(plugin)
        self._evaluated, self._keeps, self._light, self._copies = evaluated, keeps, light, copies

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        plugin = self._plugin
        weights = {n: w for n, w in checkpoint["state_dict"].items() if hasattr(w, "detach")}
        self.other = bool(self._evaluated) and differ(self._evaluated, sample(pruned(weights, self._evaluated)))
        if self.other and self._keeps:
            self.error = NotSupported(
                "its value is of other weights than a checkpoint has now: a callback or the module averages or prunes "
                "weights, and either does so after the start of the validation or does not write the average into "
                "checkpoint['state_dict']. Let it act before the validation, and write an average there in "
                "on_save_checkpoint"
            )
            return
        if self._light:
            checkpoint = {name: part for name, part in checkpoint.items() if name not in _TO_CONTINUE}
        checkpoint = {**checkpoint, **self.own}
        trained = {name: tensor for name, tensor in self.trained.items() if name in weights}
        # Lightning's own averages keep these weights, and a program that writes its average in their place may not
        if "current_model_state" not in checkpoint and differ(sample(trained), sample(weights)):
            checkpoint[TRAINED] = trained
        while type(plugin).__name__ == "AsyncCheckpointIO":  # it returns before its file exists
            plugin = plugin.checkpoint_io
        try:
            if self._copies:
                copy = copied(checkpoint)
                self.write = partial(plugin.save_checkpoint, copy, path, storage_options=storage_options)
            else:
                plugin.save_checkpoint(checkpoint, path, storage_options=storage_options)
        except Exception as error:
            self.error = error


def _save(trainer: Any, path: Any, plugin: _Plugin) -> None:
    """Let the Trainer save by another plugin, the whole state, so that averages of weights are put in place.

    Lightning collects a state only where it saves one. Without the replaced plugin, whether a pause can be saved and
    loaded again would be known only after the fit has ended.
    """
    strategy = trainer.strategy
    before, strategy.checkpoint_io = strategy.checkpoint_io, plugin
    make_plain(trainer.optimizers, [one.scheduler for one in trainer.lr_scheduler_configs])
    try:
        trainer.save_checkpoint(path, weights_only=False)
    finally:
        strategy.checkpoint_io = before


# the random state


def capture(trainer: Any) -> dict[str, Any]:
    """Return this process's random state, as primitives."""
    loaders = {name: generators.of_generator(g) for name, g in _generators(trainer)}
    seeds = {name: owner.seed for name, owner in _seeded(trainer)}
    return randomness.capture() | {
        "loaders": loaders, "seeds": seeds, "seed": os.environ.get(_SEED), "reloaded": loader_epoch(trainer),
    }  # fmt: skip


def drawn() -> Any:
    """Return the state of the global generators on the CPU, to compare."""
    state = randomness.capture()
    return [state["python"], state["numpy"], state.get("torch")]


def restore(trainer: Any, state: dict[str, Any]) -> None:
    """Restore `state` for the epoch that is about to start, or for the next batch."""
    randomness.restore(state)
    for part, owner in _parts(trainer):
        for maker in makers(owner):
            if maker.generator is None and f"{part}.0.collate_fn.generator" in state["loaders"]:
                maker.create_rng()
    for name, generator in _generators(trainer):
        if name in state["loaders"]:
            generators.set_generator(generator, state["loaders"][name])
    _set_seeds(trainer, state["seeds"])
    _set_global_seed(state.get("seed"))  # loaders that are made again later get it
    if at_boundary(trainer):
        start_new_epoch(trainer, state["reloaded"])


def to_put_back(trainer: Any) -> Callable[[], object]:
    """Return what sets the seed with which Lightning makes samplers, and generators, to those of now."""
    seed, found = os.environ.get(_SEED), dict(_generators(trainer))
    states = generators.states_of(found)

    def back() -> None:
        _set_global_seed(seed)
        generators.set_states(found, states)

    return back


def _set_global_seed(seed: str | None) -> None:
    if seed is None:
        os.environ.pop(_SEED, None)
    else:
        os.environ[_SEED] = seed


def _set_seeds(trainer: Any, seeds: dict[str, Any]) -> None:
    for name, owner in _seeded(trainer):
        owner.seed = seeds.get(name, owner.seed)


def reach(trainer: Any, starts: list[dict[str, Any]], seeds: dict[str, Any]) -> None:
    """Advance the loader to the batch after the checkpoint, within an epoch, by reading the earlier batches again.

    starts: the random states at the start of the loader and, if later, at its first batch. seeds: of the samplers, of
    which Lightning makes some after the first one. Lightning itself restores loaders with a state.
    """
    loaders = list(leaves(trainer.train_dataloader))
    if not loaders or any(map(stateful, loaders)):
        return
    _set_seeds(trainer, seeds)

    def start(i: int) -> None:
        randomness.restore(starts[i])
        for name, generator in _generators(trainer):
            if name in starts[i]["loaders"]:
                generators.set_generator(generator, starts[i]["loaders"][name])
            elif hasattr(generator, "initial_seed"):
                generator.manual_seed(generator.initial_seed())  # the module made it after the state was captured

    skip_batches(trainer, trainer.fit_loop.epoch_loop.batch_progress.current.ready, start, len(starts))


def _generators(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield (position, generator) of the generators in loaders, samplers, data sets and their functions, each once.

    Likewise of the module, the data module, the callbacks, the optimizers and the schedules.
    """
    seen: set[int] = set()
    of_data = [
        (f"{part}.{n}", g) for part, owner in _parts(trainer) for n, g in own_generators.generators_in(owner).items()
    ]
    for name, value in (*of_data, *own_generators.of_owners(_owners(trainer)).items()):
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value


def _owners(trainer: Any) -> Iterator[tuple[str, Any]]:
    yield "module", trainer.lightning_module
    yield "datamodule", trainer.datamodule
    yield from ((f"callback.{name}", one) for name, one in plain.numbered(trainer.callbacks))
    yield from ((f"optimizer.{i}", one) for i, one in enumerate(trainer.optimizers))
    yield from ((f"schedule.{i}", config.scheduler) for i, config in enumerate(trainer.lr_scheduler_configs))


def _seeded(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield (position, sampler) of the samplers that shuffle by a seed and the epoch, as DistributedSampler.

    A program may seed each process differently, and Lightning gives that seed to the sampler.
    """
    for part, owner in _parts(trainer):
        if hasattr(owner, "set_epoch") and isinstance(getattr(owner, "seed", None), int):
            yield part, owner


def _parts(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield (position, object) of the loaders and their parts."""
    train = trainer.train_dataloader
    if train is None:  # the fit has not made its loaders yet
        train = given_loaders(trainer)
    for phase, loaders in (("train", train), ("val", trainer.val_dataloaders)):
        for i, loader in enumerate(leaves(loaders)):
            for part, owner in loader_parts(loader):
                yield f"{phase}.{i}.{part}", owner
