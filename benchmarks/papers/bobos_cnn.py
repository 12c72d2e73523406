"""Figure 2 of BO-BOS (Dai et al. 2019) at our scale: a convolutional network, best validation error by run time.

    python benchmarks/papers/bobos_cnn.py --data FOLDER [--seeds 3] [--trainings 14] [--methods NAME ...]
        [--keep FILE] [--svg]

Three convolutions, each with a pooling, and one hidden layer, as in the paper, with a thirty-second of its filters
and a sixteenth of its units, on 1,000 digits of 14 x 14 (another 1,000 validate) in place of CIFAR-10 and SVHN. The
six hyperparameters have the paper's ranges but for these. N = 50 epochs; Hyperband has N = 80 and eta = 3, as there.
The paper names no optimiser: here it is Adam, its rate divided by 1 + decay x step.

Methods: random search, Hyperband, GP-UCB, BO-BOS as the paper sets it (K1 = 100 / 0.95^(t-1), K2 = 99, c = 1,
kappa = 2) and BO-BOS as it comes. The folder, or the variable HALTUNE_DATA, holds mnist_10k.npz: `images` uint8
(10000, 28, 28) and `labels` (10000,). A seed takes about two minutes. Torch is needed: pip install torch.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bobos_searches import PAPERS, Experiment, Training

from haltune import Float, Int, Minimize, Problem, Space
from haltune.log.policy import Policy
from haltune.policies import BOBOS, GPUCB, Hyperband, RandomSearch

HORIZON, BAND = 50, 80  # N, of Hyperband alone
TRAIN, HELD_OUT = 1_000, 1_000  # digits
# The paper's curves decay towards error 0 of the scale: it ends near what the network can reach, as in bobos_mnist.py.
BOUNDS = (0.05, 0.9)
SPACE = Space(
    {
        "batch_size": Int(32, 512, log=True),
        "learning_rate": Float(1e-7, 0.1, log=True),
        "decay": Float(1e-7, 1e-3, log=True),
        "l2": Float(1e-7, 1e-3, log=True),
        "filters": Int(4, 8),
        "units": Int(16, 32),
    }
)


def problem(horizon: int) -> Problem:
    """Its error, after so many epochs."""
    return Problem(SPACE, Minimize("validation error", bounds=BOUNDS), horizon)


METHODS: dict[str, tuple[Problem, Policy[Any]]] = {
    "random search": (problem(HORIZON), RandomSearch()),
    "Hyperband": (problem(BAND), Hyperband(eta=3)),
    "GP-UCB": (problem(HORIZON), GPUCB()),
    PAPERS: (problem(HORIZON), BOBOS(mode="faithful", growth=1 / 0.95)),
    "BO-BOS, robust": (problem(HORIZON), BOBOS()),
}


def training(seed: int, file: Path) -> Training:
    """Validation errors of networks on a seed's digits."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)  # the networks are tiny: more threads only wait for each other
    with np.load(file, allow_pickle=False) as kept:
        order = np.random.default_rng(seed).permutation(len(kept["labels"]))[: TRAIN + HELD_OUT]
        images = kept["images"][order].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)) / 255.0
        labels = torch.as_tensor(kept["labels"][order].astype(np.int64))
    x = torch.as_tensor(images, dtype=torch.float32)[:, None].to(memory_format=torch.channels_last)

    def network(filters: int, units: int) -> nn.Module:
        layers: list[nn.Module] = []
        for channels in (1, filters, filters):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * filters, units), nn.ReLU(), nn.Linear(units, 10))

    def errors(config: dict[str, Any]) -> Iterator[float]:
        draw = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = network(config["filters"], config["units"]).to(memory_format=torch.channels_last)
        rate, step = config["learning_rate"], 0
        adam = torch.optim.Adam(net.parameters(), rate, weight_decay=config["l2"], fused=True)
        while True:
            for batch in torch.randperm(TRAIN, generator=draw).split(config["batch_size"]):
                adam.param_groups[0]["lr"] = rate / (1 + config["decay"] * step)
                adam.zero_grad()
                functional.cross_entropy(net(x[batch]), labels[batch]).backward()
                adam.step()
                step += 1
            with torch.no_grad():
                guessed = net(x[TRAIN:]).argmax(1)
            yield float((guessed != labels[TRAIN:]).double().mean())

    return errors


EXPERIMENT = Experiment(
    "bobos_cnn", "Best-found validation error of a small convolutional network by run time, for each method.",
    "A CNN on digits", (0, 50), "mnist_10k.npz", ("torch", "torch"), METHODS, HORIZON, training,
)  # fmt: skip

if __name__ == "__main__":
    EXPERIMENT.main(__doc__, seeds=3, trainings=14)
