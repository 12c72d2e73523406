"""Train with a program as it is: its rows are reported from here, and verdicts are carried out.

The launcher reads the metrics from what the program writes, takes its checkpoints, and ends it by SIGTERM.
"""

from __future__ import annotations

import math
import os
import re
import reprlib
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from haltune._utils import disk
from haltune.display import duration, numeral, one_line, plural, several_of
from haltune.errors import InvalidInput, LeaseLost, is_full
from haltune.log.decisions import Action
from haltune.log.problem import length_argument
from haltune.study import Study, Trial
from haltune.study.loading import VARIABLE, leave_when

from . import limits
from .crew import Child, Ending, Slot, got_signal
from .log_formats import Row
from .metric_logs import Curve, MetricLog, files_in
from .program_checkpoints import STILL, ProgramCheckpoints, copy_unchanged
from .programs import LINKS, Program, failed, failed_by, says_why, tail_of

_SUPERVISOR = Path(__file__).with_name("supervisor.py")  # not imported here: it needs a POSIX system
_LATE = 20.0  # seconds without a row after which many at once are a log that the program writes late
_MUTE = 60.0, 100  # seconds and printed lines without a match of the pattern, after which a hint says so
_WAIT = 60.0  # seconds beyond the grace that a start waits for the end of an earlier attempt
_PATIENCE = 2.0  # seconds, at least, that a pause waits for a checkpoint without a number
_ERROR = re.compile(r"^(?!Exception ignored).*\n.*Traceback \(most recent call last\)", re.MULTILINE)  # not at exit


class Unedited(Child):
    """A program as it is: its rows are reported, and verdicts carried out, from here."""

    def __init__(self, study: Study, program: Program, slot: Slot, marker: Path) -> None:
        assert program.metrics is not None
        self._study, self._program, self._slot, self._metrics = study, program, slot, program.metrics
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None  # of its folder, until the program has it
        self._writes: IO[bytes] | None = None  # the lock of its output, if metrics are read from that
        self._replaces = False  # a file of its log was replaced, in any trial
        self._marker = marker
        self._leaves = study.session.replica.leaving = leave_when(marker, study.session.holder)

    def begin(self, trial: Trial, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        trial.patient = False  # it keeps training while the store is away
        if trial.checkpoint is not None and self._program.checkpoint is None:
            trial.restart(advice="[program] names no checkpoint any more.")
        self._trial, self._output = trial, log
        self._start = self._program.start(self._study, trial, self._slot.extra)
        self._folder = self._start.folder
        self._process, self.session, self.began = None, 0, None
        self._lock = (self._folder.parent / "running").open("ab")
        self._waits_until = time.monotonic() + self._program.grace + _WAIT
        self._launch()

    def _launch(self) -> bool:
        """Start the program, unless that of an earlier attempt, whose launcher was killed, still writes there.

        Return whether it has started.
        """
        if self._process is not None:
            return True
        assert self._lock is not None
        if not disk.lock(self._lock) and time.monotonic() < self._waits_until:
            return False
        trial, program, start, log = self._trial, self._program, self._start, self._output
        measures, earlier = trial.measures, list[tuple[float, float, float]]()
        if trial.checkpoint is not None:
            before = self._study.history.trial(trial.id)
            earlier = list(zip(*(map(float, of) for of in (before.epochs, before.values, before.seconds)), strict=True))
        self._rows: deque[tuple[float, Row]] = deque()
        self._checkpoints = None
        if program.checkpoint is not None:
            self._checkpoints = ProgramCheckpoints(
                start.folder, program.checkpoint, trial.unit, self._metrics.first,
                lambda path: limits.writes(self.session, path),
            )  # fmt: skip
        self._log = MetricLog(self._metrics, (measures.first, *measures.others), start.folder, log)
        self._curve = Curve(
            self._metrics, measures, float(trial.epoch), earlier, trial.metrics, self._log.began,
            wrote=lambda position: None if self._checkpoints is None else self._checkpoints.wrote(position),
        )  # fmt: skip
        self._knows_length = program.gives_length(self._study.problem)
        self._lost = self._log.losses  # at the last report
        self._first: float | None = None  # position of a new trial's only report so far
        self._beyond = 0  # rows beyond a full training
        self._ends = False  # haltune asked it to end
        self._cut = False  # or the signal to the launcher, which came to it, too
        self._pauses = False  # its state is to be saved before it ends
        self._full: str | None = None  # why this pause cannot: the disk or the quota is full
        self._best: float | None = None  # position of the best epoch, whose model is to be kept
        self._saved: float | None = None  # position of the last checkpoint that was recorded
        self._saved_as: tuple[Path, Any] | None = None  # the checkpoint, and its signature then
        self._last_row = self._looked = time.monotonic()
        self._pace = 0.0  # seconds of the last epoch
        environment = {"PYTHONUNBUFFERED": "1", **start.environment}
        environment.pop(VARIABLE, None)
        supervisor = [sys.executable, "-I", "-S", str(_SUPERVISOR), f"{program.grace:g}", str(self._lock.fileno())]
        with log.open("ab") as output, self._lock:
            if self._metrics.path is None:
                self._writes = _locked(log)
            self._printed = output.tell()
            self._process = subprocess.Popen(
                [*supervisor, *start.words], stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                cwd=start.cwd, env=environment, start_new_session=True, pass_fds=[self._lock.fileno()],
            )  # fmt: skip
        assert self._process.stdin is not None
        self._input = self._process.stdin  # at whose end the supervisor ends the program
        self.session, self.began = self._process.pid, time.monotonic()
        self._next_count = self.began + _MUTE[0]
        return True

    # while it trains

    def poll(self) -> Ending | None:
        if not self._launch():
            return None if self._leaves() is None else Ending()
        assert self._process is not None
        trial, code = self._trial, limits.status_of(self._process)
        self._read(whole=code is not None, cut=code is not None and code < 0)
        if code is not None:
            self._report(ended=code == 0 and not self._ends)
            return self._ended(code)
        self._report()
        if not self._ends and self._program.saves_on_sigterm and trial.epoch and self._leaves() is not None:
            self._cut = self._pauses = True  # the next row may come too late
            self._end()
        if not self._ends:
            self._save()
        return None

    def _read(self, whole: bool, cut: bool) -> None:
        """Read the new rows, and warn of what is wrong with them."""
        new = [report for row in self._log.read(whole, cut) for report in self._curve.add(row)]
        self._rows += new
        self._replaces |= bool(self._log.replaced)
        curve, trial = self._curve, self._trial
        if curve.gap is not None and self._log.losses > self._lost:
            trial.hint(self._explain_gap(*curve.gap), "gap")
        curve.gap = None
        if new:
            self._lost = self._log.losses
        if curve.again:
            trial.restart(
                advice="The program should continue, but starts at its first row again. Check how the command gives it "
                "{checkpoint}."
            )
            curve.again = False  # after a StoreError it starts again later
        if curve.differs is not None:
            trial.hint(
                f"Trial {trial.id} continues after {trial.unit} {numeral(trial.epoch)}, but its log has "
                f"{trial.goal.metric} for it again, with another value ({curve.differs:.6g}), which does not count. If "
                "the program counts from 1 after a restart, let its log continue the count from {checkpoint}. If it "
                "evaluates before it trains, check that it loads everything in {checkpoint}.",
                "differs",
            )
            curve.differs = None
        if curve.repeated is not None:
            trial.hint(
                f"The log has several values of {trial.goal.metric!r} at {trial.unit} {curve.repeated:g}; the first "
                f"counts. {self._how_to_choose()}",
                "several values",
            )
            curve.repeated = None
        if curve.late is not None:
            late, reached = curve.late
            trial.hint(
                f"The log of trial {trial.id} has {trial.goal.metric} of {trial.unit} {numeral(late)} only after that "
                f"of {trial.unit} {numeral(reached)}, so it does not count. If the program evaluates in parallel, let "
                "it log in order.",
                "late value",
            )
            curve.late = None
        if (twice := self._log.twice) is not None:
            trial.hint(
                f"The line {twice[1].strip()[:200]!r} has several values of {twice[0]!r}; the last one counts. "
                + ("Let the" if self._metrics.kind == "pattern" else "If it is not the right one, let a")
                + " pattern match the text before the right one, too.",
                "twice",
            )
        if (last := curve.missed) is not None:
            trial.hint(
                f"The log of trial {trial.id} is at {self._metrics.by} {curve.waits:g}, and has no number for "
                f"{trial.goal.metric!r} after {trial.unit} {numeral(last)}. If the training diverges, let the "
                "program write nan, which counts: pandas writes an empty cell instead, unless to_csv has na_rep='nan'.",
                "missed",
            )
        if self._metrics.path is None and not self._log.names and time.monotonic() >= self._next_count:
            self._next_count += _MUTE[0]
            with suppress(OSError), self._output.open("rb") as file:
                file.seek(self._printed)
                if sum(1 for _ in file) >= _MUTE[1]:
                    trial.hint(f"{self._columns()} If its first value comes later, this is no fault.", "no metric")
        late = max(3.0, (trial.horizon or 0.0) / 5)  # many evaluate once in hundreds of steps
        if not trial.epoch and curve.waits >= late and trial.goal.metric not in self._log.names:
            trial.hint(
                f"The program has reached its {self._metrics.by} {curve.waits:g} without {trial.goal.metric!r}. "
                f"{self._columns()}",
                "no metric",
            )

    def _explain_gap(self, before: float, after: float) -> str:
        found = (
            f"The log of trial {self._trial.id} has {self._trial.unit} {numeral(before)}, and then {numeral(after)}. "
        )
        if not (replaced := self._log.replaced):
            return f"{found}A line there is no complete row: {self._log.torn!r}. So its values do not count."
        key = "file" if self._metrics.kind == "pattern" else self._metrics.kind
        return (
            f"{found}{', '.join(replaced)} was renamed or written anew in between, so rows may be lost. Let the "
            f"program append to one file. If it keeps the earlier ones, name them all under [metrics], such as {key} = "
            f'"{self._metrics.path}*".'
        )

    def _how_to_choose(self) -> str:
        """Return how to name the right one of several values of a position, in sentences."""
        goal, path = self._trial.goal.metric, self._metrics.path
        if len(files := self._log.files_with(goal)) > 1:
            return f"They are in {', '.join(files)}: name the right one under [metrics]."
        if kinds := self._log.kinds(goal):
            name, texts = next(iter(kinds.items()))
            where = "" if path is None else f', with file = "{path}"'
            return (
                f"Rows differ in {name!r} ({', '.join(map(repr, texts))}). If only some of them have the right value, "
                f"match their lines alone by a pattern{where} under [metrics]."
            )
        return (
            f"If a row is less than one {self._trial.unit}, or the count starts again within a training, name another "
            "column as position under [metrics]. If a progress bar repeats an earlier value, let the pattern match its "
            "last line only. Of several trainings in one program, only the first counts."
        )

    def _report(self, ended: bool = False) -> None:
        """Report rows until one is to pause the trial, whose state is to be saved first.

        ended: the program has ended by itself, so there is nothing to pause, and all that it trained counts.
        """
        trial, now = self._trial, time.monotonic()
        limit = math.inf if trial.horizon is None else trial.horizon * (1.0 + 1e-9)
        beyond = bool(self._rows) and self._rows[-1][0] > limit
        while self._rows and self._rows[-1][0] > limit:
            position, _ = self._rows.pop()
            self._beyond += 1
        if beyond and not self._rows and not trial.epoch:
            raise InvalidInput(
                f"The first row with {trial.goal.metric} has {self._metrics.by or trial.unit} {position:g}, which is "
                f"beyond {length_argument(trial.unit)}={trial.horizon}. If it does not count {several_of(trial.unit)}, "
                f"name the column that does as position under [metrics]: {', '.join(self._log.names)}. Or make the "
                "study with the unit of that column, such as max_steps. Otherwise let the program evaluate earlier."
            )
        # rows or calls of log count as epochs; lines at the end, such as the best value, are few
        unnamed = self._knows_length and self._metrics.position is None and trial.unit == "epoch"
        if unnamed and self._beyond > 1 and self._beyond >= len(self._rows) + len(trial.history.trial(trial.id).epochs):
            raise InvalidInput(
                f"Trial {trial.id} logs beyond max_epochs={trial.horizon}, although the program gets this length. "
                f"Without position under [metrics], each {self._metrics.by or 'row'} of {self._metrics.words} counts "
                f"as one epoch. Write position, the column with the epoch (the log has {', '.join(self._log.names)}); "
                "in a pattern it is one more group. Or let the pattern match one line for each epoch."
            )
        share = (now - self._last_row) / max(1, len(self._rows))  # seconds
        watched, self._looked = now - self._looked < _PATIENCE, now  # a proposal may take long
        if watched and len(self._rows) > 1 and not self._pace and now - self._last_row > _LATE:
            trained = self._rows[-1][0] - self._rows[0][0]
            if trained >= 0.5 * (trial.horizon or math.inf):
                trial.hint(
                    f"{self._metrics.words} had nothing of trial {trial.id} for {duration(now - self._last_row)}, and "
                    f"then {len(self._rows)} rows at once, too late to end it earlier. If the program writes them as "
                    "it trains, let it flush its log after each row, in Python by flush=True or file.flush(), or name "
                    "another log under [metrics]. conda run holds back what a program prints: add --no-capture-output.",
                    "late rows",
                )
        ignores = self._ignores and not ended
        while self._rows and trial.ended is None and not ignores:
            position, metrics = self._rows[0]
            first, self._first = self._first, None
            if first is not None:
                self._look_at_start(first)
            elif not trial.epoch and trial.checkpoint is None:
                self._first = position
            trial.decline_pause()  # only where the program has ended before it was carried out
            # a row with others behind it comes too late for a verdict; a StoreError keeps it
            trial.report(metrics, position, share, judge=len(self._rows) == 1 and not self._ignores)
            self._rows.popleft()
            self._last_row, self._pace = now, share
            if self._checkpoints is not None:
                self._checkpoints.row(now, share)
                if trial.ended is None and trial.keeps(best_epoch=True):
                    self._best = float(trial.epoch)
        if self._ignores and not (ended or self._ends or self._pauses):
            self._obey()
        evaluates = unnamed or (self._knows_length and self._beyond == 1)  # perhaps its final model, at its end
        if beyond and not evaluates and not self._ignores:
            length = length_argument(trial.unit)
            do = "Name" if self._knows_length else f"Give the program its length: {{{length}}}. If it has that, name"
            trial.hint(
                f"Trial {trial.id} trains beyond {length}={trial.horizon} and ends there. {do} the column that counts "
                f"{several_of(trial.unit)} as position under [metrics].",
                "beyond",
            )
            self._end()

    def _look_at_start(self, position: float) -> None:
        """Hint at the reason why the first row is later than that of others: the program continues another trial."""
        trial, records = self._trial, self._study.history.trials
        started = [(record.epochs[0], record.id) for record in records if len(record.epochs) and record.id != trial.id]
        if trial.unit != "epoch" or not started or position <= min(started)[0]:
            return
        epoch, other = min(started)
        if position % 1.0 == epoch % 1.0 == 0.0:  # within an epoch, a row comes after steps, which depend on the batch
            trial.hint(
                f"Trial {trial.id} is new, but its log starts at epoch {numeral(position)}, and that of trial {other} "
                f"at {numeral(epoch)}. "
                + (
                    "The program renames its log or writes it anew, so rows may be lost: let it append to one file."
                    if self._replaces
                    else "If the program continues from what it finds, it continues another trial: let it save in "
                    "{folder}, which is new for each trial."
                ),
                "rows lost" if self._replaces else "starts late",
            )

    def _obey(self) -> None:
        """End the program after its verdict, or wait for the checkpoint with which the trial continues later."""
        verdict = self._trial.verdict
        if self._trial.ended is None and verdict is not None and verdict.resumable:
            if self._checkpoints is not None:
                self._pauses, self._full = True, None
            else:
                self._trial.hint(
                    "[program] names no checkpoint, so a trial that pauses and is promoted later trains again from its "
                    "start.",
                    "nothing saved",
                )
        if not self._pauses or self._program.saves_on_sigterm:
            self._end()

    @property
    def _ignores(self) -> bool:
        """True if further rows do not count, because the program is to end."""
        return self._trial.verdict is not None and self._trial.verdict.stops

    def _save(self) -> None:
        """Record checkpoints that are there, and carry out a pause once its checkpoint is, or decline it."""
        found, trial = self._checkpoints, self._trial
        if found is None or trial.ended is not None:
            return
        found.look()
        self._record(found)
        if not self._pauses:
            return
        if found.numbered:
            position, late = float(trial.epoch), False
            if self._rows and self._saved != position:  # it is there by now, and no thread still writes it
                found.look(at_once=True)
                self._record(found, settled=STILL)
                late = not found.comes(position)
            done = self._saved == position
        else:
            path = found.latest()
            done = path is not None and self._copy(found, path)
            waited = time.monotonic() - self._last_row
            late = bool(self._rows) or (waited > max(_PATIENCE, 0.2 * self._pace) and not found.is_written_now())
            late |= self._full is not None  # another try would copy as much again
        if done or (late and not self._decline(found)):
            self._end()

    def _record(self, found: ProgramCheckpoints, settled: float | None = None, last: bool = True) -> None:
        """Record the program's own checkpoints of the best position, and of the last one, if they are there.

        settled: see ProgramCheckpoints.at.
        """
        trial, position = self._trial, float(self._trial.epoch)
        if self._saved_as is not None and found.changed(*self._saved_as):  # it was not complete yet
            self._saved = self._saved_as = None
        if self._best is not None and (path := self._linked(found, self._best, settled)) is not None:
            self._study.session.checkpointed(trial, path, 0.0, keep=self._best)
            self._best = None
        if last and position not in (0.0, self._saved) and (path := self._linked(found, position, settled)) is not None:
            trial.checkpointed(path)
            self._saved, self._saved_as = position, found.last

    def _linked(self, found: ProgramCheckpoints, position: float, settled: float | None) -> str | None:
        """Return a hard link to the checkpoint of a position, if there is one; the checkpoint itself on other disks.

        The link stays when the program deletes its own.
        """
        if (path := found.at(position, settled)) is None:
            return None
        links, history = self._folder.with_name(LINKS), self._study.history
        record, counted = history.trial(self._trial.id), history.kept(self._trial.id)  # perhaps of an earlier attempt
        used = [links.parent.parent / name for name in (record.checkpoint, record.kept, counted) if name]
        for place in links.glob("*"):
            if not any(name.is_relative_to(place) for name in used):
                shutil.rmtree(place, ignore_errors=True)
        link = links / secrets.token_hex(4) / path.relative_to(self._folder)
        try:
            link.parent.mkdir(parents=True)
            if path.is_dir():
                shutil.copytree(path, link, symlinks=True, copy_function=os.link)
            else:
                os.link(path, link)
        except (OSError, shutil.Error):
            link = path
        return str(link) if found.same(path) else None  # otherwise the program deletes or writes it now

    def _decline(self, found: ProgramCheckpoints) -> bool:
        """Let the trial continue instead of a pause. Return False if it must end: Ctrl-C, a budget."""
        trial, verdict = self._trial, self._trial.verdict
        self._pauses = False
        if verdict is None or verdict.action is not Action.PAUSE:
            return False
        trial.decline_pause()
        if self._full is not None:
            why = f"its checkpoint could not be copied ({self._full})"
        elif not found.numbered and any(found.paths()):
            what = f"may be of another {trial.unit}" if found.extra else "was not complete before the next row"
            why = f"{self._program.checkpoint} {what} (it could be with the number {{{trial.unit}}} in its name)"
        else:
            why = f"its folder has no checkpoint of it, {self._program.checkpoint}{self._others(found)}"
        trial.hint(
            f"Trial {trial.id} is not paused at {trial.unit} {numeral(trial.epoch)}, because {why}; it keeps training.",
            "no pause",
        )
        return True

    def _others(self, found: ProgramCheckpoints) -> str:
        if not (names := [path.name for path in found.paths()]):
            return ""
        trial = self._trial
        beyond = trial.horizon is not None and max(found.positions(), default=0) > trial.horizon
        count = f" (if they do not count {several_of(trial.unit)}, write * for the number)" if beyond else ""
        return f", only {', '.join(names[-3:])}{count}"

    def _copy(self, found: ProgramCheckpoints, path: Path) -> bool:
        """Copy a checkpoint that a later epoch would overwrite into the study's own; return whether that succeeded."""
        if not found.same(path):  # a later epoch has overwritten it
            return False
        before = found.seen(path)
        try:
            ending = re.search(r"(?:\.[A-Za-z]+)*\.\w+$", path.name)  # Keras reads .weights.h5 and .h5 in two ways
            self._trial.save(lambda to: copy_unchanged(path, to, before), ending[0] if ending else path.suffix)
        except (OSError, InvalidInput, LeaseLost) as error:
            self._full = one_line(error) if is_full(error) else None
            self._trial.hint(f"The checkpoint {path} could not be copied: {one_line(error)}", "copy")
            return False
        return True

    def _end(self) -> None:
        """Ask the program to end: SIGTERM, and SIGKILL after the grace."""
        if not self._ends:
            self._ends = True
            self._ended_at = time.time()
            self._input.close()

    # the end

    def _ended(self, code: int) -> Ending:
        trial, found = self._trial, self._checkpoints
        self._input.close()
        if self._first is not None:
            self._look_at_start(self._first)
        if self._writes is not None:  # another worker may continue the trial, with the same log
            self._writes.close()
        if trial.ended is not None:
            return Ending()
        whole = trial.horizon is not None and trial.epoch >= trial.horizon
        if code > 0 or (code < 0 and whole):  # torchrun ends with 1 after a signal; any other error is the program's
            cut = got_signal(self._marker)
        else:
            cut = not whole and self._leaves() is not None
        if not self._ends and cut:
            self._ends = self._cut = True
            self._ended_at = time.time() - (time.monotonic() - self._last_row)  # the state is later than the last row
            self._pauses = trial.epoch > 0
        if not self._ends and code < 0 and not whole:
            return Ending(died=limits.how_it_died(code))
        if not self._ends and code != 0:  # what has trained in full is not trained again
            return failed(trial, limits.how_it_died(code), self._output, self._printed)
        if not self._ends and not trial.epoch:
            tail = tail_of(self._output, self._printed)
            if self._gave_up(tail):
                why = f"ended with exit status 0 and no value of {self._missing!r} ({self._columns().rstrip('.')})"
                return failed(trial, why, self._output, self._printed)
            why = f"ended without a value of {self._missing!r}. {self._columns()}"
            return failed_by(
                trial, why, tail or None, f"Its program {why}" + (f"\nIt printed:\n{tail}" if tail else "")
            )
        if found is not None and self._ends and self._program.saves_on_sigterm and self._pauses:
            while self._rows:  # trained before it saved its state
                position, metrics = self._rows[0]
                trial.report(metrics, position, judge=False)  # a StoreError keeps the row
                self._rows.popleft()
            whole = trial.horizon is not None and trial.epoch >= trial.horizon  # it ended before the signal came
            path = found.since(self._ended_at, killed=code == -signal.SIGKILL)
            saved = path is not None and self._copy(found, path)
            if not saved and not whole:
                again = "its start" if trial.checkpoint is None else "its last checkpoint"
                trial.hint(
                    f"Trial {trial.id} wrote no complete checkpoint {self._program.checkpoint} within "
                    f"{self._program.grace:g} s after SIGTERM, so it trains again from {again} if it continues. If "
                    "the program needs longer, raise grace under [program].",
                    "nothing saved",
                )
        elif found is not None and not (self._cut and code):  # it was killed, perhaps while it wrote
            self._keep(found, code)
        if not self._ends and self._curve.shifted:
            trial.hint(
                f"In the log of trial {trial.id} {trial.goal.metric!r} comes before the first {self._metrics.by}, and "
                f"not after the last one. So each value seems to come before its {self._metrics.by}, and counts at "
                "the one before. Print both in one line and read them by one pattern, or leave position out under "
                "[metrics].",
                "shifted",
            )
        elif not self._ends and trial.horizon is not None and max(trial.epoch, self._curve.waits) < trial.horizon:
            ended = f"The program of trial {trial.id} ended after {plural(trial.epoch, trial.unit)} of {trial.horizon}"
            if _ERROR.search("\n" + tail_of(self._output, self._printed)):
                trial.hint(
                    f"{ended}. It printed an error, but its exit status is 0, so its last value counts; see "
                    f"{self._output}. For a bash script with a pipe, such as python train.py | tee log.txt, write set "
                    "-o pipefail in it, so that it fails.",
                    "error",
                )
            else:
                note = f" Its log has a line that is no complete row: {self._log.torn!r}." if self._log.torn else ""
                if replaced := self._log.replaced:
                    note += f" {', '.join(replaced)} was renamed or written anew meanwhile, so rows may be lost."
                if self._metrics.by is None and (line := self._log.last_line):  # such as a best value
                    note += f" Each line that matches counts as one {trial.unit}; the last one was {line!r}."
                elif self._metrics.by and self._metrics.first is None and trial.epoch == trial.horizon - 1:
                    note += f" If its first {trial.unit} has the number 0, write first = 0 under [metrics]."
                if not self._knows_length:
                    length = f"{{{length_argument(trial.unit)}}}"
                    note = f" If it does not stop early by itself, give it its length: {length}.{note}"
                if note:
                    trial.hint(f"{ended}.{note}", "short")
        by_itself = not self._ends and trial.verdict is not None and trial.verdict.resumable
        trial.finish("completed" if by_itself or whole else "interrupted" if self._cut else None)
        return Ending()

    def _keep(self, found: ProgramCheckpoints, code: int) -> None:
        """Keep the final model of one of the best trials, if its checkpoint is there."""
        found.look(at_once=True)
        last = not (self._ends and self._ignores)  # what ends by itself is at the last epoch that counts
        beyond = self._ends and self._beyond > 0 and found.extra  # the only file may be of a later one
        if found.numbered:
            completed = code == 0 and self._saved_as is not None and found.changed(*self._saved_as)  # after SIGTERM
            self._record(found, settled=0.0, last=last or completed)
            self._compare_numbers(found)
            lacks = self._saved != float(self._trial.epoch) and not self._ends
            if lacks and self._trial.goal.of == "last" and self._trial.keeps():
                self._trial.hint(
                    f"The folder of trial {self._trial.id} has no checkpoint {self._program.checkpoint} of its last "
                    f"{self._trial.unit}, {numeral(self._trial.epoch)}{self._others(found)}, so its model is not kept.",
                    "not kept",
                )
        elif last and not beyond and (path := found.latest(ended=True)) is not None and self._trial.keeps():
            self._copy(found, path)

    def _compare_numbers(self, found: ProgramCheckpoints) -> None:
        """Hint at checkpoints that count from another number than the log, once the program has ended by itself."""
        trial, epoch, known = self._trial, self._trial.epoch, found.positions()
        last, rows = max(known, default=0), len(self._study.history.trial(trial.id).epochs)
        ahead = last == epoch + 1 and rows == epoch >= self._curve.waits  # otherwise it evaluates seldom, or diverged
        behind = last == epoch - 1 and 0 in known  # without 0 it keeps the best ones alone
        if self._ends or trial.unit != "epoch" or not (ahead or behind):
            return
        trial.hint(
            f"Trial {trial.id} ended after epoch {numeral(epoch)} of its log, and its last checkpoint, "
            f"{known[last].name}, counts as that of epoch {last}. If the program counts checkpoints and epochs from "
            "different numbers, as Keras' ModelCheckpoint (1) and CSVLogger (0), haltune takes the state of another "
            "epoch: write * for the number in checkpoint.",
            "checkpoints count",
        )

    def _gave_up(self, tail: str) -> bool:
        """Return whether a program without a value ended early, and the last line that it printed says why.

        Otherwise the goal may have another name, so that each trial would be lost.
        """
        names, waits = self._log.names, self._curve.waits
        if waits and self._metrics.by is not None:
            early = waits < (self._trial.horizon or 0)
        else:
            early = not self._log.columns and (not names or self._missing in names)
        return early and says_why(tail.rpartition("\n")[2])

    @property
    def _missing(self) -> str:
        """The first metric that the study needs and the log does not have."""
        measures = self._trial.measures
        needed = (measures.first, *measures.goals, *measures.limited)
        return next((name for name in needed if name not in self._log.columns), measures.first)

    def _columns(self) -> str:
        """Return what was found instead of the metric, in sentences."""
        where, names, missing = self._metrics.words, self._log.names, self._missing
        by, listed = self._metrics.by, ", ".join(map(repr, self._log.names))
        for name in (missing, *([by] if by is not None else [])):
            if name in names and name not in self._log.columns:
                if not (cell := self._log.texts[name]):
                    return f"{where} has a column {name!r}, but no row with a number there and a cell for each column."
                return f"In {where}, {name!r} is {reprlib.repr(cell)}, not a number such as 0.95 or 95%."
        if (within := self._log.curve_within) is not None:
            how = "Name one of them as the goal" if by in within[1] else "Name one as position under [metrics]"
            return f"In {where} the list {within[0]!r} has {', '.join(map(repr, within[1]))}. {how}."
        if by is not None and by not in names and missing in names:
            return f"{where} has no {by!r}, the position under [metrics]. It has {listed}."
        if missing in names:
            return (
                f"{where} has {listed}, but no row, or rows of one {self._trial.unit}, with all that the study needs."
            )
        if names:
            what = "the goal" if missing == self._trial.goal.metric else "the other goals and the constraints"
            return f"{where} has {listed}. Name one of them as {what}."
        if self._metrics.path is None:
            return f"No line that it printed matches the pattern; see {self._output}."
        there = sorted(str(path.relative_to(self._folder)) for path in files_in(self._folder))
        what = ", ".join(there[:8]) or "nothing"
        if self._log.found:
            lines = " A row is an object in one line, or in several lines that are indented."
            how = lines if self._metrics.kind == "jsonl" else ""
            return f"{where} has no rows of numbers.{how}"
        return f"There is no {where} in {self._folder}, which holds {what}."

    def close(self, kill: bool = False) -> None:
        process = self._process
        if process is None:
            if self._lock is not None:
                self._lock.close()
            return
        with suppress(OSError):
            if kill and not self._input.closed:
                self._input.write(b"k")
            self._input.close()
        try:
            process.wait(5.0 + (0.0 if kill else self._program.grace))
        except subprocess.TimeoutExpired:
            limits.kill(self.session)
            process.wait()
        if self._writes is not None:
            self._writes.close()


def _locked(log: Path) -> IO[bytes]:
    """Open and lock a log, until its program has ended. Raises InvalidInput if another search writes there.

    What a program leaves behind may hold its output open, but not this.
    """
    lock = log.open("ab")
    if not disk.lock(lock):
        lock.close()
        raise InvalidInput(
            f"Another program writes its output to {log}, where haltune would read its metrics as those of this trial. "
            "If it is of another search, give each search its own folder: --logs FOLDER. Otherwise end it."
        )
    return lock
