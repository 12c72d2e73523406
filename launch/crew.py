"""The launcher's loop: gives trials to free slots, watches their processes, and records their ends.

One process asks for all its workers, so that proposals are made one at a time. Each worker reports by itself, so it
never waits for a proposal.
"""

from __future__ import annotations

import importlib.util
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from haltune._utils.checks import python_number
from haltune._utils.interruption import GRACE, USED, grace
from haltune._utils.process import Scratch
from haltune._utils.signals import NOTICES, named
from haltune.display import cell, one_line, plural, titled
from haltune.errors import HaltuneError, InvalidInput, NotSupported, StoreError, TrainingFailed, installing
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Status
from haltune.log.spending import Outcome
from haltune.study import Study, Trial
from haltune.study.attempt import Failure
from haltune.study.messages import at_a_terminal, lead_of, progress_line

from .limits import VISIBLE, Limits, devices_of, threads_of


@dataclass(frozen=True)
class Ending:
    """The end of a trial's process."""

    raised: str | None = None  # the traceback of an error that ends the search
    died: str | None = None  # how the process ended without a message
    exceeded: str | None = None  # the limit that it exceeded


class Child:
    """A process that trains one trial at a time."""

    session = 0  # the session and process group of its processes; 0: none on this machine
    began: float | None = None  # start of its trial, by time.monotonic

    def ready(self) -> bool:
        """Return whether a trial would start at once; False if it would wait for free resources."""
        return True

    def begin(self, trial: Trial, log: Path) -> None:
        """Train a trial; its output goes to `log`, unless it is stored in another place."""
        raise NotImplementedError

    def waitables(self) -> Sequence[Any]:
        """Return objects for multiprocessing.connection.wait."""
        return []

    def poll(self) -> Ending | None:
        """Return how its trial ended; None while it trains."""
        raise NotImplementedError

    def close(self, kill: bool = False) -> None:
        """Let the process end, or kill it."""
        raise NotImplementedError


@dataclass
class Slot:
    """A worker's place for one trial at a time."""

    number: int
    extra: dict[str, str]  # environment
    child: Child | None = None
    trial: Trial | None = None
    ending: Ending | None = None  # of its trial, until it is logged


_log = logging.getLogger("haltune")
_LOOK = 0.25  # seconds between looks at limits and Ctrl-C
_LONGEST_PAUSE = 2.0  # seconds between asks while there is nothing to train
_STORE_AWAY = 600.0  # seconds that an idle launcher waits for its store


@dataclass(frozen=True)
class Options:
    """The checked options of `run` and `run_script`."""

    workers: int
    devices: Sequence[str]  # one for each worker, or shared in turn if there are fewer; all that a worker alone has
    limits: Limits
    progress: bool | None
    logs: Path | None
    found: bool = False  # haltune has found the devices, by "auto"

    @classmethod
    def of(
        cls,
        workers: int,
        gpus: Sequence[int | str] | str | None,
        trial_timeout: float | str | None = None,
        memory_limit: float | str | None = None,
        progress: bool | None = None,
        logs: str | Path | None = None,
    ) -> Options:
        """Check and convert a user's arguments. Raises InvalidInput."""
        count = python_number(workers)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidInput(f"workers={workers!r} is not a number of workers. Use a whole number from 1.")
        bounds = Limits.of(trial_timeout, memory_limit)
        folder = None if logs is None else Path(logs).absolute()  # a training may change its working folder
        devices, auto = devices_of(gpus), isinstance(gpus, str)
        if count == 1 and devices and not auto:
            devices = [",".join(devices)]
        return cls(count, devices, bounds, progress, folder, auto)


def need_launchable(study: Any) -> None:
    """Raise InvalidInput for anything but a study, and NotSupported for one in memory or on a rank above 0."""
    if not isinstance(study, Study):
        raise InvalidInput(
            f"study={study!r} is not a Study. Pass one whose store is a file: Study(..., store='search.db')."
        )
    if study.session.first(lambda: True) is None:
        raise NotSupported(
            "This process is one rank of a distributed training, and each rank runs the whole program. Launch such a "
            "training with `haltune run -- python train.py`."
        )
    study.store.address()


class Crew:
    """The workers of one launcher, for one study. A context manager that ends every process it started."""

    def __init__(
        self, study: Study, options: Options, start: Callable[[Slot, Path], Child], early: bool = False
    ) -> None:
        """early: start a child first, and ask for a trial once it is ready; otherwise ask first."""
        need_launchable(study)
        self._study, self._options, self._start, self._early = study, options, start, early
        self._folder = Scratch()
        self._marker = self._folder.make() / "leave"
        self._logs = options.logs or study.checkpoints.output_of(0).parent
        found = options.devices
        threads = threads_of(options.workers)
        visible = [threads | ({VISIBLE: found[n % len(found)]} if found else {}) for n in range(options.workers)]
        self._slots = [Slot(n, extra) for n, extra in enumerate(visible)]
        self._over: str | None = None  # why no more trials start
        self._bug: str | None = None  # the traceback that ended the search
        self._away: float | None = None  # since when the store cannot be reached, by time.monotonic
        self._waits = False  # nothing trains, and it has logged why
        self._pause, self._next_ask, self._next_renewal = 0.0, 0.0, 0.0

    def __enter__(self) -> Self:
        self._study.session.need_outside()
        self._study.session.waits = False  # for a server that does not answer, because it must watch its trials
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for slot in self._slots:
            if slot.trial is not None:  # the crew ends during the trial
                self._dismiss(slot)
                with suppress(HaltuneError):
                    self._study.sync()
                    slot.trial.interrupt()
            if slot.child is not None:
                slot.child.close(kill=error is not None)
        self._study.session.waits = True
        self._folder.remove()

    def work(self) -> Outcome:
        """Train until the search is over, or Ctrl-C.

        Raises TrainingFailed, KeyboardInterrupt after a second signal, SystemExit after SIGTERM and SIGUSR1, and the
        errors of the study.
        """
        progress, logger = self._options.progress, self._study.session.logger
        if progress is not False:
            logger.note(f"The output of each trial goes to its own file in {self._logs}")
        quiet, heard = logger.silenced() if progress is False else nullcontext(), False
        with Interrupts(self._marker) as interrupts, quiet, progress_of(self._study, progress) as show:
            while not (self._over and all(slot.trial is None for slot in self._slots)):
                if interrupts.at_once:
                    raise interrupts.error
                if interrupts.count and not heard:
                    heard, who = True, named(interrupts.number)
                    self._leave(f"stopped by {who}; to continue, start the same program again")
                    _log.warning(
                        "%s received. The current epochs are finished and saved. A second one ends them at once.", who
                    )
                self._fill()
                self._watch()
                show([(slot.number, slot.trial) for slot in self._slots], self._over)
        if self._bug is not None:
            raise TrainingFailed(self._bug)
        if interrupts.number not in (0, signal.SIGINT):
            raise interrupts.error
        outcome = self._study.outcome
        cut = interrupts.number == signal.SIGINT
        return outcome if outcome.over else Outcome(False, self._over or outcome.reason, interrupted=cut)

    def _leave(self, why: str) -> None:
        self._over = self._over or why
        _make(self._marker)

    # -- free slots ---------------------------------------------------------------------------

    def _fill(self) -> None:
        for slot in self._slots:
            if slot.trial is not None or self._over or time.monotonic() < self._next_ask:
                continue
            if self._early and slot.child is None:
                slot.child = self._start(slot, self._marker)
            if slot.child is not None and not slot.child.ready():
                continue
            try:
                answer = self._study.ask()
            except StoreError as error:
                self._wait_for_store(error)
                return
            self._away = None
            if isinstance(answer, Finish):
                self._over = answer.reason
            elif isinstance(answer, Wait):
                self._pause = min(max(0.05, 2.0 * self._pause), _LONGEST_PAUSE)
                self._next_ask = time.monotonic() + self._pause
                if not self._waits and all(one.trial is None for one in self._slots):
                    self._waits = True
                    self._study.session.logger.note(f"Waiting: {answer.reason}")
            else:
                self._pause, self._waits = 0.0, False
                slot.trial = answer
                if slot.child is None:
                    slot.child = self._start(slot, self._marker)
                try:
                    slot.child.begin(answer, self._logs / f"trial-{answer.id}.log")
                except OSError as error:
                    raise HaltuneError(
                        f"Cannot start trial {answer.id}: {one_line(error)}. After that is solved, the same command "
                        "continues the search."
                    ) from error

    # -- busy ones ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Wait a moment for the children, and handle those that ended."""
        busy = [slot for slot in self._slots if slot.trial is not None]
        # a process that has ended is always ready: while the store is away, its end is logged later
        children = [slot.child for slot in busy if slot.child is not None and slot.ending is None]
        news = [thing for child in children for thing in child.waitables()]
        pause = min(_LOOK, max(0.0, self._next_ask - time.monotonic())) if self._pause else _LOOK
        if news:
            wait(news, pause)
        elif not self._over or busy:
            time.sleep(min(pause, 0.05) if children else pause)
        for slot in busy:
            self._look_at(slot)
        self._renew()

    def _wait_for_store(self, error: StoreError) -> None:
        """Wait for a store that cannot be reached, while trials train. Raises `error` after a long time."""
        now = time.monotonic()
        if self._away is None:
            self._away = now
            _log.warning("The store cannot be reached. Trials continue to train. %s", error)
        if now - self._away > _STORE_AWAY and all(slot.trial is None or slot.ending for slot in self._slots):
            raise error
        self._next_ask = now + _LONGEST_PAUSE

    def _look_at(self, slot: Slot) -> None:
        child, trial = slot.child, slot.trial
        assert trial is not None
        try:
            if slot.ending is None and child is not None:  # otherwise its end could not be logged before
                slot.ending = child.poll()
                seconds = 0.0 if child.began is None else time.monotonic() - child.began
                if slot.ending is None and (why := self._options.limits.exceeded(child.session, seconds)) is not None:
                    slot.ending = Ending(exceeded=why)
            if slot.ending is not None:
                self._ended(slot, trial, slot.ending)
        except StoreError as error:
            self._wait_for_store(error)  # tried again later

    def _ended(self, slot: Slot, trial: Trial, ending: Ending) -> None:
        trial.recall()  # it may have started again, as another attempt
        r = self._study.history.trial(trial.id)
        held = (r.attempt, r.status) == (trial.attempt, Status.RUNNING)
        if ending.died is not None or ending.exceeded is not None:
            self._dismiss(slot)
        if held and ending.exceeded is not None:
            trial.fail(Failure(ending.exceeded))
        elif held and ending.died is not None and not self._marker.exists():  # or the launcher's signal ended it, too
            log = self._logs / f"trial-{trial.id}.log"
            seen = f"; see {log}" if log.exists() else ""
            trial.mark_lost(f"its process {ending.died}{seen}")
        elif held:
            trial.interrupt()
        if ending.raised is not None:
            self._bug = self._bug or ending.raised
            self._leave("the training failed")
        self._study.session.logger.ended(self._study.history, self._study.budget, failed=True)
        slot.trial = slot.ending = self._away = None
        self._next_ask, self._pause = 0.0, 0.0
        history, most = self._study.history, self._study.session.settings.max_failures
        failures, failed = history.failures_in_a_row, history.trial(r.id).status is Status.FAILED
        if failed and failures >= most and self._bug is None:  # they may be of an earlier start of the program
            errors = [t.error for t in history.with_status(Status.FAILED)]
            self._bug = f"{plural(failures, 'trial')} failed in a row (max_failures); the last: {errors[-1]}"
            self._leave("too many trials failed")

    @staticmethod
    def _dismiss(slot: Slot) -> None:
        if slot.child is not None:
            slot.child.close(kill=True)
            slot.child = None

    def _renew(self) -> None:
        """Renew the leases of trials, also during long epochs; log the time that the machine slept."""
        renews = time.monotonic() >= self._next_renewal
        if renews:
            self._next_renewal = time.monotonic() + self._study.session.lease_seconds / 4.0
        for slot in self._slots:
            if slot.trial is not None:
                with suppress(HaltuneError):  # the store cannot be reached for a while; reports wait for it too
                    self._study.session.log_sleep(slot.trial)
                    if renews:
                        slot.trial.recall()
                        slot.trial.heartbeat()


def _make(marker: Path) -> None:
    marker.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # a long search outlives files in /tmp
    marker.touch()


def got_signal(marker: Path) -> bool:
    """Return whether the launcher leaves because of a signal, which may have come to its programs, too."""
    with suppress(OSError):
        return marker.stat().st_size > 0
    return False


class Interrupts:
    """Counts Ctrl-C, SIGTERM and SIGUSR1: once means finish and save, twice end at once.

    Outside the main thread no handler can be set, so none are counted. marker: made at the first one.
    """

    def __init__(self, marker: Path) -> None:
        self._marker = marker
        self.count = 0
        self.number = 0  # of the first
        self._since = 0.0  # time of the first, by time.monotonic
        self._grace: float | None = None  # seconds from then until this process is killed
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._grace = grace()
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._count) for s in NOTICES}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def error(self) -> BaseException:
        """The exception that ends the program after the first signal."""
        return KeyboardInterrupt() if self.number == signal.SIGINT else SystemExit(128 + self.number)  # as shells count

    @property
    def at_once(self) -> bool:
        """True after a second signal, and shortly before the kill: what is not saved by then is given back."""
        late = self.count == 1 and self._grace is not None and time.monotonic() - self._since >= USED * self._grace
        if late:
            _log.warning("%s=%g is nearly over: training ends at once, without a save", GRACE, self._grace)
        return late or self.count > 1

    def _count(self, number: int, frame: FrameType | None) -> None:
        self._since = self._since or time.monotonic()
        self.count += 1
        self.number = self.number or number
        with suppress(OSError):  # at once: a signal to all processes ends the workers too, and none of them is lost
            _make(self._marker)
            self._marker.write_bytes(b"signal")


_REFRESH = 0.5  # seconds
Busy = Sequence[tuple[int, Trial | None]]  # worker, its trial


@contextmanager
def progress_of(study: Study, wanted: bool | None, console: Any = None) -> Iterator[Callable[[Busy, str | None], None]]:
    """Yield a function that shows the workers' trials on a terminal: in a table, if Rich is there, and in its title."""
    rich = importlib.util.find_spec("rich") is not None
    if wanted and not rich:
        raise ImportError(f"progress=True needs Rich: {installing('cli')}")
    if wanted is None:
        wanted = at_a_terminal()
    if not wanted:
        yield lambda busy, over: None
        return
    due = 0.0
    live: Any = None
    if rich:
        from rich.console import Console
        from rich.live import Live

        live = Live(console=console or Console(stderr=True), auto_refresh=False, transient=console is None)

    def show(busy: Busy, over: str | None) -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        due = time.monotonic() + _REFRESH
        with suppress(HaltuneError):  # the store cannot be reached: all stays as it was
            study.sync()
            study.session.logger.title(study.history, study.budget)
            if live is not None:
                live.update(_picture(study, busy, over), refresh=True)

    try:
        with live or nullcontext():
            yield show
    finally:
        titled(None)  # the end of the search restored the former title, but `show` came after it


def _picture(study: Study, busy: Busy, over: str | None) -> Any:
    """Draw the spent budget, the best trial, a row for each worker, and why no more trials start."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if study.problem.further:
        top = lead_of(study.history) or "no value yet"
    else:
        best = study.best
        top = "best: no value yet"
        if best:
            top = f"best: {best.value:.5g} at {study.problem.at(best.epoch)} of trial {best.trial}"
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("worker", "trial", study.problem.unit, study.problem.goal.metric, "configuration"):
        table.add_column(cell(title), no_wrap=True, overflow="ellipsis")
    for number, trial in busy:
        row = ["", "", "", "idle"]
        if trial is not None:
            r = study.history.trial(trial.id)
            end = r.pause_at or study.problem.max_epochs
            last = f"{r.values[-1]:.5g}" if len(r.values) else ""
            row = [str(r.id), f"{r.epoch:g}" + (f" of {end:g}" if end else ""), last, str(dict(r.config))]
        table.add_row(str(number), *map(cell, row))
    head = Text.assemble(cell(study.name, "bold"), cell(f"  {progress_line(study.history, study.budget)}"))
    return Group(head, cell(top), table, *([cell(over, "yellow")] if over else []))
