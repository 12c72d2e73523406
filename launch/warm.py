"""Runs of a program of Python that begin warm: a zygote for each worker has imported what the program needs, and forks.

A fork begins as the program would, in a session of its own, with what the program imports from others there already.
Where a fork might differ from a fresh process there is none: see `zygote.why_not` and `imports`.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import limits, zygote
from .imports import imports_of

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_OPTION = re.compile(
    r"-[bBdEIOPqsSu]+|-[WX].+"
)  # of an interpreter that runs a program from its beginning to its end
_OPENING = ("haltune.store.", "haltune.policies.", "haltune.study.")  # what opens this study, as it did here
_DYING = 5.0  # seconds that a killed process may take to be gone


@dataclass(frozen=True)
class Program:
    """A command that runs a program of Python, taken apart."""

    command: Sequence[str]
    interpreter: Sequence[str]  # with its options
    argv: Sequence[str]
    module: str | None  # behind -m
    root: Path  # the folder that its own modules are imported from
    modules: Sequence[str]  # of others, that it imports


def program_of(command: Sequence[str]) -> Program | None:
    """The program of a command; None where it is none whose runs can begin warm."""
    if not sys.platform.startswith("linux") or not _PYTHON.fullmatch(Path(command[0]).name):
        return None
    n = 1
    while n < len(command) and (command[n] in ("-W", "-X") or _OPTION.fullmatch(command[n])):
        n += 2 if command[n] in ("-W", "-X") else 1
    module = command[n + 1] if list(command[n : n + 1]) == ["-m"] and len(command) > n + 1 else None
    if module is None and (n >= len(command) or command[n].startswith("-")):
        return None
    argv = ["-m", *command[n + 2 :]] if module else list(command[n:])
    root = Path.cwd() if module else Path(argv[0]).resolve().parent
    try:
        modules = imports_of(_file_of(module, root) if module else Path(argv[0]).resolve(), root)
    except (OSError, SyntaxError, ValueError):
        return None
    if all(re.split("[.:]", name)[0] in sys.stdlib_module_names for name in modules):
        return None  # little to gain
    return Program(command, command[:n], argv, module, root, [*modules, *_late(modules)])


def _late(modules: Sequence[str]) -> list[str]:
    """What a program that imports these imports while it trains."""
    found = (
        sorted(name for name in sys.modules if name.startswith(_OPENING))
        if any(name.startswith("haltune") for name in modules)
        else []
    )
    return [*found, "torch._dynamo"] if any(name.partition(".")[0] == "torch" for name in modules) else found


def _file_of(module: str, root: Path) -> Path:
    """Where `python -m module` finds a module of the user's own."""
    place = root.joinpath(*module.split("."))
    return place / "__main__.py" if place.is_dir() else place.with_name(f"{place.name}.py")


class Zygote:
    """The launcher's end. A Run: the one that it was told of last."""

    def __init__(self, program: Program, environment: Mapping[str, str], log: Path) -> None:
        """Raises OSError when there is no such interpreter."""
        self._program, self._environment = program, dict(environment)
        self._child: int | None = None  # the run's process
        self._code: int | None = None  # how that ended
        self._told = b""
        self.ready: bool | None = None  # False: it may not fork, or is gone; None: it is not known yet
        self._gone = False
        theirs, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        os.set_blocking(self._answers, False)
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [*program.interpreter, zygote.__file__, str(theirs), str(answers), *program.argv],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=self._environment,
                    start_new_session=True, pass_fds=(theirs, answers),
                )  # fmt: skip
        except OSError:
            self._close()
            raise
        finally:
            os.close(theirs)
            os.close(answers)
        self._send(list(program.modules))

    @property
    def pid(self) -> int:
        return self._child or self._process.pid

    @property
    def waitables(self) -> Sequence[int]:
        """What has news when it tells something."""
        return [] if self._gone else [self._answers]

    def begin(self, environment: Mapping[str, str], log: Path) -> None:
        """Begin another run, once it has told how the last one ended."""
        self._child = self._code = None
        before = self._environment
        self._send({
            "set": {name: value for name, value in environment.items() if before.get(name) != value},
            "unset": [name for name in before if name not in environment], "folder": str(Path.cwd()),
            "log": str(log.absolute()), "argv": self._program.argv, "module": self._program.module,
            "root": str(self._program.root), "command": list(self._program.command),
        })  # fmt: skip

    def poll(self) -> int | None:
        self._hear()
        if self._gone and self._code is None and self.ready:  # it was killed, and by nobody here
            self.kill()
            self._code = -signal.SIGKILL
        return self._code

    def kill(self) -> None:
        """See Run. The zygote ends, too."""
        self._hear()
        self._end_child()
        limits.kill(self._process.pid)
        self._process.wait()
        self._hear()
        self._end_child()  # it had just begun
        self._child = None  # its number may be another's from now on
        self._close()

    def _end_child(self) -> None:
        """While its number is its own: the zygote has not reaped it."""
        until = time.monotonic() + _DYING
        while self._child and self._code is None and time.monotonic() < until:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, signal.SIGKILL)
            if self._gone:
                return
            select.select([self._answers], [], [], 0.1)
            self._hear()

    def _hear(self) -> None:
        """Take in what it has answered."""
        while not self._gone:
            try:
                told = os.read(self._answers, 4096)
            except BlockingIOError:
                return
            self._gone = not told
            *lines, self._told = (self._told + told).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        self.ready = bool(self.ready)

    def _take(self, told: Any) -> None:
        if self.ready is None:
            self.ready = told is None
        elif self._child is None:
            self._child = told
        else:
            self._code = told

    def _send(self, what: Any) -> None:
        with suppress(OSError):  # it is dead already, which `poll` finds
            os.write(self._commands, f"{json.dumps(what)}\n".encode())

    def _close(self) -> None:
        self._gone = True
        for fd in {self._commands, self._answers} - {-1}:
            os.close(fd)
        self._commands = self._answers = -1
