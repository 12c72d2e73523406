"""Shared parts of the searches of BO-BOS's figures: trainings that run once, the best by cost, tables.

The run time of a search is CPU seconds of one process, decisions included. An epoch that another search of the same
seed has trained costs the same seconds.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from command_line import command_line, data_file
from kept import Kept, asked
from numpy.typing import NDArray
from paired import differences

from haltune import Budget, Problem, Study
from haltune.log.policy import Policy

Array = NDArray[np.float64]
Config = dict[str, Any]
Training = Callable[[Config], Iterator[Any]]  # what each epoch gives, from the first on
Method = Callable[[int, int, "Trainings"], "Run"]  # seed, epochs of the search
PAPERS = "BO-BOS, the paper's"  # the method whose differences from the others are printed
ENDS = "train stopped trials to their end; print how many stops were wrong, and by which tables"  # --ends
SHARES = (0.4, 0.55, 0.7, 0.85, 1)  # of what is spent, that the tables show


@dataclass
class Curve:
    """The trained epochs of a configuration."""

    values: list[Any]
    seconds: list[float]  # of CPU, of each epoch alone
    begun: Iterator[Any] | None = None


@dataclass
class Trainings:
    """Every configuration is trained once, and no further than somebody asks."""

    train: Training
    spent: float = 0.0  # seconds of CPU so far
    curves: dict[str, Curve] = field(default_factory=dict)

    def at(self, config: Mapping[str, Any], epoch: int) -> tuple[Any, float]:
        """Return the value of an epoch, counted from 1, and its seconds."""
        curve = self.curves.setdefault(json.dumps(dict(config), sort_keys=True), Curve([], []))
        while len(curve.values) < epoch:
            self._further(curve, dict(config))
        return curve.values[epoch - 1], curve.seconds[epoch - 1]

    def _further(self, curve: Curve, config: Config) -> None:
        began = time.process_time()
        curve.begun = curve.begun or self.train(config)
        curve.values.append(next(curve.begun))
        curve.seconds.append(time.process_time() - began)
        self.spent += curve.seconds[-1]


@dataclass
class Run:
    """One search: after each epoch what was spent, and the smallest error of any epoch so far."""

    epochs: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    trials: int = 0
    full: int = 0  # of these trained for all epochs
    deciding: float = 0.0  # seconds
    ended: list[list[Any]] = field(default_factory=list)  # of each trial: configuration, epochs, last error
    tables: list[int] = field(default_factory=list)  # of BO-BOS: the epoch at which each decision's table was solved
    stops: list[list[float]] = field(default_factory=list)  # trial, table, and with --ends the error after all epochs

    def add(self, seconds: float, error: float) -> None:
        """Another epoch."""
        self.epochs.append(len(self.epochs) + 1.0)
        self.seconds.append(seconds)
        self.best.append(min(error, self.best[-1]) if self.best else error)


@dataclass
class Paid:
    """A search at work: the epochs that it pays for."""

    trainings: Trainings
    run: Run = field(default_factory=Run)
    trained: float = 0.0  # seconds
    began: float = field(default_factory=time.process_time)
    before: float = field(init=False)  # seconds that the trainings had taken

    def __post_init__(self) -> None:
        self.before = self.trainings.spent

    def train(self, config: Mapping[str, Any], epoch: int) -> tuple[float, float]:
        """Return the error after an epoch, and its seconds."""
        error, seconds = self.trainings.at(config, epoch)
        self.trained += seconds
        self.run.deciding = time.process_time() - self.began - (self.trainings.spent - self.before)
        self.run.add(self.trained + self.run.deciding, error)
        return error, seconds


def search(problem: Problem, policy: Policy[Any], seed: int, epochs: int, trainings: Trainings) -> Run:
    """One search through a study, until its epochs are spent."""
    study, paid = Study(problem, policy, seed=seed, budget=Budget(epochs=epochs), verbose=0), Paid(trainings)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                error, seconds = paid.train(trial.config, epoch)
                verdict = trial.report(error, seconds=seconds)
                if verdict.resumable:
                    trial.checkpointed(f"curve-{trial.id}")  # a curve has its trained epochs
                if table := verdict.evidence.get("solved_at"):
                    paid.run.tables.append(table)
                    if verdict.stops:
                        paid.run.stops.append([trial.id, table])
    paid.run.trials, paid.run.full = len(study.trials), sum(t.epoch == problem.max_epochs for t in study.trials)
    paid.run.ended = [[dict(t.config), int(t.epoch), float(t.values[-1])] for t in study.trials if len(t.values)]
    return paid.run


@dataclass
class Points:
    """The `Meter` of benchmarks/search/peer_syne_tune.py: its points become configurations, and errors scores."""

    problem: Problem
    epochs: int  # of the search
    paid: Paid
    configs: list[Config] = field(default_factory=list)

    @property
    def dim(self) -> int:
        return self.problem.space.dim

    @property
    def horizon(self) -> int:
        return int(self.problem.max_epochs or 1)

    @property
    def full(self) -> bool:
        return len(self.paid.run.epochs) >= self.epochs

    def take(self, point: Array) -> int:
        self.configs.append(self.problem.space.decode(point))
        return len(self.configs) - 1

    def train(self, row: int, epoch: int) -> float:
        self.paid.run.full += epoch == self.horizon
        return self.problem.goal.sign * self.paid.train(self.configs[row], epoch)[0]


def bohb(problem: Problem, seed: int, epochs: int, trainings: Trainings) -> Run:
    """One search by Syne Tune's BOHB."""
    sys.path.append(str(Path(__file__).parents[1] / "search"))
    import peer_syne_tune

    points = Points(problem, epochs, Paid(trainings))
    peer_syne_tune.run("bohb", points, seed)
    points.paid.run.trials = len(points.configs)
    return points.paid.run


def over_seeds(
    given: argparse.Namespace, training: Callable[[int], Training], found: Callable[[str, int, Trainings], Any]
) -> dict[str, list[Any]]:
    """What is found for each method, a seed each, as JSON holds it; methods of a seed share what is trained."""
    warnings.simplefilter("ignore")
    keep = Kept(given.keep, asked(given))
    runs: dict[str, list[Any]] = {name: [] for name in given.methods}
    for seed in range(given.seeds):
        began, trainings = time.process_time(), Trainings(training(seed))
        for name in given.methods:
            runs[name].append(keep([name, seed], partial(found, name, seed, trainings)))
        print(f"seed {seed}: {time.process_time() - began:.0f} s of CPU", file=sys.stderr, flush=True)
    return runs


def along(spent: Sequence[Sequence[float]], best: Sequence[Sequence[float]], at: Array) -> Array:
    """(runs, points) the best of each run when so much was spent; NaN before its first."""
    rows = []
    for xs, ys in zip(spent, best, strict=True):
        rows.append(np.array([np.nan, *ys])[np.searchsorted(xs, at * (1 + 1e-12), side="right")])
    return np.array(rows)


def mean(values: Array) -> tuple[Array, Array]:
    """Mean over runs, and its standard error."""
    n = len(values)
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else 0.0 * values[0]


def row(name: str, values: Array, scale: float = 1.0) -> str:
    """Means with their standard errors: a line of a table."""
    cells = (f"{scale * m:9.2f} ± {scale * s:4.2f}" if m == m else 16 * " " for m, s in zip(*mean(values), strict=True))
    return f"{name:26s}" + "".join(cells)


def print_errors(runs: Mapping[str, list[Run]], base: str) -> None:
    """Errors in % by run time and by epochs, and what `base` has more than the others, seed by seed."""
    seeds, end = len(runs[base]), min(run.seconds[-1] for of in runs.values() for run in of)
    total = min(run.epochs[-1] for of in runs.values() for run in of)
    for axis, last, unit in (("seconds", end, "s"), ("epochs", total, "epochs")):
        marks = [float(f"{last * share:.2g}") if share < 1 else last for share in SHARES]
        print(f"\nsmallest validation error so far in %, mean of {counted(seeds)} ± standard error")
        print(f"{'':26s}" + "".join(f"{f'{mark:.4g} {unit}':>16s}" for mark in marks))
        found = {}
        for name, of in runs.items():
            spent = [getattr(run, axis) for run in of]
            found[name] = 100 * along(spent, [run.best for run in of], np.array(marks))
            print(row(name, found[name]))
        differences(found, base, [f"{mark:.4g} {unit}" for mark in marks])
    print(f"\n{'a search':26s}{'trials':>8s}{'in full':>9s}{'CPU s':>8s}{'deciding':>10s}")
    for name, of in runs.items():
        counts = np.mean([(r.trials, r.full, r.seconds[-1], r.deciding) for r in of], axis=0)
        print(f"{name:26s}{counts[0]:8.1f}{counts[1]:9.1f}{counts[2]:8.1f}{counts[3]:10.1f}")


def print_ends(runs: Mapping[str, list[Run]]) -> None:
    """Stops, those of trials that would have ended below the least last error before them, and the tables behind."""
    for name, of in runs.items():
        decided = [table for run in of for table in run.tables]
        stops = [(run.ended[: int(trial) + 1], table, end) for run in of for trial, table, end in run.stops]
        if not stops:
            continue
        after, first = np.median([ended[-1][1] for ended, *_ in stops]), min(decided)
        wrong = sum(end < min(last for *_, last in ended[:-1]) for ended, _, end in stops)
        decisions, later = (sum(table > first for table in every) for every in (decided, [stop[1] for stop in stops]))
        trials, initial = sum(run.trials for run in of), ", ".join(f"{last:.1%}" for *_, last in of[0].ended[:6])
        print(f"\n{name}: {len(stops)} of {trials} trials stopped, half of them by epoch {after:g}; {wrong} wrongly")
        print(
            f"table later than epoch {first}'s: {decisions} of {len(decided)} decisions, {later} of {len(stops)} stops"
        )
        print(f"the first trials end at {initial}")


@dataclass(frozen=True)
class Experiment:
    """A figure of best-found errors over seeds, of methods that share what is trained on a file of the data folder."""

    name: str  # of the figure
    alt: str  # the alternative text
    title: str
    y: tuple[float, float]  # errors that are drawn, %
    file: str
    needs: tuple[str, str]  # a package, and what to install for it
    methods: Mapping[str, Method]
    horizon: int  # epochs of a full training
    training: Callable[[int, Path], Training]  # of a seed, on the file

    def run(self, given: argparse.Namespace) -> None:
        """Print its tables, and write its figure if the command line asks for it."""
        trained = partial(self.training, file=data_file(given.data, self.file))
        package, install = self.needs
        if find_spec(package) is None:
            sys.exit(f"{package} is needed: pip install {install}")
        epochs = self.horizon * given.trainings

        def found(name: str, seed: int, trainings: Trainings) -> dict[str, Any]:
            run = self.methods[name](seed, epochs, trainings)
            for stop in run.stops if given.ends else ():
                stop.append(trainings.at(run.ended[int(stop[0])][0], self.horizon)[0])
            return asdict(run)

        every = over_seeds(given, trained, found)
        runs = {name: [Run(**one) for one in of] for name, of in every.items()}
        print_errors(runs, PAPERS if PAPERS in runs else next(iter(runs)))
        if given.ends:
            print_ends(runs)
        if given.svg:
            draw_errors(runs, self.name, self.alt, f"{self.title}, {counted(given.seeds)}", self.y)


def draw_errors(runs: Mapping[str, list[Run]], name: str, alt: str, title: str, y: tuple[float, float]) -> None:
    """Best-found validation error in % by run time, as in figures 2 and 4, and by epochs; y: what is drawn of it."""
    from drawn import Sheet, legend, means, panel, write

    sheet = Sheet(name, alt, height=380)
    for axis, unit, left, words in (
        ("seconds", "run time, s of CPU", 46, title), ("epochs", "epochs, all trials together", 426, ""),
    ):  # fmt: skip
        end = min(getattr(run, axis)[-1] for of in runs.values() for run in of)
        made = panel(sheet, left, 320, (0, end), y, rows=2)
        made.axes(words, unit, "best-found validation error, %", ticks(0, end), ticks(*y))
        at = np.linspace(0, end, 110)[1:]
        curves = {
            key: 100 * along([getattr(run, axis) for run in of], [run.best for run in of], at)
            for key, of in runs.items()
        }
        means(made, at, curves)
    legend(sheet, runs, 46)
    write(sheet)


def counted(seeds: int) -> str:
    """Return a number in words."""
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers between two."""
    rough = (high - low) / 5
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(k for k in (1, 2, 5, 10) if k * power >= rough)
    return np.arange(np.ceil(low / step) * step, high * (1 + 1e-9), step).round(6).tolist()


def parser(
    doc: str | None, seeds: int, trainings: int, methods: Iterable[str], data: str | None = None
) -> argparse.ArgumentParser:
    """The arguments that the scripts have in common."""
    made = command_line(doc, seeds, data)
    made.add_argument(
        "--trainings", type=int, default=trainings, help="full trainings' worth of epochs for each method"
    )
    made.add_argument("--methods", nargs="+", choices=[*methods], default=[*methods])
    return made
