"""Ctrl-C and SIGTERM in a Keras fit: they wait for an epoch's end, as long as the fit is under way."""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any

from ..reporting.interruption import Interruption


def interruption() -> Interruption:
    """Of the fit that calls; in a loop that is none nothing waits, for nobody says when it has failed."""
    loop = _fit()
    return Interruption(loop is not None, loop)


def _fit() -> CodeType | None:
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_globals.get("__name__", "").startswith("keras."):
            return frame.f_code  # type: ignore[no-any-return]
        frame = frame.f_back
    return None
