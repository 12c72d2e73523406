"""Time of one AutoBCT decision by dimension and depth, on one core.

    python benchmarks/speed/valuation.py [--repeats 20]

A decision is the value of every control from the beliefs after three trainings, as the policy computes it. The aims:
in one coordinate 5 ms at depth 2 and 50 ms at depth 3, in two 10 ms and 300 ms. Processor time of this process, on one
thread: other programs may run.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time

import numpy as np

from haltune import Float, Space
from haltune.policies.autobct.policy import controls_of
from haltune.policies.autobct.prior import preset
from haltune.policies.autobct.value import ONE, TWO, grid_belief, values

AIMS = {(1, 2): 5.0, (1, 3): 50.0, (2, 2): 10.0, (2, 3): 300.0}  # ms


def decisions(dim, depth, repeats):
    """Milliseconds of each."""
    rng = np.random.default_rng(0)
    controls = controls_of(Space({f"x{i}": Float(0, 1) for i in range(dim)}))
    prior, spent = preset("D.1" if dim == 1 else "D.4"), []
    for _ in range(repeats):
        believed = prior
        for u in rng.integers(len(controls.points), size=3):
            believed = believed.observe(prior.on(controls.points[[u]])[0], rng.normal(0.5, 0.2), rng.uniform(0, 1))
        began = time.process_time()
        values(grid_belief(believed, prior.on(controls.points), 0.16), depth, ONE if dim == 1 else TWO)
        spent.append(1e3 * (time.process_time() - began))
    return np.array(spent)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    print("dim depth  median ms  fastest ms  aim ms")
    for (dim, depth), aim in AIMS.items():
        spent = decisions(dim, depth, options.repeats)
        print(f"{dim:3d} {depth:5d} {np.median(spent):10.1f} {spent.min():11.1f} {aim:7.0f}")


if __name__ == "__main__":
    main()
