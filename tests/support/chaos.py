"""Workers of one search that are killed at random moments, and what they were promised before."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from facts import folded, image_of

from haltune import Budget, Float, Minimize, Problem, Space, Storage, Study, Trial
from haltune.log.events import OVER, Ended, Event, Expired, Reported, Started, Status
from haltune.policies import Hyperband
from haltune.store.open import open_store
from haltune.study.redecide import redecide

EPOCHS = 9
_LINE = 28  # bytes of an acknowledged report, about
PROBLEM = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), EPOCHS)


def policy() -> Hyperband:
    """Pauses, resumes and stops, and waits for others."""
    return Hyperband(eta=3, rounds=None)


def opened(url: str, trials: int, **options: Any) -> Study:
    """The search as each worker opens it."""
    budget = Budget(trials=trials)
    return Study(PROBLEM, policy(), Storage(url, max_retries=10**6), seed=3, budget=budget, **options)


def loss(config: dict[str, Any], epoch: float) -> float:
    """A falling curve."""
    return float(config["x"] + 1 / epoch)


def train(trial: Trial, promised: int, pace: float) -> None:
    """Train one attempt; write each acknowledged report to the disk at once."""
    for epoch in trial.epochs():
        time.sleep(random.uniform(0.0, 2.0 * pace))
        value = loss(trial.config, epoch)
        trial.report(value, seconds=1.0, metrics={"epoch": epoch})
        os.write(promised, f"{trial.id} {trial.attempt} {epoch} {value.hex()}\n".encode())
        os.fsync(promised)
        if epoch % 2 == 0 or (trial.verdict and trial.verdict.resumable):
            trial.checkpointed(__file__)  # it exists: its content does not matter here


def work(url: str, trials: int, path: Path, pace: float) -> None:
    """The life of a worker."""
    random.seed(os.getpid())
    promised = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for trial in opened(url, trials):
        with trial:
            train(trial, promised, pace)


def in_fork(life: Callable[[], object]) -> int:
    """The process that lives it."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        life()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def storm(url: str, kills: int, folder: Path, workers: int = 8) -> int:
    """Kill workers so many times at random moments, then all, and let others end the search; its trials."""
    chance, promised = random.Random(0), folder / "promised.txt"
    promised.touch()
    alive = [in_fork(lambda: work(url, 10**6, promised, 0.003)) for _ in range(workers)]
    try:
        for _ in range(kills - workers):
            await_promises(promised, chance.randrange(8))
            time.sleep(chance.uniform(0.0, 0.01))
            kill(alive.pop(chance.randrange(workers)))
            alive.append(in_fork(lambda: work(url, 10**6, promised, 0.003)))
    finally:  # they would continue forever
        kill(*alive)
    trials = max(1, sum(isinstance(e, Started) for e in open_store(url).read("study")))
    last = [in_fork(lambda: work(url, trials, promised, 0.0)) for _ in range(workers)]
    assert [os.waitpid(pid, 0)[1] for pid in last] == [0] * workers, "a worker failed: see stderr"
    return trials


def await_promises(promised: Path, more: int) -> None:
    """Wait for so many more, at most 5 s: a worker that starts reads the log first."""
    enough, patience = promised.stat().st_size + more * _LINE, time.monotonic() + 5.0
    while promised.stat().st_size < enough and time.monotonic() < patience:
        time.sleep(0.002)


def kill(*pids: int) -> None:
    """Kill workers, which must not have ended by themselves."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    ends = [os.waitpid(pid, 0)[1] for pid in pids]
    assert all(map(os.WIFSIGNALED, ends)), "a worker failed: see stderr"


def launched_storm(url: str, kills: int, folder: Path, trials: int, workers: int) -> tuple[int, str]:
    """Kill workers of a launcher while they train, so many times or until the search is over; what it printed."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("launched.py")),
        url,
        str(folder),
        str(trials),
        str(workers),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    chance, done = random.Random(0), 0
    while launcher.poll() is None and done < kills:
        time.sleep(chance.uniform(0.0, 0.2))
        training = [pid for pid in children(launcher.pid) if any(folder.glob(f"{pid}-*.txt"))]
        with suppress(ProcessLookupError):  # it has just ended
            if training:
                os.kill(chance.choice(training), signal.SIGKILL)
                done += 1
    printed, _ = launcher.communicate(timeout=600)
    assert launcher.returncode == 0, printed
    return done, printed


def children(pid: int) -> list[int]:
    """The processes that a process started and that still run."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    with suppress(OSError):  # it has ended
        return [int(child) for task in tasks for child in task.read_text().split()]
    return []


def promises(folder: Path) -> Iterator[tuple[int, int, float, float]]:
    """(trial, attempt, epoch, value) of each report that a worker saw acknowledged."""
    for path in sorted(folder.glob("*.txt")):
        for line in path.read_text().splitlines():
            trial, attempt, epoch, value = line.split()
            yield int(trial), int(attempt), float(epoch), float.fromhex(value)


def check(url: str, folder: Path, trials: int) -> dict[str, int]:
    """Nothing promised is lost, nothing is there twice, nothing is stuck, and all comes out again in a replay."""
    log: list[Event] = list(open_store(url).read("study"))
    stored = [(e.trial, e.attempt, e.epoch, e.value) for e in log if isinstance(e, Reported)]
    promised = list(promises(folder))
    assert len(set(promised)) == len(promised)
    assert set(promised) <= set(stored)
    assert len({key[:3] for key in stored}) == len(stored)
    study = opened(url, trials)
    assert study.outcome.over
    assert [e.trial for e in log if isinstance(e, Started)] == list(range(trials))
    assert all(t.status in OVER or t.status is Status.PAUSED for t in study.trials)
    for t in study.trials:
        assert list(t.epochs) == list(range(1, len(t.epochs) + 1))
        assert list(t.values) == [loss(dict(t.config), n) for n in t.epochs]
    assert open_store(url).leases("study") == []
    assert image_of(study.history) == image_of(folded(PROBLEM, log))
    decisions = list(redecide(PROBLEM, policy(), log))
    assert [d for d in decisions if d[1] != d[2]] == []
    return {
        "events": len(log), "reports": len(stored), "acknowledged": len(promised), "decisions replayed": len(decisions),
        "attempts lost": sum(isinstance(e, Expired) for e in log), "ends": sum(isinstance(e, Ended) for e in log),
    }  # fmt: skip
