"""What a rank holds of a tensor that is spread over ranks, what all hold together, and a rank that is killed."""

import os
import signal

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from haltune.callbacks.tensors import local


def held(tensor):
    """Return the elements, without those by which ZeRO 3 fills the last part."""
    part = local(tensor).flatten().tolist()
    return part[: tensor.ds_numel - len(part) * dist.get_rank()] if hasattr(tensor, "ds_numel") else part


def whole(module):
    """Return the elements of a module's weights by name, with those of the other ranks. Every rank calls it."""
    weights = {n: w.full_tensor() if hasattr(w, "full_tensor") else w for n, w in module.named_parameters()}
    return {name: weight.flatten().tolist() for name, weight in weights.items()}


def dies_while_it_saves(folder, nth):
    """Let the rank of KILLED be killed when it writes its part for the nth time from now on, once in a folder."""
    saves, saved = dcp.save, []

    def save(*args, **named):
        saved.append(args)
        dies = len(saved) == nth and dist.get_rank() == int(os.environ["KILLED"])
        if dies and not (mark := folder / "killed").exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return saves(*args, **named)

    dcp.save = save
