"""Time of a report through the actor that keeps a study on Ray, and its reports per second from all workers.

    python benchmarks/speed/ray_reports.py --workers 4 --reports 500

Each worker reports as fast as it can, without training. A cluster of one node is started here for it, with a CPU for
each worker by name, whatever this machine has. The time of a report is that of trial.report: reading what others
appended, the verdict, and the append, on the SQLite file of the actor.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

from haltune import Float, Maximize, Problem, Space, Study
from haltune.launch import ray as launcher
from haltune.policies import RandomSearch


class Report:
    """Reports as often as it may; the times go to a file for each trial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, trial: Any) -> None:
        begun, times = time.time(), []
        for epoch in trial.epochs():
            began = time.perf_counter()
            trial.report(epoch / trial.max_epochs, seconds=1.0)
            times.append(time.perf_counter() - began)
        np.save(self.folder / f"{trial.id}.npy", np.array([begun, time.time(), *times]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--reports", type=int, default=500, help="of each worker")
    given = parser.parse_args()
    ray.init(num_cpus=given.workers, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), given.reports)
        study = Study(problem, RandomSearch(trials=given.workers), folder / "search.db", seed=1, verbose=0)
        launcher.run(study, Report(folder), workers=given.workers, progress=False)
        found = [np.load(path) for path in folder.glob("*.npy")]
    ray.shutdown()
    times = 1000 * np.concatenate([f[2:] for f in found])
    together = max(f[0] for f in found), min(f[1] for f in found)
    everything = sum(len(f) - 2 for f in found) / (max(f[1] for f in found) - min(f[0] for f in found))
    print(f"{given.workers} workers on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: {len(times)} reports")
    print("ms a report: " + ", ".join(f"p{p} {np.percentile(times, p):.1f}" for p in (50, 95, 99)))
    print(f"{everything:.0f} reports a second; all workers at once for {max(0.0, together[1] - together[0]):.1f} s")


if __name__ == "__main__":
    main()
