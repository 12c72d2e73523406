"""Why the paper's rule of rollout does not win in figure 4: the next training of each rule, from the same states.

    python benchmarks/papers/rollout_states.py [--seeds 20] [--after 6 10] [--horizon 2 4] [--keep FILE]

A state is a search of rollout_toy.py's "ring" problem by EI after so many trainings: the budget is 150. The rules
choose the next training from it: EI, and the paper's rule (`Rollout(cooled=False)`) with each horizon. The output has
the expected improvement of what they choose, by the same surrogate, as a share of EI's; and its cost.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import logging
from functools import partial
from typing import Any

import numpy as np
from command_line import command_line
from kept import Kept
from paired import cell
from rollout_toy import BUDGET, PROBLEM, f, ring

from haltune import Budget, Study
from haltune.policies import EI, Rollout
from haltune.policies.bayesopt import ImprovementSurrogate


def chosen(seed: int, after: int, horizons: list[int]) -> dict[str, list[float]]:
    """Expected improvement and cost of the next training by each rule."""
    study = Study(PROBLEM, EI(), seed=seed, budget=Budget(cost=BUDGET), verbose=0)
    for trial in study:
        trial.report(f(trial.config), cost=ring(trial.config))
        trial.finish()
        if len(study.trials) == after:
            break
    history, events = study.history, [*study.events()]
    found: dict[str, list[float]] = {}
    rules: dict[str, Any] = {"EI": EI(), **{f"h = {h}": Rollout(h, cooled=False) for h in horizons}}
    for name, policy in rules.items():
        state = policy.start(PROBLEM)
        for event in events:
            state = policy.fold(state, event)
        move = policy.propose(state, history, np.random.default_rng(seed))
        gain = ImprovementSurrogate(10).improvement(history, tuple(range(after)))
        assert gain is not None
        point = PROBLEM.space.encode(move.config)[None]
        found[name] = [float(gain.expected(point)[0]), ring(move.config)]
    return found


def main() -> None:
    parser = command_line(__doc__, 20)
    parser.add_argument("--after", type=int, nargs="+", default=[6, 10], help="trainings before the state")
    parser.add_argument("--horizon", type=int, nargs="+", default=[2, 4])
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    kept = Kept(args.keep)
    for after in args.after:
        states = [
            kept([after, seed, args.horizon], partial(chosen, seed, after, args.horizon)) for seed in range(args.seeds)
        ]
        gains = {name: np.array([state[name] for state in states]) for name in states[0]}
        print(f"\n{args.seeds} states after {after} trainings: expected improvement as a share of EI's; cost")
        shares = {name: own[:, 0] / gains["EI"][:, 0] for name, own in gains.items()}
        for name, own in gains.items():
            costs = own[:, 1]
            error = costs.std(ddof=1) / len(costs) ** 0.5
            print(f"{name:10s}{cell(shares[name] - 1.0):>28s} from EI's{costs.mean():10.2f}±{error:.2f}", flush=True)
        for nearer, further in zip(args.horizon, args.horizon[1:], strict=False):
            print(f"h = {further} minus h = {nearer}: {cell(shares[f'h = {further}'] - shares[f'h = {nearer}'])}")


if __name__ == "__main__":
    main()
