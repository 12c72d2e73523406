"""A terminal for the output of a program."""

import os
import pty
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path


def at_a_terminal(
    command: Sequence[str], width: int, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a program whose output is a terminal of so many columns; return its exit status and all that it wrote."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, width))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(width), **(variables or {})}
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            written += part
    os.close(ours)
    return child.returncode, written.decode()
