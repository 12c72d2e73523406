"""The scripts for SLURM and Kubernetes start workers of one search, each by `haltune run`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from haltune.log.events import OVER
from haltune.store.open import open_store
from haltune.study.view import read_study

EXAMPLES = Path(__file__).parents[3] / "examples"
STUDY = """
[study]
store = "sqlite:///shared.db"
max_epochs = 3
[goal]
maximize = "acc"
bounds = [0, 1]
[space]
x = { float = [0, 1] }
[policy]
name = "RandomSearch"
trials = 2
"""
TRAIN = """
import haltune
trial = haltune.current_trial()
for epoch in trial.epochs():
    trial.report(trial.config["x"] * epoch / 3)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with the tests' `haltune` and `python`."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "haltune"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m haltune.cli "$@"\n')
    command.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "digits.toml").write_text(STUDY)
    (tmp_path / "train_script.py").write_text(TRAIN)
    paths = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONPATH": os.pathsep.join(sys.path)}


def check(tmp_path: Path) -> None:
    history = read_study(open_store(tmp_path / "shared.db")).history
    assert len(history.trials) == 2
    assert all(t.status in OVER and t.epoch == 3 for t in history.trials)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_two_tasks_of_a_slurm_array_share_one_search(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("typer")
    script = str(EXAMPLES / "slurm_array.sh")
    subprocess.run(["bash", "-n", script], check=True)
    names = {"STUDY": tmp_path / "digits.toml", "PROGRAM": tmp_path / "train_script.py", "SLURM_ARRAY_JOB_ID": 7}
    given = environment | {name: str(value) for name, value in names.items()}
    tasks = [
        subprocess.Popen(["bash", script], cwd=tmp_path, env=given, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    ends = [(task.communicate(timeout=120)[1], task.returncode) for task in tasks]
    assert [code for _, code in ends] == [0, 0], ends
    check(tmp_path)
    assert sorted(p.name for p in (tmp_path / "logs" / "7").iterdir()) == [f"trial-{n}.log" for n in range(2)]


def container() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((EXAMPLES / "kubernetes_job.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    (found,) = pod["containers"]
    assert {volume["name"] for volume in pod["volumes"]} == {m["name"] for m in found["volumeMounts"]}
    return dict(found)


def test_the_kubernetes_job_is_well_formed_and_runs_haltune() -> None:
    assert container()["command"][:3] == ["haltune", "run", "--study"]
    assert {m["mountPath"] for m in container()["volumeMounts"]} == {"/search", "/checkpoints"}


@pytest.mark.slow
def test_a_pod_of_the_kubernetes_job_is_a_worker(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("typer")
    command = container()["command"]
    words = [word.replace("/search", str(tmp_path)).replace("/tmp/logs", "logs") for word in command]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    check(tmp_path)
