"""Which frameworks are installed, and whether haltune's callback for each can be imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Iterator

from haltune.launch.devices import devices_of

from .checks import Finding

_CALLBACKS = {  # distribution: its module, the callback's
    "lightning": ("lightning", "lightning"), "pytorch-lightning": ("pytorch_lightning", "lightning"),
    "keras": ("keras", "keras"), "xgboost": ("xgboost", "xgboost"), "transformers": ("transformers", "transformers"),
}  # fmt: skip
_IMPORTING = 180.0  # seconds for one import


def frameworks() -> Iterator[Finding]:
    """Each is imported in a process of its own: at the same time, and a crash of one is a finding."""
    found = {name: pair for name, pair in _CALLBACKS.items() if importlib.util.find_spec(pair[0]) is not None}
    started = {name: _import(f"{module}, haltune.callbacks.{own}") for name, (module, own) in found.items()}
    for name in _CALLBACKS:
        if name in started:
            yield _finding(name, started[name])
        elif name not in ("pytorch-lightning", "lightning") or not {"pytorch-lightning", "lightning"} & set(
            found
        ):
            yield Finding("frameworks", None, f"{name} is not installed")
    names = ", ".join(devices_of("auto"))
    yield Finding("frameworks", None, f"CUDA devices: {names}" if names else "no CUDA device")


def _import(modules: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"import {modules}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


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
        return Finding(
            "frameworks", True, f"{' '.join(filter(None, (name, version)))} and its callback import"
        )
    last = (errors.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    return Finding("frameworks", False, f"{name} {version} cannot be used: {last}", f"pip install -U {name}")
