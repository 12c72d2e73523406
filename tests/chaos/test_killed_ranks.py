"""Ranks and nodes of torchrun that are killed: it starts all again, and the trial resumes from its last checkpoint."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from two_ranks import SUPPORT, run_ranks

from haltune.study.view import read_study

# else ranks that torchrun starts again may read the addresses of the start before (pytorch/pytorch#135712)
APART = {
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
}

PROGRAM = """
import os, signal, sys
import torch, torch.distributed as dist
from haltune import Float, Study
from haltune.callbacks.sharded import ShardedLoop
from haltune.policies import RandomSearch
from paused_studies import PausesAt
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def plain(trial):
    weights = torch.load(trial.checkpoint) if trial.checkpoint else torch.ones(1)
    for epoch in trial.epochs():
        weights = weights - trial.config["lr"] / 2 * weights
        dist.all_reduce(weights)
        weights /= dist.get_world_size()
        goes_away(trial, epoch)
        trial.report(weights.item())
        trial.save(lambda path: torch.save(weights, path))


def sharded(trial):
    net = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.ones_(net.weight)
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    sgd = torch.optim.SGD(net.parameters(), trial.config["lr"])
    for epoch in (loop := ShardedLoop(trial, net, sgd)):
        net(torch.ones(1, 1)).pow(2).sum().div(4).backward()
        sgd.step()
        sgd.zero_grad()
        goes_away(trial, epoch)
        loop.report(net(torch.ones(1, 1)).mean().item())


def goes_away(trial, epoch):
    if first and trial.id == 1 and epoch == 3 and dist.get_rank() == int(sys.argv[1]):
        open("gone", "w").close()
        if "node" in sys.argv:  # with its agent
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


dist.init_process_group("gloo")
first = not os.path.exists("gone")
train, policy = (sharded, PausesAt(at=(2,))) if "sharded" in sys.argv else (plain, RandomSearch())
study = Study({"lr": Float(0.01, 0.1)}, "val_loss", "search.db", max_epochs=4, budget="2 trials",
              policy=policy, seed=0)
for trial in study:
    with trial:
        train(trial)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_ends_no_search_and_no_epoch_counts_twice(killed: int, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "search.py").write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "--max-restarts", "2", "search.py", str(killed)]
    subprocess.run(command, cwd=tmp_path, env=os.environ | APART, check=True, timeout=300)
    check(tmp_path)


def check(folder: Path, pauses: int = 0) -> None:
    """Check that the second trial was interrupted once, and that each epoch counts once with the right value."""
    study = read_study(str(folder / "search.db"))
    assert [(str(t.status), t.attempt - pauses) for t in study.trials] == [("completed", 1), ("completed", 2)]
    for trial in study.trials:
        assert [*trial.epochs] == [1, 2, 3, 4]
        kept = 1 - trial.config["lr"] / 2
        assert [*trial.values] == pytest.approx([kept**n for n in range(1, 5)], rel=1e-5)
    assert study.spent.epochs == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "then", "loop"),
    [
        ("2", "replaced", "plain"),
        ("2", "started again", "plain"),
        ("1:2", "replaced", "plain"),
        ("1:2", "alone", "plain"),
        ("1:2", "alone", "sharded"),  # over one rank after two
    ],
)
def test_a_node_that_goes_away_pauses_the_trial(nodes: str, then: str, loop: str, tmp_path: Path) -> None:
    """Two agents are the nodes, of which one goes away.

    A new node takes its place, or all are started again, or the other one trains on alone.
    """
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "search.py").write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    torchrun = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts",
        "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "search",
    ]  # fmt: skip
    environment = os.environ | APART | {"HALTUNE_RUN_FOLDER": str(tmp_path / "run")}

    def join(hosts: str) -> subprocess.Popen[bytes]:
        conf = ["--rdzv-conf", f"is_host={hosts},last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"]
        words = [*torchrun, *conf, "search.py", "1", "node", loop]
        return subprocess.Popen(words, cwd=tmp_path, env=environment, start_new_session=True)

    agents = [join("true"), join("false")]
    try:
        assert agents[1].wait(200) == -signal.SIGKILL
        if then == "started again":  # as SLURM does
            agents[0].terminate()
            assert agents[0].wait(200) != 0
            agents = [join("true"), join("false")]
        elif then == "replaced":
            agents[1] = join("false")
        assert [agent.wait(200) for agent in agents if agent.returncode is None] == [0] * (1 if then == "alone" else 2)
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
    check(tmp_path, pauses=int(loop == "sharded"))


FAILING = """
import os, sys
import torch, torch.distributed as dist
from haltune import Float, Storage, Study
from haltune.policies import RandomSearch

failing = {"both": (0, 1), "first": (0,), "second": (1,)}[sys.argv[1]]  # ranks
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(os.environ["RANK"]), world_size=2)
store = Storage("search.db", max_retries=int(sys.argv[3]))
study = Study({"lr": Float(0.01, 0.1)}, "val_loss", store, max_epochs=2, budget="3 trials",
              policy=RandomSearch(), seed=0, verbose=0)
for trial in study:
    with trial:
        weights = torch.ones(1)
        for epoch in trial.epochs():
            if trial.id == 1 and dist.get_rank() in failing:
                raise ValueError("diverged")
            dist.all_reduce(weights)
            trial.report(weights.item())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failing", "retries", "status"),
    [("both", 2, "failed"), ("first", 2, "failed"), ("second", 2, "interrupted"), ("second", 0, "failed")],
)
def test_a_failure_of_one_rank_alone_ends_the_search_before_its_next_trial(
    failing: str, retries: int, status: str, tmp_path: Path
) -> None:
    """The other rank waits in a collective of the failed trial, which would meet one of the next trial.

    To rank 0, a rank that has failed alone is one that was lost: it is offered again up to max_retries times.
    """
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "search.py").write_text(FAILING)
    both = failing == "both"
    command = ["search.py", failing, str(tmp_path / "group"), str(retries)]
    run_ranks(command, tmp_path, (0, 0) if both else (1, 1), printed=False, HALTUNE_RANK_TIMEOUT="5")
    found = [(str(t.status), [*t.values]) for t in read_study(str(tmp_path / "search.db")).trials]
    completed = ("completed", [2.0, 4.0])
    assert found == [completed, (status, []), *[completed] * both]
