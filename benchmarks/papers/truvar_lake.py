"""Figures 2b, 2e and 2f of TruVaR: a level set where samples cost travel and depth, on stand-ins for a lake.

    python benchmarks/papers/truvar_lake.py [--runs 10] [--first 0] [--field layered|round|fine] [--figure FILE.html]

The chlorophyll data of the paper are not public. A stand-in is a layer at a depth, and on it a draw of a Matern-5/2
process whose patches have a size (--field); threshold 1.5. A sample costs 0.25 |x1 - x1'| + 4 (|x2| + 1), x1 in metres
along the vessel's way and x2 the depth. The kernel is fitted to 200 points of another lake of the kind. Shown: what F1
of 0.95, of classifying by the posterior mean, costs. GCHK and straddle know of no costs. "TruVaR ahead" is TruVaR that
counts the members an observation would settle, anticipate=True: where moving is dear it goes on with what it settles.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from truvar_figures import axes, curves, panels, save
from truvar_runs import Run, World, parser, quiet, scores, search, show

from haltune import Float, Space
from haltune.gp import Kernel, fit
from haltune.policies import LevelSetSearch, TruVaR

SIDE, LIMIT, WAY = 50, 12_000.0, 3_000
MARKS = (500, 1000, 2000, 3000, 4000, 6000, 8000, 10_000)
FIELDS = {"layered": (0.3, 0.1), "round": (0.2, 0.2), "fine": (0.15, 0.1)}  # lengthscales of the patches
INK, SCALE = "#1c2530", [[0.0, "#f4f6f8"], [1.0, "#9cc3a5"]]
LAKE = Space({"x1": Float(0.0, 1400.0), "x2": Float(-20.0, 0.0)})


def concentration(points: np.ndarray, seed: int, field: str) -> np.ndarray:
    """At points of the unit square: a layer at some 9 m, and patches: of the layered field some 400 m by 2 m."""
    kernel = Kernel("matern52", 0.36, np.array(FIELDS[field]))
    root = np.linalg.cholesky(kernel(points) + 1e-8 * np.eye(len(points)))
    patches = root @ np.random.default_rng([seed, 7]).standard_normal(len(points))
    return 0.5 + np.exp(-(((points[:, 1] - 0.55) / 0.25) ** 2)) + patches


def lake(seed: int, field: str) -> World:
    """A lake, and the kernel learnt from another."""
    configs = LAKE.mesh(SIDE)
    points = LAKE.encode_many(configs)
    other = np.random.default_rng(99).random((200, 2))
    learnt = fit(other, concentration(other, 10_000, field), kernel="matern52")
    values = concentration(points, seed, field)
    start = configs[int(np.random.default_rng([seed, 3]).integers(len(configs)))]
    world = dict(zip(LAKE.keys(configs), values.tolist(), strict=True))
    return World(LAKE, world, learnt.kernel, learnt.constant, 1.5, start)


def travel(config: dict[str, Any], previous: dict[str, Any] | None) -> float:
    """The paper's cost of a sample."""
    moved = abs(config["x1"] - previous["x1"]) if previous else 0.0
    return 0.25 * moved + 4.0 * (abs(config["x2"]) + 1.0)


def transects(seeds: Sequence[int], field: str) -> dict[str, list[Run]]:
    """Figure 2b: TruVaR with the travel cost, GCHK and straddle that ignore it."""
    found: dict[str, list[Run]] = {"TruVaR": [], "TruVaR ahead": [], "GCHK": [], "straddle": []}
    print(
        f"{'lake':12s} cost until F1 stays at 0.95 or above\n{'':12s}" + "".join(f"{n:>15s}" for n in found)
    )
    for seed in seeds:
        world = lake(seed, field)
        common = {"kernel": world.kernel, "mean": world.mean, "noise": 1e-6, "grid": SIDE, "initial": 1}
        policies = {
            "TruVaR": TruVaR(threshold=world.threshold, cost=travel, **common),
            "TruVaR ahead": TruVaR(threshold=world.threshold, cost=travel, anticipate=True, **common),
            "GCHK": LevelSetSearch(world.threshold, **common),
            "straddle": LevelSetSearch(world.threshold, "straddle", **common),
        }
        for name, policy in policies.items():
            found[name].append(search(policy, world, seed, LIMIT, lambda c, p, _: travel(c, p), {None: 0.0}))
        print(f"{seed:<12d}" + "".join(f"{r[-1].reaches(0.95):15.0f}" for r in found.values()), flush=True)
    return found


def show_lake(found: dict[str, list[Run]]) -> None:
    """What F1 of 0.95 costs."""
    print(f"\nmean cost until F1 stays at 0.95 or above (runs that never do count as {LIMIT:,.0f})")
    means = {n: float(np.mean([min(r.reaches(0.95), LIMIT) for r in runs])) for n, runs in found.items()}
    for name, mean in means.items():
        print(f"{name:12s} {mean:8.0f}   {mean / means['GCHK']:.2f} of GCHK's")


def draw_lake(found: dict[str, list[Run]], world: World, path: Path) -> None:
    """Figure 2b, and the first run's ways, 2e and 2f, while their cost is at most `WAY`."""
    ways = [name for name in ("TruVaR ahead", "GCHK") if name in found]
    figure = panels(["mean F1 and its standard error", *(f"{n} until cost {WAY:,}" for n in ways)])
    if figure is None:
        return
    marks = np.arange(0, LIMIT + 1, 100)
    curves(figure, 1, marks, scores(found, marks), ("cost", "F1"))
    values = np.array([*world.values.values()]).reshape(SIDE, SIDE).T.tolist()
    across, along = (np.linspace(d.low, d.high, SIDE).tolist() for d in world.space.parameters.values())
    for column, name in enumerate(ways, start=2):
        for coloring, width in (("heatmap", 0), ("none", 2)):  # the field, and on it the threshold as a line
            figure.add_contour(
                x=across, y=along, z=values, showscale=False, showlegend=False, colorscale=SCALE,
                line={"width": width, "color": INK},
                contours={"start": world.threshold, "end": world.threshold, "size": 1, "coloring": coloring},
                row=1, col=column,
            )  # fmt: skip
        run = found[name][0]
        x, y = run.way[run.spent <= WAY].T.tolist()
        look = {"line": {"color": INK, "width": 0.7}, "marker": {"size": 5}, "showlegend": False}
        figure.add_scatter(x=x, y=y, mode="lines+markers", row=1, col=column, **look)
        axes(figure, column, ("position, m", "depth, m"))
    save(figure, path)


def main() -> None:
    options = parser(__doc__, 10, "truvar_lake.html")
    options.add_argument("--field", choices=[*FIELDS], default="layered")
    args = options.parse_args()
    quiet()
    found = transects(range(args.first, args.first + args.runs), args.field)
    show(found, MARKS)
    show_lake(found)
    draw_lake(found, lake(args.first, args.field), args.figure)


if __name__ == "__main__":
    main()
