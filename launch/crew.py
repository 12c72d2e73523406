"""The launcher's loop: hands trials to free slots, watches what trains, and records what a process could not.

One process asks for all its workers, so that proposals come one at a time; each worker reports by itself, and
is never kept waiting by a proposal.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from haltune._utils.scratch import Scratch
from haltune._utils.words import plural
from haltune.errors import HaltuneError, InvalidInput, StoreError, TrainingFailed
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Status
from haltune.log.spending import Outcome
from haltune.study import Study, Trial
from haltune.study.session.session import Failure

from .child import Child, Ending, Slot
from .devices import devices_of, environment
from .limits import Limits, checked_workers
from .progress import progress_of

_log = logging.getLogger("haltune")
_LOOK = 0.25  # seconds between looks at limits and Ctrl-C
_LONGEST_PAUSE = 2.0  # seconds between asks while there is nothing to train
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
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
        """Checked. Raises InvalidInput for what is not allowed."""
        bounds = Limits.of(trial_timeout, memory_limit)
        folder = None if logs is None else Path(logs).absolute()  # a training may change its own
        return cls(checked_workers(workers), devices_of(gpus), bounds, progress, folder)


class Crew:
    """Workers of one launcher, for one study. A context manager: nothing that it started outlives it."""

    def __init__(
        self, study: Study, options: Options, start: Callable[[Slot, Path], Child], early: bool = False
    ) -> None:
        """early: start the children first, and ask for one when it is ready; else start them for what was asked."""
        if not isinstance(study, Study):
            raise InvalidInput(
                f"study={study!r}: a Study whose store is a file, Study(..., store='search.db')"
            )
        study.store.address()
        self._study, self._options, self._start, self._early = study, options, start, early
        self._folder = Scratch()
        self._marker = self._folder.make() / "leave"
        self._logs = options.logs or logs_beside(study)
        self._slots = [Slot(n, environment(options.devices, n)) for n in range(options.workers)]
        self._over: str | None = None  # why no more trials are begun
        self._bug: str | None = None  # the traceback that ended the search
        self._away: float | None = None  # since when the store is out of reach, by time.monotonic
        self._pause, self._next_ask, self._next_renewal = 0.0, 0.0, 0.0

    def __enter__(self) -> Self:
        self._study.session.waits = False  # for a server that is away: it looks after its runs meanwhile
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for slot in self._slots:
            self._give_back(slot)
            if slot.child is not None:
                slot.child.close(kill=error is not None)
        self._study.session.waits = True
        self._folder.remove()

    def work(self) -> Outcome:
        """Train until the search is over, or Ctrl-C.

        Raises TrainingFailed, KeyboardInterrupt after a second Ctrl-C, and what the study raises.
        """
        progress, voice = self._options.progress, self._study.session.voice
        if progress is not False:
            voice.aside(f"what the runs print goes to {self._logs}, a file a trial")
        quiet = voice.hushed() if progress is False else nullcontext()
        with Interrupts() as interrupts, quiet, progress_of(self._study, progress) as table:
            while not (self._over and not any(slot.busy for slot in self._slots)):
                self._heed(interrupts)
                self._fill()
                self._watch()
                table.show([(slot.number, slot.trial) for slot in self._slots], self._over)
        if self._bug is not None:
            raise TrainingFailed(self._bug)
        outcome = self._study.outcome
        return outcome if outcome.over else Outcome(False, self._over or outcome.reason)

    def _heed(self, interrupts: Interrupts) -> None:
        if interrupts.count > 1:
            raise KeyboardInterrupt
        if interrupts.count and not self._marker.exists():
            self._leave("stopped by Ctrl-C; the same program continues where it was")
            _log.warning("finishing the epochs under way and saving them; Ctrl-C once more leaves at once")

    def _leave(self, why: str) -> None:
        self._over = self._over or why
        self._marker.touch()

    # -- free slots ---------------------------------------------------------------------------

    def _fill(self) -> None:
        for slot in self._slots:
            if slot.busy or self._over or time.monotonic() < self._next_ask or not self._is_ready(slot):
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
                self._begin(slot, answer)

    def _is_ready(self, slot: Slot) -> bool:
        if self._early and slot.child is None:
            slot.child = self._start(slot, self._marker)
        return slot.child is None or slot.child.ready()

    def _begin(self, slot: Slot, trial: Trial) -> None:
        slot.trial = trial
        if slot.child is None:
            slot.child = self._start(slot, self._marker)
        slot.child.begin(trial, self._logs / f"trial-{trial.id}.log")

    # -- busy ones ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Wait a moment for news and take it in."""
        children = [slot.child for slot in self._slots if slot.busy and slot.child is not None]
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
        if now - self._away > _STORE_AWAY and not any(slot.busy for slot in self._slots):
            raise error
        self._next_ask = now + _LONGEST_PAUSE

    def _look_at(self, slot: Slot, child: Child, trial: Trial) -> None:
        try:
            self._take_in(slot, child, trial)
        except StoreError as error:
            self._bear(error)  # it is looked at again

    def _take_in(self, slot: Slot, child: Child, trial: Trial) -> None:
        slot.ending = slot.ending or child.poll()
        if slot.ending is not None:
            self._ended(slot, trial, slot.ending)
            return
        seconds = 0.0 if child.began is None else time.monotonic() - child.began
        if (why := self._options.limits.exceeded(child.session, seconds)) is not None:
            slot.ending = Ending(exceeded=why)
            self._ended(slot, trial, slot.ending)

    def _ended(self, slot: Slot, trial: Trial, ending: Ending) -> None:
        self._study.sync()
        r = self._study.history.trial(trial.id)
        held = (r.attempt, r.status) == (trial.attempt, Status.RUNNING)
        if ending.died is not None or ending.exceeded is not None:
            self._dismiss(slot)
        if held and ending.exceeded is not None:
            self._study.session.end(trial, Status.FAILED, Failure(ending.exceeded))
        elif held and ending.died is not None:
            log = self._logs / f"trial-{trial.id}.log"
            seen = f"; see {log}" if log.exists() else ""
            self._study.session.lose(trial, f"its process {ending.died}{seen}")
        elif held:
            trial.interrupt()
        if ending.raised is not None:
            self._bug = self._bug or ending.raised
            self._leave("the training failed")
        voice = self._study.session.voice
        voice.ended(self._study.history, trial.id, trial.attempt, self._study.budget)
        self._free(slot)

    def _free(self, slot: Slot) -> None:
        slot.trial = slot.ending = self._away = None
        self._next_ask, self._pause = 0.0, 0.0
        failures, most = self._study.history.failures_in_a_row, self._study.settings.max_failures
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
                    self._study.session.wake(slot.trial)
        if time.monotonic() < self._next_renewal:
            return
        self._next_renewal = time.monotonic() + self._study.session.lease_seconds / 4.0
        for slot in self._slots:
            if slot.trial is not None:
                with suppress(HaltuneError):  # the store is away for a while: reports wait for it, too
                    slot.trial.heartbeat()

    def _give_back(self, slot: Slot) -> None:
        """Its trial, when the crew leaves in the middle of it."""
        if slot.trial is None:
            return
        self._dismiss(slot)
        with suppress(HaltuneError):
            self._study.sync()
            slot.trial.interrupt()


class Interrupts:
    """Ctrl-C and SIGTERM, counted: once means finish and save, twice leave at once.

    Outside the main thread, where no handler can be set, there are none.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._count) for s in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


def logs_beside(study: Study) -> Path:
    """The folder of what runs print: beside that of the checkpoints."""
    folder = study.checkpoints.folder
    if folder.parent.suffix == ".checkpoints":
        return folder.parent.with_suffix(".logs") / folder.name
    return folder / "logs"
