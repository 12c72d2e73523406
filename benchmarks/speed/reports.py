"""CPU time of a report within an epoch, at the end of an epoch, and in a study of whole epochs; and of an ask.

    python benchmarks/speed/reports.py [--trials 200]

A plain loop, the default search, a store in memory. The time includes the decision: its median is that of a report
between two decisions of the model, its mean is that of all. Median on 2 cores: 0.40 ms within an epoch and 0.40 ms at
its end; 0.32 to 0.35 ms if every report is at a whole epoch, because nothing is then converted to judged reports. The
last tenth of the asks shows how a long search grows.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from haltune import Float, Study, Trial

EPOCHS = 10


def times(trials: int, each: int) -> tuple[list[float], list[float], list[float]]:
    """Return the milliseconds of reports within epochs, of those at their ends, and of asks; each: reports an epoch."""
    within: list[float] = []
    ends: list[float] = []
    asks: list[float] = []
    space = {"lr": Float(1e-4, 1e-1, log=True)}
    study = Study(space, "loss", max_epochs=EPOCHS, budget=f"{trials} trials", seed=0, verbose=0)
    while True:
        begin = time.process_time()
        trial = study.ask()
        asks.append(1e3 * (time.process_time() - begin))
        if not isinstance(trial, Trial):
            return within, ends, asks
        with trial:
            for n in range(1, EPOCHS * each + 1):
                begin = time.process_time()
                verdict = trial.report(trial.config["lr"] + 1 / n, epoch=n / each)
                (within if n % each else ends).append(1e3 * (time.process_time() - begin))
                if verdict.stops:
                    break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    args = parser.parse_args()
    within, ends, _ = times(args.trials, 5)
    _, whole, asks = times(args.trials, 1)
    rows = {"within an epoch": within, "at its end": ends, "in a study of whole epochs": whole}
    rows |= {"asks in it": asks, "the last tenth of them": asks[-len(asks) // 10 :]}
    for name, found in rows.items():
        print(f"{name:28s} {len(found):5d}, median {np.median(found):.3f} ms, mean {np.mean(found):.3f} ms")


if __name__ == "__main__":
    main()
