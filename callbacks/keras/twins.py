"""Whether a file of a Keras model can be loaded again: a second model is made from it, and compared."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

from haltune._utils.around import of_library
from haltune.display import clipped, one_line

from .. import plain
from . import companions, places
from .draws import capture_randomness, set_randomness
from .optimizers import layers_of, optimizers_of

T = TypeVar("T")
_SHOWN = 200  # characters shown of a Keras error, which can contain whole configurations
ADVICE = (
    "start with model = trial.load_model(make_model), which builds the model by your function and loads its weights "
    "and its optimizer; or register your classes and functions before the loop over trials, by "
    "@keras.saving.register_keras_serializable(), or by trial.load_model(custom_objects={'Net': Net}); for lambdas use "
    "trial.load_model(safe_mode=False)"
)

_RATHER = (
    "Add it to get_config of its class, set it on a layer before it is built, or start with "
    "model = trial.load_model(make_model), which builds the model by your function"
)


def failure(model: Any, make: Callable[[], Any], changed: Collection[str], by_function: bool) -> str | None:
    """Return why its file, from which `make` makes another model, cannot restore a model; None if it can.

    changed: paths of attributes that are restored otherwise.

    Raises OSError and MemoryError, which show nothing about the file. It draws no random numbers.
    """

    def compiled_and_lost(twin: Any) -> tuple[bool, str | None]:
        compiled = getattr(twin, "compiled", False) or not getattr(model, "compiled", False)
        return compiled, _difference(model, twin, changed) if compiled else None

    try:
        compiled, lost = of_second(model, make, compiled_and_lost)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        why = first_error(error)
    else:
        if lost is not None and by_function:
            return f"a new model of make_model with its weights would not be the same: {lost}"
        if lost is not None:
            return f"a model of its file would not be the same: {lost}. {_RATHER}"
        if compiled:
            return None
        why = "the loaded model has no optimizer and no loss, because compile() is your own"
    if by_function:
        return f"a file of its weights could not be loaded into a new model of make_model ({why})"
    return f"a file of this model could not be loaded again ({why}): {ADVICE}"


def _difference(model: Any, twin: Any, changed: Collection[str]) -> str | None:
    """Return in what another model, made from the file of a model, differs from it; None if they are equal."""
    for path, name in unsaved(model, twin).items():
        if path not in changed:
            return f"{name} would have another value"
    for mine, theirs in zip(layers_of(model), layers_of(twin), strict=True):
        if mine.name != theirs.name and companions.numbered(mine) is None:
            return f"the layer {mine.name!r} would have another name"
        flagged = mine.weights and not hasattr(mine, "layers")  # of other layers Keras saves no flag
        if flagged and mine.trainable != theirs.trainable:
            return f"a layer {type(mine).__name__} would have another trainable flag"
    for mine, theirs in zip(model.weights, twin.weights, strict=True):
        if rules(mine) != rules(theirs):
            return f"a weight {mine.name!r} has a trainable flag, a regularizer or a constraint that its layer lacks"
    same = _variables(model) == _variables(twin)
    return None if same else "it would have other weights or another optimizer state"


def unsaved(model: Any, twin: Any) -> dict[str, str]:
    """Return the settings of the program's own parts of a model for which another one has other values.

    They are settings by their paths, as of `companions.Watch`, with their names for messages.
    """
    from keras import Model

    found, own = {}, own_parts(model)
    others = own_parts(twin) if own else {}
    for name, one in own.items():
        theirs = _settings_of(name, others[name]) if name in others else {}
        for path, marked in _settings_of(name, one).items():
            if path.endswith("/output_names") and isinstance(one, Model):
                continue  # Keras numbers the layers of each new model
            if theirs.get(path, marked) != marked:
                found[path] = f"{type(one).__name__}.{path.partition('/')[2]}"
    return found


def _settings_of(name: str, owner: Any) -> dict[str, str]:
    """Return the marks of the attributes of a part of a model that can be saved, by their paths."""
    marks = {path: plain.mark(value, places.constants()) for path, value, _ in places.slots_of(name, owner)}
    return {path: marked for path, marked in marks.items() if plain.is_data(marked)}


def own_parts(model: Any) -> dict[str, Any]:
    """Return the parts of a model that have classes of the program, by their names."""
    parts = places.owners_in(model, {})
    parts |= {f"part {i}": one for i, one in enumerate(model.metrics)}
    return {n: one for n, one in parts.items() if hasattr(one, "get_config") and not of_library(type(one).__module__)}


def rules(weight: Any) -> list[Any]:
    """Return what Keras' layers set for a weight when they make it."""
    rules = getattr(weight, "regularizer", None), getattr(weight, "constraint", None)
    return [weight.trainable, *[(type(one), getattr(one, "get_config", dict)()) for one in rules]]


def _variables(model: Any) -> list[tuple[tuple[int, ...], bytes]]:
    from keras import ops

    variables = [*model.weights, *(v for one in optimizers_of(model).values() for v in one.variables)]
    arrays = [ops.convert_to_numpy(variable) for variable in variables]
    return [(array.shape, array.tobytes()) for array in arrays]


def of_second(model: Any, make: Callable[[], Any], look: Callable[[Any], T]) -> T:
    """Return what `look` finds in a second model, made on the CPU if that is possible. It draws no random numbers.

    The second model is gone afterwards, so that a large one does not fill the memory.
    """
    from keras import device

    cpu: AbstractContextManager[Any] = nullcontext()
    with suppress(Exception):  # JAX may have no CPU backend
        # so that the second model uses no accelerator memory; not "cpu:0", where torch variables lose their kind
        cpu = device("cpu")
    drawn = capture_randomness(model)
    try:
        try:
            with cpu:
                twin = make()
        except Exception:  # a layer that needs the accelerator
            twin = make()
        try:
            return look(twin)
        finally:
            del twin
            gc.collect()  # models have reference cycles
    finally:
        set_randomness(model, drawn)


def made_again(model: Any, options: Mapping[str, Any]) -> Any:
    """Return a model as Keras makes it from a file of `model`, before it loads the weights."""
    from keras import saving

    return saving.deserialize_keras_object(
        saving.serialize_keras_object(model), options.get("custom_objects"), options.get("safe_mode", True)
    )


def unserialized(model: Any) -> str | None:
    """Return why Keras cannot serialize a model, such as a custom class without get_config; None if it can.

    Some of its own losses lack a setting in their configuration, as Huber(delta=0.5) in Keras 3.15.
    """
    from keras import saving, tree

    try:
        saving.serialize_keras_object(model)
    except Exception as error:
        return clipped(" ".join(str(error).split()), _SHOWN)
    for one in (*tree.flatten(getattr(model, "loss", None)), *model.metrics):
        if (given := getattr(one, "_fn_kwargs", None)) and of_library(type(one).__module__):
            with suppress(Exception):  # a function of the program's that only custom_objects name
                again = type(one).from_config(one.get_config())
                if plain.mark(again._fn_kwargs) != plain.mark(given):
                    return f"it loses {given} of {type(one).__name__}"
    return None


def first_error(error: BaseException) -> str:
    """Return the error from which Keras made others, which name outer layers."""
    while error.__context__ is not None:
        error = error.__context__
    return clipped(one_line(error), _SHOWN)
