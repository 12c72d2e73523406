"""The file of a Keras training: written for a pause, loaded again, and tested before the training stops.

- `.keras`: the whole model as Keras writes it. The random state is in the comment of this zip archive, because an
  additional member would make keras.saving.load_model unpack the whole archive to a temporary folder.
- `.weights.h5`: weights and optimizers only, for a model that the user's function builds. The random state, the shapes
  with which the model was built, its trainable layers and the weights of each optimizer are next to it in NAME.random.
- NAME.more: next to both, the state of the fit outside of the model; its large arrays are in NAME.apart. A file that
  is only kept has none.

A model with custom classes or functions may be saved but not loaded, and your own class may have settings that its
get_config lacks. So the first file that a trial writes for a pause is loaded on the CPU, and compared with the model.
That takes twice as long as to write it, so it is done once for models of Keras' own classes that differ in numbers. For
a file that is only kept, a model with own classes is made again without its weights, and compared.
"""

from __future__ import annotations

import json
import re
import types
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary
from zipfile import BadZipFile

import numpy as np

from haltune._utils import generators, randomness
from haltune.errors import InvalidInput, NotSupported
from haltune.log.records import Best
from haltune.study import Trial

from . import companions, places
from .draws import capture_randomness, set_randomness
from .optimizers import layers_of, optimizers_of, set_structure, structure_of
from .twins import ADVICE, failure, first_error, made_again, of_second, own_parts, rules, unsaved, unserialized

MODEL_SUFFIX, WEIGHTS_SUFFIX = ".keras", ".weights.h5"
OURS = (MODEL_SUFFIX, WEIGHTS_SUFFIX)
_BESIDE, _MORE, _APART = ".random", ".more", ".apart"
_COMMENT_LIMIT = 0xFFFF  # bytes in the comment of a zip archive; Python, NumPy and torch use 14 kB of it
_MARK = b"haltune1"


@dataclass(frozen=True)
class Loading:
    """The way in which a program loads a trial's model, recorded when the trial starts."""

    by_function: bool = False  # a function builds the model; only weights and optimizer are saved
    shapes: bool = False  # the function leaves the shapes to the first batch
    options: Mapping[str, Any] = field(default_factory=dict)  # of keras.saving.load_model


_CHOSEN: WeakKeyDictionary[Trial, Loading] = WeakKeyDictionary()
# attempt of a trial -> why a file of its model cannot be loaded again; None: it can
_ANSWERS: WeakKeyDictionary[Trial, str | None] = WeakKeyDictionary()
_RIGHT: set[str] = set()  # structures of models whose files can be loaded again
# attribute of a model of trial.load_model(make_model): makes another one. It is in the model, because the function may
# refer to the model, which a table here would then keep alive
_MAKE = "_haltune_makes_another"


def load_model(trial: Trial, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Load the model of a resumed trial, compiled, in its state at the pause. Return None if the trial starts.

    The fit restores the random state of the pause. Until then the program draws as when the trial started, so that it
    splits its data as before. Users call it as trial.load_model(). Call it also when a trial starts, because haltune
    tests before a pause whether the saved file can be loaded in this way.

    Args:
        trial: The trial to train.
        make_model: A function that returns a compiled model, for models whose file Keras cannot load. Then
            make_model(**trial.config) is returned; for a resumed trial, with its weights and its optimizer. Default:
            None.
        options: Arguments of keras.saving.load_model, such as custom_objects.

    Raises:
        InvalidInput: If the trial's checkpoint is not a .keras file, or not of make_model's model.

    Example:
        model = trial.load_model() or build(trial.config)
    """
    if trial.checkpoint is not None:
        trial.restores_randomness()
    if make_model is None:
        _CHOSEN[trial] = Loading(options=dict(options))
        return None if trial.checkpoint is None else _load(trial.checkpoint, "trial", options)
    if options:
        raise InvalidInput(f"trial.load_model(make_model) does not load a whole model. Remove {[*options]}.")
    model = _made(make_model, trial.config)
    vars(model)[_MAKE] = partial(_made, make_model, dict(trial.config))
    _CHOSEN[trial] = Loading(by_function=True, shapes=_unbuilt(model))
    if trial.checkpoint is not None:
        _load_into(model, trial.checkpoint)
        restore_randomness(model, trial.checkpoint, loads=True)
    return model


def load_best(best: Best, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Load the best trial's model, compiled, after the epoch that counts. Users call study.best.load_model().

    It does not set the random state.

    Args:
        best: The value of study.best.
        make_model: A function that returns a compiled model, as in trial.load_model(make_model). Then
            make_model(**best.config) is returned with the weights and the optimizer of the best trial. Default: None,
            the file has the model.
        options: Arguments of keras.saving.load_model, such as custom_objects.

    Raises:
        InvalidInput: If no model was kept, or if the file is not a .keras file or not of make_model's model.

    Example:
        study.best.load_model().predict(x)
    """
    if best.checkpoint is None:
        raise InvalidInput(
            f"No model of trial {best.trial} was kept. Train with HaltuneCallback(trial), which keeps the best model "
            "or warns if it cannot. Checkpointing(keep=0) keeps none."
        )
    if make_model is None:
        return _load(best.checkpoint, "study.best", options)
    return _load_into(_made(make_model, best.config), best.checkpoint)


def _made(make_model: Callable[..., Any], config: Mapping[str, Any]) -> Any:
    if not callable(make_model) or (hasattr(make_model, "fit") and not isinstance(make_model, type)):
        raise InvalidInput(
            f"make_model is a {type(make_model).__name__}. Give trial.load_model a function that returns a compiled "
            "model; it is called as make_model(**trial.config)."
        )
    model = make_model(**config)
    if not hasattr(model, "load_weights"):
        raise InvalidInput(f"make_model(**trial.config) returned {model!r}. Return a Keras model.")
    return model


def _load(path: str, whose: str, options: Mapping[str, Any]) -> Any:
    """Load a model from a file; if whose is "trial", also the generators of its layers.

    Raises NotSupported with advice if Keras cannot load it, such as a class that only the build of the model registers.
    """
    _need(path)
    if path.endswith(WEIGHTS_SUFFIX):
        raise InvalidInput(
            f"The trial's checkpoint {path!r} has weights and optimizer only, because its training started with "
            "trial.load_model(make_model), or because Keras cannot serialize the model. Give the function that builds "
            "the model, trial.load_model(make_model) or study.best.load_model(make_model)."
        )
    from keras import saving

    try:
        with warnings.catch_warnings():
            if whose == "trial":
                warnings.filterwarnings("error", "Skipping variable loading")
            model = saving.load_model(path, **options)
    except Exception as error:
        if "Skipping variable loading" in str(error):
            raise InvalidInput(
                f"Keras would load the model in {path} without the state of its optimizer, because it makes another "
                "optimizer in this process. Set what is set when a trial starts before trial.load_model() too, such as "
                "keras.mixed_precision.set_global_policy('mixed_float16')."
            ) from error
        if "Lambda" in str(error) and "safe_mode" in str(error):
            raise InvalidInput(
                f"The model in {path} has a lambda, code that Keras runs only if you trust the file. If you do, call "
                f"{whose}.load_model(safe_mode=False). Otherwise call {whose}.load_model(make_model)."
            ) from error
        if isinstance(error, OSError):
            raise
        raise NotSupported(
            f"Keras cannot load the model in {path} in this process ({first_error(error)}). To load it, "
            f"{ADVICE.replace('trial.', f'{whose}.')}."
        ) from error
    if whose == "trial":
        restore_randomness(model, path, loads=True)
    return model


def _unbuilt(model: Any) -> bool:
    """Return whether layers have no weights yet: model.build(shape) of a subclass without a `build` makes none."""
    return not model.built or not all(layer.built for layer in getattr(model, "layers", ()))


def _load_into(model: Any, path: str) -> Any:
    """Set weights and optimizer of a new model, and return it. Raises InvalidInput if the file is of another one."""
    _need(path)
    found = _beside(path) if path.endswith(WEIGHTS_SUFFIX) else None
    strategy = getattr(model, "distribute_strategy", None)  # the TensorFlow strategy under which it was made
    with nullcontext() if strategy is None else strategy.scope():
        if _unbuilt(model):
            if found is not None:
                model.build_from_config(found["build"])
            else:
                with zipfile.ZipFile(path) as archive:
                    model.build_from_config(json.loads(archive.read("config.json")).get("build_config"))
            model.built = True  # Keras builds a subclass's layers by calling it, and does not record it
        optimizer = getattr(model, "optimizer", None)
        if found is not None:
            set_structure(model, found)
        elif optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)  # otherwise Keras would not load its variables
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Skipping variable loading")
                model.load_weights(path)
        except (ValueError, UserWarning) as error:
            raise InvalidInput(
                f"The weights and the optimizer in {path} do not fit make_model's model ({error}). For the same "
                "configuration, make_model must always build the same layers and compile the same optimizer."
            ) from error
    return model


def _need(path: str) -> None:
    if not path.endswith(OURS):
        raise InvalidInput(
            f"The trial's checkpoint {path!r} is not a .keras file. Load it with the program's own code."
        )


def load_again(model: Any, path: str) -> None:
    """Load the weights and the optimizers of a model's own file again."""
    strategy = getattr(model, "distribute_strategy", None)
    with nullcontext() if strategy is None else strategy.scope():
        model.load_weights(path)


def _beside(path: str) -> dict[str, Any]:
    """Return the contents of NAME.random next to a file of weights. Raises InvalidInput if it is damaged."""
    try:
        found = json.loads(Path(path + _BESIDE).read_bytes())
        return {name: found[name] for name in ("random", "build", "trainable", "weights", "optimizers")}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise generators.damaged(error) from error


# writing


def suffix(trial: Trial) -> str:
    """Return the suffix of a paused trial's file."""
    return WEIGHTS_SUFFIX if _CHOSEN.get(trial, Loading()).by_function else MODEL_SUFFIX


def kept_suffix(trial: Trial, model: Any, changed: Collection[str], before: Collection[str]) -> str:
    """Return the suffix of the best trial's file: weights only, if a file of the whole model would lose a part of it.

    changed: paths of attributes that changed in the training. before: those that had when the evaluation started, which
        would change them again.

    Raises NotSupported if a loaded model would lack one of these that its evaluation reads.
    """
    if any(
        getattr(layer, "lora_enabled", False) and getattr(layer, "quantization_mode", None)
        for layer in layers_of(model)
    ):
        raise NotSupported("Keras rounds the adapters (LoRA) of quantized layers when it saves them")
    own, found = own_parts(model), suffix(trial)
    lost: set[str] = set()
    if found == MODEL_SUFFIX and unserialized(model) is not None:
        found = WEIGHTS_SUFFIX
    elif found == MODEL_SUFFIX and own:
        options = _CHOSEN.get(trial, Loading()).options
        with suppress(Exception):  # a pause finds why
            lost = {*of_second(model, partial(made_again, model, options), partial(unsaved, model))}
        found = WEIGHTS_SUFFIX if lost - {*changed} else MODEL_SUFFIX
    parts = places.owners_in(model, {}) | own
    for path in before:
        owner, _, name = path.partition("/")
        # make_model has the value before the training
        outside = found == WEIGHTS_SUFFIX or path in lost or places.is_global(path)
        if owner in own:  # which no file of Keras has
            outside |= any(path == buffer for buffer, *_ in places.buffers_of(owner, own[owner]))
        of_loss = isinstance(parts.get(owner), types.FunctionType)  # an evaluation calls it
        read = outside and owner in own
        if of_loss or (read and companions.evaluates_by(own[owner], name.partition("/")[0], own.values())):
            kind = "The loss" if of_loss else type(own[owner]).__name__
            raise NotSupported(
                f"{kind}.{name} changes in training, and a loaded model would have another value. Make it a "
                "keras.Variable of the model with add_weight(trainable=False)"
            )
    return found


def write(model: Any, path: Path, more: Mapping[str, Any] | None = None) -> None:
    """Save `model`, or its weights, and the random state. Raises Keras' errors, and OSError if the disk is full.

    more: the state of the fit outside of the model, JSON-able except for its large arrays, "apart". Default: None, for
        a file that is only kept.
    """
    state = capture_randomness(model)
    if more is not None:
        text = json.dumps({name: one for name, one in more.items() if name != "apart"})
        Path(f"{path}{_MORE}").write_text(text, encoding="utf-8")
        if more["apart"]:
            with open(f"{path}{_APART}", "wb") as file:
                np.savez(file, *more["apart"])
    if path.name.endswith(WEIGHTS_SUFFIX):
        model.save_weights(str(path))
        beside = {"random": state, "build": model.get_build_config()} | structure_of(model)
        Path(f"{path}{_BESIDE}").write_text(json.dumps(beside), encoding="utf-8")
        return
    comment = _MARK + zlib.compress(json.dumps(state).encode(), 9)
    if len(comment) > _COMMENT_LIMIT:
        raise ValueError(
            f"the random state has {len(comment)} bytes, more than the {_COMMENT_LIMIT} that a .keras file can hold, "
            "perhaps because the model has thousands of dropout layers"
        )
    model.save(str(path))
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment


def more_of(path: str) -> dict[str, Any] | None:
    """Return the state of the fit outside of the model, or None if the file is not of a pause."""
    more, apart = Path(path + _MORE), Path(path + _APART)
    if not more.exists():
        return None
    try:
        with np.load(apart, allow_pickle=False) if apart.exists() else nullcontext({}) as arrays:
            return {**json.loads(more.read_bytes()), "apart": [*arrays.values()]}
    except (ValueError, TypeError, RecursionError, BadZipFile) as error:
        raise generators.damaged(error) from error


def write_tried(model: Any, path: Path, trial: Trial, more: Mapping[str, Any]) -> None:
    """Save the state of a training for a pause. Raises NotSupported if its file cannot be loaded again.

    The first file of an attempt is tested, unless one of the same structure is right. more: see `write`, with the
    attributes that changed.
    """
    from keras import saving

    tried = trial in _ANSWERS
    why = _ANSWERS[trial] if tried else _unwritable(model, trial)
    if why is None:
        write(model, path, more)
    if why is None and not tried and (structure := _structure(model, trial)) not in _RIGHT:
        loading, make = _CHOSEN.get(trial, Loading()), vars(model).get(_MAKE)
        if not loading.by_function:
            load = partial(saving.load_model, str(path), **loading.options)
            why = failure(model, load, more["attributes"], by_function=False)
        elif make is not None:
            why = failure(model, lambda: _load_into(make(), str(path)), more["attributes"], by_function=True)
        if why is None and structure is not None:
            _RIGHT.add(structure)
    _ANSWERS[trial] = why
    if why is not None:
        raise NotSupported(why)


def _structure(model: Any, trial: Trial) -> str | None:
    """Return a text that is equal for models that differ in numbers, such as rates and widths; None with own classes.

    An own class may lose a setting in one trial only, so each trial with one is tested.
    """
    from keras import saving

    if own_parts(model):
        return None
    loading = _CHOSEN.get(trial, Loading())
    try:
        config = json.dumps(saving.serialize_keras_object(model), sort_keys=True, default=str)
    except Exception:  # Keras cannot serialize it
        return None
    config = re.sub(r"_\d+\b", "", config)  # Keras numbers names
    config = re.sub(r"(?<=[ \[])-?\d[\w.+-]*", "0", config)
    kept = [(mine.trainable, *map(rules, mine.weights)) for mine in layers_of(model)]  # a program may have set them
    return f"{loading.by_function} {loading.options!r} {config} {kept!r}"


def _unwritable(model: Any, trial: Trial) -> str | None:
    """Return why no file of a model can be written for a pause; None if one can."""
    loading = _CHOSEN.get(trial, Loading())
    if loading.by_function:
        if loading.shapes and not model.get_build_config():
            return (
                "make_model returns a model that is not built, and Keras does not know its shapes: add an Input, or "
                "call build(shape) in make_model"
            )
        return None
    why = unserialized(model)
    return why and f"Keras cannot serialize this model ({why}): {ADVICE}"


def check_optimizer(model: Any, trial: Trial) -> None:
    """Raise NotSupported if a loaded model's optimizer would exclude other weights from its decay, or train others.

    Keras builds the optimizer of a loaded model for those that are trainable. If a callback froze or thawed layers and
    did not compile the model again, the optimizer's state would not fit.
    """
    if _CHOSEN.get(trial, Loading()).by_function:
        return
    inner = [getattr(one, "inner_optimizer", one) for one in optimizers_of(model).values()]
    excludes = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
    if any(getattr(one, name, None) for one in inner for name in excludes):
        raise NotSupported(
            "a file of Keras does not have which weights its optimizer excludes from the decay. Start with "
            "trial.load_model(make_model)"
        )
    if len(inner) != 1 or not inner[0].built:
        return
    trained, trainable = ({id(v) for v in of} for of in (inner[0]._trainable_variables, model.trainable_variables))
    # a plain SGD has its step and its rate only, so freezing leaves nothing that would not fit
    if trained != trainable and not (len(inner[0].variables) == 2 and trainable < trained):
        raise NotSupported(
            "layers were frozen or thawed after its model was compiled, so its optimizer trains other weights than one "
            "of a loaded model. Set layer.trainable before compile, or use trial.load_model(make_model)"
        )


def restore_randomness(model: Any, path: str, loads: bool = False) -> None:
    """Restore the random state from `path`, unless another program saved the model.

    loads: the program loads the model, and its fit, which restores the whole state, starts later. In between it draws
        as when the trial started. Otherwise it would validate on rows that this trial has been trained on.
    """
    if path.endswith(WEIGHTS_SUFFIX):
        state = randomness.checked(_beside(path)["random"])
    else:
        with zipfile.ZipFile(path) as archive:
            comment = archive.comment
        if not comment.startswith(_MARK):
            return
        text = b""
        with suppress(zlib.error):
            text = zlib.decompress(comment.removeprefix(_MARK))
        state = randomness.state_from_json(text)
    if loads:
        now = randomness.capture()
        # TensorFlow fixes the order of arrays by its seed when the fit is set up
        other = "tensorflow" in state and state["tensorflow"][0] != now.get("tensorflow", [None])[0]
        state = now | {name: state[name] for name in ("layers", *(["tensorflow"] if other else []))}
    set_randomness(model, state)
