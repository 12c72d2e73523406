"""Work of a user with fewer permissions than the test's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534

needs_another_user = pytest.mark.skipif(not hasattr(os, "fork") or os.getuid() != 0, reason="needs to be another user")


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that all users may enter: pytest's own is closed."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


def as_another_user(work: Callable[[], str]) -> str:
    """Return the result of `work`, or the type and text of its exception. Its imports must be done before."""
    reads, writes = os.pipe()
    if not (child := os.fork()):
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            told = work()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writes, told.encode()[:60000])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, encoding="utf-8") as said:
        told = said.read()
    assert os.waitpid(child, 0)[1] == 0
    return told
