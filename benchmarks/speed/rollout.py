"""Milliseconds of a proposal by rollout, and by BoTorch's qMultiStepLookahead; d = 3, one thread.

    python benchmarks/speed/rollout.py [--trials 40] [--horizons 2 4] [--repeats 3] [--peer 1 3]

haltune is asked through a study that has finished so many trials: kernels of score and cost are fitted in
the first ask and cached in the others; both are shown. The peer's line is one optimisation of qMultiStepLookahead
over a fitted SingleTaskGP, 8 fantasies for one step ahead, 8, 4 and 2 for three, with 4 restarts of 64 raw samples.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
import warnings

import numpy as np

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.policies import RandomSearch, Rollout
from haltune.store.memory import MemoryStore
from haltune.study.proposing import propose
from haltune.study.session import clocked

SPACE = Space({name: Float(0.0, 1.0) for name in "abc"})
FANTASIES = {1: [8], 2: [8, 4], 3: [8, 4, 2]}


def value(x: np.ndarray) -> np.ndarray:
    """A smooth function on the cube."""
    return np.sin(5 * x[..., 0]) + np.cos(4 * x[..., 1]) * x[..., 2] - (x[..., 2] - 0.4) ** 2


class Clock:
    """A clock that trainings advance."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def history(trials: int):
    """A search of so many random trials, of whose time budget a half is left."""
    clock = Clock()
    problem = Problem(SPACE, Maximize("f"), max_epochs=1)
    with clocked(clock):
        study = Study(problem, RandomSearch(), MemoryStore(clock), seed=0, budget=Budget(trials=trials), verbose=0)
    for trial in study:
        x = SPACE.encode(trial.config)
        seconds = float(np.exp(2 * x[0] + x[1]))
        clock.now += seconds
        trial.report(float(value(x)), seconds=seconds)
    found = study.history
    found.budget = Budget(time=2 * clock.now)
    return found


def ours(trials: int, horizon: int, repeats: int) -> tuple[float, float]:
    """Seconds of the first ask and the median of further ones."""
    past, policy = history(trials), Rollout(horizon)
    spent = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        propose(policy, tuple(range(trials)), past)
        spent.append(time.perf_counter() - begin)
    return spent[0], float(np.median(spent[1:]))


def peer(trials: int, ahead: int) -> float | None:
    """Seconds of BoTorch's multi-step lookahead, or None where it is not installed."""
    try:
        import torch
        from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from botorch.optim import optimize_acqf
        from gpytorch.mlls import ExactMarginalLogLikelihood
    except ImportError:
        return None
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.rand(trials, 3, dtype=torch.double)
    y = torch.as_tensor(value(x.numpy()))[:, None]
    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    lookahead = qMultiStepLookahead(
        model, batch_sizes=[1] * ahead, num_fantasies=FANTASIES[ahead], collapse_fantasy_base_samples=True
    )
    bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.double)
    points = lookahead.get_augmented_q_batch_size(1)
    begin = time.perf_counter()
    optimize_acqf(
        lookahead, bounds, q=points, num_restarts=4, raw_samples=64, return_full_tree=True,
        options={"maxiter": 200},
    )  # fmt: skip
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--horizons", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", type=int, nargs="*", default=[1, 3], choices=[*FANTASIES])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    ours(10, 2, 1)  # imports, and memory that is touched first
    for horizon in args.horizons:
        first, again = ours(args.trials, horizon, args.repeats)
        print(f"Rollout({horizon}), {args.trials} trials: {first:.3f} s with fits, {again:.3f} s without", flush=True)
    for ahead in args.peer:
        seconds = peer(args.trials, ahead)
        said = "is not installed: pip install 'haltune[bench]'" if seconds is None else f"{seconds:.2f} s"
        print(f"qMultiStepLookahead, {ahead} ahead: {said}", flush=True)


if __name__ == "__main__":
    main()
