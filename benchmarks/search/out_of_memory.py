"""Trials that run out of memory: their share among later trials of a search.

    python benchmarks/search/out_of_memory.py [--policy default random gpucb] [--after 0] [--seeds 5] [--trials 40]

A synthetic training needs memory in proportion to batch size times width. In a quarter of the space this is too much,
and it raises MemoryError, --after so many reported epochs. Its loss falls as the width grows, so the best
configurations are just below the limit. The output is the share of failed trials among the first and the last 20.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import logging
import math
import warnings
from functools import partial

import numpy as np

from haltune import Float, Int, Study
from haltune.policies import BOBOS, EI, GPUCB, Hyperband, RandomSearch

SPACE = {
    "lr": Float(1e-5, 1e-1, log=True),
    "batch_size": Int(8, 1024, log=True),
    "width": Int(32, 2048, log=True),
    "dropout": Float(0.0, 0.6),
    "weight_decay": Float(1e-6, 1e-2, log=True),
}
MOST = 80_000  # batch size times width that fits
POLICIES = {
    "default": lambda: None,
    "random": RandomSearch,
    "hyperband": Hyperband,
    "gpucb": GPUCB,
    "ei": EI,
    "bobos": BOBOS,
}


def train(trial, after):
    c = trial.config
    end = 0.1 + 0.05 * (math.log10(c["lr"]) + 2.5) ** 2 + 0.04 * math.log2(2048 / c["width"])
    end += 0.05 * (c["dropout"] - 0.2) ** 2 + 0.01 * abs(math.log2(c["batch_size"] / 128))
    for epoch in trial.epochs():
        if epoch > after and c["batch_size"] * c["width"] > MOST:
            raise MemoryError("it does not fit")
        if trial.report(end + 0.5 * math.exp(-epoch / 5)).stops:
            break


def failed(policy, trials, after, seed):
    """Return whether each trial ran out of memory, in the order of proposals."""
    budget = f"{trials} trials"
    study = Study(SPACE, "loss", max_epochs=27, policy=POLICIES[policy](), budget=budget, seed=seed, verbose=0)
    return [
        t.config["batch_size"] * t.config["width"] > MOST for t in study.optimize(partial(train, after=after)).trials
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--after", type=int, default=0, help="epochs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=40)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    for policy in args.policy:
        runs = np.array([failed(policy, args.trials, args.after, seed) for seed in range(args.seeds)], dtype=float)
        parts = [runs[:, :20].mean(axis=1), runs[:, -20:].mean(axis=1)]
        found = [f"{p.mean():.2f}±{p.std(ddof=1) / math.sqrt(len(p)):.2f}" for p in parts]
        print(f"{policy:<10} failed among the first 20: {found[0]}   among the last 20: {found[1]}", flush=True)


if __name__ == "__main__":
    main()
