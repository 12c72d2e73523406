"""The file of a paused Keras training, and the random state that goes with it.

- `.keras`: the whole model as Keras writes it: architecture, weights, optimizer, its iterations and its
  schedule. The random state lies in the comment of that zip archive. A member of its own would make
  keras.saving.load_model unpack the whole archive, weights and all, to a temporary folder.
- `.weights.h5`: weights and optimizer alone, for a model that the user's own function builds. The random
  state, and with which shapes the model was built, lie beside it, in NAME.random.
"""

from __future__ import annotations

import json
import warnings
import zipfile
import zlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput

from ..frameworks import randomness
from .randomness import capture, restore

MODEL_SUFFIX, WEIGHTS_SUFFIX = ".keras", ".weights.h5"
OURS = (MODEL_SUFFIX, WEIGHTS_SUFFIX)
_BESIDE = ".random"
_COMMENT_LIMIT = 0xFFFF  # bytes in the comment of a zip archive; Python, NumPy and torch take 14 kB of it
_MARK = b"haltune1"


def write(model: Any, path: Path) -> None:
    """Save `model`, or its weights, and the random state. Raises what Keras raises, OSError on a full disk."""
    state = {"random": capture(model)}
    if path.name.endswith(WEIGHTS_SUFFIX):
        model.save_weights(str(path))
        build = json.dumps(state | {"build": model.get_build_config()})
        Path(f"{path}{_BESIDE}").write_text(build, encoding="utf-8")
        return
    comment = _MARK + zlib.compress(json.dumps(state["random"]).encode(), 9)
    if len(comment) > _COMMENT_LIMIT:
        raise ValueError(
            f"the random state takes {len(comment)} bytes and a .keras file has room for {_COMMENT_LIMIT}: "
            "are there thousands of dropout layers?"
        )
    model.save(str(path))
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment


def read_randomness(path: str) -> dict[str, Any] | None:
    """The random state in a file; None for a model that another program saved."""
    if path.endswith(WEIGHTS_SUFFIX):
        return randomness.checked(_beside(path)["random"])
    with zipfile.ZipFile(path) as archive:
        comment = archive.comment
    if not comment.startswith(_MARK):
        return None
    try:
        text = zlib.decompress(comment.removeprefix(_MARK))
    except zlib.error:
        text = b""
    return randomness.state_from_json(text)


def restore_randomness(model: Any, path: str) -> None:
    """Set the random state as it was when `path` was written."""
    if (state := read_randomness(path)) is not None:
        restore(model, state)


def load(path: str, randomness: bool = True, **options: Any) -> Any:
    """The model of a file, with the random state set as it was if `randomness`; options as in keras.saving.load_model.

    Raises InvalidInput for a file of another kind, and what Keras raises, with advice.
    """
    _need(path, whole=True)
    from keras import saving

    try:
        model = saving.load_model(path, **options)
    except Exception as error:
        whose = "trial" if randomness else "study.best"
        if "Lambda" in str(error) and "safe_mode" in str(error):
            raise InvalidInput(
                f"the model in {path} holds a lambda, code that Keras runs only where you say that you trust the file: "
                f"{whose}.load_model(safe_mode=False); or {whose}.load_model(make_model), by your function"
            ) from error
        error.add_note(f"haltune: {LOADING_ADVICE.replace('trial.', f'{whose}.')}")
        raise
    if randomness:
        restore_randomness(model, path)
    return model


def load_into(model: Any, path: str, randomness: bool = True) -> None:
    """Set weights and optimizer of a model that was just made, and if `randomness` the random state, as in a file.

    Raises InvalidInput for a file of another kind and for one of another model.
    """
    _need(path)
    with _scope(model):
        if not model.built:
            model.build_from_config(_build_config(path))
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
    if randomness:
        restore_randomness(model, path)


LOADING_ADVICE = (
    "begin with model = trial.load_model(make_model), which builds the model by your function and loads its weights "
    "and its optimizer; or give Keras what it lacks: classes and functions of your own need "
    "@keras.saving.register_keras_serializable() or trial.load_model(custom_objects={'Net': Net}), "
    "lambdas trial.load_model(safe_mode=False)"
)


def _need(path: str, whole: bool = False) -> None:
    """Raises InvalidInput for a file that was not written here, or not of a whole model."""
    if not path.endswith(OURS):
        raise InvalidInput(f"the trial's checkpoint {path!r} is no .keras file: load it with what wrote it")
    if whole and path.endswith(WEIGHTS_SUFFIX):
        raise InvalidInput(
            f"the trial's checkpoint {path!r} holds weights and optimizer alone, as its training began with "
            "trial.load_model(make_model), or Keras cannot write down how the model is built: give load_model the "
            "function that builds it, trial.load_model(make_model) or study.best.load_model(make_model)"
        )


def _build_config(path: str) -> Any:
    """With which shapes the model in a file was built."""
    if path.endswith(WEIGHTS_SUFFIX):
        return _beside(path)["build"]
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("config.json")).get("build_config")


def _beside(path: str) -> dict[str, Any]:
    """What lies beside a file of weights. Raises InvalidInput when it is damaged."""
    try:
        found = json.loads(Path(path + _BESIDE).read_bytes())
        return {name: found[name] for name in ("random", "build")}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise randomness.damaged(error) from error


def _scope(model: Any) -> AbstractContextManager[Any]:
    """That of the strategy of TensorFlow under which a model was made."""
    strategy = getattr(model, "distribute_strategy", None)
    return nullcontext() if strategy is None else strategy.scope()
