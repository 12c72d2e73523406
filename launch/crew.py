"""The launcher's loop: hands trials to free slots, watches what trains, and records what a process could not.

One process asks for all its workers, so that proposals come one at a time; each worker reports by itself, and is never
kept waiting by a proposal.
"""

from __future__ import annotations

import importlib.util
import logging
import signal
import sys
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
from haltune._utils.process import Scratch
from haltune._utils.signals import NOTICES, named
from haltune.display import cell, plural
from haltune.errors import HaltuneError, InvalidInput, StoreError, TrainingFailed, installing
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Status
from haltune.log.spending import Outcome
from haltune.study import Study, Trial
from haltune.study.attempt import Failure
from haltune.study.messages import lead_of, spending_line

from .limits import VISIBLE, Limits, devices_of, threads_of


@dataclass(frozen=True)
class Ending:
    """How the training of a trial ended, as its process tells or shows."""

    raised: str | None = None  # the traceback of what the search does not forgive
    died: str | None = None  # how the process ended without a word
    exceeded: str | None = None  # the limit for which it was ended


class Child:
    """A process that trains one trial at a time."""

    session = 0  # the session, and process group, of all that it starts; 0: none on this machine
    began: float | None = None  # when it started its trial, by time.monotonic

    def ready(self) -> bool:
        """True when a trial would start at once, not wait for room on some machine."""
        return True

    def begin(self, trial: Trial, log: Path) -> None:
        """Train a trial; its output goes to `log`, unless it is kept elsewhere."""
        raise NotImplementedError

    def waitables(self) -> Sequence[Any]:
        """What multiprocessing.connection.wait can watch for news."""
        return []

    def poll(self) -> Ending | None:
        """How its trial ended, once it has."""
        raise NotImplementedError

    def close(self, kill: bool = False) -> None:
        """Let the process end, or end it."""
        raise NotImplementedError


@dataclass
class Slot:
    """Room for one run at a time."""

    number: int
    extra: dict[str, str]  # environment
    child: Child | None = None
    trial: Trial | None = None
    ending: Ending | None = None  # of its trial, until the log has it


_log = logging.getLogger("haltune")
_LOOK = 0.25  # seconds between looks at limits and Ctrl-C
_LONGEST_PAUSE = 2.0  # seconds between asks while there is nothing to train
_STORE_AWAY = 600.0  # seconds that a launcher with nothing to train waits for its store


@dataclass(frozen=True)
class Options:
    """What `run` and `run_script` share; checked."""

    workers: int
    devices: Sequence[str]
    limits: Limits
    progress: bool | None
    logs: Path | None

    @classmethod
    def of(
        cls,
        workers: int,
        gpus: Sequence[int | str] | str | None,
        trial_timeout: float | str | None,
        memory_limit: float | str | None,
        progress: bool | None,
        logs: str | Path | None,
    ) -> Options:
        """Check and convert what a user wrote. Raises InvalidInput."""
        count = python_number(workers)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidInput(f"workers={workers!r}: how many runs train at a time, a whole number from 1")
        bounds = Limits.of(trial_timeout, memory_limit)
        folder = None if logs is None else Path(logs).absolute()  # a training may change its own
        return cls(count, devices_of(gpus), bounds, progress, folder)


class Crew:
    """Workers of one launcher, for one study. A context manager: nothing that it started outlives it."""

    def __init__(
        self, study: Study, options: Options, start: Callable[[Slot, Path], Child], early: bool = False
    ) -> None:
        """early: start the children first, and ask for one when it is ready; else start them for what was asked."""
        if not isinstance(study, Study):
            raise InvalidInput(f"study={study!r}: a Study whose store is a file, Study(..., store='search.db')")
        study.store.address()
        self._study, self._options, self._start, self._early = study, options, start, early
        self._folder = Scratch()
        self._marker = self._folder.make() / "leave"
        folder = study.checkpoints.folder
        beside = folder.parent.suffix == ".checkpoints"
        logs = folder.parent.with_suffix(".logs") / folder.name if beside else folder / "logs"
        self._logs = options.logs or logs
        found = options.devices  # one for each worker while there are enough, else shared in turn
        threads = threads_of(options.workers)
        visible = [threads | ({VISIBLE: found[n % len(found)]} if found else {}) for n in range(options.workers)]
        self._slots = [Slot(n, extra) for n, extra in enumerate(visible)]
        self._over: str | None = None  # why no more trials are begun
        self._bug: str | None = None  # the traceback that ended the search
        self._away: float | None = None  # since when the store is out of reach, by time.monotonic
        self._pause, self._next_ask, self._next_renewal = 0.0, 0.0, 0.0

    def __enter__(self) -> Self:
        self._study._session.waits = False  # for a server that is away: it looks after its runs meanwhile
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for slot in self._slots:
            if slot.trial is not None:  # the crew leaves in the middle of it
                self._dismiss(slot)
                with suppress(HaltuneError):
                    self._study.sync()
                    slot.trial.interrupt()
            if slot.child is not None:
                slot.child.close(kill=error is not None)
        self._study._session.waits = True
        self._folder.remove()

    def work(self) -> Outcome:
        """Train until the search is over, or Ctrl-C.

        Raises TrainingFailed, KeyboardInterrupt after a second signal, SystemExit after SIGTERM and SIGUSR1, and what
        the study raises.
        """
        progress, logger = self._options.progress, self._study._session.logger
        if progress is not False:
            logger.note(f"what the runs print goes to {self._logs}, a file a trial")
        quiet = logger.silenced() if progress is False else nullcontext()
        with Interrupts() as interrupts, quiet, progress_of(self._study, progress) as show:
            while not (self._over and all(slot.trial is None for slot in self._slots)):
                if interrupts.count > 1:
                    raise interrupts.error
                if interrupts.count and not self._marker.exists():
                    who = named(interrupts.number)
                    self._leave(f"stopped by {who}; the same program continues where it was")
                    _log.warning(
                        "%s received: the epochs under way are finished and saved; a second one ends at once", who
                    )
                self._fill()
                self._watch()
                show([(slot.number, slot.trial) for slot in self._slots], self._over)
        if self._bug is not None:
            raise TrainingFailed(self._bug)
        if interrupts.number not in (0, signal.SIGINT):
            raise interrupts.error
        outcome = self._study.outcome
        return outcome if outcome.over else Outcome(False, self._over or outcome.reason)

    def _leave(self, why: str) -> None:
        self._over = self._over or why
        self._marker.touch()

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
                self._bear(error)
                return
            self._away = None
            if isinstance(answer, Finish):
                self._over = answer.reason
            elif isinstance(answer, Wait):
                self._pause = min(max(0.05, 2.0 * self._pause), _LONGEST_PAUSE)
                self._next_ask = time.monotonic() + self._pause
            else:
                self._pause = 0.0
                slot.trial = answer
                if slot.child is None:
                    slot.child = self._start(slot, self._marker)
                slot.child.begin(answer, self._logs / f"trial-{answer.id}.log")

    # -- busy ones ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Wait a moment for news and take it in."""
        children = [slot.child for slot in self._slots if slot.trial and slot.child]
        news = [thing for child in children for thing in child.waitables()]
        pause = min(_LOOK, max(0.0, self._next_ask - time.monotonic())) if self._pause else _LOOK
        if news:
            wait(news, pause)
        elif not self._over or children:
            time.sleep(min(pause, 0.05) if children else pause)
        for slot in self._slots:
            if slot.child is not None and slot.trial is not None:
                self._look_at(slot, slot.child, slot.trial)
        self._renew()

    def _bear(self, error: StoreError) -> None:
        """Wait for a store that is out of reach; what trains goes on. Raises `error` when it stays away."""
        now = time.monotonic()
        if self._away is None:
            _log.warning("the store is out of reach, and runs train on: %s", error)
        self._away = now if self._away is None else self._away
        if now - self._away > _STORE_AWAY and all(slot.trial is None for slot in self._slots):
            raise error
        self._next_ask = now + _LONGEST_PAUSE

    def _look_at(self, slot: Slot, child: Child, trial: Trial) -> None:
        try:
            slot.ending = slot.ending or child.poll()
            if slot.ending is None:
                seconds = 0.0 if child.began is None else time.monotonic() - child.began
                if (why := self._options.limits.exceeded(child.session, seconds)) is not None:
                    slot.ending = Ending(exceeded=why)
            if slot.ending is not None:
                self._ended(slot, trial, slot.ending)
        except StoreError as error:
            self._bear(error)  # it is looked at again

    def _ended(self, slot: Slot, trial: Trial, ending: Ending) -> None:
        self._study.sync()
        r = self._study.history.trial(trial.id)
        held = (r.attempt, r.status) == (trial.attempt, Status.RUNNING)
        if ending.died is not None or ending.exceeded is not None:
            self._dismiss(slot)
        if held and ending.exceeded is not None:
            self._study._session.end(trial, Status.FAILED, Failure(ending.exceeded))
        elif held and ending.died is not None:
            log = self._logs / f"trial-{trial.id}.log"
            seen = f"; see {log}" if log.exists() else ""
            self._study._session.lose(trial, f"its process {ending.died}{seen}")
        elif held:
            trial.interrupt()
        if ending.raised is not None:
            self._bug = self._bug or ending.raised
            self._leave("the training failed")
        self._study._session.logger.ended(self._study.history, self._study.budget, failed=True)
        slot.trial = slot.ending = self._away = None
        self._next_ask, self._pause = 0.0, 0.0
        failures, most = self._study.history.failures_in_a_row, self._study._settings.max_failures
        if failures >= most and self._bug is None:
            errors = [t.error for t in self._study.history.with_status(Status.FAILED)]
            self._bug = f"{plural(failures, 'trial')} failed in a row (max_failures); the last: {errors[-1]}"
            self._leave("too many trials failed")

    @staticmethod
    def _dismiss(slot: Slot) -> None:
        if slot.child is not None:
            slot.child.close(kill=True)
            slot.child = None

    def _renew(self) -> None:
        """Keep the leases of what trains, however long its epochs; and what the machine slept off its account."""
        for slot in self._slots:
            if slot.trial is not None:
                with suppress(HaltuneError):
                    self._study._session.wake(slot.trial)
        if time.monotonic() < self._next_renewal:
            return
        self._next_renewal = time.monotonic() + self._study._session.lease_seconds / 4.0
        for slot in self._slots:
            if slot.trial is not None:
                with suppress(HaltuneError):  # the store is away for a while: reports wait for it, too
                    slot.trial.heartbeat()


class Interrupts:
    """Ctrl-C, SIGTERM and SIGUSR1, counted: once means finish and save, twice leave at once.

    Outside the main thread, where no handler can be set, there are none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.number = 0  # of the first
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._count) for s in NOTICES}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def error(self) -> BaseException:
        """What ends the program after the first signal."""
        return KeyboardInterrupt() if self.number == signal.SIGINT else SystemExit(128 + self.number)  # as shells count

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.number = self.number or number


_REFRESH = 0.5  # seconds
Busy = Sequence[tuple[int, Trial | None]]  # worker, what it trains


@contextmanager
def progress_of(study: Study, wanted: bool | None, console: Any = None) -> Iterator[Callable[[Busy, str | None], None]]:
    """Yield what shows the workers' trials: a table on a terminal; elsewhere nothing, because the study logs."""
    rich = importlib.util.find_spec("rich") is not None
    if wanted and not rich:
        raise ImportError(f"progress=True needs Rich: {installing('cli')}")
    if not (wanted or (wanted is None and rich and sys.stderr.isatty())):
        yield lambda busy, over: None
        return
    from rich.console import Console
    from rich.live import Live

    due = 0.0

    def show(busy: Busy, over: str | None) -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        due = time.monotonic() + _REFRESH
        with suppress(HaltuneError):  # the store is away: the picture stays as it was
            study.sync()
            live.update(_picture(study, busy, over), refresh=True)

    with Live(console=console or Console(stderr=True), auto_refresh=False, transient=console is None) as live:
        yield show


def _picture(study: Study, busy: Busy, over: str | None) -> Any:
    """Trials, epochs, what is spent, the incumbent, a row for each worker, and why no more trials start."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if study.problem.further:
        top = lead_of(study.history) or "no value yet"
    else:
        best = study.best
        top = "best: no value yet"
        if best:
            top = f"best: {best.value:.5g} at epoch {best.epoch:g} of trial {best.trial}"
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("worker", "trial", "epoch", study.problem.goal.metric, "configuration"):
        table.add_column(cell(title), no_wrap=True, overflow="ellipsis")
    for number, trial in busy:
        row = ["", "", "", "idle"]
        if trial is not None:
            r = study.history.trial(trial.id)
            end = r.until or study.problem.max_epochs
            last = f"{r.values[-1]:.5g}" if len(r.values) else ""
            row = [str(r.id), f"{r.epoch:g}" + (f" of {end:g}" if end else ""), last, str(dict(r.config))]
        table.add_row(str(number), *map(cell, row))
    head = Text.assemble(cell(study.name, "bold"), cell(f"  {spending_line(study.history, study.budget)}"))
    return Group(head, cell(top), table, *([cell(over, "yellow")] if over else []))
