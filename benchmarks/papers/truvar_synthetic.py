"""Figures 3a and 3b of TruVaR: regret on functions of a Gaussian process, against EI, GP-UCB, ES and MRS.

    python benchmarks/papers/truvar_synthetic.py [--functions 30] [--evaluations 100] [--continuous] [--keep FILE]
        [--svg]

A function is the posterior mean of 200 random points of [0, 1]^2 whose values are drawn from a Gaussian process
(squared exponential, lengthscale 0.1, variance 1), seen through noise of variance 1e-6 on a mesh of 50 x 50. All
methods get the true kernel. The regret is that of the configuration of highest posterior mean. GP-UCB has the theorem's
beta over 5. EI and GP-UCB are the package's acquisition functions over the same mesh. The output has medians, and means
without the best and the worst 5%, as in the paper.

--continuous: TruVaR, EI and GP-UCB observe, and report, any point of the square, as in the paper. The set M_t of TruVaR
is then on 400 points that follow the search (the paper: on the mesh), so algorithm 2 does not apply.

Entropy search (ES) takes the place after which the maximiser's distribution has the least entropy, in the mean over
three values there: 60 places, drawn in proportion to EI, are candidates and possible maximisers, and 128 functions are
drawn on them. Minimum regret search (MRS) takes the place with the least expected regret afterwards of the highest
posterior mean. The expected maximum does not depend on the place, so this is the place with the largest expected
highest mean, here over seven values at 300 places, drawn in the same way, each against the whole mesh.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import math
import time
from collections.abc import Callable, Sequence

import drawn
import numpy as np
from command_line import command_line
from kept import Kept
from numpy.random import Generator
from paired import differences
from scipy.stats import entropy, norm
from truvar_runs import quiet

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.gp import Kernel, Posterior, condition_on
from haltune.policies import TruVaR
from haltune.policies.acquisition import Proposal, Score, Surface, log_ei, maximise, ucb
from haltune.policies.truvar.belief import DenseField as Field
from haltune.policies.truvar.belief import field_of
from haltune.policies.truvar.choice import MemberSet
from haltune.ranks import alone

SIDE, NOISE = 50, 1e-6
MARKS = (20, 30, 40, 60, 80, 100)
SMALLEST = 1e-4  # smallest regret that the figure shows
KERNEL = Kernel("se", 1.0, np.array([0.1, 0.1]))
SPACE = Space({"x": Float(0.0, 1.0), "z": Float(0.0, 1.0)})
CONFIGS = SPACE.mesh(SIDE)
PLACES = {key: i for i, key in enumerate(SPACE.keys(CONFIGS))}
POINTS = SPACE.encode_many(CONFIGS)
Method = Callable[[np.ndarray, int, int], tuple[np.ndarray, bool]]  # values, seed, evaluations -> regrets, lost
Ranging = Callable[[Posterior, int, int], np.ndarray]  # function, seed, evaluations -> regrets


def function(seed: int) -> Posterior:
    """The posterior whose mean is the function."""
    rng = np.random.default_rng(seed)
    anchors = rng.random((200, 2))
    heights = np.linalg.cholesky(KERNEL(anchors) + 1e-8 * np.eye(200)) @ rng.standard_normal(200)
    return condition_on(KERNEL, anchors, heights, noise=1e-8)


def truvar(monotone: bool | None) -> Method:
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


def greedy(score: Callable[[Field, float, int, Generator], np.ndarray]) -> Method:
    """A method that takes the place of highest score(field, best, t, rng)."""

    def run(values: np.ndarray, seed: int, evaluations: int) -> tuple[np.ndarray, bool]:
        rng, regrets, best = np.random.default_rng([seed, 1]), [], -np.inf
        field = field_of(condition_on(KERNEL, np.zeros((0, 2)), [], noise=0.0), POINTS)
        place = int(rng.integers(len(POINTS)))
        for t in range(1, evaluations + 1):
            target = values[place] + math.sqrt(NOISE) * rng.standard_normal()
            field.observe(place, target, NOISE)
            best = max(best, target)
            regrets.append(values.max() - values[np.argmax(field.mean)])
            place = int(np.argmax(score(field, best, t + 1, rng)))
        return np.array(regrets), False

    return run


def drawn_places(field: Field, best: float, count: int, rng: Generator) -> np.ndarray:
    """Return places drawn in proportion to expected improvement, without repetition."""
    return np.argsort(-log_ei(field.mean, field.variance, best).value - rng.gumbel(size=len(POINTS)))[:count]


def quantiles(count: int) -> np.ndarray:
    """Normal quantiles in the middle of equal shares, with variance 1."""
    z = norm.ppf((np.arange(count) + 0.5) / count)
    return np.asarray(z / z.std())


def minimum_regret(field: Field, best: float, _: int, rng: Generator) -> np.ndarray:
    """The expected highest mean after a value at each place; -inf where it was not computed."""
    places, score = drawn_places(field, best, 300, rng), np.full(len(POINTS), -np.inf)
    moves = field.rows(places) / np.sqrt(field.variance[places] + NOISE)[:, None]
    score[places] = np.mean([(field.mean + z * moves).max(axis=1) for z in quantiles(7)], axis=0)
    return score


def entropy_search(field: Field, best: float, _: int, rng: Generator) -> np.ndarray:
    """Minus the expected entropy of the maximiser after a value at each place; -inf where it was not computed."""
    places, score = drawn_places(field, best, 60, rng), np.full(len(POINTS), -np.inf)
    covariance = field.rows(places)[:, places]
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    functions = field.mean[places] + rng.standard_normal((128, len(places))) @ root.T
    seen = functions + np.sqrt(NOISE) * rng.standard_normal(functions.shape)
    deviations = np.sqrt(field.variance[places] + NOISE)
    for i, place in enumerate(places):
        entropies = []
        for z in quantiles(3):
            residuals = field.mean[place] + z * deviations[i] - seen[:, i]
            maximisers = (functions + np.outer(residuals, covariance[i] / deviations[i] ** 2)).argmax(axis=1)
            shares = np.bincount(maximisers, minlength=len(places)) / len(functions)
            entropies.append(entropy(shares))
        score[place] = -float(np.mean(entropies))
    return score


def scaled(t: int) -> float:
    """The beta of Srinivas et al. (2010), theorem 1 with delta = 0.1, over 5."""
    return 2.0 * math.log(len(POINTS) * t**2 * math.pi**2 / 0.6) / 5.0


def highest(posterior: Posterior, rng: Generator) -> Proposal:
    """Return the point of the square with the highest posterior mean."""
    return maximise(
        Surface(posterior, lambda mean, _: Score(mean, np.ones_like(mean), np.zeros_like(mean))), SPACE, rng
    )


def ranging(score: Callable[[float, int], Callable[[np.ndarray, np.ndarray], Score]] | None) -> Ranging:
    """A search of the whole square by score(best, t); None: by TruVaR."""

    def run(true: Posterior, seed: int, evaluations: int) -> np.ndarray:
        rng, points, seen = np.random.default_rng([seed, 1]), list[np.ndarray](), list[float]()

        def observe(point: np.ndarray) -> float:
            points.append(point)
            seen.append(float(true.mean(point[None])[0]) + math.sqrt(NOISE) * rng.standard_normal())
            return seen[-1]

        if score is None:
            policy = TruVaR(kernel=KERNEL, noise=NOISE, initial=1)
            with alone():
                budget = Budget(trials=evaluations)
                study = Study(Problem(SPACE, Maximize("value"), 1), policy, seed=seed, budget=budget, verbose=0)
            for trial in study:
                trial.report(observe(SPACE.encode(trial.config)), seconds=1.0)
                trial.finish()
        else:
            point = rng.random(2)
            for t in range(1, evaluations + 1):
                observe(point)
                posterior = condition_on(KERNEL, np.array(points), seen, noise=NOISE)
                point = SPACE.encode(maximise(Surface(posterior, score(max(seen), t + 1)), SPACE, rng).config)
        top, regrets = highest(true, rng).value, []
        for n in range(1, evaluations + 1):
            told = highest(condition_on(KERNEL, np.array(points[:n]), seen[:n], noise=NOISE), rng)
            regrets.append(top - float(true.mean(SPACE.encode(told.config)[None])[0]))
        return np.maximum(regrets, 0.0)

    return run


CONTINUOUS: dict[str, Ranging] = {
    "TruVaR": ranging(None),
    "EI": ranging(lambda best, _: lambda mean, variance: log_ei(mean, variance, best)),
    "GP-UCB": ranging(lambda _, t: lambda mean, variance: ucb(mean, variance, scaled(t))),
}
METHODS: dict[str, Method] = {
    "TruVaR": truvar(monotone=None),  # algorithm 2: True with a given kernel
    "TruVaR, M from D": truvar(monotone=False),  # M_{t-1} replaced by D in (5), as in the paper's figure 3c
    "EI": greedy(lambda field, best, _, rng: log_ei(field.mean, field.variance, best).value),
    "GP-UCB": greedy(lambda field, _, t, rng: ucb(field.mean, field.variance, scaled(t)).value),
    "ES": greedy(entropy_search),
    "MRS": greedy(minimum_regret),
}


def main() -> None:
    parser = command_line(__doc__, 30, word="functions")
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first function")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS])
    parser.add_argument("--continuous", action="store_true", help=f"{', '.join(CONTINUOUS)} on the whole square")
    args = parser.parse_args()
    names = args.methods or [*(CONTINUOUS if args.continuous else METHODS)]
    if args.continuous and not set(names) <= set(CONTINUOUS):
        parser.error(f"--continuous has {', '.join(CONTINUOUS)} alone")
    if args.continuous and args.svg:
        parser.error("--svg draws the searches of the mesh: leave out --continuous")
    quiet()
    kept, seeds = Kept(args.keep), range(args.first, args.first + args.functions)
    found = {name: regrets_of(name, seeds, args.evaluations, kept, args.continuous) for name in names}
    marks = np.array([m for m in MARKS if m <= args.evaluations])
    differences({n: r[:, marks - 1] for n, r in found.items()}, "TruVaR", [f"{m}" for m in marks])
    for name in [name for name in found if name != "TruVaR"] if "TruVaR" in found else []:
        closer = int((found["TruVaR"][:, -1] < found[name][:, -1]).sum())
        print(f"TruVaR ends closer to the maximum than {name} in {closer} of {args.functions}")
    if args.svg:
        draw(found)


def regrets_of(name: str, seeds: Sequence[int], evaluations: int, kept: Kept, continuous: bool) -> np.ndarray:
    """(functions, evaluations) regrets of a method, printed."""
    marks = [m for m in MARKS if m <= evaluations]
    began, regrets, lost = time.perf_counter(), [], []
    for seed in seeds:

        def run(seed: int = seed) -> tuple[list[float], bool]:
            if continuous:
                return CONTINUOUS[name](function(seed), seed, evaluations).tolist(), False
            regret, gone = METHODS[name](function(seed).mean(POINTS), seed, evaluations)
            return regret.tolist(), gone

        regret, gone = kept(f"{name} {seed} {evaluations}" + " square" * continuous, run)
        regrets.append(regret)
        lost.append(gone)
    found = np.array(regrets)
    spent = (time.perf_counter() - began) / len(found)
    print(f"\n{name + ': regret after':34s}" + "".join(f"{m:>16d}" for m in marks))
    row("median", np.median(found, axis=0), median_error(found), marks, "")
    cut = trimmed(found)
    error = cut.std(axis=0, ddof=1) / math.sqrt(len(cut)) if len(cut) > 1 else np.full(evaluations, np.nan)
    told = f"   {spent:.1f} s a function"
    if not continuous:
        told += f", the maximiser is found in {int((found[:, -1] == 0).sum())} and lost in {sum(lost)} of {len(lost)}"
    row("mean without the outer 5%", cut.mean(axis=0), error, marks, told)
    return found


def trimmed(regrets: np.ndarray) -> np.ndarray:
    """(kept, evaluations): at each time without the best and the worst 5%."""
    cut = max(round(0.05 * len(regrets)), 1) if len(regrets) > 2 else 0
    return np.sort(regrets, axis=0)[cut : len(regrets) - cut]


def median_error(regrets: np.ndarray) -> np.ndarray:
    """(evaluations,) standard errors of medians, by the bootstrap."""
    rng = np.random.default_rng(0)
    drawn_rows = rng.integers(len(regrets), size=(500, len(regrets)))
    return np.asarray(np.median(regrets[drawn_rows], axis=1).std(axis=0))


def row(name: str, regrets: np.ndarray, errors: np.ndarray, marks: list[int], more: str) -> None:
    """One line of a table."""
    cells = [f"{regrets[m - 1]:.5f}±{errors[m - 1]:.5f}" for m in marks]
    print(f"{name:34s}" + "".join(f"{cell:>16s}" for cell in cells) + more, flush=True)


def draw(found: dict[str, np.ndarray]) -> None:
    """Medians, and means without the best and the worst 5% at each time, as in the paper."""
    sheet = drawn.Sheet("truvar_synthetic", "Median and trimmed mean of the regret over evaluations", 900, 370)
    count = next(iter(found.values())).shape[1]
    for left, title, of in (
        (56, "3a: median", lambda r: np.median(r, axis=0)),
        (500, "3b: mean without the best and the worst 5%", lambda r: trimmed(r).mean(axis=0)),
    ):
        panel = drawn.panel(sheet, left, 380, (0, count), (SMALLEST, 3.0), log_y=True)
        told = "regret of the highest posterior mean"
        panel.axes(title, "evaluations", told, range(0, count + 1, 20), (1e-4, 1e-3, 1e-2, 0.1, 1))
        for name, look in drawn.looks(found).items():
            values = np.maximum(of(found[name]), SMALLEST)
            panel.line(range(1, count + 1), values.tolist(), look["name"], 2, look["dash"])
    drawn.legend(sheet, found)
    drawn.write(sheet)


if __name__ == "__main__":
    main()
