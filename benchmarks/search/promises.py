"""What more of a search was said to bring, and what it brought: searches of recorded curves that went on.

    python benchmarks/search/promises.py --data DIR [--policy multifidelity ...] [--tasks 2] [--simulated]

At several moments of each search it is asked what the next trainings bring, in epochs of so many full trainings; gains
are in distances of the best value from the median one, as regrets are. "simulated" is what AutoBCT would gain in worlds
of its own beliefs, which `study.outlook` says of AutoBCT's searches alone.
"""

from __future__ import annotations

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import warnings
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from recorded import Meter, OnRows, Task, load_kinds

from haltune import Study
from haltune.errors import InvalidInput
from haltune.log.policy import Policy
from haltune.policies import GPUCB, AutoBCT, Hyperband, MultiFidelity, RandomSearch
from haltune.policies.autobct import outlook
from haltune.policies.prospect import prospect
from haltune.ranks.agreement import alone

MOMENTS, AHEAD = (3, 5, 8, 12, 20, 32), (4, 12)  # full trainings
POLICIES = {
    "multifidelity": MultiFidelity,
    "random": RandomSearch,
    "gpucb": GPUCB,
    "hyperband": lambda: Hyperband(rounds=None),
}


@dataclass(frozen=True)
class Said:
    """At a moment, of so much more; gains in the task's own distance."""

    moment: int
    epochs: int  # trained until then
    more: int  # epochs
    chance: float
    gain: float
    high: float
    simulated: float  # NaN where it is not asked for, or AutoBCT does not search this space
    best: float


def searched(policy: Policy, task: Task, seed: int, simulated: bool) -> list[tuple[Said, float]]:
    """What was said along one search, and the gain that came."""
    horizon = task.scores.shape[1]
    meter = Meter(task, (MOMENTS[-1] + AHEAD[-1]) * horizon)
    with alone():
        study = Study(task.problem, OnRows(policy, task), seed=seed, budget=meter.bounds, verbose=0)
    rows: dict[int, int] = {}
    best, said, moments = [0.0], [], list(MOMENTS)
    for trial in study:
        if trial.id not in rows:
            rows[trial.id] = meter.take(task.point(trial.config))
        for epoch in trial.epochs():
            verdict = trial.report(meter.train(rows[trial.id], epoch), seconds=1.0, cost=1.0)
            found = study.history.best()
            best.append(found.value if found else 0.0)
            if moments and len(best) > moments[0] * horizon:
                said += asked(study, moments.pop(0), len(best) - 1, horizon, best[-1], simulated)
        if verdict.resumable:
            trial.checkpointed(f"row-{rows[trial.id]}")
    return [(s, max(0.0, best[min(s.epochs + s.more, len(best) - 1)] - s.best)) for s in said]


def asked(study: Study, moment: int, epochs: int, horizon: int, best: float, simulated: bool) -> list[Said]:
    """What is said now of each stretch ahead."""
    found = []
    for ahead in AHEAD:
        told = prospect(study.history, float(ahead * horizon))
        if told is None:
            continue
        gain = np.nan
        if simulated:
            with suppress(InvalidInput):  # too early, or too wide a space
                gain = float(outlook(study.history, ahead * horizon, AutoBCT(), worlds=60).gain[-1])
        numbers = (float(told.chance), float(told.gain), float(told.high))
        found.append(Said(moment, epochs, ahead * horizon, *numbers, gain, best))
    return found


def row(name: str, found: list[tuple[Said, float, float]]) -> str:
    """Of many promises: the means of what was said and of what came."""
    came = np.array([min(c / unit, 5.0) for _, c, unit in found])
    gain = np.array([s.gain / unit for s, _, unit in found])
    beyond = np.mean([c > s.high + 1e-12 for s, c, _ in found])
    simulated = np.array([s.simulated / unit for s, _, unit in found])
    known = np.isfinite(simulated)
    last = f"{simulated[known].mean():8.3f} against {came[known].mean():.3f}" if known.any() else ""
    return (
        f"{name:16s} {len(found):5d}   {np.mean([s.chance for s, _, _ in found]):6.2f} {np.mean(came > 1e-9):6.2f}   "
        f"{gain.mean():8.3f} {came.mean():8.3f} {np.abs(gain - came).mean():8.3f}   {beyond:6.2f}   {last}"
    )


def main() -> None:
    """Print, for the half of the tasks that the rule was set on and for the other, what was said and what came."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz and training_curves.npz")
    parser.add_argument("--policy", nargs="+", choices=[*POLICIES], default=[*POLICIES])
    parser.add_argument("--tasks", type=int, default=20, help="so many of the 20")
    parser.add_argument(
        "--simulated", action="store_true", help="AutoBCT's simulation, too, which takes seconds a moment"
    )
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    tasks = [task for suite in load_kinds(args.data).values() for task in suite]
    chosen = tasks[:: max(1, len(tasks) // args.tasks)][: args.tasks]
    print(f"{'':16s} {'n':>5s}   chance: said came   gain: said     came    error   above   simulated")
    halves: dict[str, list[tuple[Said, float, float]]] = {"set on": [], "the other": []}
    rows: dict[str, list[tuple[Said, float, float]]] = {}
    for task in chosen:
        unit = float(task.scores.max() - np.median(task.scores[:, -1]))
        half = "the other" if tasks.index(task) % 2 else "set on"
        for name in args.policy:
            found = searched(POLICIES[name](), task, tasks.index(task) % 4, args.simulated)
            told = [(said, came, unit) for said, came in found]
            halves[half] += told
            rows.setdefault(name, []).extend(told)
            for one in told:
                rows.setdefault(f"{one[0].moment} trainings", []).append(one)
    for name, found in [*halves.items(), *rows.items()]:
        if found:
            print(row(name, found), flush=True)


if __name__ == "__main__":
    main()
