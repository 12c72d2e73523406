"""Figure 4 of Lee et al. (2021), "A nonmyopic approach to cost-constrained Bayesian optimization", and a harder cost.

    python benchmarks/papers/rollout_toy.py [--seeds 24] [--problem printed ring] [--keep FILE] [--svg]

f(x) = 10 |x| sin(2 pi |x|) on [-1, 1]^2 is minimised within a budget of 150 of cost, which trials report and policies
learn. "printed": c = 10 - 5 |x|, the paper's formula; its caption says that the minimum costs most, but the minimum,
-7.66 on the ring |x| = 0.782, then costs 6.1. "ring": c = 10 - 8 | |x| - 0.782 |, largest at the minimum of f. The
output has means over seeds and standard errors of the best f after a third, two thirds and all of the budget.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from collections.abc import Sequence
from math import hypot, pi, sin

from within_budget import POLICIES, Array, Axes, Task, compare, draw, parser, progress

from haltune import Budget, Float, Minimize, Problem, Space, Study, Trial

BUDGET, RING = 150.0, 0.782
PROBLEM = Problem(Space({"x": Float(-1.0, 1.0), "y": Float(-1.0, 1.0)}), Minimize("f"), max_epochs=1)


def f(config: dict[str, float]) -> float:
    """Rings; the least is -7.66."""
    radius = hypot(config["x"], config["y"])
    return 10.0 * radius * sin(2.0 * pi * radius)


def printed(config: dict[str, float]) -> float:
    """The formula in section 6.1."""
    return 10.0 - 5.0 * hypot(config["x"], config["y"])


def ring(config: dict[str, float]) -> float:
    """Dearest on the ring of the minimum."""
    return 10.0 - 8.0 * abs(hypot(config["x"], config["y"]) - RING)


COSTS = {"printed": printed, "ring": ring}


def search(task: Task) -> Array:
    """The best f after each share of the budget."""
    cost, policy, seed = task

    def train(trial: Trial) -> tuple[float, float]:
        value, paid = f(trial.config), COSTS[cost](trial.config)
        trial.report(value, cost=paid)
        return value, paid

    return progress(Study(PROBLEM, POLICIES[policy](), seed=seed, budget=Budget(cost=BUDGET), verbose=0), train, BUDGET)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parser(__doc__, 24, COSTS).parse_args(arguments)
    panels = compare(search, args)
    if args.svg:
        titles = {"printed": "4: the printed cost, 10 - 5 |x|", "ring": "4: most expensive at the minimum"}
        draw("rollout_toy", panels, {p: Axes(t, BUDGET, "cost", "best f") for p, t in titles.items()})


if __name__ == "__main__":
    main()
