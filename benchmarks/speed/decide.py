"""Time of BO-BOS' decisions in a long study: 20,000 reports, 400 trials of 50 epochs.

    python benchmarks/speed/decide.py [--trials 400]

Prints the time of one proposal right after a refit (hyperparameters learnt again, beyond 2,000
points on a subset), of one between refits, and of one verdict from a solved table.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from haltune import Budget, Float, Int, Maximize, Problem, Space, Study
from haltune.log.policy import Fold
from haltune.policies import BOBOS, RandomSearch
from haltune.study.replica import Replica

SPACE = Space({f"x{i}": Float(1e-5, 1.0, log=True) for i in range(5)} | {"width": Int(16, 512, log=True)})


def accuracy(u: np.ndarray, epoch: float) -> float:
    """A rising curve over the unit cube."""
    end = 0.95 - 0.5 * float(np.mean((u - 0.4) ** 2))
    return end - (end - 0.1) / epoch


def filled(trials: int) -> Replica:
    """A BO-BOS replica at the end of a random search of `trials` full trainings."""
    problem = Problem(SPACE, Maximize("acc", (0, 1)), 50)
    study = Study(problem, RandomSearch(), seed=1, budget=Budget(trials=trials), verbose=0)
    for trial in study:
        u = SPACE.encode(trial.config)
        with trial:
            for epoch in trial.epochs():
                trial.report(accuracy(u, epoch), seconds=1.0)
    policy, events = BOBOS(), list(study.events())
    replica = study.session.replica
    replica.policy, replica.fold = policy, Fold(problem, policy)
    replica.fold.read(events)
    return replica


def timed_proposal(replica: Replica) -> float:
    """Seconds of one proposal."""
    history = replica.history
    began = time.perf_counter()
    replica.policy.propose(replica.state, history, history.rng("propose", history.moves))
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    replica = filled(parser.parse_args().trials)
    SPACE.sample(1, np.random.default_rng(0), "sobol")  # imports scipy.stats, once a process
    reports = sum(len(t.epochs) for t in replica.history.trials)
    print(f"{reports} reports, {len(replica.history)} trials")
    print(f"proposal with a refit     {timed_proposal(replica):8.3f} s   (limit 2 s)")
    print(f"proposal between refits   {timed_proposal(replica):8.3f} s")


if __name__ == "__main__":
    main()
