"""Parent process of a program that haltune did not write: python supervisor.py GRACE LOCK PROGRAM ARGUMENT...

It ends the program, with everything that the program started, as soon as the launcher asks for it or is gone. Its input
is a pipe from the launcher. At the end of the input the program gets SIGTERM, and SIGKILL after GRACE seconds; a byte
there means SIGKILL at once. A shell script ends at SIGTERM before its training does, which then gets SIGTERM too. It
exits as the program does. While it lives it holds the locked file LOCK, a descriptor, so that two attempts at one trial
never train at the same time. It imports no haltune, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(grace: float, lock: int, command: list[str]) -> None:
    for number in _HANDLED:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the program would inherit
    os.set_inheritable(lock, False)  # the lock ends with this process, not with the program
    adopts = _adopt_orphans()
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        _become(command)
    kill_at: float | None = None  # by time.monotonic; None: the program may train
    listens, at_once = True, False
    while True:
        if (status := _reaped(child)) is not None:
            break
        pause = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select([wakes, *([0] if listens else [])], [], [], pause)
        if wakes in ready:
            os.read(wakes, 4096)
        if 0 in ready:
            listens = bool(os.read(0, 1))
            if not listens and kill_at is None:
                kill_at = time.monotonic() + grace
                _signal(child, signal.SIGTERM)
            elif listens:
                kill_at, at_once = 0.0, True
        if kill_at is not None and time.monotonic() >= kill_at:
            _signal(child, signal.SIGKILL)
            kill_at = time.monotonic() + 0.2  # the disk may hold it a while
    if adopts:
        if kill_at is not None and not at_once:
            _end_descendants(kill_at)
        if _kill_descendants() and kill_at is not None:
            status = signal.SIGKILL  # perhaps in the middle of a write
    elif not listens:  # no launcher reads how it exits, so it may die with its group
        os.killpg(0, signal.SIGKILL)
    _exit_as(status)


def _become(command: list[str]) -> None:
    for number in (*_HANDLED, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"Cannot start {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(126)


def _adopt_orphans() -> bool:
    """Become the parent of all orphans among the descendants, also in other sessions; on Linux only."""
    try:
        return bool(ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0)  # PR_SET_CHILD_SUBREAPER
    except (OSError, AttributeError):
        return False


def _reaped(child: int) -> int | None:
    """Reap all children that have ended; return the status of the program once it has."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == child:
            return status
        if pid == 0:
            return None


def _end_descendants(until: float) -> None:
    """Ask all that the program left to end; wait for it until then, by time.monotonic."""
    asked = set[int]()
    while time.monotonic() < until and (left := _children()):
        for pid in left:
            if pid not in asked:
                _signal(pid, signal.SIGTERM)
        asked.update(left)
        time.sleep(0.05)
        _reaped(0)  # all that have ended


def _kill_descendants() -> bool:
    """Kill all that the program left, until nothing is left. Return whether there was something."""
    until, killed = time.monotonic() + 5.0, False
    while time.monotonic() < until:
        left = _children()
        for pid in left:
            _signal(pid, signal.SIGKILL)
        if not left:
            break
        killed = True
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    return killed


def _children() -> list[int]:
    """Return the processes whose parent is this one; grandchildren become children when theirs ends."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                        found.append(int(name))
            except (OSError, ValueError, IndexError):  # it has ended meanwhile
                continue
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _exit_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.stdout.flush()
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
