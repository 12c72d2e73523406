"""Figures 3a and 3b of TruVaR: regret on functions of a Gaussian process, against EI and GP-UCB.

    python benchmarks/papers/truvar_synthetic.py [--functions 30] [--evaluations 100] [--figure FILE.html]

A function is the posterior mean of 200 random points of [0, 1]^2 whose values are drawn from a Gaussian process
(squared exponential, lengthscale 0.1, variance 1), seen through noise of variance 1e-6 on a mesh of 50 x 50. All
methods know the kernel. The regret is that of the configuration of highest posterior mean. GP-UCB has the theorem's
beta over 5. EI and GP-UCB are the package's acquisition functions over the same mesh.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from truvar_figures import COLOURS, axes, line, panels, save
from truvar_runs import quiet

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.gp import Kernel, condition_on
from haltune.policies import TruVaR
from haltune.policies.bayesopt.acquisition import log_ei, ucb
from haltune.policies.truvar.belief.field import field_of
from haltune.policies.truvar.members import MemberSet
from haltune.ranks.agreement import alone

SIDE, NOISE = 50, 1e-6
MARKS = (20, 40, 60, 80, 100)
SMALLEST = 1e-4  # regret that the figure tells from 0
KERNEL = Kernel("se", 1.0, np.array([0.1, 0.1]))
SPACE = Space({"x": Float(0.0, 1.0), "z": Float(0.0, 1.0)})
CONFIGS = SPACE.mesh(SIDE)
PLACES = {key: i for i, key in enumerate(SPACE.keys(CONFIGS))}
POINTS = SPACE.encode_many(CONFIGS)
Method = Callable[
    [np.ndarray, int, int], tuple[np.ndarray, bool]
]  # values, seed, evaluations -> regrets, lost


def function(seed: int) -> np.ndarray:
    """Values on the mesh."""
    rng = np.random.default_rng(seed)
    anchors = rng.random((200, 2))
    covariance = KERNEL(anchors) + 1e-8 * np.eye(200)
    heights = np.linalg.cholesky(covariance) @ rng.standard_normal(200)
    return np.asarray(KERNEL(POINTS, anchors) @ np.linalg.solve(covariance, heights))


def truvar(monotone: bool) -> Method:
    """The policy; lost: the maximiser is not among the potential ones at the end."""

    def run(values: np.ndarray, seed: int, evaluations: int) -> tuple[np.ndarray, bool]:
        policy = TruVaR(kernel=KERNEL, noise=NOISE, grid=SIDE, initial=1, monotone=monotone)
        rng, regrets = np.random.default_rng([seed, 1]), []
        with alone():
            budget = Budget(trials=evaluations)
            study = Study(Problem(SPACE, Maximize("value"), 1), policy, seed=seed, budget=budget, verbose=0)
        for trial in study:
            noise = math.sqrt(NOISE) * rng.standard_normal()
            trial.report(values[PLACES[SPACE.key(trial.config)]] + noise, seconds=1.0)
            trial.finish()
            belief = policy.part(MemberSet).surrogate.belief(study.history, tuple(range(len(study.history))))
            regrets.append(values.max() - values[np.argmax(belief.field.mean)])
        left = {PLACES[SPACE.key(config)] for config in study.maximisers().configs}
        return np.array(regrets), int(np.argmax(values)) not in left

    return run


def greedy(score: Callable[[np.ndarray, np.ndarray, float, int], np.ndarray]) -> Method:
    """A method that takes the place of highest score(mean, variance, best, t)."""

    def run(values: np.ndarray, seed: int, evaluations: int) -> tuple[np.ndarray, bool]:
        rng, regrets, best = np.random.default_rng([seed, 1]), [], -np.inf
        field = field_of(condition_on(KERNEL, np.zeros((0, 2)), [], noise=0.0), POINTS)
        place = int(rng.integers(len(POINTS)))
        for t in range(1, evaluations + 1):
            target = values[place] + math.sqrt(NOISE) * rng.standard_normal()
            field.observe(place, target, NOISE)
            best = max(best, target)
            regrets.append(values.max() - values[np.argmax(field.mean)])
            place = int(np.argmax(score(field.mean, field.variance, best, t + 1)))
        return np.array(regrets), False

    return run


def scaled(t: int) -> float:
    """The beta of Srinivas et al. (2010), theorem 1 with delta = 0.1, over 5."""
    return 2.0 * math.log(len(POINTS) * t**2 * math.pi**2 / 0.6) / 5.0


METHODS: dict[str, Method] = {
    "TruVaR": truvar(monotone=False),
    "TruVaR, monotone sets": truvar(monotone=True),
    "EI": greedy(lambda mean, variance, best, _: log_ei(mean, variance, best).value),
    "GP-UCB": greedy(lambda mean, variance, _, t: ucb(mean, variance, scaled(t)).value),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--functions", type=int, default=30)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first function")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS], default=[*METHODS])
    parser.add_argument("--figure", type=Path, default=Path("truvar_synthetic.html"))
    args = parser.parse_args()
    quiet()
    functions = {seed: function(seed) for seed in range(args.first, args.first + args.functions)}
    draw({name: regrets_of(name, functions, args.evaluations) for name in args.methods}, args.figure)


def regrets_of(name: str, functions: dict[int, np.ndarray], evaluations: int) -> np.ndarray:
    """(functions, evaluations) regrets of a method, printed as they come."""
    marks = [m for m in MARKS if m <= evaluations]
    print(f"\n{name + ': regret after':34s}" + "".join(f"{m:>9d}" for m in marks))
    began, regrets, lost = time.perf_counter(), [], []
    for seed, values in functions.items():
        regret, gone = METHODS[name](values, seed, evaluations)
        regrets.append(regret)
        lost.append(gone)
        row(f"function {seed}", regret, marks, "   the maximiser is lost" if gone else "")
    found = np.array(regrets)
    spent = (time.perf_counter() - began) / len(found)
    row("mean", found.mean(axis=0), marks, f"   lost in {sum(lost)} of {len(lost)}, {spent:.1f} s a function")
    row("median", np.median(found, axis=0), marks, "")
    return found


def row(name: str, regrets: np.ndarray, marks: list[int], more: str) -> None:
    """One line of a table."""
    print(f"{name:34s}" + "".join(f"{regrets[m - 1]:9.4f}" for m in marks) + more, flush=True)


def draw(found: dict[str, np.ndarray], path: Path) -> None:
    """Medians, and means without the best and the worst 5% at each time, as in the paper."""
    figure = panels(["median", "mean without the best and the worst 5%"])
    if figure is None:
        return
    times = np.arange(1, next(iter(found.values())).shape[1] + 1)
    for (name, regrets), colour in zip(found.items(), COLOURS, strict=False):
        cut = max(round(0.05 * len(regrets)), 1) if len(regrets) > 2 else 0
        trimmed = np.sort(regrets, axis=0)[cut : len(regrets) - cut].mean(axis=0)
        for column, values in ((1, np.median(regrets, axis=0)), (2, trimmed)):
            line(figure, column, times, np.maximum(values, SMALLEST), name, colour, legend=column == 1)
    for column in (1, 2):
        axes(figure, column, ("evaluations", "regret of the highest posterior mean; 0 drawn at 1e-4"))
    figure.update_yaxes(type="log", range=[np.log10(SMALLEST) - 0.1, 0.5], exponentformat="power")
    save(figure, path)


if __name__ == "__main__":
    main()
