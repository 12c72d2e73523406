"""Level sets: TruVaR choosing among three noise levels (figures 2c, 4b), and costs of travel (2b, 2e, 2f).

    python benchmarks/papers/truvar_level_sets.py [noise|lake] [--runs 50] [--figure FILE.html]

noise: functions of a Gaussian process on 50 x 50 points, squared exponential, lengthscale 0.1, threshold 2.25;
variances 1e-6, 1e-3, 0.05 at costs 15, 10, 2; GCHK runs at each of them. lake: a stand-in for the chlorophyll data,
which are not public: a layer at a depth, and on it a draw of a Matern-5/2 process, threshold 1.5; a sample costs
0.25 |x1 - x1'| + 4 (|x2| + 1), x1 in metres along the vessel's way and x2 the depth; the kernel is fitted to 200
points of another lake of the kind. Shown: mean F1 of classifying by the posterior mean.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from haltune import Budget, Float, Level, Maximize, Problem, Space, Study
from haltune.accord import alone
from haltune.gp import Kernel, fit
from haltune.policies import LevelSetSearch, TruVaR

SIDE = 50
LEVELS = [Level("cheap", 0.05, 2.0), Level("middle", 1e-3, 10.0), Level("precise", 1e-6, 15.0)]
SPACE = Space({"x1": Float(0.0, 1.0), "x2": Float(0.0, 1.0)})
LAKE = Space({"x1": Float(0.0, 1400.0), "x2": Float(-20.0, 0.0)})


@dataclass(frozen=True)
class World:
    """One function to be searched."""

    space: Space
    values: dict[str, float]  # by the key of a configuration
    kernel: Kernel
    mean: float
    threshold: float
    start: dict[str, Any] | None = None


@dataclass(frozen=True)
class Run:
    """After each observation: what was spent, and F1; the costs by level, and the way taken."""

    spent: np.ndarray
    f1: np.ndarray
    levels: list[str]
    costs: np.ndarray
    way: np.ndarray

    def at(self, cost: float) -> float:
        """F1 when this much is spent, 0 before the first observation."""
        return (
            float(self.f1[np.searchsorted(self.spent, cost, side="right") - 1])
            if self.spent[0] <= cost
            else 0.0
        )

    def reaches(self, f1: float) -> float:
        """The cost after which F1 stays at this or above; infinite when it does not."""
        below = np.flatnonzero(self.f1 < f1)
        last = below[-1] + 1 if len(below) else 0
        return float(self.spent[last]) if last < len(self.spent) else np.inf


def synthetic(seed: int) -> World:
    """A draw of the paper's prior."""
    kernel = Kernel("se", 1.0, np.array([0.1, 0.1]))
    configs = SPACE.mesh(SIDE)
    points = SPACE.encode_many(configs)
    root = np.linalg.cholesky(kernel(points) + 1e-8 * np.eye(len(points)))
    values = root @ np.random.default_rng(seed).standard_normal(len(points))
    return World(SPACE, dict(zip(SPACE.keys(configs), values.tolist(), strict=True)), kernel, 0.0, 2.25)


def concentration(points: np.ndarray, seed: int) -> np.ndarray:
    """At points of the unit square: a layer at some 9 m, and patches of some 400 m by 2 m: lakes are stratified."""
    kernel = Kernel("matern52", 0.36, np.array([0.3, 0.1]))
    root = np.linalg.cholesky(kernel(points) + 1e-8 * np.eye(len(points)))
    patches = root @ np.random.default_rng([seed, 7]).standard_normal(len(points))
    return 0.5 + np.exp(-(((points[:, 1] - 0.55) / 0.25) ** 2)) + patches


def lake(seed: int) -> World:
    """A lake, and the kernel learnt from another."""
    configs = LAKE.mesh(SIDE)
    points = LAKE.encode_many(configs)
    other = np.random.default_rng(99).random((200, 2))
    learnt = fit(other, concentration(other, 10_000), kernel="matern52")
    values = concentration(points, seed)
    start = configs[int(np.random.default_rng([seed, 3]).integers(len(configs)))]
    world = dict(zip(LAKE.keys(configs), values.tolist(), strict=True))
    return World(LAKE, world, learnt.kernel, learnt.constant, 1.5, start)


def travel(config: dict[str, Any], previous: dict[str, Any] | None) -> float:
    """The paper's cost of a sample."""
    moved = abs(config["x1"] - previous["x1"]) if previous else 0.0
    return 0.25 * moved + 4.0 * (abs(config["x2"]) + 1.0)


def search(policy: Any, world: World, seed: int, budget: float, cost: Callable[[Any, Any, str], float],
           noise: dict[str, float]) -> Run:  # fmt: skip
    """A study until the budget of cost is spent, or everything is classified."""
    truth = np.array([*world.values.values()]) >= world.threshold
    rng, problem = np.random.default_rng([seed, 1]), Problem(world.space, Maximize("value"), 1)
    with alone():
        study = Study(problem, policy, seed=seed, budget=Budget(trials=2000))
    rows: list[tuple[float, float, str, float, list[float]]] = []
    spent, previous = 0.0, None
    for trial in study:
        config, level = trial.config, trial.level or LEVELS[0].name
        paid = cost(config, previous, level)
        if spent + paid > budget:
            break
        noisy = np.sqrt(noise[level]) * rng.standard_normal()
        trial.report(world.values[world.space.key(config)] + noisy, seconds=1.0)
        trial.finish()
        spent, previous = spent + paid, config
        belief = policy.narrowing.outlook.belief(study.history, tuple(range(len(study.history))))
        rows.append((spent, f1(belief.field.mean >= world.threshold, truth), level, paid, [*config.values()]))
    costs, scores, levels, paid_each, way = zip(*rows, strict=True)
    return Run(np.array(costs), np.array(scores), [*levels], np.array(paid_each), np.array(way))


def f1(found: np.ndarray, truth: np.ndarray) -> float:
    """The harmonic mean of precision and recall; 1 when there is nothing to find and nothing was found."""
    both = int((found & truth).sum())
    total = int(found.sum() + truth.sum())
    return 2.0 * both / total if total else 1.0


def noise_levels(seeds: Sequence[int], only_truvar: bool = False) -> dict[str, list[Run]]:
    """Figure 2c: TruVaR with all levels, GCHK with each."""
    rules = [] if only_truvar else LEVELS
    found: dict[str, list[Run]] = {"TruVaR": [], **{f"GCHK, {level.name}": [] for level in rules}}
    variances, costs = ({level.name: getattr(level, what) for level in LEVELS} for what in ("noise", "cost"))
    for seed in seeds:
        world, began = synthetic(seed), time.perf_counter()
        policy = TruVaR(threshold=world.threshold, kernel=world.kernel, levels=LEVELS, grid=SIDE, initial=0)
        found["TruVaR"].append(search(policy, world, seed, 600.0, lambda c, p, name: costs[name], variances))
        for level in rules:
            rule = LevelSetSearch(
                world.threshold, noise=level.noise, kernel=world.kernel, grid=SIDE, initial=0
            )
            only = dict.fromkeys(variances, level.noise)
            own = search(rule, world, seed, 600.0, lambda c, p, _, paid=level.cost: paid, only)
            found[f"GCHK, {level.name}"].append(own)
        print(
            f"function {seed}: {time.perf_counter() - began:.0f} s, F1 {found['TruVaR'][-1].f1[-1]:.3f}",
            flush=True,
        )
    return found


def transects(runs: int) -> dict[str, list[Run]]:
    """Figure 2b: TruVaR with the travel cost, GCHK and straddle that ignore it."""
    found: dict[str, list[Run]] = {"TruVaR": [], "GCHK": [], "straddle": []}
    for seed in range(runs):
        world = lake(seed)
        common = {"kernel": world.kernel, "mean": world.mean, "noise": 1e-6, "grid": SIDE, "initial": 1}
        policies = {
            "TruVaR": TruVaR(threshold=world.threshold, cost=travel, **common),
            "GCHK": LevelSetSearch(world.threshold, **common),
            "straddle": LevelSetSearch(world.threshold, "straddle", **common),
        }
        for name, policy in policies.items():
            exact = dict.fromkeys((level.name for level in LEVELS), 0.0)
            found[name].append(search(policy, world, seed, 12_000.0, lambda c, p, _: travel(c, p), exact))
        print(
            f"lake {seed}: " + ", ".join(f"{n} {r[-1].reaches(0.95):.0f}" for n, r in found.items()),
            flush=True,
        )
    return found


def show(found: dict[str, list[Run]], marks: tuple[int, ...]) -> None:
    """Mean F1 at costs."""
    print(f"\nmean F1 of {len(found['TruVaR'])} runs at cost  " + "".join(f"{m:>8d}" for m in marks))
    for name, runs in found.items():
        print(f"{name:32s}  " + "".join(f"{np.mean([r.at(m) for r in runs]):8.3f}" for m in marks))


def show_levels(runs: list[Run]) -> None:
    """Figure 4b: the cost at each level, early and late."""
    print(f"\n{'cost at each level':32s}  " + "".join(f"{level.name:>9s}" for level in LEVELS))
    for low, high in ((0, 200), (200, 400), (400, 600)):
        shares = [
            np.mean(
                [
                    r.costs[(r.spent > low) & (r.spent <= high) & (np.array(r.levels) == level.name)].sum()
                    for r in runs
                ]
            )
            for level in LEVELS
        ]
        print(f"{f'{low} to {high}':32s}  " + "".join(f"{share:9.1f}" for share in shares))


def show_lake(found: dict[str, list[Run]]) -> None:
    """What F1 of 0.95 costs."""
    print("\nmean cost until F1 stays at 0.95 or above (runs that never do count as the budget, 12,000)")
    means = {n: float(np.mean([min(r.reaches(0.95), 12_000.0) for r in runs])) for n, runs in found.items()}
    for name, mean in means.items():
        print(f"{name:12s} {mean:8.0f}   {mean / means['GCHK']:.2f} of GCHK's")


def draw(found: dict[str, list[Run]], marks: np.ndarray, path: Path, ways: World | None) -> None:
    """The mean curves, and the ways of the first run. Says so when Plotly is missing."""
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        print("\nno figure: it needs Plotly, pip install 'haltune[report]'")
        return
    names = [name for name in found if ways is not None and name != "straddle"]
    titles = ["F1 by cost", *(f"the way of {name}" for name in names)]
    figure = make_subplots(1, len(titles), subplot_titles=titles)
    for name, runs in found.items():
        figure.add_scatter(
            x=marks.tolist(), y=[np.mean([r.at(m) for r in runs]) for m in marks], name=name, row=1, col=1
        )
    for column, name in enumerate(names, start=2):
        assert ways is not None
        values = np.array([*ways.values.values()]).reshape(SIDE, SIDE).T.tolist()
        axes = [
            np.linspace(domain.low, domain.high, SIDE).tolist() for domain in ways.space.parameters.values()
        ]
        figure.add_contour(
            x=axes[0], y=axes[1], z=values, showscale=False, opacity=0.5, row=1, col=column,
            contours={"start": ways.threshold, "end": ways.threshold, "size": 1, "coloring": "heatmap"},
        )  # fmt: skip
        way = found[name][0].way
        look = {"mode": "lines+markers", "line": {"color": "black", "width": 1}, "marker": {"size": 5}}
        x, y = way.T.tolist()
        figure.add_scatter(x=x, y=y, name=f"way of {name}", row=1, col=column, **look)
    figure.update_layout(template="plotly_white", width=480 * len(titles), height=480)
    figure.write_html(path, include_plotlyjs=True)
    figure.write_json(path.with_suffix(".json"))
    print(f"\nfigure: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=["noise", "lake"], nargs="?", default="noise")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--only-truvar", action="store_true", help="noise: without GCHK")
    parser.add_argument("--figure", type=Path, default=Path("truvar_level_sets.html"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if args.which == "noise":
        found = noise_levels(range(args.runs), args.only_truvar)
        show(found, (50, 100, 150, 200, 300, 400, 500, 600))
        show_levels(found["TruVaR"])
        draw(found, np.arange(0, 601, 10), args.figure, None)
    else:
        found = transects(args.runs)
        show(found, (500, 1000, 2000, 3000, 4000, 6000, 8000, 10_000))
        show_lake(found)
        draw(found, np.arange(0, 12_001, 100), args.figure, lake(0))


if __name__ == "__main__":
    main()
