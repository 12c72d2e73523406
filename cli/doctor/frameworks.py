"""Which frameworks are installed, and whether haltune's callback for each can be imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from haltune.launch.devices import devices_of

from .checks import Finding

_CALLBACKS = {  # distribution: its module, the callback's
    "lightning": ("lightning", "lightning"), "pytorch-lightning": ("pytorch_lightning", "lightning"),
    "keras": ("keras", "keras"), "xgboost": ("xgboost", "xgboost"), "transformers": ("transformers", "transformers"),
    "lightgbm": ("lightgbm", "lightgbm"), "catboost": ("catboost", "catboost"),
    "fastai": ("fastai", "fastai"), "accelerate": ("accelerate", "accelerate"),
}  # fmt: skip
_BACKENDS = ("torch", "jax", "tensorflow")  # of Keras, the last the one that it takes by itself
_IMPORTING = 180.0  # seconds for one import


def frameworks() -> Iterator[Finding]:
    """Each is imported in a process of its own: at the same time, and a crash of one is a finding."""
    found = {name: pair for name, pair in _CALLBACKS.items() if importlib.util.find_spec(pair[0]) is not None}
    started = {
        name: _import(name, f"{module}, haltune.callbacks.{own}") for name, (module, own) in found.items()
    }
    for name in _CALLBACKS:
        if name in started:
            yield _finding(name, started[name])
        elif name not in ("pytorch-lightning", "lightning") or not {"pytorch-lightning", "lightning"} & set(
            found
        ):
            yield Finding("frameworks", None, f"{name} is not installed")
    names = ", ".join(devices_of("auto"))
    yield Finding("frameworks", None, f"CUDA devices: {names}" if names else "no CUDA device")


def _import(name: str, modules: str) -> subprocess.Popen[str]:
    backend = _instead() if name == "keras" else None
    return subprocess.Popen(
        [sys.executable, "-c", f"import {modules}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | ({"KERAS_BACKEND": backend} if backend else {}),
    )  # fmt: skip


def _instead() -> str | None:
    """The backend of Keras that is there, where the one that it would take by itself is not."""
    if "KERAS_BACKEND" in os.environ or importlib.util.find_spec(_by_itself()) is not None:
        return None
    return next((name for name in _BACKENDS if importlib.util.find_spec(name) is not None), None)


def _by_itself() -> str:
    """The backend that Keras takes where the environment names none: by its file, or TensorFlow."""
    try:
        home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
        told = str(json.loads((home / "keras.json").read_text(encoding="utf-8"))["backend"])
    except (OSError, ValueError, TypeError, LookupError):
        return _BACKENDS[-1]
    return told if told in _BACKENDS else _BACKENDS[-1]


def _finding(name: str, process: subprocess.Popen[str]) -> Finding:
    try:
        _, errors = process.communicate(timeout=_IMPORTING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Finding(
            "frameworks", False, f"{name} takes over {_IMPORTING:g} s to import", "install it again"
        )
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = ""  # another distribution of it, such as xgboost-cpu
    if process.returncode == 0:
        told = f"{' '.join(filter(None, (name, version)))} and its callback import"
        if name == "keras" and (backend := _instead()):
            advice = (
                f"by itself Keras takes {_by_itself()}, which is not installed: KERAS_BACKEND={backend} in the "
                "environment, or in the program before it imports keras"
            )
            return Finding("frameworks", True, f"{told}, over {backend}", advice)
        return Finding("frameworks", True, told)
    last = (errors.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    lacks = re.search(r"No module named '(\w+)", last)
    advice = f"pip install -U {name}" if lacks is None else f"pip install {lacks[1]}"
    if name == "keras" and lacks is not None and lacks[1] in _BACKENDS:
        advice += ", or name a backend that is there: KERAS_BACKEND=torch"
    return Finding("frameworks", False, f"{name} {version} cannot be used: {last}", advice)
