"""Figures 2a, 2b, 2e and 2f of TruVaR: a level set on synthetic lakes; samples cost the same or by distance.

    python benchmarks/papers/truvar_lake.py [--runs 10] [--first 0] [--figure 2a 2b] [--samples 80]
        [--methods NAME ...] [--field layered|round|fine|smooth|terrain] [--keep FILE] [--svg]

The chlorophyll data of the paper are not public. A synthetic lake is a layer at a depth, and on it a draw of a
Matern-5/2 process whose patches have a size (--field); threshold 1.5. The kernel is fitted to 200 points of another
lake of the kind; every run is of another lake, from a random place.

--field terrain is measured: heights of the Jacksboro fault, a file of Matplotlib. A run has a window of 50 by 50
places; the threshold is the upper quartile of its heights. The kernel is that of 200 places of another window.

First all samples cost the same, as in figure 2a. The first stage of TruVaR has eta = 1 prior deviation, 0.59 here; with
"eta = 1 unit" it is 1 in the units of the concentration: the paper normalizes k(x, x) = 1 in its section 2, but gives
the threshold of the lake in units of the concentration. Then a sample costs
0.25 |x1 - x1'| + 4 (|x2| + 1), x1 in metres along the vessel's way and x2 the depth, as in 2b. GCHK, straddle and the
largest variance ignore costs. "TruVaR ahead" is TruVaR that counts the members an observation would settle,
anticipate=True: if moving is expensive, it continues with the members that it settles nearby. The output has F1 of
classification by the posterior mean, the cost of F1 of 0.95, and what TruVaR has more than each other method, lake by
lake.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from collections.abc import Callable, Sequence
from typing import Any

import drawn
import numpy as np
from paired import differences
from truvar_figures import field
from truvar_runs import KeptRuns, Run, World, parser, quiet, scores, search, show

from haltune import Float, Space
from haltune.gp import Kernel, fit
from haltune.policies import TruVaR

SIDE, LIMIT, WAY = 50, 12_000.0, 3_000
MARKS = (500, 1000, 2000, 3000, 4000, 6000, 8000, 10_000)
COUNTS = (5, 10, 15, 20, 30, 40, 60, 80)
FIELDS = {
    "layered": (0.3, 0.1),
    "round": (0.2, 0.2),
    "fine": (0.15, 0.1),
    "smooth": (0.5, 0.25),
}  # lengthscales of the patches
TERRAIN = "terrain"
LAKE = Space({"x1": Float(0.0, 1400.0), "x2": Float(-20.0, 0.0)})
ABSOLUTE = "TruVaR, eta = 1 unit"
RULES = {"GCHK": "gchk", "straddle": "straddle", "largest variance": "variance"}
SAME = ("TruVaR", ABSOLUTE, *RULES)  # methods of figure 2a
WAYS = ("TruVaR", "TruVaR ahead", "GCHK", "straddle")  # of figure 2b


def concentration(points: np.ndarray, seed: int, field: str) -> np.ndarray:
    """At points of the unit square: a layer at some 9 m, and patches: of the layered field some 400 m by 2 m."""
    kernel = Kernel("matern52", 0.36, np.array(FIELDS[field]))
    root = np.linalg.cholesky(kernel(points) + 1e-8 * np.eye(len(points)))
    patches = root @ np.random.default_rng([seed, 7]).standard_normal(len(points))
    return 0.5 + np.exp(-(((points[:, 1] - 0.55) / 0.25) ** 2)) + patches


def heights(seed: int) -> np.ndarray:
    """A window of the measured terrain, (2500,), in deviations of the whole."""
    from matplotlib.cbook import get_sample_data

    with get_sample_data("jacksboro_fault_dem.npz") as file:
        whole = file["elevation"].astype(float)
    row, column = np.random.default_rng([seed, 7]).integers(0, np.array(whole.shape) - SIDE)
    window = whole[row : row + SIDE, column : column + SIDE]
    return np.asarray((window.ravel() - whole.mean()) / whole.std())


def lake(seed: int, field: str) -> World:
    """A lake, and the kernel learnt from another."""
    configs = LAKE.mesh(SIDE)
    points = LAKE.encode_many(configs)
    rng = np.random.default_rng(99)
    if field == TERRAIN:
        some, values = rng.choice(len(points), 200, replace=False), heights(seed)
        other, seen, threshold = points[some], heights(10_000)[some], float(np.quantile(values, 0.75))
    else:
        other, values, threshold = rng.random((200, 2)), concentration(points, seed, field), 1.5
        seen = concentration(other, 10_000, field)
    learnt = fit(other, seen, kernel="matern52")
    world = dict(zip(LAKE.keys(configs), values.tolist(), strict=True))
    return World(LAKE, world, learnt.kernel, learnt.constant, threshold)


def travel(config: dict[str, Any], previous: dict[str, Any] | None) -> float:
    """The paper's cost of a sample."""
    moved = abs(config["x1"] - previous["x1"]) if previous else 0.0
    return 0.25 * moved + 4.0 * (abs(config["x2"]) + 1.0)


def policy_of(name: str, world: World, cost: Callable[..., float] | None) -> TruVaR:
    """A method by its name."""
    common: dict[str, Any] = {"kernel": world.kernel, "mean": world.mean, "noise": 1e-6, "grid": SIDE, "initial": 1}
    if name in RULES:
        return TruVaR(world.threshold, rule=RULES[name], **common)
    if name == ABSOLUTE:
        common["eta"] = world.kernel.variance**-0.5
    return TruVaR(threshold=world.threshold, cost=cost, anticipate=name.endswith("ahead"), **common)


def sampled(
    seeds: Sequence[int], field: str, figures: Sequence[str], samples: int, methods: Sequence[str], kept: KeptRuns
) -> tuple[dict[str, list[Run]], dict[str, list[Run]]]:
    """Figure 2a, all samples at the same cost; and 2b, at that of the way. Empty if it is not asked for."""
    same, way = (
        {name: list[Run]() for name in names if name in ("TruVaR", "GCHK", *methods)} for names in (SAME, WAYS)
    )
    parts = [(same, True)] * ("2a" in figures) + [(way, False)] * ("2b" in figures)
    for seed in seeds:
        world = lake(seed, field)

        def run(name: str, unit: bool, world: World = world, seed: int = seed) -> Run:
            policy = policy_of(name, world, None if unit else travel)
            paid = (lambda c, p, _: 1.0) if unit else (lambda c, p, _: travel(c, p))
            return search(policy, world, seed, samples if unit else LIMIT, paid, {None: 0.0})

        for found, unit in parts:
            for name in found:
                key = f"{field} {seed} {name}, {f'{samples} samples' if unit else 'cost'}"
                found[name].append(kept.run(key, lambda name=name, unit=unit, run=run: run(name, unit)))
    return same, way


def show_reached(found: dict[str, list[Run]], limit: float, unit: str) -> None:
    """Print the cost at which F1 reaches 0.95, and what TruVaR needs less than the others."""
    print(f"\n{unit} until F1 stays at 0.95 or above (runs that never do count as {limit:,.0f})")
    reached = {n: np.array([min(r.reaches(0.95), limit) for r in runs]) for n, runs in found.items()}
    for name, values in reached.items():
        share, error = values.mean() / reached["GCHK"].mean(), values.std(ddof=1) / len(values) ** 0.5
        print(f"{name:34s}{values.mean():9.0f} ± {error:.0f}   {share:.2f} of GCHK's")
    differences({name: values[:, None] for name, values in reached.items()}, "TruVaR", [f"{unit} until F1 of 0.95"])


def draw(same: dict[str, list[Run]], way: dict[str, list[Run]], world: World, name: str, samples: int) -> None:
    """Figures 2a and 2b, and the first run's ways, 2e and 2f, while their cost is at most `WAY`."""
    every = ["TruVaR", ABSOLUTE, "TruVaR ahead", *RULES]
    sheet = drawn.Sheet(f"truvar_lake_{name}", "F1 over samples, over cost, and the paths of two searches", 900, 640)
    shares = (0, 0.25, 0.5, 0.75, 1)
    for left, found, limit, step, title, unit in (
        (56, same, samples, 20, "2a: samples at the same cost", "samples"),
        (500, way, int(LIMIT), 3000, "2b: samples at the cost of the distance", "cost"),
    ):
        panel = drawn.Panel(left, 46, 380, 200, (0, limit), (0, 1))
        panel.axes(title, unit, "F1", range(0, limit + 1, step), shares)
        marks = np.arange(0, limit + 1, max(limit // 200, 1))
        values = scores(found, marks)
        drawn.means(panel, marks, {n: values.get(n, np.full((1, len(marks)), np.nan)) for n in every})
        sheet.panels.append(panel)
    for left, method in ((56, "TruVaR ahead"), (500, "GCHK")):
        panel = drawn.Panel(left, 350, 380, 200, (0, 1400), (-20, 0))
        label = "2e" if method != "GCHK" else "2f"
        title = f"{label}: {method} up to cost {WAY:,}"
        panel.axes(title, "position, m", "depth, m; green: above the threshold", range(0, 1401, 350), range(-20, 1, 5))
        field(panel, [*world.values.values()], SIDE, (world.threshold,))
        run = way[method][0]
        x, y = run.way[run.spent <= WAY].T.tolist()
        panel.line(x, y, "ink", 0.7)
        panel.dots(x, y, "ink", 2.5)
        sheet.panels.append(panel)
    drawn.legend(sheet, every)
    drawn.write(sheet)


def main() -> None:
    options = parser(__doc__, 10)
    options.add_argument("--field", choices=[*FIELDS, TERRAIN], default="layered")
    options.add_argument("--figure", nargs="+", choices=("2a", "2b"), default=("2a", "2b"))
    options.add_argument("--samples", type=int, default=80, help="of figure 2a")
    every = [*dict.fromkeys(SAME + WAYS)]
    options.add_argument("--methods", nargs="+", choices=every, default=every, help="TruVaR and GCHK always run")
    args = options.parse_args()
    quiet()
    seeds = range(args.first, args.first + args.runs)
    same, way = sampled(seeds, args.field, args.figure, args.samples, args.methods, KeptRuns(args.keep))
    counts = [count for count in COUNTS if count <= args.samples]
    for found, marks, limit, unit in ((same, counts, args.samples, "samples"), (way, MARKS, LIMIT, "cost")):
        if found["TruVaR"]:
            show(found, marks, unit)
            show_reached(found, limit, unit)
            differences(scores(found, np.array(marks)), "TruVaR", [f"{m} {unit}" for m in marks])
    for name in ("TruVaR", ABSOLUTE):
        ends = [run.stages.index(2) if 2 in run.stages else len(run.stages) for run in same.get(name, [])]
        print(f"{name}: the first stage ends after {ends} samples of at most {args.samples}") if ends else None
    if args.svg and same["TruVaR"] and way.get("TruVaR ahead"):
        draw(same, way, lake(args.first, args.field), args.field, args.samples)


if __name__ == "__main__":
    main()
