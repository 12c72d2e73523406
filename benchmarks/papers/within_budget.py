"""Searches that plan under a budget, side by side: the best value so far against the share of the budget spent.

What the benchmarks rollout_*.py share. Evaluations that the budget does not pay for in full do not count. As in Lee et
al. (2021) curves are means over seeds on a grid of shares, with one standard deviation.
"""

import argparse
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haltune import Study, Trial
from haltune.policies import EI, CostCooledEI, EIPerCost, Rollout

Array = NDArray[np.float64]
Task = tuple[str, str, int]  # problem, policy, seed
Panels = Mapping[str, Mapping[str, Array]]  # problem -> policy -> (seeds, shares)
SHARES = np.linspace(0.0, 1.0, 151)
MARKS = (1 / 3, 2 / 3, 1.0)
POLICIES: dict[str, Callable[..., Any]] = {  # of the costs in advance, where they are known
    "EI": lambda cost=None: EI(),
    "EI per cost": EIPerCost,
    "EI, cost cooled": CostCooledEI,
    "rollout, h = 2": Rollout,
    "rollout, h = 4": partial(Rollout, 4),
    "rollout, h = 2, the paper's rule": partial(Rollout, cooled=False),
    "rollout, h = 4, the paper's rule": partial(Rollout, 4, cooled=False),
}
COLOURS = dict(
    zip(POLICIES, ("#4c78a8", "#54a24b", "#9d755d", "#e45756", "#b279a2", "#f58518", "#72b7b2"), strict=True)
)


def progress(study: Study, train: Callable[[Trial], tuple[float, float]], limit: float) -> Array:
    """(shares,) the least value after each share of `limit`, NaN before there is one.

    train reports to the trial, and answers its value and its cost.
    """
    logging.disable(logging.WARNING)  # the evaluation that the budget cuts off
    spent, best, curve = 0.0, np.inf, np.full(len(SHARES), np.nan)
    for trial in study:
        value, cost = train(trial)
        spent += cost
        if spent > limit * (1 + 1e-9):
            break
        best = min(best, value)
        curve[np.searchsorted(SHARES, spent / limit - 1e-9) :] = best
    return curve


def parser(description: str, seeds: int, problems: Iterable[str]) -> argparse.ArgumentParser:
    """The command line that these benchmarks share."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    problems = list(problems)
    found.add_argument("--seeds", type=int, default=seeds)
    found.add_argument("--problem", nargs="+", choices=problems, default=problems)
    found.add_argument("--policy", nargs="+", choices=[*POLICIES], default=[*POLICIES])
    found.add_argument("--figure", type=Path, help="an HTML page to write")
    found.add_argument("--keep", type=Path, help="a file of finished searches, which are not run again")
    found.add_argument("--processes", type=int, default=1)
    return found


def compare(search: Callable[[Task], Array], args: argparse.Namespace) -> Panels:
    """Searches of every problem, policy and seed; a row of each policy is printed when its seeds are done."""
    kept = _kept(args.keep)
    panels: dict[str, dict[str, Array]] = {}
    with Pool(args.processes) as pool:
        for problem in args.problem:
            print(f"{problem}: mean best after a third, two thirds and all of the budget", flush=True)
            panels[problem] = {}
            for policy in args.policy:
                tasks = [(problem, policy, seed) for seed in range(args.seeds)]
                missing = [task for task in tasks if task not in kept]
                for task, curve in zip(missing, pool.imap(search, missing), strict=True):
                    kept[task] = curve
                    _keep(args.keep, task, curve)
                curves = panels[problem][policy] = np.array([kept[task] for task in tasks])
                print(f"  {policy:34s} {args.seeds:3d}  {row(curves)}", flush=True)
    return panels


def row(curves: Array) -> str:
    """Means and standard errors at the marks."""
    at = curves[:, [int(np.searchsorted(SHARES, mark - 1e-9)) for mark in MARKS]]
    errors = at.std(axis=0, ddof=1) / np.sqrt(len(at)) if len(at) > 1 else np.full(len(MARKS), np.nan)
    return "  ".join(f"{mean:8.4f}±{error:.4f}" for mean, error in zip(at.mean(axis=0), errors, strict=True))


def draw(panels: Panels, file: Path, titles: Sequence[str], value: str) -> None:
    """A panel a problem, in a page of its own; one standard deviation is shaded, but of the paper's rule, dotted."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=len(panels), subplot_titles=titles, horizontal_spacing=0.06)
    for column, curves in enumerate(panels.values(), 1):
        place: dict[str, Any] = {"row": 1, "col": column}
        lowest, highest = np.inf, -np.inf  # a band may leave the frame upwards, a line may not
        for name, values in curves.items():
            known = np.isfinite(values).all(axis=0)
            mean, spread = values.mean(axis=0)[known], values.std(axis=0)[known]
            x, low, high = (part.tolist() for part in (SHARES[known], mean - spread, mean + spread))
            lowest, highest = min(lowest, *low), max(highest, *mean)
            theirs = name.endswith("rule")
            width, dash = (1.5, "dot") if theirs else (2.5, "solid")
            line = {"color": COLOURS[name], "width": width, "dash": dash}
            if not theirs:
                figure.add_scatter(
                    x=x + x[::-1], y=high + low[::-1], fill="toself", mode="none", fillcolor=COLOURS[name],
                    opacity=0.1, hoverinfo="skip", showlegend=False, legendgroup=name, **place,
                )  # fmt: skip
            figure.add_scatter(
                x=x, y=mean.tolist(), name=name, line=line, mode="lines", legendgroup=name, showlegend=column == 1,
                **place,
            )  # fmt: skip
        margin = 0.05 * (highest - lowest)
        figure.update_yaxes(range=[lowest - margin, highest + margin], **place)
    figure.update_xaxes(title_text="share of the budget spent", range=[0, 1], tickformat=".0%")
    figure.update_yaxes(title_text=value, col=1)
    figure.update_layout(
        template="plotly_white", width=max(760, 480 * len(panels)), height=520,
        legend={"orientation": "h", "y": -0.2, "yanchor": "top"},
    )  # fmt: skip
    figure.write_html(file, include_plotlyjs=True)
    print(f"figure: {file}")


def _kept(file: Path | None) -> dict[Task, Array]:
    if file is None or not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {(problem, policy, seed): np.array(curve, dtype=float) for problem, policy, seed, curve in rows}


def _keep(file: Path | None, task: Task, curve: Array) -> None:
    if file is not None:
        with file.open("a", encoding="utf-8") as rows:
            rows.write(json.dumps([*task, [None if np.isnan(v) else v for v in curve]]) + "\n")
