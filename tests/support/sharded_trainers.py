"""Trainers of Hugging Face whose model FSDP spreads over ranks; each rank writes what it saw to FOLDER/RANK.json.

torchrun --nproc_per_node 2 sharded_trainers.py PROGRAM FOLDER [cuda]
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import fsdp_on_cpu  # noqa: F401
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from parts_of_ranks import dies_while_it_saves, held, whole
from paused_studies import pausing_study
from transformers import Trainer, TrainingArguments
from transformers_nets import rows

from haltune import Minimize
from haltune.callbacks.transformers import HaltuneCallback
from haltune.errors import HaltuneWarning

CUDA, RANKS = "cuda" in sys.argv, int(os.environ["WORLD_SIZE"])
if CUDA or RANKS == 1 or "deepspeed" in sys.argv:  # otherwise Accelerate takes it for a single process
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
WAYS = {"fsdp2": (2, "SHARDED_STATE_DICT"), "whole": (2, "FULL_STATE_DICT")}
if RANKS > 1:  # FSDP of the first version does not shard on one rank
    WAYS["fsdp1"] = (1, "SHARDED_STATE_DICT")
    if CUDA:  # on the CPU, it frees what it is to collect
        WAYS["whole1"] = (1, "FULL_STATE_DICT")


class Net(torch.nn.Module):
    """Layers with dropout, and with a batch norm whose running means differ between ranks."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 4),
            torch.nn.Linear(4, 1),
        )  # fmt: skip

    def forward(self, x, labels):
        out = self.layers(x).squeeze(-1)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


def fsdp(version, kind):
    own = {} if CUDA or version == 2 else {"sync_module_states": False}  # which needs a GPU
    return {"fsdp": True, "fsdp_config": {"version": version, "state_dict_type": kind} | own}


def zero(stage):
    sizes = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
    config = {"zero_optimization": {"stage": int(stage)}, "zero_allow_untested_optimizer": True}
    return {"deepspeed": config | dict.fromkeys(sizes, "auto")}


def train(trial, folder, way, **options):
    """Train; return this rank's part of the weights, and its buffers."""
    AcceleratorState._reset_state()
    torch.manual_seed(0)
    net = Net()
    arguments = TrainingArguments(
        output_dir=str(folder / f"run-{trial.id}"), num_train_epochs=4, use_cpu=not CUDA,
        learning_rate=trial.config["lr"], **(zero(way) if way not in WAYS else fsdp(*WAYS[way])),
        report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no", seed=3,
        **{"eval_strategy": "epoch", "per_device_train_batch_size": 2} | options,
    )  # fmt: skip
    trainer = Trainer(
        net, arguments, train_dataset=rows(16), eval_dataset=rows(8, 1), callbacks=[HaltuneCallback(trial)]
    )
    assert trainer.is_fsdp_enabled == (way in WAYS) != trainer.is_deepspeed_enabled
    trainer.train(resume_from_checkpoint=trial.checkpoint)
    found = [*trainer.model.parameters(), *trainer.model.buffers()]
    return [value for tensor in found for value in held(tensor)]


def search(folder, way, name, at, metric="eval_loss", unit="epoch", epochs=4, **options):
    study = pausing_study(
        folder / f"{way} {name}.db", at=at, epochs=epochs, metric=metric, keep=1, verbose=0, unit=unit
    )
    for trial in study:
        with trial:
            weights = train(trial, folder / f"{way} {name}", way, **options)
    (record,) = study.trials
    best = [study.best.checkpoint, study.best.value, study.best.epoch]
    return {"attempts": record.attempt, "values": record.values.tolist(), "weights": weights, "best": best}


def fits(folder):
    """Every way of spreading the model, trained straight and with two pauses, by epochs and within them."""
    told = {}
    for way in WAYS:
        steps = {"unit": "step", "epochs": 16, "eval_strategy": "steps", "eval_steps": 3}
        told[way] = {
            "straight": search(folder, way, "straight", ()),
            "paused": search(folder, way, "paused", (1, 3)),
            "best": search(folder, way, "best", (2,), Minimize("eval_loss", of="best")),
            "steps straight": search(folder, way, "steps straight", (), **steps),
            "steps paused": search(folder, way, "steps paused", (3, 9), **steps),
        }
    return told


def killed(folder):
    """A rank is killed while it writes its part of the second pause; the search is started again after it."""
    dies_while_it_saves(folder, 3)  # a pause saves the model and the optimizer
    return search(folder, "fsdp2", "killed", (1, 3))


def straight(folder):
    """The same without pauses."""
    return search(folder, "fsdp2", "straight", ())


def another(folder):
    """One attempt, which the next one may continue on another number of ranks, with as large a batch on all."""
    step, first = Trainer.training_step, {}

    def training_step(trainer, model, *given):
        first.setdefault("weights", whole(model))
        return step(trainer, model, *given)

    Trainer.training_step = training_step
    study = pausing_study(folder / "another.db", at=(2,), metric="eval_loss", verbose=0)
    with warnings.catch_warnings(record=True) as caught, study.ask() as trial:
        warnings.simplefilter("always", HaltuneWarning)
        train(trial, folder, "fsdp2", per_device_train_batch_size=4 // RANKS)
    (record,) = study.trials
    said = [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]
    return {"first": first["weights"], "epochs": record.epochs.tolist(), "checkpoint": record.checkpoint, "said": said}


def deepspeed(folder):
    """ZeRO 1, 2 and 3, trained straight and with two pauses."""
    steps = {"unit": "step", "epochs": 16, "eval_strategy": "steps", "eval_steps": 3}
    told = {}
    for stage in ("1", "2", "3"):
        told[stage] = {
            "straight": search(folder, stage, "straight", ()),
            "paused": search(folder, stage, "paused", (1, 3)),
            "best": search(folder, stage, "best", (2,), Minimize("eval_loss", of="best")),
            "steps straight": search(folder, stage, "steps straight", (), **steps),
            "steps paused": search(folder, stage, "steps paused", (3, 9), **steps),
        }
    return told


PROGRAMS = {"another": another, "deepspeed": deepspeed, "fits": fits, "killed": killed, "straight": straight}

if __name__ == "__main__":
    folder = Path(sys.argv[2])
    told = PROGRAMS[sys.argv[1]](folder)
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(told))
    dist.destroy_process_group()
