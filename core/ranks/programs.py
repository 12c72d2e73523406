"""What has to be done before this process starts another program: a fit may start the other ranks at any time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.system", "os.exec"}  # Python's audit events
_waiting: list[Callable[[], None]] = []
_hooked: list[bool] = []


def before_programs(work: Callable[[], None]) -> None:
    """Call `work` once, just before this process starts a program, if ever it does."""
    _waiting.append(work)
    if not _hooked:  # a hook stays for good
        _hooked.append(True)
        sys.addaudithook(_heed)


def _heed(event: str, _: object) -> None:
    if _waiting and event in _STARTS:
        due, _waiting[:] = list(_waiting), []
        for work in due:
            with suppress(Exception):  # an error here would forbid the program
                work()
