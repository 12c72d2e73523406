"""The recipes of docs/howto/preemption.md, with real signals: a requeued SLURM job, and torchrun whose rank dies."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from documents import ROOT, blocks

from haltune import load_study
from haltune.log.events import Reported, Status

PAGE = "docs/howto/preemption.md"
SCRIPT = ROOT / "examples" / "slurm_requeue.sh"
IN_AN_EPOCH = """
        if (trial.id, epoch) == (1, 2) and not os.path.exists("cut"):
            open("cut", "w").close()
            with open("training", "w") as pipe:
                pipe.write(str(os.getpid()))
            open("gate").read()
"""
SRUN = """#!/bin/bash
# what SLURM does before the time limit, in the second epoch of a trial, once
[ -e cut ] && exec "$@"
"$@" &
child=$!
kill -s "$NOTICE" "$(cat training)"
echo > gate
wait "$child"
"""


def given(folder, name, text):
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize(("notice", "code"), [("USR1", 138), ("TERM", 143)])
def test_a_slurm_job_saves_at_its_notice_and_is_requeued_only_after_sigusr1(notice, code, tmp_path):
    program, _ = blocks(PAGE)
    line = "        loop.report("
    (tmp_path / "search.py").write_text("import os\n" + program.text.replace(line, IN_AN_EPOCH + line))
    bin = tmp_path / "bin"
    bin.mkdir()
    given(bin, "srun", SRUN)
    given(bin, "scontrol", '#!/bin/bash\necho "$@" >> requeued\n')
    given(bin, "python", f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    for pipe in ("training", "gate"):
        os.mkfifo(tmp_path / pipe)
    job = {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "77", "NOTICE": notice}

    def run():
        return subprocess.run(
            ["bash", SCRIPT], cwd=tmp_path, env={**os.environ, **job}, capture_output=True, text=True, timeout=120
        )

    first = run()
    assert first.returncode == code, first.stderr
    assert f"SIG{notice} received: training ends after the next save" in first.stderr
    requeued = tmp_path / "requeued"
    assert (requeued.read_text() if requeued.exists() else None) == ("requeue 77\n" if notice == "USR1" else None)
    [trial] = [t for t in load_study(tmp_path / "preempted.db").trials if t.id == 1]
    assert (trial.status, trial.epoch, trial.checkpoint_epoch) == (Status.INTERRUPTED, 2, 2)

    second = run()
    assert second.returncode == 0, second.stderr
    assert "Trial 1 resumed after epoch 2" in second.stderr
    check_nothing_was_lost(tmp_path / "preempted.db")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_restarts_after_a_rank_was_killed_and_the_trial_continues(rank, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert torch.distributed.is_available()
    _, program = blocks(PAGE)
    dies = f"""import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
def together():
    if dist.get_rank() == {rank} and not os.path.exists("killed") and os.path.exists("third"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))
"""
    line = "        weight += 1.0  # train, validate, all_reduce\n"
    inside = '        if weight == 2.0:\n            open("third", "w").close()\n        together()\n'
    assert line in program.text
    (tmp_path / "search.py").write_text(dies + program.text.replace(line, inside + line))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "--max-restarts", "3", "search.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    study = check_nothing_was_lost(tmp_path / "elastic.db")
    assert max(t.attempt for t in study.trials) > 1


def check_nothing_was_lost(path: Path):
    """The search is over, no trial has failed, and no epoch was reported twice."""
    study = load_study(path)
    assert study.outcome.over
    assert not study.history.with_status(Status.FAILED, Status.RUNNING, Status.INTERRUPTED)
    reported = Counter((e.trial, e.epoch) for e in study.events() if isinstance(e, Reported))
    assert set(reported.values()) == {1}
    return study
