"""The first figure of BO-BOS (Dai et al. 2019): logistic regression on MNIST, best validation error by epochs.

    python benchmarks/papers/bobos_mnist.py --data FOLDER [--seeds 10] [--trainings 30] [--methods NAME ...]
        [--keep FILE] [--svg]

GP-UCB, BO-BOS with the paper's four sequences of K1 (faithful mode, K1 = 100 at first, K2 = 99, c = 1, kappa = 2) and
BO-BOS as it comes (robust). All of a seed share six starts and spend the same epochs. The error of a trial is
that of its last epoch, y_t of the paper. The folder, or the variable HALTUNE_DATA, holds mnist_10k.npz: `images`
uint8 (10000, 28, 28) and `labels` (10000,).
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from command_line import command_line, data_file
from kept import Kept, asked
from mnist_logistic import load, remembered
from numpy.typing import NDArray
from paired import differences

from haltune import Budget, Float, Int, Minimize, Problem, Space, Study
from haltune.log.policy import Policy
from haltune.policies import BOBOS, GPUCB

Array = NDArray[np.float64]

HORIZON = 50  # N
GOAL = 0.6  # of GP-UCB's epochs: the aim
# The paper's curves decay towards error 0 of the scale. On [0, 1] every curve that settles at 0.09 looks as if it went
# on to 0, and nothing is stopped. So the scale ends where pairwise linear classifiers do with all 60,000 digits: 7.6%,
# LeCun et al. (1998); above a half is as bad as can be.
BOUNDS = (0.076, 0.5)
BASE, FIXED = "GP-UCB", "BO-BOS (d) K1 fixed"

PROBLEM = Problem(
    Space(
        {
            "batch_size": Int(20, 500, log=True),
            "l2": Float(1e-6, 1.0, log=True),
            "learning_rate": Float(1e-3, 0.1, log=True),
        }
    ),
    Minimize("validation error", bounds=BOUNDS),
    max_epochs=HORIZON,
)


def faithful(growth: float) -> BOBOS:
    """The paper's settings; `growth` of K1 a trial."""
    return BOBOS(mode="faithful", K1=100.0, K2=99.0, c=1.0, kappa=2.0, growth=growth)


METHODS: dict[str, Policy] = {
    BASE: GPUCB(),
    "BO-BOS (a) K1 / 0.89": faithful(1 / 0.89),
    "BO-BOS (b) K1 / 0.95": faithful(1 / 0.95),
    "BO-BOS (c) K1 / 0.99": faithful(1 / 0.99),
    FIXED: faithful(1.0),
    "BO-BOS, robust": BOBOS(),
}
COLOURS = ("#1c2530", "#56b4e9", "#0072b2", "#009e73", "#cc79a7", "#d55e00")


@dataclass(frozen=True)
class Run:
    """One search."""

    errors: list[float]  # the best last error of a trial so far, after each epoch spent
    lowest: list[float]  # the lowest error of any epoch so far
    trials: int
    full: int  # of these trained for all epochs
    deciding: float  # seconds


def search(policy: Policy, seed: int, data: Path, cache: Path, epochs: int) -> Run:
    """One search through a study, until its epochs are spent."""
    digits = load(data)
    study = Study(PROBLEM, policy, seed=seed, budget=Budget(epochs=epochs), verbose=0)
    for trial in study:
        with trial, closing(remembered(digits, trial.config, cache)) as errors:
            for _ in trial.epochs():
                trial.report(next(errors))
    every = np.concatenate([t.values for t in study.trials])[:epochs]
    last = np.concatenate([[*np.full(len(t.values) - 1, 1.0), t.values[-1]] for t in study.trials])[:epochs]
    full = sum(t.epoch == HORIZON for t in study.trials)
    errors, lowest = np.minimum.accumulate(last), np.minimum.accumulate(every)
    return Run(errors.tolist(), lowest.tolist(), len(study.trials), full, study.spent.deciding)


def searches(given: argparse.Namespace, data: Path, cache: Path, epochs: int) -> dict[str, list[Run]]:
    """The runs of each method; those of a seed have the same starts and share what is trained."""
    warnings.simplefilter("ignore")
    keep = Kept(given.keep, asked(given))
    runs: dict[str, list[Run]] = {name: [] for name in given.methods}
    for seed in range(given.seeds):
        began = time.process_time()
        for name in given.methods:
            run = keep(
                [name, seed], lambda name=name, seed=seed: asdict(search(METHODS[name], seed, data, cache, epochs))
            )
            runs[name].append(Run(**run))
        print(f"seed {seed}: {time.process_time() - began:.0f} s of CPU", file=sys.stderr, flush=True)
    return runs


def reached(mean: Array, level: float) -> int | None:
    """The epochs after which a falling mean curve is at `level` or below; None when it never is."""
    below = np.flatnonzero(mean <= level + 1e-12)
    return int(below[0]) + 1 if len(below) else None


def report(runs: dict[str, list[Run]]) -> None:
    """Print the table by both measures, and the differences from GP-UCB and from the fixed K1, seed by seed."""
    table("the best last epoch of a trial", {name: np.array([r.errors for r in of]) for name, of in runs.items()})
    table("the lowest of any epoch", {name: np.array([r.lowest for r in of]) for name, of in runs.items()})
    print(f"\n{'a search':22s} trials  in full  ms of deciding a trial")
    for name, of in runs.items():
        trials, full = (float(np.mean([getattr(r, key) for r in of])) for key in ("trials", "full"))
        deciding = 1e3 * float(np.mean([r.deciding / r.trials for r in of]))
        print(f"{name:22s} {trials:6.1f}  {full:7.1f}  {deciding:6.0f}")
    ends = {name: 100 * np.array([run.errors for run in of]) for name, of in runs.items()}
    epochs = len(runs[BASE][0].errors)
    marks = [epochs * k // 10 for k in (5, 6, 7, 8, 10)]
    for base in (BASE, FIXED):
        at = {name: errors[:, np.array(marks) - 1] for name, errors in ends.items()}
        differences(at, base, [f"{mark} epochs, points" for mark in marks])


def table(measure: str, curves: dict[str, Array]) -> None:
    """Mean errors along the search, and the epochs to the level that GP-UCB ends at."""
    means = {name: errors.mean(axis=0) for name, errors in curves.items()}
    epochs, level = len(means[BASE]), float(means[BASE][-1])
    own = reached(means[BASE], level) or epochs
    marks = [epochs * k // 10 for k in (2, 4, 6, 10)]
    head = "".join(f"{f'at {m}':>9s}" for m in marks)
    print(
        f"\nvalidation error in %, {measure}, mean of {len(curves[BASE])} seeds; {BASE} ends at {100 * level:.3f}, "
        f"there after {own} epochs\n{'':22s}{head}   +-    as good after  share of {BASE}'s epochs"
    )
    for name, mean in means.items():
        at = reached(mean, level)
        aim = "" if name == BASE else "   the aim" if at and at <= GOAL * own else ""
        share = f"{at:13d}  {at / own:5.2f}{aim}" if at else f"{'never':>13s}"
        cells = "".join(f"{100 * mean[m - 1]:9.2f}" for m in marks)
        print(f"{name:22s}{cells} {100 * _error_of_mean(curves[name][:, -1]):5.2f}  {share}")
    print(f"The aim: as good after {GOAL} of {BASE}'s epochs, or fewer.")


def _error_of_mean(values: Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def draw(runs: dict[str, list[Run]], path: Path) -> None:
    """The figure: means with a band of one standard error. Says so when Plotly is missing."""
    try:
        import plotly.graph_objects as go
    except ImportError:
        print("\nno figure: it needs Plotly, pip install 'haltune[report]'")
        return
    figure = go.Figure()
    for (name, of), colour in zip(runs.items(), COLOURS, strict=False):
        errors = 100 * np.array([run.errors for run in of])
        mean, spread = errors.mean(axis=0), errors.std(axis=0) / np.sqrt(len(errors))
        epochs = np.arange(1, len(mean) + 1)
        figure.add_scatter(
            x=[*epochs, *epochs[::-1]], y=[*(mean - spread), *(mean + spread)[::-1]], fill="toself", mode="none",
            fillcolor=colour, opacity=0.12, hoverinfo="skip", showlegend=False, legendgroup=name,
        )  # fmt: skip
        line = {"color": colour, "width": 3 if name == BASE else 2, "dash": "dot" if name == FIXED else "solid"}
        figure.add_scatter(x=epochs, y=mean, name=name, line=line, legendgroup=name)
    top = 100 * float(np.mean([run.errors[2 * HORIZON - 1] for run in runs[BASE]]))
    figure.update_layout(
        template="plotly_white", width=900, height=560, legend={"x": 0.98, "y": 0.98, "xanchor": "right"},
        title=f"Logistic regression on MNIST-10k, {len(runs[BASE])} seeds", hovermode="x unified",
        xaxis_title="epochs, all trials together", yaxis_title="best validation error, %",
        yaxis_range=[100 * min(run.errors[-1] for of in runs.values() for run in of), top],
    )  # fmt: skip
    figure.write_html(path, include_plotlyjs=True)
    print(f"\nfigure: {path}")


def draw_svg(runs: dict[str, list[Run]]) -> None:
    """The figure of docs/experiments, drawn from the second training's worth of epochs on."""
    from drawn import Sheet, legend, means, panel, write

    errors = {name: 100 * np.array([run.errors for run in of]) for name, of in runs.items()}
    at = np.arange(2 * HORIZON, len(errors[BASE][0]) + 1, 12)
    shown = {name: curves[:, at - 1] for name, curves in errors.items()}
    lows, tops = (pick([curves.mean(axis=0) for curves in shown.values()]) for pick in (np.min, np.max))
    y = np.floor(2 * lows) / 2, np.ceil(2 * tops) / 2
    sheet = Sheet("bobos_mnist", "Best-found validation error of logistic regression by epochs.", height=400)
    made = panel(sheet, 46, 690, (0, int(at[-1])), y, rows=2)
    title = f"Logistic regression on 10,000 digits, {len(runs[BASE])} seeds"
    marks = np.arange(y[0], y[1] + 1e-9, 0.5 if y[1] - y[0] < 4 else 1.0).tolist()
    made.axes(title, "epochs, all trials together", "best-found validation error, %", range(0, at[-1] + 1, 250), marks)
    means(made, at, shown)
    legend(sheet, shown, 46)
    write(sheet)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__, 10, "mnist_10k.npz")
    parser.add_argument("--trainings", type=int, default=30, help="full trainings' worth of epochs a method")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS], help=f"{BASE} among them")
    parser.add_argument("--cache", type=Path, help="folder that keeps trained curves from run to run")
    parser.add_argument("--figure", type=Path, help="page to draw, an .html file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parsed(arguments)
    data, epochs = data_file(given.data, "mnist_10k.npz").parent, HORIZON * given.trainings
    with tempfile.TemporaryDirectory() as temporary:
        cache = given.cache or Path(temporary)
        cache.mkdir(parents=True, exist_ok=True)
        runs = searches(given, data, cache, epochs)
    report(runs)
    if given.figure:
        draw(runs, given.figure)
    if given.svg:
        draw_svg(runs)


if __name__ == "__main__":
    main()
