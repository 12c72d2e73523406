"""The errors that haltune raises, its warnings, and the errors of a full memory or disk that trainings raise."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress

from haltune.display import logs_elsewhere, text_of, visible

SITE = "https://haltune.example.org"  # of the documentation, a placeholder until it is published: CONTRIBUTING.md
_log = logging.getLogger("haltune")


def documented(page: str) -> str:
    """Return the address of a page of the documentation: "howto/schedules", or "scale/gpus#memory"."""
    path, mark, anchor = page.partition("#")
    return f"{SITE}/{path}.html{mark}{anchor}"


class HaltuneError(Exception):
    """Base of every error that haltune raises on purpose."""

    def __str__(self) -> str:
        return visible(super().__str__())  # it may quote a name, a file or another program's text


class InvalidSpace(HaltuneError, ValueError):
    """A search space, or a configuration of it, is invalid."""


class InvalidInput(HaltuneError, ValueError):
    """A value given to haltune is outside what is allowed."""


class UnknownArgument(InvalidInput, TypeError):
    """An unknown argument; the message names the right one."""


class StudyMismatch(HaltuneError):
    """A study was reopened with another problem or policy than it was recorded with."""


class StoreError(HaltuneError):
    """The event log could not be read or written."""


class StoreAway(StoreError):
    """The server of the log cannot be reached at the moment."""


class StoreReadOnly(StoreError):
    """The event log can be read but not written."""


class LeaseLost(HaltuneError):
    """This worker no longer holds the trial: its lease expired and the trial was offered to others."""


class RankLost(HaltuneError):
    """A rank of a distributed training waits for rank 0, which has ended or does not answer."""


class TrainingFailed(HaltuneError):
    """Every trial fails or diverges, or too many failed in a row; probably the training has a bug."""


class NoRoom(HaltuneError, OSError):
    """A checkpoint does not fit: the disk or the quota is full."""


class NotSupported(HaltuneError):
    """Something that haltune does not support."""


class HaltuneWarning(UserWarning):
    """A warning about something that works but may not be intended; given once."""

    _asked = 0  # number of calls of __str__

    def __str__(self) -> str:
        self._asked += 1
        return super().__str__()

    @property
    def shown(self) -> bool:
        """True if it was shown: Python reads its text once to filter it, and once more to show it."""
        return self._asked > 1


def warn(text: str, aloud: bool = False) -> None:
    """Give a HaltuneWarning that points at the caller's line outside haltune.

    aloud: also log it to "haltune", because warnings may be filtered. A warning that was shown is not logged to the
    same place.
    """
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "haltune":
        level, frame = level + 1, frame.f_back
    warnings.warn(warning := HaltuneWarning(visible(text)), stacklevel=level)
    if aloud and (not warning.shown or logs_elsewhere()):
        _log.warning("%s", warning, extra={"style": "yellow"})


def installing(extra: str) -> str:
    """Return the pip command that installs an extra of haltune, from the same source as this installation."""
    from importlib.metadata import distributions  # slow, and seldom needed
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    # PEP 610; what a build has left in the working directory is none
    installed = (found.read_text("direct_url.json") for found in distributions(name="haltune"))
    try:
        source = json.loads(next(filter(None, installed), "{}"))
    except ValueError:
        source = {}
    url, control = str(source.get("url", "")), source.get("vcs_info", {}).get("vcs")
    if (address := urlsplit(url)).scheme == "file":
        path = url2pathname(address.path)
        return f"pip install '{path}[{extra}]'" if os.path.exists(path) else f"pip install 'haltune[{extra}]'"
    where = f" @ {control}+{url}" if control else f" @ {url}" if url else ""
    return f"pip install 'haltune[{extra}]{where}'"


OUT_OF_MEMORY = "out of memory"  # start of the error of such a failure
_SHORTAGES = ("OutOfMemory", "ResourceExhausted")  # exception types of torch, CuPy, TensorFlow
_SHORT_OF = ("out of memory", "resource_exhausted", "can't allocate memory", "bad_alloc")  # in a RuntimeError


# in an error at a full disk: the system's words, a quota's, and torch's
_FULL = ("no space left on device", "disk quota exceeded", "pytorchstreamwriter failed writing")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        # an error of haltune's own, raised while the user's code handles one, is another failure
        error = error.__cause__ or (None if isinstance(error, HaltuneError) else error.__context__)


def is_shortage(error: BaseException | None) -> bool:
    """True if the error, or one that caused it, is an out-of-memory error of Python or a framework."""
    for one in _causes(error):
        kind, text = type(one).__name__, text_of(one).lower()
        if isinstance(one, MemoryError) or any(name in kind for name in _SHORTAGES):
            return True
        if isinstance(one, RuntimeError) and any(words in text for words in _SHORT_OF):
            return True
    return False


def is_full(error: BaseException | None) -> bool:
    """True if the error, or one that caused it, is that of a full disk or quota."""
    for one in _causes(error):
        if isinstance(one, HaltuneError):  # others are of a store, whose disk may be another one, or of a lost trial
            return isinstance(one, NoRoom)
        if (isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT)) or told_full(text_of(one)):
            return True
    return False


def told_full(text: str) -> bool:
    """True if a text, such as what a program printed, has the error of a full disk."""
    return any(words in text.lower() for words in _FULL) and "</torch_" not in text  # of torch's shared memory


def told_short(text: str) -> bool:
    """True if a text, such as what a program printed, has an out-of-memory error of any language."""
    words = (*_SHORT_OF, "outofmemory", "memoryerror", "cannot allocate")
    return any(word in text.lower() for word in words) and "static TLS" not in text  # which is an import in a bad order


def told_shortage(error: str | None) -> bool:
    """True if the recorded error of a failed trial is an out-of-memory error."""
    return error is not None and error.startswith(OUT_OF_MEMORY)


def free_memory(error: BaseException) -> None:
    """Free the memory of a failed training: the variables of its frames, and torch's cache."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()  # models contain reference cycles
    torch = sys.modules.get("torch")
    with suppress(Exception):  # if the device is in a bad state, the next training raises the error
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
