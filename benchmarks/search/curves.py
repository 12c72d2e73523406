"""Searching recorded learning curves: mean regret after 2, 5, 10, 20 and 40 full trainings.

    python benchmarks/search/curves.py --data DIR [--policy hyperband ...] [--seeds 20] [--by-task]

Data: learning_curves.npz (TaskSet: text RNNs, 1000 optimiser settings a task, 50 epochs). Score 1 - (loss - best) /
(cap - best), clipped; regret (best - incumbent) / (best - median final score), the incumbent being the best score at
any epoch of any trial. One worker; a resumed trial pays only its further epochs; a proposed point becomes the nearest
row that was not tried yet, and that row is what the search remembers (--proposed: the point itself). Random stream 100
* seed + task. Below a row is the published one, if there is one, and the difference in standard errors.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
import warnings
from multiprocessing import get_context
from multiprocessing.pool import Pool

import numpy as np
from methods import BUDGETS, GOAL, METHODS, after
from recorded import Task, load
from table import Row, header


def measure(
    name: str, tasks: list[Task], seeds: int, snapped: bool, budgets: tuple[int, ...], pool: Pool | None
) -> np.ndarray:
    """Regrets (tasks, seeds, budgets)."""
    jobs = [(name, task, seed, snapped, budgets) for task in tasks for seed in range(seeds)]
    found = pool.starmap(one, jobs, chunksize=1) if pool else [one(*job) for job in jobs]
    return np.array(found).reshape(len(tasks), seeds, len(budgets))


def one(name: str, task: Task, seed: int, snapped: bool, budgets: tuple[int, ...]) -> list[float]:
    """One search."""
    warnings.simplefilter("ignore")
    return after(METHODS[name], task, seed, snapped, budgets)


def show(name: str, regrets: np.ndarray, seconds: float, by_task: list[Task] | None) -> None:
    """The row of a method, the published one beneath it."""
    method, row, (tasks, seeds, budgets) = METHODS[name], Row.of(regrets), regrets.shape
    print(f"{name:34s} {seeds:5d}  {row.text()}  {1e3 * seconds / tasks / seeds:6.0f} ms a search", flush=True)
    if method.published:
        beside = row.against(method.published[:budgets], method.seeds)
        print(f"{'  published':34s} {method.seeds:5d}  {beside}")
    for task, values in zip(by_task or [], regrets.mean(axis=1), strict=False):
        print(f"    {task.name:36s}   " + "  ".join(f"{v:.3f}      " for v in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz")
    parser.add_argument("--policy", nargs="+", choices=[*METHODS, "all"], default=["random", "hyperband"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trainings", type=int, default=max(BUDGETS), help="the largest budget")
    parser.add_argument("--task", type=int, nargs="+", help="numbers of tasks; default: all")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--proposed", action="store_true", help="remember the points that were proposed")
    parser.add_argument("--by-task", action="store_true")
    args = parser.parse_args()
    tasks = [task for task in load(args.data) if args.task is None or task.number in args.task]
    budgets = tuple(b for b in BUDGETS if b <= args.trainings)
    print(header(f"regret, {len(tasks)} tasks, after trainings", budgets, ""))
    print(f"{'goal':40s}  " + "  ".join(f"{value:.3f}      " for value in GOAL[: len(budgets)]))
    pool = get_context("spawn").Pool(args.processes) if args.processes > 1 else None
    for name in METHODS if "all" in args.policy else args.policy:
        begin = time.perf_counter()
        try:
            regrets = measure(name, tasks, args.seeds, not args.proposed, budgets, pool)
        except ImportError as missing:
            print(f"{name:34s} left out, for its package is not installed: {missing}")
            continue
        show(name, regrets, time.perf_counter() - begin, tasks if args.by_task else None)


if __name__ == "__main__":
    main()
