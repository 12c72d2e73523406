"""Calibration of `study.outlook()`: the stated probability of a better configuration, and how often one followed.

    python benchmarks/search/forecast_calibration.py --data DIR [--policy multifidelity ...] [--seeds 1]

Each search of recorded trainings has a budget that is doubled four times, from 2.5 full trainings (even seeds) or from
5 trials (odd seeds, where a trial counts for its last epoch). At each end but the last the outlook is compared with the
best after twice the epochs. A search that has used half of its table is left out from then on. The rule was chosen on
half 0: the first, third, ... task of each suite.
"""

from __future__ import annotations

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from recorded import Meter, OnRows, Task, load_kinds

from haltune import Budget, Study, Trial
from haltune.errors import InvalidInput
from haltune.policies import BOBOS, GPUCB, Hyperband, MultiFidelity, RandomSearch
from haltune.ranks import alone

POLICIES: dict[str, Callable[[], Any]] = {
    "multifidelity": MultiFidelity,
    "random": RandomSearch,
    "hyperband": lambda: Hyperband(rounds=None),
    "gpucb": GPUCB,
    "bobos": BOBOS,
}
DOUBLINGS = 5


def searched(policy: Any, task: Task, seed: int) -> Iterator[tuple[float, bool]]:
    """The probabilities stated along one search, and whether a better configuration followed."""
    horizon, task = task.scores.shape[1], replace(task, of="last" if seed % 2 else "best")
    sizes = [2**k for k in range(DOUBLINGS)]
    budgets = [Budget(trials=5 * n) if seed % 2 else Budget(epochs=2.5 * n * horizon) for n in sizes]
    meter, rows = Meter(task, np.inf), dict[int, int]()
    with alone():
        study = Study(task.problem, OnRows(policy, task), seed=seed, budget=budgets[0], verbose=0)
    best, stated = [0.0], list[tuple[int, float]]()
    for budget in budgets:
        study.budget = budget
        while isinstance(trial := study.ask(), Trial):
            if trial.id not in rows:
                rows[trial.id] = meter.take(task.point(trial.config))
            for epoch in trial.epochs():
                verdict = trial.report(meter.train(rows[trial.id], epoch), seconds=1.0)
                found = study.history.best()
                best.append(found.value if found else 0.0)
            if verdict.resumable:
                trial.checkpointed(f"row-{rows[trial.id]}")
            if 2 * len(rows) > len(task.points):
                break
        if 2 * len(rows) > len(task.points):
            break
        with suppress(InvalidInput):
            stated.append((len(best) - 1, study.outlook().probability))
    for epochs, probability in stated:
        if len(best) - 1 >= 1.8 * epochs:
            yield probability, max(best[epochs : 2 * epochs + 1]) > best[epochs]


def row(name: str, found: list[tuple[float, bool]]) -> str:
    """Per stated probability how often it came true; and the Brier score, that of stating 0.5 being 0.25."""
    p, came = (np.array(column, dtype=float) for column in zip(*found, strict=True))
    cells = [f"said {q:.2f} came {came[p == q].mean():.2f} ({(p == q).sum():3d})" for q in np.unique(p) if q > 0]
    return f"{name:14s} Brier {np.square(p - came).mean():.3f}   {'   '.join(cells)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz and training_curves.npz")
    parser.add_argument("--policy", nargs="+", choices=[*POLICIES], default=[*POLICIES])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0, help="the rule was chosen with seeds 0 and 1")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: dict[str, list[tuple[float, bool]]] = {"half 0": [], "half 1": []}
    for name in args.policy:
        for suite in load_kinds(args.data).values():
            for n, task in enumerate(suite):
                for seed in range(args.first_seed, args.first_seed + args.seeds):
                    found = list(searched(POLICIES[name](), task, seed))
                    rows[f"half {n % 2}"] += found
                    rows.setdefault(name, []).extend(found)
        print(row(name, rows[name]), flush=True)
    print(row("half 0", rows["half 0"]), row("half 1", rows["half 1"]), sep="\n")


if __name__ == "__main__":
    main()
