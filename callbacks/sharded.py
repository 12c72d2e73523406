"""The loop for a model that is spread over several ranks: FSDP, FSDP2 (`fully_shard`), tensor parallelism.

`ShardedLoop` saves and loads the model and its optimizer itself. A checkpoint is a folder of PyTorch's distributed
checkpoint (DCP). Every rank writes its part, and rank 0 commits the folder when all parts are on the disk. If a rank is
killed while it writes, the trial's earlier checkpoint remains.

    .metadata, __0_0.distcp, __1_0.distcp   the model, its optimizer and other modules
    haltune.json                            the trial, its configuration and position, the number of ranks
    0.random, 1.random                      each rank's random state
    0.parts, 1.parts                        each rank's schedule, loss scale, ..., and values that are not spread but
                                            differ between ranks, such as the running means of BatchNorm

A trial resumes on the same number of ranks digit for digit. On another number, weights, optimizer and schedule
continue, but random numbers and the order of the data differ, and haltune warns.

`consolidate` makes one ordinary file from the folder, in a single process.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from haltune._utils import disk
from haltune._utils.disk import StrPath
from haltune._utils.randomness import put_back
from haltune.display import one_line, plural
from haltune.errors import InvalidInput, NotSupported
from haltune.ranks import Group, torch_ranks
from haltune.study import Trial
from haltune.study.loops import warn_of_ranks

from .behind import copied
from .changes import fingerprint
from .loop import TrainingLoop, together
from .objects import local
from .reporter import need_same_configuration, ordinary_errors

__all__ = ["ShardedLoop", "consolidate"]

_MARK = "haltune.json"  # whose state the folder has
PARTS = "{}.parts"  # each rank's own states
_MODEL, _OPTIMIZER = "model", "optimizer"  # their names in the folder
DIFFER = "haltune_differ"  # key in a checkpoint of Lightning: each rank's buffers that differ between ranks
OF_LIGHTNING = "meta.pt"  # what a folder of Lightning's has
_OF_ACCELERATE, _WHOLE_OF_ACCELERATE = "pytorch_model_fsdp_0", "pytorch_model_fsdp.bin"  # and one of Accelerate's
_OF_DEEPSPEED = "latest"
_OF_LIGHTNING_ZERO = "checkpoint/*_model_states.pt"  # in a folder of DeepSpeed's that Lightning wrote


class ShardedLoop(TrainingLoop):
    """Loop over the epochs of one training whose model is spread over the ranks. It reports, saves and loads.

    Make the model and its optimizer as usual, then the loop. When the loop starts, it loads `trial.checkpoint`, if
    there is one. Report the same value on every rank; if values differ, that of rank 0 counts. It also works in a
    single process.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        model: The model after `fully_shard`, `FullyShardedDataParallel` or `parallelize_module`.
        optimizer: Its optimizer, or a list of them. Default: none.
        also: Further objects with a state, by name: {"schedule": schedule, "average": averaged_model}. Modules are
            spread like the model; other objects have one state on each rank, of numbers, texts and tensors.
            Default: none.
        background: Whether the training continues while the model of its best epoch is written. Every rank holds a copy
            of its part of the model in the memory of the CPU then. Default: False.
        verbose: Print a line for every report. Default: False.
        now: A monotonic clock, seconds. Default: time.monotonic.

    Raises:
        InvalidInput: If an object has no state.
        NotSupported: If torch.distributed is not initialised on several ranks, if the folder or the weights are those
            of another trial, or if the checkpoint has states of other names.

    Example:
        ::

            import torch

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.sharded import ShardedLoop
            from haltune.policies import RandomSearch

            problem = Problem(Space({"lr": Float(0.01, 0.1)}), Minimize("loss"), max_epochs=2)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    net = torch.nn.Linear(3, 1)
                    sgd = torch.optim.SGD(net.parameters(), trial.config["lr"])
                    for epoch in (loop := ShardedLoop(trial, net, sgd)):
                        loss = net(torch.randn(16, 3)).pow(2).mean()
                        loss.backward()
                        sgd.step()
                        sgd.zero_grad()
                        loop.report(loss.item())
    """

    def __init__(
        self,
        trial: Trial,
        model: Any,
        optimizer: Any = (),
        *,
        also: Mapping[str, Any] | None = None,
        background: bool = False,
        verbose: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(trial, verbose, save=self._write_state, suffix=".sharded", together=True, now=now)
        if background:
            self._copies = self._copied_state
        self._model = model
        self._optimizers = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
        self._modules: dict[str, Any] = {_MODEL: model}
        self._others: dict[str, Any] = {}
        for name, value in (also or {}).items():
            _need_state(name, value)
            (self._modules if hasattr(value, "named_parameters") else self._others)[name] = value
        if taken := {_MODEL, _OPTIMIZER} & (also or {}).keys():
            raise InvalidInput(f"also={{{taken.pop()!r}: ...}}: this name is taken. Use another one.")
        self._reporter.resume_hint = "ShardedLoop loads trial.checkpoint itself, so load nothing before it"
        self._light = False  # only the modules are saved, for the user

    def _reports(self) -> None:
        torch_ranks().first(self._sign)

    def _fingerprint(self) -> str:
        return fingerprint(self._model)

    def _trained_model(self) -> Any:
        return self._model

    def _of(self) -> int | str | None:
        return torch_ranks().once(lambda: self.trial.signer(self._fingerprint()))

    # saving

    def _save_together(self, keep: bool = False) -> None:
        if not keep and (lost := apart(self._optimizers)) is not None:
            raise NotSupported(lost)
        self._light = keep
        try:
            super()._save_together(keep)
        finally:
            self._light = False

    def _write_state(self, folder: Path) -> None:
        together(lambda: folder.mkdir(exist_ok=True))  # before the ranks wait for each other in DCP
        grads = {} if self._light else {name: local(p.grad) for name, p in self._trained() if p.grad is not None}
        optimizers = [] if self._light else self._optimizers
        with unstepped(optimizers):
            state = self._state(optimizers)
        self._writes(folder, state, grads=grads)()

    def _copied_state(self, folder: Path) -> Callable[[], None]:
        """Copy the modules, and return what writes the copies: in a thread, so over a group of its own."""
        group = _group_of_threads()
        return self._writes(folder, together(lambda: copied(self._state([]))), group)  # a copy may have no room

    def _writes(
        self, folder: Path, state: dict[str, Any], group: Any = None, grads: Mapping[str, Any] | None = None
    ) -> Callable[[], None]:
        """Return the function that writes this rank's part of a state.

        group: of the ranks; default: torch's. grads: of this rank, which may wait for more batches before a step.
        """
        import torch
        import torch.distributed.checkpoint as dcp

        ranks = torch_ranks()
        mark, file = self._mark(ranks), folder / ranks.own(PARTS)
        own = {"also": {name: part.state_dict() for name, part in self._others.items()}, "grads": dict(grads or {})}
        own = together(lambda: copied(own))  # which changes while a thread writes
        own["differ"] = differing(state, ranks, self.trial)

        def write() -> None:
            dcp.save(state, checkpoint_id=folder, process_group=group)
            ranks.first(lambda: (folder / _MARK).write_text(json.dumps(mark), encoding="utf-8"))
            torch.save(own, file)
            load_parts(file)  # a state that cannot be loaded again must not cost the pause

        return write

    def _trained(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, parameter) of all modules."""
        for part, module in self._modules.items():
            yield from module.named_parameters(part)

    def _mark(self, ranks: Group) -> dict[str, Any]:
        trial = self.trial
        return {
            "trial": trial.id, "attempt": trial.attempt, "config": trial.configuration,
            "unit": trial.unit, "position": float(trial.epoch), "ranks": ranks.size,
            "parts": sorted([*self._modules, *self._others]),
            "flags": {name: [p.requires_grad for p in module.parameters()] for name, module in self._modules.items()},
        }  # fmt: skip

    def _state(self, optimizers: Iterable[Any]) -> dict[str, Any]:
        """Return the parts of this rank, by DCP's names. They share memory with the model."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

        found: dict[str, Any] = {name: get_model_state_dict(module) for name, module in self._modules.items()}
        each = {str(i): get_optimizer_state_dict(self._model, optimizer) for i, optimizer in enumerate(optimizers)}
        return found | ({_OPTIMIZER: each} if each else {})

    def _check_parts(self, folder: Path) -> None:
        super()._check_parts(folder)
        check_parts(folder)

    # loading

    def _restore(self) -> None:
        import torch

        folder, ranks = Path(self.trial.checkpoint or ""), torch_ranks()
        mark = ranks.once(lambda: read_mark(folder))
        self.trial.starts(of=mark["trial"], resume=self._reporter.resume_hint)
        ranks.once(lambda: self._check(folder, mark))
        same = mark["ranks"] == ranks.size
        own = load_parts(folder / (ranks.own(PARTS) if same else PARTS.format(0)))
        self._load(folder, mark, own["differ"])
        for name, part in self._others.items():
            part.load_state_dict(own["also"][name])
        if not same:
            warn_of_ranks(self.trial, mark["ranks"], ranks.size)
        for name, parameter in self._trained() if same else ():
            if name in own["grads"]:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
                local(parameter.grad).copy_(own["grads"][name])
        put_back(self._random(folder))

    def _check(self, folder: Path, mark: dict[str, Any]) -> None:
        """Raise InvalidInput if the folder is not complete.

        Raises NotSupported if it is of a trial with another configuration, or has the states of other parts.
        """
        own = sorted([*self._modules, *self._others])
        need_same_configuration(self.trial, "a state", mark["config"], self._reporter.resume_hint)
        check_parts(folder)
        if mark["parts"] != own:
            raise NotSupported(
                f"The checkpoint of trial {self.trial.id} has the states of {', '.join(mark['parts'])}, but this "
                f"loop has {', '.join(own)}. Use the same also= in each attempt."
            )
        for name, module in self._modules.items():
            if len(mark["flags"][name]) != sum(1 for _ in module.parameters()):
                raise NotSupported(
                    f"The checkpoint of trial {self.trial.id} is of another {name}: it has "
                    f"{plural(len(mark['flags'][name]), 'parameter')}. Build the same one in each attempt."
                )

    def _load(self, folder: Path, mark: dict[str, Any], own: Mapping[str, Any]) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

        # DCP loads the state of a parameter's optimizer if the parameter is trainable at that moment. A parameter that
        # was frozen later has a state, and one that is not trained yet has none.
        with _trainable(self._model, _with_state(folder)):
            state = self._state(self._optimizers)
            with _unreadable_as(folder):
                dcp.load(state, checkpoint_id=folder)
            for name, value in _plain_values(state):
                if name in own:
                    value.copy_(own[name])
            for name, module in self._modules.items():
                set_model_state_dict(module, state[name])
            for i, optimizer in enumerate(self._optimizers):
                set_optimizer_state_dict(self._model, optimizer, state[_OPTIMIZER][str(i)])
        for name, module in self._modules.items():
            for parameter, requires in zip(module.parameters(), mark["flags"][name], strict=True):
                if parameter.requires_grad != requires:
                    parameter.requires_grad_(requires)


def consolidate(checkpoint: StrPath, path: StrPath) -> Path:
    """Write the model of a sharded checkpoint to one ordinary file, and return its path.

    It runs in a single process, without a process group and without a GPU, and needs memory for the weights alone.
    Load the file with torch.load(path) into a model that is not sharded.

    Args:
        checkpoint: A folder of `ShardedLoop`, Lightning, Accelerate or DeepSpeed, such as `study.best.checkpoint`.
            PyTorch reads it as a pickle: use only your own.
        path: The file. It has `model.state_dict()`, and the modules of also= by their names. From a folder of
            Lightning it is a checkpoint for `Net.load_from_checkpoint(path)`, without the optimizer.

    Raises:
        InvalidInput: If it is no sharded checkpoint, if a part is missing, or if the file cannot be written.

    Example:
        ::

            from haltune.callbacks.sharded import consolidate

            net.load_state_dict(torch.load(consolidate(study.best.checkpoint, "best.pt")))
    """
    import torch

    folder, target = Path(checkpoint), Path(path).absolute()
    disk.need_folder(target)
    if (folder / OF_LIGHTNING).is_file():
        rest = torch.load(folder / OF_LIGHTNING, map_location="cpu", weights_only=False)
        weights = _read_part(folder, "state_dict") or _read_part(folder, _MODEL)  # of FSDPStrategy
        first: dict[str, Any] = next(iter(rest.pop(DIFFER, [])), {})
        weights |= {name: value for name, value in first.items() if name in weights}
        found: dict[str, Any] = dict(rest) | {"state_dict": weights}
    elif (folder / _OF_ACCELERATE).is_dir():
        found = _read_part(folder / _OF_ACCELERATE, _MODEL, folder)
    elif (whole := folder / _WHOLE_OF_ACCELERATE).is_file():  # FULL_STATE_DICT
        found = torch.load(whole, map_location="cpu", weights_only=True) | _of_first_rank(folder)
    elif (folder / _OF_DEEPSPEED).is_file():
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        found = dict(get_fp32_state_dict_from_zero_checkpoint(str(folder)))
        for file in sorted(folder.glob(_OF_LIGHTNING_ZERO))[:1]:
            rest = torch.load(file, map_location="cpu", weights_only=False)
            others = {n: v for n, v in rest.items() if n not in ("module", "frozen_param_fragments", DIFFER)}
            found = others | {"state_dict": found}
    else:
        found = _read_part(folder, _MODEL)
        for name in read_mark(folder)["parts"] if (folder / _MARK).is_file() else ():
            if name != _MODEL and (part := _read_part(folder, name)):
                found[name] = part
        if not found:
            raise InvalidInput(
                f"{folder} has no weights of a model. Use a folder that a sharded training has saved, such as "
                "study.best.checkpoint."
            )
    draft = target.with_name(f".{target.name}.part")
    try:
        torch.save(found, draft)
        disk.force(draft)
        draft.replace(target)
    except OSError as error:
        raise InvalidInput(f"cannot write {target}: {error.strerror or error}. Use another file") from error
    finally:
        disk.delete(draft)
    return target


def read_mark(folder: Path) -> dict[str, Any]:
    """Return what a folder holds about its trial. Raises InvalidInput if it cannot be read."""
    try:
        mark: dict[str, Any] = json.loads((folder / _MARK).read_text(encoding="utf-8"))
        return mark | {name: mark[name] for name in ("trial", "config", "ranks", "parts", "flags")}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(folder, error) from error


def check_parts(folder: Path) -> None:
    """Raise InvalidInput if DCP's list of files cannot be read, or if a file that it names is missing or cut short."""
    ends: dict[str, int] = {}  # the bytes that each file has at least
    for info in (metadata_of(folder).storage_data or {}).values():
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    for name, end in sorted(ends.items()):
        if (size := disk.length(folder / name)) is None:
            raise _unreadable(folder, FileNotFoundError(f"{name} is missing"))
        if size < end:
            raise _unreadable(folder, EOFError(f"{name} has {size} of {end} bytes"))


def metadata_of(folder: Path) -> Any:
    from torch.distributed.checkpoint import FileSystemReader

    try:
        return FileSystemReader(folder).read_metadata()
    except Exception as error:  # of a pickle that is cut short
        raise _unreadable(folder, error) from error


@contextmanager
def _unreadable_as(folder: Path) -> Iterator[None]:
    """Raise InvalidInput if a part of a folder cannot be read in the block."""
    try:
        with ordinary_errors():
            yield
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"{folder} is no complete sharded checkpoint ({one_line(error)}). If it was one, restore it from a copy, or "
        "fail the trial, trial.fail(error), so that the search continues without it."
    )


def _read_part(folder: Path, part: str, own: Path | None = None) -> dict[str, Any]:
    """Return a state dict of a folder, on the CPU, without the other parts. own: where ranks have their own parts."""
    import torch
    import torch.distributed.checkpoint as dcp

    check_parts(folder)
    metadata = metadata_of(folder)
    names: dict[str, str] = {}  # DCP's -> that in the state dict
    for key, path in metadata.planner_data.items():
        if path[0] == part and key in metadata.state_dict_metadata:
            names[key] = ".".join(map(str, path[1:]))
    state: dict[str, Any] = {}
    for key in names:
        found = metadata.state_dict_metadata[key]
        sized = hasattr(found, "size")
        state[key] = torch.empty(found.size, dtype=found.properties.dtype) if sized else None
    alone = {"no_dist": True} if not torch_ranks().alone else {}
    with _unreadable_as(folder):
        dcp.load(state, checkpoint_id=folder, **alone)
    differ = _of_first_rank(own or folder)
    state |= {key: differ[n] for key, name in names.items() for n in (key, name) if n in differ}
    return {name: state[key] for key, name in names.items()}


def _of_first_rank(folder: Path) -> dict[str, Any]:
    """Return the tensors of rank 0 that differ between ranks, by DCP's names or those in the model."""
    first = folder / PARTS.format(0)
    return load_parts(first)["differ"] if first.is_file() else {}


def _with_state(folder: Path) -> set[str]:
    """Return the parameters whose optimizer has a state in a folder."""
    paths = metadata_of(folder).planner_data.values()
    return {path[3] for path in paths if (path[0], *path[2:3]) == (_OPTIMIZER, "state")}


@contextmanager
def unstepped(optimizers: Iterable[Any]) -> Iterator[None]:
    """Let DCP read optimizers without a state as they are.

    If no weight has a gradient, DCP makes a step with gradients of 0 to get a state. The next step would be the second.
    """
    import torch

    lent = []
    for optimizer in optimizers:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        if not optimizer.state and all(weight.grad is None for weight in weights):
            weights[0].grad = torch.zeros_like(weights[0], requires_grad=False)
            lent.append(weights[0])
    try:
        yield
    finally:
        for weight in lent:
            weight.grad = None


def apart(optimizers: Iterable[Any]) -> str | None:
    """Return why a sharded checkpoint may lack a state of these optimizers; None if it has all.

    MADGRAD's number of steps belongs to no weight. DCP raises an error there, or leaves it out when it loads.
    """
    for optimizer in optimizers:
        if not all(hasattr(weight, "untyped_storage") for weight in getattr(optimizer, "state", ())):
            kind = type(getattr(optimizer, "optimizer", optimizer)).__name__  # Accelerate wraps it
            return (
                f"{kind} has a state that belongs to no weight, and a sharded checkpoint may lack it (use another "
                "optimizer)"
            )
    return None


def _plain_values(state: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (DCP's name, tensor) of the tensors that are not spread over ranks."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _plain_values(value, f"{within}{name}.")
        elif type(value).__name__ in ("Tensor", "Parameter", "Buffer"):  # not DTensor or ShardedTensor
            yield f"{within}{name}", value


def differing(state: Mapping[str, Any], ranks: Group, trial: Trial) -> dict[str, Any]:
    """Return copies of the tensors that are not spread, but differ between ranks: DCP writes those of one rank.

    If there are any, it warns that the kept model has those of rank 0.
    """
    import torch

    if ranks.alone:
        return {}

    def sums(value: Any) -> list[float]:
        numbers = value.detach().flatten()
        return [float(part.sum(dtype=torch.float64)) for part in (numbers, numbers[::2])]

    plain = {name: value for name, value in _plain_values(state) if not value.is_complex()}
    each = ranks.gather({name: repr(sums(value)) for name, value in plain.items()})
    if any(other.keys() != each[0].keys() for other in each):  # one rank has the whole state
        return {}
    found = {n: v.detach().cpu().clone() for n, v in plain.items() if len({other[n] for other in each}) > 1}
    if found:
        trial.warn(
            f"The ranks have different values of {next(iter(found))}. A resumed trial continues with each rank's own; "
            "the model of study.best.checkpoint has those of rank 0, so its value can differ from study.best.value.",
            "differ",
            once=True,
        )
    return found


_groups: dict[Any, Any] = {}  # torch's default group -> the group of the threads that write


def _group_of_threads() -> Any:
    """Return a group of all ranks over gloo, whose messages do not mix with those of the training; None for one."""
    import torch.distributed as dist

    if torch_ranks().alone:
        return None
    world = dist.group.WORLD
    if world not in _groups:
        _groups.clear()
        _groups[world] = dist.new_group(backend="gloo")
    return _groups[world]


@contextmanager
def _trainable(model: Any, names: set[str]) -> Iterator[None]:
    """Let just these parameters be trainable within the block.

    Private names alone say which parameters are in a flat one. Without them, its optimizer's state would not be loaded.
    """
    changed = []
    for name, parameter in model.named_parameters():  # the first version of FSDP may join several in a flat one
        within = plain_name(name).removesuffix("_flat_param")
        wanted = not names.isdisjoint([within + own for own in getattr(parameter, "_fqns", [""])])
        if parameter.requires_grad != wanted:
            changed.append((parameter, wanted))
            parameter.requires_grad_(wanted)
    try:
        yield
    finally:
        for parameter, wanted in changed:
            parameter.requires_grad_(not wanted)


def plain_name(name: str) -> str:
    """Return DCP's name of a parameter: without the prefixes of FSDP, DDP, compile and activation checkpointing."""
    for prefix in ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(prefix, "")
    return name.removeprefix("module.")


def load_parts(file: Path) -> dict[str, dict[str, Any]]:
    """Return the states of this rank's own parts. Raises NotSupported if torch does not load them by default."""
    import torch

    try:
        found: dict[str, dict[str, Any]] = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise NotSupported(
            "a state of also= has other things than numbers, texts, tensors, lists and dicts of them, and torch does "
            f"not load it by default ({one_line(error)})"
        ) from error
    except Exception as error:  # of a file that is missing or cut short
        raise _unreadable(file.parent, error) from error
    return found


def _need_state(name: str, value: Any) -> None:
    if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
        raise InvalidInput(
            f"also={{{name!r}: ...}}: {type(value).__name__} has no state_dict() and load_state_dict(). Give it both, "
            "or keep its state in one that has."
        )
