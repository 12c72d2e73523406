"""Trainings that worker processes run: well behaved ones, and all the ways to die."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from curves import accuracy

from haltune import Budget, Float, Maximize, Problem, Space, Storage, Study, Trial
from haltune.policies import RandomSearch

PROBLEM = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), 4)


def a_study(folder: Path, trials: int = 4, policy: Any = None, **options: Any) -> Study:
    """A study in a file of the folder."""
    budget = options.pop("budget", Budget(trials=trials))
    problem = options.pop("problem", PROBLEM)
    policy = policy or RandomSearch(trials=trials)
    store = Storage(f"sqlite:///{folder / 'search.db'}", max_retries=options.pop("max_retries", 2))
    return Study(problem, policy, store, seed=3, budget=budget, **options)


def steady(trial: Trial) -> None:
    """Report values that depend only on the configuration."""
    for epoch in trial.epochs():
        trial.report(accuracy(trial.config, epoch), seconds=1.0)


def saving(trial: Trial) -> None:
    """Save after every epoch, and resume only from a save."""
    saved = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
    assert saved == trial.epoch, (saved, trial.epoch)
    for epoch in trial.epochs():
        verdict = trial.report(accuracy(trial.config, epoch), seconds=1.0)
        trial.save(lambda path, epoch=epoch: path.write_text(str(epoch)))
        if verdict.stops:
            return


def wandering(trial: Trial) -> None:
    """`saving`, in another folder from its first trial on."""
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    saving(trial)


def patient(gate: Path, trial: Trial) -> None:
    """`saving`, but wait in the second epoch for the gate, and write this to a file."""
    assert trial.epoch == (int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0)
    for epoch in trial.epochs():
        if epoch == 2 and not gate.exists():
            gate.with_suffix(f".{trial.id}.{os.getpid()}").touch()
            wait_for(gate.exists)
        stops = trial.report(accuracy(trial.config, epoch), seconds=1.0).stops
        trial.save(lambda path, epoch=epoch: path.write_text(str(epoch)))
        if stops:
            return


def wait_for(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """Return the value of a condition once it is true. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{condition} did not come true in {seconds:g} s")
        time.sleep(0.01)
    return found


def mortal(trial: Trial) -> None:
    """End in a way given by the trial's number; in its first attempt or in all."""
    trial.report(accuracy(trial.config, 1), seconds=1.0)
    print(f"trial {trial.id} attempt {trial.attempt} prints", flush=True)
    first = trial.attempt == 1
    if trial.id == 1 and first:
        os.kill(os.getpid(), signal.SIGSEGV)
    if trial.id == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if trial.id == 3 and first:
        os._exit(3)
    if trial.id == 4:
        raise ValueError("[bold]this learning rate[/] is no good")
    if trial.id == 5 and first:
        raise ConnectionError("the data server was away")
    if trial.id == 6 and first:
        sys.exit(2)
    steady(trial)


def greedy(trial: Trial) -> None:
    """Trial 1 never ends, trial 2 takes too much memory."""
    trial.report(accuracy(trial.config, 1), seconds=1.0)
    if trial.id == 1:
        time.sleep(3600)
    if trial.id == 2:
        taken = [bytearray(os.urandom(1 << 20)) * 50 for _ in range(16)]
        time.sleep(3600)
        print(len(taken))
    steady(trial)


def dying(folder: Path, trial: Trial) -> None:
    """Leave a file, and die."""
    (folder / "gone").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def dying_once(folder: Path, trial: Trial) -> None:
    """Die if no process has done so."""
    if not (folder / "gone").exists():
        dying(folder, trial)
    steady(trial)


def smaller(folder: Path, trial: Trial) -> None:
    """Trial 0 runs out of memory in its second epoch, and trains again until the third trial has started."""
    if trial.id == 2:
        (folder / "third").touch()
    if trial.id:
        wait_for((folder / "again").exists)
        steady(trial)
    for fits in (False, True) if trial.id == 0 else ():
        with suppress(MemoryError):
            for epoch in trial.epochs():
                if epoch == 2 and not fits:
                    raise MemoryError
                if epoch == 2:
                    (folder / "again").touch()
                    wait_for((folder / "third").exists)
                trial.report(0.5, seconds=1.0)


def preempted(trial: Trial) -> None:
    """Send SIGTERM to the launcher, and once it leaves, to this process: as SLURM does to all processes of a job."""
    os.kill(os.getppid(), signal.SIGTERM)
    steps = count(1)
    wait_for(lambda: trial.report(0.5, next(steps) / 1e6, seconds=1.0).stops)
    os.kill(os.getpid(), signal.SIGTERM)


def struck(trial: Trial) -> None:
    """Send SIGTERM to the launcher, while it waits for its workers, and to this process at the same time."""
    time.sleep(0.5)
    os.kill(os.getppid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)


def buggy(trial: Trial) -> None:
    """A bug of the user's."""
    raise KeyError(f"batch_sise of trial {trial.id}")


def counts_threads(folder: Path, trial: Trial) -> None:
    """Writes down how many threads it may use."""
    (folder / f"threads.{trial.id}").write_text(str(os.environ.get("OMP_NUM_THREADS")))
    steady(trial)


def looks_around(folder: Path, trial: Trial, workers: int = 3) -> None:
    """Writes down which devices it sees; waits until so many workers did."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    (folder / f"seen.{os.getpid()}").write_text(str(seen))
    wait_for(lambda: len(list(folder.glob("seen.*"))) >= workers)
    steady(trial)
