"""A network whose parameters FSDP spreads over two ranks, each of which saves its part; it prints the results.

torchrun --nproc_per_node 2 sharded.py FOLDER
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from paused_studies import pausing_study
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning


def fully_sharded(mesh):
    """FSDP2."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    return net


def wrapped(mesh):
    """FSDP1."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    return FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True, device_mesh=mesh)


def own_files(net, optimizer):
    """Each rank its own file."""
    name = f"{dist.get_rank()}.pt"

    def save(path):
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, path / name)

    def load(path):
        state = torch.load(Path(path, name), weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])

    return save, load


def one_checkpoint(net, optimizer):
    """PyTorch's distributed checkpoint."""

    def state():
        return dict(zip(("net", "optimizer"), get_state_dict(net, optimizer), strict=True))

    def load(path):
        loaded = state()
        dcp.load(loaded, checkpoint_id=path)
        set_state_dict(net, optimizer, model_state_dict=loaded["net"], optim_state_dict=loaded["optimizer"])

    return lambda path: dcp.save(state(), checkpoint_id=path), load


def fails_on_one(net, optimizer):
    """The second rank cannot write."""

    def save(path):
        if dist.get_rank():
            raise OSError(28, "No space left on device")

    return save, None


def train(trial, mesh, shard, files):
    """This rank's part of the weights after the last epoch, from a seed of the attempt's own."""
    torch.manual_seed(trial.attempt)
    net = shard(mesh)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    save, load = files(net, optimizer)
    if trial.checkpoint:
        load(trial.checkpoint)
    loop = TrainingLoop(trial, save=save, suffix=".sharded", together=True)
    for _ in loop:
        for _ in range(3):
            x = torch.randn(4, 3)
            loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.all_reduce(loss := loss.detach())
        loop.report(loss.item())
    parts = [part.to_local() if hasattr(part, "to_local") else part for part in net.parameters()]
    return [value for part in parts for value in part.detach().flatten().tolist()]


WAYS = {
    "fsdp2, own files": (fully_sharded, own_files),
    "fsdp2, one checkpoint": (fully_sharded, one_checkpoint),
    "fsdp1, one checkpoint": (wrapped, one_checkpoint),
}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    mesh, told = init_device_mesh("cpu", (dist.get_world_size(),)), {}
    for way, (shard, files) in WAYS.items():
        for name, at in (("straight", ()), ("paused", (2, 3))):
            store = Path(sys.argv[1]) / f"{way} {name}.db"
            study = pausing_study(store, at=at, epochs=5, verbose=0, keep=1)
            for trial in study:
                with trial:
                    weights = train(trial, mesh, shard, files)
            (record,) = study.trials
            told[f"{way} {name}"] = [record.attempt, record.epochs.tolist(), record.values.tolist(), weights]
        told[f"{way} kept"] = sorted(path.name for path in Path(study.best.checkpoint).iterdir())
    study = pausing_study(Path(sys.argv[1], "full.db"), at=(2,), epochs=5, verbose=0)
    with study.ask() as trial, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HaltuneWarning)
        train(trial, mesh, fully_sharded, fails_on_one)
    said = [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]
    told["full"] = [study.trials[0].attempt, study.trials[0].epochs.tolist(), said]
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()
