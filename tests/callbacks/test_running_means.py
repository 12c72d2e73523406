"""Ranks under DDP with running means of their own: resumed exactly, and it is said whose the kept model has."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from two_ranks import SUPPORT

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SUPPORT / "running_means.py")]


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "needs"), [("trainer", "transformers"), ("lightning", "lightning")])
def test_ranks_with_running_means_of_their_own_resume_exactly_and_a_warning_says_whose_are_kept(loop, needs, tmp_path):
    pytest.importorskip(needs)
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), "USE_LIBUV": "0",
    }  # fmt: skip
    environment.pop("HALTUNE_RUN", None)
    command = [sys.executable, *TORCHRUN, loop, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "0.json").read_text())
    assert found["straight"]["values"] == found["paused"]["values"]
    assert [found["straight"]["attempts"], found["paused"]["attempts"]] == [1, 2]
    for ran in found.values():
        (said,) = ran["said"]
        assert "different values of" in said
        assert "has those of rank 0, so its value can differ from study.best.value" in said
