"""Ctrl-C and SIGTERM in a Keras fit: they wait for an epoch's end, as long as the fit is under way."""

from __future__ import annotations

from ..reporting.interruption import Interruption, calling


def interruption() -> Interruption:
    """Of the fit that calls; in a loop that is none nothing waits, for nobody says when it has failed."""
    loop = calling("fit", "keras.")
    return Interruption(loop is not None, loop)
