"""Which accelerator a worker sees: one each where there are enough, shared in turn where there are not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from haltune.errors import InvalidInput

VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices_of(gpus: Sequence[int | str] | str | None) -> list[str]:
    """The devices to share out, by their names in CUDA_VISIBLE_DEVICES: "auto" finds them, None leaves them alone.

    Raises InvalidInput for anything but "auto", None and a list of numbers or names.
    """
    if gpus is None:
        return []
    if gpus == "auto":
        return _found()
    if isinstance(gpus, str) or any(isinstance(g, bool) or not isinstance(g, (int, str)) for g in gpus):
        raise InvalidInput(
            f"gpus={gpus!r}: 'auto', None, or a list such as [0, 1] of devices to share among workers"
        )
    return [str(g) for g in gpus]


def _found() -> list[str]:
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [part.strip() for part in named.split(",") if part.strip() not in ("", "-1")]
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(i) for i, line in enumerate(listing.stdout.splitlines()) if line.startswith("GPU ")]


def environment(found: Sequence[str], worker: int) -> dict[str, str]:
    """What a worker's environment holds besides ours."""
    return {VISIBLE: found[worker % len(found)]} if found else {}


@contextmanager
def set_while(values: dict[str, str]) -> Iterator[None]:
    """Our environment with `values`, for a process that inherits it when it starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
