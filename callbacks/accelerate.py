"""The loop for Hugging Face's Accelerate: a plain loop whose state all processes save and load together.

Under `accelerate launch` every process runs the same program. The first process reports, and all stop, pause and
resume together. Report the same value in every process (accelerator.gather_for_metrics), or, in a study of epochs, in
the first one alone; if values differ, that of the first one counts. Prepare models, optimizers and loaders before the
loop starts. A trial resumes on as many processes as before. Under FSDP2 with sharded checkpoints, a trial that paused
at the end of a pass over the data also resumes on another number: haltune warns that random numbers and the order of
the data differ.

A checkpoint is the folder of accelerator.save_state with the random state of each process. haltune adds what Accelerate
does not save: the number of passes over each loader, the position in the present pass, the generators of its data,
trainable flags, modes and numbers of the models, and gradients that wait for a step. In a study that counts steps, a
loader continues at that position: it reads its first batches again, without training on them. A training does not pause
if Accelerate would load objects of register_for_checkpointing, which are pickles, or if a model, an average, an
optimizer or a schedule next to the loop changes and was not prepared. An average that cannot be prepared, such as that
of Diffusers, pauses if hooks of the accelerator save and load it. In one process, Ctrl-C waits for the end of the epoch
or the step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from haltune._utils.around import state_of, stateful
from haltune._utils.interruption import Interruption
from haltune._utils.randomness import OwnGenerators, capture, damaged, restore, states_of
from haltune.errors import InvalidInput, NotSupported
from haltune.ranks import torch_ranks
from haltune.study import Trial
from haltune.study.loops import warn_of_ranks

from . import carried, fsdp, objects
from .changes import (
    Attributes,
    Replaced,
    differences,
    extras,
    fingerprint,
    generators_of,
    known_of,
    left_out,
    of_modules,
    own_modules,
    own_parts,
    printed,
    set_extras,
    set_generators,
    tensors_in,
    warn_of_failed,
)  # fmt: skip
from .functions import refers
from .loop import TrainingLoop, other_ranks, together
from .reporter import ordinary_errors
from .schedules import make_plain
from .sharded import apart

_SAMPLED = 8  # weights of an optimizer
_HOOKS = "accelerator.register_save_state_pre_hook and register_load_state_pre_hook"


class AcceleratedLoop(TrainingLoop):
    """Loop over the epochs of one training under Accelerate. It reports to a trial; all processes save and load.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        accelerator: The Accelerator that prepared everything that is trained, and nothing of another trial.
        verbose: Print a line for every report. Default: False.
        now: A monotonic clock, seconds. Default: time.monotonic.

    Raises:
        InvalidInput: If `trial` is not a trial, if an epoch is reported outside the loop, or if the accelerator holds
            the model of another trial.
        NotSupported: If the accelerator names its checkpoints itself, or if the checkpoint needs another number of
            processes.

    Example:
        ::

            import torch
            from accelerate import Accelerator

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.accelerate import AcceleratedLoop
            from haltune.policies import RandomSearch

            rows = [(x, x.sum(0, keepdim=True)) for x in torch.randn(16, 3)]
            problem = Problem(Space({"lr": Float(0.01, 0.1)}), Minimize("loss"), max_epochs=2)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    accelerator = Accelerator(cpu=True)
                    net = torch.nn.Linear(3, 1)
                    net, sgd, loader = accelerator.prepare(
                        net, torch.optim.SGD(net.parameters(), trial.config["lr"]),
                        torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True),
                    )
                    for epoch in (loop := AcceleratedLoop(trial, accelerator)):
                        for x, y in loader:
                            loss = (net(x) - y).pow(2).mean()
                            accelerator.backward(loss)
                            sgd.step()
                            sgd.zero_grad()
                        loop.report(accelerator.reduce(loss.detach(), "mean").item())
    """

    _own_file = "haltune_{}.json"
    _gradients_file = "haltune_gradients_{}.pt"

    def __init__(
        self, trial: Trial, accelerator: Any, verbose: bool = False, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        suffix = ".accelerate"
        super().__init__(trial, verbose, save=accelerator.save_state, suffix=suffix, together=True, now=now)
        self._generators = OwnGenerators(iterators=False)  # prepared loaders continue at their places
        self._accelerator = accelerator
        self._reporter.resume_hint = "The loop loads trial.checkpoint itself, so leave out accelerator.load_state"
        self._extras: list[Any] = []  # of each model, what its state lacks, at the start
        self._restored: list[Any] = []  # of each model, what earlier attempts changed of it
        self._data = Attributes(trial.id)  # of the program's own data sets and samplers
        self._replaced = Replaced()
        self._of_modules = of_modules(trial.id)
        self._around: dict[str, tuple[Any, Any]] = {}  # what the program has next to the loop, as it was at the start
        self._interruption: Interruption | None = None
        # rank 0 alone reports; None: not known yet. In a study of steps the other ranks do not follow it
        self._lone: bool | None = None if trial.unit == "epoch" and not torch_ranks().alone else False
        self._waits: set[int] = set()  # numbers of the optimizers whose weights got gradients since their last step
        if accelerator.project_configuration.automatic_checkpoint_naming:
            raise NotSupported(
                "This Accelerator names its checkpoints itself, so haltune cannot find them. Make it without "
                "automatic_checkpoint_naming."
            )

    # An Accelerator has no public names for the models, optimizers, schedulers and loaders that it prepared and for the
    # objects and hooks that it was given to save. Without them, a model of another trial would be trained on, gradients
    # that wait for a step would be lost, loaders would start again (huggingface/accelerate#2016), a checkpoint could
    # run any code, and an average that a hook saves would not pause.

    def __iter__(self) -> Iterator[int]:
        """Yield epochs, from 1 or, for a resumed trial, from the first after its checkpoint."""
        for model in self._accelerator._models:
            if (first := self.trial.trainer_of(model)) is not None:
                raise InvalidInput(
                    f"The accelerator still holds the model of {first}. Make an Accelerator for each "
                    f"{first.split()[0]}, within the loop, or call accelerator.free_memory() before you prepare the "
                    "next one."
                )
        for loader in self._accelerator._dataloaders:
            if not (isinstance(loader, _Placed) or getattr(loader, "use_stateful_dataloader", False)):
                kind = type(loader)  # Python looks an iterator up in the class, and Accelerate overrides __class__
                vars(object)["__class__"].__set__(loader, type(kind.__name__, (_Placed, kind), {}))
        known, around = known_of(*self._prepared()), stateful(sys._getframe(1))
        self._around = {name: (one, _print(one, known)) for name, one in around if id(one) not in known}
        return super().__iter__()

    def _epochs(self, interruption: Interruption) -> Iterator[int]:
        self._interruption = interruption
        self._restored = self._restored or [{} for _ in self._accelerator._models]
        self._extras = [extras(model) for model in self._models]
        self._data.see(self._own_data(), self._prepared())
        self._replaced.see(*self._base_loaders)
        self._of_modules.see(own_modules(*self._models), self._prepared())
        for loader in self._accelerator._dataloaders:
            if isinstance(loader, _Placed):
                data, starts = own_parts(getattr(loader, "base_dataloader", loader)), self.trial.epoch == 0
                loader._haltune_reads = partial(carried.warn_of_data, self.trial, data, starts)
        handles = [*self._watched()]
        try:
            yield from super()._epochs(interruption)
        finally:
            for handle in handles:
                handle.remove()
            carried.leave_data(self._own_data())

    def _watched(self) -> Iterator[Any]:
        """Note which optimizers have got gradients since their last step, from a sample of their weights.

        FSDP sets gradients itself, and DeepSpeed makes the steps.
        """
        optimizers = [] if self._sharding in ("FSDP", "DEEPSPEED") else self._accelerator._optimizers
        for i, optimizer in enumerate(optimizers):
            weights = [w for group in optimizer.param_groups for w in group["params"] if w.requires_grad]
            for weight in weights[:: len(weights) // _SAMPLED + 1]:
                yield weight.register_post_accumulate_grad_hook(lambda _, i=i: self._waits.add(i))
            yield optimizer.optimizer.register_step_post_hook(lambda *_, i=i: self._waits.discard(i))

    def _gradients(self) -> list[dict[str, Any]]:
        """Return the gradients that wait for a step, of each model."""
        models = self._models if self._waits else []
        found = [{n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None} for model in models]
        return found if any(bool(gradient.any()) for of in found for gradient in of.values()) else []

    def _reports(self) -> None:
        self._sign()
        if self._lone is False:  # before the program breaks; all ranks decide the same
            self._check_pause()

    def _epoch_ends(self, followed: bool) -> None:
        """Check a pause where all ranks are, unless it is known that all report; the first report shows it."""
        self._replaced.doubt(self.trial, *self._base_loaders)
        if self._position is None:
            return
        if self._lone is not False:
            self._check_pause()
        if self._lone is None:
            self._lone = any(torch_ranks().gather(followed))

    def _check_pause(self) -> None:
        if self._reporter.pausing and (why := self._lost_anywhere(resumes=True)) is not None:
            self._reporter.decline(why, always=True)

    @property
    def _sharding(self) -> str:
        return str(self._accelerator.distributed_type).rpartition(".")[2]

    @property
    def _of_fsdp(self) -> list[Any]:
        """The optimizers whose state FSDP spreads."""
        return self._accelerator._optimizers if self._sharding == "FSDP" else []

    @property
    def _models(self) -> list[Any]:
        """What was prepared; under DeepSpeed without the engines, whose counters are their own."""
        models: list[Any] = self._accelerator._models
        return [getattr(model, "module", model) for model in models] if self._sharding == "DEEPSPEED" else models

    def _trained_model(self) -> Any:
        return next(iter(self._accelerator._models), None)

    def _of(self) -> int | str | None:
        return self.trial.signer(self._fingerprint())

    def _fingerprint(self) -> str:
        trained = {id(p) for o in self._accelerator._optimizers for group in o.param_groups for p in group["params"]}
        models = self._accelerator._models  # an average of them, which may be prepared, too, changes after a report
        return fingerprint(*([m for m in models if any(id(p) in trained for p in m.parameters())] or models))

    def _save_together(self, keep: bool = False) -> None:
        waits = self._interruption is not None and self._interruption.waits and not self.stopping
        if (why := self._lost_anywhere(not keep and (self._reporter.pausing or waits))) is not None:
            raise NotSupported(why)
        super()._save_together(keep)

    def _lost_anywhere(self, resumes: bool) -> str | None:
        """Return `_lost` of the first rank that has a reason: a program may average weights on rank 0 alone."""
        return torch_ranks().first_reason(lambda: self._lost(resumes))

    def _prepared(self) -> list[Any]:
        """Return what was prepared, and the data, which are saved by themselves."""
        held = self._accelerator
        parts = (held._models, held._optimizers, held._schedulers, held._dataloaders, held._custom_objects)
        return [*(one for part in parts for one in part), held.scaler, *(part for _, part in self._own_data())]

    @property
    def _base_loaders(self) -> list[Any]:
        return [getattr(loader, "base_dataloader", loader) for loader in self._accelerator._dataloaders]

    def _own_data(self) -> list[tuple[str, Any]]:
        return own_parts(*self._base_loaders)

    def _lost(self, resumes: bool) -> str | None:
        """Return why accelerator.save_state does not save all that counts now, or None.

        resumes: the trial is to resume from it; otherwise only models count.
        """
        if (lost := apart(self._of_fsdp)) is not None:  # save_state writes optimizers with each model
            return lost
        if resumes and self._sharding == "DEEPSPEED" and (lost := fsdp.deepspeed_lacks(self._accelerator)) is not None:
            return lost
        if resumes and (lost := fsdp.lacks(self._accelerator, self._of_fsdp)) is not None:
            return lost
        known = known_of(*self._prepared())
        for name, (one, before) in self._around.items():
            if (resumes or self._is_average(one)) and not self._is_hooked(one) and _print(one, known) != before:
                prepares = hasattr(one, "named_parameters") or _is_prepared(one)
                how = "prepare it, too" if prepares else f"save and load it in {_HOOKS}"
                return f"{name} changes in training, and accelerator.save_state leaves it out ({how})"
        if not resumes:
            return None
        if self._accelerator._custom_objects:
            return (
                "Accelerate loads objects of register_for_checkpointing as pickles, which can run any code (prepare a "
                f"schedule, and save and load other objects in {_HOOKS})"
            )
        if self._outside():
            return (
                "an optimizer trains weights outside the models, as a temperature, and accelerator.save_state leaves "
                f"them out (make them a part of a model, or save and load them in {_HOOKS})"
            )
        if not self._accelerator.sync_gradients:
            return (
                "gradients of accumulated batches wait for the next step, and accelerator.save_state leaves them out "
                "(report when accelerator.sync_gradients is True)"
            )
        if (lost := self._data.lost(self._own_data(), self._prepared())) is not None:
            return lost
        models = [*zip(self._models, self._extras, strict=True)]
        if (lost := left_out(models, self._of_modules, self._prepared())) is not None:
            return lost
        places = [getattr(loader, "_haltune_place", None) for loader in self._accelerator._dataloaders]
        passes = {getattr(loader, "iteration", 0) for loader in self._accelerator._dataloaders}
        if any(places) and (lost := self._data.changed_within(self._own_data(), self._prepared(), passes)) is not None:
            return lost
        for loader, place in zip(self._accelerator._dataloaders, places, strict=True):
            if getattr(loader, "persistent_workers", False):
                return "persistent workers have random states that cannot be saved (set persistent_workers=False)"
            if place and place["drawn"]:
                return "its sampler draws random numbers within a pass, which are not repeated (give it a generator)"
        return None

    def _outside(self) -> list[Any]:
        """Return the weights that the optimizers train outside all models, and that no hook saves and loads."""
        if self._sharding in ("FSDP", "DEEPSPEED"):
            return []
        models = [*self._models, *(one for one, _ in self._around.values() if hasattr(one, "named_parameters"))]
        return [w for w in objects.outside(models, self._accelerator._optimizers) if not self._is_hooked(w)]

    def _is_average(self, one: Any) -> bool:
        """Return whether an object has weights that may be evaluated: a model, or tensors like those that are trained.

        A metric may have a state_dict, too, and an object of the program one of what is prepared.
        """
        if hasattr(one, "named_parameters") or hasattr(one, "zero_grad"):
            return hasattr(one, "named_parameters")
        with suppress(Exception):  # of an object that cannot have a state, such as a loader
            saved = [tensors_in([*of.state.values()], 3) for of in self._accelerator._optimizers]
            known = {place for model in self._models for place in objects.storages(model)}
            known |= {objects.local(t).untyped_storage().data_ptr() for of in saved for t in of}
            tensors = [*tensors_in(state_of(one), 3)]
            own = {t.shape for t in tensors if objects.local(t).untyped_storage().data_ptr() not in known}
            trained = ({p.shape for p in model.parameters() if p.requires_grad} for model in self._models)
            return any(shapes and shapes <= own for shapes in trained)
        return False

    def _is_hooked(self, one: Any) -> bool:
        """Return whether hooks of the program save and load an object with the state of the accelerator."""
        held = self._accelerator
        hooks = (held._save_model_state_pre_hook, held._load_model_state_pre_hook)
        return not _is_prepared(one) and all(any(refers(hook, one) for hook in of.values()) for of in hooks)

    def _write(self, path: Path) -> None:
        import torch

        held, ranks = self._accelerator, torch_ranks()
        make_plain(held._optimizers, held._schedulers)
        together(lambda: path.mkdir(exist_ok=True))  # before the ranks wait for each other in FSDP
        with fsdp.saves(self._of_fsdp):
            together(lambda: held.save_state(path))  # before the ranks compare their buffers
        fsdp.write_buffers(path, self._models, self.trial)
        models = zip(self._models, self._extras, self._restored, strict=True)
        drawn = self._generators.capture()
        own = drawn.pop("own", {})
        state = {
            "processes": ranks.size,
            "random": drawn,
            "own": own,
            "loaders": [_of_loader(loader) for loader in held._dataloaders],
            "models": [differences(model, before, earlier) for model, before, earlier in models],
            "data": self._data.changed(self._own_data(), self._prepared()),
            "transforms": self._replaced.changed(*self._base_loaders),
            "modules": self._of_modules.changed(own_modules(*self._models), self._prepared()),
        }
        if gradients := self._gradients():
            torch.save(gradients, path / ranks.own(self._gradients_file))
        (path / ranks.own(self._own_file)).write_text(json.dumps(state), encoding="utf-8")

    def _check_parts(self, folder: Path) -> None:
        super()._check_parts(folder)
        fsdp.check(folder)

    def _restore(self) -> None:
        import torch

        ranks, folder = torch_ranks(), Path(self.trial.checkpoint or "")
        try:
            state = json.loads((folder / self._own_file.format(0)).read_text(encoding="utf-8"))
            processes, within = state["processes"], any(found["place"] for found in state["loaders"])
            known = ranks.rank < processes  # this rank has saved a state
            if known:
                state = json.loads((folder / ranks.own(self._own_file)).read_text(encoding="utf-8"))
            transforms = state.get("transforms", {})  # which the first versions did not save
            state = {name: state[name] for name in ("loaders", "random", "models", "modules", "data")}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise damaged(error) from error
        if processes != ranks.size:
            if (why := self._fixed(within)) is not None:
                raise other_ranks(self.trial.id, processes, ranks.size, why)
            warn_of_ranks(self.trial, processes, ranks.size)
        ranks.once(lambda: fsdp.check(folder))
        held = self._accelerator
        with ordinary_errors(), fsdp.loads(self._of_fsdp, folder):
            held.load_state(folder)
            fsdp.load_optimizers(held, self._of_fsdp, held._models, folder)
        fsdp.load_buffers(folder, self._models)
        self._restored = state["models"]
        for model, found in zip(self._models, self._restored, strict=True):
            set_extras(model, found)
        self._of_modules.put_back(own_modules(*self._models), state["modules"], held.device)
        if (gradients := folder / ranks.own(self._gradients_file)).exists():
            waiting = torch.load(gradients, map_location="cpu", weights_only=True)
            for model, found in zip(self._models, waiting, strict=True):
                for name, parameter in model.named_parameters():
                    parameter.grad = found[name].to(parameter.device) if name in found else None
            self._waits = {*range(len(held._optimizers))}
        self._data.put_back(self._own_data(), state["data"], held.device, always=True)
        self._replaced.put_back(transforms)
        warn_of_failed(self.trial, *self._data.failed, *self._of_modules.failed)
        for loader, found in zip(held._dataloaders, state["loaders"], strict=True):
            _set_loader(loader, found)
        if known:
            restore(state["random"])

    def _fixed(self, within: bool) -> str | None:
        """Return why a checkpoint needs as many ranks as before, to complete `other_ranks`; None if it does not.

        within: it was saved within a pass over the data.
        """
        if self._sharding != "FSDP":
            return ", because each rank loads the part that it wrote"
        if not fsdp.reshards(self._accelerator):
            return ", because only the sharded checkpoints of FSDP2 load on another number"
        if within or not all(isinstance(loader, _Placed) for loader in self._accelerator._dataloaders):
            return ", because each rank continues at its own place in the data"
        return None


class _Placed:
    """Prepared loader that counts its position in the present pass, and can start within a pass.

    A loader of Accelerate reads one batch ahead: before the loop's body draws the numbers that, without a pause, it
    draws after it. So the batch that was read ahead is read again with the random state that it was read with.
    """

    # random states at the start of the pass and before the last batch was read, number of batches taken, whether a
    # sampler may have drawn within the pass
    _haltune_place: dict[str, Any] | None = None
    _haltune_resumes: dict[str, Any] | None = None  # the position at which the next pass starts
    _haltune_reads: Callable[[], object] | None = None  # called before the first pass

    def __iter__(self) -> Iterator[Any]:
        reads, self._haltune_reads = self._haltune_reads, None
        if reads is not None:  # the program has set the data of the epoch
            reads()
        resumes, self._haltune_resumes = self._haltune_resumes, None
        place: dict[str, Any] = resumes or {"start": _random(self), "taken": 0, "drawn": False}
        self._haltune_place = place
        batches = super().__iter__()  # type: ignore[misc]
        if resumes is not None:
            now = _random(self)
            _set_random(self, place["start"])
            for taken in range(place["taken"]):
                if taken and taken + 1 == place["taken"]:
                    _set_random(self, place["ahead"])
                next(batches)
            _set_random(self, now)
        watched = _may_draw(self)
        try:
            while True:
                place["ahead"] = _random(self)
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                place["drawn"] |= watched and place["taken"] > 0 and _random(self) != place["ahead"]
                place["taken"] += 1
                yield batch
        finally:
            if self._haltune_place is place:
                self._haltune_place = None


def _print(one: Any, known: set[int]) -> Any:
    """Return the print of what `stateful` yields: without a state_dict, of the weights in its dicts alone."""
    return printed(one if callable(getattr(type(one), "state_dict", None)) else state_of(one), known)


def _is_prepared(one: Any) -> bool:
    """Return whether accelerator.prepare takes it as an optimizer or a schedule."""
    import torch

    return isinstance(one, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler))


def _of_loader(loader: Any) -> dict[str, Any]:
    """Return the state of a prepared loader: passes, seed of the sampler, generators and position."""
    return {
        "iteration": getattr(loader, "iteration", 0),
        "seed": getattr(_sampler(loader), "initial_seed", None),
        "generators": states_of(_generators(loader)),
        "place": getattr(loader, "_haltune_place", None),
    }


def _set_loader(loader: Any, state: dict[str, Any]) -> None:
    loader.iteration = state["iteration"]
    if state["seed"] is not None:
        _sampler(loader).initial_seed = state["seed"]
    set_generators(state["generators"], loader, _sampler(loader))
    if isinstance(loader, _Placed):
        loader._haltune_resumes = state["place"]


def _random(loader: Any) -> dict[str, Any]:
    return {"random": capture(), "generators": states_of(_generators(loader))}


def _set_random(loader: Any, state: dict[str, Any]) -> None:
    restore(state["random"])
    set_generators(state["generators"], loader, _sampler(loader))


def _may_draw(loader: Any) -> bool:
    """Return whether samplers of a loader may draw the process's random numbers within a pass.

    The program's may, and torch's with replacement if they were given the process's generator.
    """
    import torch

    batches = getattr(loader, "batch_sampler", None)
    samplers = [getattr(loader, "sampler", None), batches, getattr(batches, "batch_sampler", None), _sampler(loader)]
    kinds = [type(sampler).__module__.partition(".")[0] for sampler in samplers if sampler is not None]
    drawing = (sampler for sampler in samplers if getattr(sampler, "replacement", False))
    shared = any(sampler.generator is torch.default_generator for sampler in drawing)
    return shared or not {*kinds} <= {"torch", "accelerate"}


def _sampler(loader: Any) -> Any:
    return loader.get_sampler() if hasattr(loader, "get_sampler") else None


def _generators(loader: Any) -> dict[str, Any]:
    """Return the generators of a loader's data and samplers; if there is none, those of the process count."""
    return generators_of(loader, _sampler(loader))
