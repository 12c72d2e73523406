"""Figure 4 of Lee et al. (2021), "A nonmyopic approach to cost-constrained Bayesian optimization", and a harder cost.

    python benchmarks/papers/rollout_toy.py [--seeds 24] [--problem printed ring] [--next] [--keep FILE] [--svg]

f(x) = 10 |x| sin(2 pi |x|) on [-1, 1]^2 is minimised within a budget of 150 of cost, which trials report and policies
learn. "printed": c = 10 - 5 |x|, the paper's formula; its caption says that the minimum costs most, but the minimum,
-7.66 on the ring |x| = 0.782, then costs 6.1. "ring": c = 10 - 8 | |x| - 0.782 |, largest at the minimum of f. The
output has means over seeds and standard errors of the best f after a third, two thirds and all of the budget.

--next searches by EI only. After 6 and 10 trainings it asks each policy for the next one, and prints its expected
improvement as a share of that of EI's choice, and its distance from the ring of the minimum.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from argparse import Namespace
from collections.abc import Iterator, Sequence
from math import hypot, pi, sin

import numpy as np
from within_budget import POLICIES, Axes, Found, Task, compare, draw, parser, progress

from haltune import Budget, Float, Minimize, Problem, Space, Study, Trial
from haltune.log.policy import Fold
from haltune.policies import EI
from haltune.study.proposing import propose

BUDGET, RING = 150.0, 0.782
STATES = (6, 10)  # trainings
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


def search(task: Task) -> Found:
    """The best f after each share of the budget, and the costs."""
    cost, policy, seed = task

    def train(trial: Trial) -> tuple[float, float]:
        value, paid = f(trial.config), COSTS[cost](trial.config)
        trial.report(value, cost=paid)
        return value, paid

    return progress(Study(PROBLEM, POLICIES[policy](), seed=seed, budget=Budget(cost=BUDGET), verbose=0), train, BUDGET)


def following(cost: str, names: Sequence[str], seed: int) -> Iterator[list[list[float]]]:
    """Expected improvement, by that of the first policy, and distance from the ring of each policy's next training."""
    study = Study(PROBLEM, EI(), seed=seed, budget=Budget(cost=BUDGET), verbose=0)
    folds = [Fold(PROBLEM, POLICIES[name]()) for name in names]
    for trained, trial in zip(range(1, 1 + STATES[-1]), study, strict=False):
        with trial:
            trial.report(f(trial.config), cost=COSTS[cost](trial.config))
        if trained in STATES:
            moves = []
            for fold in folds:
                for event in study.events(fold.history.position):
                    fold.take(event)
                moves.append(propose(fold))
            best = moves[0].evidence["ei"]
            yield [[move.evidence["ei"] / best, abs(hypot(*move.config.values()) - RING)] for move in moves]


def print_next(args: Namespace) -> None:
    """Print means over seeds of `following`, with standard errors."""
    names = ["EI", *(name for name in args.policy if name != "EI")]
    for cost in args.problem:
        found = np.array([[*following(cost, names, seed)] for seed in range(args.seeds)])
        means, errors = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(len(found))
        for state, trained in enumerate(STATES):
            print(f"{cost}, after {trained} trainings: expected improvement by that of EI, distance from the ring")
            for name, pair, error in zip(names, means[state], errors[state], strict=True):
                cells = "  ".join(f"{m:8.3f}±{e:.3f}" for m, e in zip(pair, error, strict=True))
                print(f"  {name:34s} {args.seeds:3d}  {cells}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    found = parser(__doc__, 24, COSTS)
    found.add_argument("--next", action="store_true", help="what each policy trains next in states of a search by EI")
    args = found.parse_args(arguments)
    if args.next:
        print_next(args)
        return
    panels = compare(search, args)
    if args.svg:
        titles = {"printed": "4: the printed cost, 10 - 5 |x|", "ring": "4: most expensive at the minimum"}
        draw("rollout_toy", panels, {p: Axes(t, BUDGET, "cost", "best f") for p, t in titles.items()})


if __name__ == "__main__":
    main()
