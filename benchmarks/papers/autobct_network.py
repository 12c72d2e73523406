"""Section 4.2.3 of the AutoBCT paper on other data: learning rate and batch size of a small network.

    python benchmarks/papers/autobct_network.py --data FOLDER [--seeds 10] [--random 60]

A network of one hidden layer, two epochs over 5,000 digits of MNIST, validated on 2,000 others; learning rate 1e-5 to
0.1, batch 10 to 200, as in the paper. AutoBCT as it comes (gamma 0.16, depth 3), told only that larger batches are
cheaper and that the learning rate costs nothing, against random trainings. The aim, over 10 seeds: it stops by itself,
within 90% of the best accuracy of 60 random trainings, at a fifth of their cost. The folder, or HALTUNE_DATA, holds
mnist_10k.npz: `images` uint8 (10000, 28, 28) and `labels` (10000,).
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from haltune import Float, Int, Maximize, Problem, Space, Study
from haltune.policies import AutoBCT
from haltune.policies.autobct.prior.sampled import sampled

SPACE = Space({"lr": Float(1e-5, 0.1, log=True), "batch": Int(10, 200)})
PROBLEM = Problem(SPACE, Maximize("accuracy", (0, 1)), max_epochs=2)
TRAIN, VALIDATE = 5000, 2000


def load(folder):
    with np.load(Path(folder) / "mnist_10k.npz", allow_pickle=False) as file:
        x = torch.tensor(file["images"].reshape(-1, 784) / 255.0, dtype=torch.float32)
        y = torch.tensor(file["labels"].astype(np.int64))
    return (x[:TRAIN], y[:TRAIN]), (x[TRAIN : TRAIN + VALIDATE], y[TRAIN : TRAIN + VALIDATE])


def train(config, seed, training, unseen):
    """Accuracy after each of two epochs, and the processor's seconds of each."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimiser = torch.optim.Adam(net.parameters(), config["lr"])
    for _ in range(2):
        began = time.process_time()
        for rows in torch.randperm(TRAIN).split(config["batch"]):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(training[0][rows]), training[1][rows]).backward()
            optimiser.step()
        with torch.no_grad():
            right = (net(unseen[0]).argmax(dim=1) == unseen[1]).float().mean().item()
        yield right, time.process_time() - began


def autobct(seed, *data):
    """Trainings, the last accuracy, the best, the cost, and why it ended."""
    prior = sampled(2, ["flat", "decreasing"])
    study = Study(PROBLEM, AutoBCT(prior=prior), seed=seed, verbose=0)
    for trial in study:
        with trial:
            for accuracy, seconds in train(trial.config, 1000 * seed + trial.id, *data):
                trial.report(accuracy, seconds=seconds, cost=seconds)
    cost = sum(float(t.seconds.sum()) for t in study.trials)
    return len(study.trials), float(study.trials[-1].values[-1]), study.best.value, cost, study.ask().reason


def random(seed, count, *data):
    """The best accuracy of so many random trainings, and what they cost together."""
    best, cost = 0.0, 0.0
    for i, config in enumerate(SPACE.sample(count, np.random.default_rng(seed))):
        accuracy, seconds = zip(*train(config, 10_000 + 1000 * seed + i, *data), strict=True)
        best, cost = max(best, accuracy[-1]), cost + sum(seconds)
    return best, cost


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("HALTUNE_DATA"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--random", type=int, default=60)
    options = parser.parse_args()
    if not options.data:
        parser.error("name the folder of mnist_10k.npz: --data FOLDER or HALTUNE_DATA")
    torch.set_num_threads(1)
    data = load(options.data)
    list(train({"lr": 1e-3, "batch": 50}, 0, *data))  # the first training of a process is slower
    print("seed   n   last   best  cost s   random  cost s    share   cost")
    rows = []
    for seed in range(options.seeds):
        n, last, best, cost, reason = autobct(seed, *data)
        top, spent = random(seed, options.random, *data)
        rows.append((last / top, cost / spent, best / top))
        print(
            f"{seed:4d} {n:3d} {last:6.3f} {best:6.3f} {cost:7.2f}   {top:6.3f} {spent:7.2f}   {last / top:6.3f} "
            f"{cost / spent:6.3f}",
            flush=True,
        )
    print("the last sentence:", reason)
    share, price, best = np.array(rows).T
    print(
        f"the configuration kept reaches {share.mean():.3f} of the best random accuracy on average (lowest "
        f"{share.min():.3f}), the best seen {best.mean():.3f}, for {price.mean():.3f} of the cost (highest "
        f"{price.max():.3f}); "
        f"{int(((share >= 0.9) & (price <= 0.2)).sum())} of {len(rows)} seeds reach both aims"
    )


if __name__ == "__main__":
    main()
