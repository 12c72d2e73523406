"""`run_script`: train with any program, which starts once for each trial and calls `haltune.current_trial()`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from haltune.errors import InvalidInput
from haltune.log.spending import Outcome
from haltune.study import Study, Trial
from haltune.study.loading import VARIABLE, handover_text

from . import limits
from .crew import Child, Crew, Ending, Options, Slot, got_signal
from .programs import Program, cannot_start, failed
from .unedited import Unedited


def run_script(
    study: Study,
    command: Sequence[str],
    *,
    workers: int = 1,
    gpus: Sequence[int | str] | str | None = "auto",
    trial_timeout: float | str | None = None,
    memory_limit: float | str | None = None,
    progress: bool | None = None,
    logs: str | Path | None = None,
    fresh: bool = True,
) -> Outcome:
    """Train the trials of a study by starting a program once for each, until the search is over.

    The program gets its trial from `haltune.current_trial()` and reports to it. If its exit status is not 0, the trial
    has failed, and its last lines of output are recorded. The output of each trial goes to its own file.

    Args:
        study: A study whose store is a file or a server.
        command: The program and its arguments, a list of words. Placeholders stand for a trial's values: "{lr}".
        workers: Number of programs that train at the same time. Default: 1.
        gpus: As in `run`; with "auto", one program alone sees all devices. Default: "auto".
        trial_timeout: Time limit of one attempt, in seconds or as a text such as "30min". Default: None, no limit.
        memory_limit: Memory limit of an attempt's processes together, in bytes or as a text such as "8GB"; on Linux.
            Default: None, no limit.
        progress: Show the trials that train. Default: None, on a terminal with Rich.
        logs: The folder for the output of trials, one file each. Default: None, next to the store.
        fresh: Has no effect, because every trial starts in a new process. Default: True.

    Returns:
        Whether the search is over, and why.

    Raises:
        InvalidInput: For a command that cannot start, and for invalid arguments.
        NotSupported, TrainingFailed, KeyboardInterrupt: As in `run`.

    Example:
        ::

            import sys
            from pathlib import Path
            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.launch import run_script
            from haltune.policies import RandomSearch

            Path("train.py").write_text(
                "from haltune import current_trial\\n"
                "with current_trial() as trial:\\n"
                "    for epoch in trial.epochs():\\n"
                "        trial.report(trial.config['lr'] / epoch)\\n"
            )
            problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=3)
            study = Study(problem, RandomSearch(), "search.db", budget=Budget(trials=2))
            print(run_script(study, [sys.executable, "train.py"], workers=2).reason)
    """
    if isinstance(command, str) or not command:
        raise InvalidInput(f"command={command!r}: use a list of words, such as ['python', 'train.py'].")
    options = Options.of(workers, gpus, trial_timeout, memory_limit, progress, logs)
    return run_program(study, Program(list(command)), options)


def run_program(study: Study, program: Program, options: Options) -> Outcome:
    """Train the trials of a study with a program; see `run_script`. One with metrics is trained as it is."""

    def start(slot: Slot, marker: Path) -> Child:
        return (Script if program.metrics is None else Unedited)(study, program, slot, marker)

    if options.workers == 1 and options.found:  # a program alone sees what it sees without haltune
        options = replace(options, devices=[])
    with Crew(study, options, start) as crew:
        program.check(study.problem)
        return crew.work()


class Script(Child):
    """One process for each trial, which gets it from `haltune.current_trial()`."""

    def __init__(self, study: Study, program: Program, slot: Slot, marker: Path) -> None:
        self._study, self._program, self._slot, self._marker = study, program, slot, marker
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, trial: Trial, log: Path) -> None:
        self._trial, self._log = trial, log
        log.parent.mkdir(parents=True, exist_ok=True)
        start = self._program.start(self._study, trial, self._slot.extra)
        handover = {VARIABLE: handover_text(self._study, trial, self._marker)}
        try:
            with log.open("ab") as output:
                self._printed = output.tell()
                self._process = subprocess.Popen(
                    start.words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=start.cwd,
                    env={**start.environment, **handover}, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            trial.interrupt()
            raise cannot_start(start.words[0], error.strerror) from error
        self.session, self.began = self._process.pid, time.monotonic()

    def poll(self) -> Ending | None:
        assert self._process is not None
        code, trial = limits.status_of(self._process), self._trial
        if code is None:
            return None
        if code == 0:
            trial.recall()
            whole = trial.horizon is not None and trial.epoch >= trial.horizon
            decided = trial.verdict is not None and trial.verdict.stops
            if whole or decided or not self._marker.exists():  # otherwise the launcher's signal has ended it, too
                trial.finish()
            return Ending()
        if code < 0:
            return Ending(died=limits.how_it_died(code))
        if got_signal(self._marker):  # torchrun ends with 1 after a signal
            return Ending()
        return failed(trial, limits.how_it_died(code), self._log, self._printed)

    def close(self, kill: bool = False) -> None:
        if self._process is not None:
            limits.kill(self.session)
            self._process.wait()
