"""Pruners in Optuna on recorded learning curves: epochs spent by so many trials, and what they found.

    python benchmarks/search/pruners.py --data DIR [--trials 60] [--seeds 4] [--pruner haltune median ...]
                                        [--sampler tpe or haltune]

Data: learning_curves.npz (see curves.py), the even tasks and the odd ones apart. One worker; a proposed point becomes
the nearest row that was not tried yet, and that row is what the search remembers (--proposed: the point itself). Regret
is 0 at the best score of the table and 1 at the median final score. `spent` is in full trainings, `regret` after all
trials, and the last columns once so many trainings were spent; `lost` is the share of searches that pruned a trial with
the best final score of all started trials.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
import warnings
from multiprocessing import get_context
from typing import Any

import numpy as np
import optuna
from recorded import Meter, Task, load

BUDGETS = (5, 10, 20)  # full trainings
PRUNERS = ("none", "median", "hyperband", "haltune", "haltune best")


def pruner(name: str, epochs: int, seed: int) -> Any:
    """A pruner by its name."""
    from haltune.optuna import HaltunePruner

    if name == "median":
        return optuna.pruners.MedianPruner()
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=3)
    if name.startswith("haltune"):
        return HaltunePruner(epochs, seed=seed, of="best" if name.endswith("best") else "last")
    return optuna.pruners.NopPruner()


def sampler(name: str, epochs: int, seed: int) -> Any:
    """A sampler by its name."""
    from haltune.optuna import HaltuneSampler

    return HaltuneSampler(seed=seed, max_epochs=epochs) if name == "haltune" else optuna.samplers.TPESampler(seed=seed)


def one(name: str, chooses: str, task: Task, seed: int, trials: int, snapped: bool) -> list[float]:
    """Return trainings spent, the regret of all, whether the best was pruned, and the regrets at the budgets."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    horizon = task.scores.shape[1]
    meter = Meter(task, float("inf"))
    rows: list[tuple[int, int]] = []  # and epochs trained

    names = [f"u{i}" for i in range(task.points.shape[1])]

    def objective(trial: optuna.Trial) -> float:
        point, value = np.array([trial.suggest_float(n, 0.0, 1.0) for n in names]), 0.0
        row = task.nearest(point, ~meter.free) if snapped else meter.take(point)
        for epoch in range(1, horizon + 1):
            value = meter.train(row, epoch)
            trial.report(value, epoch - 1)
            if trial.should_prune():
                rows.append((row, epoch))
                raise optuna.TrialPruned
        rows.append((row, horizon))
        return value

    number = 100 * seed + task.number
    study = optuna.create_study(
        direction="maximize",
        study_name=f"{task.name} {seed}",  # HyperbandPruner chooses brackets by it
        sampler=sampler(chooses, horizon, number),
        pruner=pruner(name, horizon, number),
    )
    for _ in range(trials):
        if snapped:
            asked = study.ask(dict.fromkeys(names, optuna.distributions.FloatDistribution(0.0, 1.0)))
            row = meter.take(task.point(asked.params))
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(task.config(row))
        study.optimize(objective, n_trials=1)
    final = [float(task.scores[row, -1]) for row, _ in rows]
    lost = rows[int(np.argmax(final))][1] < horizon
    spent = meter.paid[-1]
    regrets = meter.after([spent, *(b * horizon for b in BUDGETS)])
    return [spent / horizon, float(regrets[0]), float(lost), *map(float, regrets[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz")
    parser.add_argument("--pruner", nargs="+", choices=PRUNERS, default=PRUNERS)
    parser.add_argument("--sampler", choices=("tpe", "haltune"), default="tpe")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--proposed", action="store_true", help="remember the points that were proposed")
    args = parser.parse_args()
    tasks = load(args.data)
    after = "  ".join(f"after {b:<5d}" for b in BUDGETS)
    with get_context("spawn").Pool(args.processes) as pool:
        for half, chosen in (("even tasks", tasks[::2]), ("odd tasks", tasks[1::2])):
            print(f"{half}, {args.trials} trials    spent  regret        lost   {after}")
            for name in args.pruner:
                begin = time.perf_counter()
                jobs = [
                    (name, args.sampler, task, seed, args.trials, not args.proposed)
                    for task in chosen
                    for seed in range(args.seeds)
                ]
                found = np.array(pool.starmap(one, jobs, chunksize=1))
                means, errors = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(len(found))
                cells = "  ".join(f"{m:.3f}±{e:.3f}" for m, e in zip(means[3:], errors[3:], strict=True))
                seconds = (time.perf_counter() - begin) * (args.processes or 1) / len(found)
                print(
                    f"{name:24s} {means[0]:8.1f}  {means[1]:.3f}±{errors[1]:.3f}  {means[2]:5.2f}   {cells}"
                    f"  {seconds:5.1f} s a search",
                    flush=True,
                )


if __name__ == "__main__":
    main()
