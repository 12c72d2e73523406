"""Any program as the training: it is started once for each trial and asks `haltune.current_trial()` what to train."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.spending import Outcome
from haltune.study import Study, Trial
from haltune.study.joining.current import VARIABLE, told
from haltune.study.session.session import Failure

from . import limits
from .child import Ending, Slot
from .crew import Crew, Options
from .warm import Program, Zygote, program_of

_TAIL = 4000  # bytes of a run's output that are recorded when it fails


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
    fresh: bool = False,
) -> Outcome:
    """Train the trials of a study by starting a program once for each, until the search is over.

    The program calls `haltune.current_trial()` and reports to what it returns. One that ends with another exit
    status than 0 has failed, with the last lines it printed. Its output goes to a file for each trial.

    Args:
        study: A study whose store is a file or a server.
        command: The program and its arguments, a list of words.
        workers: Programs that train at a time. Default: 1.
        gpus: As of `run`. Default: "auto".
        trial_timeout: Seconds, or a text such as "30min", that one attempt may take. Default: None, no limit.
        memory_limit: Bytes, or a text such as "8GB", that an attempt's processes may take together; on Linux.
            Default: None, no limit.
        progress: Show what trains. Default: None, on a terminal with Rich.
        logs: The folder for what programs print, a file a trial. Default: None, beside the store.
        fresh: Start the interpreter anew for each trial. Else, on Linux, where the command is `python script.py` or
            `python -m module`, a process for each worker imports once what the program imports from installed
            packages, and forks for each trial: as a fresh process, with these imports done. Only those count that
            come before the program mentions os.environ or sys.path, and none where one starts threads, as TensorFlow
            and JAX do. Default: False.

    Returns:
        Whether the search is over, and why.

    Raises:
        InvalidInput: For a command that cannot be started, and for what does not fit.
        NotSupported, TrainingFailed, KeyboardInterrupt: As `run`.

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
        raise InvalidInput(f"command={command!r}: a list of words, such as ['python', 'train.py']")
    options = Options.of(workers, gpus, trial_timeout, memory_limit, progress, logs)
    program = None if fresh else program_of(command)
    with Crew(study, options, lambda slot, marker: Script(study, command, slot, marker, program)) as crew:
        return crew.work()


class TrialProcess(Protocol):
    """The process of a trial."""

    @property
    def pid(self) -> int:
        """Its number, and that of its session and group."""
        ...

    def poll(self) -> int | None:
        """How it ended, as subprocess counts; what it left running has ended then, too."""
        ...

    def kill(self) -> None:
        """End it and what it started, and wait until it is gone."""
        ...


class FreshProcess:
    """A TrialProcess: the interpreter, or whatever the command says, is started for it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Raises OSError when there is no such program."""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def poll(self) -> int | None:
        limits.kill_rest(self.pid)
        return self._process.poll()

    def kill(self) -> None:
        limits.kill(self.pid)
        self._process.wait()


class Script:
    """A Child: one process for each trial."""

    def __init__(
        self, study: Study, command: Sequence[str], slot: Slot, marker: Path, program: Program | None = None
    ) -> None:
        """program: what the command runs, where its runs may begin warm."""
        self._study, self._command, self._slot, self._marker = study, list(command), slot, marker
        self._program = program
        self._zygote: Zygote | None = None
        self._run: TrialProcess | None = None
        self._trial: Trial | None = None
        self._environment: dict[str, str] = {}
        self._log = Path()
        self.began: float | None = None

    @property
    def session(self) -> int:
        return self._run.pid if self._run else 0

    def ready(self) -> bool:
        return True

    def begin(self, trial: Trial, log: Path) -> None:
        """See Child. Raises InvalidInput when there is no such program."""
        self._trial, self._log = trial, log
        log.parent.mkdir(parents=True, exist_ok=True)
        usual = {**os.environ, **self._slot.extra}
        self._environment = {**usual, VARIABLE: told(self._study, trial, self._marker)}
        try:
            if self._program is not None and self._zygote is None:
                self._zygote = Zygote(self._program, usual, log)
            self._start()
        except OSError as error:
            trial.interrupt()
            how = f"; write python {self._command[0]}" if self._command[0].endswith(".py") else ""
            raise InvalidInput(f"cannot start {self._command[0]!r}: {error.strerror}{how}") from error
        self.began = time.monotonic()

    def _start(self) -> None:
        if self._zygote is None:
            self._run = FreshProcess(self._command, self._environment, self._log)
        else:
            self._run = self._zygote
            self._zygote.begin(self._environment, self._log)

    def waitables(self) -> Sequence[Any]:
        return self._zygote.waitables if self._zygote is not None else []

    def poll(self) -> Ending | None:
        if self._run is None or self._trial is None:
            return None
        code = self._run.poll()
        if self._zygote is not None and self._zygote.ready is False:
            self._zygote.kill()
            self._program = self._zygote = None
            self._start()
            return None
        if code is None:
            return None
        if code < 0:
            return Ending(died=limits.how_it_died(code))
        if code == 0:
            self._trial.finish()
            return Ending()
        return self._failed(self._trial, code)

    def _failed(self, trial: Trial, code: int) -> Ending:
        """Record that the program failed, unless it said so itself; the end of the search if that is a bug."""
        tail = _tail(self._log)
        error = ScriptFailed(
            f"{limits.how_it_died(code)}: {tail.splitlines()[-1] if tail else 'it printed nothing'}"
        )
        self._study.session.end(trial, Status.FAILED, Failure(str(error), tail))
        return Ending() if self._study.session.tolerates(trial, error) else Ending(raised=tail or str(error))

    def close(self, kill: bool = False) -> None:
        for run in (self._run, self._zygote):
            if run is not None:
                run.kill()


class ScriptFailed(Exception):
    """A program ended with another exit status than 0."""


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        return file.read().decode(errors="replace").strip()
