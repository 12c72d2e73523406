"""State that Lightning leaves out of its checkpoints: what a fit changes in its objects besides weights and optimizers.

A fit may unfreeze layers, set a layer to evaluation, lower a dropout rate, or count in an attribute; no state_dict has
these. A `Snapshot` at the start of a fit has what the fit itself sets, so that only later changes are saved: trainable
flags; plain attributes (numbers, texts, tensors, and lists and dicts of them) of modules, hyperparameters, the data
module, the loaders, and callbacks without a state_dict; buffers that are not persistent; and gradients of manual
optimization. Tensors may change in place, so they are always saved. A list or dict of more than 10,000 values counts as
data and is not saved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from .checks import leaves, loader_parts, of_lightning
from .internals import modes_before_validation

_LARGEST = 10_000  # values in a list or dict
_OF_TRAINER = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
_CONFIGURED = ("module.", "hparams", "datamodule", "datamodule.hparams")  # what Lightning's Tuner sets
_TENSOR, _DEQUE = "haltune.tensor", "haltune.deque"  # keys of dicts that stand for these

Owner = tuple[str, dict[str, Any], Callable[[str, Any], object]]  # name, attributes, how to set one


class Snapshot:
    """The attributes of a fit's objects at its start."""

    def __init__(self, trainer: Any) -> None:
        self._marks = {owner: {n: _mark(v) for n, v in held.items()} for owner, held, _ in _owners(trainer)}
        self._frozen = _frozen(trainer.lightning_module)

    def changes(self, trainer: Any) -> dict[str, Any]:
        """Return what changed, as primitives and tensors."""
        module = trainer.lightning_module
        modes, shared = modes_before_validation(trainer), _storages(module)
        attributes = {}
        for owner, held, _ in _owners(trainer):
            if "training" in held and owner in modes:
                held["training"] = modes[owner]
            marks = self._marks.get(owner, {})
            changed = {n: _packed(v, shared) for n, v in held.items() if n not in marks or not _unchanged(v, marks[n])}
            if changed := {n: v for n, v in changed.items() if v is not _OTHER}:
                attributes[owner] = changed
        frozen = _frozen(module)
        found = {
            "attributes": attributes,
            "frozen": sorted(frozen) if frozen != self._frozen else None,
            "buffers": {n: b.cpu() for n, b in _unsaved_buffers(module)},
            "gradients": {},
        }
        if not module.automatic_optimization:  # the module may use them in a later step
            found["gradients"] = {n: p.grad.cpu() for n, p in module.named_parameters() if p.grad is not None}
        return found


def put_back(trainer: Any, found: Mapping[str, Any]) -> None:
    """Set what `Snapshot.changes` returned in an earlier attempt."""
    module = trainer.lightning_module
    for owner, _, put in list(_owners(trainer)):
        for name, value in found["attributes"].get(owner, {}).items():
            put(name, _unpacked(value, module.device))
    parameters = dict(module.named_parameters())
    if found["frozen"] is not None:
        for name, parameter in parameters.items():
            parameter.requires_grad_(name not in found["frozen"])
    for name, buffer in _unsaved_buffers(module):
        if name in found["buffers"]:
            buffer.copy_(found["buffers"][name])
    for name, gradient in found["gradients"].items():
        if name in parameters:
            parameters[name].grad = gradient.to(parameters[name].device, copy=True)


def numbers(trainer: Any) -> dict[str, Any]:
    """Return the numbers of the module, the data module and their hyperparameters, by owner/name."""
    held = [(owner, values) for owner, values, _ in _owners(trainer) if owner in _CONFIGURED]
    return {f"{owner}/{n}": v for owner, values in held for n, v in values.items() if type(v) in (int, float)}


def set_numbers(trainer: Any, found: Mapping[str, Any]) -> None:
    """Set what `numbers` returned."""
    for owner, _, put in list(_owners(trainer)):
        for place, value in found.items():
            if place.rpartition("/")[0] == owner:
                put(place.rpartition("/")[2], value)


def _owners(trainer: Any) -> Iterator[Owner]:
    """Yield all objects of a fit whose attributes may change in it; a data module and loaders with scalars only."""
    import torch

    module, datamodule = trainer.lightning_module, trainer.datamodule
    base = next(kind for kind in type(module).__mro__ if kind.__name__ == "LightningModule")
    theirs = vars(torch.nn.Module()).keys() - {"training"}
    for name, part in module.named_modules():
        hidden = theirs | (vars(base()).keys() - {"training"} if part is module else set())
        yield f"module.{name}", {n: v for n, v in vars(part).items() if n not in hidden}, partial(setattr, part)
    yield "hparams", dict(module.hparams), module.hparams.__setitem__
    if datamodule is not None:
        yield "datamodule.hparams", dict(datamodule.hparams), datamodule.hparams.__setitem__
    yield "trainer", {name: getattr(trainer, name) for name in _OF_TRAINER}, partial(setattr, trainer)
    others = [c for c in trainer.callbacks if type(c).__module__.partition(".")[0] != "haltune"]
    for i, callback in enumerate(others):
        if not of_lightning(type(callback)) and of_lightning(callback.state_dict):
            yield f"callback.{i}.{type(callback).__qualname__}", dict(vars(callback)), partial(setattr, callback)
    data = [] if datamodule is None else [("datamodule", datamodule)]
    for i, loader in enumerate(leaves(trainer.train_dataloader)):
        data += [(f"train.{i}.{name}", part) for name, part in loader_parts(loader) if part is not loader]
    for name, part in data:
        yield name, {n: v for n, v in vars(part).items() if _scalar(v) and n[:1] != "_"}, partial(setattr, part)


def _frozen(module: Any) -> set[str]:
    return {name for name, parameter in module.named_parameters() if not parameter.requires_grad}


def _unsaved_buffers(module: Any) -> list[tuple[str, Any]]:
    """Return (name, buffer) of the buffers that a state_dict lacks."""
    found = []
    for prefix, part in module.named_modules():
        for name in sorted(part._non_persistent_buffers_set):
            if (buffer := part._buffers.get(name)) is not None:
                found.append((f"{prefix}.{name}" if prefix else name, buffer))
    return found


def _storages(module: Any) -> set[int]:
    """Return the storages of the weights: a tensor that shares one is no state of its own."""
    return {t.untyped_storage().data_ptr() for t in chain(module.parameters(), module.buffers())}


# values: marks to compare with later, and what a checkpoint can hold

_OTHER = object()  # stands for a value that is not plain


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _tensor(value: Any) -> bool:
    return type(value).__name__ == "Tensor" and hasattr(value, "untyped_storage")


def _mark(value: Any) -> Any:
    """Return what tells later whether a value has changed. Tensors, which may change in place, count as changed."""
    packed = _packed(value, frozenset())
    return object() if _has_tensor(packed) else packed


def _unchanged(value: Any, mark: Any) -> bool:
    packed = _packed(value, frozenset())
    return packed is _OTHER or (type(packed) is type(mark) and not _has_tensor(packed) and repr(packed) == repr(mark))


def _has_tensor(packed: Any) -> bool:
    if isinstance(packed, dict):
        return _TENSOR in packed or any(map(_has_tensor, packed.values()))
    return isinstance(packed, (list, tuple)) and any(map(_has_tensor, packed))


def _packed(value: Any, shared: Any, room: list[int] | None = None) -> Any:
    """Return a copy of primitives and tensors; _OTHER for other values and for data. shared: see `_storages`."""
    room = [_LARGEST] if room is None else room
    room[0] -= 1
    if room[0] < 0:
        return _OTHER
    if _scalar(value):
        return value if type(value) in (bool, int, float, str, type(None)) else _number(value)
    if _tensor(value):
        alias = value.requires_grad or value.untyped_storage().data_ptr() in shared
        return _OTHER if alias else {_TENSOR: value.detach().cpu().clone(), "cpu": value.is_cpu}
    if type(value) is deque:
        return _of(list(value), shared, room, lambda parts: {_DEQUE: parts, "longest": value.maxlen})
    if type(value) in (list, tuple):
        return _of(list(value), shared, room, type(value))
    if type(value) is dict and all(type(key) in (int, str) for key in value):
        return _of(list(value.values()), shared, room, lambda parts: dict(zip(value, parts, strict=True)))
    return _OTHER


def _of(values: list[Any], shared: Any, room: list[int], make: Callable[[list[Any]], Any]) -> Any:
    if len(values) > room[0]:
        return _OTHER
    parts = [_packed(v, shared, room) for v in values]
    return _OTHER if any(p is _OTHER for p in parts) else make(parts)


def _number(value: Any) -> Any:
    """Return a subclass of a number or text, such as NumPy's, as Python's own."""
    return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))


def _unpacked(value: Any, device: Any) -> Any:
    """The inverse of `_packed`. device: of the tensors that were not on the CPU."""
    if isinstance(value, dict) and _TENSOR in value:
        return value[_TENSOR].clone() if value["cpu"] else value[_TENSOR].to(device)
    if isinstance(value, dict) and _DEQUE in value:
        return deque((_unpacked(v, device) for v in value[_DEQUE]), value["longest"])
    if isinstance(value, dict):
        return {k: _unpacked(v, device) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_unpacked(v, device) for v in value)
    return value
