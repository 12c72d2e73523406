"""Figures 7 and 8 of Hyperband (Li et al. 2018), smaller: kernel least squares; mails or features are the resource.

    python benchmarks/papers/hyperband_spambase.py --data FOLDER [--seeds 10] [--eta 4] [--method NAME ...]
        [--keep FILE] [--svg]
    python benchmarks/papers/hyperband_spambase.py --features --data FOLDER [...]

Kernel regularised least squares on Spambase with the hyperparameters of the paper's table 4; 3,200 mails to train, 700
to validate, 701 to test; a unit is 25 mails, so R = 128. Each rung trains from the beginning on more mails. The budget
is two rounds of Hyperband's brackets, ten of the most exploratory bracket, or N full trainings of random search, TPE or
SMAC; the last two (rivals.py) choose from 1,000 random configurations. The result is the cost at which each reaches the
final error of random search. --features: random features instead of the kernel, table 5; 512 at most, a unit is 2, so
R = 256, on all mails; the most exploratory bracket three times.

Costs are CPU seconds of this process, with one BLAS thread, decisions included: other programs change them little. Then
the same by (n / R)^3, or ^2 of features, which can be repeated to the digit. The output has section 3.4's limit of the
speedup by the measured power law, and by the seconds. A seed takes about a minute, with features half of that. --keep
continues from a file with the results of each seed. FOLDER, or the variable HALTUNE_DATA, holds spambase.csv (UCI, with
a header).
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from command_line import command_line, data_file
from kept import kept
from kernel_least_squares import FEATURES, FEATURES_SPACE, SPACE, TRAINING, Mails, errors, errors_by_features, load
from races import Axes, Measure, Progress, Runs, draw, figure, mean_reaches, table

from haltune import Budget, Minimize, Problem, Space, Study
from haltune.log.policy import Policy
from haltune.policies import Hyperband, RandomSearch

AIM = 10.0  # times sooner than random search
RANDOM, BAND, BOLD = "random search", "Hyperband", "most exploratory bracket"
METHODS = (RANDOM, BAND, BOLD, "TPE", "SMAC")
POOL = 1_000  # configurations that TPE and SMAC choose from
SECONDS = "seconds"


@dataclass(frozen=True)
class Kind:
    """A resource, and the training with it."""

    what: str
    space: Space
    errors: Callable[[Mails, Mapping[str, Any], int], tuple[float, float]]
    full: int
    unit: int
    power: int  # of the resource, by which time grows
    bold: int  # times that the most exploratory bracket runs

    @property
    def counted(self) -> str:
        """The cost that anybody can repeat."""
        return f"full trainings, were time n^{self.power}"

    def band(self, eta: int, **options: Any) -> Hyperband:
        """Hyperband on this resource."""
        return Hyperband(self.full, eta, self.unit, resource=self.what, **options)


MAILS = Kind("samples", SPACE, errors, TRAINING, 25, 3, 10)
BY_FEATURES = Kind("features", FEATURES_SPACE, errors_by_features, FEATURES, 2, 2, 3)


@dataclass
class Run:
    """One search: its progress by either cost, and what trainings cost by the number of mails."""

    progress: dict[str, Progress]
    costs: dict[int, list[float]]  # seconds

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Run":
        """From its asdict, as JSON reads it back."""
        progress = {cost: Progress(**spent) for cost, spent in given["progress"].items()}
        return cls(progress, {int(n): costs for n, costs in given["costs"].items()})


class Measured:
    """The trainings of one search, and its Run."""

    def __init__(self, kind: Kind, mails: Mails) -> None:
        self.kind, self.mails = kind, mails
        self.progress, self.costs = {SECONDS: Progress(), kind.counted: Progress()}, defaultdict[int, list[float]](list)
        self.counted, self.begin = 0.0, time.process_time()

    def train(self, config: Mapping[str, Any], n: int) -> tuple[float, float]:
        """Return validation and test error, trained with n of the resource."""
        kind, began = self.kind, time.process_time()
        validation, test = kind.errors(self.mails, config, n)
        now = time.process_time()
        self.costs[n].append(now - began)
        self.counted += (n / kind.full) ** kind.power
        self.progress[SECONDS].add(now - self.begin, validation, test)
        self.progress[kind.counted].add(self.counted, validation, test)
        return validation, test

    @property
    def run(self) -> Run:
        return Run(self.progress, dict(self.costs))


def search(kind: Kind, policy: Policy, budget: Budget | None, mails: Mails, seed: int) -> Run:
    """One search through a study. Policies without rungs train on everything."""
    problem = Problem(kind.space, Minimize("validation error", bounds=(0, 1)), max_epochs=1)  # it reports once
    study = Study(problem, policy, seed=seed, budget=budget, verbose=0)
    measured = Measured(kind, mails)
    for trial in study:
        validation, test = measured.train(trial.config, trial.resource or kind.full)
        trial.report(validation, metrics={"test error": test})
    return measured.run


def rival(kind: Kind, name: str, full: int, mails: Mails, seed: int) -> Run:
    """One search by TPE or SMAC; a training without a number counts as all wrong."""
    from rivals import RIVALS, losses

    configs = kind.space.sample_up_to(POOL, np.random.default_rng(seed))
    points, measured = kind.space.encode_many(configs), Measured(kind, mails)
    chosen = RIVALS[name](points, seed)
    losses(chosen, lambda row: float(np.nan_to_num(measured.train(configs[row], kind.full)[0], nan=1.0)), full)
    return measured.run


def searches(seed: int, methods: Sequence[str], kind: Kind, data: Path, full: int, eta: int) -> dict[str, Any]:
    """The Run of each method, as a dictionary, on the same split, the mails in this seed's order."""
    mails = load(data).in_order(seed)
    policies: dict[str, tuple[Policy, Budget | None]] = {
        RANDOM: (RandomSearch(), Budget(trials=full)),
        BAND: (kind.band(eta, rounds=2), None),
        BOLD: (kind.band(eta, brackets="most_exploratory", rounds=kind.bold), None),
    }
    runs = {
        name: search(kind, *policies[name], mails, seed) if name in policies else rival(kind, name, full, mails, seed)
        for name in methods
    }
    print(f"seed {seed} is done", file=sys.stderr, flush=True)
    return {name: asdict(run) for name, run in runs.items()}


def compare(runs: Runs, budget: float, unit: str) -> None:
    """Print the cost at which each method reaches the final error of random search."""
    for measure in ("validation", "test"):
        level = float(np.mean([run.at(np.array([budget]), measure)[0] for run in runs[RANDOM]]))
        own = mean_reaches(runs[RANDOM], level, measure) or budget
        print(
            f"\nby {unit}: random search ends at {100 * level:.2f}% {measure} error after {budget:.3g}; its mean "
            f"is first there after {min(own, budget):.3g}\n{'':26s}there after  sooner than the budget  than random "
            "was there   seed by seed, of the budget: median (range), seeds that never were"
        )
        for name, of in runs.items():
            if name != RANDOM:
                print(f"{name:26s}" + row(of, level, measure, budget, min(own, budget)))
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


def ceilings(runs: Sequence[dict[str, Run]], kind: Kind, eta: int) -> None:
    """Section 3.4: what n configurations of the most exploratory bracket cost, had each been trained in full."""
    bracket = kind.band(eta).table().brackets[0]
    costs = defaultdict(list)
    for of in runs:
        for run in of.values():
            for n, spent in run.costs.items():
                costs[n].extend(spent)
    sizes = [int(rung.resource) for rung in bracket.rungs]
    means = {n: float(np.mean(costs[n])) for n in sizes}
    print(f"\n{kind.what:11s}" + "".join(f"{n:>10d}" for n in sizes))
    print("seconds    " + "".join(f"{means[n]:>10.4f}" for n in sizes) + "   a training, on average")
    last, before = sizes[-1], sizes[-2]
    power = float(np.log(means[last] / means[before]) / np.log(last / before))
    whole = sum(rung.n * means[int(rung.resource)] for rung in bracket.rungs)
    n = bracket.rungs[0].n
    deciding = np.mean([overhead(of[BOLD]) for of in runs])
    steps = eta ** (power - 1.0)
    print(
        f"time grows as n^{power:.2f} from {before} to {last} {kind.what}: section 3.4's ceiling is "
        f"(eta^(p-1) - 1) / eta^(p-1) eta^s = {(steps - 1) / steps * eta**bracket.s:.0f} x"
    )
    print(
        f"the most exploratory bracket compares {n} configurations in {whole / means[last]:.2f} full trainings' time: "
        f"{n * means[last] / whole:.0f} x at most; deciding took {1e3 * deciding:.2f} ms a training"
    )


def overhead(run: Run) -> float:
    """Seconds a training that were not spent in it."""
    spent = run.progress[SECONDS].spent
    return (spent[-1] - sum(map(sum, run.costs.values()))) / len(spent)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__, 10, "spambase.csv")
    parser.add_argument("--features", action="store_true", help="random features instead of the kernel")
    parser.add_argument("--budget", type=int, default=50, help="N, full trainings of random search")
    parser.add_argument("--eta", type=int, default=4, help="as in the paper")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS, help=f"{RANDOM} among them")
    parser.add_argument("--figure", type=Path, help="page to draw, an .html file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parsed(arguments)
    kind = BY_FEATURES if given.features else MAILS
    print(kind.band(given.eta).table())
    data = data_file(given.data, "spambase.csv").parent
    job = partial(searches, methods=given.method, kind=kind, data=data, full=given.budget, eta=given.eta)
    found = kept(given, given.seeds, job)
    every = [{name: Run.of(run) for name, run in of.items()} for of in found]
    for cost, unit in ((kind.counted, "R"), (SECONDS, "s")):
        runs, budget = of_cost(every, cost, given.budget)
        for measure in ("validation", "test"):
            marks = [float(f"{budget * share:.2g}") for share in (0.01, 0.03, 0.1, 0.3, 1)]
            print("\n" + table(runs, marks, unit, measure))
        compare(runs, budget, cost)
    if BOLD in given.method:
        ceilings(every, kind, given.eta)
    what = "Random features" if given.features else "Kernel least squares"
    title = f"{what} on Spambase, {given.seeds} seeds"
    if given.figure:
        draw(runs, given.figure, title, "seconds of one CPU", "log")
    if given.svg:
        ticks = [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30] if given.features else [0.03, 0.1, 0.3, 1, 3, 10, 30, 60]
        ticks = [*(tick for tick in ticks if tick < 0.7 * budget), float(f"{budget:.2g}")]
        axes = Axes("seconds of one CPU", ticks, (6, 8, 10, 15, 20, 30, 40), "log")
        figure(runs, "hyperband_spambase_features" if given.features else "hyperband_spambase_mails", title, axes)


def of_cost(every: Sequence[dict[str, Run]], cost: str, full: int) -> tuple[Runs, float]:
    """All searches by one of the costs, and what random search spent on average: the whole budget."""
    runs = {name: [of[name].progress[cost] for of in every] for name in every[0]}
    budget = float(np.mean([p.spent[full - 1] for p in runs[RANDOM]]))
    return runs, budget


if __name__ == "__main__":
    main()
