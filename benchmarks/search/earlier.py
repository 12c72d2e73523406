"""Transfer from prior studies: mean regret after 2, 5, 10 and 20 full trainings, suite by suite.

    python benchmarks/search/earlier.py --data DIR [--suite text ...] [--of none 1 3 reversed shuffled] [--seeds 4]
                                        [--half 0 or 1] [--most 20]

In each suite whose tasks share a space, one task is left out and searched. The search learns from searches of the next
task, or of the next three, each of ten trainings and by the same seed. `none` learns from none. `reversed` learns from
a search of the same table with the order of values reversed, `shuffled` from one of the next task with exchanged
configurations: prior studies that mislead, or predict nothing. Protocol as in kinds.py.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
import warnings
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
from kinds import BUDGETS, row
from methods import Method, after
from recorded import Meter, Task, load_kinds, search
from table import Row

from haltune import Study
from haltune.policies import MultiFidelity
from haltune.ranks import alone

SUITES = ("text", "lcbench_yahpo", "openclip")
EVIDENCE = ("none", "1", "3", "reversed", "shuffled")
SEARCHED = 10  # trainings of each earlier search


def reversed_(task: Task) -> Task:
    """Its best runs are its worst."""
    return replace(task, scores=task.scores.max() - task.scores, of="last")


def shuffled(task: Task) -> Task:
    """Its configurations have changed places."""
    return replace(task, points=np.random.default_rng(0).permutation(task.points))


def earlier(task: Task, others: tuple[Task, ...], of: str) -> tuple[Task, ...]:
    """The tasks whose searches are learnt from."""
    if of == "reversed":
        return (reversed_(task),)
    if of == "shuffled":
        return (shuffled(others[0]),)
    return others[: 0 if of == "none" else int(of)]


def found(task: Task, seed: int) -> Study:
    """A search of another task."""
    return search(MultiFidelity(), Meter(task, SEARCHED * task.scores.shape[1]), 100 * seed + task.number)


def one(task: Task, others: tuple[Task, ...], of: str, seed: int, budgets: tuple[int, ...]) -> np.ndarray:
    """The regrets of one search, at each budget."""
    warnings.simplefilter("ignore")
    with alone():
        studies = [found(t, seed) for t in earlier(task, others, of)]
        policy = MultiFidelity(learn_from=studies)
    method = Method(lambda meter, seed, snapped: search(policy, meter, seed, snapped))
    return np.minimum(after(method, task, seed, True, budgets), 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz and training_curves.npz")
    parser.add_argument("--of", nargs="+", choices=EVIDENCE, default=EVIDENCE)
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=SUITES)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--half", type=int, choices=(0, 1), help="of the tasks of each suite; default: all")
    parser.add_argument("--most", type=int, default=max(BUDGETS), help="trainings at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    budgets = tuple(b for b in BUDGETS if b <= args.most)
    suites = {name: tasks for name, tasks in load_kinds(args.data).items() if name in args.suite}
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    print(f"regret, {args.seeds} seeds, after trainings  " + "  ".join(f"{b:<11d}" for b in budgets))
    with get_context("spawn").Pool(args.processes) as pool:
        for of in args.of:
            begin = time.perf_counter()
            print(of)
            rows = []
            for suite, tasks in suites.items():
                halved = range(args.half or 0, len(tasks), 1 + (args.half is not None))
                jobs = [(tasks[i], (*tasks[i + 1 :], *tasks[:i]), of, seed, budgets) for i in halved for seed in seeds]
                regrets = np.array(pool.starmap(one, jobs, chunksize=1))
                regrets = regrets.reshape(len(halved), args.seeds, len(budgets))
                rows.append(Row.of(regrets).means)
                print(row(suite, Row.of(regrets)), flush=True)
            print(f"    {'mean of suites':32s} " + "  ".join(f"{m:.3f}      " for m in np.mean(rows, axis=0)))
            print(f"    {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
