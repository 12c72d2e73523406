"""Trainings that ran out of memory: a fact about their configurations, and no bug in the training code."""

from __future__ import annotations

import gc
import sys
import traceback
from contextlib import suppress

REASON = "out of memory"  # what the error of such a failure begins with
_NAMES = {"OutOfMemoryError", "ResourceExhaustedError"}  # torch's, CuPy's, TensorFlow's
_WORDS = ("out of memory", "RESOURCE_EXHAUSTED", "can't allocate memory", "bad_alloc")  # in a RuntimeError


def is_shortage(error: BaseException | None) -> bool:
    """True for the errors by which frameworks and Python say that there is no memory left, or what they caused."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        named = isinstance(error, MemoryError) or type(error).__name__ in _NAMES
        if named or (isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)):
            return True
        error = error.__cause__ or error.__context__
    return False


def told_shortage(error: str | None) -> bool:
    """True for the error of a failed trial, as the log has it, that ran out of memory."""
    return error is not None and error.startswith(REASON)


def free(error: BaseException) -> None:
    """Give back what the failed training holds: its frames' variables, and what torch keeps for the next tensors."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()  # models hold themselves
    torch = sys.modules.get("torch")
    with suppress(Exception):  # a device in a bad state is the next training's to tell
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
