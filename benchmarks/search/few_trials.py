"""A budget that limits only trials: the regret of the best remaining trial, and its cost, suite by suite.

    python benchmarks/search/few_trials.py --data DIR [--policy multifidelity random] [--trials 20] [--half 0 or 1]

Data and halves as in kinds.py. For each policy: regret (at most 1), full trainings paid, and trials trained in full.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import warnings

import numpy as np
from methods import METHODS
from recorded import Meter, Task, load_kinds
from table import Row

from haltune import Budget


class Counted(Meter):
    """A meter that is never full: trials are what is counted."""

    @property
    def bounds(self) -> Budget:
        """The budget: a number of trials."""
        return Budget(trials=int(self.budget))

    @property
    def full(self) -> bool:
        """False: trials that have started continue."""
        return False


def found(name: str, task: Task, trials: int, seed: int) -> tuple[float, float, float]:
    """Regret of the best run, full trainings paid, and trials trained in full."""
    meter, horizon = Counted(task, trials), task.scores.shape[1]
    study = METHODS[name].run(meter, 100 * seed + task.number, True)
    regret = float(task.regret(np.array([study.best.value]))[0])
    return min(regret, 1.0), len(meter.incumbents) / horizon, sum(t.epoch >= horizon for t in study.trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz and training_curves.npz")
    parser.add_argument("--policy", nargs="+", choices=list(METHODS), default=["multifidelity", "random", "gpucb"])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--half", type=int, choices=(0, 1), default=0, help="of the tasks of each suite")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    suites = {suite: tasks[args.half :: 2] for suite, tasks in load_kinds(args.data).items()}
    print(f"{args.trials} trials, {args.seeds} seeds: regret / full trainings paid / trials trained in full")
    for name in args.policy:
        each = {  # (tasks, seeds, three numbers)
            suite: np.array([[found(name, t, args.trials, s) for s in range(args.seeds)] for t in tasks])
            for suite, tasks in suites.items()
        }
        errors = {suite: Row.of(numbers[..., :1]).errors[0] for suite, numbers in each.items()}
        rows = {suite: numbers.mean(axis=(0, 1)) for suite, numbers in each.items()}
        errors["mean of suites"] = np.sqrt(np.square(list(errors.values())).sum()) / len(each)
        rows = {"mean of suites": np.mean(list(rows.values()), axis=0), **rows}
        for suite, (regret, paid, full) in rows.items():
            cells = f"{regret:.3f}±{errors[suite]:.3f}  {paid:5.1f}  {full:5.1f}"
            print(f"{name:20s} {suite:16s} {cells}", flush=True)


if __name__ == "__main__":
    main()
