"""Figure 4 of Lee et al. (2021), "A nonmyopic approach to cost-constrained Bayesian optimization", and a harder cost.

    python benchmarks/papers/rollout_toy.py [--seeds 24] [--cost printed ring] [--figure FILE] [--processes 1]

f(x) = 10 |x| sin(2 pi |x|) on [-1, 1]^2 is minimised within a budget of 150 of cost, which trials report and policies
learn. "printed": c = 10 - 5 |x|, the paper's formula; its caption says that the minimum is the dearest point, but the
minimum, -7.66 on the ring |x| = 0.782, then costs 6.1. "ring": c = 10 - 8 | |x| - 0.782 |, dearest where f is least.
Printed are means over seeds and their standard errors of the best f after a third, two thirds and all of the budget.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import logging
from collections.abc import Callable
from functools import partial
from math import hypot, pi, sin
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haltune import Budget, Float, Minimize, Problem, Space, Study
from haltune.policies import EI, CostCooledEI, EIPerCost, Rollout

Array = NDArray[np.float64]
BUDGET, RING = 150.0, 0.782
MARKS = (50.0, 100.0, 150.0)
GRID = np.linspace(0.0, BUDGET, 151)
PROBLEM = Problem(Space({"x": Float(-1.0, 1.0), "y": Float(-1.0, 1.0)}), Minimize("f"), max_epochs=1)
POLICIES: dict[str, Callable[[], Any]] = {
    "EI": EI,
    "EI per cost": EIPerCost,
    "EI, cost cooled": CostCooledEI,
    "rollout, h = 2": Rollout,
    "rollout, h = 4": partial(Rollout, 4),
    "rollout, h = 2, the paper's rule": partial(Rollout, cooled=False),
    "rollout, h = 4, the paper's rule": partial(Rollout, 4, cooled=False),
}
COLOURS = ("#4c78a8", "#54a24b", "#9d755d", "#e45756", "#b279a2", "#f58518", "#72b7b2")


def f(config: dict[str, float]) -> float:
    """Ten rings; the least is -7.66."""
    radius = hypot(config["x"], config["y"])
    return 10.0 * radius * sin(2.0 * pi * radius)


def printed(config: dict[str, float]) -> float:
    """The formula in section 6.1."""
    return 10.0 - 5.0 * hypot(config["x"], config["y"])


def ring(config: dict[str, float]) -> float:
    """Dearest on the ring of the minimum."""
    return 10.0 - 8.0 * abs(hypot(config["x"], config["y"]) - RING)


COSTS = {"printed": printed, "ring": ring}


def search(task: tuple[str, str, int]) -> Array:
    """(151,) the best f after each unit of cost; before the first evaluation the worst that f can be, about 3."""
    name, cost, seed = task
    logging.disable(logging.WARNING)  # the evaluation that the budget cuts off
    study = Study(PROBLEM, POLICIES[name](), seed=seed, budget=Budget(cost=BUDGET))
    spent, best, curve = 0.0, 3.0, np.full(len(GRID), 3.0)
    for trial in study:
        spent += COSTS[cost](trial.config)
        trial.report(f(trial.config), cost=COSTS[cost](trial.config))
        if spent <= BUDGET:  # what is not paid for does not count
            best = min(best, f(trial.config))
            curve[np.ceil(spent).astype(int) :] = best
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--cost", nargs="+", choices=[*COSTS], default=[*COSTS])
    parser.add_argument("--policy", nargs="+", choices=[*POLICIES], default=[*POLICIES])
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    panels: dict[str, dict[str, Array]] = {}
    with Pool(args.processes) as pool:
        for cost in args.cost:
            print(f"cost {cost}: mean best f after " + ", ".join(f"{m:g}" for m in MARKS), flush=True)
            panels[cost] = {}
            for name in args.policy:
                curves = np.array(pool.map(search, [(name, cost, seed) for seed in range(args.seeds)]))
                panels[cost][name] = curves
                print(f"  {name:34s} {args.seeds:3d}  {row(curves)}", flush=True)
    if args.figure:
        draw(panels, args.figure)


def row(curves: Array) -> str:
    """Means and standard errors at the marks."""
    at = curves[:, [int(mark) for mark in MARKS]]
    errors = at.std(axis=0, ddof=1) / np.sqrt(len(at)) if len(at) > 1 else np.full(len(MARKS), np.nan)
    return "  ".join(f"{mean:7.3f}±{error:.3f}" for mean, error in zip(at.mean(axis=0), errors, strict=True))


def draw(panels: dict[str, dict[str, Array]], file: Path) -> None:
    """Mean best f by cost, one panel a cost function, one standard deviation shaded, in a page of its own."""
    from plotly.subplots import make_subplots

    titles = [f"cost: {cost}" for cost in panels]
    figure = make_subplots(rows=1, cols=len(panels), subplot_titles=titles, shared_yaxes=True)
    for column, curves in enumerate(panels.values(), 1):
        for colour, (name, values) in zip(COLOURS, curves.items(), strict=False):
            mean, spread = values.mean(axis=0), values.std(axis=0)
            band = np.concatenate([mean + spread, (mean - spread)[::-1]])
            around = np.concatenate([GRID, GRID[::-1]])
            shade = {"fill": "toself", "opacity": 0.12, "line": {"width": 0}, "hoverinfo": "skip"}
            figure.add_scatter(
                x=around, y=band, fillcolor=colour, showlegend=False, row=1, col=column, **shade
            )
            figure.add_scatter(
                x=GRID, y=mean, name=name, line={"color": colour}, showlegend=column == 1, row=1, col=column
            )
    figure.update_xaxes(title_text="cost spent")
    figure.update_yaxes(title_text="best f", range=[-8.2, 1.0], col=1)
    figure.update_layout(template="plotly_white", width=620 * len(panels), height=480, legend={"y": 0.98})
    figure.write_html(file, include_plotlyjs=True)


if __name__ == "__main__":
    main()
