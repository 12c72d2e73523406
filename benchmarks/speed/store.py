"""Time of the log: loading a long study, one report, one ask.

    python benchmarks/speed/store.py [--trials 10000] [--epochs 50] [--server]

Fills a SQLite file, or a PostgreSQL server of its own on loopback (--server), with a study of
 trials x epochs reports (500,000 by default), then measures in
fresh processes: opening it (seconds, peak resident memory of the whole process), asking for the
next trial of a random search with the policy's own time apart, and the round trip of one report.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from haltune import Budget, Float, Maximize, Problem, Space, Study, Trial, Verdict
from haltune.log.decisions import continue_
from haltune.log.events import Created, Ended, Event, Reported, Started, Status
from haltune.policies import RandomSearch
from haltune.store.open import open_sql

PROBLEM = Problem(Space({f"x{i}": Float(0.0, 1.0) for i in range(6)}), Maximize("acc", (0, 1)), 50)


class Timed(RandomSearch):
    """Random search that adds up its own seconds."""

    own = 0.0

    def propose(self, *args: Any) -> Any:
        """RandomSearch.propose, timed."""
        began = time.perf_counter()
        try:
            return super().propose(*args)
        finally:
            Timed.own += time.perf_counter() - began


def verdict(id: int, epoch: int) -> Verdict:
    """Words and numbers of which no two are alike, as BO-BOS gives them."""
    p = 1.0 / (1.0 + id + epoch / 51.0)
    return continue_(
        f"P(beats 0.912) = {p:.3g} at epoch {epoch}", probability=p, loss_of_stopping=5 * p, loss_of_going_on=2 * p
    )


def story(trials: int, epochs: int, seen: int = 1) -> Iterator[Event]:
    """The events of a search by one worker, one epoch a second."""
    configs = PROBLEM.space.sample(trials, np.random.default_rng(0))
    for id, config in enumerate(configs):
        yield Started(
            at=float(seen), trial=id, config=config, pause_at=50.0, resource=None, tags={},
            reason="drawn at random", evidence={}, seen=seen, deciding=0.01, worker="w",
        )  # fmt: skip
        for epoch in range(1, epochs + 1):
            yield Reported(
                at=float(seen + epoch), trial=id, attempt=1, epoch=float(epoch), value=1 - 1 / (epoch + 1 + id % 7),
                seconds=1.0, verdict=verdict(id, epoch), seen=seen + epoch, deciding=1e-4, metrics={},
            )  # fmt: skip
        seen += epochs + 2
        yield Ended(at=float(seen - 1), trial=id, attempt=1, status=Status.COMPLETED)


def fill(url: str, trials: int, epochs: int) -> None:
    """Write the study into a new file, or an empty database."""
    store = open_sql(url)
    spec = Timed().spec
    store.create("study", Created(at=0.0, problem=PROBLEM.to_json(), policy=spec, seed=1))
    batch: list[Event] = []
    position = 1
    for event in story(trials, epochs):
        batch.append(event)
        if len(batch) == 20_000:
            position = store.append("study", batch, seen=position, about=None) + len(batch)
            batch = []
    if batch:
        store.append("study", batch, seen=position, about=None)
    store.close()


def opened(path: str) -> Study:
    """The study, reopened with budget for more."""
    return Study(PROBLEM, Timed(), path, budget=Budget(trials=10**9), verbose=0)


def measure_load(path: str) -> dict[str, float]:
    """Seconds to open, and peak memory of this process in MB."""
    began, busy = time.perf_counter(), time.process_time()
    study = opened(path)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return {
        "load s": seconds,
        "load s, processor": busy,
        "load us an event, processor": 1e6 * busy / study.history.position,
        "peak MB": peak / unit,
        "reports": study.spent.epochs,
    }


def measure_asks(path: str) -> dict[str, float]:
    """Milliseconds of one ask: in all, and without the policy's own."""
    study = opened(path)
    rows = []
    for _ in range(12):
        own, began = Timed.own, time.perf_counter()
        trial = study.ask()
        took = time.perf_counter() - began
        rows.append((took, took - (Timed.own - own)))
        assert isinstance(trial, Trial)
        trial.report(0.5)
        trial.finish()
    first, later = rows[0], rows[1:]
    return {
        "first ask ms, besides policy": 1e3 * first[1],
        "ask ms": 1e3 * statistics.median(r[0] for r in later),
        "ask ms, besides policy": 1e3 * statistics.median(r[1] for r in later),
        "best ms": 1e3 * timed(lambda: study.best),
        "trials ms": 1e3 * timed(lambda: study.trials),
    }


def timed(work: Any) -> float:
    """Median seconds of three calls, after one to warm up."""
    work()
    marks = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        marks.append(time.perf_counter() - began)
    return statistics.median(marks)


def measure_reports(path: str) -> dict[str, float]:
    """Milliseconds of one report, decided and stored."""
    study = opened(path)
    marks = []
    for _ in range(8):
        trial = study.ask()
        assert isinstance(trial, Trial)
        with trial:
            for epoch in trial.epochs():
                began = time.perf_counter()
                trial.report(1 - 1 / (epoch + 1), seconds=1.0)
                marks.append(time.perf_counter() - began)
    return {
        "report ms, median": 1e3 * statistics.median(marks),
        "report ms, 99%": 1e3 * float(np.quantile(marks, 0.99)),
    }


MEASURES = {"load": measure_load, "asks": measure_asks, "reports": measure_reports}


def in_fresh_process(name: str, url: str) -> dict[str, float]:
    """One measurement where nothing is loaded yet."""
    command = [sys.executable, __file__, "--only", name, "--url", url]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--only", choices=list(MEASURES), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--server", action="store_true", help="PostgreSQL instead of SQLite")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(MEASURES[options.only](options.url)))
        return
    with empty(options.server) as url:
        began = time.perf_counter()
        fill(url, options.trials, options.epochs)
        print(f"{'write s':32} {time.perf_counter() - began:10.2f}")
        for name in MEASURES:
            for what, value in in_fresh_process(name, url).items():
                print(f"{what:32} {value:10.3f}", flush=True)
        print(f"{'load average':32} {os.getloadavg()[0]:10.1f}")


@contextmanager
def empty(server: bool) -> Iterator[str]:
    """The URL of an empty database."""
    if not server:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/long.db"
        return
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
    import postgres

    with postgres.server(flushes=True) as own:
        yield own.database()


if __name__ == "__main__":
    main()
