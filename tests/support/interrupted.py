"""Ctrl-C at a place that is counted: what is left half done by it can be looked for at each."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

import haltune

ROOM = str(Path(haltune.__file__).parent)
T = TypeVar("T")


@pytest.fixture
def default_ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: in the background of a shell it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def uninterrupted(work: Callable[[], T], place: int, rooms: tuple[str, ...] = (ROOM,)) -> T | None:
    """Return the result of `work`, or None if Ctrl-C comes at that place, counted from 1, in files with this prefix.

    A place is one at which Python checks for signals: the start of a function, and the return from a C function.
    """
    left = place

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        # what a generator that is closed raises is nobody's to catch
        closed = frame.f_code.co_name == "<genexpr>"
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(rooms) and not closed:
            left -= 1
            if not left:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    try:
        sys.setprofile(profile)
        return work()
    except KeyboardInterrupt:
        return None
    finally:
        sys.setprofile(None)
