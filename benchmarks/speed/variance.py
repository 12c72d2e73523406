"""TruVaR's decision on one core in float64: the rank-one update of the covariances and the acquisition (3).

    python benchmarks/speed/variance.py [--side 50] [--evaluations 100] [--large]

The state is TruVaR's own after so many evaluations of a function on a mesh of side x side, all of which may be
observed. Milliseconds of the update, of the acquisition over all places and of both: medians of 21, and in brackets the
fastest, to which other work on the machine adds least. Beside, the share of places whose variance is not saturated;
"everything counts" is the worst case. --large: 20,000 places by blocks, with the peak memory of the process.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import math
import resource
import time
from collections.abc import Callable

import numpy as np

from haltune.gp import Kernel, condition_on
from haltune.policies.truvar.belief import field_of
from haltune.policies.truvar.choice import (
    Confidence,
    Stage,
    best_ratio,
    excess_variance,
    potential_maximisers,
    truncated_reduction,
)

KERNEL = Kernel("se", 1.0, np.array([0.1, 0.1]))


def mesh(side: int, deep: int) -> np.ndarray:
    """Points (side * deep, 2)."""
    axes = np.meshgrid(np.linspace(0, 1, side), np.linspace(0, 1, deep), indexing="ij")
    return np.stack([axis.ravel() for axis in axes], axis=1)


def milliseconds(call: Callable[[], object], repeats: int) -> np.ndarray:
    """Median and fastest of repeats."""
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return 1e3 * np.array([np.median(spent), np.min(spent)])


def state(points: np.ndarray, noise: float, evaluations: int) -> tuple[object, np.ndarray, float]:
    """Run TruVaR; return its field, members and floor."""
    rng = np.random.default_rng(0)
    waves = rng.standard_normal((60, 2)) / 0.1
    values = np.sqrt(2 / 60) * np.cos(points @ waves.T + 2 * np.pi * rng.random(60)).sum(axis=1)
    field = field_of(condition_on(KERNEL, np.zeros((0, 2)), [], noise=0.0), points)
    confidence, stage = Confidence(0.5), Stage()
    every = np.ones(len(points), dtype=bool)
    members = every
    for t in range(1, evaluations + 1):
        beta = confidence.beta_of(stage, len(points), t)
        over = excess_variance(field.variance, confidence.eta_of(stage) ** 2 / beta, members)
        flat = np.full((1, len(points)), noise)
        _, place = best_ratio(truncated_reduction(field.rows, field.variance, flat, over), np.ones_like(flat))
        field.observe(place, values[place] + math.sqrt(noise) * rng.standard_normal(), noise)
        width = np.sqrt(confidence.beta_of(stage, len(points), t) * field.variance)
        members = potential_maximisers(field.mean, width, every)
        stage = confidence.after(stage, float(np.sqrt(field.variance[members].max())), t, len(points), t)
    beta = confidence.beta_of(stage, len(points), evaluations)
    return field, members, confidence.eta_of(stage) ** 2 / beta


def show(name: str, field: object, noise: float, over: np.ndarray, repeats: int) -> None:
    """One row."""
    count = len(over)
    flat = np.full((1, count), noise)
    acquire = milliseconds(lambda: truncated_reduction(field.rows, field.variance, flat, over), repeats)  # type: ignore[attr-defined]
    update = milliseconds(lambda: field.observe(count // 2, 0.0, 1e6), repeats)  # type: ignore[attr-defined]
    share = float((over > 0).mean())
    times = "".join(f"{median:9.2f} ({fastest:.2f})" for median, fastest in (update, acquire, update + acquire))
    print(f"{name:46s} {share:12.0%} {times} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=50)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    print(f"{'':46s} unsaturated    update         acquisition     both")
    if args.large:
        points = mesh(200, 100)
        large = field_of(condition_on(KERNEL, points[::200], np.zeros(100), noise=1e-3), points)
        everything = excess_variance(large.variance, 0.01, np.ones(len(points), dtype=bool))
        show(f"{len(points):,} places by blocks, t = 100", large, 1e-3, everything, 1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"peak memory {peak:.2f} GB")
        return
    points = mesh(args.side, args.side)
    for noise in (1e-6, 1e-2):
        field, members, floor = state(points, noise, args.evaluations)
        name = f"{len(points)} places, t = {args.evaluations}, noise {noise:g}"
        everywhere = np.ones(len(points), dtype=bool)
        show(f"{name}, M as it is", field, noise, excess_variance(field.variance, floor, members), 21)  # type: ignore[attr-defined]
        first = 1.0 / Confidence(0.5).beta_of(Stage(), len(points), 1.0)
        show(f"{name}, M = D, stage 1", field, noise, excess_variance(field.variance, first, everywhere), 21)  # type: ignore[attr-defined]
        show(f"{name}, everything counts", field, noise, excess_variance(field.variance, 0.0, everywhere), 21)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
