"""The loop for Hugging Face's Accelerate: a plain loop whose state all processes save and load together.

Under `accelerate launch` every process runs the same program. The first process reports, and all stop, pause and
resume together, on as many processes as before. Report the same value in every process
(accelerator.gather_for_metrics); if values differ, that of the first process counts. Prepare models, optimizers and
loaders before the loop starts.

A checkpoint is the folder of accelerator.save_state with the random state of each process. haltune adds what Accelerate
does not save: the number of passes over each loader, the position in the present pass, and the generators that shuffle
it. In a study that counts steps, a loader continues at that position: it reads its first batches again, without
training on them. Accelerate loads objects of register_for_checkpointing as pickles, so such a training does not pause.
In one process, Ctrl-C waits for the end of the epoch or the step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from haltune._utils.randomness import capture, damaged, of_tensor, restore, tensor_of
from haltune.errors import InvalidInput, NotSupported
from haltune.ranks import torch_ranks
from haltune.study import Trial

from .changes import fingerprint
from .loop import TrainingLoop, other_ranks


class AcceleratedLoop(TrainingLoop):
    """Loop over the epochs of one training under Accelerate. It reports to a trial; all processes save and load.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        accelerator: The Accelerator that prepared everything that is trained, and nothing of another trial.
        verbose: Print a line for every report. Default: False.
        now: A monotonic clock, seconds. Default: time.monotonic.

    Raises:
        InvalidInput: If `trial` is not a trial, if an epoch is reported outside the loop, if the accelerator holds the
            model of another trial, or if the checkpoint is from another number of processes.
        NotSupported: If the accelerator names its checkpoints itself.

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

    def __init__(
        self, trial: Trial, accelerator: Any, verbose: bool = False, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        suffix = ".accelerate"
        super().__init__(trial, verbose, save=accelerator.save_state, suffix=suffix, together=True, now=now)
        self._accelerator = accelerator
        self._reporter.resume_hint = "The loop loads trial.checkpoint itself, so leave out accelerator.load_state"
        self._start: int | None = None  # fingerprint of the weights with which it starts
        if accelerator.project_configuration.automatic_checkpoint_naming:
            raise NotSupported(
                "This Accelerator names its checkpoints itself, so haltune cannot find them. Make it without "
                "automatic_checkpoint_naming."
            )

    # An Accelerator has no public names for the models and loaders that it prepared and for the objects that it was
    # given to save. Without them, a model of another trial would be trained on, loaders would start again
    # (huggingface/accelerate#2016), and a checkpoint could run any code.

    def __iter__(self) -> Iterator[int]:
        """Yield epochs, from 1 or, for a resumed trial, from the first after its checkpoint."""
        for model in self._accelerator._models:
            if (first := self.trial.trained_before(model)) is not None:
                raise InvalidInput(
                    f"The accelerator still holds the model of trial {first}. Make an Accelerator for each trial, "
                    "within the loop, or call accelerator.free_memory() before you prepare the next trial."
                )
        for loader in self._accelerator._dataloaders:
            if not (isinstance(loader, _Placed) or getattr(loader, "use_stateful_dataloader", False)):
                kind = type(loader)  # Python looks an iterator up in the class, and Accelerate overrides __class__
                vars(object)["__class__"].__set__(loader, type(kind.__name__, (_Placed, kind), {}))
        return super().__iter__()

    def report(self, value: Any, metrics: Mapping[str, float] | None = None, *, tokens: float | None = None) -> bool:
        """Report the goal's metric for the present epoch or step, as in TrainingLoop; return whether the loop ends."""
        over = super().report(value, metrics, tokens=tokens)
        if (weights := fingerprint(*self._accelerator._models)) != self._start:
            self.trial.sign(weights)
        return over

    def _trained_model(self) -> Any:
        return next(iter(self._accelerator._models), None)

    def _of(self, model: Any) -> int | None:
        self._start = fingerprint(*self._accelerator._models)
        return self.trial.signer(self._start)

    def _save_together(self, keep: bool = False) -> None:
        if self._accelerator._custom_objects:
            raise NotSupported(
                "Accelerate loads objects of register_for_checkpointing as pickles, which can run any code"
            )
        super()._save_together(keep)

    def _write(self, path: Path) -> None:
        self._accelerator.save_state(path)
        ranks = torch_ranks()
        loaders = [_of_loader(loader) for loader in self._accelerator._dataloaders]
        flags = [[p.requires_grad for p in model.parameters()] for model in self._accelerator._models]
        state = {"processes": ranks.size, "random": capture(), "loaders": loaders, "flags": flags}
        (path / ranks.own(self._own_file)).write_text(json.dumps(state), encoding="utf-8")

    def _restore(self) -> None:
        if self.trial.checkpoint is None:
            return
        ranks, folder = torch_ranks(), Path(self.trial.checkpoint)
        try:
            state = json.loads((folder / self._own_file.format(0)).read_text(encoding="utf-8"))
            if state["processes"] == ranks.size:
                state = json.loads((folder / ranks.own(self._own_file)).read_text(encoding="utf-8"))
            processes, loaders, randomness = state["processes"], state["loaders"], state["random"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise damaged(error) from error
        if processes != ranks.size:
            raise other_ranks(self.trial.id, processes, ranks.size)
        self._accelerator.load_state(folder)
        for model, trainable in zip(self._accelerator._models, state["flags"], strict=True):
            for parameter, requires in zip(model.parameters(), trainable, strict=True):
                parameter.requires_grad_(requires)
        for loader, state in zip(self._accelerator._dataloaders, loaders, strict=True):
            _set_loader(loader, state)
        restore(randomness)


class _Placed:
    """Prepared loader that knows its position in the present pass, and can start within a pass."""

    _haltune_place: dict[str, Any] | None = None  # random state at the start of the pass, number of batches taken
    _haltune_resumes: dict[str, Any] | None = None  # the position at which the next pass starts

    def __iter__(self) -> Iterator[Any]:
        resumes, self._haltune_resumes = self._haltune_resumes, None
        now = {"random": capture(), "generators": _states(self)}
        place: dict[str, Any] = resumes or now | {"taken": 0}
        self._haltune_place = place
        if resumes is not None:
            _set_random(self, resumes)
        batches = super().__iter__()  # type: ignore[misc]
        for _ in range(place["taken"]):
            next(batches)
        if resumes is not None:
            _set_random(self, now)
        try:
            for batch in batches:
                place["taken"] += 1
                yield batch
        finally:
            if self._haltune_place is place:
                self._haltune_place = None


def _of_loader(loader: Any) -> dict[str, Any]:
    """Return the state of a prepared loader: passes, seed of the sampler, generators and position."""
    return {
        "iteration": getattr(loader, "iteration", 0),
        "seed": getattr(_sampler(loader), "initial_seed", None),
        "generators": _states(loader),
        "place": getattr(loader, "_haltune_place", None),
    }


def _set_loader(loader: Any, state: dict[str, Any]) -> None:
    loader.iteration = state["iteration"]
    if state["seed"] is not None:
        _sampler(loader).initial_seed = state["seed"]
    _set_generators(loader, state["generators"])
    if isinstance(loader, _Placed):
        loader._haltune_resumes = state["place"]


def _set_random(loader: Any, state: dict[str, Any]) -> None:
    restore(state["random"])
    _set_generators(loader, state["generators"])


def _set_generators(loader: Any, states: list[str]) -> None:
    for generator, text in zip(_generators(loader), states, strict=False):
        generator.set_state(tensor_of(text))


def _states(loader: Any) -> list[str]:
    return [of_tensor(generator.get_state()) for generator in _generators(loader)]


def _sampler(loader: Any) -> Any:
    return loader.get_sampler() if hasattr(loader, "get_sampler") else None


def _generators(loader: Any) -> list[Any]:
    """Return the distinct generators that shuffle a loader; if there is none, that of the process."""
    held = [
        getattr(loader, "synchronized_generator", None),
        getattr(loader, "generator", None),
        getattr(_sampler(loader), "generator", None),
    ]
    return list({id(generator): generator for generator in held if generator is not None}.values())
