"""Searches that plan under a budget, side by side: the best value so far against the share of the budget spent.

What the benchmarks rollout_*.py share. Evaluations that the budget does not pay for in full do not count. As in Lee et
al. (2021) curves are means over seeds on a grid of what was spent; the bands here are one standard error.
"""

import argparse
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pool
from typing import Any

import drawn
import numpy as np
from command_line import command_line
from kept import Kept, asked
from numpy.typing import NDArray
from paired import differences

from haltune import Study, Trial
from haltune.policies import EI, Rollout

Array = NDArray[np.float64]
Task = tuple[str, str, int]  # problem, policy, seed
Found = tuple[
    Array, list[float]
]  # the best value after each of SHARES; the evaluations' costs, as shares of the budget
Panels = Mapping[str, Mapping[str, Array]]  # problem -> policy -> (seeds, shares)
SHARES = np.linspace(0.0, 1.0, 151)
PLACES = [int(np.searchsorted(SHARES, mark - 1e-9)) for mark in (1 / 3, 2 / 3, 1.0)]
POLICIES: dict[str, Callable[..., Any]] = {  # of the costs in advance, where they are known
    "EI": lambda cost=None: EI(),
    "EI per cost": lambda cost=None: EI(cost="per", cost_function=cost),
    "EI, cost cooled": lambda cost=None: EI(cost="cooled", cost_function=cost),
    "rollout, h = 2": Rollout,
    "rollout, h = 4": partial(Rollout, 4),
    "rollout, h = 2, the paper's rule": partial(Rollout, cooled=False),
    "rollout, h = 4, the paper's rule": partial(Rollout, 4, cooled=False),
}


def progress(study: Study, train: Callable[[Trial], tuple[float, float]], limit: float) -> Found:
    """(shares,) the least value after each share of `limit`, NaN before there is one, and the costs of the evaluations.

    train reports to the trial, and answers its value and its cost.
    """
    logging.disable(logging.WARNING)  # the evaluation that the budget cuts off
    spent, best, curve, costs = 0.0, np.inf, np.full(len(SHARES), np.nan), []
    for trial in study:
        value, cost = train(trial)
        spent += cost
        if spent > limit * (1 + 1e-9):
            break
        best = min(best, value)
        costs.append(cost / limit)
        curve[np.searchsorted(SHARES, spent / limit - 1e-9) :] = best
    return curve, costs


def parser(description: str, seeds: int, problems: Iterable[str]) -> argparse.ArgumentParser:
    """The command line that these benchmarks share."""
    found, problems = command_line(description, seeds), list(problems)
    found.add_argument("--problem", nargs="+", choices=problems, default=problems)
    found.add_argument("--policy", nargs="+", choices=[*POLICIES], default=[*POLICIES])
    found.add_argument("--processes", type=int, default=1)
    return found


def compare(search: Callable[[Task], Found], args: argparse.Namespace) -> Panels:
    """Searches of every problem, policy and seed; a row of each policy is printed when its seeds are done."""
    kept = Kept(args.keep, asked(args))
    panels: dict[str, dict[str, Array]] = {}
    with Pool(args.processes) as pool:
        for problem in args.problem:
            print(
                f"{problem}: mean best after a third, two thirds and all of the budget; evaluations in the first third "
                "x their median cost in shares of the budget",
                flush=True,
            )
            panels[problem] = {}
            for policy in args.policy:
                tasks = [(problem, policy, seed) for seed in range(args.seeds)]
                missing = [task for task in tasks if task not in kept]
                for task, (curve, costs) in zip(missing, pool.imap(search, missing), strict=True):
                    kept.add(task, [[None if np.isnan(v) else v for v in curve], costs])
                curves = panels[problem][policy] = np.array([kept[task][0] for task in tasks], dtype=float)
                first = early([kept[task][1] for task in tasks])
                print(f"  {policy:34s} {args.seeds:3d}  {row(curves)}   {first}", flush=True)
            at = {policy: curves[:, PLACES] for policy, curves in panels[problem].items()}
            for policy in at:
                if policy != "EI":
                    differences(at, policy, ("a third", "two thirds", "all"))
    return panels


def row(curves: Array) -> str:
    """Means and standard errors at the marks."""
    at = curves[:, PLACES]
    errors = at.std(axis=0, ddof=1) / np.sqrt(len(at)) if len(at) > 1 else np.full(len(PLACES), np.nan)
    return "  ".join(f"{mean:8.4f}±{error:.4f}" for mean, error in zip(at.mean(axis=0), errors, strict=True))


def early(costs: Sequence[Sequence[float]]) -> str:
    """Means over searches: the number of evaluations that end within the first third, and their median cost."""
    within = [np.array(paid)[np.cumsum(paid) <= 1 / 3] for paid in costs]
    return f"{np.mean([*map(len, within)]):.1f} x {np.mean([np.median(paid) for paid in within if len(paid)]):.2%}"


@dataclass(frozen=True)
class Axes:
    """Axes of one problem's panel."""

    title: str
    limit: float  # the budget
    unit: str
    value: str


def draw(name: str, panels: Panels, axes: Mapping[str, Axes]) -> None:
    """A panel a problem: means and standard errors against what was spent, from where every search has a value."""
    wide = 900 if len(panels) > 1 else 700
    names = next(iter(panels.values()))
    rows = 2 if len(names) > 4 else 1
    sheet = drawn.Sheet(name, "Best value so far by cost, for each policy", wide, 360 + 18 * rows)
    step = (wide - 10) / len(panels)
    for i, (problem, curves) in enumerate(panels.items()):
        its = axes[problem]
        low, high = _between(curves)
        panel = drawn.panel(sheet, 56 + i * step, step - 66, (0, its.limit), (low, high), rows)
        ticks = [float(f"{tick:.3g}") for tick in np.linspace(0, its.limit, 4)]
        title = f"{its.title}, {min(map(len, curves.values()))} searches"
        panel.axes(title, its.unit, its.value, ticks, _ticks(low, high))
        every = max(1, len(panels) - 1)  # points: a figure stays small
        drawn.means(panel, SHARES[::every] * its.limit, {key: curve[:, ::every] for key, curve in curves.items()})
    drawn.legend(sheet, names)
    drawn.write(sheet)


def _between(curves: Mapping[str, Array]) -> tuple[float, float]:
    """Return the range of the figure: from the lowest band to the median at a tenth of the budget."""
    every = [*curves.values()]
    errors = [c[:, -1].std(ddof=1) / len(c) ** 0.5 if len(c) > 1 else 0.0 for c in every]
    low = min(c[:, -1].mean() - error for c, error in zip(every, errors, strict=True))
    high = float(np.nanmedian(np.concatenate([c[:, len(SHARES) // 10] for c in every])))
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between."""
    rough = (high - low) / 4
    unit = 10.0 ** np.floor(np.log10(rough))
    step = unit * min((1, 2, 5, 10), key=lambda m: abs(m * unit - rough))
    return [float(f"{k * step:.6g}") for k in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]
