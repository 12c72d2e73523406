"""All optimizers of a model, and the steps it has made.

A GAN has two optimizers as attributes, and its own train_step. Its steps are the batches that it has trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from haltune.errors import NotSupported
from haltune.study.fits import weak

_BATCHES: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # model -> batches that fits have trained
# model -> its optimizer, the steps of those that it was compiled with before, and the last steps of this one
_COMPILED: WeakKeyDictionary[Any, tuple[Callable[[], Any], int, int]] = WeakKeyDictionary()


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return the optimizers that a model and its layers hold: name -> optimizer, each once."""
    from keras import Optimizer

    found: dict[int, tuple[str, Any]] = {}
    for i, part in enumerate([model, *layers_of(model)]):
        for name, value in vars(part).items():
            if name.startswith("_self_"):  # TensorFlow keeps the attributes a second time
                continue
            inner: Iterable[tuple[Any, Any]] = ()
            if isinstance(value, Optimizer):
                found.setdefault(id(value), (f"{i}/{name}", value))
            elif isinstance(value, (list, tuple)):
                inner = enumerate(value)
            elif isinstance(value, dict):
                inner = value.items()
            for key, one in inner:
                if isinstance(one, Optimizer):
                    found.setdefault(id(one), (f"{i}/{name}/{key}", one))
    return dict(found.values())


def layers_of(model: Any) -> list[Any]:
    """Return all layers of a model, and of the models in it.

    The first batch that a Sequential model sees adds an InputLayer to it, which has no state.
    """
    layers = getattr(model, "_flatten_layers", None)
    found = [] if layers is None else layers(include_self=False)
    return [layer for layer in found if type(layer).__name__ != "InputLayer"]


def sync(model: Any) -> None:
    """Write the state that JAX has trained so far into the model."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def updates_of(model: Any) -> int | None:
    """Return the sum of the steps of a model's optimizers; None without an optimizer."""
    sync(model)
    made = [_number(one.iterations) for one in optimizers_of(model).values()]
    return sum(made) if made else None


def steps_of(model: Any, within: int = 0) -> int:
    """Return the steps that a model has made: those of its optimizer; of several, the batches that fits have trained.

    A LossScaleOptimizer does not count the batches whose gradients overflow, so its steps follow from the batches, too.
    A model that is compiled again has an optimizer that counts from 0; the steps before it count.

    within: batches of the present epoch that are not counted yet.
    """
    found = [*optimizers_of(model).values()]
    made = [_number(one.iterations) for one in found]
    batches = _BATCHES.get(model, 0) + within
    if len(made) == 1 and batches and hasattr(found[0], "inner_optimizer"):
        return batches // _accumulated(found[0])
    if len(made) == 1:
        known, before, last = _COMPILED.get(model, (weak(found[0]), 0, 0))
        before += last if known() is not found[0] else 0
        _COMPILED[model] = weak(found[0]), before, made[0]
        return before + made[0]
    return batches if batches else max(made, default=0)


def steps_before(model: Any) -> int:
    """Return the steps before a trial that `steps_of` will count, such as of a model that the program has loaded."""
    found = [*optimizers_of(model).values()]
    by_batches = len(found) != 1 or hasattr(found[0], "inner_optimizer")
    return 0 if by_batches and not batches_of(model) else steps_of(model)


def planned_steps(model: Any, epochs: int | None, batches: int | None) -> int | None:
    """Return the steps of an optimizer in `epochs` of so many batches, if both are known."""
    if not epochs or not batches:
        return None
    return epochs * batches // _accumulated(getattr(model, "optimizer", None))


def _accumulated(optimizer: Any) -> int:
    """Return the number of batches of each step of an optimizer."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    return getattr(inner, "gradient_accumulation_steps", None) or 1


def batches_of(model: Any) -> int:
    """Return the number of batches that fits of this model have trained."""
    return _BATCHES.get(model, 0)


def add_batches(model: Any, number: int) -> None:
    """Count batches that a fit has trained, or those before a pause."""
    _BATCHES[model] = _BATCHES.get(model, 0) + number


class Training:
    """Proof that the optimizers of a model train it: what they had done when an epoch began."""

    def __init__(self, model: Any) -> None:
        self._before = _micro_steps(optimizers_of(model))
        own = not type(model).train_step.__module__.startswith("keras.") if hasattr(type(model), "train_step") else True
        self._weights = _digests(model) if own else {}

    def check(self, model: Any) -> None:
        """Raise NotSupported if something else trained it, because that would be lost in a pause."""
        held = optimizers_of(model)
        made = _micro_steps(held)
        stepped = [one for name, one in held.items() if made[name] > self._before.get(name, 0)]
        advice = "Keep each optimizer as an attribute of the model, self.d_optimizer = d_optimizer"
        if not stepped:
            raise NotSupported(
                f"no optimizer of its model has made a step, so the one that trains it would be lost. {advice}"
            )
        trained = {id(v) for one in stepped for v in getattr(one, "_trainable_variables", ())}
        now = _digests(model) if self._weights else {}
        other = [
            v.path
            for v in model.trainable_variables
            if now.get(id(v)) != self._weights.get(id(v), now.get(id(v))) and id(v) not in trained
        ]
        if other:
            raise NotSupported(
                f"its weight {other[0]} is trained by an optimizer that is not part of the model, and would be lost. "
                f"{advice}. Or if your train_step assigns it, as an average of other weights, set its layer's "
                "trainable = False before compile"
            )


def _micro_steps(held: dict[str, Any]) -> dict[str, int]:
    """Return the batches that each optimizer has seen, those that only accumulate gradients included."""
    made = {}
    for name, one in held.items():
        made[name] = max(_number(one.iterations), _number(getattr(one, "_iterations", one.iterations)))
    return made


def _digests(model: Any) -> dict[int, bytes]:
    from keras import ops

    values = {id(v): ops.convert_to_numpy(v) for v in model.trainable_variables}
    return {name: hashlib.blake2b(value.tobytes(), digest_size=16).digest() for name, value in values.items()}


def _number(variable: Any) -> int:
    from keras import ops

    return int(ops.convert_to_numpy(variable))


# what a file of weights needs in addition


def structure_of(model: Any) -> dict[str, Any]:
    """Return which layers are trainable, and which weights each optimizer trains, by their places in model.weights.

    Raises NotSupported if an optimizer trains a variable that is not a weight of the model.
    """
    places = {id(weight): i for i, weight in enumerate(model.weights)}
    built = {}
    for name, one in optimizers_of(model).items():
        variables = getattr(one, "_trainable_variables", None)
        if one.built and variables is not None:
            if any(id(v) not in places for v in variables):
                raise NotSupported(
                    "an optimizer of its model trains a variable that is not a weight of the model. Make it an "
                    "attribute of the model"
                )
            built[name] = [places[id(v)] for v in variables]
    layers = [bool(layer.trainable) for layer in [model, *layers_of(model)]]
    return {"trainable": layers, "weights": [bool(v.trainable) for v in model.weights], "optimizers": built}


def set_structure(model: Any, structure: dict[str, Any]) -> None:
    """Set the trainable layers of a new model, and build its optimizers for the weights that they train."""
    layers, flags = [model, *layers_of(model)], structure["trainable"]
    if len(layers) == len(flags):
        for layer, flag in zip(layers, flags, strict=True):  # a layer sets those within it, which come later
            if layer.trainable != flag:
                layer.trainable = flag
    weights, found = model.weights, optimizers_of(model)
    if len(weights) == len(structure["weights"]):
        for weight, flag in zip(weights, structure["weights"], strict=True):
            if weight.trainable != flag:
                weight.trainable = flag
    for name, places in structure["optimizers"].items():
        if name in found and not found[name].built and all(place < len(weights) for place in places):
            found[name].build([weights[place] for place in places])
