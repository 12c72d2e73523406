"""The places where the objects of a fit hold what is outside of its model's file: attributes and variables.

The objects are the model, its layers, optimizers and losses, the callbacks, and the functions of the data. `places_of`
searches their attributes, lists, dicts and objects of the program there, the variables of functions, and what classes
and modules hold that their code names.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from haltune._utils import generators, own_generators
from haltune._utils.around import of_library, of_program, own_classes
from haltune._utils.code import functions_in, mentioned
from haltune.study import Study
from haltune.study.port import Port

from .. import objects
from ..changes import set_buffers, unsaved_buffers
from .optimizers import layers_of, optimizers_of

_SKIPPED = {"_model", "_model_ref", "model"}
_SET_BY_KERAS = {"params", "validation_data"}  # in a callback
_CONFIGURED = {"min_delta", "monitor_op"}  # Keras changes its sign once the direction is known: not a state
_RULES = ("_regularizer", "_constraint")  # ends of names of what layers hold for their weights
_LONG = 1000  # elements of a container that is searched only if its first one is or has a part of Keras
_CODE = (type, types.FunctionType, types.MethodType, types.ModuleType)
OF_MODEL = ("model/", "layer ", "optimizer ", "loss ")  # starts of the paths of what a model has
GLOBAL = "global "  # before the name of a variable of a module or a class, in a path
SEED = "/state"  # end of the path of the state of a random generator

TENSORS = "tensors"  # an attribute that has tensors of TensorFlow or JAX, as arrays
PART = "part"  # a variable, or an element next to parts of Keras, that a resumed fit must have made, too
OTHER = "other part"  # a variable that the compiled step may have as a constant, with its first value
WEIGHTS = "weights of "  # the weights of a part of Keras that a callback holds, such as a teacher of the model

Slot = tuple[str, Any, Callable[[Any], object]]  # path, value, how to set it


class Place(NamedTuple):
    """Where an object of a fit holds a value.

    kind: one of those above; "" for an attribute or a variable of the program. variable: of Keras or TensorFlow, that
    `put` assigns. lasts: it may outlive a fit, so another trial may change it before this one resumes.
    """

    path: str
    value: Any
    put: Callable[[Any], object]
    kind: str = ""
    variable: Any = None
    lasts: bool = False


def owners_in(model: Any, callbacks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects of a fit to watch, except its data: model, layers, optimizers, own losses and callbacks."""
    from keras import Loss, tree

    layers = layers_of(model)
    owners = {"model": model}
    for i, layer in enumerate(layers):
        owners[f"layer {i}"] = layer
        for key, one in vars(layer).items():
            if key.endswith(_RULES) and hasattr(one, "get_config"):
                owners[f"layer {i} {key}"] = one
    held = [o for one in optimizers_of(model).values() for o in (one, getattr(one, "inner_optimizer", None))]
    owners |= {f"optimizer {i}": one for i, one in enumerate(held) if one is not None}
    losses = tree.flatten(getattr(model, "loss", None))
    # those that its own train_step calls
    losses += [one for part in (model, *layers) for one in vars(part).values() if isinstance(one, Loss)]
    once = {id(one): (i, one) for i, one in reversed([*enumerate(losses)])}.values()
    own = {i: one for i, one in once if hasattr(one, "__dict__") and not of_library(type(one).__module__)}
    return owners | {f"loss {i}": one for i, one in own.items()} | {**callbacks}


def callbacks_in(listed: list[Any], is_listener: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the callbacks to watch, by their names."""
    counts: dict[str, int] = {}
    found = {}
    for callback in listed:
        if not is_listener(callback):
            kind = type(callback).__qualname__
            counts[kind] = counts.get(kind, 0) + 1
            found[f"{kind} {counts[kind]}" if counts[kind] > 1 else kind] = callback
    return found


def places_of(owners: Mapping[str, Any], of_data: bool) -> list[Place]:
    """Return the places of objects with their names. of_data: they are data, whose code is not searched for names."""
    import keras
    from keras import ops

    # JAX's compiled step has a variable of a loss as a constant, from its first call in each process
    on_jax = keras.backend.backend() == "jax"
    compiled: set[int] = set()
    for name, owner in owners.items() if on_jax else ():
        if name.startswith(("model", "layer ", "loss ")):
            compiled |= {id(v) for _, value, _ in slots_of(name, owner) for _, v in parts_in(value)}
    places: list[Place] = []
    saved: set[int] | None = None  # of the variables that the model's file has
    for name, owner in owners.items():
        own = [*slots_of(name, owner), *buffers_of(name, owner)]
        of_modules = [] if of_data else _globals(name, owner)  # what data name is found by `data._seeds_of`
        for i, (path, value, put) in enumerate(own + of_modules):
            of_module = i >= len(own)
            if type(value) in objects.PLAIN:
                places.append(Place(path, value, put))
                continue
            if isinstance(owner, keras.Optimizer):
                continue  # the model's file has its variables
            found = parts_in(value)
            inner = [(at, v) for at, v in found if not isinstance(v, _kinds()) and id(v) not in compiled]
            held = [(at, one) for at, one in found if isinstance(one, _kinds())]
            if isinstance(owner, keras.Layer) and not of_module:
                held = []  # Keras tracks them
            if not inner and not held:
                arrays = _as_arrays(value)
                if arrays is value:
                    places.append(Place(path, value, put, lasts=of_module))
                else:
                    places.append(Place(path, arrays, partial(_put_tensors, put, value), TENSORS, lasts=of_module))
                continue
            saved = _saved(owners.get("model")) if saved is None else saved
            for at, v in inner:
                if id(v) not in saved:  # JAX's step has no variable of TensorFlow, such as a generator's in tf.data
                    kind = OTHER if on_jax and isinstance(v, keras.Variable) else PART
                    lasts = of_module or not f"{path}{at}".endswith(SEED)
                    places.append(Place(f"{path}{at}", ops.convert_to_numpy(v), v.assign, kind, v, lasts))
            if found[0][0]:
                others = _next_to({at for at, _ in found}, value)
                places += [Place(f"{path}{at}", one, put, PART, lasts=of_module) for at, one, put in others]
            for at, one in held:
                variables = [one.state] if isinstance(one, keras.random.SeedGenerator) else one.variables
                variables = [v for v in variables if id(v) not in saved]
                weights = [ops.convert_to_numpy(v) for v in variables]
                of = next((of for of in (keras.Layer, keras.Metric) if isinstance(one, of)), None)
                kind = WEIGHTS + ("others" if of is None else of.__name__)
                if variables:
                    places.append(Place(f"{path}{at}", weights, partial(_assign, variables), kind, lasts=of_module))
    return places


def slots_of(name: str, owner: Any, seen: set[int] | None = None) -> list[Slot]:
    """Return the attributes of an object, or the variables of a function, and those of its functions."""
    seen = {id(owner)} if seen is None else seen
    if isinstance(owner, types.MethodType):
        slots: list[Slot] = []
        if id(owner.__self__) not in seen and of_program(type(owner.__self__)):
            slots = [(f"{name}/self", owner.__self__, lambda value: None)]
    elif isinstance(owner, types.FunctionType):
        slots = [(f"{name}/{key}", *one) for key, one in objects.variables_of(owner).items()]
    else:
        slots = [(f"{name}/{key}", value, partial(setattr, owner, key)) for key, value in held_by(owner).items()]
    found: list[Slot] = []
    for path, value, put in slots:
        if not isinstance(value, (types.FunctionType, types.MethodType)):
            found.append((path, value, put))
        elif id(value) not in seen:
            seen.add(id(value))
            found += slots_of(path, value, seen)
    return found


def held_by(owner: Any) -> dict[str, Any]:
    """Return the attributes of an object, without those that Keras sets."""
    from keras.callbacks import Callback

    hidden = _SKIPPED | (_CONFIGURED if "monitor_op" in vars(owner) else set())
    hidden |= _SET_BY_KERAS if isinstance(owner, Callback) else set()
    if hasattr(owner, "get_config"):  # a layer, an optimizer, a loss or a metric
        own = mentioned(type(owner))  # other names that start with "_" are Keras' own
        hidden |= _of_layers() | {key for key in vars(owner) if key.startswith("_") and key not in own}
    return objects.held_by(owner, hidden)


@cache
def _of_layers() -> set[str]:
    """Return the attributes that Keras itself sets on a model or a layer."""
    import keras

    own = vars(keras.Sequential())
    return {*own, "optimizer", "history", "stop_training", "trainable", "built", "autocast"}


def buffers_of(name: str, owner: Any) -> list[Slot]:
    """Return the buffers of a layer on torch that no file of Keras has.

    It has the persistent ones of a module of torch that Keras wraps. torch keeps the buffers of a layer in a private
    attribute. Without it, they would start again in a resumed fit.
    """
    from keras import Layer, backend, layers

    if backend.backend() != "torch" or not isinstance(owner, Layer):
        return []
    found = [(key, one, partial(setattr, owner, key)) for key, one in owner._buffers.items()]
    if isinstance(owner, layers.TorchModuleWrapper):
        found += [(key, one, partial(_set_buffer, owner, key)) for key, one in unsaved_buffers(owner)]
    return [(f"{name}/{key}", None if one is None else one.detach(), put) for key, one, put in found]


def _set_buffer(layer: Any, name: str, value: Any) -> None:
    set_buffers(layer, {name: value})


def _globals(name: str, owner: Any) -> list[Slot]:
    """Return the variables of Keras and random generators of an owner's class, and of modules that its code names.

    Also those of classes there, and in lists and objects of the program.
    """
    from keras.random import SeedGenerator

    of_class = [(f"{base.__name__}.{key}", v) for base in own_classes(type(owner)) for key, v in vars(base).items()]
    code = [owner, *getattr(owner, "__dict__", {}).values(), *(one for _, one in of_class)]
    named: dict[str, Any] = {}
    for held in (of_class, *functions_in(*code).values()):
        for key, value in held:
            while named.get(key, value) is not value:  # of another module, or of a base of a class
                key += "'"
            named[key] = value
    found: dict[str, Slot] = {}
    for key, value in named.items():
        if isinstance(value, _CODE) or type(value) in objects.PLAIN:
            continue
        path = f"{name}/{GLOBAL}{key}"
        with suppress(Exception):  # an object of the program that raises where it is looked at, or a thread changes it
            for at, one in parts_in(value):
                if is_variable(one):
                    found[f"{path}{at}"] = f"{path}{at}", one, one.assign
                elif isinstance(one, SeedGenerator):
                    found[f"{path}{at}"] = f"{path}{at}{SEED}", one, _stays
            if generators.is_generator(value) or type(value) in (list, tuple, dict) or of_program(type(value)):
                for at, one in own_generators.generators_in(value, depth=3, code=False).items():
                    if generators.is_generator(one):
                        found[f"{path}{at[1:]}"] = f"{path}{at[1:]}", one, _stays
    return [*found.values()]


def _stays(value: Any) -> None:
    """Set nothing: a generator takes its state itself."""


def is_global(path: str) -> bool:
    return path.partition("/")[2].startswith(GLOBAL)


def is_drawn(path: str, state: Any) -> bool:
    """Return whether the state of a place is that of a random generator."""
    return (is_global(path) and path.endswith(SEED)) or (isinstance(state, dict) and state.get("is") == "generator")


def parts_in(value: Any, depth: int = 3) -> list[tuple[str, Any]]:
    """Return the variables and the parts of Keras that an attribute is or contains, with their places in it."""
    found: list[tuple[str, Any]] = []
    left, seen = [("", value, depth)], set[int]()
    while left:
        at, one, depth = left.pop()
        if isinstance(one, _kinds()) or is_variable(one):
            found.append((at, one))
        elif type(one).__module__.startswith("tensorflow.python.ops.") and is_variable(getattr(one, "state", None)):
            found.append((f"{at}{SEED}", one.state))  # a random generator
        elif depth and id(one) not in seen:
            seen.add(id(one))
            long = isinstance(one, (dict, list, tuple)) and len(one) > _LONG
            if not long or parts_in(next(_items(one))[1], depth - 1):  # not long ones of images
                inner = [(f"{at}/{key}", v, depth - 1) for key, v in _items(one) if type(v) not in objects.PLAIN]
                left += reversed(inner)
    return found


@cache
def _kinds() -> Any:
    """Return the classes of Keras that have variables."""
    from keras import Layer, Metric, Optimizer
    from keras.random import SeedGenerator

    return Layer, Metric, Optimizer, SeedGenerator


@cache
def constants() -> tuple[type, ...]:
    """Return the classes of objects that are no data: parts of Keras, trials and studies."""
    import keras

    kinds = (keras.Layer, keras.Variable, keras.Optimizer, keras.Loss, keras.Metric, keras.callbacks.Callback)
    return (*kinds, Port, Study)


def is_variable(value: Any) -> bool:
    """Return whether it is a variable of Keras or TensorFlow."""
    kind = type(value)  # a dict of settings may have any attribute: __getattr__ = dict.get
    return hasattr(kind, "assign") and hasattr(kind, "numpy")


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the elements of a list, a tuple or a dict, or the attributes of an object of the program: name, value."""
    if isinstance(value, (dict, list, tuple)):
        items: Any = value.items() if isinstance(value, dict) else enumerate(value)
        yield from items
    elif hasattr(value, "__dict__") and not isinstance(value, _CODE) and of_program(type(value)):
        yield from vars(value).items()


def _next_to(places: set[str], value: Any, at: str = "") -> list[Slot]:
    """Return what is next to parts at these places of an attribute, in lists, dicts and objects of the program."""
    found: list[Slot] = []
    for key, one in _items(value):
        here = f"{at}/{key}"
        if any(place.startswith(f"{here}/") for place in places):
            found += _next_to(places, one, here)
        elif here not in places and not isinstance(value, tuple):  # which is made again as a whole
            by_key = isinstance(value, (dict, list))
            found.append((here, one, partial(value.__setitem__, key) if by_key else partial(setattr, value, key)))
    return found


def _saved(model: Any) -> set[int]:
    of_optimizers = () if model is None else (v for one in optimizers_of(model).values() for v in one.variables)
    return {id(v) for v in (*getattr(model, "variables", ()), *of_optimizers)}


def _assign(variables: list[Any], values: list[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _put_tensors(put: Callable[[Any], object], value: Any, new: Any) -> None:
    """Set an attribute whose value has tensors from one that has arrays in their places."""
    put(_as_tensors(new, value))


def _as_arrays(value: Any) -> Any:
    """Return a value with arrays in place of the backend's tensors in it; the same if it has none.

    Tensors of torch stay, because they are data, but leave their graph.
    """
    from keras import ops

    new = value
    if isinstance(value, (list, tuple, dict)):
        inner = value.values() if isinstance(value, dict) else value
        arrays = [_as_arrays(one) for one in inner]
        if any(one is not old for one, old in zip(arrays, inner, strict=True)):
            new = dict(zip(value, arrays, strict=True)) if isinstance(value, dict) else type(value)(arrays)
    elif ops.is_tensor(value) and not getattr(value, "is_leaf", False) and not is_variable(value):
        with suppress(Exception):  # one of a graph of TensorFlow or JAX has no value
            new = value.detach() if hasattr(value, "untyped_storage") else ops.convert_to_numpy(value)
    return new


def _as_tensors(new: Any, value: Any) -> Any:
    """Return the arrays of `_as_arrays` as tensors where another value has them."""
    from keras import ops

    if isinstance(value, dict) and isinstance(new, dict):
        return {key: _as_tensors(one, value.get(key)) for key, one in new.items()}
    if isinstance(value, (list, tuple)) and isinstance(new, (list, tuple)) and len(new) == len(value):
        return type(value)(_as_tensors(one, old) for one, old in zip(new, value, strict=True))
    return ops.convert_to_tensor(new) if isinstance(new, np.ndarray) and _as_arrays(value) is not value else new
