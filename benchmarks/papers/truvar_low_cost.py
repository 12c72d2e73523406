"""Why GCHK at the cheapest level leads TruVaR at first in figure 2c, and the effect of appendix A's variants.

    python benchmarks/papers/truvar_low_cost.py [--runs 50] [--first 0] [--methods NAME ...] [--keep FILE] [--svg]

The functions, levels and costs are those of truvar_level_sets.py, for functions that reach the threshold, up to a cost
of 200; results that the script kept are not computed again. "ahead" counts the members that an observation would
settle, anticipate=True; "of 100" chooses among the 100 configurations of highest upper bound, candidates=100: both are
variants in the paper's appendix A, and the number was chosen on functions 100 to 108. The output has F1, the share of
the cost at the cheap level, the runs still in the first stage, the share of observations where the function is at least
1.5, and the posterior deviation where it is above the threshold.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import math
from collections.abc import Sequence

import drawn
import numpy as np
from scipy.stats import norm
from truvar_level_sets import SIDE, at_one_level, mixed, synthetic
from truvar_runs import KeptRuns, Run, World, head, means, parser, quiet, scores, show

LIMIT, HIGH = 200.0, 1.5
MARKS = (25, 50, 75, 100, 150, 200)
GCHK = "GCHK, cheap"
VARIANTS: dict[str, dict[str, object]] = {
    "TruVaR": {},
    "TruVaR ahead": {"anticipate": True},
    "TruVaR of 100": {"candidates": 100},
    "TruVaR ahead, of 100": {"anticipate": True, "candidates": 100},
}


def one(name: str, world: World, seed: int) -> Run:
    """One method on one function."""
    if name in VARIANTS:
        return mixed(world, seed, LIMIT, **VARIANTS[name])
    return at_one_level(world, seed, LIMIT, "cheap")


def compared(seeds: Sequence[int], variants: Sequence[str], kept: KeptRuns) -> dict[str, list[Run]]:
    """GCHK and these variants on the functions that reach the threshold."""
    found: dict[str, list[Run]] = {name: [] for name in (GCHK, *variants)}
    for seed in seeds:
        world = synthetic(seed)
        for name in found if world.above.any() else ():
            key = f"{name} {seed}" if f"{name} {seed}" in kept else f"{name} {seed}, to {LIMIT:g}"
            found[name].append(kept.run(key, lambda name=name, w=world, s=seed: one(name, w, s)))
    return found


def diagnosis(run: Run, marks: Sequence[int]) -> dict[str, list[float]]:
    """After each cost, of all observations until then."""
    seen = [max(int(np.searchsorted(run.spent, mark, side="right")), 1) for mark in marks]
    levels = np.array(run.levels)
    cheap = np.isin(levels, [None, "cheap"])
    return {
        "cost at the cheap level, share": [float((run.costs * cheap)[:n].sum() / run.spent[n - 1]) for n in seen],
        "still in the first stage": [float(run.stages[n - 1] == 1) for n in seen],
        f"observations where f is {HIGH} or more": [float((run.truths[:n] >= HIGH).mean()) for n in seen],
        "deviation where f is above 2.25": [float(run.unsure[n - 1]) for n in seen],
    }


def show_diagnosis(found: dict[str, list[Run]]) -> None:
    """Means and standard errors."""
    told = {name: [diagnosis(run, MARKS) for run in runs] for name, runs in found.items()}
    for what in next(iter(told.values()))[0]:
        head(what, MARKS)
        for name, rows in told.items():
            means(name, np.array([row[what] for row in rows]))


def show_behind(found: dict[str, list[Run]]) -> None:
    """Differences of F1 to GCHK, function by function: their errors are smaller than those of the means."""
    marks = np.array(MARKS)
    values = scores(found, marks)
    head(f"F1 less that of {GCHK}", MARKS)
    for name in values:
        if name != GCHK:
            means(name, values[name] - values[GCHK])


def show_floor() -> None:
    """Why no choice of places helps within the first stage: what its floor leaves of F1.

    A place of deviation s is expected to have the mean (1 - s^2) f: E[mean | f] = f Var(mean) / Var(f), and the prior
    has variance 1. Nothing is gained by taking s^2 below eta^2 / beta, with eta = 1 and beta = log |D| at first.
    """
    floor = 1.0 / math.log(SIDE**2)
    least = 2.25 / (1.0 - floor)
    share = norm.sf(least) / norm.sf(2.25)
    print(f"\nThe first stage asks for variances of {floor:.3f}: the mean is then expected above 2.25 where f is above")
    print(f"{least:.2f}, which {share:.0%} of the values above 2.25 are.")


def draw(found: dict[str, list[Run]]) -> None:
    """Draw F1, and the posterior deviation where the function is above the threshold."""
    sheet = drawn.Sheet("truvar_low_cost", "F1 and the posterior deviation over cost, up to 200", 900, 370)
    panel = drawn.panel(sheet, 56, 380, (0, LIMIT), (0, 1))
    panel.axes("2c, up to cost 200", "cost", "F1", range(0, 201, 50), (0, 0.25, 0.5, 0.75, 1))
    marks = np.arange(2, 201, 2)
    drawn.means(panel, marks, scores(found, marks))
    panel = drawn.panel(sheet, 500, 380, (0, LIMIT), (0, 1))
    title = "standard deviation where f is above 2.25"
    panel.axes("Uncertainty of the level set", "cost", title, range(0, 201, 50), (0, 0.25, 0.5, 0.75, 1))
    unsure = {n: np.array([[r.at(m, "unsure", 1.0) for m in marks] for r in runs]) for n, runs in found.items()}
    drawn.means(panel, marks, unsure)
    drawn.legend(sheet, found)
    drawn.write(sheet)


def main() -> None:
    options = parser(__doc__, 50)
    options.add_argument("--methods", nargs="+", choices=[*VARIANTS], default=[*VARIANTS], help=f"compared with {GCHK}")
    args = options.parse_args()
    quiet()
    found = compared(range(args.first, args.first + args.runs), args.methods, KeptRuns(args.keep))
    show(found, MARKS)
    show_behind(found)
    show_diagnosis(found)
    show_floor()
    if args.svg:
        draw(found)


if __name__ == "__main__":
    main()
