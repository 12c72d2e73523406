"""The cost of a stopping decision: simulating and solving 43 epochs ahead, and deciding one epoch.

    python benchmarks/speed/stopping.py [--paths 100000] [--repeats 20]

One thread. Targets: one solution with 100,000 paths and 100 cells under 120 ms, paths included; one decision
from a solved table under 0.2 ms.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
from collections.abc import Callable

import numpy as np

from haltune.models.curves import conditional_paths, fit_decay, fit_power_law, power_law_paths
from haltune.policies.bobos.optimal_stopping import Losses, OptimalStopping, solve

HORIZON, FIRST = 51, 8


def milliseconds(work: Callable[[], object], repeats: int) -> str:
    """Median and fastest of some repeats, after one to warm up."""
    work()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - begin))
    return f"{np.median(taken):8.2f} ms (fastest {min(taken):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paths", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    noise = 0.005 * np.random.default_rng(0).standard_normal(HORIZON)
    errors = 0.2 + 0.7 * np.arange(1.0, HORIZON + 1) ** -0.6 + noise
    seen = errors[:FIRST]

    def draw(sampler: Callable[..., object]) -> Callable[[], object]:
        return lambda: sampler(seen, HORIZON, args.paths, np.random.default_rng(0))

    def solution(mode: str, incumbent: float) -> Callable[[], object]:
        settings = OptimalStopping("faithful" if mode == "faithful" else "robust", paths=args.paths, cells=100)
        losses = settings.losses()
        return lambda: settings.solve_at(seen, HORIZON, incumbent, losses, np.random.default_rng(0))

    paths = conditional_paths(seen, HORIZON, args.paths, np.random.default_rng(0))
    table = solve(paths, seen, 0.25, Losses())
    works: dict[str, Callable[[], object]] = {
        "fit, exponential-decay GP": lambda: fit_decay(seen),
        "fit, power law": lambda: fit_power_law(seen, HORIZON),
        "fit and draw, GP": draw(conditional_paths),
        "fit and draw, power law": draw(power_law_paths),
        "backward induction": lambda: solve(paths, seen, 0.25, Losses()),
        "all of it, faithful": solution("faithful", 0.25),
        "all of it, robust": solution("robust", 0.25),
        "one decision": lambda: table.decide(errors[:20]),
    }
    print(f"{args.paths} paths, {HORIZON - FIRST} epochs, 100 cells, one thread; {args.repeats} repeats")
    for name, work in works.items():
        print(f"{name:28s} {milliseconds(work, args.repeats)}", flush=True)


if __name__ == "__main__":
    main()
