"""Share of a training's time that saving takes: the model of each best epoch, written at once and behind the training.

    python benchmarks/speed/saving.py [--millions 100] [--epochs 6] [--seconds 20] [--folder PATH]

Every epoch is better than the one before, so each saves its weights: the most that a study with of="best" saves. An
epoch repeats updates of a network with that many parameters for a given time. Share: seconds of the log's checkpoints
by the time of the whole loop. Waited: the same for one file. Disk: the rate at which torch.save and fsync write one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch

from haltune import Float, Minimize, Study
from haltune.callbacks.loop import TrainingLoop, write_later
from haltune.callbacks.sharded import ShardedLoop
from haltune.policies import RandomSearch

LIMIT = 0.1  # share of the time, with saving behind the training
LAYERS = 4


def net(millions: float) -> torch.nn.Sequential:
    """Square layers."""
    width = int((millions * 1e6 / LAYERS) ** 0.5)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)))


def disk(model: torch.nn.Module, folder: Path) -> float:
    """Seconds that one file of the weights takes."""
    began = time.perf_counter()
    with (folder / "once.pt").open("wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began


def train(kind: str, background: bool, options: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """Return the seconds of the whole loop, and those of them for checkpoints."""
    store = folder / f"{kind} {background}.db"
    study = Study(
        {"x": Float(0.0, 1.0)}, Minimize("loss", of="best"), store, max_epochs=options.epochs, seed=0,
        policy=RandomSearch(trials=1), verbose=0,
    )  # fmt: skip
    model = net(options.millions)
    sgd = torch.optim.SGD(model.parameters(), 1e-6)
    batch = torch.randn(2, model[0].in_features)

    def save(path: Path) -> object:
        return write_later(model.state_dict(), path) if background else torch.save(model.state_dict(), path)

    for trial in study:
        with trial:
            if kind == "sharded":
                loop: TrainingLoop = ShardedLoop(trial, model, sgd, background=background)
            else:
                loop = TrainingLoop(trial, save=save, background=background)
            began = time.perf_counter()
            for epoch in loop:
                start = time.perf_counter()
                while time.perf_counter() - start < options.seconds:
                    model(batch).pow(2).mean().backward()
                    sgd.step()
                    sgd.zero_grad()
                loop.report(1 / epoch)
            took = time.perf_counter() - began
    return took, study.spent.checkpoint


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=100.0, help="parameters")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0, help="of an epoch")
    parser.add_argument("--folder", help="on the disk to measure; default: the system's for temporary files")
    options = parser.parse_args()
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        once = disk(net(options.millions), folder)
        size = options.millions * 4e6
        print(f"{options.millions:g} million parameters, {size / 1e6:.0f} MB")
        print(f"disk: {once:.2f} s, {size / once / 1e6:.0f} MB/s")
        print(f"{options.epochs} epochs of {options.seconds:g} s, each the best so far\n")
        print(f"{'loop':14} {'saving':10} {'share':>8} {'waited':>10}")
        for kind in ("plain", "sharded"):
            for background in (False, True):
                took, saving = train(kind, background, options, folder)
                how, share = "behind" if background else "at once", saving / took
                over = "  above the limit" if background and share > LIMIT else ""
                print(f"{kind:14} {how:10} {share:8.1%} {saving / options.epochs:8.2f} s{over}")


if __name__ == "__main__":
    main()
