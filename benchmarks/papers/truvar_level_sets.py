"""Figures 2c and 4b of TruVaR: a level set, choosing among three noise levels.

    python benchmarks/papers/truvar_level_sets.py [--runs 50] [--first 0] [--methods NAME ...] [--figure FILE.html]

Functions are draws of a Gaussian process on 50 x 50 points, squared exponential, lengthscale 0.1, variance 1; threshold
2.25; noise variances 1e-6, 1e-3, 0.05 at costs 15, 10, 2; GCHK runs at each of them. Shown: F1 of classifying by the
posterior mean, of every run and mean.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from truvar_figures import axes, curves, panels, save
from truvar_runs import Run, World, head, parser, quiet, row, scores, search, show

from haltune import Float, Level, Space
from haltune.gp import Kernel
from haltune.policies import LevelSetSearch, TruVaR

SIDE, LIMIT = 50, 600.0
MARKS = (50, 100, 150, 200, 300, 400, 500, 600)
WINDOWS = ((0, 200), (200, 400), (400, 600))
GREYS = ("#cfd6dc", "#8d98a3", "#1c2530")
METHODS = ("TruVaR", "GCHK, cheap", "GCHK, middle", "GCHK, precise")
LEVELS = [Level("cheap", 0.05, 2.0), Level("middle", 1e-3, 10.0), Level("precise", 1e-6, 15.0)]
SPACE = Space({"x1": Float(0.0, 1.0), "x2": Float(0.0, 1.0)})


def synthetic(seed: int) -> World:
    """A draw of the paper's prior."""
    kernel = Kernel("se", 1.0, np.array([0.1, 0.1]))
    configs = SPACE.mesh(SIDE)
    points = SPACE.encode_many(configs)
    root = np.linalg.cholesky(kernel(points) + 1e-8 * np.eye(len(points)))
    values = root @ np.random.default_rng(seed).standard_normal(len(points))
    return World(SPACE, dict(zip(SPACE.keys(configs), values.tolist(), strict=True)), kernel, 0.0, 2.25)


def noise_levels(seeds: Sequence[int], names: Sequence[str]) -> dict[str, list[Run]]:
    """Figure 2c: TruVaR with all levels, GCHK with each."""
    found: dict[str, list[Run]] = {name: [] for name in names}
    head("function", MARKS)
    for seed in seeds:
        world = synthetic(seed)
        for name in names:
            found[name].append(one_noise(name, world, seed))
            row(f"{seed} {name}", [found[name][-1].at(m) for m in MARKS])
    return found


def one_noise(name: str, world: World, seed: int) -> Run:
    """One method on one function."""
    variances, costs = ({level.name: getattr(level, what) for level in LEVELS} for what in ("noise", "cost"))
    common = {"kernel": world.kernel, "grid": SIDE, "initial": 0}
    if name.startswith("TruVaR"):
        policy = TruVaR(threshold=world.threshold, levels=LEVELS, **common)
        return search(policy, world, seed, LIMIT, lambda c, p, level: costs[level], variances)
    (level,) = (level for level in LEVELS if level.name in name)
    only = {None: level.noise}
    rule = LevelSetSearch(world.threshold, noise=level.noise, **common)
    return search(rule, world, seed, LIMIT, lambda c, p, _: level.cost, only)


def by_level(runs: list[Run]) -> np.ndarray:
    """(windows, levels) mean cost at each level while the total was within each window."""

    def spent(run: Run, low: int, high: int, level: str) -> float:
        return float(
            run.costs[(run.spent > low) & (run.spent <= high) & (np.array(run.levels) == level)].sum()
        )

    return np.array(
        [[np.mean([spent(r, *window, v.name) for r in runs]) for v in LEVELS] for window in WINDOWS]
    )


def show_levels(name: str, runs: list[Run]) -> None:
    """Figure 4b: the cost at each level, early and late."""
    print(f"\n{name + ': cost at each level':34s}" + "".join(f"{level.name:>9s}" for level in LEVELS))
    for (low, high), costs in zip(WINDOWS, by_level(runs), strict=True):
        print(f"{f'{low} to {high}':34s}" + "".join(f"{cost:9.1f}" for cost in costs))


def draw_noise(found: dict[str, list[Run]], path: Path) -> None:
    """Figures 2c and 4b."""
    shares = [name for name in found if name.startswith("TruVaR")]
    figure = panels(["mean F1 and its standard error", *(f"{name}: cost at each level" for name in shares)])
    if figure is None:
        return
    marks = np.arange(0, 601, 10)
    curves(figure, 1, marks, scores(found, marks), ("cost", "F1"))
    windows = [f"{low} to {high}" for low, high in WINDOWS]
    for column, name in enumerate(shares, start=2):
        for level, costs, colour in zip(LEVELS, by_level(found[name]).T, GREYS, strict=True):
            label = f"{level.name}: variance {level.noise:g}, cost {level.cost:g}"
            figure.add_bar(
                x=windows, y=costs.tolist(), name=label, marker_color=colour, showlegend=column == 2, row=1, col=column
            )  # fmt: skip
        axes(figure, column, ("total cost", "spent at the level"))
        figure.update_yaxes(range=[0, 205], row=1, col=column)
    figure.update_layout(barmode="stack")
    save(figure, path)


def main() -> None:
    options = parser(__doc__, 50, "truvar_level_sets.html")
    options.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    args = options.parse_args()
    quiet()
    found = noise_levels(range(args.first, args.first + args.runs), args.methods)
    show(found, MARKS)
    for name in (name for name in found if name.startswith("TruVaR")):
        show_levels(name, found[name])
    draw_noise(found, args.figure)


if __name__ == "__main__":
    main()
