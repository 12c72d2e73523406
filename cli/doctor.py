"""`haltune doctor`: checks of store, log, leases, checkpoints and frameworks, and a rehearsal of a pause."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from haltune._utils.process import named
from haltune.display import plural, several_of
from haltune.errors import HaltuneError, InvalidInput, NotSupported, StoreError, TrainingFailed
from haltune.launch.crew import Options
from haltune.launch.limits import devices_of
from haltune.launch.programs import Program
from haltune.launch.scripts import run_program
from haltune.log.events import OVER, Created, Event, Reported, Status
from haltune.log.history import History
from haltune.log.problem import Budget, Problem
from haltune.log.records import TrialRecord
from haltune.policies import RandomSearch
from haltune.policies.from_spec import policy_from
from haltune.store.base import Lease, Store, holder_is_gone
from haltune.store.checkpoints import Checkpoints, own_folder, readable
from haltune.store.open import open_store
from haltune.store.sqlite import path_at
from haltune.study import Study
from haltune.study.attempt import end_of
from haltune.study.redecide import redecide, without_reason
from haltune.study.view import folded

from .common import BUG, DONE, As, Format, Name, NotStarted, Where, find, say, say_json
from .study_file import StudyFile, read

# SQLite's locks fail on these
_NETWORK = ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre", "beegfs"]
_LEAST_ROOM = 100e6  # bytes of room for checkpoints, before one was written
_LACKS = "the space has constraints, which a log does not keep"
_REPLAYING = 60.0  # seconds spent on a replay of decisions


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's output."""

    about: str
    well: bool | None  # None: neither good nor bad, such as a package that is not installed
    text: str  # what was found
    advice: str = ""  # what to do


def _store(found: Store, name: str) -> Iterator[Finding]:
    yield Finding("store", True, f"{found.url} opens")
    try:  # a transaction that writes to no row
        open_store(found.address()).renew(name, Lease(-2, 0, "doctor", 0.0, 0.0))
        yield Finding("store", True, "it can be written to")
    except HaltuneError as error:
        yield Finding("store", False, str(error), "let this user write to the file and to its folder")
    if found.url.startswith("sqlite:///"):
        yield from _sqlite(Path(path_at(found.address())))


def _sqlite(path: Path) -> Iterator[Finding]:
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as c:
            mode = c.execute("PRAGMA journal_mode").fetchone()[0]
            whole = c.execute("PRAGMA quick_check(3)").fetchall()
    except sqlite3.Error as error:
        closed = isinstance(error, sqlite3.OperationalError)  # it cannot be opened, so nothing is known of damage
        own = "let this user write to the file and to its folder"
        advice = own if closed else "restore a copy of the file with its -wal file"
        yield Finding("store", False, f"SQLite says: {error}", advice)
        return
    advice = "" if mode == "wal" else "processes wait for each other. Check that the file is on a local disk"
    yield Finding("store", mode == "wal", f"its journal is {mode.upper()}", advice)
    problems = "; ".join(str(row[0]) for row in whole)
    well = problems == "ok"
    advice = "" if well else "restore a copy of the file with its -wal file, or start another search"
    yield Finding("store", well, "the file is whole" if well else f"the file is damaged: {problems}", advice)
    kind = ""
    with suppress(OSError):  # there is no /proc
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
        around = [(len(place), system) for place, system in mounts if path.resolve().is_relative_to(place)]
        kind = max(around, default=(0, ""))[1]
    if kind in _NETWORK:
        yield Finding("store", False, f"it is on a network file system ({kind})",
                      "put it on a local disk, or use PostgreSQL for several machines")  # fmt: skip


def _log(found: Store, name: str) -> Generator[Finding, None, tuple[Created, History] | None]:
    try:
        created, history = folded(found, name)
    except HaltuneError as error:
        yield Finding("log", False, str(error))  # the error says what to do
        return None
    text = f"{plural(history.position, 'event')} of {plural(len(history), 'trial')} folded"
    yield Finding("log", True, text)
    yield _replayed(history.problem, created, found.read(name, stop=history.position))
    return created, history


def _replayed(problem: Problem, created: Created, events: Iterator[Event]) -> Finding:
    if problem.space.constraints:
        return Finding("log", None, f"decisions cannot be replayed: {_LACKS}")
    try:
        policy = policy_from(created.policy)
    except NotSupported as error:
        return Finding("log", None, f"decisions cannot be replayed here: {error}")
    differ, count, end = [], 0, time.monotonic() + _REPLAYING
    for position, recorded, again in redecide(problem, policy, events):
        count += 1
        if without_reason(recorded) != without_reason(again):
            differ.append(position)
        if time.monotonic() > end:
            break
    if not differ:
        return Finding("log", True, f"{plural(count, 'decision')} replayed to the same")
    text = f"of {plural(count, 'decision')} {len(differ)} differ now, the first at event {differ[0]}"
    advice = "continue with the versions of haltune, NumPy and SciPy that the search was started with"
    return Finding("log", False, text, advice)


def _leases(found: Store, name: str, history: History | None) -> Iterator[Finding]:
    for lease in found.leases(name):
        what = f"trial {lease.trial}, attempt {lease.attempt}"
        ends = lease.expires if history is None else end_of(lease, history)
        if holder_is_gone(found, lease.holder) or ends < found.now():
            yield Finding("leases", False, f"the worker of {what}, {named(lease.holder)}, is lost",
                          "start the search again: the trial continues from its last checkpoint")  # fmt: skip
        else:
            yield Finding("leases", True, f"{what} trains; last sign of life {found.now() - lease.renewed:.0f} s ago")


def _checkpoints(kept: Checkpoints, history: History | None) -> Iterator[Finding]:
    """Check that the folder can be written to, has room, and holds the checkpoints of the log."""
    there = next(folder for folder in (kept.folder, *kept.folder.parents) if os.path.exists(folder))
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        yield Finding("checkpoints", False, f"{there}: {error.strerror}",
                      "let this user write there, or name another folder: checkpoints = \"...\"")  # fmt: skip
        return
    yield Finding("checkpoints", True, f"{kept.folder} can be written to")
    sizes = kept.sizes()
    need, free = max(2.0 * max(sizes, default=0), _LEAST_ROOM), shutil.disk_usage(there).free
    advice = "" if free >= need else "free some space: a trial that cannot be saved cannot be paused"
    yield Finding("checkpoints", free >= need, f"{readable(free)} free, {readable(sum(sizes))} used", advice)
    for t in history.trials if history else ():
        if t.status not in OVER and t.status is not Status.RUNNING and kept.missing(t.checkpoint):
            yield Finding("checkpoints", False, f"the checkpoint of trial {t.id}, {t.checkpoint}, does not exist",
                          "restore it; otherwise the trial starts from scratch")  # fmt: skip


_CALLBACKS = {  # distribution: its module, the callback's
    "lightning": ("lightning", "lightning"), "pytorch-lightning": ("pytorch_lightning", "lightning"),
    "keras": ("keras", "keras"), "xgboost": ("xgboost", "xgboost"), "transformers": ("transformers", "transformers"),
    "lightgbm": ("lightgbm", "lightgbm"), "catboost": ("catboost", "catboost"),
    "fastai": ("fastai", "fastai"), "accelerate": ("accelerate", "accelerate"),
    "scikit-learn": ("sklearn", "sklearn"), "stable-baselines3": ("stable_baselines3", "stable_baselines3"),
}  # fmt: skip
_BACKENDS = ("tensorflow", "torch", "jax")  # of Keras; the first is its default
_IMPORTING = 180.0  # seconds for one import


def frameworks() -> Iterator[Finding]:
    """Import each framework in its own process, all at once, so that a crash is a finding."""
    there = [name for name, (module, _) in _CALLBACKS.items() if importlib.util.find_spec(module) is not None]
    with ThreadPoolExecutor(max(1, len(there))) as pool:
        yield from pool.map(_imported, there)
    lightning = {"pytorch-lightning", "lightning"}
    for name in _CALLBACKS:
        if name not in there and not (name in lightning and lightning & set(there)):
            yield Finding("frameworks", None, f"{name} is not installed")
    names = ", ".join(devices_of("auto"))
    yield Finding("frameworks", None, f"CUDA devices: {names}" if names else "no CUDA device")


def _imported(name: str) -> Finding:
    module, own = _CALLBACKS[name]
    backend, environment, advice = "", dict(os.environ), ""
    if name == "keras" and "KERAS_BACKEND" not in os.environ:
        backend = next((b for b in _BACKENDS if importlib.util.find_spec(b) is not None), _BACKENDS[0])
        environment["KERAS_BACKEND"] = backend
        if backend != _BACKENDS[0]:
            advice = f"set KERAS_BACKEND={backend} before the program imports keras, or name it in keras.json"
    program = [sys.executable, "-c", f"import {module}, haltune.callbacks.{own}"]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=_IMPORTING, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return Finding("frameworks", False, f"{name} takes over {_IMPORTING:g} s to import", "install it again")
    version = ""
    with suppress(importlib.metadata.PackageNotFoundError):  # another distribution of it, such as xgboost-cpu
        version = f" {importlib.metadata.version(name)}"
    if done.returncode == 0:
        over = f", over {backend}" if advice else ""
        return Finding("frameworks", True, f"{name}{version} and its callback import{over}", advice)
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    lacks = re.search(r"No module named '(\w+)", last)
    advice = f"pip install -U {name}" if lacks is None else f"pip install {lacks[1]}"
    return Finding("frameworks", False, f"{name}{version} cannot be used: {last}", advice)


def rehearse(problem: Problem, program: Program, folder: Path, epochs: int) -> Iterator[Finding]:
    """Yield findings on a program. The log of each training stays in `folder`.

    A budget of 1 ends the training at its first report from epoch 1 on, as Ctrl-C does: the trial is saved and given
    back. With a larger budget it resumes. If that report came later than epoch 1, `epochs` is a number of reports.
    """
    if problem.max_epochs is not None and problem.max_epochs < 2:
        yield Finding("resume", None, f"a training of one {problem.unit} is never paused")
        return
    try:
        study = _trained(problem, program, folder / "paused", 1)
        first = _stopped_at(study)
        if problem.max_epochs is not None and first >= problem.max_epochs:
            early = [e for e in study.history.trial(0).epochs if 1 <= e < first]
            if early:  # rows that came together
                yield _too_fast(problem, early[0])
            else:
                only = f"the program reports only at the end, at {problem.at(first)}, so it is never paused"
                yield Finding("resume", None, only)
            return
        last = min(epochs * first, problem.max_epochs or math.inf)
        straight = _trained(problem, program, folder / "straight", last).history.trial(0)
        trained = f"{program.command[0]} trained {problem.amount(straight.epoch)} with {dict(straight.config)}"
        yield Finding("resume", True, trained)
        if straight.epoch <= first:
            nothing = f"the program reports nothing after {problem.at(first)}, so a pause cannot be judged"
            yield Finding("resume", None, nothing)
            return
        study = _trained(problem, program, folder / "paused", last)
    except HaltuneError as error:
        last_line = str(error).strip().rpartition("\n")[2]
        yield Finding("resume", False, f"the program failed: {last_line}", f"its output is in {folder}")
        return
    paused = study.history.trial(0)
    beyond = any(isinstance(e, Reported) and e.attempt == 1 and e.epoch > first for e in study.events())
    if beyond and program.metrics is not None:
        yield _too_fast(problem, first)
    elif beyond:
        yield Finding(
            "resume", False, f"the program continued after the verdict to stop at {problem.at(first)}",
            "end the training when trial.report(...).stops, or pass HaltuneCallback(trial)",
        )  # fmt: skip
    elif paused.checkpoint_epoch < first:
        save = "save with trial.save(write), or pass HaltuneCallback(trial); resume from trial.checkpoint"
        if program.metrics is not None:
            save = "name its checkpoint under [program], and give it {checkpoint}"
        yield Finding("resume", False, "nothing was saved at the pause, so the trial started from scratch", save)
    else:
        found = _differences(straight, paused, last)
        again = _trained(problem, program, folder / "again", last).history.trial(0) if found else straight
        by_itself = _differences(straight, again, last)  # without a pause
        by_pause = next((text for what, text in found.items() if what not in by_itself), None)
        if unseeded := next((text for what, text in by_itself.items() if what in _COMPARED), None):
            differ = f"two trainings without a pause differ, so a pause cannot be judged: {unseeded}"
            yield Finding("resume", False, differ, "seed all random numbers")
        elif by_pause is not None:
            yield Finding(
                "resume", False, f"a pause changes the training: {by_pause}",
                "save and load the whole state: weights, optimizer, schedule, random generators; "
                "haltune.callbacks.check_resume finds the part that differs",
            )  # fmt: skip
        else:  # other metrics may differ by themselves, such as a time
            same = f"paused after {problem.at(first)}, it reports exactly the same {problem.amount(last)}"
            left = "".join(f"; {what} differs without a pause, too" for what in by_itself)
            yield Finding("resume", True, f"{same}{left}")


def _too_fast(problem: Problem, first: float) -> Finding:
    return Finding(
        "resume", None, f"the program ended before it could be paused at {problem.at(first)}, because its "
        f"{several_of(problem.unit)} are short, or its rows come late",
        f"rehearse it with longer {several_of(problem.unit)}, and let it flush its log after each row",
    )  # fmt: skip


def _stopped_at(study: Study) -> float:
    """Return the position of the report at which the budget ended the trial; if there is none, that of the last one."""
    stops = (e.epoch for e in study.events() if isinstance(e, Reported) and e.verdict.stops)
    return next(stops, study.history.trial(0).epoch or 1.0)


def _trained(problem: Problem, program: Program, folder: Path, end: float) -> Study:
    """Train one trial with the program up to an epoch, from its last checkpoint. Raises TrainingFailed."""
    folder.mkdir(exist_ok=True)
    budget = Budget(epochs=end)
    study = Study(problem, RandomSearch(trials=1), folder / "rehearsal.db", seed=0, budget=budget, verbose=0)
    run_program(study, program, Options.of(1, "auto", progress=False))
    for trial in study.history.with_status(Status.FAILED):  # a search would continue with another configuration
        raise TrainingFailed(trial.error or "")
    return study


_COMPARED = ("the reports", "the value")  # they must not differ between two trainings without a pause


def _differences(one: TrialRecord, other: TrialRecord, last: float) -> dict[str, str]:
    """Return what differs between two trainings up to `last`, each with its first difference, in words."""
    epochs = [[e for e in t.epochs if e <= last] for t in (one, other)]  # a program may end before it is ended
    if epochs[0] != epochs[1]:
        reported = [", ".join(f"{e:g}" for e in found) or "none" for found in epochs]
        return {_COMPARED[0]: f"the {one.unit}s reported are {reported[0]} and {reported[1]}"}
    columns = {_COMPARED[1]: (one.values, other.values)}
    columns |= {f"the metric {n!r}": (one.metrics[n], other.metrics[n]) for n in one.metrics if n in other.metrics}
    found: dict[str, str] = {}
    for i, epoch in enumerate(epochs[0]):
        for what, (a, b) in columns.items():
            if what not in found and a[i] != b[i] and not (math.isnan(a[i]) and math.isnan(b[i])):
                numbers = f"{float(a[i])!r} without a pause, {float(b[i])!r} with one"
                found[what] = f"{what} of {one.unit} {epoch:g} is {numbers}"
    return found


_MARKS = {True: "ok  ", False: "BAD ", None: "--  "}


def doctor(
    where: Where,
    command: Annotated[list[str] | None, typer.Argument(help="after --: a program to rehearse a pause with")] = None,
    name: Name = None,
    epochs: Annotated[
        int,
        typer.Option(
            min=2,
            help="epochs that the program trains in the rehearsal; reports, if it reports less often, or the study "
            "counts steps or tokens",
        ),
    ] = 3,
    format: As = Format.table,
) -> None:
    """Check store, permissions and frameworks. With a program after --, check that it resumes exactly.

    Each line names a finding and what to do. Exits with 0 if all is well, with 1 if a finding is BAD.
    """
    file = read(where) if where.endswith(".toml") else None
    found = []
    for finding in _findings(where, name, file, command or [], epochs):
        found.append(finding)
        if format is Format.table:  # at once
            advice = f"\n{'':18}-> {finding.advice}" if finding.advice else ""
            say(f"{_MARKS[finding.well]} {finding.about:<12} {finding.text}{advice}")
    if format is Format.json:
        say_json([asdict(finding) for finding in found])
    raise typer.Exit(BUG if any(finding.well is False for finding in found) else DONE)


def _findings(
    where: str, name: str | None, file: StudyFile | None, command: list[str], epochs: int
) -> Iterator[Finding]:
    if file is not None:
        yield Finding("study file", True, f"{file.path} is valid")
    history, problem = None, None if file is None else file.problem
    try:
        history = yield from _search(*find(where, name), file)
    except NotStarted as error:
        yield Finding("store", None, str(error))
        scheme, _, path = error.file.store.partition(":///")
        planned = Path(error.file.folder or (Path(path).parent if scheme == "sqlite" else Path.cwd()))
        yield from _checkpoints(Checkpoints(planned), None)
    except StoreError as error:
        yield Finding("store", False, str(error))
    yield from frameworks()
    problem = history.problem if problem is None and history is not None else problem
    if command and problem is not None:
        yield from _rehearsed(problem, file.program_of(command) if file else Program(command), epochs)


def _search(store: Store, name: str, file: StudyFile | None) -> Generator[Finding, None, History | None]:
    yield from _store(store, name)
    created, history = (yield from _log(store, name)) or (None, None)
    yield from _leases(store, name, history)
    if created is not None:
        try:
            folder = own_folder(store, name, created, file.folder if file else None)
        except InvalidInput as error:
            yield Finding("checkpoints", False, str(error))
        else:
            yield from _checkpoints(Checkpoints(folder), history)
    return history


def _rehearsed(problem: Problem, program: Program, epochs: int) -> Iterator[Finding]:
    if problem.space.constraints:
        yield Finding("resume", None, f"the program cannot be rehearsed: {_LACKS}")
        return
    folder, found = Path(tempfile.mkdtemp(prefix="haltune-doctor-")), list[Finding]()
    try:
        found += rehearse(problem, program, folder, epochs)
    finally:
        if all(finding.well is not False for finding in found):
            shutil.rmtree(folder, ignore_errors=True)  # after a failure its logs may help
    yield from found
