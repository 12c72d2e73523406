"""The errors haltune raises: each says what was wrong, what is allowed and what to do next.

And one that trainings raise: that they ran out of memory, a fact about their configurations and no bug.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import traceback
import warnings
from contextlib import suppress

from haltune.display import is_set_up, text_of, visible

_log = logging.getLogger("haltune")


class HaltuneError(Exception):
    """Base of every error that haltune raises on purpose."""

    def __str__(self) -> str:
        return visible(super().__str__())  # it may quote a name, a file or another program's words


class InvalidSpace(HaltuneError, ValueError):
    """A search space, or a configuration of it, is not well formed."""


class InvalidInput(HaltuneError, ValueError):
    """A value given to haltune is outside what is allowed."""


class UnknownArgument(InvalidInput, TypeError):
    """An argument that haltune does not take, answered by the one that is meant."""


class StudyMismatch(HaltuneError):
    """A study was reopened with another problem or policy than it was recorded with."""


class StoreError(HaltuneError):
    """The event log could not be read or written."""


class StoreAway(StoreError):
    """The server that keeps the log cannot be reached now; later it may be."""


class StoreReadOnly(StoreError):
    """The event log can be looked at, and nothing can be written to it."""


class LeaseLost(HaltuneError):
    """This worker no longer holds the trial: its lease expired and the trial was offered to others."""


class RankLost(HaltuneError):
    """A rank of a distributed training waits for rank 0, which is gone or silent."""


class TrainingFailed(HaltuneError):
    """The training raised before any trial succeeded, or too many times in a row: most likely a bug in it."""


class NoRoom(HaltuneError, OSError):
    """A checkpoint does not fit: the disk or the quota is full."""


class NotSupported(HaltuneError):
    """Something haltune does not do (yet), named instead of done wrongly."""


class HaltuneWarning(UserWarning):
    """Something that works but that the user should know of; given once."""

    _asked = 0  # how often for its text

    def __str__(self) -> str:
        self._asked += 1
        return super().__str__()

    @property
    def shown(self) -> bool:
        """Whether it was written out: Python asks for its text once to filter it, and once more to show it."""
        return self._asked > 1


def warn(text: str, aloud: bool = False) -> None:
    """A HaltuneWarning that points at the caller's line outside haltune.

    aloud: in the log "haltune", too, which nobody filters; not twice on the screen of a program that set up no logging.
    """
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "haltune":
        level, frame = level + 1, frame.f_back
    warnings.warn(told := HaltuneWarning(visible(text)), stacklevel=level)
    if aloud and (is_set_up() or not told.shown):
        _log.warning("%s", told, extra={"style": "yellow"})


def installing(extra: str) -> str:
    """What to type for an extra of haltune's, from where this one was installed."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow, and seldom needed
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        told = json.loads(distribution("haltune").read_text("direct_url.json") or "{}")  # PEP 610
    except (PackageNotFoundError, ValueError):
        told = {}
    url, control = str(told.get("url", "")), told.get("vcs_info", {}).get("vcs")
    if (address := urlsplit(url)).scheme == "file":
        path = url2pathname(address.path)
        return f"pip install '{path}[{extra}]'" if os.path.exists(path) else f"pip install 'haltune[{extra}]'"
    where = f" @ {control}+{url}" if control else f" @ {url}" if url else ""
    return f"pip install 'haltune[{extra}]{where}'"


OUT_OF_MEMORY = "out of memory"  # what the error of such a failure begins with
_SHORTAGES = ("OutOfMemory", "ResourceExhausted")  # torch's, CuPy's, TensorFlow's kinds
_SHORT_OF = ("out of memory", "resource_exhausted", "can't allocate memory", "bad_alloc")  # in a RuntimeError


def is_shortage(error: BaseException | None) -> bool:
    """True for the errors by which frameworks and Python say that there is no memory left, or what they caused."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        kind, text = type(error).__name__, text_of(error).lower()
        if isinstance(error, MemoryError) or any(name in kind for name in _SHORTAGES):
            return True
        if isinstance(error, RuntimeError) and any(words in text for words in _SHORT_OF):
            return True
        error = error.__cause__ or error.__context__
    return False


def told_shortage(error: str | None) -> bool:
    """True for the error of a failed trial, as the log has it, that ran out of memory."""
    return error is not None and error.startswith(OUT_OF_MEMORY)


def free_memory(error: BaseException) -> None:
    """Give back what the failed training holds: its frames' variables, and what torch keeps for the next tensors."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()  # models hold themselves
    torch = sys.modules.get("torch")
    with suppress(Exception):  # a device in a bad state is the next training's to tell
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
