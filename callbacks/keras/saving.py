"""The file of a Keras training: written for a pause, loaded again, and tested before the training stops.

- `.keras`: the whole model as Keras writes it. The random state lies in the comment of that zip archive: a member of
  its own would make keras.saving.load_model unpack the whole archive, weights and all, to a temporary folder.
- `.weights.h5`: weights and optimizer alone, for a model that the user's own function builds. The random state, and
  the shapes with which the model was built, lie next to it, in NAME.random.

A model of one's own classes or functions may be saved and yet not be loaded. So the first file of each structure (the
classes and functions that a model is made of) is loaded on the CPU and compared with the model. The answer holds for
all models of this structure.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from haltune.display import one_line
from haltune.errors import InvalidInput, NotSupported, warn
from haltune.log.records import Best
from haltune.study import Trial

from .. import randomness

MODEL_SUFFIX, WEIGHTS_SUFFIX = ".keras", ".weights.h5"
OURS = (MODEL_SUFFIX, WEIGHTS_SUFFIX)
_BESIDE = ".random"
_COMMENT_LIMIT = 0xFFFF  # bytes in the comment of a zip archive; Python, NumPy and torch take 14 kB of it
_MARK = b"haltune1"
_SHOWN = 200  # characters of an error of Keras, which prints whole configurations
_ADVICE = (
    "begin with model = trial.load_model(make_model), which builds the model by your function and loads its weights "
    "and its optimizer; or give Keras what it lacks: classes and functions of your own need "
    "@keras.saving.register_keras_serializable() or trial.load_model(custom_objects={'Net': Net}), "
    "lambdas trial.load_model(safe_mode=False)"
)


@dataclass(frozen=True)
class Loading:
    """How a program loads a trial's model, as it asks for it when the trial starts."""

    by_function: bool = False  # it builds the model: weights and optimizer alone are saved
    shapes: bool = False  # the function leaves it to the first batch with which shapes
    options: Mapping[str, Any] = field(default_factory=dict)  # of keras.saving.load_model


_CHOSEN: WeakKeyDictionary[Trial, Loading] = WeakKeyDictionary()
_ANSWERS: dict[Hashable, str | None] = {}  # structure -> why a file of it is not loaded; None: it is


def load_model(trial: Trial, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The model of a resumed trial, compiled and as it was when it was paused; None for a trial that starts.

    The random state is set as it was, too. Users call it as trial.load_model(). Call it when the trial starts, too:
    before a pause haltune tries whether what is saved could be loaded this way.

    Args:
        trial: The trial to train.
        make_model: Gives a compiled model, for models whose file Keras cannot load. Then make_model(**trial.config) is
            returned, for a resumed trial with the weights and the optimizer that it had. Default: None.
        options: Those of keras.saving.load_model, such as custom_objects.

    Raises:
        InvalidInput: When the trial's checkpoint is no .keras file, or not of the model that make_model gives.

    Example:
        model = trial.load_model() or build(trial.config)
    """
    if make_model is None:
        _CHOSEN[trial] = Loading(options=dict(options))
        return None if trial.checkpoint is None else _load(trial.checkpoint, "trial", options)
    if options:
        raise InvalidInput(f"trial.load_model(make_model) loads no file of a whole model: leave out {[*options]}")
    model = _made(make_model, trial.config)
    _CHOSEN[trial] = Loading(by_function=True, shapes=not model.built)
    if trial.checkpoint is not None:
        _load_into(model, trial.checkpoint)
        restore_randomness(model, trial.checkpoint)
    return model


def load_best(best: Best, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The model of the best trial, compiled, after the epoch that it counts for. Users call study.best.load_model().

    It sets no random state.

    Args:
        best: What study.best gives.
        make_model: Gives a compiled model, as for trial.load_model(make_model): make_model(**best.config) is returned,
            with the weights and the optimizer of the best trial. Default: None, the model is in the file.
        options: Those of keras.saving.load_model, such as custom_objects.

    Raises:
        InvalidInput: When no model was kept, and when the file is no .keras file, or not of the model that make_model
            gives.

    Example:
        study.best.load_model().predict(x)
    """
    if best.checkpoint is None:
        raise InvalidInput(
            f"no model of trial {best.trial} was kept: train with HaltuneCallback(trial), which keeps the best one and "
            "warns if it cannot, unless the study has Checkpointing(keep=0)."
        )
    if make_model is None:
        return _load(best.checkpoint, "study.best", options)
    model = _made(make_model, best.config)
    _load_into(model, best.checkpoint)
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


def _load(path: str, whose: str, options: Mapping[str, Any]) -> Any:
    """The model of a file, for a "trial" with its random state. Raises what Keras raises, with advice."""
    _need(path)
    if path.endswith(WEIGHTS_SUFFIX):
        raise InvalidInput(
            f"the trial's checkpoint {path!r} holds weights and optimizer alone, as its training began with "
            "trial.load_model(make_model), or Keras cannot write down how the model is built: give load_model the "
            "function that builds it, trial.load_model(make_model) or study.best.load_model(make_model)"
        )
    from keras import saving

    try:
        model = saving.load_model(path, **options)
    except Exception as error:
        if "Lambda" in str(error) and "safe_mode" in str(error):
            raise InvalidInput(
                f"the model in {path} holds a lambda, code that Keras runs only where you say that you trust the file: "
                f"{whose}.load_model(safe_mode=False); or {whose}.load_model(make_model), by your function"
            ) from error
        error.add_note(f"haltune: {_ADVICE.replace('trial.', f'{whose}.')}")
        raise
    if whose == "trial":
        restore_randomness(model, path)
    return model


def _load_into(model: Any, path: str) -> None:
    """Set weights and optimizer of a model that was just made. Raises InvalidInput for a file of another model."""
    _need(path)
    strategy = getattr(model, "distribute_strategy", None)  # of TensorFlow, under which it was made
    with nullcontext() if strategy is None else strategy.scope():
        if not model.built:
            if path.endswith(WEIGHTS_SUFFIX):
                model.build_from_config(_beside(path)["build"])
            else:
                with zipfile.ZipFile(path) as archive:
                    model.build_from_config(json.loads(archive.read("config.json")).get("build_config"))
            model.built = True  # Keras builds the layers of a subclass by calling it, and does not say so
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)  # else Keras would leave its variables in the file
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Skipping variable loading")
                model.load_weights(path)
        except (ValueError, UserWarning) as error:
            raise InvalidInput(
                f"the weights and the optimizer in {path} are not those of the model that make_model gives: it has "
                "to build the same layers, and to compile the same optimizer, whenever it is called with the same "
                f"configuration ({error})"
            ) from error


def _need(path: str) -> None:
    if not path.endswith(OURS):
        raise InvalidInput(f"the trial's checkpoint {path!r} is no .keras file: load it with what wrote it")


def _beside(path: str) -> dict[str, Any]:
    """What lies next to a file of weights. Raises InvalidInput when it is damaged."""
    try:
        found = json.loads(Path(path + _BESIDE).read_bytes())
        return {name: found[name] for name in ("random", "build")}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise randomness.damaged(error) from error


# writing


def suffix(trial: Trial) -> str:
    """The ending of the file that a trial pauses with."""
    return WEIGHTS_SUFFIX if _CHOSEN.get(trial, Loading()).by_function else MODEL_SUFFIX


def kept_suffix(trial: Trial, model: Any) -> str:
    """The ending of the best trial's file: weights alone where Keras cannot write down how the model is built."""
    return suffix(trial) if _unwritten(model) is None else WEIGHTS_SUFFIX


def write(model: Any, path: Path) -> None:
    """Save `model`, or its weights, and the random state. Raises what Keras raises, OSError on a full disk."""
    state = capture_randomness(model)
    if path.name.endswith(WEIGHTS_SUFFIX):
        model.save_weights(str(path))
        build = json.dumps({"random": state, "build": model.get_build_config()})
        Path(f"{path}{_BESIDE}").write_text(build, encoding="utf-8")
        return
    comment = _MARK + zlib.compress(json.dumps(state).encode(), 9)
    if len(comment) > _COMMENT_LIMIT:
        raise ValueError(
            f"the random state takes {len(comment)} bytes and a .keras file has room for {_COMMENT_LIMIT}: "
            "are there thousands of dropout layers?"
        )
    model.save(str(path))
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment


def write_tried(model: Any, path: Path, trial: Trial) -> None:
    """Save the state of a training that is to pause. Raises NotSupported when it could not be loaded again."""
    loading = _CHOSEN.get(trial, Loading())
    if loading.by_function:
        if loading.shapes and not model.get_build_config():
            raise NotSupported(
                "make_model gives a model that is not built, and Keras does not know its shapes: give it an "
                "Input, or call its build(shape) in make_model"
            )
        return write(model, path)
    if (why := _unwritten(model)) is not None:
        raise NotSupported(f"Keras cannot write down how this model is built ({why}): {_ADVICE}")
    from keras import saving

    options = loading.options
    known = [*saving.get_custom_objects(), *(options.get("custom_objects") or ())]
    parts = frozenset(_parts(saving.serialize_keras_object(model)))
    structure = parts, frozenset(known), options.get("safe_mode"), options.get("compile")
    if _ANSWERS.get(structure) is None:
        write(model, path)
    if structure not in _ANSWERS:
        _ANSWERS[structure] = _failure(model, path, options)
    if (why := _ANSWERS[structure]) is not None:
        raise NotSupported(f"a file of this model could not be loaded again ({why}): {_ADVICE}")
    return None


def _unwritten(model: Any) -> str | None:
    """Why Keras has no words for a model, such as a class of one's own without get_config; None where it has."""
    from keras import saving

    try:
        saving.serialize_keras_object(model)
    except Exception as error:
        return " ".join(str(error).split())[:_SHOWN]
    return None


def _parts(config: Any) -> Iterator[tuple[str, ...]]:
    """The classes and functions that a model is made of."""
    if isinstance(config, Mapping):
        if "class_name" in config:
            name = config["config"] if isinstance(config.get("config"), str) else ""  # of a function
            yield (*(str(config.get(key)) for key in ("module", "class_name", "registered_name")), name)
        config = list(config.values())
    for inner in config if isinstance(config, (list, tuple)) else ():
        yield from _parts(inner)


def _failure(model: Any, path: Path, options: Mapping[str, Any]) -> str | None:
    """Why the file that `model` was saved to does not give it back; None when it does.

    Raises OSError and MemoryError, which are no answer. Draws no random number.
    """
    from keras import device, saving

    state = capture_randomness(model)
    cpu: AbstractContextManager[Any] = nullcontext()
    with suppress(Exception):  # a JAX without a CPU backend
        # a second model takes no memory of the accelerator. Not "cpu:0": on torch variables lose their kind there
        cpu = device("cpu")
    twin = None
    try:
        try:
            with cpu:
                twin = saving.load_model(str(path), **options)
        except Exception:  # a layer that needs the accelerator
            twin = saving.load_model(str(path), **options)
        if getattr(model, "compiled", False) and not getattr(twin, "compiled", False):
            return "it comes back without its optimizer and its loss: compile() is of your own"
        mine, theirs = _variables(model), _variables(twin)
        return None if mine == theirs else "its weights or its optimizer come back other than they were"
    except (OSError, MemoryError):
        raise
    except Exception as error:
        return one_line(error)[:_SHOWN]
    finally:
        twin = None
        gc.collect()  # models hold themselves
        set_randomness(model, state)
        if "keras" not in state:
            from keras.src.backend.common import global_state
            from keras.src.random import seed_generator

            global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)


def _variables(model: Any) -> list[tuple[tuple[int, ...], bytes]]:
    from keras import ops

    variables = [*model.weights, *getattr(getattr(model, "optimizer", None), "variables", ())]
    arrays = [ops.convert_to_numpy(variable) for variable in variables]
    return [(array.shape, array.tobytes()) for array in arrays]


# The random state: what dropout and shuffling draw from next. Beyond Python, NumPy and torch these are the seed
# generators of the model's layers, which Keras leaves out of its files, its global one, and TensorFlow's seed. JAX has
# no state of its own: Keras hands it keys from these generators. TensorFlow shuffles arrays by a seed that is fixed
# when the fit is set up: in the same order in every epoch after keras.utils.set_random_seed, and otherwise differently
# in every process, which nothing can resume.


def capture_randomness(model: Any) -> dict[str, Any]:
    """The state of all generators that a fit of `model` draws from, as JSON."""
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    state = randomness.capture() | {"layers": [_numbers(v) for v in _seeds(model)]}
    if (generator := global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)) is not None:
        state["keras"] = _numbers(generator.state)
    if (context := _tensorflow_context()) is not None and context._seed is not None:
        state["tensorflow"] = [int(context._seed), context._rng.getstate()]
    return state


def set_randomness(model: Any, state: dict[str, Any]) -> None:
    """Set all of them; the generators of other frameworks than these stay as they are."""
    variables = _seeds(model)
    if len(variables) == len(state["layers"]):
        for variable, numbers in zip(variables, state["layers"], strict=True):
            variable.assign(numbers)
    else:
        warn(
            f"the saved model had {len(state['layers'])} random generators in its layers and this one has "
            f"{len(variables)}: its dropout will not continue as it would have"
        )
    if "keras" in state:
        from keras.src.random import seed_generator

        seed_generator.global_seed_generator().state.assign(state["keras"])
    if "tensorflow" in state and (context := _tensorflow_context()) is not None:
        seed, (version, words, gauss) = state["tensorflow"]
        sys.modules["tensorflow"].random.set_seed(seed)
        context._rng.setstate((version, tuple(words), gauss))
    randomness.restore(state)  # last: making a generator of Keras draws from Python's


def restore_randomness(model: Any, path: str) -> None:
    """Set the random state as it was when `path` was written; not for a model that another program saved."""
    if path.endswith(WEIGHTS_SUFFIX):
        return set_randomness(model, randomness.checked(_beside(path)["random"]))
    with zipfile.ZipFile(path) as archive:
        comment = archive.comment
    if not comment.startswith(_MARK):
        return None
    text = b""
    with suppress(zlib.error):
        text = zlib.decompress(comment.removeprefix(_MARK))
    return set_randomness(model, randomness.state_from_json(text))


def _seeds(model: Any) -> list[Any]:
    """The variables of the seed generators of a model's layers, in the order of the layers."""
    return [v for v in model.variables if v.name == "seed_generator_state"]


def _numbers(variable: Any) -> list[int]:
    from keras import ops

    return [int(n) for n in ops.convert_to_numpy(variable)]


def _tensorflow_context() -> Any:
    """Where TensorFlow keeps its seed and draws those of its operations; None when it is not imported."""
    module = sys.modules.get("tensorflow.python.eager.context")
    return None if module is None else module.context()
