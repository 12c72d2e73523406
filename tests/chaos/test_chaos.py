"""A search on a file is killed again and again, and nothing it was promised is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from facts import folded, image_of

from haltune import Budget, Float, Minimize, Problem, Space, Study
from haltune.log.events import OVER, Ended, Reported, Started
from haltune.policies import RandomSearch
from haltune.store.open import open_store
from haltune.study.redecide import redecide

TRIALS, EPOCHS = 14, 12
PROBLEM = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), EPOCHS)
SCRIPT = """
import os, random, signal, sys, time
import haltune.store.open  # what each worker would have to load
from haltune import *
from haltune.policies import RandomSearch

def search():
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss"), 12)
    study = Study(problem, RandomSearch(), Storage(sys.argv[1], max_retries=99), seed=3, budget=Budget(trials=14))
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                value = trial.config["x"] + 1 / epoch
                trial.report(value, seconds=1.0, metrics={"epoch": epoch})
                os.write(1, f"{trial.id} {trial.attempt} {epoch} {value.hex()}\\n".encode())  # at once, unlike print
                if epoch % 4 == 0:
                    trial.checkpointed(f"{trial.id}-{epoch}.ckpt")

chance = random.Random(0)
for life in range(12):  # of which the last ends by itself
    worker = os.fork()
    if worker == 0:
        search()
        os._exit(0)
    if life < 11:
        time.sleep(chance.uniform(0.0, 0.25))
        os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
"""


def acknowledged(path: Path) -> list[str]:
    """The reports that workers saw stored, each killed at some moment but the last."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc: a killed worker's lease must run out")
def test_a_search_killed_at_any_moment_keeps_every_report_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "chaos.db"
    lines = map(str.split, acknowledged(path))
    promised = [(int(t), int(a), float(n), float.fromhex(v)) for t, a, n, v in lines]
    study = Study(PROBLEM, RandomSearch(), path, seed=3, budget=Budget(trials=TRIALS))
    log = list(study.events())
    stored = [(e.trial, e.attempt, e.epoch, e.value) for e in log if isinstance(e, Reported)]
    assert set(promised) <= set(stored)
    assert len({key[:3] for key in stored}) == len(stored)
    assert all(e.metrics == {"epoch": e.epoch} for e in log if isinstance(e, Reported))
    assert [e.trial for e in log if isinstance(e, Started)] == list(range(TRIALS))
    assert sum(isinstance(e, Ended) for e in log) == TRIALS
    assert all(t.status in OVER for t in study.trials)
    for t in study.trials:
        assert list(t.epochs) == list(range(1, EPOCHS + 1))
        assert list(t.values) == [t.config["x"] + 1 / n for n in range(1, EPOCHS + 1)]
    assert open_store(path).leases("study") == []
    assert image_of(study.history) == image_of(folded(PROBLEM, log))
    decisions = list(redecide(PROBLEM, RandomSearch(), log))
    assert len(decisions) > TRIALS * (EPOCHS - 1)
    assert [d for d in decisions if d[1] != d[2]] == []
