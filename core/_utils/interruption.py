"""Ctrl-C, SIGTERM and SIGUSR1 that wait until a training can end and is saved; a second one ends it at once.

A callback or a TrainingLoop uses `Interruption`, `with trial:` uses `AroundTrial`, often one within the other.
SIGUSR1, which SLURM sends before a time limit, waits only where it would end the process, not if it has a handler.
After the save the program ends with 128 + the signal's number: 143 for SIGTERM, 138 for SIGUSR1.
HALTUNE_GRACE: seconds from the signal to the kill. Shortly before the kill, a training that is not saved yet is left.
"""

from __future__ import annotations

import _thread
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

from haltune._utils.signals import NOTICES, named
from haltune.errors import InvalidInput

_log = logging.getLogger("haltune")
GRACE = "HALTUNE_GRACE"
_USER = getattr(signal, "SIGUSR1", None)
USED = 0.8  # of the grace: what is left is for giving the trial back
_WAITED = "_haltune_waited"  # attribute of an error, and of the hook that shows it
_CLOSING_SECONDS = 0.02  # seconds until a generator that is being closed is surely gone
_REFERENCES = 3  # to the variables of a call without `locals()`: those of the call, `variables` and getrefcount


def caller(function: str, package: str) -> FrameType | None:
    """Return the call of a framework's function that is under way in this thread; None if there is none.

    Keras, Transformers (huggingface/transformers#30333), fastai and the boosters (catboost/catboost#1942) call no hook
    when a training fails: only the stack shows whether a training is running.

    Args:
        function: Name of the function, such as "fit".
        package: Start of the name of its module, such as "tinyfit.".
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_globals.get("__name__", "").startswith(package):
            return frame
        frame = frame.f_back
    return None


def variables(call: FrameType | None) -> dict[str, Any]:
    """Return the variables of a call that is under way, such as a framework's `caller`; none without a call.

    Before Python 3.13 a call keeps the values of all its variables that are read here until it ends. So a training
    would keep a batch, and an evaluation the outputs of a model, in the memory of the device. They are dropped, unless
    a program holds them itself: there, `locals()` returns the same dict.
    """
    if call is None:
        return {}
    held, code = call.f_locals, call.f_code
    found = with_known_classes(held)
    if sys.version_info < (3, 13) and code.co_flags & CO_OPTIMIZED and sys.getrefcount(held) <= _REFERENCES:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):  # others are of exec, and only there
            held.pop(name, None)
    return found


def with_known_classes(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is held by name, without objects that hide the module of their class, as some proxies do."""
    return {name: one for name, one in [*held.items()] if type(type(one).__module__) is str}


class Interruption:
    """Context manager that defers signals while a loop trains; a deferred signal is raised at its exit.

    Ignored signals stay ignored. Outside the main thread no handler can be set, so nothing changes.

    Args:
        bears: Whether to defer signals at all. Default: True.
        loop: Code of the function that trains, if no hook is called when it fails. Default: None.
        patient: Whether to defer a second one too, where nothing can be raised in the loop. Default: False.
        ends: When the training ends, for the message. Default: "after the next save".
    """

    def __init__(
        self, bears: bool = True, loop: CodeType | None = None, patient: bool = False, ends: str = "after the next save"
    ) -> None:
        self._bears, self._loop, self._patient, self._process = bears, loop, patient, os.getpid()
        self._ends = ends
        self._before: dict[int, Any] = {}  # handlers, by signal
        self._number = 0  # of the signal that waits
        self._grace: float | None = None  # seconds until the process is killed
        self._timer: threading.Timer | None = None  # sends the signal again before that
        self._late = False  # it has done so
        self._left = False  # the loop is over, and the signal is raised right after it
        self._hooks: tuple[Any, Any] | None = None  # of exceptions that Python ignores: its own, the one before

    @classmethod
    def within(cls, function: str, package: str, bears: bool = True) -> Interruption:
        """Return one that defers signals while a function of the framework runs, for `Reporter.defer`.

        If the function is not running, signals are not deferred, because failures cannot be detected.

        Args:
            function: Name of the function that trains, such as "fit".
            package: Start of the name of its module, such as "tinyfit.".
            bears: Whether to defer signals at all. Default: True.
        """
        frame = caller(function, package) if bears else None
        return cls(frame is not None, None if frame is None else frame.f_code)

    @property
    def waits(self) -> bool:
        """True when the loop should save and end."""
        return self._number != 0

    @property
    def known(self) -> bool:
        """True if the function that trains is known."""
        return self._loop is not None

    def trains_now(self) -> bool:
        """Return whether that function is running in this thread."""
        return self._trains(sys._getframe())

    def __enter__(self) -> Self:
        self._listen(NOTICES)
        return self

    def _listen(self, numbers: Sequence[int]) -> None:
        """Install handlers for these signals."""
        if self._bears and threading.current_thread() is threading.main_thread():
            self._grace = grace()
            for number in numbers:
                handler = signal.getsignal(number)
                forgotten = getattr(handler, "__self__", None)  # of a loop that failed
                if isinstance(forgotten, Interruption) and not isinstance(forgotten, AroundTrial):
                    handler = forgotten._before[number]
                    signal.signal(number, handler)
                if handler not in (signal.SIG_IGN, None, self._hear) and self._takes(number, handler):
                    self._before[number] = handler
                    signal.signal(number, self._hear)

    def _takes(self, number: int, handler: Any) -> bool:
        return number != _USER or _is_free(number, handler)

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        if self._number and kind is GeneratorExit:
            self.postpone()
            return
        self._restore()
        if self._number and kind is None:
            self._raise()

    def _raise(self) -> None:
        try:
            self._leave(self._number, None)
        except KeyboardInterrupt as error:
            quietly(error)
            raise

    def postpone(self) -> None:
        """Raise the signal right after the loop, which is left where nothing can be raised: in a closing generator."""
        if self._number:
            self._left = True
            threading.Timer(_CLOSING_SECONDS, self._send_again).start()
        else:
            self._restore()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            if number != signal.SIGINT:  # a fork, such as one that loads data: Ctrl-C is for the process that trains
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
        elif (self._number and not self._patient) or not self._trains(frame):
            if self._number and not self._left:
                why = f"{GRACE}={self._grace:g} is nearly over" if self._late else f"{named(number)} received again"
                with suppress(RuntimeError):  # it came in the middle of another line
                    _log.warning("%s: training ends at once, without a save", why)
            self._number = 0  # it waits no longer
            self._restore()
            if not self._left:  # otherwise nothing removes the hook
                self._waits_if_ignored(number)
            self._leave(number, frame)
        else:
            self._number = self._number or number
            if self._grace is not None and self._timer is None:
                self._timer = threading.Timer(USED * self._grace, self._give_up)
                self._timer.daemon = True
                self._timer.start()
            with suppress(RuntimeError):  # it came in the middle of another line
                _log.warning(
                    "%s received: training ends %s; a second signal ends it at once", named(number), self._ends
                )

    def _waits_if_ignored(self, number: int) -> None:
        """Let the signal wait after all if Python ignores its exception: in a __del__ or the callback of a weakref."""
        before = sys.unraisablehook

        def hook(ignored: Any) -> None:
            if isinstance(ignored.exc_value, SystemExit | KeyboardInterrupt):
                self._number = number
            else:
                before(ignored)

        self._hooks, sys.unraisablehook = (hook, before), hook

    def _trains(self, frame: FrameType | None) -> bool:
        """False when the function that trains has been left by an exception."""
        while self._loop is not None and frame is not None and frame.f_code is not self._loop:
            frame = frame.f_back
        return self._loop is None or frame is not None

    def _give_up(self) -> None:
        if any(signal.getsignal(number) == self._hear for number in self._before):  # otherwise the loop has ended
            self._late = True
            self._send_again()

    def _send_again(self) -> None:
        """Send the signal to the main thread a second time, which also ends a sleep there."""
        if self._number and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, self._number)
        elif self._number:
            _thread.interrupt_main(signal.Signals(self._number))

    def _leave(self, number: int, frame: FrameType | None) -> None:
        handler = self._before[number]
        if not callable(handler):
            raise SystemExit(128 + number)  # as a shell counts: what is left on the way ends in order
        handler(number, frame)

    def _restore(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._hooks is not None and sys.unraisablehook is self._hooks[0]:
            sys.unraisablehook = self._hooks[1]
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                if signal.getsignal(number) == self._hear:  # otherwise another handler was set since
                    signal.signal(number, handler)


class AroundTrial(Interruption):
    """Context manager that defers SIGTERM and SIGUSR1 within `with trial:`, unless the program handles them itself.

    They wait while the epochs of the trial are counted (`counts`) and during a report or a save. Elsewhere in the block
    they end the program at once.
    Ctrl-C stays the exception that it is. It is noted, unless it came after the loop that counts the epochs.
    """

    counts: bool | None = None  # None: no loop has counted epochs yet
    interrupted = False  # by Ctrl-C since the last report, which the program may handle
    _raised = 0  # the signal whose exception was raised since the last report

    def __init__(self, bears: bool, unit: str) -> None:
        """unit: what `epochs` counts."""
        super().__init__(bears, ends=f"after this {unit}")

    def __enter__(self) -> Self:
        super().__enter__()
        if self._before and self not in _entered:
            _entered.append(self)
        return self

    def note(self) -> None:
        """Note Ctrl-C alone, in a loop over the study without `with trial:`."""
        self._listen((signal.SIGINT,))

    def _restore(self) -> None:
        if self in _entered:
            _entered.remove(self)
        super()._restore()

    def _takes(self, number: int, handler: Any) -> bool:
        if number == signal.SIGINT:
            return handler is signal.default_int_handler or isinstance(getattr(handler, "__self__", None), AroundTrial)
        return _is_free(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        try:
            if number == signal.SIGINT:
                self.interrupted |= self.counts is not False
                self._before[number](number, frame)
            else:
                super()._hear(number, frame)
        except (KeyboardInterrupt, SystemExit):
            self._raised = number
            raise

    def reported(self) -> None:
        """State that the training continues: the program has handled the exception of a signal."""
        self.interrupted, self._raised = False, 0

    def turned_into(self, error: BaseException | None) -> None:
        """Let a signal wait for the end of the block if a library has raised an error in place of its exception.

        CatBoost does so with each exception of a callback, and the trial would count as failed.
        """
        if isinstance(error, Exception):
            self._number = self._number or self._raised

    def _trains(self, frame: FrameType | None) -> bool:
        return bool(self.counts)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Defer a signal until the block, such as a report or a checkpoint, is done."""
        before, self.counts = self.counts, True
        try:
            yield
        finally:
            self.counts = before
        if self._number and not before:
            self.leave()

    def end(self) -> None:
        """End the block, and take back the handlers of a loop within it that failed without a hook."""
        self.counts = True
        for number in self._before:
            inner = getattr(signal.getsignal(number), "__self__", None)
            if isinstance(inner, Interruption) and inner._before.get(number) == self._hear:
                signal.signal(number, self._hear)
                if inner._number == number:
                    self._number, inner._number = number, 0

    def leave(self) -> None:
        """Raise the signal that waits; the handlers are those from before the block."""
        self._restore()
        if self._number:
            try:
                self._raise()
            finally:
                self._number = 0

    def __getstate__(self) -> dict[str, Any]:
        # signals are this process's
        return self.__dict__ | {"_before": {}, "_timer": None, "_hooks": None, "_number": 0}

    def release(self, number: int) -> None:
        """Let a framework that asks whether a signal is free handle it."""
        if number in self._before and signal.getsignal(number) == self._hear:
            signal.signal(number, self._before.pop(number))


_entered: list[AroundTrial] = []  # blocks of this process that have not ended, outermost first


@contextmanager
def heard_in_wait() -> Iterator[None]:
    """Wait within `with trial:`. A signal ends the program at once, because the end of the epoch may never come."""
    main = threading.current_thread() is threading.main_thread()
    around = [one for one in _entered if one.counts] if main else []
    for one in around:
        one.counts = False
    try:
        for one in reversed(around):
            if one.waits:
                one.leave()
        yield
    finally:
        for one in around:
            one.counts = True


def _is_free(number: int, handler: Any) -> bool:
    """True when a signal would end the process: neither Python nor a library in C (faulthandler) handles it."""
    if isinstance(getattr(handler, "__self__", None), AroundTrial):
        return True
    if handler != signal.SIG_DFL:
        return False
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
        return not int(caught, 16) >> (number - 1) & 1
    return True


def grace() -> float | None:
    """Seconds from the signal until the process is killed; None if it is not set. Raises InvalidInput."""
    if not (text := os.environ.get(GRACE, "").strip()):
        return None
    with suppress(ValueError):
        if 0.0 < (seconds := float(text)) <= threading.TIMEOUT_MAX:
            return seconds
    raise InvalidInput(f"Cannot read {GRACE}={text!r}. Use a number of seconds above 0, such as 30.")


def quietly(error: KeyboardInterrupt) -> KeyboardInterrupt:
    """Return it, to be shown without a traceback if nothing handles it: the epoch is saved, and nothing failed."""
    error.__dict__[_WAITED] = True  # a hook that held the error would hold the frames, and their models
    if hasattr(sys.excepthook, _WAITED):
        return error
    before = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        waited = _WAITED in value.__dict__
        before(kind, value.with_traceback(None) if waited else value, None if waited else trace)

    setattr(hook, _WAITED, True)
    sys.excepthook = hook
    return error
