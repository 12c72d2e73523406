"""`run`: a search on this machine, with a process for each worker.

A worker is a Python process that opens the study and calls train(trial), one trial after another.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from haltune.display import one_line
from haltune.errors import InvalidInput, LeaseLost, documented
from haltune.log.spending import Outcome
from haltune.study import Study, Trial
from haltune.study.attempt import Settings
from haltune.study.loading import leave_when

from . import limits
from .crew import Child, Crew, Ending, Options, Slot, need_launchable

Train = Callable[[Trial], object]
Errors = tuple[type[BaseException], ...]
_READY, _BEGUN = "ready", "begun"  # messages of a worker: it can train; it has started a trial
_UNGUARDED = 76  # exit status of a worker whose program launches workers while it is imported
_SPAWN = multiprocessing.get_context("spawn")  # a forked process would share threads' locks and CUDA's state


class Worker(Child):
    """A Child that starts once and trains many trials, so that frameworks are imported once."""

    def __init__(self, study: Study, train: Train, retry_on: Errors, marker: Path, extra: dict[str, str]) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        job = (study.session.settings, study.session.holder, train, retry_on, marker, theirs)
        self._process = _SPAWN.Process(target=_work, args=job, name="haltune-worker")
        with limits.set_while(extra):
            self._process.start()
        theirs.close()
        self.session = self._process.pid or 0
        self._started = False

    def begin(self, trial: Trial, log: Path) -> None:
        self.began = None
        log.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # it has died already; poll returns that
            self._pipe.send((trial.id, trial.attempt, str(log)))

    def waitables(self) -> Sequence[Any]:
        return [self._pipe, self._process.sentinel]

    def poll(self) -> Ending | None:
        try:
            while self._pipe.poll():
                if isinstance(message := self._pipe.recv(), Ending):
                    return message
                self._started = True
                self.began = time.monotonic() if message == _BEGUN else None
        except (EOFError, OSError):
            pass
        else:
            if limits.ended(self.session) is False and self._process.is_alive():
                return None
        limits.kill_rest(self.session, 5.0)
        self._process.join(5.0)
        if not self._started and self._process.exitcode == _UNGUARDED:
            return Ending(
                raised="A worker imports this program, which launches workers again. Put `study.optimize(..., "
                "workers=...)` or `launch.run(...)` under `if __name__ == '__main__':`."
            )
        how = limits.how_it_died(self._process.exitcode)
        if not self._started and (self._process.exitcode or 0) > 0:  # the next one would die too
            return Ending(
                raised=f"A worker {how} before it could train, when it imported the program or opened the study. See "
                "its output above."
            )
        return Ending(died=how)

    def close(self, kill: bool = False) -> None:
        self._pipe.close()
        self._process.join(0.0 if kill else 10.0)
        if self._process.is_alive():
            limits.kill(self.session)
            self._process.kill()  # it may not lead its group yet
            self._process.join()


def check_called(train: Any, retry_on: Any) -> Errors:
    errors = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if not all(isinstance(e, type) and issubclass(e, Exception) for e in errors):
        raise InvalidInput(f"retry_on={retry_on!r}: use exceptions such as (ConnectionError, OSError).")
    if not callable(train):
        raise InvalidInput(f"train={train!r} is not a function. Pass a function that trains a trial, train(trial).")
    return errors


def _work(settings: Settings, holder: str, train: Train, retry_on: Errors, marker: Path, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what Ctrl-C means
    if os.name == "posix":
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        os.setsid()
    study = Study(**vars(settings))
    leaving = leave_when(marker, holder)
    with suppress(OSError):
        pipe.send(_READY)
    while True:
        try:
            id, attempt, log = pipe.recv()
        except (EOFError, OSError):
            return
        sys.stdout.flush()
        sys.stderr.flush()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)  # the output of compiled code goes to the log too
        os.dup2(file, 2)
        os.close(file)
        with suppress(OSError):
            pipe.send(_BEGUN)
        try:
            ending = Ending(train_one(study.take(id, attempt, holder, leaving), train, retry_on))
        except LeaseLost:
            ending = Ending()  # it went to another worker before this one started it
        sys.stdout.flush()
        with suppress(OSError):
            pipe.send(ending)


def train_one(trial: Trial, train: Train, retry_on: Errors) -> str | None:
    try:
        with trial:
            try:
                train(trial)
            except retry_on as error:
                trial.mark_lost(one_line(error))
            except SystemExit as error:
                trial.mark_lost(f"the training called sys.exit({error.code!r})")
    except BaseException:
        return traceback.format_exc()
    return None


def run(
    study: Study,
    train: Train,
    *,
    workers: int = 1,
    gpus: Sequence[int | str] | str | None = "auto",
    trial_timeout: float | str | None = None,
    memory_limit: float | str | None = None,
    retry_on: type[Exception] | tuple[type[Exception], ...] = (),
    progress: bool | None = None,
    logs: str | Path | None = None,
) -> Outcome:
    """Train the trials of a study in processes of this machine until the search is over.

    Several workers share the CPUs: each gets OMP_NUM_THREADS = CPUs / workers, unless you set it. If a worker crashes
    or is killed, the search continues. The trial is offered again from its last checkpoint, up to the study's
    max_retries times; then it has failed. After one Ctrl-C, SIGTERM or SIGUSR1 the current epochs are finished and
    saved; after a second one, or after 80% of HALTUNE_GRACE seconds, the program ends at once. To continue, start the
    same program again.

    Args:
        study: A study whose store is a file or a server.
        train: Called as train(trial) in a worker. A function at the top of a module.
        workers: Number of processes that train at the same time. Default: 1.
        gpus: Devices for the workers, by CUDA_VISIBLE_DEVICES: one each, or shared if there are fewer. A list of
            numbers or names (one worker gets all of them), "auto" to find them (the default), or None to leave the
            environment unchanged.
        trial_timeout: Time limit of one attempt, in seconds or as a text such as "30min". Beyond it the trial has
            failed. Default: None, no limit.
        memory_limit: Memory limit of an attempt's processes together, in bytes or as a text such as "8GB"; on Linux.
            Beyond it the trial has failed. Default: None, no limit.
        retry_on: Exceptions of `train` after which its trial is offered again, as after the loss of a worker.
            Default: none.
        progress: Show the trials that train. Default: None, on a terminal with Rich.
        logs: The folder for the output of trials, one file each. Default: None, next to the store.

    Returns:
        Whether the search is over, and why.

    Raises:
        InvalidInput: For invalid arguments.
        NotSupported: For a study in memory, and in one rank of a distributed training.
        TrainingFailed: If the training raises before any trial succeeded, or max_failures times in a row, or if all
            trials diverge.
        KeyboardInterrupt: After a second Ctrl-C.
        SystemExit: After SIGTERM, with code 143, and SIGUSR1, 138.

    Example:
        ::

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.launch import run
            from haltune.policies import RandomSearch

            def train(trial):
                for epoch in trial.epochs():
                    trial.report(trial.config["lr"] / epoch)

            if __name__ == "__main__":
                problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=3)
                study = Study(problem, RandomSearch(), "search.db", budget=Budget(trials=4))
                print(run(study, train, workers=2).reason)
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # CPython checks this too
        raise SystemExit(_UNGUARDED)  # the launcher says why, once
    options = Options.of(workers, gpus, trial_timeout, memory_limit, progress, logs)
    errors = check_called(train, retry_on)
    try:
        written = pickle.dumps(train)
    except Exception as error:
        raise InvalidInput(
            f"Another process cannot import train={train!r} ({error}). Define it with def at the top of a module, "
            "not inside a function, as a lambda or in a notebook's cell."
        ) from error
    if b"__main__" in written and not hasattr(sys.modules["__main__"], "__file__"):
        raise InvalidInput(
            f"Another process cannot import train={train!r}, because this program is not a file (a notebook, or a "
            "Python prompt). Write the function to a file, in a notebook with %%writefile training.py, and import it. "
            f"Or train in this process: study.optimize(train). See {documented('howto/workers#a-notebook')}"
        )

    need_launchable(study)
    settings = study.session.settings
    try:
        pickle.dumps((settings.problem, settings.policy))
    except Exception as error:
        raise InvalidInput(
            f"Another process cannot import a function of this study ({error}), such as a constraint of its space. "
            "Define it, and the class of a policy of your own, at the top of a module, not inside a function or as a "
            "lambda. Or train in this process: study.optimize(train)."
        ) from error

    def start(slot: Slot, marker: Path) -> Worker:
        return Worker(study, train, errors, marker, slot.extra)

    with Crew(study, options, start) as crew:
        return crew.work()
