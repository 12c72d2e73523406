"""Two ranks that save together, also in threads behind the training, or that wait for each other where one saves alone.

Each prints what it came to.

behind_of_ranks.py FOLDER; the test starts the ranks.
"""

from __future__ import annotations

import json
import sys
import threading
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from paused_studies import pausing_study

from haltune import Minimize
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning


def train(study, values, save, begins=lambda epoch: None, together=True, background=True):
    """Train on all ranks, which meet in each epoch, as in a step; return the warnings."""
    with warnings.catch_warnings(record=True) as caught, study.ask() as trial:
        warnings.simplefilter("always", HaltuneWarning)
        options = {"together": together, "background": together and background}
        for epoch in (loop := TrainingLoop(trial, save=save, suffix=".parts", **options)):
            begins(epoch)
            dist.all_reduce(torch.ones(3))
            loop.report(values[epoch - 1])
    return [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]


def one_writes_later(study):
    """The second rank writes its part of the first, best epoch when the third one has begun."""
    third, in_time = threading.Event(), []

    def save(path):
        def write():
            in_time.append(not dist.get_rank() or third.wait(20))
            (path / f"{dist.get_rank()}.txt").write_text("a part")

        return write

    said = train(study, [1.0, 2.0, 3.0, 4.0], save, lambda epoch: third.set() if epoch == 3 else None)
    return [in_time, said]


def one_has_no_memory(study):
    """The second rank cannot copy its part of the first epoch; later ones are better."""
    copied = []

    def save(path):
        copied.append(path)
        if dist.get_rank() and len(copied) == 1:
            raise MemoryError("no memory for a copy")
        return lambda: (path / f"{dist.get_rank()}.txt").write_text("a part")

    return [[], train(study, [4.0, 3.0, 2.0, 1.0], save)]


def one_has_no_folder(study):
    """The second rank cannot make the folder of the first epoch, and the other one would wait for it in save."""
    made = Path.mkdir

    def refused(self, *given, **named):
        if dist.get_rank() and self.suffix == ".parts":
            Path.mkdir = made
            raise OSError(28, "No space left on device")
        made(self, *given, **named)

    def save(path):
        dist.barrier()
        (path / f"{dist.get_rank()}.txt").write_text("a part")

    Path.mkdir = refused
    return [[], train(study, [4.0, 3.0, 2.0, 1.0], save, background=False)]


def one_does_not_come(study):
    """The first rank fails in the first epoch. The other one waits for it, as DeepSpeed does, in a group of its own."""
    saved, group = [], dist.new_group()

    def save(path):
        saved.append(path)
        if dist.get_rank() == 0 and len(saved) == 1:
            raise OSError(28, "No space left on device")
        (path / f"{dist.get_rank()}.txt").write_text("a part")
        try:
            dist.barrier(group)
        except OSError as error:  # as a library may do
            raise RuntimeError("the model is not saved") from error

    return [[], train(study, [4.0, 3.0, 2.0, 1.0], save, background=False)]


def one_waits_alone(study):
    """The first rank alone saves, and its function waits for the other one."""

    def save(path):
        path.write_text("a model")
        dist.barrier()

    return [[], train(study, [4.0, 3.0, 2.0, 1.0], save, together=False)]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    best = Minimize("val_loss", of="best")
    for program in (one_writes_later, one_has_no_memory, one_has_no_folder, one_does_not_come, one_waits_alone):
        study = pausing_study(Path(sys.argv[1], f"{program.__name__}.db"), at=(), metric=best, verbose=0, keep=1)
        told = program(study)
        kept = study.best.checkpoint
        files = [] if kept is None else sorted(path.name for path in Path(kept).iterdir())
        print(json.dumps([*told, study.best.epoch, files]), flush=True)
    dist.destroy_process_group()
