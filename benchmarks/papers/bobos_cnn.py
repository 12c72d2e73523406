"""Figure 2 of BO-BOS (Dai et al. 2019) at our scale: a convolutional network, best validation error by run time.

    python benchmarks/papers/bobos_cnn.py --data FOLDER [--seeds 3] [--trainings 14] [--methods NAME ...]
        [--size small|full] [--device cpu] [--ends] [--keep FILE] [--svg]

Three convolutions, each with a pooling, and one hidden layer, as in the paper, on 1,000 digits (another 1,000 validate)
in place of CIFAR-10 and SVHN. --size small has digits of 14 x 14, a thirty-second of the filters and a sixteenth of
the units; full has digits of 28 x 28 and the paper's networks. The other four hyperparameters have the paper's
ranges. N = 50 epochs; Hyperband and BOHB have N = 80 and eta = 3, as there. The paper names no optimiser: here it is
Adam, its rate divided by 1 + decay x step.

Methods: random search, Hyperband, Syne Tune's BOHB, GP-UCB, curve prediction and BOCA (bobos_peers.py), BO-BOS as the
paper sets it (K1 = 100 / 0.95^(t-1), K2 = 99, c = 1, kappa = 2) and BO-BOS as it comes. The folder, or the variable
HALTUNE_DATA, holds mnist_10k.npz: `images` uint8 (10000, 28, 28) and `labels` (10000,). All methods of a small seed
take about four minutes; an epoch of the full size takes 11 s on one core, so it is for --device cuda. Torch is needed:
pip install torch; for BOHB, pip install syne-tune statsmodels.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bobos_peers import BOCA, CurvePrediction
from bobos_searches import ENDS, PAPERS, Experiment, Method, Training, bohb, parser, search

from haltune import Float, Int, Minimize, Problem, Space
from haltune.policies import BOBOS, GPUCB, Hyperband, RandomSearch

HORIZON, BAND = 50, 80  # N, of Hyperband and BOHB alone
TRAIN, HELD_OUT = 1_000, 1_000  # digits


@dataclass(frozen=True)
class Size:
    """The digits and the networks."""

    side: int  # pixels of a digit
    filters: tuple[int, int]
    units: tuple[int, int]
    # The paper's curves decay towards error 0 of the scale: it ends near what the network can reach, as in
    # bobos_mnist.py.
    reached: float

    @property
    def space(self) -> Space:
        return Space(
            {
                "batch_size": Int(32, 512, log=True),
                "learning_rate": Float(1e-7, 0.1, log=True),
                "decay": Float(1e-7, 1e-3, log=True),
                "l2": Float(1e-7, 1e-3, log=True),
                "filters": Int(*self.filters),
                "units": Int(*self.units),
            }
        )


SIZES = {"small": Size(14, (4, 8), (16, 32), 0.05), "full": Size(28, (128, 256), (256, 512), 0.03)}


def methods(size: Size) -> dict[str, Method]:
    """The methods, on networks of a size."""
    goal = Minimize("validation error", bounds=(size.reached, 0.9))
    whole, band = (Problem(size.space, goal, horizon) for horizon in (HORIZON, BAND))
    return {
        "random search": partial(search, whole, RandomSearch()),
        "Hyperband": partial(search, band, Hyperband(eta=3)),
        "BOHB": partial(bohb, band),
        "GP-UCB": partial(search, whole, GPUCB()),
        "curve prediction": partial(search, whole, CurvePrediction()),
        "BOCA": partial(search, whole, BOCA()),
        PAPERS: partial(search, whole, BOBOS(mode="faithful", growth=1 / 0.95)),
        "BO-BOS, robust": partial(search, whole, BOBOS()),
    }


def training(size: Size, device: str, seed: int, file: Path) -> Training:
    """Validation errors of networks on a seed's digits."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)  # the networks are tiny: more threads only wait for each other
    with np.load(file, allow_pickle=False) as kept:
        order = np.random.default_rng(seed).permutation(len(kept["labels"]))[: TRAIN + HELD_OUT]
        joined = kept["images"].shape[1] // size.side  # pixels that become one
        images = kept["images"][order].reshape(-1, size.side, joined, size.side, joined).mean(axis=(2, 4)) / 255.0
        labels = torch.as_tensor(kept["labels"][order].astype(np.int64), device=device)
    x = torch.as_tensor(images, dtype=torch.float32)[:, None].to(device, memory_format=torch.channels_last)
    left = math.ceil(size.side / 8)  # pixels after three poolings

    def network(filters: int, units: int) -> nn.Module:
        layers: list[nn.Module] = []
        for channels in (1, filters, filters):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
        return nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(left * left * filters, units), nn.ReLU(), nn.Linear(units, 10)
        )

    def errors(config: dict[str, Any]) -> Iterator[float]:
        draw = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = network(config["filters"], config["units"]).to(device, memory_format=torch.channels_last)
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


def main() -> None:
    made = parser(__doc__, 3, 14, methods(SIZES["small"]), "mnist_10k.npz")
    made.add_argument("--size", choices=[*SIZES], default="small")
    made.add_argument("--device", default="cpu", help="of the networks, such as cuda")
    made.add_argument("--ends", action="store_true", help=ENDS)
    given = made.parse_args()
    size = SIZES[given.size]
    Experiment(
        "bobos_cnn", "Best-found validation error of a convolutional network by run time, for each method.",
        "A CNN on digits", (0, 50), "mnist_10k.npz", ("torch", "torch"), methods(size), HORIZON,
        partial(training, size, given.device),
    ).run(given)  # fmt: skip


if __name__ == "__main__":
    main()
