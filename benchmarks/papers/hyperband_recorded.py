"""Figures 5 and 6 of Hyperband (Li et al. 2018), on recorded curves: orders, speedups, and what its theorems ask for.

    python benchmarks/papers/hyperband_recorded.py --data FOLDER [--seeds 400] [--tpe 10]

The paper's figure 5 trains for a year of GPU hours; its figure 6 has 117 data sets. Here a training is a recorded one:
6 text RNNs (learning_curves.npz), AlexNet, LSTM and MetaQNN (training_curves.npz), 20 to 59 epochs. Each seed draws
rows of a table without replacement. All seeds are halved at once, because a schedule does not depend on values.

R is a full training, eta = 3. "most exploratory" repeats the bracket s_max, "random_2x" is random search with twice
the budget, "infinite" is figure 9 with eta = 4 and budgets from 2 R on (section 3.1); it does not know R, so a pull
beyond the last epoch keeps the last loss. Losses count at the ends of rungs. The regret is the incumbent's loss minus
the table's best, as a share of the distance from the best to the median final loss. "speedup" is the budget with which
random search reaches the regret that a method has after 10 R, over 10 R. Ranks are of each table and seed, 1 for the
least regret, ties shared (figure 6 ranks the means over seeds), and their differences have two errors, over seeds and
over tables. A trial that continues pays its further epochs alone.

--tpe, --smac: so many searches of a rival (rivals.py) over the rows of each table, too, every training in full. The
hyperparameters are those of ../search/recorded.py. With both, the five searches of figure 6 are ranked, too.

Then, of 27 drawn curves: z_SH of theorem 8 for an epsilon of 0.2, the budget of corollary 9 for its least epsilon
(delta = 0.1), and the budget that was needed, as multiples of R. The same of 32 curves for an infinite horizon, by
theorem 1 and corollary 3. FOLDER, or HALTUNE_DATA, holds the files.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import math
import sys
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
from command_line import command_line, data_file
from numpy.typing import NDArray
from paired import cell
from scipy.stats import rankdata

sys.path.append(str(Path(__file__).parents[1] / "search"))
from recorded import load_kinds

from haltune.policies.hyperband.brackets import Bracket, Rung, hyperband, infinite
from haltune.policies.hyperband.theory import envelope, needed_budget, sampling_budget, sufficient_budget

Array = NDArray[np.float64]
MARKS = (2, 5, 10, 20, 40)  # full trainings
ARMS, INFINITE, EPSILON, DELTA = 27, 32, 0.2, 0.1
TEXT, OTHERS = "learning_curves.npz", "training_curves.npz"


def tables(folder: Path | None) -> dict[str, Array]:
    """Losses (n, epochs) by name: 0 at the best final loss, 1 at the median one or above."""
    text, others = np.load(data_file(folder, TEXT)), np.load(data_file(folder, OTHERS))
    found = {key.split("/")[0]: text[key].astype(float)[:, 1:] for key in text.files if key.endswith("/valid_loss")}
    named = [key for key in others.files if key.endswith("/scores") and key.split("/")[0] in ("opda", "accnas")]
    found |= {key.removesuffix("/scores"): 1.0 - others[key].astype(float) for key in named}
    return {name: scaled(loss) for name, loss in found.items() if loss.shape[1] >= 20}


def scaled(loss: Array) -> Array:
    finite = np.where(np.isfinite(loss), loss, np.inf)
    best = finite[:, -1].min()
    return np.clip((finite - best) / (np.median(finite[:, -1]) - best), 0.0, 1.0)


def steps(losses: Array, drawn: NDArray[np.intp], brackets: Iterable[Bracket], limit: float) -> tuple[Array, Array]:
    """Return costs (k,) of the ends of rungs, and the least loss seen (seeds, k) until each of them."""
    costs, best, spent, taken = [0.0], [np.ones(len(drawn))], 0.0, 0
    for bracket in brackets:
        alive, before = drawn[:, taken : taken + bracket.rungs[0].n], 0
        taken += bracket.rungs[0].n
        if spent >= limit or alive.shape[1] < bracket.rungs[0].n:
            break
        for rung in bracket.rungs:
            if before:
                seen = losses[alive, before - 1]
                alive = np.take_along_axis(alive, np.argsort(seen, axis=1, kind="stable")[:, : rung.n], axis=1)
            last = min(int(rung.resource), losses.shape[1])
            spent += rung.n * max(last - before, 0)
            before = max(last, before)
            costs.append(spent)
            best.append(np.minimum(best[-1], losses[alive, before - 1].min(axis=1)))
    return np.array(costs), np.array(best).T


def random_search(R: int) -> Iterator[Bracket]:
    return cycle([Bracket((Rung(1, float(R)),), 0)])


def regrets(losses: Array, seeds: int, name: str) -> tuple[Array, Array]:
    """Return costs in full trainings (k,) and the regrets (seeds, k) of a method."""
    n, R = losses.shape
    rng = np.random.default_rng([n, R])
    drawn = np.array([rng.permutation(n) for _ in range(seeds)])
    plan = hyperband(R, 3).brackets
    brackets = {
        "Hyperband": lambda: cycle(plan), "most exploratory": lambda: cycle(plan[:1]),
        "infinite": lambda: infinite(4, 2 * R),
        "random": lambda: random_search(R), "random_2x": lambda: random_search(R),
    }[name]()  # fmt: skip
    twice = 2.0 if name == "random_2x" else 1.0
    costs, best = steps(losses, drawn, brackets, twice * 1.05 * max(MARKS) * R if name != "random" else n * R)
    return costs / R / twice, best


METHODS = ("Hyperband", "most exploratory", "infinite", "random", "random_2x")


def at(costs: Array, best: Array, mark: float) -> Array:
    return np.asarray(best[:, np.searchsorted(costs, mark * (1 + 1e-9), side="right") - 1])


def ranks(regret: dict[str, Array], mark: float) -> None:
    """Print the mean ranks of methods by their regrets (tables, seeds), and that of Hyperband minus each other."""
    ranked = dict(zip(regret, rankdata([*regret.values()], axis=0), strict=True))
    print(
        f"\nmean rank of {len(ranked)} after {mark:g} R"
        + "".join(f"   {name} {own.mean():.3f}" for name, own in ranked.items())
    )
    for name, own in ranked.items():
        if name != "Hyperband":
            less = ranked["Hyperband"] - own
            over = {"seeds": less.mean(axis=0), "tables": less.mean(axis=1)}
            print(f"Hyperband minus {name:12s}" + "".join(f"  {cell(d)} over {len(d)} {w}" for w, d in over.items()))


def main() -> None:
    parser = command_line(__doc__, 400, f"{TEXT} and {OTHERS}")
    parser.add_argument("--tpe", type=int, default=0, help="searches of Optuna's TPE on each table")
    parser.add_argument("--smac", type=int, default=0, help="searches of SMAC's rule on each table")
    args = parser.parse_args()
    found = {name: {m: regrets(loss, args.seeds, m) for m in METHODS} for name, loss in tables(args.data).items()}
    print(
        f"{len(found)} tables, {args.seeds} seeds: mean regret after full trainings{'':8s}"
        + "".join(f"{m:>15d}" for m in MARKS)
    )
    for method in METHODS:
        each = np.array([[at(*own[method], m) for m in MARKS] for own in found.values()])  # tables, marks, seeds
        errors = error_of(each.mean(axis=0))
        cells = [f"{mean:.4f}±{e:.4f}" for mean, e in zip(each.mean(axis=(0, 2)), errors, strict=True)]
        print(f"{method:60s}" + "".join(f"{cell:>15s}" for cell in cells), flush=True)
    rivals = {
        name: show_rival(name, found, args.data, seeds)
        for name, seeds in (("TPE", args.tpe), ("SMAC", args.smac))
        if seeds
    }
    ahead = [
        sum(at(*own["Hyperband"], m).mean() < at(*own["random_2x"], m).mean() for own in found.values()) for m in MARKS
    ]
    print(f"{'tables with Hyperband ahead of random_2x':60s}" + "".join(f"{count:>15d}" for count in ahead))
    for mark in (10, 40):
        three = {
            name: np.array([at(*own[name], mark) for own in found.values()])
            for name in ("Hyperband", "random", "random_2x")
        }
        ranks(three, mark)
        if len(rivals) == 2:
            five = three | {name: each[:, :, MARKS.index(mark)] for name, each in rivals.items()}
            ranks({name: each[:, : min(args.tpe, args.smac)] for name, each in five.items()}, mark)
    print("\nspeedup over random search, of the regret after 10 R")
    for name, own in found.items():
        print(f"{name:34s}" + "".join(f"{method:>18s} {speedup(own, method)}" for method in METHODS[:3]), flush=True)
    for count, eta, theorems in ((ARMS, 3.0, "theorem 8, corollary 9"), (INFINITE, None, "theorem 1, corollary 3")):
        print(f"\nbudgets of {count} curves, in full trainings: {theorems}, needed")
        for name, loss in tables(args.data).items():
            own = budgets(loss, min(args.seeds, 10), count, eta)
            print(f"{name:34s}" + "".join(f"{value:>12.1f}" for value in own), flush=True)


def error_of(means: Array) -> Array:
    """Return the standard errors (marks,) of means over tables (marks, seeds).

    Tables are averaged first: six have the same configurations, of which a seed draws the same ones.
    """
    return np.asarray(means.std(axis=1, ddof=1) / means.shape[1] ** 0.5)


def show_rival(name: str, found: dict[str, dict[str, tuple[Array, Array]]], folder: Path | None, seeds: int) -> Array:
    """Print and return the regrets of a rival, (tables, seeds, marks), and print what Hyperband has less."""
    from rivals import RIVALS
    from rivals import losses as trained

    points = {task.name: task.points for own in load_kinds(str(folder) if folder else None).values() for task in own}
    losses, marks = tables(folder), np.array(MARKS) - 1
    each = np.array(
        [
            [
                np.minimum.accumulate(
                    trained(RIVALS[name](points[t.split("/", 1)[-1]], seed), losses[t][:, -1].__getitem__, max(MARKS))
                )[marks]
                for seed in range(seeds)
            ]
            for t in found
        ]
    )  # tables, seeds, marks
    band = np.array([[at(*own["Hyperband"], m) for m in MARKS] for own in found.values()])
    error, rest = error_of(each.mean(axis=0).T), error_of(band.mean(axis=0))
    mean = each.mean(axis=(0, 1))
    print(
        f"{f'{name}, {seeds} seeds':60s}"
        + "".join(f"{f'{m:.4f}±{e:.4f}':>15s}" for m, e in zip(mean, error, strict=True))
    )
    less, both = band.mean(axis=(0, 2)) - mean, np.hypot(error, rest)
    cells = [f"{d:+.3f} ({d / e:+.1f})" for d, e in zip(less, both, strict=True)]
    print(f"{f'Hyperband minus {name} (in standard errors)':60s}" + "".join(f"{one:>15s}" for one in cells), flush=True)
    return each


def speedup(own: dict[str, tuple[Array, Array]], method: str) -> str:
    """Return how much longer random search takes to the mean regret that a method has after 10 R."""
    level, (costs, best) = float(at(*own[method], 10).mean()), own["random"]
    reached = np.flatnonzero(best.mean(axis=0) <= level)
    return f"{costs[reached[0]] / 10:6.1f}" if len(reached) else f">{costs[-1] / 10:5.1f}"


def budgets(losses: Array, seeds: int, count: int, eta: float | None) -> tuple[float, float, float]:
    """Return mean z_SH, the sampling budget, and the mean needed budget of `count` drawn curves, in full trainings.

    eta: None for an infinite horizon (theorem 1, corollary 3), else of the finite one (theorem 8, corollary 9).
    """
    rng, R = np.random.default_rng(0), losses.shape[1]
    drawn = [losses[rng.choice(len(losses), count, replace=False)] for _ in range(seeds)]
    enough = [sufficient_budget(own, EPSILON, eta=eta) for own in drawn]
    rungs = 1 if eta is not None else math.ceil(math.log2(count))  # that each get the same share of a budget
    tried = range(rungs * count, rungs * count * R + R, R)  # up to full trainings of all in the first rung
    needed = [needed_budget(own, EPSILON, tried, eta=eta) or np.nan for own in drawn]
    asked, _ = sampling_budget(losses[:, -1], envelope(losses), count, DELTA, eta=eta)
    return float(np.mean(enough)) / R, asked / R, float(np.mean(needed)) / R


if __name__ == "__main__":
    main()
