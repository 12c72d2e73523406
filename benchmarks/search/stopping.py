"""Stopping real runs: how many winners each rule stops by mistake, and how many epochs it saves.

    python benchmarks/search/stopping.py --data DIR [--configurations 50] [--seed 0] [--paths N]

Data: learning_curves.npz (TaskSet), score as 1 - (loss - best) / (cap - best), clipped to [0, 1]. A case is a
run and an incumbent, the best final score of 1, 3 or 10 other runs. A run is a winner when its final score
beats the incumbent; `wrong` is the share of the winners that a rule stops, `saved` the share of all epochs
that it does not train. All 51 recorded points count, the untrained first included; nothing stops before 8.
The standard error of `wrong` counts the three cases of a run as one.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from haltune.policies.bobos.optimal_stopping import DecisionTable, OptimalStopping

FIRST, OTHERS = 8, (1, 3, 10)
ACCEPTED = {"faithful, K1 = 100": (0.10, 0.43), "robust, K1 = 500": (0.04, 0.47)}


@dataclass(frozen=True)
class Run:
    """One configuration's curve and what it is compared with."""

    errors: np.ndarray  # (51,)
    incumbents: np.ndarray  # (3,) best final errors of 1, 3 and 10 others
    others: np.ndarray  # (10, 51) those runs, for rules that compare whole curves
    seed: int


Rule = Callable[[Run, float], int]  # the epoch at which it stops, 51 for never


def load(path: Path) -> dict[str, np.ndarray]:
    """Errors (runs, 51) of each task."""
    tables = np.load(path)
    names = [key.split("/")[0] for key in tables.files if key.endswith("/valid_loss")]
    return {name: to_errors(tables[f"{name}/valid_loss"].astype(float)) for name in names}


def to_errors(loss: np.ndarray) -> np.ndarray:
    """1 - score: 0 at the lowest loss of the table, 1 at the median first loss; 1 where it is not finite."""
    finite = np.isfinite(loss)
    best, cap = loss[finite].min(), np.median(loss[finite[:, 0], 0])
    return np.where(finite, np.clip((loss - best) / (cap - best), 0.0, 1.0), 1.0)


def sample(errors: np.ndarray, count: int, seed: int) -> list[Run]:
    """Random runs, each with random others."""
    rng = np.random.default_rng(seed)
    runs = []
    for chosen in rng.choice(len(errors), count, replace=False):
        others = rng.permutation(np.delete(np.arange(len(errors)), chosen))
        groups = [others[:1], others[1:4], others[4:14]]
        incumbents = np.array([errors[group, -1].min() for group in groups])
        runs.append(Run(errors[chosen], incumbents, errors[groups[-1]], int(rng.integers(2**31))))
    return runs


def optimal(settings: OptimalStopping) -> Rule:
    """Bayesian optimal stopping, a table per epoch of solving."""

    def rule(run: Run, incumbent: float) -> int:
        horizon, tables = len(run.errors), {}

        def table(at: int) -> DecisionTable:
            if at not in tables:
                rng = np.random.default_rng([run.seed, at])
                tables[at] = settings.solve_at(run.errors[:at], horizon, incumbent, settings.losses(), rng)
            return tables[at]

        for epoch in range(1, horizon):
            decision, _ = settings.decide(run.errors[:epoch], horizon, table)
            if decision is not None and decision.d == "stop":
                return epoch
        return horizon

    return rule


def simple(stops: Callable[[Run, int, float], bool]) -> Rule:
    """A rule that uses only the epochs so far."""

    def rule(run: Run, incumbent: float) -> int:
        horizon = len(run.errors)
        return next((n for n in range(FIRST, horizon) if stops(run, n, incumbent)), horizon)

    return rule


def below_median(run: Run, n: int, incumbent: float) -> bool:
    """Its best error so far is worse than the median of ten others' running means."""
    return bool(run.errors[:n].min() > np.median(run.others[:, :n].mean(axis=1)))


def beyond_margin(run: Run, n: int, incumbent: float) -> bool:
    return bool(run.errors[n - 1] > incumbent + 0.1)


def extrapolated(run: Run, n: int, incumbent: float) -> bool:
    """A power law fitted by least squares, averaged over exponents, is 4 sd worse than the incumbent."""
    y, horizon = run.errors[:n], len(run.errors)
    exponents = np.array([0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0])
    basis = np.arange(1, horizon + 1) ** -exponents[:, None]
    design = np.stack([np.ones((len(exponents), n)), basis[:, :n]], axis=2)
    gram = np.einsum("ent,enu->etu", design, design)
    to = np.stack([np.ones(len(exponents)), basis[:, -1]], axis=1)
    weights = np.linalg.solve(gram, np.einsum("ent,n->et", design, y)[..., None])[..., 0]
    residual = y - np.einsum("ent,et->en", design, weights)
    noise = np.maximum((residual**2).sum(axis=1) / (n - 3), 1e-6)
    spread = noise * np.einsum("et,et->e", to, np.linalg.solve(gram, to[..., None])[..., 0])
    likelihood = np.exp(-0.5 * n * (np.log(noise) - np.log(noise).min()))
    share = likelihood / likelihood.sum()
    final = (weights * to).sum(axis=1)
    mean = share @ final
    return bool(mean - 4.0 * np.sqrt(share @ (spread + (final - mean) ** 2)) > incumbent)


def rules(paths: int | None) -> dict[str, Rule]:
    sizes = {} if paths is None else {"paths": paths}
    return {
        "faithful, K1 = 100": optimal(OptimalStopping("faithful", **sizes)),
        "robust, K1 = 500": optimal(OptimalStopping("robust", **sizes)),
        "power law, mean + 4 sd": simple(extrapolated),
        "last value + 0.1": simple(beyond_margin),
        "median rule": simple(below_median),
    }


def measure(rule: Rule, runs: list[Run]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(runs, 3) epoch of stopping and whether the run is a winner, and the deciding seconds of each run."""
    stop = np.zeros((len(runs), len(OTHERS)), dtype=int)
    seconds = np.zeros(len(runs))
    for row, run in enumerate(runs):
        begin = time.perf_counter()
        stop[row] = [rule(run, float(incumbent)) for incumbent in run.incumbents]
        seconds[row] = time.perf_counter() - begin
    wins = np.array([run.errors[-1] < run.incumbents for run in runs])
    return stop, wins, seconds


def line(name: str, tasks: list[tuple[np.ndarray, np.ndarray, np.ndarray]], horizon: int) -> str:
    """One row of the table: pooled rates, standard error, spread over tasks, milliseconds a training."""
    stop, wins = np.concatenate([t[0] for t in tasks]), np.concatenate([t[1] for t in tasks])
    bad = wins & (stop < horizon)
    wrong, saved = bad.sum() / wins.sum(), 1.0 - stop.mean() / horizon
    error = np.sqrt(((bad - wrong * wins).sum(axis=1) ** 2).sum()) / wins.sum()  # clustered by run
    by_task = [100 * (w & (s < horizon)).sum() / max(w.sum(), 1) for s, w, _ in tasks]
    saves = [100 * (1.0 - s.mean() / horizon) for s, _, _ in tasks]
    cost = 1e3 * np.concatenate([t[2] for t in tasks]).mean() / len(OTHERS)
    limit = ACCEPTED.get(name)
    verdict = "" if limit is None else ("  accepted" if wrong <= limit[0] and saved >= limit[1] else "  NOT accepted")
    return (
        f"{name:24s} {100 * wrong:5.1f} ± {100 * error:3.1f} ({min(by_task):4.1f} to {max(by_task):4.1f})"
        f"  {100 * saved:5.1f} ({min(saves):4.1f} to {max(saves):4.1f})  {cost:7.1f}{verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("HALTUNE_DATA"), help="folder of learning_curves.npz")
    parser.add_argument("--configurations", type=int, default=50, help="runs per task")
    parser.add_argument("--paths", type=int, help="simulated paths; default: the mode's own")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    path = Path(args.data or ".") / "learning_curves.npz"
    if not path.is_file():
        sys.exit(f"{path} is missing: name its folder by --data DIR or HALTUNE_DATA.")
    tables = load(path)
    tasks = [sample(table, args.configurations, [args.seed, k]) for k, table in enumerate(tables.values())]
    winners = np.concatenate([[run.errors[-1] < run.incumbents for run in runs] for runs in tasks])
    best = (1.0 - winners.mean()) * (1.0 - FIRST / 51)
    print(f"{len(tasks)} tasks, {winners.size} cases, {winners.sum()} winners; foresight would save {100 * best:.1f}%")
    print(f"{'rule':24s} {'wrong % ± se (by task)':30s}  saved % (by task)    ms a training")
    for name, rule in rules(args.paths).items():
        print(line(name, [measure(rule, runs) for runs in tasks], 51), flush=True)


if __name__ == "__main__":
    main()
