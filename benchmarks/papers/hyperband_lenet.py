"""Figure 4 of Hyperband (Li et al. 2018): each bracket alone, Hyperband and random search on LeNet, R = 81.

    python benchmarks/papers/hyperband_lenet.py [--seeds 10] [--budget 18] [--method NAME ...] [--keep FILE] [--svg]
        [--full --data FOLDER]

Methods beyond the schedules, every training in full: random search with twice the budget, GP-UCB, and TPE and SMAC
(rivals.py), which choose from 1,000 random configurations. "early stopping" ends a training as Domhan et al. (2015) do
(bobos_peers.py), and gives the model the predicted value; it evaluates after each unit. Only whole trainings count.

Learning rate, batch size and k1 <= k2 kernels, as in the paper's table 2. Every epoch of haltune is a unit of 100
images (the paper: an epoch of 50,000), so a full training shows 8,100; the learning rate goes to 1 instead of 0.1,
and there are 4 to 24 kernels and batches of 250 at most, because the images are few and have 8 x 8 pixels. Schedules
are those of table 1, repeated until `budget` times R units are spent (18: once through all brackets); bracket s = 0
is random search. Losses count at the ends of rungs (line 7 of algorithm 1), so random search has its first one after R
units. (In the paper's figures, except figure 8, they count at the ends of brackets.) Trials really pause: their weights
and random states are saved to files, and promoted trials resume from them. A seed takes a minute or two.

--full: the 10,000 digits of mnist_10k.npz in FOLDER, or in HALTUNE_DATA, at 14 x 14 pixels, 10 to 60 kernels and
units of 1,000 images: most of an hour for each seed. --keep continues from a file with the results of each seed.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bobos_peers import CurvePrediction, prediction
from command_line import command_line, data_file
from kept import kept
from lenet import Digits, mnist, small, train
from races import Axes, Progress, draw, figure, mean_of, table
from rivals import RIVALS

from haltune import Budget, Float, Int, Minimize, Problem, Space, Study, Trial
from haltune.log.events import Status
from haltune.log.policy import Policy
from haltune.log.records import TrialRecord
from haltune.policies import GPUCB, Hyperband, RandomSearch

R = 81
BAND, RANDOM = "Hyperband", "random search, s = 0"
BRACKETS = {f"bracket s = {s}": s for s in (4, 3, 2, 1)}
METHODS = (*BRACKETS, BAND, RANDOM)
TWICE, EARLY, POOL = "random search, twice the budget", ", early stopping", 1_000
FURTHER = (TWICE, "GP-UCB", *RIVALS, f"GP-UCB{EARLY}", f"SMAC{EARLY}")


@dataclass(frozen=True)
class Run:
    """One search."""

    progress: Progress  # in units
    trials: int
    resumed: int  # attempts that continued from a checkpoint
    seconds: float  # of CPU

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Run":
        """From its asdict."""
        return cls(**(given | {"progress": Progress(**given["progress"])}))


def problem(full: bool) -> Problem:
    """Table 2, scaled to the images."""
    low, high, batch = (10, 60, 1_000) if full else (4, 24, 250)
    space = {
        "learning_rate": Float(1e-3, 1.0, log=True),
        "batch_size": Int(10, batch, log=True),
        "k2": Int(low, high),
        "k1": Int(low // 2, "k2"),
    }
    return Problem(Space(space), Minimize("validation error", bounds=(0, 1)), R)


def policy(name: str) -> Policy:
    """A method by its name."""
    if name.endswith(EARLY):
        return CurvePrediction()
    if name == "GP-UCB":
        return GPUCB()
    if name in (RANDOM, TWICE, *RIVALS):
        return RandomSearch()
    return Hyperband(schedule="table1", brackets=BRACKETS.get(name, "all"), rounds=None)


def search(name: str, seed: int, digits: Digits, full: bool, units: int) -> Run:
    """One search through a study, until its units are spent."""
    began, twice, early = time.process_time(), 2 if name == TWICE else 1, name.endswith(EARLY)
    study = Study(problem(full), policy(name), seed=seed, budget=Budget(epochs=twice * units), verbose=0)
    progress, spent = Progress(), 0.0
    for trial in chosen(study, name, seed):
        before = trial.epoch
        with trial:
            for unit, error, net in train(trial, digits, seed=1_000_000 * seed + trial.id, every=int(early)):
                spent, before = spent + (unit - before) / twice, unit
                if unit == R or not early:
                    progress.add(spent, error, lambda net=net: tested(digits, net))
    resumed = sum(t.attempt - 1 for t in study.trials)
    return Run(progress, len(study.trials), resumed, time.process_time() - began)


def chosen(study: Study, name: str, seed: int) -> Iterator[Trial]:
    """The trials of the study, with the configurations of a rival if the name starts with one."""
    rule = RIVALS.get(name.removesuffix(EARLY))
    if rule is None:
        yield from study
        return
    configs = study.problem.space.sample_up_to(POOL, np.random.default_rng(seed))
    rival = rule(study.problem.space.encode_many(configs), seed)
    study.enqueue(configs[next(rival)])
    for trial in study:
        yield trial
        study.enqueue(configs[rival.send(loss(study.trials[trial.id]))])


def loss(trial: TrialRecord) -> float:
    """The last error of a trial, if it was stopped the predicted one; a trial without a number counts as all wrong."""
    errors = trial.values if len(trial.values) else np.ones(1)
    end = prediction(errors, R)[0] if trial.status is Status.STOPPED else errors[-1]
    return float(np.clip(np.nan_to_num(end, nan=1.0), 0.0, 1.0))


def tested(digits: Digits, net: torch.nn.Module) -> float:
    """The test error."""
    return digits.wrong(net, digits.train + digits.held_out, None)


def searches(seed: int, methods: Sequence[str], data: Path | None, budget: float) -> dict[str, Any]:
    """The Run of each method, as a dictionary."""
    torch.set_num_threads(1)  # the networks are tiny: more threads only wait for each other
    digits = small() if data is None else mnist(data)
    runs = {}
    for name in methods:
        runs[name] = search(name, seed, digits, data is not None, round(R * budget))
    print(f"seed {seed}: {sum(r.seconds for r in runs.values()):.0f} s", file=sys.stderr, flush=True)
    return {name: asdict(run) for name, run in runs.items()}


def report(every: Sequence[dict[str, Run]], budget: float, page: Path | None, svg: bool) -> None:
    """Print tables, the comparison with Hyperband, and write the figures if asked."""
    runs = {name: [in_multiples(of[name].progress, R) for of in every] for name in every[0]}
    marks = sorted({m for m in (1, 2, 5, 10, 15, 20, 40) if m < budget} | {budget})
    for measure in ("validation", "test"):
        print(table(runs, marks, "R", measure) + "\n")
        ends = {name: float(mean_of(of, np.array([budget]), measure)[0][0]) for name, of in runs.items()}
        if set(ends) == set(METHODS):
            best = min(BRACKETS, key=ends.__getitem__)
            print(
                f"at the end: {BAND} {100 * ends[BAND]:.2f}%, the best bracket ({best}) {100 * ends[best]:.2f}%, "
                f"random search {100 * ends[RANDOM]:.2f}%\n"
            )
    print(f"{'a search':26s}{'trials':>8s}{'resumed':>9s}{'CPU s':>8s}")
    for name in runs:
        counts = np.mean([(of[name].trials, of[name].resumed, of[name].seconds) for of in every], axis=0)
        print(f"{name:26s}{counts[0]:8.0f}{counts[1]:9.0f}{counts[2]:8.0f}")
    title, axis = f"LeNet on digits, R = {R}, {len(every)} seeds", "units trained, in multiples of R"
    if page:
        draw(runs, page, title, axis)
    if svg:
        ticks = [m for m in (0, 3, 6, 9, 12, 15, 18, 24, 30) if m < budget]
        figure(runs, "hyperband_lenet", title, Axes(axis, [*ticks, budget], (1, 2, 3, 5, 10, 20)))


def in_multiples(progress: Progress, of: float) -> Progress:
    """The same counted in multiples."""
    return Progress([units / of for units in progress.spent], progress.validation, progress.test)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__, 10, "mnist_10k.npz")
    parser.add_argument("--budget", type=float, default=18, help="of each method, in multiples of R units")
    parser.add_argument("--method", nargs="+", choices=(*METHODS, *FURTHER), default=METHODS)
    parser.add_argument("--full", action="store_true", help="MNIST instead of the small digits")
    parser.add_argument("--figure", type=Path, help="page to draw, an .html file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parsed(arguments)
    print(Hyperband(R, schedule="table1").table())
    data = data_file(given.data, "mnist_10k.npz").parent if given.full else None
    found = kept(given, given.seeds, lambda seed: searches(seed, given.method, data, given.budget))
    every = [{name: Run.of(run) for name, run in of.items()} for of in found]
    report(every, given.budget, given.figure, given.svg)


if __name__ == "__main__":
    main()
