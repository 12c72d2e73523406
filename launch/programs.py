"""Programs as the training: their command line and folder for each trial, and how a failure of one is recorded.

A program that calls `haltune.current_trial()` reports by itself (`scripts.Script`). Any other one is trained as it is
(`unedited.Unedited`). Each training has a folder, CHECKPOINTS/trial-7/run-1, named by the attempt that started it; an
attempt that resumes continues in it.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from haltune._utils.checks import is_number, python_number
from haltune.display import several_of
from haltune.errors import OUT_OF_MEMORY, InvalidInput, NotSupported, told_full, told_short
from haltune.log.events import Status
from haltune.log.problem import Problem, length_argument
from haltune.space.domains import Constant
from haltune.study import Study, Trial
from haltune.study.attempt import Failure

from .crew import Ending
from .metric_logs import Metrics, in_folder
from .placeholders import ALL, CHECKPOINT, CONFIG, FOLDER, OPTIONS, OVERRIDES, TRIAL, ConfigFile, Texts, plain
from .program_checkpoints import copy_unchanged, glob_and_number, signature_of

_TAIL = 4000  # bytes of a program's output that are recorded if it fails
LINKS = "linked"  # folder in a trial's folder: hard links to the checkpoints that the log names


@dataclass(frozen=True)
class Command:
    """A program's start for one attempt."""

    words: list[str]
    environment: dict[str, str]
    cwd: str | None
    folder: Path


@dataclass(frozen=True)
class Program:
    """A program that is started once for each trial."""

    command: Sequence[str]  # words, with placeholders
    metrics: Metrics | None = None  # None: it reports through current_trial()
    config: ConfigFile = field(default_factory=ConfigFile)
    env: Mapping[str, str] = field(default_factory=dict)  # with placeholders
    cwd: str | None = None  # with placeholders; None: the launcher's
    checkpoint: str | None = None  # pattern of its own checkpoints in the trial's folder, {epoch} is their position
    saves_on_sigterm: bool = False  # it writes that checkpoint when it gets SIGTERM
    grace: float = 10.0  # seconds from SIGTERM to SIGKILL
    workers: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not all(isinstance(word, str) for word in self.command):
            raise InvalidInput(f"command={self.command!r}: use a list of words, such as ['python', 'train.py'].")
        if not (is_number(self.grace) and 0 <= self.grace < 1e6):
            raise InvalidInput(f"grace = {self.grace!r}: use seconds, from 0.")
        if not isinstance(self.saves_on_sigterm, bool):
            raise InvalidInput(f"saves_on_sigterm = {self.saves_on_sigterm!r}: use true or false.")
        if isinstance(self.workers, bool) or not isinstance(python_number(self.workers), int) or self.workers < 1:
            raise InvalidInput(f"workers = {self.workers!r}: use a whole number from 1.")
        if not isinstance(self.env, Mapping) or not all(isinstance(value, str) for value in self.env.values()):
            raise InvalidInput(f'env = {self.env!r}: use a table of texts, such as {{ WANDB_MODE = "offline" }}.')
        for name in ("cwd", "checkpoint"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise InvalidInput(f"{name} = {value!r}: use a text that is not empty.")
        in_folder("checkpoint", self.checkpoint)
        if self.checkpoint is None and self.saves_on_sigterm:
            raise InvalidInput("saves_on_sigterm needs checkpoint, the pattern of the file that it writes.")

    # checked before anything is trained

    def check(self, problem: Problem) -> None:
        """Raise InvalidInput for what cannot work in a study of this problem."""
        queue = Path(self.command[0]).name if self.command else ""
        waits = ("--wait", "-W", "-sync", "-K", "-I")  # the options with which it does, also -Wblock=true and -Is
        if queue in ("sbatch", "qsub", "bsub") and not any(word.startswith(waits) for word in self.command):
            raise InvalidInput(
                f"{queue} returns at once, and its job trains later, so haltune cannot follow it. Start `haltune run` "
                "within the job, or write srun in place of sbatch."
            )
        texts, parameters = self._texts(problem), problem.space.parameters
        used = set[str]().union(*(part.used for part in texts))
        unused = [name for name, domain in parameters.items() if name not in used and not isinstance(domain, Constant)]
        used.difference_update(parameters)  # they hide placeholders of the same name
        if self.checkpoint is not None:
            glob_and_number(self.checkpoint, problem.unit)  # raises for other braces
            if CHECKPOINT not in used:
                raise InvalidInput(
                    "[program] names a checkpoint, but the command does not use {checkpoint}, so the program could not "
                    "resume from it. Add it: --resume {checkpoint}. Without one, both words are left out. If the "
                    'program finds it by itself in {folder}, write env = { RESUME = "{checkpoint}" }.'
                )
        if CONFIG not in used and self.config != ConfigFile():
            raise InvalidInput(
                "[program] has a config, the file {config}, but the command does not use it. Add it, such as --config "
                "{config}, or leave config out."
            )
        if CONFIG in used:  # a program without the file needs no PyYAML
            self.config.text(dict.fromkeys(parameters, 0), self.config.filled(self.config.texts()))
            for name in self.config.values:
                if name in parameters and name not in texts[2].used:
                    raise InvalidInput(
                        f"values of [program.config] set {name!r}, a parameter of the space, so trials would not differ"
                        f" in it. Remove it there, or use the trial's value in it: {{{name}}}."
                    )
        if self.metrics is None:
            return
        if os.name != "posix":
            raise NotSupported("[metrics] needs a POSIX system. Here let the program call haltune.current_trial().")
        self.metrics.check(problem.measures)
        if self.metrics.by is None and problem.unit != "epoch":
            raise InvalidInput(
                f"The study counts {several_of(problem.unit)}, so [metrics] needs position, the column with them."
            )
        if self.metrics.by is None and self.checkpoint is not None:
            raise InvalidInput(
                f"A program that resumes needs position under [metrics], the column with the {problem.unit}, so that "
                "no row counts twice."
            )
        if CHECKPOINT in used and self.checkpoint is None:
            raise InvalidInput(
                "The command uses {checkpoint}. Name the program's checkpoints: under [program] write checkpoint, a "
                "pattern in the trial's folder."
            )
        if not used.intersection(ALL) and unused:
            raise InvalidInput(
                f"The command does not use {', '.join(map(repr, unused))}, so trials would not differ in it. Add "
                f"--{unused[0]} {{{unused[0]}}}, or one of {{options}}, {{overrides}} and {{config}}, which hold all."
            )
        given = self.metrics.environment(Path()) or self.cwd is not None or FOLDER in used
        if self.metrics.path is not None and not given:
            raise InvalidInput(
                f"The command does not use the trial's folder, where {self.metrics.path} is read. Add {{folder}} to "
                'it, as the program\'s folder for output, or write cwd = "{folder}" under [program].'
            )
        for word in self.command if self.cwd is not None and "{folder}" in self.cwd else ():
            if word.endswith((".py", ".sh")) and not Path(word).is_absolute() and Path(word).is_file():
                raise InvalidInput(
                    f"cwd = {self.cwd!r} is a new folder for each trial, without {word}. Write the full path of "
                    f"the file: {Path(word).absolute()}"
                )
        if not used.intersection(ALL):
            _refuse_shared_words([group for part in texts for group in part.groups], parameters)
        first = self.command[0]
        if ("{" not in first or " " in first) and self.cwd is None and shutil.which(first) is None:
            raise cannot_start(first, "No such file or directory")

    def gives_length(self, problem: Problem) -> bool:
        """Return whether the program gets the length of a full training."""
        used = set[str]().union(*(text.used for text in self._texts(problem)))
        return not used.isdisjoint({*_lengths(problem)} - {*problem.space.parameters})

    def _own(self, problem: Problem) -> list[str]:
        return [FOLDER, TRIAL, CONFIG, OPTIONS, OVERRIDES, CHECKPOINT, *_lengths(problem)]

    def _texts(self, problem: Problem) -> tuple[Texts, Texts, Texts]:
        """Return the texts of the command, of the environment and working folder, and of the configuration file."""
        names, own = list(problem.space.parameters), self._own(problem)
        file = [name for name in own if name not in ALL]
        around = [*self.env.values(), *([self.cwd] if self.cwd is not None else [])]
        command = Texts(self.command, names, own)
        given = Texts(around, names, [*file, CONFIG])
        has_file = CONFIG not in names and CONFIG in command.used | given.used
        config = Texts(self.config.texts() if has_file else (), names, file)
        return command, given, config

    # a trial

    def start(self, study: Study, trial: Trial, extra: Mapping[str, str]) -> Command:
        """Return how to start an attempt; makes its folder and its configuration file.

        extra: variables of its environment, unless `env` has them.
        """
        problem = study.problem
        command, around, config = self._texts(problem)
        used = (command.used | around.used | config.used).difference(problem.space.parameters)
        folder = folder_of(study, trial)
        if self.metrics is not None or used & {FOLDER, CONFIG}:
            folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"config.{self.config.kind}"
        own = dict.fromkeys(self._own(problem), trial.horizon) | {
            FOLDER: str(folder), TRIAL: trial.id, CONFIG: str(path), CHECKPOINT: _as_written(trial.checkpoint, folder),
        }  # fmt: skip
        if CONFIG in used:
            values = self.config.filled(config.values(trial.config, own))
            path.write_text(self.config.text(trial.config, values), encoding="utf-8")
        filled = around.values(trial.config, own)
        given = zip(self.env, filled[: len(self.env)], strict=True)
        own_place = {} if self.metrics is None else self.metrics.environment(folder)
        environment = {
            **os.environ, **extra, **own_place,
            **{name: plain(value) for name, value in given if value is not None},
        }  # fmt: skip
        cwd = None if self.cwd is None else str(filled[-1])
        if cwd is not None:
            Path(cwd).mkdir(parents=True, exist_ok=True)
        return Command(command.words(trial.config, own), environment, cwd, folder)


def _lengths(problem: Problem) -> list[str]:
    """Return the placeholders of the length of a full training."""
    unit = problem.unit
    return [] if problem.max_epochs is None else [*dict.fromkeys((length_argument(unit), several_of(unit)))]


def _refuse_shared_words(groups: Sequence[tuple[str, set[str]]], parameters: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a text that is left out with a value that is absent, and takes another parameter along."""
    lacks = {name: domain.when for name, domain in parameters.items() if domain.when}
    if CHECKPOINT not in parameters:
        lacks[CHECKPOINT] = {}
    for text, names in groups:
        for absent in sorted(names & lacks.keys()):
            for other in sorted(names & {*parameters, *lacks} - {absent}):
                elsewhere = any(other in found and found & lacks.keys() <= {other} for _, found in groups)
                if not elsewhere and not (other in lacks and lacks[other] == lacks[absent]):
                    which = "some trial" if absent in parameters else "a new trial"
                    raise InvalidInput(
                        f"{text!r} is one word. It is left out if {which} has no value for {{{absent}}}, and with it "
                        f'{{{other}}}. Give each its own word; a shell script passes them on by "$@".'
                    )


def folder_of(study: Study, trial: Trial) -> Path:
    """Return the folder of a training: of this attempt, or of the one that it continues."""
    above = study.session.checkpoints.of(trial.id)
    if trial.checkpoint is not None:
        runs = {int(path.name[4:]): path for path in above.glob("run-*") if path.name[4:].isdecimal()}
        if earlier := [number for number in runs if number <= trial.attempt]:
            return runs[max(earlier)]
    return above / f"run-{trial.attempt}"


def _as_written(checkpoint: str | None, folder: Path) -> str | None:
    """Return the path at which the program wrote a checkpoint, which is restored if the program deleted it."""
    place = folder.with_name(LINKS)
    if checkpoint is None or not Path(checkpoint).is_relative_to(place):
        return checkpoint
    own = folder.joinpath(*Path(checkpoint).relative_to(place).parts[1:])
    if not own.exists():
        own.parent.mkdir(parents=True, exist_ok=True)
        part = place / secrets.token_hex(4) / own.name  # a launcher that is killed leaves no half of a checkpoint
        part.parent.mkdir(parents=True)
        copy_unchanged(Path(checkpoint), part, signature_of(Path(checkpoint)))
        os.replace(part, own)
    return str(own)


def cannot_start(program: str, why: str | None) -> InvalidInput:
    how = f" Write python {program}." if program.endswith(".py") else ""
    if " " in program:
        how = " Write its words without quotation marks around all of them."
    elif re.match(r"\w+=", program):
        how = ' Write variables under [program]: env = { NAME = "value" }.'
    elif program in ("cd", "export", "source"):
        how = " No shell reads the command. Write cwd and env under [program], or a shell script."
    return InvalidInput(f"Cannot start {program!r}: {why}.{how}")


_DIVERGED = re.compile(
    r"(?<![.\w])(?:nan|inf(?:inity)?|non-?finite|not finite|diverged|exploded|FloatingPointError)\b", re.IGNORECASE
)  # not np.nan, in code that a traceback shows; where it errs, max_failures ends the search


class ScriptFailed(Exception):
    """A program ended with an exit status other than 0."""


def failed(trial: Trial, why: str, log: Path, start: int) -> Ending:
    """Record that a program failed, with the last lines of its output, which starts at this byte of the log.

    At a full disk every program would fail, so the search ends, and the trial is offered again. Too little memory and
    a value that is not finite are faults of the configuration, so the search continues, also after its first trial.
    """
    tail = tail_of(log, start)
    if told_full(tail):
        trial.interrupt()
        return Ending(raised=f"{tail}\nAfter you have made room, the same command continues the search.")
    last = tail.splitlines()[-1] if tail else "it printed nothing"
    if last.endswith("No module named 'haltune'"):  # its environment is not active, or haltune has one of its own
        tail += f"\nThe command's python is another one than haltune's. Write {sys.executable} in place of python."
    trial.recall()
    values = trial.history.trial(trial.id).values
    diverged = _DIVERGED.search(tail) is not None or (len(values) > 0 and not math.isfinite(values[-1]))
    short = f"{OUT_OF_MEMORY}: " if told_short(tail) else ""
    return failed_by(trial, f"{short}{why}: {last}", tail or None, tail, diverged)


def says_why(line: str) -> bool:
    """Return whether a line of a program says that a disk or memory is full, or that the training diverged."""
    return told_full(line) or told_short(line) or _DIVERGED.search(line) is not None


def failed_by(trial: Trial, error: str, traceback: str | None, tail: str, diverged: bool = False) -> Ending:
    """Record that a program failed. tail: the last lines of its output."""
    trial.fail(Failure(error, traceback))
    refused = trial.ended is Status.INTERRUPTED  # by haltune in the program, which gave the trial back and would again
    tolerated = not refused and ((diverged and trial.ended is Status.FAILED) or trial.tolerates(ScriptFailed(error)))
    return Ending() if tolerated else Ending(raised=tail or error)


def tail_of(log: Path, start: int) -> str:
    """Return the last lines of a program's output, which starts at this byte of the log."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - _TAIL))
        return file.read().decode(errors="replace").strip()
    return ""
