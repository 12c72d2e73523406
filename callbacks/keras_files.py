"""One `.keras` file for a paused training: the whole model, and the random state beside it.

Keras writes the model: architecture, weights, optimizer, its iterations and its schedule.
The random state lies in the comment of that zip archive. A member of its own would make
keras.saving.load_model unpack the whole archive, weights and all, to a temporary folder.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput

from . import keras_randomness

SUFFIX = ".keras"
_LIMIT = 0xFFFF  # bytes in the comment of a zip archive; Python, NumPy and torch take 14 kB of it
_MARK = b"haltune1"


def write(model: Any, path: Path) -> None:
    """Save `model` and the random state to `path`. Raises what Keras raises, OSError on a full disk."""
    state = json.dumps(keras_randomness.capture(model))
    comment = _MARK + zlib.compress(state.encode(), 9)
    if len(comment) > _LIMIT:
        raise ValueError(
            f"the random state takes {len(comment)} bytes and a .keras file has room for {_LIMIT}: "
            "are there thousands of dropout layers?"
        )
    model.save(str(path))
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment


def read_randomness(path: str) -> dict[str, Any] | None:
    """The random state in a file; None for a model that another program saved."""
    with zipfile.ZipFile(path) as archive:
        comment = archive.comment
    if not comment.startswith(_MARK):
        return None
    state: dict[str, Any] = json.loads(zlib.decompress(comment.removeprefix(_MARK)))
    return state


def restore_randomness(model: Any, path: str) -> None:
    """Set the random state as it was when `path` was written."""
    if (state := read_randomness(path)) is not None:
        keras_randomness.restore(model, state)


def load(path: str, **options: Any) -> Any:
    """The model of a file, with the random state set as it was; options as in keras.saving.load_model.

    Raises InvalidInput for a file of another kind, and what Keras raises, with advice.
    """
    if not path.endswith(SUFFIX):
        raise InvalidInput(f"the trial's checkpoint {path!r} is no .keras file: load it with what wrote it")
    from keras import saving

    try:
        model = saving.load_model(path, **options)
    except Exception as error:
        error.add_note(
            "haltune: classes and functions of your own need @keras.saving.register_keras_serializable(), or "
            "trial.load_model(custom_objects={'Net': Net}); lambdas need trial.load_model(safe_mode=False)"
        )
        raise
    restore_randomness(model, path)
    return model
