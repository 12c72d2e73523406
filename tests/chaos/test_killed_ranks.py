"""Ranks of torchrun that are killed: torchrun starts all again, and the trial resumes from its last checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from haltune.study.view import read_study

PROGRAM = """
import os, signal, sys
import torch, torch.distributed as dist
from haltune import Float, Study
from haltune.policies import RandomSearch

dist.init_process_group("gloo")
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
study = Study({"lr": Float(0.01, 0.1)}, "val_loss", "search.db", max_epochs=4, budget="2 trials",
              policy=RandomSearch(), seed=0)
for trial in study:
    with trial:
        weights = torch.load(trial.checkpoint) if trial.checkpoint else torch.ones(1)
        for epoch in trial.epochs():
            weights = weights - trial.config["lr"] / 2 * weights
            dist.all_reduce(weights)
            weights /= 2
            if first and trial.id == 1 and epoch == 3 and dist.get_rank() == int(sys.argv[1]):
                os.kill(os.getpid(), signal.SIGKILL)
            trial.report(weights.item())
            trial.save(lambda path: torch.save(weights, path))
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_ends_no_search_and_no_epoch_counts_twice(killed: int, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "search.py").write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, "--max-restarts", "2", "search.py", str(killed)], cwd=tmp_path, check=True, timeout=300)
    study = read_study(str(tmp_path / "search.db"))
    assert [(str(t.status), t.attempt) for t in study.trials] == [("completed", 1), ("completed", 2)]
    for trial in study.trials:
        assert [*trial.epochs] == [1, 2, 3, 4]
        kept = 1 - trial.config["lr"] / 2
        assert [*trial.values] == pytest.approx([kept**n for n in range(1, 5)], rel=1e-5)
    assert study.spent.epochs == 8
