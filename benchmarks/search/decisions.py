"""Decisions of every policy on recorded trainings, to check a change that must not change a decision.

    python benchmarks/search/decisions.py --data DIR --write before.json
    python benchmarks/search/decisions.py --data DIR --against before.json [--policy hyperband ...]
    python benchmarks/search/decisions.py --data DIR --policy hyperband --show

Data: learning_curves.npz. Each policy searches one table from three seeds, with one worker and with three workers that
train an epoch in turn. A line lists a policy, its workers, the seed, and a hash of all configurations, budgets and
verdicts in order. Reasons are not hashed. --against ends with an error if a hash differs.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import hashlib
import json
import sys
import warnings
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from recorded import Task, load

import haltune
import haltune.policies
from haltune import Budget, Problem, Study, Trial

QUICK = "OptimalStopping(paths=2000, first=20, resolve_at=(30,))"
EARLIER = {
    "name": "earlier",
    "horizon": 50,
    "trials": 12,
    "runs": [
        {
            "config": {f"u{k}": (0.1 + 0.37 * i * (k + 1)) % 1.0 for k in range(8)},
            "epochs": [1, 3, 9, 50],
            "targets": [-1.0 - 0.05 * i, -0.8 - 0.04 * i, -0.5 - 0.05 * i, -0.3 - 0.06 * i],
        }
        for i in range(12)
    ],
}
POLICIES = {  # name: how it is made, and the full trainings that it may spend
    "random": ("RandomSearch()", 6),
    "gpucb": ("GPUCB(refit_every=3)", 14),
    "ei": ("EI(initial=3)", 10),
    "ei-per-cost": ("EI(cost='per', initial=3)", 10),
    "ei-cooled": ("EI(cost='cooled', initial=3)", 10),
    "rollout": ("Rollout(1, initial=3, points=24)", 7),
    "rollout-3": ("Rollout(3, 0.9, 'terminate', initial=3, paths=8, points=16)", 6),
    "truvar": ("TruVaR(initial=3, representers=32)", 8),
    "truvar-level-set": ("TruVaR(threshold=0.7, initial=3, representers=32, cost_model='gp')", 8),
    "level-set-search": ("TruVaR(0.7, rule='gchk', initial=3, representers=32)", 8),
    "autobct": ("AutoBCT(gamma=1e-3, min_trainings=8)", 8),
    "bobos": (f"BOBOS(initial=3, stopping={QUICK})", 8),
    "bobos-audit": (f"BOBOS(initial=3, stopping={QUICK}, audit=0.6)", 8),
    "halting-random": (f"Halting(RandomSearch(), {QUICK})", 8),
    "halting-gpucb": (f"Halting(GPUCB(initial=3), {QUICK}, kappa=2.0, epoch_cost='seconds')", 8),
    "halting-hyperband": (f"Halting(Hyperband(rounds=None), {QUICK})", 8),
    "halving": ("SuccessiveHalving(n=27, rounds=None)", 10),
    "hyperband": ("Hyperband(rounds=None)", 12),
    "hyperband-retrains": ("Hyperband(eta=2, rounds=None, resume=False, sampler='lhs')", 10),
    "hyperband-seconds": ("Hyperband(20.0, eta=2, rounds=None, resource='seconds')", 8),
    "hyperband-samples": ("Hyperband(8, eta=2, rounds=None, resource='samples')", 8),
    "hyperband-gp": ("Hyperband(eta=2, rounds=None, sampler=GPUCB(initial=3))", 8),
    "hyperband-growing": ("Hyperband(eta=2, schedule='growing', sampler='sobol')", 8),
    "asha": ("Hyperband(brackets='most_exploratory', rounds=None, asynchronous=True)", 10),
    "asha-stopping": ("SuccessiveHalving(n=10**6, rounds=None, asynchronous='stop')", 10),
    "infinite-hyperband": ("InfiniteHyperband()", 10),
    "ladder": ("Ladder()", 12),
    "multifidelity": ("MultiFidelity()", 12),
    "multifidelity-prior-studies": ("MultiFidelity(learn_from=[EARLIER])", 8),
}


def decide(expression: str, task: Task, trainings: int, seed: int, workers: int) -> list[list[Any]]:
    """Search the table; return each proposal and each verdict in order."""
    names: dict[str, Any] = {"EARLIER": EARLIER}
    for module in (haltune, haltune.policies):
        names.update({name: getattr(module, name) for name in module.__all__})
    policy = eval(expression, names)
    horizon = None if "Infinite" in expression else task.scores.shape[1]
    problem = Problem(task.space, task.problem.goal, horizon)
    study = Study(problem, policy, seed=seed, budget=Budget(epochs=50 * trainings), verbose=0)
    decisions: list[list[Any]] = []
    at_work: list[tuple[Trial, int, Iterator[int]]] = []
    while True:
        while len(at_work) < workers:
            answer = study.ask()
            if not isinstance(answer, Trial):
                decisions.append([type(answer).__name__])
                break
            config = [float(answer.config[f"u{i}"]).hex() for i in range(task.points.shape[1])]
            decisions.append(["trial", answer.id, answer.pause_at, config])
            row = task.nearest(task.point(dict(answer.config)), task.points[:, 0] > -1.0)
            at_work.append((answer, row, answer.epochs()))
        if not at_work:
            return decisions
        at_work = [training for training in at_work if goes_on(*training, task, decisions)]


def goes_on(trial: Trial, row: int, epochs: Iterator[int], task: Task, decisions: list[list[Any]]) -> bool:
    """Train one epoch and record the verdict; False where the trial stops, pauses or is complete."""
    epoch = next(epochs)
    score = float(task.scores[row, min(epoch, task.scores.shape[1]) - 1])
    verdict = trial.report(score, seconds=0.5 + row % 3, cost=1.0)
    decisions.append([trial.id, epoch, verdict.action.name, verdict.pause_at])
    if verdict.resumable:
        trial.checkpointed(f"row-{row}")
    if not verdict.stops and (trial.max_epochs is None or epoch < trial.max_epochs):
        return True
    trial.finish()
    return False


def line(job: tuple[str, Task, int, int]) -> tuple[str, str]:
    """One search and the hash of its decisions."""
    name, task, workers, seed = job
    warnings.simplefilter("ignore")
    expression, trainings = POLICIES[name]
    try:
        decisions = json.dumps(decide(expression, task, trainings, seed, workers))
    except Exception as error:
        decisions = f"{type(error).__name__}: {error}"
        return f"{name} workers={workers} seed={seed}", decisions
    return f"{name} workers={workers} seed={seed}", hashlib.sha256(decisions.encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz")
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--write", type=Path, help="file that takes the hashes")
    parser.add_argument("--against", type=Path, help="file of hashes to compare with")
    parser.add_argument("--show", action="store_true", help="print the decisions of seed 0 with one worker")
    args = parser.parse_args()
    task = load(args.data)[1]
    if args.show:
        for name in args.policy:
            print(name, *decide(*[POLICIES[name][0], task, POLICIES[name][1]], 0, 1), sep="\n")
        return
    expected = json.loads(args.against.read_text()) if args.against else {}
    found: dict[str, str] = {}
    jobs = [(p, task, workers, seed) for p in args.policy for workers in (1, 3) for seed in range(args.seeds)]
    with get_context("spawn").Pool(args.processes) as pool:
        for key, digest in pool.imap(line, jobs):
            found[key] = digest
            differs = key in expected and expected[key] != digest
            print(f"{key:50s} {digest}{'  DIFFERS: ' + expected[key] if differs else ''}", flush=True)
    if args.write:
        args.write.write_text(json.dumps(found, indent=1) + "\n")
    if any(expected.get(key, digest) != digest for key, digest in found.items()):
        sys.exit("Some decisions differ.")


if __name__ == "__main__":
    main()
