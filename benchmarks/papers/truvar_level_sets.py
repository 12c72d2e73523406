"""Figures 2c, 4a and 4b of TruVaR: a level set, choosing among three noise levels.

    python benchmarks/papers/truvar_level_sets.py [--runs 50] [--first 0] [--filled] [--methods NAME ...] [--keep FILE]
        [--svg]

Functions are draws of a Gaussian process on 50 x 50 points, squared exponential, lengthscale 0.1, variance 1; threshold
2.25; noise variances 1e-6, 1e-3, 0.05 at costs 15, 10, 2; GCHK runs at each of them. The output has F1 of
classification by the posterior mean, for all functions and for those that reach the threshold: otherwise F1 is 1 until
a point is classified as above, then 0. --filled runs only the latter functions; then there are what TruVaR has more
than each GCHK, function by function, and more than the GCHK that is best on average at that cost.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from collections.abc import Sequence
from functools import lru_cache, partial

import drawn
import numpy as np
from paired import differences
from truvar_figures import field
from truvar_runs import KeptRuns, Run, World, parser, quiet, scores, search, show

from haltune import Float, Space
from haltune.gp import Kernel
from haltune.policies import Level, TruVaR

SIDE, LIMIT = 50, 600.0
MARKS = (50, 100, 150, 200, 300, 400, 500, 600)
WINDOWS = ((0, 200), (200, 400), (400, 600))
METHODS = ("TruVaR", "GCHK, cheap", "GCHK, middle", "GCHK, precise")
LEVELS = [Level("cheap", 0.05, 2.0), Level("middle", 1e-3, 10.0), Level("precise", 1e-6, 15.0)]
NOISES, COSTS = ({level.name: getattr(level, what) for level in LEVELS} for what in ("noise", "cost"))
SPACE = Space({"x1": Float(0.0, 1.0), "x2": Float(0.0, 1.0)})


@lru_cache(maxsize=1)
def synthetic(seed: int) -> World:
    """A draw of the paper's prior."""
    kernel = Kernel("se", 1.0, np.array([0.1, 0.1]))
    configs = SPACE.mesh(SIDE)
    points = SPACE.encode_many(configs)
    root = np.linalg.cholesky(kernel(points) + 1e-8 * np.eye(len(points)))
    values = root @ np.random.default_rng(seed).standard_normal(len(points))
    return World(SPACE, dict(zip(SPACE.keys(configs), values.tolist(), strict=True)), kernel, 0.0, 2.25)


def mixed(world: World, seed: int, limit: float, **options: object) -> Run:
    """TruVaR, which chooses the level."""
    policy = TruVaR(threshold=world.threshold, levels=LEVELS, kernel=world.kernel, grid=SIDE, initial=0, **options)
    return search(policy, world, seed, limit, lambda c, p, level: COSTS[level], NOISES)


def at_one_level(world: World, seed: int, limit: float, level: str) -> Run:
    """GCHK, every observation at this level."""
    noise, cost = NOISES[level], COSTS[level]
    rule = TruVaR(world.threshold, rule="gchk", noise=noise, kernel=world.kernel, grid=SIDE, initial=0)
    return search(rule, world, seed, limit, lambda c, p, _: cost, {None: noise})


def noise_levels(seeds: Sequence[int], names: Sequence[str], kept: KeptRuns) -> dict[str, list[Run]]:
    """Figure 2c: TruVaR with all levels, GCHK with each."""
    found: dict[str, list[Run]] = {name: [] for name in names}
    for seed in seeds:
        for name in names:
            found[name].append(kept.run(f"{name} {seed}", partial(one, name, seed)))
    return found


def one(name: str, seed: int) -> Run:
    """One method on one function."""
    level = name.removeprefix("GCHK, ")
    if level in COSTS:
        return at_one_level(synthetic(seed), seed, LIMIT, level)
    return mixed(synthetic(seed), seed, LIMIT)


def filled(found: dict[str, list[Run]]) -> dict[str, list[Run]]:
    """The runs of functions that reach the threshold."""
    return {name: [run for run in runs if np.isfinite(run.unsure[0])] for name, runs in found.items()}


def by_level(runs: list[Run]) -> np.ndarray:
    """(windows, levels) mean cost at each level while the total was within each window."""

    def spent(run: Run, low: int, high: int, level: str) -> float:
        return float(run.costs[(run.spent > low) & (run.spent <= high) & (np.array(run.levels) == level)].sum())

    return np.array([[np.mean([spent(r, *window, v.name) for r in runs]) for v in LEVELS] for window in WINDOWS])


def show_levels(name: str, runs: list[Run]) -> None:
    """Figure 4b: the cost at each level, early and late."""
    print(f"\n{name + ': mean cost at each level':34s}" + "".join(f"{level.name:>13s}" for level in LEVELS))
    for (low, high), costs in zip(WINDOWS, by_level(runs), strict=True):
        print(f"{f'{low} to {high}':34s}" + "".join(f"{cost:13.1f}" for cost in costs))


def draw(found: dict[str, list[Run]], world: World) -> None:
    """Figures 2c, 4a and 4b."""
    sheet = drawn.Sheet("truvar_level_sets", "F1 over cost, a function, and the cost at each noise level", 900, 370)
    panel = drawn.panel(sheet, 56, 350, (0, LIMIT), (0, 1))
    panel.axes("2c: functions that reach the threshold", "cost", "F1", range(0, 601, 100), (0, 0.25, 0.5, 0.75, 1))
    marks = np.arange(0, 601, 5)
    drawn.means(panel, marks, scores(filled(found), marks))
    place = drawn.panel(sheet, 456, 216, (0, 1), (0, 1))
    place.axes("4a: a function", "", "above 0, 1 and 2.25", (0, 0.5, 1), (0, 0.5, 1))
    field(place, [*world.values.values()], SIDE, (0.0, 1.0, world.threshold))
    if "TruVaR" in found:
        bars = drawn.panel(sheet, 736, 150, (0, 3), (0, 200))
        bars.axes("4b: TruVaR's cost", "cost so far", "cheap, middle, precise", (), range(0, 201, 50))
        draw_bars(bars, by_level(filled(found)["TruVaR"]))
    drawn.legend(sheet, found)
    drawn.write(sheet)


def draw_bars(bars: drawn.Panel, costs: np.ndarray) -> None:
    """Side by side in each window, a bar a level."""
    for i, (window, own) in enumerate(zip(WINDOWS, costs, strict=True)):
        for j, cost in enumerate(own):
            left = i + 0.08 + 0.28 * j
            bars.cell((left, left + 0.26), (0, cost), "one", 0.35 + 0.3 * j)
        bars.note(i + 0.5, 0, f"to {window[1]}", "quiet", "middle", dy=17)


def main() -> None:
    options = parser(__doc__, 50)
    options.add_argument("--filled", action="store_true", help="functions that reach the threshold alone")
    options.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    args = options.parse_args()
    quiet()
    seeds = [s for s in range(args.first, args.first + args.runs) if not args.filled or synthetic(s).above.any()]
    found = noise_levels(seeds, args.methods, KeptRuns(args.keep))
    if not args.filled:
        show(found, MARKS)
    show(filled(found), MARKS)
    values = scores(filled(found), np.array(MARKS))
    means = {name: of.mean(axis=0) for name, of in values.items() if name != "TruVaR"}
    if means:
        best = [max(means, key=lambda name, i=i: means[name][i]) for i in range(len(MARKS))]
        values["the best GCHK"] = np.stack([values[name][:, i] for i, name in enumerate(best)], axis=1)
    differences(values, "TruVaR", [f"{m}" for m in MARKS])
    if "TruVaR" in found:
        show_levels("TruVaR", filled(found)["TruVaR"])
    if args.svg:
        draw(found, synthetic(args.first))


if __name__ == "__main__":
    main()
