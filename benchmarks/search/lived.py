"""Stopping rules in simulated studies: 50 trials of a task in random order; earlier ones end where the rule stops them.

    python benchmarks/search/lived.py --data DIR [--orders 20] [--half 0|1] [--rules NAME ...] [--paths N] [--known N]

Data: learning_curves.npz (6 tasks) and training_curves.npz (14), errors in [0, 1] as stopping.py scales them; the
untrained first point of learning_curves is left out. The incumbent is the best final error among the runs completed so
far. A trial wins if its final error beats the incumbent of its time. Columns: `wrong` is the share of winning trials
that a rule stops, `saved` the share of all epochs, `foresight` the saved epochs over those saved by stopping every
losing trial at epoch 1, `regret` that of the best found, over the distance from the best of the trials to the task's
median. Every second task of a suite is in half 0, on which settings were chosen.

Wrong / share of foresight in percent, half 0 and half 1, over 20 orders: median 2.5 / 45 and .4 / 38; median-pruner
19 / 75 and 24 / 76; hyperband-pruner 31 / 78 and 31 / 78; power-law 31 / 72 and 10 / 60; halving 63 / 104 and 57 / 102.
`reference` has 8.1 / 78 and 3.2 / 72 over 24 orders (72 of 969 and 29 of 747 winners), but 3.1 / 78 and 2.6 / 72 over
the first 6, with which its settings were chosen: an order has about 3.5 winners, so few orders measure wrong stops
badly, and settings fit them. Of the wrong stops 57 of 101 come in the first 7% of a training, where most curves of the
task are flat, and 37 follow another one of the same order: the incumbent that stays is bad, so more trials would win.

What did not help there (24 orders, log loss of P on one half, with constants fitted on the other): weights of the join
that depend on the epoch or on the number of full trainings, a probability that the model is wrong, its odds at the base
rate 1 / (k + 1) of k trials. Over 12 orders of half 0 a probability of 8% that the model is wrong takes 7 points of
share from the first task and saves 2 of its 3 wrong stops. K1 = 2000, 12 orders: on text 11 wrong stops of 148 (13), on
AlexNet 3 of 34 (5) and, on a tenth of ImageNet, 3 of 45 (14), for 3 to 8 points of share.
`curves`, the same without configurations, with K1 = 500 and the first decision at epoch 2: 4.5 / 72 and 8.3 / 70 over 6
orders.

What was tried there, settings chosen on half 0 (but wrong stops of half 1 gave the idea of the bound below): the first
decision at epoch 1 in place of 4% of the training 4.3 / 79.5 and 6.8 / 73.5 (on text, at epoch 1, 0.8% of the trials
won where 0.15% was stated); without the bound by the epochs that are left 3.1 / 78.8 and 5.8 / 72.8; without a loss at
the last epoch in the induction too 3.6 / 75.7, and with K1 = 600 12 of 28 winners of AlexNet were stopped; solved at
every epoch, equal, but the calibration error is .021 in place of .015; p_model within odds of 150 in place of 1,100, 78
in place of 88 on the first task.

How the model of configurations came to be, all on half 0: log loss of p_model joined with the paths, over the decisions
of one order, leave-one-suite-out, .081 without it; .065 to .070 with stages at 1, 3, 9, ... and .063 with 1, 2, 4, ...;
without s in the deviation .070 and worse. Without the minimum of four full trainings and Student's t, one order of
AlexNet stopped 20 of 22 winners. K1 = 500 with the first epoch that is judged at 2: 4.8 / 80 over 3 orders.

A bound for a library of recorded curves: with the full curves of 150 other trials of the same task from the start
(`--known 150`), `curves` with K1 = 500 has 4.0 / 78 and 6.3 / 76 over 2 orders; without them 2.4 / 73 and 10.2 / 72.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from peer_optuna import Hyperband
from recorded import to_cube
from stopping import extrapolated as power_law
from stopping import to_errors

from haltune.models.curves import ReferenceCurves
from haltune.policies.bobos.optimal_stopping import DecisionTable, OptimalStopping

RUNS = 50
BINS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


Said = tuple[float, bool, float]  # a stated probability of a win, whether it wins, and the weight of the statement


@dataclass
class Life:
    """One trial: the data that a rule gets, and the probabilities that it states."""

    errors: np.ndarray  # (N,) of this run: a rule looks at those before its epoch only
    incumbent: float
    before: list[np.ndarray]  # the earlier runs' errors, as far as they were trained
    points: np.ndarray  # (len(before) + 1, d) configurations in the unit cube: those of `before`, then its own
    seed: list[int]
    said: list[Said] = field(default_factory=list)

    @property
    def horizon(self) -> int:
        return len(self.errors)

    def say(self, p_win: float) -> None:
        if math.isfinite(p_win):
            self.said.append((p_win, bool(self.errors[-1] < self.incumbent), 1.0))


Rule = Callable[[Life], int]  # the epoch at which it stops, the horizon for never


def tasks(data: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Errors (runs, N) and points (runs, d) of each task, named suite/task."""
    found = {}
    text, others = np.load(data / "learning_curves.npz"), np.load(data / "training_curves.npz")
    for key in text.files:
        if key.endswith("/valid_loss"):
            task = key.split("/")[0]
            points = to_cube(text[f"{task}/hyperparameters"], [str(name) for name in text["names"]])
            found[f"text/{task}"] = to_errors(text[key].astype(float))[:, 1:], points
    for key in others.files:
        if key.endswith("/scores"):
            task = key.removesuffix("/scores")
            found[task] = np.clip(1.0 - others[key].astype(float), 0.0, 1.0), others[f"{task}/points"].astype(float)
    return found


def halves(names: list[str]) -> dict[str, int]:
    """Every second task of a suite is in half 1."""
    seen: dict[str, int] = {}
    found = {}
    for name in names:
        suite = name.split("/")[0]
        found[name] = seen.get(suite, 0) % 2
        seen[suite] = seen.get(suite, 0) + 1
    return found


# -- rules ----------------------------------------------------------------------------------------------------


def optimal(settings: OptimalStopping, reference: bool, configurations: bool = False) -> Rule:
    """Bayesian optimal stopping, with reference curves or without, and with configurations or without."""

    def rule(life: Life) -> int:
        points = life.points[:-1] if configurations else None
        others = ReferenceCurves.of(life.before, life.horizon, points) if reference else None
        tables: dict[int, DecisionTable] = {}

        def table(at: int) -> DecisionTable:
            if at not in tables:
                rng = np.random.default_rng([*life.seed, at])
                tables[at] = settings.solve_at(
                    life.errors[:at], life.horizon, life.incumbent, settings.losses(), rng, others, life.points[-1]
                )
            return tables[at]

        for epoch in range(1, life.horizon):
            decision, _ = settings.decide(life.errors[:epoch], life.horizon, table, others)
            if decision is not None:
                life.say(decision.p_win)
                if decision.d == "stop":
                    return epoch
        return life.horizon

    return rule


def epochs(life: Life) -> Iterator[tuple[int, np.ndarray]]:
    return ((n, life.errors[:n]) for n in range(1, life.horizon))


def first(life: Life, stops: Callable[[int, np.ndarray], bool], begins: int = 1) -> int:
    return next((n for n, y in epochs(life) if n >= begins and stops(n, y)), life.horizon)


def median(life: Life) -> int:
    """Its best so far is worse than the median of the earlier runs' running means (Vizier), from a sixth on."""

    def stops(n: int, y: np.ndarray) -> bool:
        others = [e[:n].mean() for e in life.before if len(e) >= n]
        return len(others) >= 5 and bool(y.min() > np.median(others))

    return first(life, stops, max(1, round(life.horizon * 8 / 51)))


def median_pruner(life: Life) -> int:
    """Optuna's MedianPruner: 5 complete runs before it, and no warm-up."""

    def stops(n: int, y: np.ndarray) -> bool:
        others = [e[n - 1] for e in life.before if len(e) >= n]
        return len(life.before) >= 5 and bool(others) and bool(y.min() > np.median(others))

    return first(life, stops)


def hyperband_pruner() -> Rule:
    """Optuna's HyperbandPruner, its own code; a study for each order of a task."""
    pruner = Hyperband()
    return lambda life: pruner.stops("-".join(map(str, life.seed[:2])), life.before, life.errors)


def halving(eta: int, least: int) -> Rule:
    """Asynchronous successive halving that stops: at least x eta^k, the top 1 / eta of the arrived trials continue."""

    def rule(life: Life) -> int:
        rungs = {least * eta**k for k in range(20)}

        def stops(n: int, y: np.ndarray) -> bool:
            if n not in rungs:
                return False
            arrived = sorted([float(e[n - 1]) for e in life.before if len(e) >= n] + [float(y[-1])])
            return bool(y[-1] > arrived[max(1, len(arrived) // eta) - 1])

        return first(life, stops)

    return rule


def margin(life: Life) -> int:
    return first(life, lambda _, y: bool(y[-1] > life.incumbent + 0.1), max(1, round(life.horizon * 8 / 51)))


def extrapolated(life: Life) -> int:
    return first(
        life,
        lambda n, _: power_law(life, n, life.incumbent),  # type: ignore[arg-type]
        max(4, round(life.horizon * 8 / 51)),
    )


def rules(paths: int | None, k1: float | None) -> dict[str, Rule]:
    sizes = {} if paths is None else {"paths": paths}
    sizes |= {} if k1 is None else {"K1": k1}
    return {
        "reference": optimal(OptimalStopping(**sizes), True, True),
        "curves": optimal(OptimalStopping(**sizes), True),
        "alone": optimal(OptimalStopping(reference_curves=False, **sizes), False),
        "faithful": optimal(OptimalStopping("faithful", **sizes), False),
        "median": median,
        "median-pruner": median_pruner,
        "hyperband-pruner": hyperband_pruner(),
        "halving": halving(3, 1),
        "margin": margin,
        "power-law": extrapolated,
    }


# -- measuring ------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """One rule on one task, over all orders."""

    wins: int = 0
    wrong: int = 0
    saved: int = 0
    of: int = 0
    foresight: int = 0
    regret: list[float] = field(default_factory=list)
    said: list[tuple[float, bool]] = field(default_factory=list)
    seconds: float = 0.0


def live(rule: Rule, errors: np.ndarray, points: np.ndarray, task: int, orders: range, known: int = 0) -> Measured:
    horizon, m = errors.shape[1], Measured()
    for order in orders:
        shuffled = np.random.default_rng([task, order]).permutation(len(errors))
        chosen, others = shuffled[:RUNS], shuffled[RUNS : RUNS + known]
        incumbent, before, full = math.inf, list(errors[others]), []
        for nth, run in enumerate(chosen):
            seen = points[[*others, *chosen[: nth + 1]]]
            life = Life(errors[run], incumbent, before, seen, [task, order, nth])
            began = time.perf_counter()
            stop = rule(life) if math.isfinite(incumbent) else horizon
            m.seconds += time.perf_counter() - began
            wins = bool(nth and errors[run, -1] < incumbent)
            m.wins += wins
            m.wrong += wins and stop < horizon
            m.saved += horizon - stop
            m.of += horizon
            m.foresight += 0 if wins or not nth else horizon - 1
            m.said += life.said
            before.append(errors[run, :stop])
            if stop == horizon:
                incumbent = min(incumbent, float(errors[run, -1]))
                full.append(incumbent)
        best = float(errors[chosen, -1].min())
        m.regret.append((incumbent - best) / max(float(np.median(errors[:, -1])) - best, 1e-9))
    return m


def summary(found: dict[str, Measured]) -> str:
    """The mean over suites, each the mean of its tasks' shares; and each suite's wrong / share of foresight."""
    suites: dict[str, list[Measured]] = {}
    for name, m in found.items():
        suites.setdefault(name.split("/")[0], []).append(m)
    rows = {
        suite: (
            100 * sum(m.wrong for m in ms) / max(1, sum(m.wins for m in ms)),
            100 * float(np.mean([m.saved / m.of for m in ms])),
            100 * float(np.mean([m.saved / max(1, m.foresight) for m in ms])),
            float(np.mean([np.mean(m.regret) for m in ms])),
        )
        for suite, ms in suites.items()
    }
    wrong, saved, share, regret = np.mean(list(rows.values()), axis=0)
    parts = " ".join(f"{suite} {w:.1f}/{s:.0f}" for suite, (w, _, s, _) in rows.items())
    return f"{wrong:5.2f} {saved:5.1f} {share:6.1f} {regret:7.4f}   {parts}"


def binned(said: list[Said]) -> tuple[float, float, list[tuple[float, float, int, float, float]]]:
    """The expected calibration error, the Brier score and the bins: edges, count, mean stated and share observed."""
    p, wins, weights = (np.array(column, dtype=float) for column in zip(*said, strict=True))
    rows, error = [], 0.0
    for low, high in pairwise(BINS):
        inside = (p >= low) & ((p < high) | (high == 1.0))
        if inside.any():
            stated, seen = (float(np.average(of[inside], weights=weights[inside])) for of in (p, wins))
            rows.append((low, high, int(inside.sum()), stated, seen))
            error += float(weights[inside].sum() / weights.sum()) * abs(stated - seen)
    return error, float(np.average((p - wins) ** 2, weights=weights)), rows


def calibration(said: list[Said]) -> str:
    """Stated against observed, by bin; expected calibration error and Brier score."""
    if not said:
        return ""
    error, brier, rows = binned(said)
    lines = [
        f"{100 * low:g}-{100 * high:g}%: {count} said {100 * stated:.2f} were {100 * seen:.2f}"
        for low, high, count, stated, seen in rows
    ]
    return f"    error {error:.4f}, Brier {brier:.4f}; " + "; ".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("HALTUNE_DATA"), help="folder of the curves")
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--half", type=int, choices=(0, 1), help="of the tasks; default: both, one after the other")
    parser.add_argument("--rules", nargs="*", help="some of them; default: all")
    parser.add_argument("--paths", type=int, help="simulated paths; default: the mode's own")
    parser.add_argument("--K1", type=float, help="of optimal stopping; default: the mode's own")
    parser.add_argument("--known", type=int, default=0, help="full curves of other trials of the task, from the start")
    parser.add_argument("--tasks", action="store_true", help="a line for each task, too")
    args = parser.parse_args()
    data = Path(args.data or ".")
    if not (data / "training_curves.npz").is_file():
        sys.exit(f"{data}/training_curves.npz is missing: name its folder by --data DIR or HALTUNE_DATA.")
    curves = tasks(data)
    half = halves(list(curves))
    print("rule (half)        wrong saved foresight regret   suites: wrong / share of foresight")
    for which in (0, 1) if args.half is None else (args.half,):
        for name, rule in rules(args.paths, args.K1).items():
            if args.rules and name not in args.rules:
                continue
            found = {
                task: live(rule, *recorded, nth, range(args.orders), args.known)
                for nth, (task, recorded) in enumerate(curves.items())
                if half[task] == which
            }
            seconds = sum(m.seconds for m in found.values()) / (args.orders * RUNS * len(found))
            print(f"{name:14s} ({which}) {summary(found)}   {1e3 * seconds:.0f} ms a run", flush=True)
            for task, m in found.items() if args.tasks else ():
                print(f"    {task:42s} {m.wrong}/{m.wins} {100 * m.saved / max(1, m.foresight):.0f}")
            if text := calibration([pair for m in found.values() for pair in m.said]):
                print(text, flush=True)


if __name__ == "__main__":
    main()
