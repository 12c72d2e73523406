"""A distributed training started by a launcher: all its ranks inherit the same trial."""

import importlib.util
import json
import os
import sys

import pytest
from trainings import a_study

from haltune.launch import run_script
from haltune.log.events import Reported, Status
from haltune.policies import Hyperband

RANKS = """
import json, os
from pathlib import Path
import torch
import torch.distributed as dist
import haltune

dist.init_process_group("gloo")
rank = dist.get_rank()
trial = haltune.current_trial({"lr": 0.1}, max_epochs=4)
weight = torch.tensor([float(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0.0])
heard = []
with trial:
    for epoch in trial.epochs():
        weight += 1.0
        dist.all_reduce(weight)
        weight /= 2.0
        verdict = trial.report(trial.config["lr"] * epoch / 8 * (1 + rank), seconds=1.0)
        heard.append([epoch, str(verdict.action), verdict.reason])
        trial.save(lambda path: path.write_text(str(weight.item())))
        if verdict.stops:
            break
assert weight.item() == trial.epoch, (weight, trial.epoch)
told = {"trial": trial.id, "attempt": trial.attempt, "config": trial.config, "heard": heard}
Path(f"rank-{rank}-of-{trial.id}-{trial.attempt}.json").write_text(json.dumps(told))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install 'haltune[dev]'")
def test_ranks_of_torchrun_train_the_same_trial_and_hear_the_same_verdicts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "ranks.py").write_text(RANKS)
    study = a_study(tmp_path, 4, Hyperband(eta=2, rounds=4))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ranks.py"]
    assert run_script(study, torchrun, workers=1, progress=False, gpus=None).over
    assert not study.history.with_status(Status.FAILED, Status.RUNNING, Status.INTERRUPTED), study.trials
    told = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("rank-*.json")}
    attempts = [(t.id, a) for t in study.trials for a in range(1, t.attempt + 1)]
    assert len(attempts) > len(study.trials)
    for trial, attempt in attempts:
        assert told[f"rank-0-of-{trial}-{attempt}.json"] == told[f"rank-1-of-{trial}-{attempt}.json"]
    reported = [(e.trial, e.epoch) for e in study.events() if isinstance(e, Reported)]
    assert len(reported) == len(set(reported))
    for t in study.trials:
        assert list(t.values) == [t.config["lr"] * e / 8 for e in t.epochs]  # rank 0's
