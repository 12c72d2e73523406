"""Figure 7 of Hyperband (Li et al. 2018) at our scale: kernel least squares, the training set is the resource.

    python benchmarks/papers/hyperband_spambase.py --data FOLDER [--seeds 5] [--eta 4] [--figure FILE]

Kernel regularised least squares on Spambase with the hyperparameters of the paper's table 4; 3,200 mails to train,
700 to validate, 701 to test; a unit is 25 mails, so R = 128. Each rung trains anew on more mails. Hyperband runs
twice through its brackets, the boldest bracket alone ten times, and random search trains N configurations in full:
that is the whole budget. Asked is when the error that random search ends with is reached.

Costs are seconds of this process's CPU, one BLAS thread, deciding included: other programs on the machine disturb them
little. Then the same by (n / R)^3, which anybody can repeat to the digit. Section 3.4's ceiling on the speedup is
printed with the power law measured, and what the seconds themselves allow. A seed takes about a minute.
FOLDER, or the variable HALTUNE_DATA, holds spambase.csv (UCI, with a header).
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from kernel_least_squares import SPACE, TRAINING, Mails, errors, load
from races import Measure, Progress, Runs, draw, mean_reaches, table

from haltune import Budget, Minimize, Problem, Study
from haltune.log.policy import Policy
from haltune.policies import Hyperband, RandomSearch

UNIT = 25  # mails
AIM = 10.0  # times sooner than random search
RANDOM, BAND, BOLD = "random search", "Hyperband", "boldest bracket"
PROBLEM = Problem(SPACE, Minimize("validation error", bounds=(0, 1)), max_epochs=1)  # a training reports once


CUBIC, SECONDS = "full trainings, were time n^3", "seconds"


@dataclass
class Run:
    """One search: its progress by either cost, and what trainings cost by the number of mails."""

    progress: dict[str, Progress]
    costs: dict[int, list[float]]  # seconds


def search(policy: Policy, budget: Budget | None, mails: Mails, seed: int) -> Run:
    """One search through a study. Policies without rungs train on everything."""
    study = Study(PROBLEM, policy, seed=seed, budget=budget, verbose=0)
    run = Run({SECONDS: Progress(), CUBIC: Progress()}, defaultdict(list))
    begin, cubes = time.process_time(), 0.0
    for trial in study:
        n, began = trial.resource or TRAINING, time.process_time()
        validation, test = errors(mails, trial.config, n)
        run.costs[n].append(time.process_time() - began)
        trial.report(validation, metrics={"test error": test})
        cubes += (n / TRAINING) ** 3
        run.progress[SECONDS].add(time.process_time() - begin, validation, test)
        run.progress[CUBIC].add(cubes, validation, test)
    return run


def searches(seed: int, data: Path, full: int, eta: int) -> dict[str, Run]:
    """Every method on the same split, the mails in this seed's order."""
    mails = load(data).in_order(seed)
    band = partial(Hyperband, TRAINING, eta, UNIT, resource="samples")
    policies: dict[str, tuple[Policy, Budget | None]] = {
        RANDOM: (RandomSearch(), Budget(trials=full)),
        BAND: (band(rounds=2), None),
        BOLD: (band(brackets="most_exploratory", rounds=10), None),
    }
    runs = {name: search(policy, budget, mails, seed) for name, (policy, budget) in policies.items()}
    print(f"seed {seed} is done", file=sys.stderr, flush=True)
    return runs


def compare(runs: Runs, budget: float, unit: str) -> None:
    """When each method reaches what random search ends with."""
    for measure in ("validation", "test"):
        level = float(np.mean([run.at(np.array([budget]), measure)[0] for run in runs[RANDOM]]))
        own = mean_reaches(runs[RANDOM], level, measure) or budget
        print(
            f"\nby {unit}: random search ends at {100 * level:.2f}% {measure} error after {budget:.3g}; its mean "
            f"is first there after {min(own, budget):.3g}\n{'':26s}there after  sooner than the budget  than random "
            "was there   seed by seed, of the budget: median (range), seeds that never were"
        )
        for name in (BAND, BOLD):
            print(f"{name:26s}" + row(runs[name], level, measure, budget, min(own, budget)))
    print(f"The aim: {AIM:g} times sooner.")


def row(of: Sequence[Progress], level: float, measure: Measure, budget: float, own: float) -> str:
    """One method's times to the level, of its mean and of each seed."""
    at = mean_reaches(of, level, measure)
    mean = f"{'never':>11s}{'':48s}" if at is None else f"{at:11.3g}{budget / at:20.1f} x{own / at:23.1f} x  "
    each = [t for run in of if (t := run.reaches(level, measure)) is not None]
    if not each:
        return f"{mean}   none of {len(of)}"
    times = budget / np.array(each)
    spread = f"{np.median(times):.1f} x ({times.min():.1f} to {times.max():.1f})"
    return f"{mean}   {spread}, {len(of) - len(each)} of {len(of)}"


def ceilings(runs: Sequence[dict[str, Run]], eta: int) -> None:
    """Section 3.4: what n configurations of the boldest bracket cost, had each been trained in full."""
    bracket = Hyperband(TRAINING, eta, UNIT, resource="samples").table().brackets[0]
    costs = defaultdict(list)
    for of in runs:
        for run in of.values():
            for n, spent in run.costs.items():
                costs[n].extend(spent)
    sizes = [int(rung.resource) for rung in bracket.rungs]
    means = {n: float(np.mean(costs[n])) for n in sizes}
    print("\nmails      " + "".join(f"{n:>10d}" for n in sizes))
    print("seconds    " + "".join(f"{means[n]:>10.4f}" for n in sizes) + "   a training, on average")
    last, before = sizes[-1], sizes[-2]
    power = float(np.log(means[last] / means[before]) / np.log(last / before))
    whole = sum(rung.n * means[int(rung.resource)] for rung in bracket.rungs)
    n = bracket.rungs[0].n
    deciding = np.mean([overhead(of[BOLD]) for of in runs])
    steps = eta ** (power - 1.0)
    print(
        f"time grows as n^{power:.2f} from {before} to {last} mails: section 3.4's ceiling is "
        f"(eta^(p-1) - 1) / eta^(p-1) eta^s = {(steps - 1) / steps * eta**bracket.s:.0f} x (p = 3: "
        f"{(eta**2 - 1) / eta**2 * eta**bracket.s:.0f} x)\nthe boldest bracket compares {n} configurations in "
        f"{whole / means[last]:.2f} full trainings' time: {n * means[last] / whole:.0f} x at most"
        f"; deciding took {1e3 * deciding:.2f} ms a training"
    )


def overhead(run: Run) -> float:
    """Seconds a training that were not spent in it."""
    spent = run.progress[SECONDS].spent
    return (spent[-1] - sum(map(sum, run.costs.values()))) / len(spent)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of spambase.csv; default: HALTUNE_DATA")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=50, help="N, full trainings of random search")
    parser.add_argument("--eta", type=int, default=4, help="as in the paper")
    parser.add_argument("--figure", type=Path, default=Path("hyperband_spambase.html"))
    parser.add_argument(
        "--jobs", type=int, default=1, help="seeds at a time: more than one disturb each other"
    )
    return parser.parse_args(arguments)


def data_folder(given: Path | None) -> Path:
    """The folder with spambase.csv, or an exit that says what is missing."""
    folder = given or Path(os.environ.get("HALTUNE_DATA") or ".")
    if not (folder / "spambase.csv").is_file():
        sys.exit(f"spambase.csv is needed and not in {folder}: give --data FOLDER, or set HALTUNE_DATA")
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    given = parsed(arguments)
    job = partial(searches, data=data_folder(given.data), full=given.budget, eta=given.eta)
    print(Hyperband(TRAINING, given.eta, UNIT, resource="samples").table())
    if given.jobs > 1:
        with get_context("spawn").Pool(given.jobs) as pool:
            every = pool.map(job, range(given.seeds), chunksize=1)
    else:
        every = [job(seed) for seed in range(given.seeds)]
    runs, budget = of_cost(every, SECONDS, given.budget)
    for measure in ("validation", "test"):
        marks = [float(f"{budget * share:.2g}") for share in (0.01, 0.03, 0.1, 0.3, 1)]
        print("\n" + table(runs, marks, "s", measure))
    compare(runs, budget, SECONDS)
    compare(*of_cost(every, CUBIC, given.budget), CUBIC)
    ceilings(every, given.eta)
    title = f"Kernel least squares on Spambase, {given.seeds} seeds"
    draw(runs, given.figure, title, "seconds of one CPU", "log")


def of_cost(every: Sequence[dict[str, Run]], cost: str, full: int) -> tuple[Runs, float]:
    """All searches by one of the costs, and what random search spent on average: the whole budget."""
    runs = {name: [of[name].progress[cost] for of in every] for name in every[0]}
    budget = float(np.mean([p.spent[full - 1] for p in runs[RANDOM]]))
    return runs, budget


if __name__ == "__main__":
    main()
