"""How a trial's model is loaded again, and whether that would work: tried before the training is told to stop.

A model of one's own classes or functions may be saved and yet not be loaded. So the first file of each
structure, the classes and functions that a model is made of, is loaded on the CPU and compared with the
model; the answer holds for all models of this structure.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from haltune._utils.words import one_line
from haltune.errors import InvalidInput, NotSupported
from haltune.log.records import Best
from haltune.study import Trial

from . import checkpoint
from .randomness import capture, forget_global_generator, restore

_CHOSEN: WeakKeyDictionary[Trial, Loading] = WeakKeyDictionary()
_ANSWERS: dict[Hashable, str | None] = {}  # structure -> why a file of it is not loaded; None: it is
_SHOWN = 200  # characters of an error of Keras, which prints whole configurations


@dataclass(frozen=True)
class Loading:
    """What a program says of loading a trial's model, as it asks for it when the trial begins."""

    by_function: bool = False  # it builds the model: weights and optimizer alone are saved
    shapes: bool = False  # the function leaves it to the first batch with which shapes
    options: Mapping[str, Any] = field(default_factory=dict)  # of keras.saving.load_model

    @property
    def suffix(self) -> str:
        """The ending of the file to save."""
        return checkpoint.WEIGHTS_SUFFIX if self.by_function else checkpoint.MODEL_SUFFIX


def of(trial: Trial) -> Loading:
    """How the model of a trial is loaded in this program, as far as it has said."""
    return _CHOSEN.get(trial, Loading())


def whole(trial: Trial, options: Mapping[str, Any]) -> Any:
    """The model in a trial's file; None for a trial that begins."""
    _CHOSEN[trial] = Loading(options=dict(options))
    return None if trial.checkpoint is None else checkpoint.load(trial.checkpoint, **options)


def built(trial: Trial, make_model: Callable[..., Any]) -> Any:
    """The model that make_model(**trial.config) gives, in the state of the trial's file if it has one."""
    model = _made(make_model, trial.config)
    _CHOSEN[trial] = Loading(by_function=True, shapes=not model.built)
    if trial.checkpoint is not None:
        checkpoint.load_into(model, trial.checkpoint)
    return model


def _made(make_model: Callable[..., Any], config: Mapping[str, Any]) -> Any:
    if not callable(make_model) or (hasattr(make_model, "fit") and not isinstance(make_model, type)):
        raise InvalidInput(
            "trial.load_model(make_model) takes the function that makes a compiled model from trial.config, "
            f"not {type(make_model).__name__}: it calls make_model(**trial.config)"
        )
    model = make_model(**config)
    if not hasattr(model, "load_weights"):
        raise InvalidInput(f"make_model(**trial.config) is to return a Keras model, not {model!r}")
    return model


def best(found: Best, make_model: Callable[..., Any] | None, options: Mapping[str, Any]) -> Any:
    """The model of the best run; no random number generator is touched."""
    if found.checkpoint is None:
        raise InvalidInput(
            f"no model of trial {found.trial} was kept: train with HaltuneCallback(trial), which keeps the best one of "
            "Study(..., keep_checkpoints=1), the default, and tells where it cannot"
        )
    if make_model is None:
        return checkpoint.load(found.checkpoint, randomness=False, **options)
    model = _made(make_model, found.config)
    checkpoint.load_into(model, found.checkpoint, randomness=False)
    return model


def write(model: Any, path: Path, loading: Loading) -> None:
    """Save the state of a training that is to pause. Raises NotSupported when it could not be loaded again."""
    if loading.by_function:
        if loading.shapes and not model.get_build_config():
            raise NotSupported(
                "make_model gives a model that is not built, and Keras does not know its shapes: give it an "
                "Input, or call its build(shape) in make_model"
            )
        checkpoint.write(model, path)
        return
    if (why := _unwritten(model)) is not None:
        raise NotSupported(
            f"Keras cannot write down how this model is built ({why}): {checkpoint.LOADING_ADVICE}"
        )
    kind = _structure(model, loading.options)
    if _ANSWERS.get(kind) is None:
        checkpoint.write(model, path)
    if kind not in _ANSWERS:
        _ANSWERS[kind] = _failure(model, path, loading.options)
    if (why := _ANSWERS[kind]) is not None:
        raise NotSupported(
            f"a file of this model could not be loaded again ({why}): {checkpoint.LOADING_ADVICE}"
        )


def kept_suffix(trial: Trial, model: Any) -> str:
    """The ending of the best run's file: of weights alone where Keras cannot write down how the model is built."""
    suffix = of(trial).suffix
    return (
        suffix
        if suffix == checkpoint.WEIGHTS_SUFFIX or _unwritten(model) is None
        else checkpoint.WEIGHTS_SUFFIX
    )


def _unwritten(model: Any) -> str | None:
    """Why Keras has no words for a model, such as a class of one's own without get_config; None where it has."""
    from keras import saving

    try:
        saving.serialize_keras_object(model)
    except Exception as error:
        return " ".join(str(error).split())[:_SHOWN]
    return None


def _structure(model: Any, options: Mapping[str, Any]) -> Hashable:
    """What decides whether a model's file can be loaded: its classes and functions, and what Keras is told of them."""
    from keras import saving

    known = [*saving.get_custom_objects(), *(options.get("custom_objects") or ())]
    parts = frozenset(_parts(saving.serialize_keras_object(model)))
    return parts, frozenset(known), options.get("safe_mode"), options.get("compile")


def _parts(config: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(config, Mapping):
        if "class_name" in config:
            name = config["config"] if isinstance(config.get("config"), str) else ""  # of a function
            yield (
                *(str(config.get(key)) for key in ("module", "class_name", "registered_name")), name,
            )  # fmt: skip
        config = list(config.values())
    for inner in config if isinstance(config, (list, tuple)) else ():
        yield from _parts(inner)


def _failure(model: Any, path: Path, options: Mapping[str, Any]) -> str | None:
    """Why the file that `model` was saved to does not give it back; None when it does.

    Raises OSError and MemoryError, which are no answer. Draws no random number.
    """
    from keras import saving

    state = capture(model)
    try:
        try:
            with _on_cpu():
                twin = saving.load_model(str(path), **options)
        except Exception:  # a layer that needs the accelerator
            twin = saving.load_model(str(path), **options)
        return _difference(model, twin)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        return one_line(error)[:_SHOWN]
    finally:
        twin = None
        gc.collect()  # models hold themselves
        restore(model, state)
        if "keras" not in state:
            forget_global_generator()


def _difference(model: Any, twin: Any) -> str | None:
    if getattr(model, "compiled", False) and not getattr(twin, "compiled", False):
        return "it comes back without its optimizer and its loss: compile() is of your own"
    mine, theirs = _variables(model), _variables(twin)
    if len(mine) != len(theirs) or any(_bytes(a) != _bytes(b) for a, b in zip(mine, theirs, strict=True)):
        return "its weights or its optimizer come back other than they were"
    return None


def _variables(model: Any) -> list[Any]:
    return [*model.weights, *getattr(getattr(model, "optimizer", None), "variables", ())]


def _bytes(variable: Any) -> tuple[tuple[int, ...], bytes]:
    from keras import ops

    array = ops.convert_to_numpy(variable)
    return array.shape, array.tobytes()


def _on_cpu() -> AbstractContextManager[Any]:
    """Where a second model takes no memory of the accelerator."""
    from keras import device

    with suppress(Exception):  # a JAX that was told to know no CPU
        # on torch "cpu:0" is another device, and variables lose their kind on the way to it
        return device("cpu")  # type: ignore[no-any-return]
    return nullcontext()
