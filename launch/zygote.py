"""A process that has imported what a program needs, and forks for each of its runs.

The interpreter of the program runs this file, which knows nothing of haltune; `warm.py` is the other end of two pipes,
with a line of JSON a message. It is told what to import, and answers why it may not fork, or null. Then it is told of
runs, one at a time, and answers the number of each one's process, and how that ended. That process is not reaped before
the next message, so that its number stays its own. The zygote ends with the launcher, whose end of the pipe closes.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the folder of this file, which the program does not import from

import builtins
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import sysconfig
import threading
import types
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

UNSAFE = ("jax", "jaxlib", "tensorflow", "ray", "mpi4py")  # they start threads, which a fork loses
POOLED = ("numpy", "scipy.linalg")  # their OpenBLAS has threads, which it ends before a fork and starts anew
DEVICES = ("/dev/nvidia", "/dev/dxg", "/dev/kfd", "/dev/dri")


def serve(commands: int, answers: int) -> dict[str, Any]:
    """Fork for each run that is asked for; in its process, the run."""
    lines = os.fdopen(commands, encoding="utf-8")
    why = why_not(json.loads(lines.readline()))
    tell(answers, why)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    gc.freeze()
    child = 0
    while why is None and (line := lines.readline()):
        if child:
            os.waitid(os.P_PID, child, os.WEXITED)
        waits, goes = os.pipe()
        child = os.fork()
        if not child:
            for fd in (goes, woken, wakes, answers):
                os.close(fd)
            lines.close()
            leave_unless_known(waits)
            run: dict[str, Any] = json.loads(line)
            return run
        os.close(waits)
        tell(answers, child)
        os.write(goes, b"g")
        os.close(goes)
        tell(answers, code_of(child, commands, woken, wakes))
    os._exit(0)


def tell(answers: int, what: Any) -> None:
    """Send a message; without a launcher, end."""
    try:
        os.write(answers, f"{json.dumps(what)}\n".encode())
    except OSError:
        os._exit(0)


def leave_unless_known(waits: int) -> None:
    """Become the leader of a session, as a fresh process is; go on once the launcher was told the number."""
    os.setsid()
    if not os.read(waits, 1):
        os._exit(1)
    os.close(waits)


def code_of(child: int, commands: int, woken: int, wakes: int) -> int:
    """How a process ended, as subprocess counts; the rest of its group is ended. Without a launcher, end."""
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    while (end := os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
        ready, _, _ = select.select([commands, woken], [], [])
        if commands in ready:  # nothing is sent meanwhile: it was closed
            os._exit(0)
        os.read(woken, 4096)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, before)
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


# -- what is imported ----------------------------------------------------------------------------


def why_not(modules: list[str]) -> str | None:
    """Import what is installed; why a fork of this process would not be as a fresh one, None where it would."""
    for name in POOLED:
        get(name)
    allowed = threads()
    for module in modules:
        name, _, member = module.partition(":")
        if name.partition(".")[0] in UNSAFE:
            return f"{name} starts threads"
        get(name, member)
        if threading.active_count() > 1 or threads() > allowed:
            return f"{name} starts threads"
    return next((f"{name} is imported" for name in UNSAFE if name in sys.modules), None) or on_a_device()


def get(name: str, member: str = "") -> None:
    """Import a module that is installed, and the submodule that `from name import member` would."""
    if not is_installed(name.partition(".")[0]):
        return
    with suppress(Exception):  # the program says it better
        found = importlib.import_module(name)
        if member and not hasattr(found, member):
            importlib.import_module(f"{name}.{member}")


def on_a_device() -> str | None:
    """Why not, where a library holds a GPU: a fork could not use it."""
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(DEVICES):
                return "a GPU is in use"
    return None


def threads() -> int:
    """How many threads this process has, those of compiled code among them."""
    return len(os.listdir("/proc/self/task"))


def is_installed(name: str) -> bool:
    """Whether a package comes with Python, or lies among those that were installed: none of the user's own."""
    if name == "haltune" or name in getattr(sys, "stdlib_module_names", ()):
        return True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    if spec is None or not spec.origin:
        return False
    within = Path(spec.origin).parents
    return Path(sysconfig.get_paths()["stdlib"]) in within or any(
        folder.name in ("site-packages", "dist-packages") for folder in within
    )


# -- a run ---------------------------------------------------------------------------------------


def carry_out(run: dict[str, Any]) -> None:
    """In the process of a run: the program from its beginning, as the interpreter would."""
    for name in run["unset"]:
        os.environ.pop(name, None)
    os.environ.update(run["set"])
    os.chdir(run["folder"])
    with open(run["log"], "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sow()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.argv, sys.orig_argv = run["argv"], run["command"]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, run["root"])
    try:
        if run["module"]:
            runpy._run_module_as_main(run["module"])  # type: ignore[attr-defined]
        else:
            run_file(main, os.path.abspath(sys.argv[0]))
    except Exception as error:
        error.__traceback__ = beyond(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def sow() -> None:
    """New random numbers, as a fresh process has them; Python's own generator is sown anew by the fork itself."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:  # of the CPU alone: those of devices begin with one and the same seed
        sys.modules["torch"].default_generator.seed()


def run_file(main: types.ModuleType, path: str) -> None:
    """Run a file as the module __main__."""
    main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
    main.__dict__["__cached__"] = None
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def beyond(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    carry_out(serve(int(sys.argv[1]), int(sys.argv[2])))
