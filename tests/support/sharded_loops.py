"""Programs whose model is spread over ranks, with ShardedLoop. Each writes what its rank saw to FOLDER/RANK.json.

torchrun --nproc_per_node 2 sharded_loops.py PROGRAM FOLDER [DEVICE]; the tests start the ranks without torchrun.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import warnings
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate.state import AcceleratorState
from parts_of_ranks import dies_while_it_saves, held, whole
from paused_studies import pausing_study
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from haltune import Minimize
from haltune.callbacks.accelerate import AcceleratedLoop
from haltune.callbacks.sharded import ShardedLoop
from haltune.errors import HaltuneWarning

DEVICE = sys.argv[3] if len(sys.argv) > 3 else "cpu"
ONE = "another under Accelerate" in sys.argv and os.environ["WORLD_SIZE"] == "1"
if DEVICE == "cuda" or "deepspeed" in sys.argv or ONE:  # otherwise Accelerate takes it for a single process
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)).to(DEVICE)


def fsdp2(mesh):
    net = layers()
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    return net


def fsdp1(mesh, use_orig_params=True):
    device = torch.device(DEVICE, torch.cuda.current_device()) if DEVICE == "cuda" else torch.device("cpu")
    return FullyShardedDataParallel(layers(), device_id=device, use_orig_params=use_orig_params, device_mesh=mesh)


def tensors(mesh):
    return parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def plain(mesh):
    return layers()


WAYS = {
    "fsdp2": fsdp2, "fsdp1": fsdp1, "flat": partial(fsdp1, use_orig_params=False), "tensors": tensors, "plain": plain,
}  # fmt: skip
RUNS = {"straight": (), "paused": (2, 3)}
X = torch.linspace(-1, 1, 24).reshape(8, 3)


def error(net):
    """The mean over the ranks of the error without dropout."""
    net.eval()
    x = X.to(DEVICE)
    with torch.no_grad():
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    net.train()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def begin(net, lr, freezes=False):
    optimizer = torch.optim.AdamW(net.parameters(), lr)
    also = {"schedule": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)}
    if freezes:
        for parameter in list(net.parameters())[2:]:
            parameter.requires_grad_(False)
    return optimizer, also


def step(net, optimizer, shared=False, updates=True):
    # ranks with tensor parallelism read the same batch
    x = torch.randn(4, 3) if not shared else X[torch.randperm(8, generator=torch.Generator().manual_seed(1))[:4]]
    x = x.to(DEVICE)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    if updates:  # otherwise the gradients wait
        optimizer.step()
        optimizer.zero_grad()


def train(trial, mesh, way, freezes=False, background=False):
    """Train; return this rank's part of the weights. background: each epoch is the best so far."""
    net = WAYS[way](mesh)
    torch.manual_seed(trial.attempt * 7 + (0 if way == "tensors" else dist.get_rank()))
    optimizer, also = begin(net, trial.config["lr"], freezes)
    loop = ShardedLoop(trial, net, optimizer, also=also, background=background)
    for epoch in loop:
        if freezes and epoch == 4:
            for n, parameter in enumerate(net.parameters()):
                parameter.requires_grad_(n >= 2)
        for batch in range(3 * epoch, 3 * epoch + 3):
            step(net, optimizer, way == "tensors", updates=batch % 2 == 0)
        also["schedule"].step()
        loop.report(1.0 / epoch if background else error(net))
    return [value for part in net.parameters() for value in held(part)]


def straight_and_paused(mesh, folder):
    """Every way of spreading a model, trained straight and with two pauses."""
    told = {}
    one = dist.get_world_size() == 1  # on which FSDP of the first version does not shard, and has no sharded state
    for way in [way for way in WAYS if not one or way not in ("fsdp1", "flat")]:
        for name, at in RUNS.items():
            study = pausing_study(folder / f"{way} {name}.db", at=at, epochs=5, verbose=0, keep=1)
            for trial in study:
                with trial:
                    weights = train(trial, mesh, way, freezes=way in ("tensors", "plain"))
            (record,) = study.trials
            told[f"{way} {name}"] = [record.attempt, record.epochs.tolist(), record.values.tolist(), weights]
        told[f"{way} kept"] = [study.best.checkpoint, study.best.value]
    return told


def another_number(mesh, folder):
    """One attempt, which the next one may continue on another number of ranks: what it starts and ends with."""
    study, told = pausing_study(folder / "another.db", at=(2,), epochs=4, verbose=0, keep=1), {}
    with warnings.catch_warnings(record=True) as caught, study.ask() as trial:
        warnings.simplefilter("always", HaltuneWarning)
        net = fsdp2(mesh)
        optimizer, also = begin(net, trial.config["lr"])

        def state():
            means = [optimizer.state[p]["exp_avg"].full_tensor() for p in net.parameters() if p in optimizer.state]
            means = [mean.flatten().tolist() for mean in means]
            return [whole(net), means, optimizer.param_groups[0]["lr"], also["schedule"].last_epoch]

        for epoch in (loop := ShardedLoop(trial, net, optimizer, also=also)):
            told.setdefault("first", [epoch, state()])
            step(net, optimizer)
            also["schedule"].step()
            loop.report(error(net))
        told["last"] = state()
    return told | {"said": [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]}


def another_under_accelerate(mesh, folder):
    """The same by AcceleratedLoop under FSDP2, where the schedule steps once for each rank."""
    from accelerate import Accelerator

    study, told = pausing_study(folder / "another.db", at=(2,), epochs=4, verbose=0, keep=1), {}
    with warnings.catch_warnings(record=True) as caught, study.ask() as trial:
        warnings.simplefilter("always", HaltuneWarning)
        accelerator, net = Accelerator(**fsdp(2, "SHARDED_STATE_DICT")), layers()
        assert accelerator.distributed_type == "FSDP"
        adam = torch.optim.AdamW(net.parameters(), trial.config["lr"])
        schedule = torch.optim.lr_scheduler.StepLR(adam, 3, 0.5)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(X), 8 // dist.get_world_size(), shuffle=True
        )
        net, adam, schedule, loader = accelerator.prepare(net, adam, schedule, loader)

        def state():
            means = [adam.state[p]["exp_avg"].full_tensor() for p in net.parameters() if p in adam.state]
            return [whole(net), [mean.flatten().tolist() for mean in means], schedule.state_dict()["last_epoch"]]

        for epoch in (loop := AcceleratedLoop(trial, accelerator)):
            told.setdefault("first", [epoch, state()])
            for (x,) in loader:
                accelerator.backward((net(x) - x.sum(1, keepdim=True)).pow(2).mean())
                adam.step()
                schedule.step()
                adam.zero_grad()
            loop.report(error(net))
        told["last"] = state()
    return told | {"said": [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]}


def killed(mesh, folder, background=False):
    """A rank is killed while it writes its part of the second pause; the search is started again after it.

    background: while it writes the model of the third epoch behind the training, after one pause.
    """
    at, goal = ((2,), Minimize("val_loss", of="best")) if background else ((2, 3), "val_loss")
    study = pausing_study(folder / "killed.db", at=at, epochs=4, metric=goal, verbose=0, keep=int(background))
    for trial in study:
        with trial:
            if trial.attempt == 2:
                dies_while_it_saves(folder, 1)
            weights = train(trial, mesh, "fsdp2", background=background)
    return [weights, straight(mesh, folder)]


def killed_under_accelerate(mesh, folder):
    """A rank is killed while it writes its part of the second pause of AcceleratedLoop, which saves two at each."""
    dies_while_it_saves(folder, 3)
    runs = {"killed": (2, 3), "straight": ()}
    told = accelerated_by(partial(fsdp, 2, "SHARDED_STATE_DICT"), folder, "2", runs=runs)
    return [told["2 killed"][-1], told["2 straight"][-1]]


def full(mesh, folder):
    """The disk of the second rank is full at the second pause: its files end early. What the ranks are told, too."""
    saves, saved = dcp.save, []

    def save(*args, **named):
        saved.append(args)
        if len(saved) < 2 or dist.get_rank() == 0:
            return saves(*args, **named)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
        try:
            return saves(*args, **named)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    dcp.save = save
    study = pausing_study(folder / "full.db", at=(1, 3), epochs=4, verbose=0, keep=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HaltuneWarning)
        for trial in study:
            with trial:
                weights = train(trial, mesh, "fsdp2")
    told = [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]
    return [study.trials[0].attempt, told, weights]


def straight(mesh, folder):
    """The same without pauses."""
    with pausing_study(folder / "straight.db", at=(), epochs=4, verbose=0, keep=0).ask() as trial:
        return train(trial, mesh, "fsdp2")


def fsdp(version, kind):
    """Return the arguments of an Accelerator that spreads models by FSDP."""
    import fsdp_on_cpu  # noqa: F401
    from accelerate.utils import FullyShardedDataParallelPlugin

    sharding = FullyShardedDataParallelPlugin(fsdp_version=version, state_dict_type=kind)
    return {"cpu": DEVICE == "cpu", "fsdp_plugin": sharding}


def accelerated(mesh, folder):
    """AcceleratedLoop under both versions of FSDP, with both kinds of checkpoint."""
    told = {}
    ways = [(1, "SHARDED_STATE_DICT"), (2, "SHARDED_STATE_DICT"), (2, "FULL_STATE_DICT")]
    if DEVICE == "cuda":  # on the CPU, FSDP of the first version frees what it is to collect
        ways.append((1, "FULL_STATE_DICT"))
    for version, kind in ways:
        plugin = partial(fsdp, version, kind)
        told |= accelerated_by(plugin, folder, f"{version} {kind}", model_first=version == 1)
        late = accelerated_by(plugin, folder, f"{version} {kind} late", model_first=version == 1, starts=4)
        told |= {name: value for name, value in late.items() if not name.endswith("kept")}
    return told


def deepspeed(mesh, folder):
    """AcceleratedLoop under ZeRO 1, 2 and 3."""
    from accelerate.utils import DeepSpeedPlugin

    told = {}
    for stage in (1, 2, 3):
        config = {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
        sizes = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}

        def plugin(config=config | sizes):
            return {"deepspeed_plugin": DeepSpeedPlugin(config)}

        told |= accelerated_by(plugin, folder, f"ZeRO {stage}")
    return told


def accelerated_by(plugin, folder, way, model_first=False, starts=1, runs=RUNS):
    """A training by AcceleratedLoop, straight and with two pauses.

    model_first: it is prepared before its optimizer. starts: the epoch in which its optimizer makes the first step.
    runs: the epochs at which it pauses, by name.
    """
    from accelerate import Accelerator

    told = {}
    for name, at in runs.items():
        study = pausing_study(folder / f"{way} {name}.db", at=at, epochs=4, verbose=0, keep=1)
        for trial in study:
            with trial:
                AcceleratorState._reset_state()
                accelerator = Accelerator(**plugin())
                assert accelerator.distributed_type in ("FSDP", "DEEPSPEED")
                torch.manual_seed(trial.attempt * 7 + dist.get_rank())
                net = layers()
                torch.manual_seed(trial.attempt * 7 + dist.get_rank())
                rows = torch.utils.data.TensorDataset(X)
                loader, rate = torch.utils.data.DataLoader(rows, 2, shuffle=True), trial.config["lr"]
                if model_first:  # its parameters are others after it is prepared
                    net = accelerator.prepare(net)
                    adam, loader = accelerator.prepare(torch.optim.AdamW(net.parameters(), rate), loader)
                else:
                    net, adam, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), rate), loader)
                for epoch in (loop := AcceleratedLoop(trial, accelerator)):
                    for (x,) in loader if epoch >= starts else ():
                        accelerator.backward((net(x) - x.sum(1, keepdim=True)).pow(2).mean())
                        adam.step()
                        adam.zero_grad()
                    loop.report(error(net))
                weights = [value for part in net.parameters() for value in held(part)]
        (record,) = study.trials
        told[f"{way} {name}"] = [record.attempt, record.values.tolist(), weights]
    return told | {f"{way} kept": [study.best.checkpoint, study.best.value]}


def behind(mesh, folder):
    """The second rank writes the model of the first, best epoch only when the third one starts."""
    third, saves, in_time = threading.Event(), dcp.save, []

    def save(*args, **named):
        if dist.get_rank() == 1:
            in_time.append(third.wait(30))
        return saves(*args, **named)

    dcp.save = save
    best = Minimize("val_loss", of="best")
    study = pausing_study(folder / "behind.db", at=(), epochs=4, metric=best, verbose=0, keep=1)
    with study.ask() as trial:
        net = fsdp2(mesh)
        optimizer, _ = begin(net, trial.config["lr"])
        for epoch in (loop := ShardedLoop(trial, net, optimizer, background=True)):
            if epoch == 3:
                third.set()
            step(net, optimizer)
            loop.report(error(net) if epoch == 1 else 100.0 + epoch)
    dcp.save = saves
    return [in_time, study.best.epoch, study.best.value, study.best.checkpoint]


PROGRAMS = {
    "behind": behind,
    "accelerated": accelerated,
    "deepspeed": deepspeed,
    "ways": straight_and_paused,
    "another": another_number,
    "another under Accelerate": another_under_accelerate,
    "killed": killed,
    "killed behind": partial(killed, background=True),
    "killed under Accelerate": killed_under_accelerate,
    "full": full,
    "straight": straight,
}

if __name__ == "__main__":
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    if DEVICE == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    mesh, folder = init_device_mesh(DEVICE, (dist.get_world_size(),)), Path(sys.argv[2])
    told = PROGRAMS[sys.argv[1]](mesh, folder)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()
