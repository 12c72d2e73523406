"""A search within Ray Train: its workers are the ranks of each trial, and one of them is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from haltune.study.view import read_study

PROGRAM = """
import os

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def search(folder):
    import torch
    import torch.distributed as dist
    from haltune import Float, Study
    from paused_studies import PausesAt

    study = Study({"lr": Float(0.01, 0.1)}, "val_loss", f"{folder}/search.db", max_epochs=4, budget="2 trials",
                  policy=PausesAt(2, at=(1,)), seed=0)
    for trial in study:
        with trial:
            weights = torch.load(trial.checkpoint) if trial.checkpoint else torch.ones(1)
            for epoch in trial.epochs():
                weights = weights - trial.config["lr"] / 2 * weights
                dist.all_reduce(weights)
                weights /= dist.get_world_size()
                if trial.id == 1 and epoch == 3 and dist.get_rank() == 1 and not os.path.exists(f"{folder}/gone"):
                    open(f"{folder}/gone", "w").close()
                    os._exit(9)
                trial.report(weights.item())
                trial.save(lambda path: torch.save(weights, path))


ray.init("local", num_cpus=2, include_dashboard=False)
folder = os.getcwd()
again = FailureConfig(max_failures=3)
run_config = RunConfig(name="search", storage_path=f"{folder}/ray", failure_config=again)
TorchTrainer(search, train_loop_config=folder, scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()
"""


@pytest.mark.slow
def test_trials_of_two_workers_pause_resume_and_survive_a_killed_worker(tmp_path: Path) -> None:
    for package in ("ray.train", "torch"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    support = str(Path(__file__).parents[2] / "support")
    paths = os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "RAY_worker_niceness": "0"}  # Ray's workers are nice otherwise
    (tmp_path / "search.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "search.py"], cwd=tmp_path, env=environment, check=True, timeout=900)
    first, second = read_study(str(tmp_path / "search.db")).trials
    assert (first.attempt, str(first.status), second.attempt, str(second.status)) == (2, "completed", 3, "completed")
    for trial in (first, second):
        kept = 1 - trial.config["lr"] / 2
        assert [*trial.epochs] == [1, 2, 3, 4]
        assert [*trial.values] == pytest.approx([kept**n for n in range(1, 5)], rel=1e-5)
