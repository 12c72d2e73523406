"""Searching every kind of recorded training: mean regret after 2, 5, 10 and 20 full trainings, suite by suite.

    python benchmarks/search/kinds.py --data DIR [--policy multifidelity ...] [--seeds 20] [--half 0 or 1] [--by-task]
                                      [--seconds] [--workers 4] [--budgets 2 5 10 20] [--continuous] [--noise]
                                      [--known-noise] [--without-checkpoints]

Data: learning_curves.npz (text RNNs) and training_curves.npz (AlexNet and DeBERTa, small CNNs, LSTMs and architectures,
OpenCLIP, tabular MLPs); every table keeps its own number of epochs. Protocol as in curves.py, regret at most 1; a run
counts for its best epoch. A suite's row is the mean over its tasks, `mean` that over the suites, `worst` the worst
suite. Settings are chosen on half 0, the first, third, ... task of each suite; half 1 shows other tasks; without --half
both are below the mean. With --workers so many train at a time, an epoch each in turn, and budgets are the sum over
workers (haltune's policies only); the budget of a search is the last of --budgets. With --seconds a training costs its
recorded seconds, if there are some, and budgets are in mean seconds of a full training of the table. With --unit steps
a training reports --parts times an epoch, with the noise of the recorded text RNNs, in a study that counts steps;
regrets are of the scores without it. --noise adds it to the reports of --unit epochs: what the noise costs without the
steps. With --known-noise the prior of the noise of the default search has this noise as its median, by steps, or the
jitter of the table's curves, by epochs, at least the usual median: the best that an estimate from the curves could give
it. With --continuous a proposed point does not become a row that was not tried yet: it has a curve of its own, the mean
of the nearest rows with the noise of a training. There a search may try one configuration again and again, which
tables hide. With --without-checkpoints a paused trial of haltune trains again from its start. A peer whose package is
not installed is left out, with a line.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
import warnings
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
from methods import METHODS, after
from recorded import Task, jitter, load_kinds
from table import Row

from haltune.models import stage_process

SUITES = ("text", "opda", "accnas", "openclip", "lcbench_yahpo")
NOISE = stage_process._NOISE
BUDGETS = (2, 5, 10, 20)  # full trainings, unless others are asked for


def one(
    name: str, task: Task, seed: int, timed: bool, workers: int, budgets: tuple[int, ...], known_noise: bool
) -> np.ndarray:
    """The regrets of one search, at each budget."""
    warnings.simplefilter("ignore")
    if known_noise:
        stage_process._NOISE = max(NOISE, relative_noise(task))
    return np.minimum(after(METHODS[name], task, seed, True, budgets, timed, workers), 1.0)


def relative_noise(task: Task) -> float:
    """The deviation of the noise over the distance from the best score to the median final one."""
    deviation = task.noise[0]
    if task.parts == 1:  # of second differences 6^(1/2) deviations, if it is white; the first epochs are left out
        curves = np.abs(np.diff(task.scores[:, 3:] if task.scores.shape[1] > 6 else task.scores, 2, axis=1))
        deviation = float(np.median(np.median(curves, axis=1))) / (0.6745 * 6**0.5)
    return deviation / task.width


def row(name: str, found: Row) -> str:
    """A line of the table."""
    return f"    {name:32s} {found.text()}"


def of_suites(found: dict[str, np.ndarray]) -> Row:
    """The mean over the suites' rows."""
    rows = [Row.of(regrets) for regrets in found.values()]
    means, errors = np.array([r.means for r in rows]), np.array([r.errors for r in rows])
    return Row(means.mean(axis=0), np.sqrt(np.square(errors).sum(axis=0)) / len(rows), rows[0].seeds)


def show(name: str, suites: dict[str, list[Task]], found: dict[str, np.ndarray], by_task: bool, halves: bool) -> None:
    """The rows of a method."""
    print(f"{name:36s} {of_suites(found).text()}  mean of suites")
    worst = np.array([Row.of(regrets).means for regrets in found.values()]).max(axis=0)
    print(" " * 37 + "  ".join(f"{m:.3f}      " for m in worst) + "  worst suite")
    for half in (0, 1) if halves else ():
        part = {suite: regrets[half::2] for suite, regrets in found.items() if len(regrets) > half}
        print(row(f"half {half}", of_suites(part)))
    for suite, tasks in suites.items():
        print(row(suite, Row.of(found[suite])), flush=True)
        for task, regrets in zip(tasks, found[suite], strict=True):
            print(row(f"    {task.name[:26]}", Row.of(regrets[None]))) if by_task else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz and training_curves.npz")
    parser.add_argument("--policy", nargs="+", choices=list(METHODS), default=["multifidelity"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--half", type=int, choices=(0, 1), help="of the tasks of each suite; default: all")
    parser.add_argument("--suite", nargs="+", choices=SUITES, help="default: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--workers", type=int, default=1, help="that train at a time, each an epoch in turn")
    parser.add_argument(
        "--budgets", nargs="+", type=int, default=BUDGETS, help="full trainings; the last is what is known of it"
    )
    parser.add_argument("--by-task", action="store_true")
    parser.add_argument("--seconds", action="store_true", help="budgets in seconds, of the tasks that recorded them")
    parser.add_argument("--continuous", action="store_true", help="points between rows, with noise; in epochs")
    parser.add_argument("--without-checkpoints", action="store_true", help="a trial that resumes starts again")
    parser.add_argument("--unit", choices=("epochs", "steps"), default="epochs")
    parser.add_argument("--parts", type=int, default=4, help="reports an epoch, with --unit steps")
    parser.add_argument("--smooth", type=float, help="epochs that values are averaged over, with --unit steps")
    parser.add_argument("--noise", action="store_true", help="in the reports of --unit epochs too")
    parser.add_argument("--known-noise", action="store_true", help="of the default search alone")
    args = parser.parse_args()
    kinds = load_kinds(args.data)
    if args.unit == "steps" or args.noise:
        noise, parts = jitter(kinds["text"]), args.parts if args.unit == "steps" else 1
        print(f"{parts} reports an epoch, AR(1) noise of deviation {noise[0]:.4f}, correlation {noise[1]:.2f}")
        cut = {"parts": parts, "noise": noise, "smooth": args.smooth}
        kinds = {suite: [replace(task, **cut) for task in tasks] for suite, tasks in kinds.items()}
    if args.continuous:
        if args.seconds or args.noise or args.unit == "steps":
            parser.error("--continuous has noise of its own and counts epochs")
        kinds = {suite: [replace(task, continuous=True) for task in tasks] for suite, tasks in kinds.items()}
    if args.without_checkpoints:
        kinds = {suite: [replace(task, saves=False) for task in tasks] for suite, tasks in kinds.items()}
    suites = {
        suite: halved
        for suite, tasks in kinds.items()
        if args.suite is None or suite in args.suite
        if (
            halved := [
                t
                for t in tasks[args.half or 0 :: 1 + (args.half is not None)]
                if t.seconds is not None or not args.seconds
            ]
        )
    }
    print(f"regret, {args.seeds} seeds, after trainings  " + "  ".join(f"{b:<11d}" for b in args.budgets))
    with get_context("spawn").Pool(args.processes) as pool:
        for name in args.policy:
            begin, found = time.perf_counter(), {}
            try:
                for suite, tasks in suites.items():
                    seeds = range(args.first_seed, args.first_seed + args.seeds)
                    jobs = [
                        (name, task, seed, args.seconds, args.workers, tuple(args.budgets), args.known_noise)
                        for task in tasks
                        for seed in seeds
                    ]
                    regrets = np.array(pool.starmap(one, jobs, chunksize=1))
                    found[suite] = regrets.reshape(len(tasks), args.seeds, len(args.budgets))
            except ImportError as missing:
                print(f"{name:36s} left out, for its package is not installed: {missing}")
                continue
            show(name, suites, found, args.by_task, args.half is None)
            print(f"    {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
